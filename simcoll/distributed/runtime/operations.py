"""Collectives in flight: the calls of a group's ranks are matched, compared and played.

A group is a stream: of the operations on it, a rank enters the next one when its part of the one before is over. A rank
enters an operation when it has called, not when all have; what needs a rank that has not called waits. Operations of
different groups overlap, and share the links.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simcoll.core.collective import Collective
from simcoll.distributed.api.arrays import scatter_into
from simcoll.distributed.runtime.calls import Call, mismatch, wrong_split
from simcoll.distributed.runtime.flight import Entry
from simcoll.distributed.runtime.plans import Choice, Stage, give_back, plan_for, stage_for
from simcoll.distributed.runtime.work import Work
from simcoll.units import format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.core.plan import Plan
    from simcoll.distributed.api.point_to_point import Mailbox
    from simcoll.distributed.runtime.world import Rank, Waitable, World
    from simcoll.emulator.engine import Player

    Array = NDArray[Any]

__all__ = ["Call", "Communicator", "Record", "begin", "issue", "record_run"]


@dataclass(frozen=True, slots=True)
class Record:
    """An operation that is over, for the trace of a run.

    ``begin_fs`` is when the first rank entered, ``end_fs`` when the last was done.
    """

    group: str
    sequence: int
    name: str
    schedule: str
    protocol: str
    size_bytes: int
    messages: int
    begin_fs: int
    end_fs: int
    trace_hash: str

    def __str__(self) -> str:
        size = format_size(self.size_bytes)
        return f"{self.name} #{self.sequence} of group {self.group}: {self.schedule}, {size}, {self.messages} messages"


def record_run(world: World, record: Record) -> None:
    """Add to the trace of the world; the hash of the run does not depend on the order."""
    text = f"{record.group} {record.sequence} {record.name} {record.schedule} {record.trace_hash}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
    shared = world.shared
    shared["hash"] = (shared.get("hash", 0) + number) % 2**128
    shared["messages"] = shared.get("messages", 0) + record.messages
    records = shared["records"]
    if len(records) < shared["max_records"]:
        records.append(record)
    shared["operations"] = shared.get("operations", 0) + 1


class Communicator:
    """What the ranks of a group share. ``members`` are global ranks by group rank.

    ``key`` is unique among all groups of a run, also among default groups that were made one after the other.
    """

    def __init__(
        self,
        world: World,
        name: str,
        desc: str,
        members: tuple[int, ...],
        timeout: tuple[int, bool],
        backend: str,
        algorithm: Choice = None,
    ) -> None:
        self.world = world
        self.name = name
        self.key = name
        self.desc = desc
        self.members = members
        self.timeout_fs, self.explicit = timeout
        self.backend = backend
        self.algorithm = algorithm
        self.group_rank = {member: rank for rank, member in enumerate(members)}
        self.destroyed: dict[int, None] = {}
        self.failure: str | None = None
        self.mailbox: Mailbox | None = None
        self.turn: Waitable | None = None
        self.barriers: dict[int, Any] = {}
        self.barrier_calls = [0] * len(members)
        self._next = [0] * len(members)
        self._streams: list[list[Operation]] = [[] for _ in members]
        self._open: dict[int, Operation] = {}

    def __str__(self) -> str:
        return f"group {self.name} ({self.desc})"

    def take(self, rank: int) -> Operation:
        """The operation that the next call of a group rank belongs to."""
        sequence = self._next[rank]
        self._next[rank] += 1
        operation = self._open.get(sequence)
        if operation is None:
            operation = self._open[sequence] = Operation(self, sequence)
        return operation

    def sequence(self, rank: int) -> int:
        """Number of calls of a group rank."""
        return self._next[rank]

    def count(self, rank: int) -> None:
        """Count a call that is not an Operation."""
        self._next[rank] += 1

    def append(self, rank: int, operation: Operation) -> None:
        """Put an operation on a rank's stream."""
        stream = self._streams[rank]
        stream.append(operation)
        if len(stream) == 1:
            operation.enter(rank)

    def leave(self, rank: int) -> None:
        """A rank's part of the operation at the head of its stream is over."""
        stream = self._streams[rank]
        stream.pop(0)
        if stream:
            stream[0].enter(rank)

    def close(self, operation: Operation) -> None:
        """All ranks are through."""
        self._open.pop(operation.sequence, None)

    def fail(self, error: str, sequence: int) -> None:
        """From this operation on nothing can be trusted: what is open fails, and so will every call."""
        self.failure = self.failure or error
        for number in [number for number in self._open if number >= sequence]:
            self._open.pop(number).fail(error)
        for stream in self._streams:
            stream[:] = [operation for operation in stream if not operation.failed]


