"""How near the schedules made for a topology come to its bound at large sizes, in the ideal
protocol.

    python benchmarks/optimal.py [name ...]

Prints, for each machine and collective: seconds to make the schedule and to prove it, copies of
trees, and time over bound at 64 GiB and 1 TiB, next to that of a ring. The last line is the worst
of all machines.
"""

from __future__ import annotations

import os
import platform
import time
from typing import TYPE_CHECKING

import cyclopts

import simcoll
from simcoll.topology import (
    boxes,
    crossbar,
    fat_tree,
    hybrid_cube_mesh,
    hypercube,
    load_topology,
    torus,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from simcoll.core.schedule import Schedule
    from simcoll.topology import Topology

KINDS = ("all_gather", "reduce_scatter", "all_reduce")
SIZES = (2**36, 2**40)
PIECES = 512
DIRECT: dict[str, Callable[[], Topology]] = {
    "ring 8": lambda: torus([8], "25 GB/s", "1 us"),
    "torus 4x4": lambda: torus([4, 4], "25 GB/s", "1 us"),
    "torus 3x5": lambda: torus([3, 5], "25 GB/s", "1 us"),
    "hypercube 16": lambda: hypercube(4, "25 GB/s", "1 us"),
    "mi300x": lambda: load_topology("mi300x"),
}
ANY: dict[str, Callable[[], Topology]] = {
    "dgx-h100, 17 of 18 NVLinks of a GPU": lambda: load_topology("dgx-h100").degrade(
        "box0.gpu3 <-> box0.nvswitch", "17/18"
    ),
    "dgx-1v": lambda: load_topology("dgx-1v"),
    "dgx-1v, a link lost": lambda: load_topology("dgx-1v").degrade(
        "box0.gpu0 <-> box0.gpu3", "1/2"
    ),
    "cube mesh": lambda: hybrid_cube_mesh(2, "25 GB/s", "1 us"),
    "cube mesh, a link lost": lambda: hybrid_cube_mesh(2, "25 GB/s", "1 us").degrade(
        "gpu0 <-> gpu4", 0
    ),
    "path 6": lambda: torus([6], "25 GB/s", "1 us", wrap=False),
    "crossbar 5, a slow rank": lambda: crossbar(5, "50 GB/s", "1 us").degrade(
        "gpu0 <-> switch", "3/4"
    ),
    "fat tree 2x3, 2:1": lambda: fat_tree(2, 3, "50 GB/s", "1 us", oversubscription=2),
    "2 boxes of 4, 2 NICs": lambda: boxes(
        2, 4, "300 GB/s", "1 us", nics=2, nic_bandwidth="25 GB/s", nic_latency="2 us"
    ),
}


def over_bound(schedule: Schedule, topology: Topology, size_bytes: int) -> float:
    """Time over bound near a size."""
    slots = max(schedule.collective.input_slots, schedule.collective.output_slots)
    count = max(size_bytes // (4 * slots * schedule.layout.chunks), 1) * schedule.layout.chunks
    found = simcoll.emulate(simcoll.bind(schedule, count), topology, data="none").headroom
    return found or 1.0


def measured(name: str, algorithm: str, topology: Topology, **params: int) -> float:
    """Print the rows of a machine; the worst time over bound at the largest size."""
    worst = 0.0
    for kind in KINDS:
        began = time.perf_counter()
        schedule = simcoll.schedule(kind, algorithm, topology=topology, **params)
        made = time.perf_counter()
        simcoll.verify(schedule)
        proved = time.perf_counter()
        ratios = [over_bound(schedule, topology, size) for size in SIZES]
        ring = over_bound(
            simcoll.schedule(kind, "ring", nranks=topology.nranks), topology, SIZES[-1]
        )
        shown = f"{ratios[0]:>8.4f}{ratios[1]:>8.4f}{ring:>8.3f}"
        print(
            f"{name:<37}{algorithm:<8}{kind:<16}{made - began:>6.2f}{proved - made:>7.2f}{shown}",
            flush=True,
        )
        worst = max(worst, ratios[-1])
    return worst


def main(*wanted: str) -> None:
    """Measure all machines, or those whose names contain one of the words."""
    print(
        f"machine: {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {PIECES} pieces"
    )
    print(f"{'':<61}{'make s':>6}{'prove':>7}{'64 GiB':>8}{'1 TiB':>8}{'ring':>8}")
    worst = []
    for algorithm, machines in (("bfb", DIRECT), ("packed", ANY)):
        params = {} if algorithm == "bfb" else {"pieces": PIECES}
        for name, make in machines.items():
            if not wanted or any(word in name for word in wanted):
                worst.append(measured(name, algorithm, make(), **params))
    print(f"worst at 1 TiB: {max(worst):.4f}")


if __name__ == "__main__":
    cyclopts.run(main)
