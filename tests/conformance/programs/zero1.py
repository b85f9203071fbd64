"""Optimizer states in parts: ``ZeroRedundancyOptimizer``, with groups of parameters and a
consolidated state.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(rank)
    model = nn.Sequential(
        nn.Linear(16, 48),
        nn.Tanh(),
        nn.LayerNorm(48),
        nn.Linear(48, 24),
        nn.ReLU(),
        nn.Linear(24, 4),
    )
    model = DistributedDataParallel(model.to(device), bucket_cap_mb=0.004)
    optimizer = ZeroRedundancyOptimizer(
        model.module[:3].parameters(),
        optimizer_class=torch.optim.AdamW,
        parameters_as_bucket_view=True,
        lr=1e-2,
    )
    optimizer.add_param_group({"params": list(model.module[3:].parameters()), "lr": 3e-3})
    losses = []
    for _ in range(4):
        loss = (model(torch.randn(8, 16, device=device)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    optimizer.consolidate_state_dict(to=0)
    states = 0.0
    if rank == 0:
        states = sum(
            float(state["exp_avg"].double().sum())
            for state in optimizer.state_dict()["state"].values()
        )
    own = sum(state["exp_avg"].numel() for state in optimizer.optim.state.values())
    assert own < sum(each.numel() for each in model.parameters()), "each rank keeps a part"
    print(
        rank,
        *losses,
        states,
        sum(float(each.detach().double().sum()) for each in model.parameters()),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
