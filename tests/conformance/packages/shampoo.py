"""Distributed Shampoo of facebookresearch/optimizers: with DistributedDataParallel, with
``fully_shard`` in two dimensions (HSDP), and in one. On four ranks or a multiple.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from distributed_shampoo import (
    DDPDistributedConfig,
    DistributedShampoo,
    FullyShardDistributedConfig,
    HybridShardDistributedConfig,
    RootInvShampooPreconditionerConfig,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 8)
    ).to(DEVICE)


def wrap(kind):
    """A model in parallel, and Shampoo's configuration for it."""
    if kind == "ddp":
        return DistributedDataParallel(make_model()), DDPDistributedConfig()
    if kind == "fully_shard":
        return fully_shard(make_model()), FullyShardDistributedConfig()
    names = ("replicate", "shard")
    mesh = init_device_mesh(DEVICE, (2, dist.get_world_size() // 2), mesh_dim_names=names)
    model = fully_shard(make_model(), mesh=mesh)
    return model, HybridShardDistributedConfig(device_mesh=mesh)


def train(kind):
    model, configuration = wrap(kind)
    optimizer = DistributedShampoo(
        model.parameters(),
        lr=0.002,
        betas=(0.9, 0.99),
        epsilon=1e-8,
        max_preconditioner_dim=16,
        precondition_frequency=2,
        start_preconditioning_step=2,
        distributed_config=configuration,
        preconditioner_config=RootInvShampooPreconditionerConfig(),
    )
    rows = torch.Generator().manual_seed(10 + dist.get_rank())
    losses = []
    for _ in range(6):
        x = torch.randn(16, 24, generator=rows).to(DEVICE)
        loss = (model(x) - x[:, :8].sin()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    parameters = [parameter.detach() for parameter in model.parameters()]
    shards = [each.to_local() if hasattr(each, "to_local") else each for each in parameters]
    return [*losses, sum(float(shard.double().sum()) for shard in shards)]


def main():
    dist.init_process_group("nccl" if GPU else "gloo")
    if GPU:
        torch.cuda.set_device(dist.get_rank())
    numbers = [number for kind in ("ddp", "hsdp", "fully_shard") for number in train(kind)]
    print(dist.get_rank(), *numbers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
