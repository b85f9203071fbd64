"""A call on an executor: the same plan, played from this rank's input to its output.

The calls of a group are its stream: each waits for the one before. Where processes exchange control messages, the ranks first
announce their calls, so that a rank that calls something else, or does not call, is named instead of waited for.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from simcoll.distributed.runtime.calls import ASPECTS, Call, matrix, mismatch, wrong_split
from simcoll.distributed.runtime.issuing import begin, deliver, plan_of
from simcoll.distributed.runtime.meeting import Arrival
from simcoll.distributed.runtime.tasks import Waitable, wait_until

if TYPE_CHECKING:
    from simcoll.core.plan import Plan
    from simcoll.distributed.runtime.meeting import Meeting
    from simcoll.distributed.runtime.tasks import Task
    from simcoll.distributed.runtime.work import Work
    from simcoll.distributed.runtime.world import Buffers, Communicator, Executor, ProcessGroup, Rank

__all__ = ["execute"]

LINGER_FS = 3 * 10**14
"""How long a rank that has seen another call waits for the rest, so that its report can name them."""


class _Announced(msgspec.Struct, frozen=True, array_like=True):
    """A rank's announcement of its call, besides the fields that must be equal on all ranks."""

    call: str
    site: str
    sends: tuple[int, ...]
    receives: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Execution:
    """One call of this rank."""

    group: Communicator
    executor: Executor
    me: Rank
    call: Call
    work: Work
    announce: InitVar[bool]
    plan: Plan | None = None
    before: Waitable | None = None
    turn: Waitable = field(default_factory=Waitable)
    agreement: Meeting | None = None

    def __post_init__(self, announce: bool) -> None:
        """Line up behind the group's call before, and announce the call."""
        if self.call.splits is None:
            self.plan = plan_of(self.group, self.call, self.call.sizes)
        self.before, self.group.turn = self.group.turn, self.turn
        if announce:
            self.agreement = self._announce()
        self.work.reason = self.describe

    def _announce(self) -> Meeting:
        """Announce the call to the other ranks."""
        call, work = self.call, self.work
        schedule = "" if self.plan is None else self.plan.schedule.content_hash()
        said = _Announced(str(call), str(work.entry.site), *(call.splits or ((), ())))
        key = f"call {self.group.key} {work.entry.sequence}"
        subject = [*map(repr, call.aspects()), schedule]
        return self.group.world.meet(self.me, Arrival(key, self.what, self.group.members, subject, said))

    def _said(self, rank: int, agreement: Meeting) -> _Announced:
        return msgspec.convert(agreement.values[rank], _Announced)

    @property
    def where(self) -> str:
        """The call and its group."""
        return f"call {self.work.entry.sequence} on {self.group}"

    @property
    def what(self) -> str:
        """The call's name, its number, and the place in the program that made it."""
        return f"{self.call} ({self.where}, {self.work.entry.site})"

    def describe(self) -> str:
        """The event that it waits for."""
        return f"{self.what} waits for data" if self.agreement is None else self.agreement.waits_for()

    def run(self) -> None:
        """Wait for the call before and for the other ranks, and play the plan."""
        if self.before is not None:
            wait_until(self.before)
        group, call, work = self.group, self.call, self.work
        if group.failure is not None:
            raise RuntimeError(group.failure)
        if self.agreement is not None:
            self._agree(self.agreement)
        plan = self.plan or plan_of(group, call, self._all_splits())
        begin_fs = work.entry.started_fs = group.world.now
        data = np.concatenate([np.zeros(0, call.dtype), *(source.reshape(-1) for source in work.sources)])
        if call.op is not None:
            data = call.op.prepared(data)
        values = self.executor.execute(plan, self._here, data)
        error = deliver(work, call, values, len(group.members))
        if error is not None:
            raise RuntimeError(error)
        group.world.history.add(group.name, work.entry.sequence, call.name, plan, (begin_fs, group.world.now))

    @property
    def _here(self) -> int:
        return self.group.group_rank[self.me.number]

    def _agree(self, agreement: Meeting) -> None:
        """Wait until all ranks have made the same call."""
        world = self.group.world
        try:
            wait_until(agreement)
        except RuntimeError:
            if agreement.clash is None:
                raise
            limit = world.now + LINGER_FS
            while agreement.missing() and world.now < limit:
                world.poll()
            rows = list(agreement.subjects.values())
            found = [name for i, name in enumerate(ASPECTS) if any(row[i] != rows[0][i] for row in rows)]
            self._refuse(agreement, f"they differ in {', '.join(found) or 'the schedule'}")
        if self.call.splits is not None:
            said = [self._said(member, agreement) for member in self.group.members]
            wrong = wrong_split([(each.sends, each.receives) for each in said])
            if wrong is not None:
                self._refuse(agreement, wrong)

    def _refuse(self, agreement: Meeting, reason: str) -> None:
        group, said = self.group, {}
        for rank in agreement.values:
            announced = self._said(rank, agreement)
            said[group.group_rank[rank]] = (announced.call, announced.site)
        group.failure = group.failure or mismatch(self.where, group.members, said, reason)
        raise RuntimeError(group.failure) from None

    def _all_splits(self) -> Any:
        """The split sizes of every rank of an all_to_all."""
        if self.agreement is not None:
            return matrix([self._said(member, self.agreement).sends for member in self.group.members])
        own = np.array(() if self.call.splits is None else self.call.splits[0], np.int64)
        plan = plan_of(self.group, Call("splits", "all_gather", own.size, own.dtype), own.size)
        rows = np.asarray(self.executor.execute(plan, self._here, own)).reshape(own.size, own.size)
        return matrix([tuple(row) for row in rows.tolist()])


def execute(
    group: ProcessGroup, executor: Executor, me: Rank, call: Call, buffers: Buffers, *, guard: bool, announce: bool
) -> Work:
    """Put a call on its group's stream in this process; ``announce`` notifies the other ranks first."""
    work = begin(group.communicator, me, call.name, buffers)
    execution = _Execution(group.communicator, executor, me, call, work, announce)
    if guard:
        work.guard()

    def over(task: Task) -> None:
        execution.turn.finish()
        work.over(None if task.failure is None else str(task.failure))

    me.world.tasks.launch(me, execution.run, over)
    return work
