"""Break down a workload's time: computation, communication by axis, links; remove the bytes of an
axis.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import msgspec
import numpy as np

from simcoll.workload.class_clock import operation_fs
from simcoll.workload.traffic import Traffic
from simcoll.workload.workload import ComputeOperation, Operation, SendOperation, Workload

if TYPE_CHECKING:
    from simcoll.workload.lower import WorkloadPlans
    from simcoll.workload.timing import WorkloadTimes

__all__ = ["AxisTime", "Breakdown", "OperationCounts", "axes_of", "breakdown", "without_axes"]

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


class Breakdown(TypedDict):
    """The parts of a time: computation, communication by axis, what bounds it, and the use of
    links.
    """

    compute_fs: int
    axes: Mapping[str, AxisTime]
    bound_fs: int
    limit: str
    link_use: tuple[tuple[str, float], ...]


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
        "compute_fs": _computed_fs(costs, ground),
        "axes": {
            axis: _axis_time(axis, costs, times, exposed) for axis, exposed in exposed_fs.items()
        },
        "bound_fs": max(free_fs, carried_fs),
        "limit": f"computation and the order of {order}"
        if free_fs >= carried_fs
        else f"link {link}",
        "link_use": use,
    }


def axes_of(costs: OperationCounts) -> tuple[str, ...]:
    """Axes that move bytes, in order of their first operation."""
    axes: dict[str, None] = {}
    for operation, _ in costs:
        if isinstance(operation, ComputeOperation):
            axes.update(
                dict.fromkeys(inner.group for inner in operation.inside if inner.size_bytes)
            )
        elif operation.size_bytes:
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
    return msgspec.structs.replace(operation, size_bytes=0, sizes=())


def _computed_fs(costs: OperationCounts, ground: Workload) -> int:
    """Computation of the busiest class."""
    return _busiest(
        [(operation, _work_fs(operation) * count) for operation, count in costs], ground
    )


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
        carried += count * traffic.of(operation)
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
