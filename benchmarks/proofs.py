"""Cost of proving every shipped algorithm at 1,024 ranks.

    python benchmarks/proofs.py [collective ...]

Each proof runs in a process of its own, with the steps of its schedule: every algorithm out of
place and in place, and with the parameters that need the most work. Prints the machine, and for
each proof CPU time and peak memory with their ratios to the targets of 2 s and 1 GiB (below 1:
met). Best of two. The preparation of ``bfb`` and ``packed`` for their topology is not counted.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time

import numpy as np

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import KINDS, Collective
from simcoll.errors import ConfigError
from simcoll.testing.examples import needed_params
from simcoll.topology import torus

NRANKS = 1024
TARGET_S, TARGET_MIB = 2.0, 1024.0
# Parameters that an algorithm cannot do without; nodes of 8 as in most machines.
NEEDED = {"hierarchical": {"box": 8}, "nvls_tree": {"box": 8}}
# More work than with the defaults: in three dimensions a torus algorithm has six copies; pieces
# share chunks between channels.
MORE = {"hierarchical": {"pieces": 4}, "torus": {"dims": [8, 8, 16]}, "swing": {"dims": [8, 8, 16]}}


def cases(wanted: list[str]) -> list[tuple[str, str, dict[str, object], bool]]:
    """Collective, algorithm, parameters, and whether it is in place."""
    found = []
    for algorithm in ALGORITHMS:
        kind, name = algorithm.collective, algorithm.name
        if not wanted or kind in wanted:
            found.append((kind, name, {}, False))
            if KINDS[kind].alias is not None:
                found.append((kind, name, {}, True))
            if name in MORE:
                found.append((kind, name, MORE[name], False))
    return found


def largest(kind: str, name: str, more: dict[str, object], *, in_place: bool) -> simcoll.Schedule:
    """The schedule for 1,024 ranks, or for the most that the algorithm serves."""
    for n in (NRANKS, NRANKS // 2, NRANKS // 4, 64):
        pairs = tuple((rank, (rank + 1) % n) for rank in range(n)) if kind == "send_recv" else ()
        try:
            collective = Collective(kind, n, pairs=pairs, in_place=in_place)
            needed = (
                {"topology": torus([n // 32, 32], "50 GB/s")}
                if name == "bfb"
                else needed_params(kind, name, n)
            )
            return simcoll.schedule(collective, name, **NEEDED.get(name, {}), **needed, **more)
        except ConfigError as error:
            refused = error
    raise refused


def one(kind: str, name: str, more: dict[str, object], *, in_place: bool) -> None:
    """Prove one algorithm and print its cost for the parent process."""
    schedule = largest(kind, name, more, in_place=in_place)
    begin = time.process_time()
    proof = simcoll.verify(schedule)
    took = time.process_time() - begin
    # Linux counts in KiB, macOS in bytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1024 if sys.platform != "darwin" else 2**20
    )
    print(json.dumps([schedule.title, schedule.nranks, took, peak, proof.transfers]))


def main(wanted: list[str]) -> int:
    """Prove all; the number of missed targets."""
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"numpy {np.__version__}"
    )
    print(
        f"# {'collective':<15}{'algorithm':<42}{'place':<6}{'ranks':>6}{'transfers':>12}"
        f"{'CPU s':>8}{'/ 2 s':>7}{'MiB':>7}{'/ 1 GiB':>9}"
    )
    missed = 0
    for kind, name, more, in_place in cases(wanted):
        command = [sys.executable, __file__, "--one", kind, name, json.dumps(more), "in" * in_place]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            for _ in range(2)
        ]
        title, ranks, took, peak, transfers = min(runs, key=lambda run: float(run[2]))
        late, large = took / TARGET_S, peak / TARGET_MIB
        missed += late > 1 or large > 1
        print(
            f"  {kind:<15}{title:<42}{'in' if in_place else 'out':<6}{ranks:>6}{transfers:>12,}"
            f"{took:>8.2f}{late:>7.2f}{peak:>7.0f}{large:>9.2f}",
            flush=True,
        )
    print(f"# {missed} over a target")
    return missed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), in_place=sys.argv[5] == "in")
    else:
        main(sys.argv[1:])
