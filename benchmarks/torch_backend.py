"""PyTorch on the emulator: a training step with DistributedDataParallel, and the cost of a call against simcoll.distributed.

Run: ``python benchmarks/torch_backend.py [ranks ...]``.
"""

from __future__ import annotations

import platform
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import simcoll.distributed
import simcoll.torch

STEPS = 6
CALLS = 200


def training(_rank, _world_size):
    dist.init_process_group("simcoll")
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    ]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    walls, times = [], []
    for _ in range(STEPS):
        dist.barrier()
        wall, begin = time.perf_counter(), simcoll.torch.emulated_time()
        model(torch.randn(8, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        walls.append(time.perf_counter() - wall)
        times.append(simcoll.torch.emulated_time() - begin)
    return walls, times


def calls(_rank, _world_size):
    dist.init_process_group("simcoll")
    x = torch.ones(256)
    for _ in range(CALLS):
        dist.all_reduce(x)


def same_calls(_rank, _world_size):
    x = np.ones(256, np.float32)
    for _ in range(CALLS):
        simcoll.distributed.all_reduce(x)


def wall_of(run, program, nprocs):
    begin = time.perf_counter()
    run(program, nprocs)
    return (time.perf_counter() - begin) / CALLS * 1e3


def main():
    numbers = [int(word) for word in sys.argv[1:]] or [8, 64]
    print(
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, topology dgx-h100, Simple"
    )
    print(f"{'ranks':>6} {'parameters':>10} {'wall ms/step':>13} {'simulated us/step':>18}")
    for nprocs in numbers:
        walls, times = simcoll.torch.spawn(training, nprocs, topology="dgx-h100", protocol="Simple").returns[0]
        print(f"{nprocs:>6} {134_154:>10,} {min(walls) * 1e3:>13.1f} {times[-1] * 1e6:>18.2f}")
    print(f"{'ranks':>6} {'all_reduce of 1 KiB, ms/call: torch':>36} {'simcoll.distributed':>20} {'ratio':>6}")
    for nprocs in numbers:
        there, here = (
            wall_of(simcoll.torch.spawn, calls, nprocs),
            wall_of(simcoll.distributed.spawn, same_calls, nprocs),
        )
        print(f"{nprocs:>6} {there:>36.2f} {here:>20.2f} {there / here:>6.2f}")


if __name__ == "__main__":
    main()
