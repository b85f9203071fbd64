"""Step a Llama-shaped model of 7 G parameters with ``fully_shard``, on fake tensors.

``python benchmarks/torch_models.py [RANKS [LAYERS]] [--library nccl] [--batches 4] [--wide]``:
forward, backward and optimizer on 256 ranks of ``superpod-h100``; one program for all ranks.
``RANKS`` is a number, or a mesh such as 8x16x8: copies, shards, and tensor-parallel ranks.
``--batches`` is the number of micro-batches; ``--wide`` takes the widths of 70 G parameters at 80
layers. Prints the simulated time, CPU seconds and the peak of memory, and that of a rank's tensors.
``--peer`` runs the same step with PyTorch's own fake process group, which has no times.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from time import process_time

import cyclopts
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

import simcoll.torch

HEAD, VOCABULARY, SEQUENCE = 128, 32000, 2048
NARROW, WIDE = (4096, 11008), (8192, 28672)
"""Widths of the model and of its multilayer perceptron, of Llama 2's 7 G and 70 G parameters."""


class Block(nn.Module):
    """Attention and a gated multilayer perceptron."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attention = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        y = self.norms[0](x)
        heads = (layer(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in self.attention[:3])
        y = (
            functional.scaled_dot_product_attention(*heads, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )
        x = x + self.attention[3](y)
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """Embedding, blocks, and logits."""

    def __init__(self, layers: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(layers))
        self.norm, self.logits = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


AXES = "replicate", "shard", "tensor"
COLUMNS = ("gate", "up", *(f"attention.{index}" for index in range(3)))
ROWS = ("down", "attention.3")


def program(
    _rank: int,
    _world_size: int,
    layers: int,
    sizes: tuple[int, ...],
    widths: tuple[int, int],
    batches: int,
) -> float:
    """One step; the simulated seconds."""
    dist.init_process_group("simcoll")
    return train(layers, sizes, widths, batches, simcoll.torch.emulated_time)


def train(
    layers: int,
    sizes: tuple[int, ...],
    widths: tuple[int, int],
    batches: int,
    clock: Callable[[], float],
) -> float:
    """One step on the default group; the seconds of a clock."""
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=AXES)  # PyTorch's cannot make it inside
    with FakeTensorMode():
        model = Model(layers, *widths)
        if sizes[2] > 1:
            for block in model.blocks:
                plan = dict.fromkeys(COLUMNS, ColwiseParallel()) | dict.fromkeys(
                    ROWS, RowwiseParallel()
                )
                parallelize_module(block, mesh["tensor"], plan)
        mesh = mesh["replicate", "shard"] if sizes[0] > 1 else mesh["shard"]
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        # As on GPUs, where it is the default.
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        torch.cpu.synchronize()
        begin = clock()
        tokens = torch.zeros(1, SEQUENCE, dtype=torch.int64)
        for _ in range(batches):
            functional.cross_entropy(
                model(tokens).view(-1, VOCABULARY).float(), tokens.view(-1)
            ).backward()
        optimizer.step()
        torch.cpu.synchronize()
        return clock() - begin


MACHINE = {"topology": "superpod-h100", "compute": "roofline", "gpu": "h100"}


def main(
    ranks: str = "256",
    layers: int = 32,
    /,
    *,
    library: str | None = None,
    batches: int = 1,
    wide: bool = False,
    peer: bool = False,
) -> None:
    """Measure a step of a model on ``256`` ranks, or on a mesh such as ``8x16x8``, with the choices
    of a ``library``.
    """
    sizes = tuple(map(int, ranks.split("x"))) if "x" in ranks else (1, int(ranks), 1)
    spawn = simcoll.torch.spawn  # loads what a run needs
    begin = process_time()
    args = layers, sizes, WIDE if wide else NARROW, batches
    if peer:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        options = {"rank": 0, "world_size": math.prod(sizes), "store": FakeStore()}
        dist.init_process_group("fake", **options)
        train(*args, process_time)
        print(f"PyTorch's fake process group: {process_time() - begin:.1f} CPU s")
        return
    options = {"args": args, "alike": "all", "trace": True, "library": library}
    result = spawn(program, math.prod(sizes), **options, **MACHINE)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{layers} layers on {ranks} ranks: {result.returns[0] * 1e3:.0f} ms a step, "
        f"{result.messages:,} messages, skew "
        f"{result.skew_fs / 1e9:.1f} us; {process_time() - begin:.1f} CPU s, {memory:,} MiB; a "
        "rank holds "
        f"{result.peak_bytes[0] / 2**30:.1f} GiB"
    )
    print(result.timeline.summary(0), "(with making the model)")


if __name__ == "__main__":
    cyclopts.run(main)
