"""Designs timed in tier 1, and points of a sweep: CPU seconds, and what a second process would
gain.

    python benchmarks/designs.py [--designs N] [--points N]

Wall time on a busy machine says nothing, so a grid is played twice: by this process, and by two
processes. The share is the CPU time of the parent and of one of the two, over that of one process
alone: the wall time that an idle machine would need.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

from simcoll.planning.designs.design_search import space_grid
from simcoll.planning.designs.space import load_space
from simcoll.planning.grids.executors import open_pool
from simcoll.planning.grids.grid import PointGrid, run_grid
from simcoll.planning.sweeps.sweep_grid import load_sweep, sweep_grid

PLAN = """
title = "10,000 designs of Llama 3.1 70B on 1,024 H100"
[model]
name = "llama-3.1-70b"
sequence = 8192
global_batch = [1024, 2048]
dtype = "bf16"
[gpu]
name = "h100"
[topology]
name = "dgx-h100"
nodes = 128
[parallel]
tp = [1, 2, 4, 8]
cp = [1, 2]
pp = [1, 2, 4, 5, 8, 10]
virtual = [1, 2, 4, 5]
micro_batch = [1, 2, 4]
recompute = ["none", "selective", "full"]
shard = ["optimizer", "gradients"]
sequence_parallel = true
[variants]
"nic.bandwidth" = ["400 Gbps", "200 Gbps"]
"""

SWEEP = """
title = "a grid of 2,000 points"
topologies = ["dgx-a100", "dgx-h100"]
nodes = [1, 2, 4]
collectives = ["all_reduce", "all_gather", "reduce_scatter"]
protocols = ["LL", "LL128", "Simple"]
sizes = {{ begin = "1K", end = "{end}", factor = 4 }}
algorithms = [
  "ring", "bidirectional_ring", "bine", "recursive_doubling", "recursive_halving", "direct",
]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--designs", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=2_000)
    asked = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "plan.toml").write_text(PLAN)
        (path / "sweep.toml").write_text(SWEEP.format(end="64M"))
        designs = space_grid(load_space(path / "plan.toml"))
        points = sweep_grid(load_sweep(path / "sweep.toml"), path / "sweep.toml")
        measured("designs, tier 1", designs, asked.designs, path / "designs")
        measured("points of a sweep", points, asked.points, path / "points")


def measured(what: str, grid: PointGrid, most: int, folder: Path) -> None:
    cut = PointGrid(grid.work, grid.points[:most])
    one = played(cut, folder / "one", 1)
    two = played(cut, folder / "two", 2)
    same = sorted((folder / "one" / "rows.jsonl").read_bytes().splitlines()) == sorted(
        (folder / "two" / "rows.jsonl").read_bytes().splitlines()
    )
    print(
        f"{what}: {len(cut):,} ({len(grid):,} in all): one process {one[0]:.1f} s of CPU, "
        f"{1e3 * one[0] / len(cut):.1f} ms each; two: "
        f"parent {two[0]:.1f} s, workers {two[1]:.1f} s; share "
        f"{(two[0] + two[1] / 2) / one[0]:.2f}; same rows: {same}; "
        f"wall {one[2]:.0f} and {two[2]:.0f} s"
    )
    if not same:
        sys.exit("the rows differ")


def played(grid: PointGrid, folder: Path, jobs: int) -> tuple[float, float, float]:
    """CPU seconds of this process and of its children, and wall seconds."""
    folder.mkdir(parents=True)
    os.environ["SIMCOLL_CACHE_DIR"] = str(folder / "cache")  # nothing is known from an earlier play
    begin = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    wall = time.monotonic()
    with open_pool(jobs=jobs) as pool:
        run_grid(grid, folder, pool)
    end = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, children = (
        b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(begin, end, strict=True)
    )
    return own, children, time.monotonic() - wall


if __name__ == "__main__":
    main()
