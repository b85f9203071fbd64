"""Training steps of models in the shapes of public ones, compiled ahead of time for 64 H100.

``python -m benchmarks.hlo_models FOLDER [--only NAME]`` writes the text of each, compressed, and
prints its FLOPs beside 6 N D plus attention. Needs what ``benchmarks.hlo_programs`` needs.
"""

from __future__ import annotations

import argparse
import gzip
import os
from dataclasses import dataclass
from pathlib import Path

BATCH = 64


@dataclass(frozen=True)
class Shape:
    """A decoder. Sources: the models' config.json on Hugging Face, and the papers named there."""

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    experts: int = 1
    experts_per_token: int = 1
    sequence: int = 2048
    tensor: int = 4

    @property
    def parameters(self) -> int:
        """Those of matrix products, with the head; of the experts, those that a token uses."""
        attention = self.width * self.head * (2 * self.heads + 2 * self.kv_heads)
        mlp = (3 if self.gated else 2) * self.width * self.hidden * self.experts_per_token
        router = self.width * self.experts if self.experts > 1 else 0
        return self.layers * (attention + mlp + router) + self.width * self.vocabulary

    @property
    def flops(self) -> int:
        """FLOPs of a step: 6 N D, and 12 L S H d for each token, with all pairs of tokens."""
        scores = 12 * self.layers * self.sequence * self.heads * self.head
        return (6 * self.parameters + scores) * BATCH * self.sequence


SHAPES = {
    "llama-3.1-8b": Shape(32, 4096, 14336, 32, 8, 128, 128256),
    "gpt2-large": Shape(36, 1280, 5120, 20, 20, 64, 50260, gated=False, tied=True),
    "mixtral-8x7b": Shape(
        32, 4096, 14336, 32, 8, 128, 32000, experts=8, experts_per_token=2, sequence=1024
    ),
    "gemma-2b": Shape(18, 2048, 16384, 8, 1, 256, 256000, tied=True, tensor=1),
}
"""GPT-2's vocabulary of 50257 is padded to a multiple of 4, the tensor axis. Gemma's single head of
keys cannot be divided, so there is no tensor axis; and Mixtral's sequences are short enough that
XLA recomputes nothing to save memory.
"""


def training_step(shape):
    """The function of a step, and its arguments."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from benchmarks.hlo_programs import argument, constrain, mesh

    place = mesh("h100", (2, 32 // shape.tensor, shape.tensor), ("data", "fsdp", "tensor"))
    rows = ("data", "fsdp")
    repeat = shape.heads // shape.kv_heads
    kv_axis, q_axes = "tensor", ("tensor", None)

    def norm(x, gain):
        wide = x.astype("float32")
        scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
        return (wide * scale).astype(x.dtype) * gain

    def attention(x, w):
        q = jnp.einsum("bsd,dgrk->bsgrk", x, w["q"])
        k, v = (jnp.einsum("bsd,dgk->bsgk", x, w[name]) for name in "kv")
        scores = jnp.einsum("bqgrk,btgk->bgrqt", q, k) * shape.head**-0.5
        mask = jnp.tril(jnp.ones((shape.sequence, shape.sequence), bool))
        scores = jnp.where(mask, scores, jnp.asarray(-1e9, scores.dtype))
        shares = jax.nn.softmax(scores.astype("float32"), -1).astype(x.dtype)
        mixed = jnp.einsum("bgrqt,btgk->bqgrk", shares, v)
        return constrain(place, jnp.einsum("bqgrk,grkd->bqd", mixed, w["o"]), rows, None, None)

    def dense(x, w):
        hidden = x @ w["up"]
        hidden = jax.nn.silu(x @ w["gate"]) * hidden if shape.gated else jax.nn.gelu(hidden)
        return constrain(place, hidden, rows, None, "tensor") @ w["down"]

    def mixture(x, w):
        """Each token goes to some experts; they take equal shares, whoever they are."""
        scale = jax.nn.softmax((x @ w["router"]).astype("float32"), -1).max(-1).astype(x.dtype)
        copies = jnp.concatenate([x] * shape.experts_per_token, axis=1)
        parts = copies.reshape(x.shape[0], shape.experts, -1, shape.width)
        hidden = jax.nn.silu(jnp.einsum("betd,edf->betf", parts, w["gate"]))
        hidden = hidden * jnp.einsum("betd,edf->betf", parts, w["up"])
        hidden = constrain(place, hidden, rows, None, None, "tensor")
        parts = jnp.einsum("betf,efd->betd", hidden, w["down"]).reshape(copies.shape)
        return sum(jnp.split(parts, shape.experts_per_token, axis=1)) * scale[..., None]

    def layer(x, w):
        x = x + attention(norm(x, w["first"]), w)
        mlp = mixture if shape.experts > 1 else dense
        return constrain(place, x + mlp(norm(x, w["second"]), w), rows, None, None), None

    def loss(w, tokens):
        x = constrain(place, jnp.take(w["embedding"], tokens, axis=0), rows, None, None)
        x, _ = jax.lax.scan(layer, x, w["layers"])
        head = w["embedding"].T if shape.tied else w["head"]
        logits = constrain(place, x @ head, rows, None, "tensor").astype("float32")
        chosen = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
        return (jax.nn.logsumexp(logits, -1) - chosen).mean()

    def step(w, tokens):
        return jax.tree.map(lambda a, g: a - g.astype(a.dtype), w, jax.grad(loss)(w, tokens))

    sizes = {
        "q": ((shape.width, shape.kv_heads, repeat, shape.head), ("fsdp", *q_axes, None)),
        "k": ((shape.width, shape.kv_heads, shape.head), ("fsdp", kv_axis, None)),
        "v": ((shape.width, shape.kv_heads, shape.head), ("fsdp", kv_axis, None)),
        "o": ((shape.kv_heads, repeat, shape.head, shape.width), (*q_axes, None, "fsdp")),
        "first": ((shape.width,), (None,)),
        "second": ((shape.width,), (None,)),
    }
    experts = (shape.experts,) if shape.experts > 1 else ()
    along = (None,) if shape.experts > 1 else ()
    for name in ("up", "gate") if shape.gated else ("up",):
        sizes[name] = ((*experts, shape.width, shape.hidden), (*along, "fsdp", "tensor"))
    sizes["down"] = ((*experts, shape.hidden, shape.width), (*along, "tensor", "fsdp"))
    if shape.experts > 1:
        sizes["router"] = ((shape.width, shape.experts), ("fsdp", None))
    weights = {
        "layers": {
            name: argument(place, (shape.layers, *dimensions), P(None, *axes))
            for name, (dimensions, axes) in sizes.items()
        },
        "embedding": argument(place, (shape.vocabulary, shape.width), P("tensor", "fsdp")),
    }
    if not shape.tied:
        weights["head"] = argument(place, (shape.width, shape.vocabulary), P("fsdp", "tensor"))
    tokens = argument(place, (BATCH, shape.sequence), P(rows, None), "int32")
    return step, (weights, tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=SHAPES)
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
    import jax

    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # no paths of a machine
    for name in SHAPES if options.only is None else [options.only]:
        function, arguments = training_step(SHAPES[name])
        text = jax.jit(function, donate_argnums=0).lower(*arguments).compile().as_text()
        file = options.folder / f"{name}-h100.txt.gz"
        file.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{file}: {len(text):,} characters; 6 N D and attention {SHAPES[name].flops:.4g}")


if __name__ == "__main__":
    main()
