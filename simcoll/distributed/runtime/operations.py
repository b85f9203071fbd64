"""Collectives on the emulator: the calls of a group's ranks are matched, compared and played.

A group is a stream: a rank enters an operation when its part of the one before has finished, and when it has called; it does
not wait for the calls of the others. Only transfers that need a rank that has not called wait. Operations of different groups
overlap, and share the links.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simcoll.distributed.runtime.calls import Call, matrix, mismatch, wrong_split
from simcoll.distributed.runtime.issuing import begin, deliver, plan_of
from simcoll.distributed.runtime.meeting import listed
from simcoll.distributed.runtime.playing import Playing

if TYPE_CHECKING:
    from simcoll.core.memory import Array
    from simcoll.core.plan import Plan
    from simcoll.distributed.runtime.playing import Emulator
    from simcoll.distributed.runtime.work import Work
    from simcoll.distributed.runtime.world import Buffers, Communicator, Rank

__all__ = ["Streams"]


class Streams:
    """A group's operations: each rank's stream, and the operations that some rank has yet to call."""

    __slots__ = ("emulator", "group", "open", "streams")

    def __init__(self, group: Communicator, emulator: Emulator) -> None:
        self.group = group
        self.emulator = emulator
        self.streams: list[list[Operation]] = [[] for _ in group.members]
        self.open: dict[int, Operation] = {}

    def issue(self, me: Rank, call: Call, buffers: Buffers, *, guard: bool) -> Work:
        """Match a call with those of the other ranks and put it on the rank's stream.

        Raises
        ------
        RuntimeError
            When the group has failed before, or an output is read-only.
        """
        work = begin(self.group, me, call.name, buffers)
        here, sequence = self.group.group_rank[me.number], work.entry.sequence
        operation = self.open.get(sequence)
        if operation is None:
            operation = self.open[sequence] = Operation(self, sequence)
        work.reason = lambda: operation.describe(here)
        operation.add(here, call, work)
        if not work.done:
            if guard:
                work.guard()
            stream = self.streams[here]
            stream.append(operation)
            if len(stream) == 1:
                operation.enter(here)
        return work

    def leave(self, rank: int) -> None:
        """Let a rank enter the next operation: its part of the one at the head of its stream has finished."""
        stream = self.streams[rank]
        stream.pop(0)
        if stream:
            stream[0].enter(rank)

    def fail(self, error: str, sequence: int) -> None:
        """Fail this operation and all later ones, including calls to come: none can be trusted any more."""
        self.group.failure = self.group.failure or error
        for number in [number for number in self.open if number >= sequence]:
            self.open.pop(number).fail(error)
        for stream in self.streams:
            stream[:] = [operation for operation in stream if not operation.failed]


@dataclass(slots=True, eq=False)
class Operation:
    """One collective of a group, from the first call to the last departure."""

    streams: Streams
    sequence: int
    calls: dict[int, Call] = field(default_factory=dict)
    works: dict[int, Work] = field(default_factory=dict)
    plan: Plan | None = None
    mismatch: bool = False
    failed: bool = False
    _playing: Playing | None = None
    _early: list[int] = field(default_factory=list)

    def add(self, rank: int, call: Call, work: Work) -> None:
        """Note the call of a rank."""
        first = next(iter(self.calls.values()), None)
        if first is None and call.splits is None:
            self.plan = plan_of(self.streams.group, call, call.sizes)
        self.calls[rank] = call
        self.works[rank] = work
        if first is not None and call.differences(first):
            self.mismatch = True
            self.streams.emulator.unsettled[self.settle] = None
        complete = len(self.calls) == len(self.streams.group.members)
        if complete and self.mismatch:
            self.settle()
        elif complete and call.splits is not None:
            self._join_splits()

    def _join_splits(self) -> None:
        """Compare the splits of an all_to_all pair by pair, now that all are known."""
        splits = [self.calls[rank].splits or ((), ()) for rank in range(len(self.calls))]
        wrong = wrong_split(splits)
        if wrong is not None:
            self._refuse(wrong)
            return
        self.plan = plan_of(self.streams.group, self.calls[0], matrix([sends for sends, _ in splits]))
        for rank in self._early:
            self._enter(rank, self.plan)

    def settle(self) -> None:
        """Report a disagreement to every rank, once all have called or no more calls can come."""
        if not self.failed:
            first = next(iter(self.calls.values()))
            found = dict.fromkeys(aspect for call in self.calls.values() for aspect in call.differences(first))
            self._refuse(f"they differ in {', '.join(found)}")

    def _refuse(self, reason: str) -> None:
        group = self.streams.group
        said = {rank: (str(call), self.works[rank].entry.site) for rank, call in self.calls.items()}
        where = f"call {self.sequence} on {group}"
        self.streams.fail(mismatch(where, group.members, said, reason), self.sequence)

    def fail(self, error: str) -> None:
        """End it with an error on all ranks."""
        self.failed = True
        if self._playing is not None:
            self._playing.stopped = True
        self.streams.emulator.unsettled.pop(self.settle, None)
        for work in self.works.values():
            work.over(error)

    def describe(self, rank: int) -> str:
        """The event that a group rank waits for."""
        group = self.streams.group
        missing = [member for number, member in enumerate(group.members) if number not in self.calls]
        waits = f"waits for rank {listed(missing)}" if missing else "waits for data"
        return f"{self.calls[rank]} (call {self.sequence} on {group}, {self.works[rank].entry.site}) {waits}"

    def enter(self, rank: int) -> None:
        """Let a rank begin, whose stream has reached the operation."""
        self.works[rank].entry.started_fs = self.streams.emulator.calendar.now
        if self.mismatch:
            return
        if self.plan is None:
            self._early.append(rank)
        else:
            self._enter(rank, self.plan)

    def _enter(self, rank: int, plan: Plan) -> None:
        if self._playing is None:
            label = (self.streams.group.name, self.sequence, self.calls[rank].name)
            self._playing = Playing(self.streams.emulator, plan, label, self._leave, self._close)
        self._playing.enter(rank, self.works[rank].sources, self.calls[rank].op)

    def _leave(self, rank: int, values: Array | None) -> None:
        work = self.works[rank]
        work.over(deliver(work, self.calls[rank], values, len(self.streams.group.members)))
        self.streams.leave(rank)

    def _close(self) -> None:
        self.streams.open.pop(self.sequence, None)
