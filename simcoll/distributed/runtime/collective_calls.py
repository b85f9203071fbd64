"""Collective calls of a group: matching, agreement on a plan, and execution of one rank's part.

On the emulator, :mod:`simcoll.distributed.runtime.matched_calls` matches and plays them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np

from simcoll.arrays import Array
from simcoll.core.collective import Collective
from simcoll.core.plan import Plan
from simcoll.distributed.runtime.calls import ASPECTS, CollectiveCall, matrix, without_data
from simcoll.distributed.runtime.device import start_of_calls
from simcoll.distributed.runtime.fake import is_fake
from simcoll.distributed.runtime.records import Entry, buffers_of, calling_site
from simcoll.distributed.runtime.tasks import (
    Arrival,
    Meeting,
    Task,
    Waitable,
    list_ranks,
    offer_turn,
    wait_until,
)
from simcoll.distributed.runtime.work import Work, timeout_fs
from simcoll.distributed.runtime.world import (
    Buffers,
    Communicator,
    Executor,
    GroupHandle,
    Rank,
    current_rank,
)
from simcoll.libraries.choices import plan_for
from simcoll.units import format_time

__all__ = [
    "CollectiveOperation",
    "begin",
    "deliver",
    "execute",
    "note_call",
    "plan_of",
    "play",
]

Value = TypeVar("Value")
SHOWN_RANKS = 64
LINGER_FS = 3 * 10**14
"""How long a rank that has seen a mismatched call waits for the others, to name them in its
report.
"""


def begin(group: Communicator, me: Rank, name: str, buffers: Buffers, *, p2p: bool = False) -> Work:
    """The Work of a call, noted in the rank's flight record; a RuntimeError when the group has
    failed before.
    """
    world = group.world
    if world.tasks.turns is not None:
        offer_turn()
    # The program is above the collective, play, the world's issue, that of a stream, this function
    # and the next; messages have two fewer.
    entry = note_call(group, me, name, buffers, p2p=p2p, above=5 if p2p else 7)
    work = Work(
        name,
        group.raises,
        rank=me,
        sources=buffers[0],
        targets=buffers[1],
        entry=entry,
        deadline_fs=entry.created_fs + entry.timeout_fs,
        explicit=group.explicit,
        gate=start_of_calls.get(),
    )
    if world.history.recording is not None:
        world.history.recording.begin(work)
    return work


def note_call(
    group: Communicator, me: Rank, name: str, buffers: Buffers, *, above: int, p2p: bool = False
) -> Entry:
    """A new entry of a rank's flight record, for a call whose first ``above`` frames are inside; a
    RuntimeError when the group has failed before.
    """
    world = group.world
    if group.failure is not None:
        raise group.raises(group.failure)
    sources, targets = buffers
    for target in targets:
        if not target.flags.writeable:
            raise RuntimeError(f"{name}: an output tensor is read-only")
    counters = group.messages if p2p else group.calls
    group_rank, flight = group.group_rank[me.number], me.flight
    timeline, sequence = world.history.timeline, counters[group_rank]
    counters[group_rank] = sequence + 1
    inputs = buffers_of(sources)
    me.memory.hold_arrays(sources)
    if targets is sources:
        outputs = inputs
    else:
        outputs = buffers_of(targets)
        me.memory.hold_arrays(targets)
    label = group.label
    if label is None or label[1] is not group.desc:
        label = group.label = group.name, group.desc
    entry = Entry(
        label,
        name,
        sequence,
        p2p,
        inputs,
        outputs,
        group.timeout_fs,
        world.now,
        calling_site(above=above),
        number=flight[-1].number + 1 if flight else 0,
    )
    flight.append(entry)
    if timeline is not None:
        entry.scope = me.scope
        timeline.operations.append((me.number, entry))
    return entry


def plan_of(
    group: Communicator, call: CollectiveCall, sizes: Any, members: tuple[int, ...] | None = None
) -> Plan:
    """The plan of a call with the ``sizes`` that all ranks agreed on; for other members, if
    given.
    """
    plans = group.world.plans
    collective = Collective(call.kind, len(group.members), root=call.root)
    op = call.op.pairwise if call.op is not None else "sum"
    choices = (call.algorithm, group.algorithm, plans.algorithm)
    return plan_for(plans, collective, sizes, call.dtype, op, members or group.members, choices)


def deliver(work: Work, call: CollectiveCall, values: Array | None, nranks: int) -> str | None:
    """Fill a call's outputs from a plan's flat output; returns a violation found in watched
    buffers, if any.
    """
    error = work.violation() if work.rank.watched_works else None
    if error is None and values is not None:
        if call.op is not None and call.op.name == "avg":
            call.op.finish(values, nranks)
        work.fill(values)
    return error


@dataclass(slots=True, eq=False)
class CollectiveOperation:
    """One collective of a group: the calls seen in this process by group rank, and their Works.

    ``followers`` are the group ranks whose calls a rank makes, where these are more than its own.
    """

    group: Communicator
    sequence: int
    calls: dict[int, CollectiveCall] = field(default_factory=dict)
    works: dict[int, Work] = field(default_factory=dict)
    plan: Plan | None = None
    followers: Mapping[int, Sequence[int]] | None = None

    def of_all(self, table: Mapping[int, Value]) -> Mapping[int, Value]:
        """A table by group rank with the entries of followers too."""
        if self.followers is None:
            return table
        return {rank: table[caller] for caller in table for rank in self.followers[caller]}

    @property
    def where(self) -> str:
        """The number of the call, and its group."""
        return f"call {self.sequence} on {self.group}"

    def what(self, rank: int) -> str:
        """A rank's call, its number, and the place in the program that made it."""
        return f"{self.calls[rank]} ({self.where}, {self.works[rank].entry.site})"

    def missing(self) -> Sequence[int]:
        """Global ranks whose calls are still awaited."""
        calls = self.of_all(self.calls)
        return [member for number, member in enumerate(self.group.members) if number not in calls]

    def describe(self, work: Work) -> str:
        """The event that the rank of a Work waits for."""
        rank = self.group.group_rank[work.rank.number]
        missing = self.missing()
        if missing:
            return f"{self.what(rank)} waits for rank {list_ranks(missing)}"
        return (
            f"{self.what(rank)} waits for data{self.group.world.hindrances() or self._last_call()}"
        )

    def _last_call(self) -> str:
        """The ranks that called last, and how long ago; empty where this process runs one rank."""
        works = self.of_all(self.works)
        called = [works[number].entry.created_fs for number in sorted(works)]
        if len(called) < len(self.group.members):
            return ""
        last = max(called)
        late = [
            member
            for member, at_fs in zip(self.group.members, called, strict=True)
            if at_fs == last
        ]
        return (
            f"; rank {list_ranks(late)} called last, {format_time(self.group.world.now - last)} ago"
        )

    def known_plan(self, call: CollectiveCall) -> Plan | None:
        """The plan of a call, unless it depends on the other ranks' splits; the last call's, if it
        is repeated.
        """
        group = self.group
        if call.splits is not None:
            return None
        if group.planned is None or group.planned[0] is not call:
            group.planned = call, plan_of(group, call, call.sizes)
        return group.planned[1]

    def join_splits(self, splits: Sequence[tuple[Sequence[int], Sequence[int]]]) -> str | None:
        """Make the plan of an all_to_all from every rank's splits; returns the first disagreement
        of two, as a sentence.
        """
        for a, (sends, _) in enumerate(splits):
            for b, (_, receives) in enumerate(splits):
                if sends[b] != receives[a]:
                    return (
                        f"rank {a} sends {sends[b]} elements to rank {b}, which expects "
                        f"{receives[a]}"
                    )
        call = self.calls[min(self.calls)]
        self.plan = plan_of(self.group, call, matrix([sends for sends, _ in splits]))
        return None

    def sizes_of(self, call: CollectiveCall) -> Any:
        """The sizes of a call that all ranks have made: its own, or a matrix of all splits."""
        if call.splits is None:
            return call.sizes
        calls = self.of_all(self.calls)
        splits = (calls[rank].splits for rank in range(len(calls)))
        return matrix([sends_receives[0] for sends_receives in splits if sends_receives])

    def dissenters(self, calls: Mapping[int, Hashable]) -> str:
        """Who differs from most ranks, to be added to an error; empty if most do not agree. What
        must be equal in the ``calls`` is given by group rank.
        """
        majority_call, count = Counter(calls.values()).most_common(1)[0]
        if 2 * count <= len(calls):
            return ""
        members = self.group.members
        ranks = [members[rank] for rank in sorted(calls) if calls[rank] != majority_call]
        return f"; all but rank {list_ranks(ranks)} agree"

    def refusal(self, reports: Mapping[int, tuple[str, Any]], reason: str) -> str:
        """The error that lists each rank's call and its source line, from the ``reports`` by group
        rank.
        """
        members = self.group.members
        lines = [f"Detected mismatch between collectives on ranks: {self.where}: {reason}"]
        for rank, member in enumerate(members[:SHOWN_RANKS]):
            call, site = reports.get(rank, ("has not called", None))
            lines.append(
                f"  rank {member}: {call}" + (f"    at {site}" if site is not None else "")
            )
        if len(members) > SHOWN_RANKS:
            lines.append(f"  ... and {len(members) - SHOWN_RANKS} more")
        return "\n".join(lines)


