"""JAX programs whose FLOPs and bytes have closed forms, compiled ahead of time for many devices.

``python -m benchmarks.hlo_programs FOLDER [--for h100|cpu|v5e:4x4] [--only NAME]`` compiles each
program for 16 devices and writes the optimised text of XLA, compressed. Those in the folder
``tests/unit/jobs`` are by jax 0.10.2. It needs ``jax`` and, for H100, ``jax-cuda12-plugin`` and
``jax-cuda12-pjrt`` of the same version, without their dependencies: no GPU and no CUDA, as in
``docs/howto/compile-ahead-of-time.md``.
"""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path

DEVICES = 16
TOKENS, WIDTH, HIDDEN, LAYERS = 2048, 512, 1024, 4
HEADS, KV_HEADS, HEAD, SEQUENCE, VOCABULARY = 8, 4, 64, 256, 1024

# What XLA asks about a GPU that is not there. Numbers: NVIDIA H100 datasheet (SXM5, 80 GB) and the
# CUDA C++ programming guide, table of technical specifications, compute capability 9.0.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: 3350000000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 minor: 0 }
  runtime_version: "12.8.0"
  driver_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
  name: "NVIDIA H100 80GB HBM3"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def mesh(platform, shape, names):
    """A mesh of devices that need not exist; 8 GPUs a node."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh

    count = int(np.prod(shape))
    if platform == "cpu":
        devices = jax.devices()[:count]
    elif platform == "h100":
        devices = topologies.get_topology_desc(
            platform="cuda",
            topology_name="h100",
            topology=f"1x{-(-count // 8)}x{min(8, count)}",
            target_config=H100,
        ).devices
    else:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=platform).devices
    return Mesh(np.array(devices).reshape(shape), names)


def argument(place, shape, spec, dtype="bfloat16"):
    """The shape of an argument, and how it is divided."""
    import jax
    from jax.sharding import NamedSharding

    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(place, spec))


def constrain(place, x, *spec):
    """Divide an intermediate value."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    return jax.lax.with_sharding_constraint(x, NamedSharding(place, PartitionSpec(*spec)))


def gated_mlp(platform):
    """Layers in a scan, recomputed; fully sharded over fsdp, tensor parallel over tensor."""
    import jax
    from jax.sharding import PartitionSpec as P

    place = mesh(platform, (4, 4), ("fsdp", "tensor"))

    def layer(x, w):
        hidden = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])
        return x + constrain(place, hidden, "fsdp", "tensor") @ w["down"]

    def loss(w, x):
        def body(x, w):
            return constrain(place, jax.checkpoint(layer)(x, w), "fsdp", None), None

        x, _ = jax.lax.scan(body, x, w)
        return (x.astype("float32") ** 2).mean()

    def step(w, x):
        return jax.tree.map(lambda a, g: a - g, w, jax.grad(loss)(w, x))

    weights = {
        "gate": argument(place, (LAYERS, WIDTH, HIDDEN), P(None, "fsdp", "tensor")),
        "up": argument(place, (LAYERS, WIDTH, HIDDEN), P(None, "fsdp", "tensor")),
        "down": argument(place, (LAYERS, HIDDEN, WIDTH), P(None, "tensor", "fsdp")),
    }
    return step, (weights, argument(place, (TOKENS, WIDTH), P("fsdp", None))), (0,)


