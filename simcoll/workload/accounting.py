"""Break down a workload's time: computation, communication by axis, links; remove the bytes of an
axis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import msgspec
import numpy as np

from simcoll.errors import ConfigError
from simcoll.libraries.prediction import differs, formula_time
from simcoll.workload.class_clock import operation_fs
from simcoll.workload.stream_names import LAUNCHES
from simcoll.workload.traffic import Traffic
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Operation,
    SendOperation,
    Workload,
    call_inside,
)

if TYPE_CHECKING:
    from simcoll.workload.lower import WorkloadPlans
    from simcoll.workload.timing import WorkloadTimes

__all__ = [
    "AxisTime",
    "Breakdown",
    "CallTime",
    "OperationCounts",
    "axes_of",
    "breakdown",
    "call_times",
    "compute_time_fs",
    "without_axes",
]

OperationCounts: TypeAlias = "tuple[tuple[Operation, int], ...]"
"""Operations with equal costs, and their counts."""


@dataclass(frozen=True, slots=True)
class AxisTime:
    """Communication of one axis, in femtoseconds.

    Attributes
    ----------
    total_fs
        Time of its operations on the busiest class, each played alone with all groups of the axis.
    exposed_fs
        By how much the step would be shorter without the traffic of this axis, found by playing
        again.
    bytes
        Bytes that a rank of the busiest class contributes to its operations.
    """

    total_fs: int
    exposed_fs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CallTime:
    """A collective of a workload, played alone with all groups of its axis.

    Attributes
    ----------
    axis, kind, ranks, size_bytes
        Its axis, kind, number of ranks of a group, and size as nccl-tests counts it.
    count
        How often a rank of the busiest class calls it.
    time_fs
        Its time.
    library
        Name and version of the library that chose it; empty if rules or a plain algorithm did.
    choice
        Algorithm and protocol of the library.
    formula_fs
        The time of the library's formula for one group; 0 without a library.
    low50_fs, high50_fs, low90_fs, high90_fs
        Intervals that hold half and nine tenths of measured times; 0 without a library.
    errors_of, assumed
        As of a :class:`~simcoll.libraries.prediction.Prediction`.
    """

    axis: str
    kind: str
    ranks: int
    size_bytes: int
    count: int
    time_fs: int
    library: str = ""
    choice: str = ""
    formula_fs: int = 0
    low50_fs: int = 0
    high50_fs: int = 0
    low90_fs: int = 0
    high90_fs: int = 0
    errors_of: str = ""
    assumed: str = ""

    @property
    def differs(self) -> bool:
        """Whether the time differs from the formula's by more than a tenth."""
        return bool(self.formula_fs) and differs(self.time_fs, self.formula_fs)


class Breakdown(TypedDict):
    """The parts of a time: computation, communication by axis, what bounds it, the use of links,
    and the collectives.
    """

    compute_fs: int
    axes: Mapping[str, AxisTime]
    bound_fs: int
    limit: str
    link_use: tuple[tuple[str, float], ...]
    calls: tuple[CallTime, ...]


def breakdown(
    costs: OperationCounts,
    times: WorkloadTimes,
    *,
    exposed_fs: Mapping[str, int],
    free_fs: int,
    time_fs: int | None,
    order: str,
) -> Breakdown:
    """Break a time down.

    Parameters
    ----------
    exposed_fs
        By how much it would be shorter without the traffic of each axis.
    free_fs
        The time when no axis moves bytes.
    time_fs
        The time itself, which tells how busy links are; None: links are not looked at.
    order
        What takes the time when communication is free, in words.
    """
    ground = times.workload
    use, (carried_fs, link) = (
        ((), (0, ""))
        if time_fs is None
        else _busiest_links(costs, ground, times.alone.plans, time_fs)
    )
    return {
        "compute_fs": compute_time_fs(costs, ground),
        "axes": {
            axis: _axis_time(axis, costs, times, exposed) for axis, exposed in exposed_fs.items()
        },
        "bound_fs": max(free_fs, carried_fs),
        "limit": f"computation and the order of {order}"
        if free_fs >= carried_fs
        else f"link {link}",
        "link_use": use,
        "calls": () if time_fs is None else tuple(call_times(costs, times)),
    }


def call_times(costs: OperationCounts, times: WorkloadTimes) -> Iterator[CallTime]:
    """The collectives of a workload, each kind and size once, the longest in all first."""
    counts: dict[CallOperation, list[tuple[Operation, int]]] = {}
    for operation, count in costs:
        for call, repeats in _calls_of(operation):
            anonymous = msgspec.structs.replace(call, id="", name="", scope="", stream="", after=())
            counts.setdefault(anonymous, []).append((operation, count * repeats))
    merged: dict[CallTime, int] = {}
    for call, repeats_of in counts.items():
        alone = replace(_call_time(call, times), count=0)
        merged[alone] = merged.get(alone, 0) + _busiest(repeats_of, times.workload)
    rows = [replace(alone, count=count) for alone, count in merged.items()]
    yield from sorted(rows, key=lambda row: -row.count * row.time_fs)


def _calls_of(operation: Operation) -> Iterator[tuple[CallOperation, int]]:
    """The collectives of an operation with bytes, and how often it makes them."""
    if isinstance(operation, ComputeOperation):
        for inner in operation.inside:
            if inner.size_bytes:
                yield call_inside(operation, inner), inner.count
    elif isinstance(operation, CallOperation) and operation.communicates:
        yield operation, 1