class _Announced(msgspec.Struct, frozen=True, array_like=True):
    """The rank-specific part of a call's announcement."""

    call: str
    site: str
    sends: tuple[int, ...]
    receives: tuple[int, ...]


@dataclass(slots=True, eq=False, kw_only=True)
class _Executed(CollectiveOperation):
    """An operation in which this process runs one rank, whose part an executor plays."""

    executor: Executor
    group_rank: int
    predecessor: Waitable | None
    turn: Waitable = field(default_factory=Waitable)
    agreement: Meeting | None = None

    def missing(self) -> Sequence[int]:
        """The ranks whose announcements are missing; none where calls are not announced."""
        return () if self.agreement is None else self.agreement.missing()

    def announce(self, me: Rank) -> None:
        """Announce the call to the other ranks."""
        call = self.calls[self.group_rank]
        schedule = "" if self.plan is None else self.plan.schedule.content_hash()
        announcement = _Announced(
            str(call), str(self.works[self.group_rank].entry.site), *(call.splits or ((), ()))
        )
        subject = [*map(repr, call.aspects()), schedule]
        key, members = f"call {self.group.key} {self.sequence}", self.group.members
        self.agreement = self.group.world.meet(
            me, Arrival(key, self.what(self.group_rank), members, subject, announcement)
        )

    def run(self) -> None:
        """Wait for the previous call and for the other ranks, then play the plan."""
        if self.predecessor is not None:
            wait_until(self.predecessor)
        group, call, work = self.group, self.calls[self.group_rank], self.works[self.group_rank]
        if group.failure is not None:
            raise RuntimeError(group.failure)
        if self.agreement is not None:
            self._agree(self.agreement)
        plan = self.plan or plan_of(group, call, self._all_sizes(call))
        begin_fs = work.entry.started_fs = group.world.now
        data = np.concatenate(
            [np.zeros(0, call.dtype), *(source.reshape(-1) for source in work.sources)]
        )
        if call.op is not None:
            data = call.op.prepared(data)
        error = deliver(
            work, call, self.executor.execute(plan, self.group_rank, data), len(group.members)
        )
        if error is not None:
            raise RuntimeError(error)
        group.world.history.add(
            group.name, self.sequence, call.name, plan, (begin_fs, group.world.now)
        )

    def _agree(self, agreement: Meeting) -> None:
        """Wait until all ranks have made the same call."""
        group, world, wrong = self.group, self.group.world, None
        try:
            wait_until(agreement)
        except RuntimeError:
            if agreement.clash is None:
                raise
            limit = world.now + LINGER_FS
            while agreement.missing() and world.now < limit:
                world.poll()
            rows = list(agreement.subjects.values())
            aspects = [
                name for i, name in enumerate(ASPECTS) if any(row[i] != rows[0][i] for row in rows)
            ]
            calls = {group.group_rank[rank]: tuple(row) for rank, row in agreement.subjects.items()}
            wrong = f"they differ in {', '.join(aspects) or 'the schedule'}{self.dissenters(calls)}"
        announcements = {
            group.group_rank[rank]: msgspec.convert(value, _Announced)
            for rank, value in agreement.values.items()
        }
        if wrong is None and self.calls[self.group_rank].splits is not None:
            wrong = self.join_splits(
                [
                    (announcements[rank].sends, announcements[rank].receives)
                    for rank in range(len(announcements))
                ]
            )
        if wrong is not None:
            reports = {
                rank: (announcement.call, announcement.site)
                for rank, announcement in announcements.items()
            }
            group.failure = group.failure or self.refusal(reports, wrong)
            raise RuntimeError(group.failure) from None

    def _all_sizes(self, call: CollectiveCall) -> Any:
        """Collect the splits of an all_to_all whose calls were not announced."""
        sizes = np.array(() if call.splits is None else call.splits[0], np.int64)
        plan = plan_of(
            self.group, CollectiveCall("splits", "all_gather", sizes.size, sizes.dtype), sizes.size
        )
        rows = np.asarray(self.executor.execute(plan, self.group_rank, sizes)).reshape(
            sizes.size, sizes.size
        )
        return matrix([tuple(row) for row in rows.tolist()])


