"""A call on a registered backend: the same plan, executed by the backend from this rank's input to its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.collective import Collective
from simcoll.distributed.arrays import scatter_into
from simcoll.distributed.flight import Entry
from simcoll.distributed.operations import Call
from simcoll.distributed.plans import plan_for
from simcoll.distributed.work import Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.distributed.groups import ProcessGroup
    from simcoll.distributed.world import Rank

    Array = NDArray[Any]

__all__ = ["execute"]


def _run(group: ProcessGroup, call: Call, sizes: Any, data: Array) -> tuple[str, Array | None]:
    """Execute the plan of a call; returns the schedule's name and the output."""
    communicator = group.communicator
    world = communicator.world
    op = call.op.reduction.pairwise if call.op is not None else "sum"
    choices = (call.algorithm, communicator.algorithm, world.shared["algorithm"])
    collective = Collective(call.kind, group.size(), root=call.root)
    plan = plan_for(world, collective, sizes, call.dtype, op, communicator.members, choices)
    result: Array | None = group.executor.execute(plan, group.rank(), data)
    return plan.schedule.title, result


def _all_sizes(group: ProcessGroup, call: Call) -> Any:
    """The block sizes of a call; those of an all_to_all must be gathered first."""
    if call.splits is None:
        return call.sizes
    own = np.array(call.splits[0], np.int64)
    matrix = _run(group, Call("splits", "all_gather", own.size, own.dtype), own.size, own)[1]
    return tuple(map(tuple, np.asarray(matrix).reshape(len(own), len(own)).tolist()))


def execute(group: ProcessGroup, rank: Rank, call: Call, sources: list[Array], targets: list[Array]) -> Work:
    """Run a call to its end on the group's backend."""
    communicator, now = group.communicator, rank.world.now
    here = group.rank()
    sequence = communicator.sequence(here)
    communicator.count(here)
    entry = Entry(
        (communicator.name, communicator.desc),
        call.name,
        sequence,
        sources,
        targets,
        communicator.timeout_fs,
        now,
        p2p=False,
    )
    rank.flight.add(entry)
    entry.started_fs = now
    work = Work(rank, call.name, sources, targets, entry)
    data = np.concatenate([np.zeros(0, call.dtype), *(source.reshape(-1) for source in sources)])
    if call.op is not None:
        data = call.op.reduction.prepared(data)
    _, values = _run(group, call, _all_sizes(group, call), data)
    if values is not None and targets:
        if call.op is not None:
            call.op.reduction.finish(values, group.size())
        scatter_into(targets, values)
    work.over()
    return work
