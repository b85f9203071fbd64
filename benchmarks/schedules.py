"""Cost of building and proving a large schedule.

    python benchmarks/schedules.py

Prints the machine, and for each figure the measured time, its target, and their ratio (below 1:
met). Best of three.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import simcoll

if TYPE_CHECKING:
    from collections.abc import Callable

NRANKS = 1024


def machine() -> str:
    """Processor, cores and versions, in one line."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, {versions}"


def best_of_three(action: Callable[[], object]) -> float:
    """Seconds of the fastest of three calls."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times)


def build() -> int:
    """Make every step of the ring all-reduce; the number of its messages."""
    steps = simcoll.schedule("all_reduce", "ring", nranks=NRANKS).steps()
    return sum(len(step) for step in steps) - NRANKS  # without the local copies


def verify() -> simcoll.types.Proof:
    """Prove it."""
    return simcoll.verify(simcoll.schedule("all_reduce", "ring", nranks=NRANKS))


def main() -> None:
    """Measure and print."""
    print(machine())
    print(f"{'':52} {'measured':>10} {'target':>8} {'ratio':>6}")
    for what, action, target in (
        (f"build ring all_reduce, {NRANKS} ranks, {build():,} messages", build, 0.2),
        ("prove it", verify, 0.5),
    ):
        seconds = best_of_three(action)
        print(f"{what:52} {seconds:8.3f} s {target:6.1f} s {seconds / target:6.2f}")


if __name__ == "__main__":
    main()
