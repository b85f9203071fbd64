"""Memory of a process that plays many runs: ``python -m tests.support.memory KIND RUNS BLOCKS``
prints resident KiB after each block.
"""

import itertools
import sys
from pathlib import Path

import numpy as np

import simcoll
import simcoll.distributed as dist
from simcoll.emulator import emulate
from simcoll.topology import boxes, crossbar, torus


def same():
    """One plan on one machine, again and again."""
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=1000)
    place = crossbar(4, "50 GB/s", "1 us")
    return itertools.repeat(lambda: emulate(plan, place))


def varied():
    """Another size, machine and engine each time, some with links lost and events."""

    def run(number):
        place = (
            crossbar(4, f"{number % 900 + 1} GB/s", "1 us"),
            torus([4], "25 GB/s", f"{number % 1000 + 1} ns").degrade("gpu0 -> gpu1", 0),
            boxes(2, 2, "400 GB/s", nics=2, nic_bandwidth=f"{number % 90 + 1} GB/s"),
        )[number % 3]
        plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=number)
        events = [f"t={number}ns {place.link_name(0)} = 1/2 for 1us"] if number % 2 else []
        emulate(
            plan, place, engine=("simpy", "auto")[number % 2], events=events, bound=number % 8 == 0
        )

    return (lambda number=number: run(number) for number in itertools.count(1))


def programs():
    """Rank programs."""

    def program(rank, _world_size):
        dist.all_reduce(np.ones(8) * rank)
        dist.barrier(group=dist.new_group([0, 1])) if rank < 2 else dist.new_group([0, 1])

    return itertools.repeat(lambda: dist.spawn(program, 4))


KINDS = {"same": same, "varied": varied, "programs": programs}


def resident_kib():
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


if __name__ == "__main__":
    kind, runs, blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    work = iter(KINDS[kind]())
    for _ in range(blocks):
        for _ in range(runs // blocks):
            next(work)()
        print(resident_kib(), flush=True)
