"""torchao's float8 training with ``fully_shard``, whose all-gathers carry float8 weights.

``emulate=True``: products of float8 numbers in float32, which a CPU can compute.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchao.float8 import (
    Float8LinearConfig,
    convert_to_float8_training,
    precompute_float8_dynamic_scale_for_fsdp,
)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank())
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)
    ).to(device)
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True)
    convert_to_float8_training(model, config=config)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for module in (*(layer for layer in model if isinstance(layer, nn.Linear)), model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(4):
        x = torch.randn(16, 32, generator=rows).to(device)
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        precompute_float8_dynamic_scale_for_fsdp(model)
        losses.append(loss.item())
    shards = [parameter.to_local().detach() for parameter in model.parameters()]
    total = sum(float(shard.double().sum()) for shard in shards)
    print(dist.get_rank(), *losses, total, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