@dataclass(slots=True, eq=False)
class Operation:
    """One collective of a group, from the first call to the last departure."""

    group: Communicator
    sequence: int
    calls: dict[int, Call] = field(default_factory=dict)
    works: dict[int, Work] = field(default_factory=dict)
    plan: Plan | None = None
    mismatch: bool = False
    failed: bool = False
    begin_fs: int = -1
    _stage: Stage | None = None
    _player: Player | None = None
    _early: list[int] = field(default_factory=list)
    _left: int = 0

    def add(self, rank: int, call: Call, work: Work) -> None:
        """A rank calls."""
        first = next(iter(self.calls.values()), None)
        if first is None and call.splits is None:
            self.plan = self._plan(call, call.sizes)
        self.calls[rank] = call
        self.works[rank] = work
        if first is not None and call.differences(first):
            self.mismatch = True
            self.group.world.unsettled[self] = None
        complete = len(self.calls) == len(self.group.members)
        if complete and self.mismatch:
            self.settle()
        elif complete and call.splits is not None:
            self._join_splits()

    def _plan(self, call: Call, sizes: Any) -> Plan:
        world, group = self.group.world, self.group
        collective = Collective(call.kind, len(group.members), root=call.root)
        op = call.op.reduction.pairwise if call.op is not None else "sum"
        choices = (call.algorithm, group.algorithm, world.shared["algorithm"])
        return plan_for(world, collective, sizes, call.dtype, op, group.members, choices)

    def _join_splits(self) -> None:
        """All splits of an all_to_all are known: compare them pair by pair."""
        splits = [self.calls[rank].splits or ((), ()) for rank in range(len(self.group.members))]
        wrong = wrong_split(splits)
        if wrong is not None:
            self._refuse(wrong)
            return
        sizes = tuple(each[0] for each in splits)
        equal = len({size for row in sizes for size in row}) == 1
        self.plan = self._plan(self.calls[0], sizes[0][0] if equal else sizes)
        for rank in self._early:
            self._enter(rank)

    def settle(self) -> None:
        """No more calls can come, or all are there: tell every rank that they do not agree."""
        if not self.failed:
            first = next(iter(self.calls.values()))
            found = dict.fromkeys(aspect for call in self.calls.values() for aspect in call.differences(first))
            self._refuse(f"they differ in {', '.join(found)}")

    def _refuse(self, reason: str) -> None:
        where = f"call {self.sequence} on {self.group}"
        said = {rank: (str(call), self.works[rank].entry.site) for rank, call in self.calls.items()}
        self.group.fail(mismatch(where, self.group.members, said, reason), self.sequence)

    def fail(self, error: str) -> None:
        """It will never be over."""
        self.failed = True
        self.group.world.unsettled.pop(self, None)
        for work in self.works.values():
            work.over(error)

    def missing(self) -> list[int]:
        """Global ranks that have not called."""
        return [member for rank, member in enumerate(self.group.members) if rank not in self.calls]

    def describe(self, rank: int) -> str:
        """What a group rank waits for."""
        call = self.calls[rank]
        missing = self.missing()
        listed = ", ".join(str(member) for member in missing[:16]) + (", ..." if len(missing) > 16 else "")
        waits = f"waits for rank {listed}" if missing else "waits for data"
        return f"{call} (call {self.sequence} on {self.group}, {self.works[rank].entry.site}) {waits}"

    def enter(self, rank: int) -> None:
        """A rank's stream has reached the operation."""
        self.works[rank].entry.started_fs = self.group.world.now
        if self.mismatch:
            return
        if self.plan is None:
            self._early.append(rank)
        else:
            self._enter(rank)

    def _enter(self, rank: int) -> None:
        world = self.group.world
        if self._player is None or self._stage is None:
            if self.plan is None:
                return
            self._stage = stage_for(world, self.plan)
            self._player = self._stage.player(world, self._leave)
            self.begin_fs = world.now
        work, call = self.works[rank], self.calls[rank]
        stage = self._stage.inputs[rank]
        if stage is not None:
            begin = 0
            for source in work.sources:
                stage[begin : begin + source.size] = source.reshape(-1)
                begin += source.size
            if call.op is not None and call.op.factor is not None:
                stage[...] = call.op.reduction.prepared(stage)
        self._player.enter(rank)

    def _leave(self, rank: int) -> None:
        """The last transfer of a rank is done."""
        if self.failed:
            return
        work, call, stage = self.works[rank], self.calls[rank], self._stage
        values = None if stage is None else stage.outputs[rank]
        error = work.guarded()
        if values is not None and error is None:
            if call.op is not None:
                call.op.reduction.finish(values, len(self.group.members))
            scatter_into(work.targets, values)
        work.over(error)
        self._left += 1
        if self._left == len(self.group.members):
            # The player accounts for its last step after this.
            self.group.world.calendar.at(self.group.world.now, self._close, None)
        self.group.leave(rank)

    def _close(self, _nothing: None) -> None:
        player, stage, plan, world = self._player, self._stage, self.plan, self.group.world
        if player is None or stage is None or plan is None:
            return
        player.check()
        name = self.calls[0].name
        record = Record(
            self.group.name, self.sequence, name, plan.schedule.title, plan.protocol.name, plan.total_bytes,
            player.messages, self.begin_fs, max(player.time_fs, self.begin_fs), player.hash.hexdigest(),
        )  # fmt: skip
        record_run(world, record)
        give_back(world, stage)
        self.group.close(self)


