"""Time and memory of the parts of a large table: proofs, checks of data, and runs by algorithm.

``python benchmarks/table_parts.py [COLLECTIVE] [--nodes N] [-b SIZE] [-e SIZE]`` prints, for the
default table on DGX H100 nodes, CPU seconds and peak memory of the proof and the check of each
algorithm, then a line for each algorithm and size with its runs under all protocols, and the sum.
Linux only: the peak is reset between the parts.
"""

import argparse
import time
from itertools import groupby
from pathlib import Path

from simcoll.planning.sweeps import running
from simcoll.planning.sweeps.sweep import Sweep, prepare
from simcoll.topology import load_topology
from simcoll.tuning import candidates, collective_on, default_protocols
from simcoll.units import format_size, parse_size


class Parts:
    """Prints CPU time and peak memory since the part before."""

    def __init__(self) -> None:
        self.begin = time.process_time()
        self.most = 0

    def skip(self) -> None:
        """Begin a part."""
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self.begin = time.process_time()

    def end(self, title: str) -> None:
        """Print a part."""
        took = time.process_time() - self.begin
        status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        peak = int(next(line for line in status if line.startswith("VmHWM")).split()[1]) >> 10
        self.most = max(self.most, peak)
        print(f"{title:58} {took:8.2f} s {peak:6} MiB", flush=True)
        self.skip()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("collective", nargs="?", default="all_reduce")
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("-b", default="8")
    parser.add_argument("-e", default="128M")
    given = parser.parse_args()
    machine = load_topology("dgx-h100", nodes=given.nodes)
    protocols, _ = default_protocols(machine)
    fitting, _ = candidates(collective_on(given.collective, machine.nranks), machine, protocols)
    first, last = (parse_size(size, what="a size") for size in (given.b, given.e))
    sizes = tuple(first << power for power in range(64) if first << power <= last)
    sweep = Sweep(given.collective, sizes, tuple(choice for choice, _ in fitting), protocols)
    parts, refused = Parts(), {}
    parts.skip()
    titles = []

    def progress(_finished: int, _total: int, title: str) -> None:
        if titles:
            parts.end(titles[-1])
        titles.append(title)

    schedules = prepare(sweep, machine, [schedule for _, schedule in fitting], progress, refused)
    left = tuple(choice for choice in sweep.choices if choice not in refused)
    sweep = Sweep(given.collective, sizes, left, protocols)
    for of_size in running.runs(sweep, schedules, machine, progress):
        size = format_size(of_size[0].size_bytes)
        for choice, rows in groupby(of_size, lambda row: row.choice):
            best = min(row.time_fs for row in rows)
            print(f"# {size} {choice}: {best / 1e9:.2f} us")
    parts.end(titles[-1])
    print(f"all: {time.process_time():.0f} s, {parts.most} MiB")


if __name__ == "__main__":
    main()
