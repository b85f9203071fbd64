"""The content of a run of a workload: all that its time depends on, under whatever names.

Designs share runs: without the bytes of context parallelism, a step with it is one without; the
design that names its axes differently plays the same messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from simcoll.libraries.prediction_cache import key_of, topology_digest
from simcoll.workload.workload import CallOperation, ComputeOperation, Operation, SendOperation

if TYPE_CHECKING:
    from simcoll.arrays import Ints
    from simcoll.workload.lower import WorkloadPlans
    from simcoll.workload.workload import Workload

__all__ = ["run_key"]


def run_key(workload: Workload, plans: WorkloadPlans, slow: Mapping[int, float]) -> str:
    """The key of a run in the cache: equal for workloads that differ only in the names of
    operations, and in classes and groups that no operation uses.

    Examples
    --------
    >>> import numpy as np
    >>> from simcoll.topology import crossbar
    >>> from simcoll.workload.lower import WorkloadPlans
    >>> from simcoll.workload.workload import Workload
    >>> plans = WorkloadPlans(crossbar(2, "50 GB/s", "1 us"))
    >>> ranks, work = {"all": np.arange(2)}, {"on": "all", "time_fs": 10}
    >>> one, other, slower = (
    ...     Workload(2, ranks, {}, (ComputeOperation(id=name, **work | more),))
    ...     for name, more in (("a", {}), ("b", {}), ("b", {"time_fs": 11}))
    ... )
    >>> run_key(one, plans, {}) == run_key(other, plans, {})
    True
    >>> run_key(one, plans, {}) == run_key(slower, plans, {})
    False
    """
    rows: list[tuple[object, ...]] = []
    classes: dict[str, None] = {}
    groups: dict[str, None] = {}
    number: dict[str, int] = {}
    for place, operation in enumerate(workload.unroll()):
        predecessors = sorted({number[name] for name in operation.after})
        number[operation.id] = place
        classes |= dict.fromkeys(workload.classes_of(operation))
        groups |= dict.fromkeys(_groups_of(operation))
        rows.append((operation.stream, predecessors, *_costs(operation)))
    ranks = _arrays(workload.classes, classes), _arrays(workload.groups, groups)
    content = msgspec.msgpack.encode((rows, ranks))
    calibration = plans.calibration.hash if plans.calibration else ""
    return key_of(
        "workload",
        topology_digest(plans.topology),
        plans.uniform,
        repr(plans.rules),
        calibration,
        workload.nranks,
        sorted(slow.items()),
        hashlib.sha256(content).hexdigest(),
    )


def _costs(operation: Operation) -> tuple[object, ...]:
    """What an operation does, besides its stream and dependencies."""
    if isinstance(operation, ComputeOperation):
        return (
            "compute",
            operation.on,
            operation.time_fs,
            operation.inside,
            operation.pieces,
            operation.least_fs,
        )
    if isinstance(operation, SendOperation):
        return "send", operation.source, operation.target, operation.size_bytes
    return "call", operation.group, operation.on, operation.service_fs, *operation.plan_key


def _groups_of(operation: Operation) -> Iterable[str]:
    if isinstance(operation, ComputeOperation):
        return (inner.group for inner in operation.inside)
    return (operation.group,) if isinstance(operation, CallOperation) else ()


def _arrays(arrays: Mapping[str, Ints], names: Iterable[str]) -> list[tuple[object, ...]]:
    """The names and contents of some classes or groups."""
    return [(name, arrays[name].shape, arrays[name].tobytes()) for name in sorted(names)]
