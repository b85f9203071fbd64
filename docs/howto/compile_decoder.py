"""Compile one training step of a flax decoder for 64 H100, on a machine without a GPU.

The mesh has five axes: data, fsdp (parameters are gathered for use), tensor (heads and hidden
units), expert (experts and tokens change places), and stage (a pipeline of micro-batches).
"""

from __future__ import annotations

import gzip
import os
import sys
from functools import partial

os.environ["JAX_PLATFORMS"] = "cpu"  # nothing runs
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"  # without a GPU, kernels cannot be tried out

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# What XLA asks about a GPU that is not there: data sheet of the H100 SXM5, and the table of
# technical specifications of compute capability 9.0 in the CUDA C++ programming guide.
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

AXES = {"stage": 2, "data": 2, "fsdp": 4, "expert": 2, "tensor": 2}
LAYERS, WIDTH, HIDDEN, HEADS, HEAD, EXPERTS = 16, 2048, 4096, 16, 128, 8
BATCH, SEQUENCE, VOCABULARY, MICRO_BATCHES = 128, 2048, 32768, 8
DTYPE = jnp.bfloat16
ROWS = ("data", "fsdp", "expert")  # the axes that divide the sequences of a micro-batch


def weight(*axes):
    """An initializer whose array is divided along axes of the mesh."""
    return nn.with_partitioning(nn.initializers.normal(0.02), axes)


def divide(x, *axes):
    """Divide a value along axes of the mesh; where there is none, only shapes are asked for."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, P(*axes))


class Block(nn.Module):
    """Attention, and a mixture of experts of which each token goes to one."""

    @nn.compact
    def __call__(self, x):
        rows, tokens, _ = x.shape
        x = divide(x, ROWS, None, None)
        h = nn.RMSNorm(dtype=DTYPE, param_dtype=DTYPE)(x)
        q, k, v = (
            self.product(name, h, HEADS * HEAD, "fsdp", "tensor").reshape(rows, tokens, HEADS, HEAD)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * HEAD**-0.5
        mask = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
        shares = nn.softmax(jnp.where(mask, scores, -1e9).astype(jnp.float32)).astype(DTYPE)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, v)
        mixed = mixed.reshape(rows, tokens, HEADS * HEAD)
        x = x + divide(self.product("output", mixed, WIDTH, "tensor", "fsdp"), ROWS, None, None)
        return x + self.experts(nn.RMSNorm(dtype=DTYPE, param_dtype=DTYPE)(x))

    def product(self, name, x, features, *axes):
        """A product with a matrix that is divided along two axes."""
        dense = nn.Dense(
            features,
            use_bias=False,
            dtype=DTYPE,
            param_dtype=DTYPE,
            kernel_init=weight(*axes),
            name=name,
        )
        return dense(x)

    def experts(self, x):
        """Every expert gets an equal share of the tokens of a device."""
        shape = (EXPERTS, WIDTH, HIDDEN)
        first = self.param("first", weight("expert", "fsdp", "tensor"), shape, DTYPE)
        last = self.param(
            "last", weight("expert", "tensor", "fsdp"), (EXPERTS, HIDDEN, WIDTH), DTYPE
        )
        rows, tokens, _ = x.shape
        x = divide(x, ROWS, None, None).reshape(rows, EXPERTS, tokens // EXPERTS, WIDTH)
        x = divide(divide(x, ROWS, None, None, None), ("data", "fsdp"), "expert", None, None)
        hidden = nn.gelu(jnp.einsum("betd,edf->betf", x, first))
        hidden = divide(hidden, ("data", "fsdp"), "expert", None, "tensor")
        x = jnp.einsum("betf,efd->betd", hidden, last)
        x = divide(x, ("data", "fsdp"), "expert", None, None)
        return divide(x, ROWS, None, None, None).reshape(rows, tokens, WIDTH)


def pipeline(stage_layers, batches):
    """Pass micro-batches through the stages: all stages work, then pass on what they have."""
    first = jax.lax.axis_index("stage") == 0
    ring = [(stage, (stage + 1) % AXES["stage"]) for stage in range(AXES["stage"])]

    @jax.checkpoint
    def layer(x, weights):
        return Block().apply({"params": weights}, x), None

    def turn(x, number):
        entering = batches[jnp.minimum(number, MICRO_BATCHES - 1)]
        x, _ = jax.lax.scan(layer, jnp.where(first, entering, x), stage_layers)
        return jax.lax.ppermute(x, "stage", ring), x

    turns = jnp.arange(MICRO_BATCHES + AXES["stage"] - 1)
    _, outputs = jax.lax.scan(turn, jnp.zeros_like(batches[0]), turns)
    return outputs[AXES["stage"] - 1 :]  # of the last stage, these are the results


def training_step(mesh, weights, momentum, tokens):
    """The new weights, the new momentum, and the loss."""

    def loss(weights):
        x = weights["embedding"][tokens]
        stages = jax.shard_map(
            pipeline,
            mesh=mesh,
            in_specs=(P("stage"), P()),
            out_specs=P("stage"),
            axis_names={"stage"},
            check_vma=False,
        )
        x = stages(weights["layers"], x)[-MICRO_BATCHES:]
        logits = (x @ weights["head"]).astype(jnp.float32)
        return -jnp.take_along_axis(nn.log_softmax(logits), tokens[..., None], -1).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g.astype(m.dtype), momentum, gradients)
    weights = jax.tree.map(lambda w, m: (w - 1e-3 * m).astype(w.dtype), weights, momentum)
    return weights, momentum, value


def main(file):
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="h100", topology="1x8x8", target_config=H100
    )  # 8 nodes of 8 GPUs
    mesh = Mesh(np.array(topology.devices).reshape(tuple(AXES.values())), tuple(AXES))

    def shape(sizes, *axes, dtype=DTYPE):
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, P(*axes)))

    rows = BATCH // MICRO_BATCHES

    def initial():
        return Block().init(jax.random.key(0), jnp.zeros((rows, SEQUENCE, WIDTH), DTYPE))["params"]

    block = jax.eval_shape(initial)
    layers = jax.tree.map(
        lambda leaf, spec: shape((LAYERS, *leaf.shape), "stage", *spec),
        nn.unbox(block),
        nn.get_partition_spec(block),
    )
    with jax.set_mesh(mesh):
        weights = {
            "layers": layers,
            "embedding": shape((VOCABULARY, WIDTH), "fsdp", "tensor"),
            "head": shape((WIDTH, VOCABULARY), "fsdp", "tensor"),
        }
        momentum = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32, sharding=leaf.sharding),
            weights,
        )
        tokens = shape((MICRO_BATCHES, rows, SEQUENCE), None, ROWS, dtype=jnp.int32)
        step = jax.jit(partial(training_step, mesh), donate_argnums=(0, 1))
        compiled = step.lower(weights, momentum, tokens).compile()
    with gzip.open(file, "wt") as stream:
        stream.write(compiled.as_text())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "decoder.txt.gz")
