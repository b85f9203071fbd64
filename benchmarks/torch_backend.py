"""PyTorch on the emulator: a training step with DistributedDataParallel, and the cost of a call
against simcoll.distributed and against PyTorch's own threads, which have no times.

Run: ``python benchmarks/torch_backend.py [ranks ...]``. The memory is the peak of the process.
"""

from __future__ import annotations

import platform
import resource
import threading
import time

import cyclopts
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import simcoll.distributed
import simcoll.torch

STEPS = 6
CALLS = 300
CALLING = 64
"""The most ranks whose calls are measured."""


def training(_rank, _world_size):
    dist.init_process_group("simcoll")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds, times = [], []
    for _ in range(STEPS):
        dist.barrier()
        cpu, begin = time.process_time(), simcoll.torch.emulated_time()
        model(torch.randn(8, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(simcoll.torch.emulated_time() - begin)
        dist.barrier()
        seconds.append(time.process_time() - cpu)
    return seconds, times


def calls(_rank, _world_size):
    dist.init_process_group("simcoll")
    x = torch.ones(256)
    for _ in range(CALLS):
        dist.all_reduce(x)


def same_calls(_rank, _world_size):
    x = np.ones(256, np.float32)
    for _ in range(CALLS):
        simcoll.distributed.all_reduce(x)


def cpu_of_call(run, program, nprocs):
    begin = time.process_time()
    run(program, nprocs)
    return (time.process_time() - begin) / CALLS * 1e3


def spawn_threads(_program, nprocs):
    """The calls in the threads of PyTorch's own tests, which have no public name."""
    # ruff: noqa: SLF001
    from torch.testing._internal.distributed import multi_threaded_pg

    def work(rank):
        dist.init_process_group("threaded", rank=rank, world_size=nprocs, store=store)
        x = torch.ones(256)
        for _ in range(CALLS):
            dist.all_reduce(x)
        dist.destroy_process_group()

    store, isolate = dist.HashStore(), torch._C._distributed_c10d._set_thread_isolation_mode
    isolate(True)
    multi_threaded_pg._install_threaded_pg()
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(nprocs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    multi_threaded_pg._uninstall_threaded_pg()
    isolate(False)


def main(*numbers: int):
    """Measure training on so many ranks; default 8, 64 and 256."""
    numbers = numbers or (8, 64, 256)
    print(
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, "
        "topology superpod-h100, Simple"
    )
    print(
        f"{'ranks':>6} {'parameters':>10} {'CPU s/step':>11} {'the most':>9} "
        f"{'simulated us/step':>18} {'peak MiB':>9}"
    )
    for nprocs in numbers:
        result = simcoll.torch.spawn(training, nprocs, topology="superpod-h100", protocol="Simple")
        seconds, times = result.returns[0]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(
            f"{nprocs:>6} {65_792:>10,} {min(seconds):>11.3f} {max(seconds):>9.3f} "
            f"{times[-1] * 1e6:>18.2f} {peak:>9}"
        )
    print(
        f"{'ranks':>6} {'all_reduce of 1 KiB, CPU ms/call: torch':>40} {'simcoll.distributed':>20} "
        f"{'ratio':>6} {'threads of PyTorch':>19} {'ratio':>6}"
    )
    for nprocs in (number for number in numbers if number <= CALLING):
        there, here, threads = (
            cpu_of_call(simcoll.torch.spawn, calls, nprocs),
            cpu_of_call(simcoll.distributed.spawn, same_calls, nprocs),
            cpu_of_call(spawn_threads, None, nprocs),
        )
        print(
            f"{nprocs:>6} {there:>40.2f} {here:>20.2f} {there / here:>6.2f} {threads:>19.2f} "
            f"{there / threads:>6.2f}"
        )


if __name__ == "__main__":
    cyclopts.run(main)