def _call_time(call: CallOperation, times: WorkloadTimes) -> CallTime:
    """The time of a collective, with the library's choice and interval for one group."""
    plans = times.alone.plans
    groups = times.workload.groups_of(call)
    ranks, time_fs = groups.shape[1], times.call(call)
    row = CallTime(call.group, call.kind, ranks, call.size_bytes, 1, time_fs)
    if call.service_fs is not None:
        return row
    library = None if plans.rules is None else plans.rules.library
    if library == "" or call.algorithm:
        return row
    try:
        predicted = formula_time(
            call.kind,
            call.size_bytes,
            plans.place(groups[0]),
            library=library,
            calibration=plans.calibration,
        )
    except ConfigError:  # no library has numbers for the machine
        return row
    scale = Fraction(time_fs, predicted.time_fs)
    names = ("low50_fs", "high50_fs", "low90_fs", "high90_fs")
    ends = {name: round(getattr(predicted, name) * scale) for name in names}
    return replace(
        row,
        library=predicted.library,
        choice=f"{predicted.algorithm} {predicted.protocol}",
        formula_fs=predicted.formula_fs,
        errors_of=predicted.errors_of,
        assumed=predicted.assumed,
        **ends,
    )


def axes_of(costs: OperationCounts) -> tuple[str, ...]:
    """Axes that move bytes, in order of their first operation."""
    axes: dict[str, None] = {}
    for operation, _ in costs:
        if isinstance(operation, ComputeOperation):
            axes.update(
                dict.fromkeys(inner.group for inner in operation.inside if inner.size_bytes)
            )
        elif operation.size_bytes or (
            isinstance(operation, CallOperation) and operation.communicates
        ):
            axes[operation.group] = None
    return tuple(axes)


def without_axes(operation: Operation, axes: Collection[str]) -> Operation:
    """The same operation without the bytes of some axes."""
    if isinstance(operation, ComputeOperation):
        inners = tuple(inner for inner in operation.inside if inner.group not in axes)
        return (
            operation
            if len(inners) == len(operation.inside)
            else msgspec.structs.replace(operation, inside=inners)
        )
    if operation.group not in axes:
        return operation
    if isinstance(operation, SendOperation):
        return msgspec.structs.replace(operation, size_bytes=0)
    return msgspec.structs.replace(operation, size_bytes=0, sizes=(), service_fs=None)


def compute_time_fs(costs: OperationCounts, ground: Workload) -> int:
    """Computation of the busiest class, without the host's launches, which go on beside it."""
    work = [
        (operation, _work_fs(operation) * count)
        for operation, count in costs
        if operation.stream != LAUNCHES
    ]
    return _busiest(work, ground)


def _axis_time(
    axis: str, costs: OperationCounts, times: WorkloadTimes, exposed_fs: int
) -> AxisTime:
    """Communication of an axis on the busiest class."""
    took, sizes = [], []
    for operation, count in costs:
        if isinstance(operation, ComputeOperation):
            inners = [inner for inner in operation.inside if inner.group == axis]
            time = sum(inner.count * times.inside(operation, inner) for inner in inners)
            size = sum(inner.count * inner.size_bytes for inner in inners)
        elif operation.group == axis:
            time, size = operation_fs(operation, times), operation.size_bytes
        else:
            time, size = 0, 0
        took.append((operation, time * count))
        sizes.append((operation, size * count))
    ground = times.workload
    return AxisTime(_busiest(took, ground), exposed_fs, _busiest(sizes, ground, source_only=True))


def _busiest_links(
    costs: OperationCounts, ground: Workload, plans: WorkloadPlans, time_fs: int
) -> tuple[tuple[tuple[str, float], ...], tuple[int, str]]:
    """The busiest link of each kind, and the time that the overall busiest needs for its bytes."""
    topology = plans.topology
    traffic = Traffic(ground, plans)
    carried = np.zeros(topology.nlinks, np.int64)
    for operation, count in costs:
        links, size_bytes = traffic.link_loads(operation)
        carried[links] += count * size_bytes
    if not carried.any():
        return (), (0, "")
    needs = carried * 1e21 / topology.link_capacity_uBps
    order = np.argsort(-needs, kind="stable").tolist()
    kinds: dict[int, int] = {}
    for link in order:
        kinds.setdefault(int(topology.link_kind[link]), link)
    use = tuple(
        (topology.link_name(link), float(needs[link] / time_fs))
        for link in kinds.values()
        if carried[link]
    )
    busiest_link = order[0]
    bound = int(carried[busiest_link]) * 10**21 // int(topology.link_capacity_uBps[busiest_link])
    return use, (bound, topology.link_name(busiest_link))


def _work_fs(operation: Operation) -> int:
    """Time of a computation; offloading to or from host memory does not count."""
    if not isinstance(operation, ComputeOperation) or operation.stream.startswith("offload"):
        return 0
    return max(operation.time_fs, operation.least_fs)


def _busiest(
    amounts: list[tuple[Operation, int]], ground: Workload, *, source_only: bool = False
) -> int:
    """The largest sum over the operations of a class; ``source_only``: messages count at their
    source only.
    """
    sums: dict[str, int] = {}
    for operation, amount in amounts:
        classes = (
            (operation.source,)
            if source_only and isinstance(operation, SendOperation)
            else ground.classes_of(operation)
        )
        for name in classes if amount else ():
            sums[name] = sums.get(name, 0) + amount
    return max(sums.values(), default=0)
