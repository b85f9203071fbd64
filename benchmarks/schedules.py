"""Cost of building and proving a large schedule, and of starting the command line.

    python benchmarks/schedules.py

Prints the machine, and for each figure the measured time, its target, and their ratio (below 1: met). Best of three.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import simcoll

if TYPE_CHECKING:
    from collections.abc import Callable

NRANKS = 1024
ROOT = Path(__file__).resolve().parents[1]


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


def start_up() -> None:
    """``simcoll --help`` in a process of its own."""
    code = "import sys; from simcoll.cli import main; sys.exit(main(['--help']))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, stdout=subprocess.DEVNULL)


def main() -> None:
    """Measure and print."""
    print(machine())
    print(f"{'':52} {'measured':>10} {'target':>8} {'ratio':>6}")
    for what, action, target in (
        (f"build ring all_reduce, {NRANKS} ranks, {build():,} messages", build, 0.2),
        ("prove it", verify, 0.5),
        ("simcoll --help", start_up, 0.4),
    ):
        seconds = best_of_three(action)
        print(f"{what:52} {seconds:8.3f} s {target:6.1f} s {seconds / target:6.2f}")


if __name__ == "__main__":
    main()