def begin(group: Communicator, rank: Rank, call: Call, sources: list[Array], targets: list[Array]) -> Work:
    """The Work of a call, noted in the rank's flight record.

    Raises
    ------
    RuntimeError
        When the group has failed before, or an output is read-only.
    """
    if group.failure is not None:
        raise RuntimeError(group.failure)
    if any(not target.flags.writeable for target in targets):
        raise RuntimeError(f"{call.name}: an output tensor is read-only")
    now, sequence = group.world.now, group.sequence(group.group_rank[rank.number])
    entry = Entry((group.name, group.desc), call.name, sequence, sources, targets, group.timeout_fs, now, p2p=False)
    rank.flight.add(entry)
    work = Work(rank, call.name, sources, targets, entry)
    work.deadline_fs = now + group.timeout_fs
    work.explicit = group.explicit
    return work


def issue(
    group: Communicator, rank: Rank, call: Call, sources: list[Array], targets: list[Array], *, guard: bool
) -> Work:
    """Match a call with those of the other ranks, and put it on the rank's stream.

    Raises
    ------
    RuntimeError
        When the group has failed before, or an output is read-only.
    """
    work = begin(group, rank, call, sources, targets)
    here = group.group_rank[rank.number]
    operation = group.take(here)
    work.reason = lambda: operation.describe(here)
    operation.add(here, call, work)
    if not work.done:
        if guard and group.world.debug:
            work.guard()
        group.append(here, operation)
    return work
