"""How far a step on TPUs would be off: a decoder of 31.7 billion parameters for 256 TPU v5e.

``python -m benchmarks.hlo_tpu TEXT [--compile]`` reads the text of its compiled training step, or
compiles and writes it first (with jax and libtpu, six minutes of a core), and prints the
compiler's own cycles and the collectives on the torus beside the step that MaxText published for
its 32B model on the same chips: 66.86 % of the peak (MaxText/configs/v5e/README.md).
"""

from __future__ import annotations

import argparse
import gzip
import os
from collections import Counter
from pathlib import Path

LAYERS, WIDTH, HEADS, HEAD, HIDDEN, VOCABULARY = 32, 8192, 64, 128, 28672, 32000
CHIPS, ROWS, SEQUENCE = 256, 4, 2048
CLOCK = 1.5e9  # 197 TFLOPS of four matrix units of 128 x 128 multiply-adds
PEAK = 197e12
PUBLISHED = 0.6686
PARTS = 8  # of the heads, whose scores are in memory at one time


def compiled_step() -> str:
    """The text: parameters divided over all chips, layers in a loop, everything recomputed."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    chips = topologies.get_topology_desc(platform="tpu", topology_name="v5e:16x16")
    mesh = topologies.make_mesh(chips, (CHIPS,), ("fsdp",))

    def divided(x):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("fsdp")))

    def norm(x, gain):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
        return (wide * scale * gain).astype(jnp.bfloat16)

    @jax.checkpoint
    def heads(arrays):
        q, k, v = arrays
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
        scores = jnp.where(jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool)), scores, -1e9)
        shares = jax.nn.softmax(scores * HEAD**-0.5).astype(jnp.bfloat16)
        return jnp.einsum("bhqk,bkhd->bqhd", shares, v)

    def attention(arrays):
        parted = tuple(
            jnp.moveaxis(x.reshape(ROWS * CHIPS, SEQUENCE, PARTS, HEADS // PARTS, HEAD), 2, 0)
            for x in arrays
        )
        mixed = jnp.moveaxis(jax.lax.map(heads, parted), 0, 2)
        return mixed.reshape(ROWS * CHIPS, SEQUENCE, HEADS * HEAD)

    @jax.checkpoint
    def layer(x, weights):
        w = {name: array.astype(jnp.bfloat16) for name, array in weights.items()}
        h = norm(x, w["attention norm"])
        shape = (ROWS * CHIPS, SEQUENCE, HEADS, HEAD)
        x += divided(attention([(h @ w[name]).reshape(shape) for name in "qkv"]) @ w["output"])
        h = norm(x, w["mlp norm"])
        return x + divided((jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"])

    def loss(parameters, tokens):
        x = divided(parameters["embedding"].astype(jnp.bfloat16)[tokens])
        x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, parameters["layers"])
        head = parameters["head"].astype(jnp.bfloat16)
        logits = divided((norm(x, 1.0) @ head).astype(jnp.float32))
        chosen = jnp.take_along_axis(logits, jnp.roll(tokens, -1, 1)[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    def step(parameters, means, squares, tokens):
        gradients = jax.grad(loss)(parameters, tokens)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, squares, gradients)
        parameters = jax.tree.map(
            lambda p, m, s: p - 1e-4 * m / (jnp.sqrt(s) + 1e-8), parameters, means, squares
        )
        return parameters, means, squares

    def array(shape, dtype, *axes):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))

    matrices = dict.fromkeys(("q", "k", "v"), (WIDTH, HEADS * HEAD))
    matrices |= {"output": (HEADS * HEAD, WIDTH), "down": (HIDDEN, WIDTH)}
    matrices |= dict.fromkeys(("gate", "up"), (WIDTH, HIDDEN))
    layers = {
        name: array((LAYERS, *shape), jnp.float32, None, "fsdp") for name, shape in matrices.items()
    }
    layers |= {f"{part} norm": array((LAYERS, WIDTH), jnp.float32) for part in ("attention", "mlp")}
    parameters = {
        "embedding": array((VOCABULARY, WIDTH), jnp.float32, "fsdp"),
        "head": array((WIDTH, VOCABULARY), jnp.float32, "fsdp"),
        "layers": layers,
    }
    tokens = array((ROWS * CHIPS, SEQUENCE), jnp.int32, "fsdp")
    lowered = jax.jit(step, donate_argnums=(0, 1, 2)).lower(
        parameters, parameters, parameters, tokens
    )
    return lowered.compile().as_text()


def main() -> None:
    """Print the parts of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    if options.compile:
        options.text.write_bytes(gzip.compress(compiled_step().encode()))

    from simcoll.jobs.hlo_program import HloStart, HloWork, steps_with_counts
    from simcoll.jobs.hlo_workload import load_hlo
    from simcoll.libraries.isolated import alone_fs
    from simcoll.libraries.plans import library_plan
    from simcoll.topology import load_topology

    machine, program = load_topology("tpu-v5e"), load_hlo(options.text)
    cycles: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for part, count in steps_with_counts(program.steps):
        if isinstance(part, HloWork):
            cycles["products" if part.cost.flops else "memory"] += part.cycles * count
        elif isinstance(part, HloStart):
            call = part.collective
            plan = library_plan(call.kind, call.size_bytes, machine.with_ranks(call.groups[0]))
            name = f"{call.kind}, {'waited for' if call.synchronous else 'beside work'}"
            seconds[name] += count * alone_fs(plan, machine.with_ranks(call.groups[0])) / 1e15
    parameters = LAYERS * WIDTH * (4 * HEADS * HEAD + 3 * HIDDEN) + WIDTH * VOCABULARY
    scores = 12 * LAYERS * SEQUENCE * HEADS * HEAD
    flops = (6 * parameters + scores) * ROWS * SEQUENCE
    for name, count in cycles.items():
        print(f"{name:28}{count / CLOCK:8.3f} s by the compiler's cycles")
    for name, time in sorted(seconds.items()):
        print(f"{name:28}{time:8.3f} s on the torus")
    work = cycles.total() / CLOCK
    waited = sum(time for name, time in seconds.items() if "waited" in name)
    for name, time in (("work alone", work), ("with collectives", work + waited)):
        share = flops / PEAK / time
        print(f"{name}: {share:.1%} of the peak, {100 * (share - PUBLISHED):+.1f} points")


if __name__ == "__main__":
    main()