def decoder(platform):
    """A decoder with grouped-query attention, layers in a scan, over data, fsdp and tensor."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    place = mesh(platform, (2, 4, 2), ("data", "fsdp", "tensor"))
    batch = ("data", "fsdp")

    def norm(x):
        wide = x.astype("float32")
        return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)

    def layer(x, w):
        h = norm(x)
        q = jnp.einsum("bsd,dgrk->bsgrk", h, w["q"])
        k, v = (jnp.einsum("bsd,dgk->bsgk", h, w[name]) for name in "kv")
        scores = jnp.einsum("bqgrk,btgk->bgrqt", q, k) * HEAD**-0.5
        mask = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
        scores = jnp.where(mask, scores, jnp.asarray(-1e9, scores.dtype))
        shares = jax.nn.softmax(scores.astype("float32"), -1).astype(x.dtype)
        mixed = jnp.einsum("bgrqt,btgk->bqgrk", shares, v)
        x = x + constrain(place, jnp.einsum("bqgrk,grkd->bqd", mixed, w["o"]), batch, None, None)
        h = norm(x)
        hidden = jax.nn.silu(h @ w["gate"]) * (h @ w["up"])
        hidden = constrain(place, hidden, batch, None, "tensor")
        return x + constrain(place, hidden @ w["down"], batch, None, None)

    def loss(w, tokens):
        x = constrain(place, jnp.take(w["embedding"], tokens, axis=0), batch, None, None)
        x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, w["layers"])
        logits = (norm(x) @ w["head"]).astype("float32")
        chosen = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
        return (jax.nn.logsumexp(logits, -1) - chosen).mean()

    def step(w, tokens):
        return jax.tree.map(lambda a, g: a - g, w, jax.grad(loss)(w, tokens))

    repeat = HEADS // KV_HEADS
    shapes = {
        "q": ((WIDTH, KV_HEADS, repeat, HEAD), P(None, "fsdp", "tensor", None, None)),
        "k": ((WIDTH, KV_HEADS, HEAD), P(None, "fsdp", "tensor", None)),
        "v": ((WIDTH, KV_HEADS, HEAD), P(None, "fsdp", "tensor", None)),
        "o": ((KV_HEADS, repeat, HEAD, WIDTH), P(None, "tensor", None, None, "fsdp")),
        "gate": ((WIDTH, HIDDEN), P(None, "fsdp", "tensor")),
        "up": ((WIDTH, HIDDEN), P(None, "fsdp", "tensor")),
        "down": ((HIDDEN, WIDTH), P(None, "tensor", "fsdp")),
    }
    weights = {
        "layers": {
            name: argument(place, (LAYERS, *shape), spec) for name, (shape, spec) in shapes.items()
        },
        "embedding": argument(place, (VOCABULARY, WIDTH), P(None, "fsdp")),
        "head": argument(place, (WIDTH, VOCABULARY), P("fsdp", "tensor")),
    }
    tokens = argument(place, (TOKENS // SEQUENCE, SEQUENCE), P(batch, None), "int32")
    return step, (weights, tokens), (0,)


def experts(platform):
    """An expert-parallel MLP in shard_map, with all_to_all over expert; forward and backward."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    place = mesh(platform, (4, 4), ("data", "expert"))
    count = place.shape["expert"]

    def mlp(x, first, second):
        tokens = x.shape[0]
        x = x.reshape(count, tokens // count, WIDTH)
        x = jax.lax.all_to_all(x, "expert", 0, 0, tiled=True).reshape(tokens, WIDTH)
        x = jax.nn.gelu(x @ first[0]) @ second[0]
        x = x.reshape(count, tokens // count, WIDTH)
        return jax.lax.all_to_all(x, "expert", 0, 0, tiled=True).reshape(tokens, WIDTH)

    both = P(("data", "expert"), None)
    split = P("expert", None, None)
    mapped = jax.shard_map(mlp, mesh=place, in_specs=(both, split, split), out_specs=both)

    def loss(x, first, second):
        return (mapped(x, first, second).astype(jnp.float32) ** 2).mean()

    arguments = (
        argument(place, (TOKENS, WIDTH), both),
        argument(place, (count, WIDTH, HIDDEN), split),
        argument(place, (count, HIDDEN, WIDTH), split),
    )
    return jax.grad(loss, argnums=(1, 2)), arguments, ()


def pipeline(platform):
    """A pipeline of 4 stages of 2 layers, 8 micro-batches, forward: permutes in nested loops."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    place = mesh(platform, (4, 4), ("stage", "tensor"))
    stages, batches = 4, 8
    ring = [(stage, (stage + 1) % stages) for stage in range(stages)]

    def run(xs, first, second):
        def layer(x, w):
            return x + jax.lax.psum(jax.nn.gelu(x @ w[0]) @ w[1], "tensor"), None

        def tick(x, t):
            entering = jax.lax.axis_index("stage") == 0
            x = jnp.where(entering, xs[jnp.minimum(t, batches - 1)], x)
            x, _ = jax.lax.scan(layer, x, (first, second))
            return jax.lax.ppermute(x, "stage", ring), x

        _, outputs = jax.lax.scan(tick, jnp.zeros_like(xs[0]), jnp.arange(batches + stages - 1))
        return outputs

    mapped = jax.shard_map(
        run,
        mesh=place,
        in_specs=(P(), P("stage", None, "tensor"), P("stage", "tensor", None)),
        out_specs=P(None, "stage", None),
        check_vma=False,
    )
    arguments = (
        argument(place, (batches, TOKENS // batches, WIDTH), P()),
        argument(place, (2 * stages, WIDTH, HIDDEN), P("stage", None, "tensor")),
        argument(place, (2 * stages, HIDDEN, WIDTH), P("stage", "tensor", None)),
    )
    return mapped, arguments, ()


def convolutions(platform):
    """Two convolutions, data parallel, with gradients of both kernels."""
    import jax
    from jax.sharding import PartitionSpec as P

    place = mesh(platform, (16,), ("data",))

    def convolve(x, kernel, stride, padding):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=layout
        )

    def loss(w, x):
        x = jax.nn.relu(convolve(x, w["first"], 1, "SAME"))
        return (convolve(x, w["second"], 2, "VALID").astype("float32") ** 2).mean()

    def step(w, x):
        return jax.tree.map(lambda a, g: a - g, w, jax.grad(loss)(w, x))

    weights = {
        "first": argument(place, (3, 3, 64, 128), P()),
        "second": argument(place, (3, 3, 128, 128), P()),
    }
    return step, (weights, argument(place, (64, 32, 32, 64), P("data"))), (0,)


def accumulation(platform):
    """Micro-batches in a scan around layers in a scan, gradients summed over data at the end."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    place = mesh(platform, (16,), ("data",))
    batches = 4

    def loss(w, x):
        x, _ = jax.lax.scan(lambda x, w: (x + jax.nn.gelu(x @ w[0]) @ w[1], None), x, w)
        return (x.astype("float32") ** 2).mean()

    def run(w, xs):
        def add(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(w, x)), None

        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, w), xs)
        return jax.tree.map(lambda a, g: a - jax.lax.psum(g, "data"), w, total)

    mapped = jax.shard_map(
        run, mesh=place, in_specs=(P(), P(None, "data", None)), out_specs=P(), check_vma=False
    )
    weights = (
        argument(place, (LAYERS, WIDTH, HIDDEN), P()),
        argument(place, (LAYERS, HIDDEN, WIDTH), P()),
    )
    xs = argument(place, (batches, TOKENS, WIDTH), P(None, "data", None))
    return mapped, (weights, xs), (0,)


PROGRAMS = {
    "gated-mlp": gated_mlp,
    "decoder": decoder,
    "experts": experts,
    "pipeline": pipeline,
    "convolutions": convolutions,
    "accumulation": accumulation,
}


def compile_program(name, platform):
    """The compiled program."""
    import jax

    function, arguments, donated = PROGRAMS[name](platform)
    options = {"xla_gpu_autotune_level": "0"} if platform == "h100" else None
    lowered = jax.jit(function, donate_argnums=donated).lower(*arguments)
    return lowered.compile(compiler_options=options)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--for", dest="platform", default="h100")
    parser.add_argument("--only", choices=PROGRAMS)
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    if options.platform == "h100":
        # without a GPU nothing can be tried out, so products stay products
        os.environ["XLA_FLAGS"] += " --xla_gpu_autotune_level=0"
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    import jax

    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # no paths of a machine
    for name in PROGRAMS if options.only is None else [options.only]:
        text = compile_program(name, options.platform).as_text()
        target = options.platform.partition(":")[0]
        file = options.folder / f"{name}-{target}.txt.gz"
        file.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{file}: {len(text):,} characters, {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
