"""Time a workload from any source on a topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from simcoll.errors import ConfigError
from simcoll.topology import Topology
from simcoll.workload.accounting import AxisTime, Counted, axes_of, axis_time, busiest_links, computed_fs, without_axes
from simcoll.workload.class_clock import Clock
from simcoll.workload.playing import Played, alone_on, play_workload
from simcoll.workload.timing import WorkloadTimes
from simcoll.workload.traffic import alike
from simcoll.workload.workload import Operation, Workload

__all__ = ["WorkloadResult", "run_workload"]


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """The time of a workload, and its breakdown.

    Attributes
    ----------
    title, nranks, topology
        Title, number of ranks, and machine.
    tier
        1: collectives timed once each; 2: everything emulated together.
    time_fs
        When the last operation ended.
    compute_fs
        Computation of the busiest class.
    axes
        Communication by group.
    bound_fs, limit
        Lower bound of the time, and what sets it.
    link_use
        Busiest links, with the share of their capacity that is used.
    clock
        Start and end of each operation, by class.
    path, trace_hash
        Engine, and hash of all times.
    """

    title: str
    nranks: int
    topology: str
    tier: int
    time_fs: int
    compute_fs: int
    axes: Mapping[str, AxisTime]
    bound_fs: int
    limit: str
    link_use: tuple[tuple[str, float], ...]
    clock: Clock
    path: str
    trace_hash: str

    @property
    def seconds(self) -> float:
        """Seconds."""
        return self.time_fs / 1e15


def run_workload(
    workload: Workload,
    topology: Topology,
    *,
    tier: int = 2,
    exposed: bool = True,
    slow: Mapping[int, float] | None = None,
) -> WorkloadResult:
    """Time a workload.

    Parameters
    ----------
    workload
        The workload, which runs on the first ranks of the topology.
    tier
        1: collectives are timed once each, and the order of operations is played with these times. 2: everything is emulated together.
    exposed
        Whether to find the exposed time of each group, by playing again without its bytes.
    slow
        Slow-down factors by rank.

    Raises
    ------
    ConfigError
        When the topology has too few ranks, and for an unknown tier.

    Examples
    --------
    >>> import numpy as np
    >>> from simcoll.topology import crossbar
    >>> from simcoll.workload.workload import Call, Compute, Workload
    >>> workload = Workload(2, {"all": np.arange(2)}, {"dp": np.array([[0, 1]])}, (
    ...     Compute(id="backward", on="all", time_fs=10**12),
    ...     Call(id="gradients", kind="all_reduce", group="dp", size_bytes=2**20, after=("backward",)),
    ... ))
    >>> result = run_workload(workload, crossbar(2, "50 GB/s", "1 us"))
    >>> result.time_fs - result.axes["dp"].exposed_fs
    1000000000000
    """
    if workload.nranks > topology.nranks:
        raise ConfigError(
            f"the workload has {workload.nranks} ranks; topology {topology.name!r} has {topology.nranks}: ask for more nodes"
        )
    alone = alone_on(topology, alike=False, rules=workload.rules)

    def played(*without: str, spans: bool = False) -> Played:
        changed = replace(workload, operations=tuple(without_axes(each, without) for each in workload.operations))
        return play_workload(changed if without else workload, alone, tier=tier, spans=spans, slow=slow)

    counted = _counted(workload)
    whole = played(spans=True)
    time_fs, axes = whole.clock.time_fs, axes_of(counted)
    times = WorkloadTimes(workload, alone)
    exposures = {axis: time_fs - played(axis).clock.time_fs if exposed else 0 for axis in axes}
    free = played(*axes).clock.time_fs if axes else time_fs
    use, (bound, link) = busiest_links(counted, workload, alone.plans, max(time_fs, 1))
    return WorkloadResult(
        workload.title,
        workload.nranks,
        topology.name,
        tier,
        time_fs,
        computed_fs(counted, workload),
        {axis: axis_time(axis, counted, times, exposures[axis]) for axis in axes},
        max(free, bound),
        "computation and the order of operations" if free >= bound else f"link {link}",
        use,
        whole.clock,
        whole.path,
        whole.trace_hash,
    )


def _counted(workload: Workload) -> Counted:
    """Operations with equal costs, and their counts."""
    first: dict[tuple[object, ...], Operation] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for operation in workload.operations:
        key = (*alike(operation), getattr(operation, "time_fs", 0), getattr(operation, "least_fs", 0))
        first.setdefault(key, operation)
        counts[key] += 1
    return tuple((operation, counts[key]) for key, operation in first.items())
