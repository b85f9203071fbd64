"""Cost of the reference engine: ring all_reduce on a crossbar, timing only.

``python benchmarks/engine.py [ranks]`` (1024 by default, which takes about 15 s) prints the
machine, the CPU time per message, the growth of memory during the run, and the ratio to the
targets: 10 us per message and 500 MB at 1024 ranks.
"""

import os
import platform
import resource
import sys
import time
from pathlib import Path

import cyclopts

import simcoll
from simcoll.emulator import emulate
from simcoll.topology import crossbar

TARGET_US = 10.0
TARGET_MB = 500.0


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


def main(n: int = 1024, /) -> None:
    """Measure the engine on a ring of ``n`` ranks."""
    print(f"machine: {cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    schedule = simcoll.schedule("all_reduce", "ring", nranks=n, in_place=True)
    plan = simcoll.bind(schedule, count=1 << 20, unproved=True)
    topology = crossbar(n, "50 GB/s", "1 us")
    before, begin = peak_mb(), time.process_time()
    result = emulate(plan, topology, engine="simpy", quotient=False, data="none", bound=False)
    seconds, growth = time.process_time() - begin, peak_mb() - before
    cost_us = seconds / result.messages * 1e6
    print(
        f"ring all_reduce, {n} ranks, crossbar: {result.messages} messages in {seconds:.2f} CPU s"
    )
    print(
        f"cost:   {cost_us:6.2f} us per message   {cost_us / TARGET_US:.2f} of the target of "
        f"{TARGET_US:.0f} us"
    )
    print(
        f"memory: {growth:6.1f} MB growth          {growth / TARGET_MB:.2f} of the target of "
        f"{TARGET_MB:.0f} MB"
    )


if __name__ == "__main__":
    cyclopts.run(main)