def execute(
    group: GroupHandle,
    executor: Executor,
    me: Rank,
    call: CollectiveCall,
    buffers: Buffers,
    *,
    guard: bool,
    announce: bool,
) -> Work:
    """Put a call on its group's stream in this process; ``announce`` notifies the other ranks
    first.
    """
    shared = group.communicator
    work = begin(shared, me, call.name, buffers)
    operation = _Executed(
        shared,
        work.entry.sequence,
        executor=executor,
        group_rank=group.rank(),
        predecessor=shared.turn,
    )
    operation.plan = operation.known_plan(call)
    operation.calls[operation.group_rank], operation.works[operation.group_rank] = call, work
    work.reason = operation.describe
    shared.turn = operation.turn
    if announce:
        operation.announce(me)
    if guard:
        work.guard()

    def over(task: Task) -> None:
        operation.turn.finish()
        work.over(None if task.failure is None else str(task.failure))

    me.world.tasks.launch(me, operation.run, over)
    return work


def play(
    group: GroupHandle,
    call: CollectiveCall,
    sources: list[Array],
    targets: list[Array],
    results: list[Any],
    *,
    async_op: bool,
    timeout: Any = None,
) -> Work | None:
    """Run a checked call: ``sources``, concatenated, are its input; its output fills ``targets``.

    ``results`` are the caller's own objects for the outputs. Inside a block of `coalescing` it is
    only noted.
    """
    me = current_rank()
    pending = me.coalescing.get(group.communicator) if me.coalescing else None
    if pending is not None:
        pending.append((call, sources, targets))
        return None
    buffers = sources if sources is targets else [*sources, *targets]
    timed = me.world.timed
    # Most calls have one real array.
    real = not timed and len(buffers) == 1 and type(buffers[0]) is np.ndarray
    if not real and is_fake(buffers, timed=timed):
        call = without_data(call)
    if not async_op and timeout is None:
        rounds = group.communicator.rounds.get(call)
        if rounds is not None and rounds.join(me, (sources, targets)):
            return None
    work = me.world.issue(group, me, call, (sources, targets), guard=async_op and not call.fake)
    if async_op:
        work.results = list(results)
        me.open_works[work] = None
        return work
    if timeout is not None and timeout_fs(timeout) > 0:
        work.wait(timeout)
    else:
        wait_until(work, explicit=work.explicit, deadline_fs=work.deadline_fs)
    return None
