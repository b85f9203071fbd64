"""Time of large runs: full by the fast engine, and by the quotient, timing only.

``python benchmarks/scale.py [--all] [--runs N]`` prints the machine, the time to compile or load
the engine, the CPU and wall time of the whole call from schedule to result (the best of N, each by
itself), and the ratio of the CPU time to the target. ``--all`` adds the full runs of 537 million
messages, once each.
"""

import argparse
import os
import platform
import resource
import sys
import time
from pathlib import Path

import simcoll
from simcoll.core.protocol import Protocol
from simcoll.emulator import emulate
from simcoll.topology import boxes, crossbar, fat_tree

GIB = 1 << 28  # elements of float32


def cpu_name() -> str:
    """Model of the processor, if the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def peak_mb() -> float:
    """Peak memory of this process (Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def rails(n: int):
    """Nodes of 8 on 50 GB/s rails, a leaf for each rail and 32 nodes, 2:1 above."""
    network = {"nics": 8, "nic_bandwidth": "50 GB/s", "nic_latency": "3 us", "boxes_per_leaf": 32}
    return boxes(n // 8, 8, "450 GB/s", "1 us", oversubscription=2, spine_latency="1 us", **network)


MACHINES = {
    "crossbar": lambda n: crossbar(n, "50 GB/s", "1 us"),
    "rails": rails,
    "fat-tree 2:1": lambda n: fat_tree(n // 32, 32, "50 GB/s", "2 us", oversubscription=2),
}
# collective, algorithm, ranks, machine, jitter in fs, quotient, target in seconds
CASES = (
    ("all_reduce", "ring", 1024, "crossbar", 0, False, 0.15),
    ("all_reduce", "ring", 1024, "rails", 0, False, 0.15),
    ("all_reduce", "ring", 1024, "crossbar", 10**9, False, 2.5),
    ("all_reduce", "ring", 1024, "rails", 10**9, False, 2.5),
    ("all_reduce", "ring", 1024, "crossbar", 0, True, 0.02),
    ("all_reduce", "ring", 1024, "rails", 0, True, 0.02),
    ("all_reduce", "ring", 16384, "rails", 0, True, 0.2),
    ("all_reduce", "ring", 16384, "fat-tree 2:1", 0, True, 0.2),
    ("all_reduce", "rabenseifner", 16384, "rails", 0, False, 0.2),
    ("all_to_all", "pairwise", 1024, "rails", 0, False, 0.4),
)
LONG = (
    ("all_reduce", "ring", 16384, "crossbar", 0, False, 60.0),
    ("all_reduce", "ring", 16384, "rails", 0, False, 60.0),
)


def load_engine() -> None:
    """Compile the loops, or load them from the cache."""
    start = time.process_time()
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=4)
    emulate(plan, crossbar(4, "1 GB/s"), data="none", bound=False, engine="fast", quotient=False)
    print(f"the engine is ready after {time.process_time() - start:.2f} s CPU, {peak_mb():.0f} MB")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="the full runs of 16,384 ranks, too")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    print(f"machine: {cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    load_engine()
    for case in CASES + (LONG if given.all else ()):
        kind, algorithm, n, machine, jitter, quotient, target = case
        topology = MACHINES[machine](n)
        count = GIB // n if kind == "all_to_all" else GIB
        cpu = wall = float("inf")
        for _ in range(1 if case in LONG else given.runs):
            cpu_start, wall_start = time.process_time(), time.perf_counter()
            schedule = simcoll.schedule(kind, algorithm, nranks=n)
            plan = simcoll.bind(
                schedule, count=count, protocol=Protocol("ideal", jitter_fs=jitter), unproved=True
            )
            result = emulate(
                plan,
                topology,
                data="none",
                bound=False,
                engine="auto" if quotient else "fast",
                quotient=quotient,
            )
            cpu = min(cpu, time.process_time() - cpu_start)
            wall = min(wall, time.perf_counter() - wall_start)
        name = (
            f"{kind} {algorithm} {n} "
            f"{machine}{' jitter' if jitter else ''}{' quotient' if quotient else ''}"
        )
        print(
            f"{name:58} {result.messages:>11} messages {wall:8.3f} s wall {cpu:8.3f} s CPU   "
            f"{cpu / target:5.2f} of the target",
            end="",
        )
        print(f" of {target:g} s, {peak_mb():.0f} MB", flush=True)


if __name__ == "__main__":
    main()
