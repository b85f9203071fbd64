"""Cost of collectives in rank programs: 1,000 all_reduces of 1 KiB at 64 ranks, and one at 1,024
ranks.

Run: ``python benchmarks/distributed.py [--calls N]``.
"""

from __future__ import annotations

import platform
import resource
import time

import cyclopts
import numpy as np

import simcoll.distributed as dist


def program(_rank, _world_size, calls):
    x = np.ones(256, np.float32)
    for _ in range(calls):
        x[:] = 1
        dist.all_reduce(x)
    return float(x[0])


def measure(nprocs, calls):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    result = dist.spawn(program, nprocs, args=(calls,))
    cpu = time.process_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert result.returns == (float(nprocs),) * nprocs
    per_call, per_message = cpu / calls * 1e3, cpu / result.messages * 1e6
    print(
        f"{nprocs:>6} {calls:>6} {result.messages:>10,} {cpu:>9.2f} {per_call:>9.2f} "
        f"{per_message:>10.1f} {grown:>9.0f}"
    )


def alike(_rank, _world_size, calls):
    x = dist.fake_array(256)
    for _ in range(3):  # played, and prepared
        dist.all_reduce(x)
    begin = time.process_time()
    for _ in range(calls):
        dist.all_reduce(x)
    return (time.process_time() - begin) / calls * 1e3


def main(*, calls: int = 1000):
    """Measure repeated calls on 64 ranks, 1 and 10 on 1,024, and those of alike ranks."""
    print(
        f"{platform.machine()}, Python {platform.python_version()}, all_reduce of 1 KiB, "
        f"{dist.__name__}"
    )
    print(
        f"{'ranks':>6} {'calls':>6} {'messages':>10} {'CPU s':>9} {'ms/call':>9} "
        f"{'us/message':>10} {'MB grown':>9}"
    )
    dist.spawn(program, 64, args=(2,))  # imports, and loads compiled code
    measure(64, calls)
    measure(1024, 1)
    measure(1024, 10)
    for nprocs in (64, 1024):
        options = {"args": (50,), "alike": "all", "topology": "superpod-h100"}
        per_call = dist.spawn(alike, nprocs, **options).returns[0]
        print(f"{nprocs:>6}     50 calls of fake arrays, all ranks alike: {per_call:.2f} ms/call")


if __name__ == "__main__":
    cyclopts.run(main)
