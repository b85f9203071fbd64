"""Print how often an isolated call has one time: predicted, as a plan, and in a workload.

``python benchmarks/one_time.py`` takes every collective of a library in three sizes on every
shipped machine, larger ones cut down to 64 ranks, and prints the number of calls, the greatest
difference, and on which machines the played time differs from the formula's by more than a tenth,
which commands then print. It takes minutes on one core.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from simcoll.errors import ConfigError
from simcoll.files.paths import shipped_files
from simcoll.libraries.isolated import alone_fs
from simcoll.libraries.plans import library_plan
from simcoll.libraries.prediction import COLLECTIVES, Prediction, predict
from simcoll.topology import Topology, load_topology
from simcoll.workload.playing import run_workload
from simcoll.workload.workload import CallOperation, Workload

SIZES = (1024, 2**20, 2**28)
MOST_RANKS = 64


def machine(name: str) -> Topology | None:
    """A shipped machine of at most 64 ranks; None if no library knows it."""
    topology = load_topology(name)
    if topology.nranks > MOST_RANKS:
        topology = topology.take(MOST_RANKS)
    try:
        predict("all_reduce", 8, topology)
    except ConfigError:
        return None
    return topology


def times_fs(predicted: Prediction, topology: Topology) -> list[int]:
    """The predicted time, and those of the plan alone and of a workload of the one call, which
    may be any collective but a send_recv.
    """
    kind, size = predicted.collective, predicted.size_bytes
    alone = alone_fs(library_plan(kind, size, topology), topology)
    if kind == "send_recv":
        return [predicted.time_fs, alone]
    ranks = np.arange(topology.nranks)
    call = CallOperation(id="call", kind=kind, group="all", size_bytes=size, on=("every",))
    workload = Workload(topology.nranks, {"every": ranks}, {"all": ranks[None]}, (call,))
    steps = [run_workload(workload, topology, tier=tier, exposed=False) for tier in (1, 2)]
    return [predicted.time_fs, alone, *(step.time_fs for step in steps)]


def main() -> None:
    """Print the figures."""
    calls, worst, where = 0, 0.0, ""
    differing: Counter[str] = Counter()
    for name in sorted(shipped_files("topologies")):
        topology = machine(name)
        if topology is None:
            continue
        for kind in COLLECTIVES:
            for size in SIZES:
                predicted = predict(kind, size, topology)
                times = times_fs(predicted, topology)
                calls += 1
                difference = max(times) / min(times) - 1
                if difference > worst:
                    worst, where = difference, f"{kind} of {size} B on {name}"
                if predicted.differs:
                    differing[f"{name} {kind}"] += 1
        print(f"{name}: {calls} calls, worst {worst:.1e} ({where})", flush=True)
    print(f"{calls} calls; greatest difference of their times: {worst:.1e}, {where}")
    print(f"{differing.total()} differ from the formula by more than a tenth:")
    for title, number in differing.most_common():
        print(f"  {title}: {number} of {len(SIZES)} sizes")


if __name__ == "__main__":
    main()
