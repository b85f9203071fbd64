"""Muon and Dion of microsoft/dion: with DistributedDataParallel, with ``fully_shard``, and with
copies of shards, which only run on simcoll. On four ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from dion import Dion, Muon
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def wrap(kind, rows):
    """A model in parallel, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 64, bias=False), nn.Tanh(), nn.Linear(64, 32, bias=False)
    ).to(DEVICE)
    if kind == "muon-ddp":
        model = DistributedDataParallel(model)
        return model, Muon(model.parameters(), distributed_mesh=model.process_group, lr=0.02)
    if kind == "dion-ddp":
        model = DistributedDataParallel(model)
        group = model.process_group
        return model, Dion(model.parameters(), replicate_mesh=group, lr=0.02, rank_fraction=0.5)
    if kind == "muon-fsdp":
        mesh = init_device_mesh(DEVICE, (rows,))
        fully_shard(model, mesh=mesh)
        return model, Muon(model.parameters(), distributed_mesh=mesh, lr=0.02)
    mesh = init_device_mesh(DEVICE, (2, rows // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    return model, Dion(
        model.parameters(),
        replicate_mesh=mesh["replicate"],
        outer_shard_mesh=mesh["shard"],
        replicate_mesh_grad_sync=False,
        lr=0.02,
        rank_fraction=0.5,
    )


def train(kind):
    model, optimizer = wrap(kind, dist.get_world_size())
    rows = torch.Generator().manual_seed(10 + dist.get_rank())
    losses = []
    for _ in range(5):
        x = torch.randn(16, 32, generator=rows).to(DEVICE)
        loss = (model(x) - x.sin()).square().mean()
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
    kinds = ("muon-ddp", "dion-ddp", "muon-fsdp")
    if GPU:  # it draws a random DTensor, which PyTorch does on accelerators only
        first_loss, *_, last_loss, _ = train("dion-hsdp")
        assert last_loss < first_loss
    print(dist.get_rank(), *(number for kind in kinds for number in train(kind)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
