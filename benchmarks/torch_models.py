"""Step a Llama-shaped model of 7 G parameters with ``fully_shard``, on fake tensors.

``python benchmarks/torch_models.py [RANKS [LAYERS]]``: forward, backward and optimizer on 256 ranks of ``superpod-h100``; one program
for all ranks. Prints the simulated time, CPU seconds and the peak of memory.
"""

from __future__ import annotations

import resource
import sys
from time import process_time

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

import simcoll.torch

WIDTH, HIDDEN, HEADS, VOCABULARY, SEQUENCE = 4096, 11008, 32, 32000, 2048


class Block(nn.Module):
    """Attention and a gated multilayer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.attention = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        y = self.norms[0](x)
        heads = (layer(y).view(batch, length, HEADS, -1).transpose(1, 2) for layer in self.attention[:3])
        y = (
            functional.scaled_dot_product_attention(*heads, is_causal=True)
            .transpose(1, 2)
            .reshape(batch, length, width)
        )
        x = x + self.attention[3](y)
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """Embedding, blocks, and logits."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.logits = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


def program(_rank: int, world_size: int, layers: int) -> float:
    """One step; the simulated seconds."""
    dist.init_process_group("simcoll")
    with FakeTensorMode():
        mesh, model = init_device_mesh("cpu", (world_size,)), Model(layers)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())
        torch.cpu.synchronize()
        begin = simcoll.torch.emulated_time()
        tokens = torch.zeros(1, SEQUENCE, dtype=torch.int64)
        functional.cross_entropy(model(tokens).view(-1, VOCABULARY).float(), tokens.view(-1)).backward()
        optimizer.step()
        torch.cpu.synchronize()
        return simcoll.torch.emulated_time() - begin


MACHINE = {"topology": "superpod-h100", "compute": "roofline", "gpu": "h100"}


def main() -> None:
    ranks, layers = (int(word) for word in (sys.argv[1:] + ["256", "32"][len(sys.argv) - 1 :]))
    begin = process_time()
    result = simcoll.torch.spawn(program, ranks, args=(layers,), alike="all", trace=True, **MACHINE)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{layers} layers on {ranks} ranks: {result.returns[0] * 1e3:.0f} ms a step, {result.messages:,} messages, skew "
        f"{result.skew_fs / 1e9:.1f} us; {process_time() - begin:.1f} CPU s, {memory:,} MiB"
    )
    print(result.timeline.summary(0), "(with making the model)")


if __name__ == "__main__":
    main()
