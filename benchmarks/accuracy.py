"""Predicted against published times of nccl-tests.

``python benchmarks/accuracy.py`` predicts every row of ``data/published_nccl_tests.csv`` (out of place, float32) with
the topologies and protocols as shipped and the algorithms that NCCL has, takes the fastest choice for each size, and
prints for each table the geometric mean of predicted over measured time in three classes of sizes, with the extremes. 1 is
exact, below 1 is too fast. Nothing is fitted to these tables. ``--details`` prints every row.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from simcoll.planning.sweep import Row, Sweep, best_rows, prepare, run_sweep
from simcoll.topology import Topology, load_topology
from simcoll.tuning import parse_choice

DATA = Path(__file__).parent / "data"
# NCCL's algorithms without reduction in switches. NCCL pipelines trees and chains in slices of adaptive size; two numbers of
# pieces stand for that.
NCCL = {
    "all_reduce": ("ring", "double_tree:pieces=2", "double_tree:pieces=16"),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
    "broadcast": ("chain:pieces=2", "chain:pieces=32"),
    "all_to_all": ("direct",),
}
CLASSES = (("<= 64 KiB", 0, 2**16), ("64 KiB - 64 MiB", 2**16 + 1, 2**26 - 1), (">= 64 MiB", 2**26, 2**63))


def predicted(about: dict[str, str], sizes: list[int]) -> list[Row]:
    """The fastest run of every size on the machine of a table."""
    topology: Topology = load_topology(about["topology"], nodes=int(about["nodes"]))
    topology = topology.with_ranks(np.arange(int(about["ranks"])))
    collective = about["collective"]
    choices = tuple(map(parse_choice, about["algorithms"].split() or NCCL[collective]))
    sweep = Sweep(collective, tuple(sizes), choices, ("LL", "LL128", "Simple"), check_up_to=0)
    return best_rows(run_sweep(sweep, prepare(sweep, topology), topology))


def main() -> None:
    """Run and print."""
    with (DATA / "published_nccl_tests_sources.csv").open() as stream:
        tables = list(csv.DictReader(stream))
    with (DATA / "published_nccl_tests.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    print(f"{'table':<28}{'machine':<26}" + "".join(f"{name:>24}" for name, *_ in CLASSES))
    everything: dict[str, list[float]] = {name: [] for name, *_ in CLASSES}
    for about in tables:
        measured = {int(row["size_bytes"]): float(row["time_us"]) for row in rows if row["table"] == about["table"]}
        # Two published sizes may round to the same count; the time of the smaller one is the fair comparison.
        ratios: dict[str, list[float]] = {name: [] for name, *_ in CLASSES}
        for run in predicted(about, sorted(measured)):
            if run.size_bytes not in measured:
                continue
            ratio = run.time_fs / 1e9 / measured[run.size_bytes]
            name = next(name for name, low, high in CLASSES if low <= run.size_bytes <= high)
            ratios[name].append(ratio)
            everything[name].append(ratio)
            if "--details" in sys.argv:
                shown = f"{run.choice} {run.protocol}"
                times = f"{run.time_fs / 1e9:>12.2f} us {measured[run.size_bytes]:>12.2f} us"
                print(f"  {run.size_bytes:>12} {times} {ratio:>6.2f} {shown}")
        machine = f"{about['nodes']} x {about['topology']}, {about['ranks']} GPUs"
        print(
            f"{about['table']:<28}{machine:<26}" + "".join(f"{summary(ratios[name]):>24}" for name, *_ in CLASSES),
            flush=True,
        )
    print(f"{'all':<54}" + "".join(f"{summary(everything[name]):>24}" for name, *_ in CLASSES))


def summary(ratios: list[float]) -> str:
    """Geometric mean, least and greatest ratio."""
    return f"{geometric_mean(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})" if ratios else "-"


if __name__ == "__main__":
    main()
