"""A call on a registered backend: the same plan, executed from this rank's input to its output.

The calls of a group are its stream: each waits for the one before. Where processes can write each other letters, the ranks
first tell what they call, so that a rank that calls something else, or does not call, is named instead of waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.core.collective import Collective
from simcoll.distributed.api.arrays import scatter_into
from simcoll.distributed.runtime.calls import ASPECTS, Call, mismatch, wrong_split
from simcoll.distributed.runtime.operations import Record, begin, record_run
from simcoll.distributed.runtime.plans import plan_for
from simcoll.distributed.runtime.world import Waitable, wait_until

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.core.plan import Plan
    from simcoll.distributed.api.groups import ProcessGroup
    from simcoll.distributed.linked.linked import Gathering
    from simcoll.distributed.runtime.work import Work
    from simcoll.distributed.runtime.world import Rank, Task

    Array = NDArray[Any]

__all__ = ["execute"]

LINGER_FS = 3 * 10**14
"""How long a rank that has seen another call waits for the rest, so that its report can name them."""


def _plan(group: ProcessGroup, call: Call, sizes: Any) -> Plan:
    communicator = group.communicator
    world = communicator.world
    op = call.op.reduction.pairwise if call.op is not None else "sum"
    choices = (call.algorithm, communicator.algorithm, world.shared["algorithm"])
    collective = Collective(call.kind, group.size(), root=call.root)
    return plan_for(world, collective, sizes, call.dtype, op, communicator.members, choices)


def _matrix(rows: list[tuple[int, ...]]) -> Any:
    """The sizes of an all_to_all; a number when they are equal."""
    return rows[0][0] if len({size for row in rows for size in row}) == 1 else tuple(rows)


class _Operation:
    """One call in this process."""

    __slots__ = ("agreement", "before", "call", "group", "plan", "sequence", "sources", "turn", "work")

    def __init__(self, group: ProcessGroup, call: Call, work: Work) -> None:
        communicator, here = group.communicator, group.rank()
        self.group = group
        self.call = call
        self.work = work
        self.plan = None if call.splits is not None else _plan(group, call, call.sizes)
        self.sequence = communicator.sequence(here)
        communicator.count(here)
        self.before, self.turn = communicator.turn, Waitable()
        communicator.turn = self.turn
        self.agreement = self._announced()
        work.reason = self.describe

    def _announced(self) -> Gathering | None:
        """Tell the other ranks what is called."""
        communicator, call = self.group.communicator, self.call
        linked = communicator.world.linked
        if linked is None or not (communicator.world.debug or call.splits is not None):
            return None
        schedule = "" if self.plan is None else self.plan.schedule.content_hash()
        value = [[*map(repr, call.aspects()), schedule], str(call), str(self.work.entry.site), call.splits or []]
        key = f"call {communicator.key} {self.sequence}"
        return linked.gather(key, self.what, value, communicator.members)

    @property
    def where(self) -> str:
        """Which call on which group."""
        return f"call {self.sequence} on {self.group.communicator}"

    @property
    def what(self) -> str:
        """What was called, which call it is, and where it was made."""
        return f"{self.call} ({self.where}, {self.work.entry.site})"

    def describe(self) -> str:
        """What it waits for."""
        return f"{self.what} waits for data" if self.agreement is None else self.agreement.waits_for()

    def run(self) -> None:
        """Wait for the call before and for the other ranks, and do it."""
        if self.before is not None:
            wait_until(self.before)
        communicator, call, work = self.group.communicator, self.call, self.work
        if communicator.failure is not None:
            raise RuntimeError(communicator.failure)
        if self.agreement is not None:
            self._agree(self.agreement)
        plan = self.plan or _plan(self.group, call, self._all_splits())
        now = communicator.world.now
        work.entry.started_fs = now
        data = np.concatenate([np.zeros(0, call.dtype), *(source.reshape(-1) for source in work.sources)])
        if call.op is not None:
            data = call.op.reduction.prepared(data)
        values = self.group.executor.execute(plan, self.group.rank(), data)
        error = work.guarded()
        if error is not None:
            raise RuntimeError(error)
        if values is not None and work.targets:
            if call.op is not None:
                call.op.reduction.finish(values, self.group.size())
            scatter_into(work.targets, values)
        title, protocol = plan.schedule.title, plan.protocol.name
        record = Record(
            communicator.name, self.sequence, call.name, title, protocol, plan.total_bytes, 0, now, communicator.world.now, "",
        )  # fmt: skip
        record_run(communicator.world, record)

    def _agree(self, agreement: Gathering) -> None:
        """Wait until all ranks have called the same."""
        communicator = self.group.communicator
        wait_until(agreement)
        if agreement.differs:
            linked = communicator.world.linked
            limit = communicator.world.now + LINGER_FS
            while linked is not None and agreement.missing() and communicator.world.now < limit:
                linked.pause()
            rows = [value[0] for value in agreement.came.values()]
            found = [name for i, name in enumerate(ASPECTS) if any(row[i] != rows[0][i] for row in rows)]
            self._refuse(agreement, f"they differ in {', '.join(found) or 'the schedule'}")
        elif self.call.splits is not None:
            wrong = wrong_split([agreement.came[member][3] for member in communicator.members])
            if wrong is not None:
                self._refuse(agreement, wrong)

    def _refuse(self, agreement: Gathering, reason: str) -> None:
        communicator = self.group.communicator
        said = {communicator.group_rank[rank]: (value[1], value[2]) for rank, value in agreement.came.items()}
        communicator.failure = communicator.failure or mismatch(self.where, communicator.members, said, reason)
        raise RuntimeError(communicator.failure)

    def _all_splits(self) -> Any:
        """What each rank of an all_to_all sends to each."""
        if self.agreement is not None:
            return _matrix([tuple(self.agreement.came[member][3][0]) for member in self.group.communicator.members])
        own = np.array(() if self.call.splits is None else self.call.splits[0], np.int64)
        plan = _plan(self.group, Call("splits", "all_gather", own.size, own.dtype), own.size)
        rows = np.asarray(self.group.executor.execute(plan, self.group.rank(), own)).reshape(own.size, own.size)
        return _matrix([tuple(row) for row in rows.tolist()])


def execute(
    group: ProcessGroup, rank: Rank, call: Call, sources: list[Array], targets: list[Array], *, guard: bool
) -> Work:
    """Put a call on the stream of its group in this process."""
    work = begin(group.communicator, rank, call, sources, targets)
    operation = _Operation(group, call, work)
    if guard and rank.world.debug:
        work.guard()

    def over(task: Task) -> None:
        operation.turn.finish()
        work.over(None if task.failure is None else str(task.failure))

    rank.world.launch(rank, operation.run, over)
    return work
