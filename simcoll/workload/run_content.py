"""The content of a run of a workload: all that its time depends on, under whatever names.

Designs share runs: without the bytes of context parallelism, a step with it is one without; the
design that names its axes differently plays the same messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from simcoll.core.facts import FactStore
from simcoll.libraries.prediction_cache import key_of, topology_digest
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Operation,
    SendOperation,
    Workload,
)

if TYPE_CHECKING:
    from simcoll.arrays import Ints
    from simcoll.workload.lower import WorkloadPlans

__all__ = ["OperationContent", "contents_of", "run_key"]


class OperationContent(NamedTuple):
    """An operation without names: its stream, the numbers of its predecessors, and who does what in
    it.
    """

    stream: str
    needs: Sequence[int]
    costs: tuple[object, ...]


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
    operations = workload.unroll()
    classes = dict.fromkeys(chain.from_iterable(map(workload.classes_of, operations)))
    groups = dict.fromkeys(chain.from_iterable(map(_groups_of, operations)))
    rows = [(content.stream, content.needs, *content.costs) for content in contents_of(workload)]
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


def _contents(workload: Workload) -> list[OperationContent]:
    contents: list[OperationContent] = []
    number: dict[str, int] = {}
    for place, operation in enumerate(workload.unroll()):
        predecessors = sorted({number[name] for name in operation.after})
        number[operation.id] = place
        contents.append(OperationContent(operation.stream, predecessors, _costs(operation)))
    return contents


contents_of: FactStore[Workload, list[OperationContent]] = FactStore(_contents)
"""The contents of the operations of a workload, in the order of ``Workload.unroll()``."""


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
