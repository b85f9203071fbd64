"""JAX training steps of which a measured time is published, compiled ahead of time for H100.

``python -m benchmarks.hlo_published FOLDER [--only NAME]`` writes the text of each, compressed, for
``simcoll job``; ``docs/reference/hlo.md`` has the predictions beside the published times. Needs
what ``benchmarks.hlo_programs`` needs.

The published runs are of MaxText, in containers that cannot be had here; these programs have the
same shapes, precision, mesh, optimizer, attention kernel and, as far as it is stated,
recomputation, and XLA's flags are those that NVIDIA recommends for MaxText. cuDNN is not there
either: its version is given to JAX, which writes a call of the kernel.
"""

from __future__ import annotations

import argparse
import gzip
import os
from dataclasses import dataclass
from pathlib import Path

SEQUENCE, PER_GPU = 4096, 2
FLAGS = " ".join(
    f"--xla_{flag}"
    for flag in (
        "gpu_autotune_level=0",
        "gpu_enable_latency_hiding_scheduler=true",
        "gpu_all_gather_combine_threshold_bytes=1073741824",
        "gpu_all_reduce_combine_threshold_bytes=1073741824",
        "gpu_reduce_scatter_combine_threshold_bytes=134217728",
        "gpu_enable_pipelined_all_gather=true",
        "gpu_enable_pipelined_reduce_scatter=true",
        "gpu_enable_while_loop_double_buffering=true",
        "disable_hlo_passes=rematerialization",
    )
)
"""Source: NVIDIA/JAX-Toolbox, docs/frameworks/maxtext/README.md; and no autotuning, as nothing
runs.
"""
CUDNN = 91000


@dataclass(frozen=True)
class PublishedStep:
    """A Llama 2 with fully sharded weights, and its step time in seconds.

    ``kept`` are the results of products that a layer keeps for the backward pass; without any,
    everything is kept. Layers are unrolled unless ``scanned``.
    """

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    gpus: int
    seconds: float
    kept: tuple[str, ...] = ()
    scanned: bool = False
    head: int = 128
    vocabulary: int = 32000


STEPS = {
    # NVIDIA/JAX-Toolbox, docs/frameworks/maxtext/README.md, table of configs: FSDP 8, flash
    # attention, remat policy minimal_flash, scan off.
    "llama-2-7b-8": PublishedStep(32, 4096, 11008, 32, 32, 8, 0.721),
    # NVIDIA/dgxc-benchmarking 25.01, MaxText Llama 2 70B, BF16, table of step times: FSDP 64 and
    # 128; remat policy save_qkv_proj of its configure.sh.
    "llama-2-70b-64": PublishedStep(
        80, 8192, 28672, 64, 8, 64, 6.999, ("q", "k", "v"), scanned=True
    ),
    "llama-2-70b-128": PublishedStep(
        80, 8192, 28672, 64, 8, 128, 7.072, ("q", "k", "v"), scanned=True
    ),
}


def training_step(shape):
    """The function of a step, and its arguments."""
    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name
    from jax.sharding import PartitionSpec as P

    from benchmarks.hlo_programs import argument, constrain, mesh

    place = mesh("h100", (shape.gpus,), ("fsdp",))
    rows = ("fsdp", None, None)

    def norm(x, gain):
        wide = x.astype("float32")
        scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
        return (wide * scale).astype(x.dtype) * gain

    def rotate(x):
        angles = jnp.arange(SEQUENCE)[:, None] * 10000.0 ** (-jnp.arange(0, 1, 2 / shape.head))
        sine, cosine = (f(angles)[None, :, None].astype(x.dtype) for f in (jnp.sin, jnp.cos))
        first, second = jnp.split(x, 2, -1)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    def layer(x, weights):
        w = jax.tree.map(lambda array: array.astype("bfloat16"), weights)
        h = norm(x, w["first"])
        q, k, v = (checkpoint_name(jnp.einsum("bsd,dhk->bshk", h, w[name]), name) for name in "qkv")
        context = jax.nn.dot_product_attention(
            rotate(q), rotate(k), v, is_causal=True, implementation="cudnn"
        )
        context = checkpoint_name(context, "context")
        x = x + checkpoint_name(jnp.einsum("bshk,hkd->bsd", context, w["o"]), "out")
        h = norm(x, w["second"])
        hidden = jax.nn.silu(h @ w["gate"]) * (h @ w["up"])
        return constrain(place, x + hidden @ w["down"], *rows), None

    if shape.kept:
        kept = jax.checkpoint_policies.save_only_these_names(*shape.kept)
        layer = jax.checkpoint(layer, policy=kept)

    def loss(w, tokens):
        x = jnp.take(w["embedding"].astype("bfloat16"), tokens, axis=0)
        x = constrain(place, x, *rows)
        if shape.scanned:
            x, _ = jax.lax.scan(layer, x, w["layers"])
        else:
            for weights in w["layers"]:
                x, _ = layer(x, weights)
        logits = norm(x, w["last"].astype(x.dtype)) @ w["head"].astype("bfloat16")
        logits = constrain(place, logits, *rows).astype("float32")
        chosen = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
        return (jax.nn.logsumexp(logits, -1) - chosen).mean()

    def step(state, tokens):
        """AdamW, with weights and moments in float32."""
        w, mean, square = state
        gradient = jax.grad(loss)(w, tokens)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, square, gradient)

        def update(w, m, s):
            return w - 3e-5 * (m / (jnp.sqrt(s) + 1e-8) + 0.1 * w)

        return jax.tree.map(update, w, mean, square), mean, square

    width, hidden, head = shape.width, shape.hidden, shape.head
    sizes = {
        "q": ((width, shape.heads, head), ("fsdp",)),
        "k": ((width, shape.kv_heads, head), ("fsdp",)),
        "v": ((width, shape.kv_heads, head), ("fsdp",)),
        "o": ((shape.heads, head, width), (None, None, "fsdp")),
        "first": ((width,), ()),
        "second": ((width,), ()),
        "gate": ((width, hidden), ("fsdp",)),
        "up": ((width, hidden), ("fsdp",)),
        "down": ((hidden, width), (None, "fsdp")),
    }
    stack, along = ((shape.layers,), (None,)) if shape.scanned else ((), ())
    layers = {
        name: argument(place, (*stack, *size), P(*along, *axes), "float32")
        for name, (size, axes) in sizes.items()
    }
    weights = {
        "layers": layers if shape.scanned else [layers] * shape.layers,
        "embedding": argument(place, (shape.vocabulary, width), P(None, "fsdp"), "float32"),
        "head": argument(place, (width, shape.vocabulary), P("fsdp"), "float32"),
        "last": argument(place, (width,), P(), "float32"),
    }
    tokens = argument(place, (shape.gpus * PER_GPU, SEQUENCE), P("fsdp", None), "int32")
    return step, ((weights, weights, weights), tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=STEPS)
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = FLAGS
    import jax
    import jax._src.cudnn.fused_attention_stablehlo as attention

    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # no paths of a machine
    attention.check_cudnn_version = lambda: CUDNN
    for name in STEPS if options.only is None else [options.only]:
        function, arguments = training_step(STEPS[name])
        text = jax.jit(function, donate_argnums=0).lower(*arguments).compile().as_text()
        file = options.folder / f"{name}.txt.gz"
        file.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{file}: {len(text):,} characters; published {STEPS[name].seconds} s", flush=True)


if __name__ == "__main__":
    main()
