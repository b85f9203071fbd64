"""Cost of proofs, bounds and optimal schedules against their targets.

``python benchmarks/bounds.py`` prints the machine, the CPU time of each and its ratio to the
target.
"""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import simcoll
from simcoll.algorithms import bfb, packed
from simcoll.bounds import all_gather_cut, bottleneck
from simcoll.bounds.packing import pack_trees
from simcoll.core.collective import Collective
from simcoll.proving import check_lowering, verify
from simcoll.topology import hybrid_cube_mesh, load_topology, torus


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


def timed(what: str, target: float | None, work: Callable[[], object]) -> None:
    """Best of three runs, or one when that takes long."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
        if best > 2:
            break
    goal = f"{target:8.3f} s {best / target:6.2f}x" if target else ""
    print(f"{what:62} {best:8.3f} s {goal}")


def headroom(schedule: simcoll.Schedule, topology: simcoll.types.Topology) -> float:
    """Time over bound for about 4 GiB."""
    count = schedule.layout.chunks * max(2**30 // schedule.layout.chunks, 1)
    if schedule.collective.kind != "all_reduce":
        count = schedule.layout.chunks * max(2**30 // schedule.nranks // schedule.layout.chunks, 1)
    return simcoll.emulate(simcoll.bind(schedule, count), topology, data="none").headroom or 0.0


def main() -> None:
    """Run and print."""
    print(f"machine: {cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'':62} {'measured':>10} {'target':>10} {'ratio':>7}")
    large, pod = (
        simcoll.schedule("all_reduce", "ring", nranks=16384),
        load_topology("superpod-h100", nodes=128),
    )
    timed(
        "proof of the 16,384-rank ring all_reduce, by symmetry", 1.0, lambda: verify(replace(large))
    )
    middle = simcoll.schedule("all_reduce", "ring", nranks=1024)
    timed(
        "proof of the 1,024-rank ring all_reduce, by symmetry",
        None,
        lambda: verify(replace(middle)),
    )
    told = replace(middle, source=middle.steps)
    timed("proof of the 1,024-rank ring all_reduce, full", None, lambda: verify(replace(told)))
    for ranks, target in ((128, 1.0), (512, 10.0)):
        plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=ranks), ranks)
        timed(
            f"check of what each rank does in a {ranks}-rank ring",
            target,
            lambda plan=plan: check_lowering(plan),
        )
    timed("cut bound, 1,024 GPUs, all sinks", 0.5, lambda: all_gather_cut(pod, by_orbit=False))
    timed("cut bound, 1,024 GPUs, by orbit", 0.02, lambda: all_gather_cut(replace(pod)))
    for name, nodes, kinds in (
        ("dgx-h100", 128, ("all_reduce", "all_to_all", "broadcast")),
        ("dgx-2", 2, ("gather", "scatter", "reduce_scatter")),
    ):
        machine = load_topology(name, nodes=nodes)
        for kind in kinds:
            # A copy knows nothing yet.
            timed(
                f"bound of {kind}, {name} x {nodes}",
                None,
                lambda kind=kind, machine=machine: bottleneck(kind, replace(machine)),
            )
    grid = torus([4, 4, 4], "25 GB/s", "1 us")
    lost = (
        hybrid_cube_mesh(2, "25 GB/s", "1 us").degrade("gpu0 -> gpu4", 0).degrade("gpu4 -> gpu0", 0)
    )
    boxes = load_topology("dgx-a100", nodes=2)
    timed(
        "bfb schedule, torus 4x4x4",
        None,
        lambda: bfb.all_gather(Collective("all_gather", 64), topology=grid),
    )
    timed("packed trees, cube mesh with a lost link", None, lambda: pack_trees(lost))
    timed("packed trees, 2 boxes of 8", None, lambda: pack_trees(boxes))
    for nodes, target in ((16, 2.0), (128, 60.0)):
        many = load_topology("dgx-h100", nodes=nodes)
        timed(
            f"packed trees, {nodes} boxes of 8", target, lambda many=many: pack_trees(replace(many))
        )
        timed(
            f"packed all_reduce, {nodes} boxes of 8, trees and schedule",
            target,
            lambda many=many: packed.all_reduce(
                Collective("all_reduce", many.nranks), topology=many
            ),
        )
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        best = headroom(getattr(bfb, kind)(Collective(kind, 64), topology=grid), grid)
        trees = headroom(
            getattr(packed, kind)(Collective(kind, 8), topology=lost, pieces=256), lost
        )
        print(
            f"{kind}: time over bound {best:.4f} (bfb, torus 4x4x4), {trees:.4f} (packed, degraded "
            "cube mesh)"
        )


if __name__ == "__main__":
    main()
