"""Rounds: calls of all ranks of a group at one time, handled together.

Most collectives repeat one that is known: every rank of the group makes the same call and waits for
it, all call at one time, and they go on at one time (:mod:`simcoll.distributed.runtime.takes`). A
round keeps of each such call what remains of it (its entry in the flight record, a copy of its
input), and the last of them begins the operation for all. As soon as anything else could see the
operation, be it another operation, the end of the turns at this time, a timeout or a failure, the
round breaks up: its calls become those that they would have been without it. So nothing that a
program or a result shows depends on rounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from greenlet import getcurrent  # type: ignore[import-untyped]

from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.distributed.runtime.calls import CollectiveCall
from simcoll.distributed.runtime.collective_calls import note_call
from simcoll.distributed.runtime.device import start_of_calls
from simcoll.distributed.runtime.plans_in_flight import Emulator, PlanStage, Playing
from simcoll.distributed.runtime.records import Entry
from simcoll.distributed.runtime.takes import Take
from simcoll.distributed.runtime.tasks import Task, Waitable, limit_wait, place_of_call, wait_until
from simcoll.distributed.runtime.work import Work, fill
from simcoll.distributed.runtime.world import Buffers, Communicator, Rank

__all__ = ["MOST_ROUNDS", "BrokenRound", "Round", "Stream", "fits_rounds"]

MOST_ROUNDS = 64
"""Calls of a group that have rounds."""
BROKEN_UP = 3
"""Rounds of a call that broke up one after the other, after which it has no more of them."""


class BrokenRound(Protocol):
    """The operation that the calls of a round become when it breaks up."""

    playing: Any

    def match(self, rank: int, call: CollectiveCall, work: Work) -> None:
        """Record the call of a rank."""

    def leave(self, rank: int, values: Array | None) -> None:
        """Finish the part of a rank."""

    def close(self) -> None:
        """Drop the operation after the last rank has left."""


class Stream(Protocol):
    """The operations of a group (:class:`simcoll.distributed.runtime.matched_calls.Streams`)."""

    group: Communicator
    emulator: Emulator
    streams: Any
    """The operations of each rank that are in flight."""
    open: Any
    """The operations for which a rank has called, by the number of the call."""
    round: Round | None

    def resume(self, sequence: int, plan: Plan, ranks: Sequence[int]) -> BrokenRound:
        """An operation that these ranks are in."""


class _RoundMember(msgspec.Struct):
    """The call of a rank."""

    rank: Rank
    task: Task
    entry: Entry
    targets: list[Array]


class _RoundEnd(Waitable):
    """The end of a round; ``works`` are those of its calls by task, when it has broken up."""

    works: dict[Task, tuple[Work, Callable[[], None]]] = msgspec.field(default_factory=dict)


def fits_rounds(take: Take) -> bool:
    """Whether all ranks of a take enter at once, and leave at once."""
    departures = take.log[take.plan.nranks :]
    return take.together and len({after_fs for after_fs, _, _ in departures}) == 1


class Round:
    """The rounds of one call of a group, one after the other.

    Parameters
    ----------
    take
        The course of the operation.
    """

    __slots__ = (
        "_arrivals",
        "_broken_up",
        "_call",
        "_emulator",
        "_end",
        "_group",
        "_members",
        "_order",
        "_playing",
        "_sequence",
        "_stage",
        "_streams",
        "_take",
    )

    def __init__(self, streams: Stream, call: CollectiveCall, take: Take) -> None:
        self._streams, self._call, self._take = streams, call, take
        self._group, self._emulator = streams.group, streams.emulator
        self._order = [rank for _, rank, leaves in take.log if not leaves]
        self._members = [self._group.members[rank] for rank in self._order]
        self._broken_up = 0
        self._reset()

    def _reset(self) -> None:
        self._arrivals: list[_RoundMember] = []
        self._end = _RoundEnd("an operation of all ranks")
        self._playing: Playing | None = None
        self._stage: PlanStage | None = None
        self._sequence = -1

    @property
    def is_open(self) -> bool:
        """Whether calls are still to come."""
        return self._playing is None

    def join(self, me: Rank, buffers: Buffers) -> bool:
        """Make a rank's call, and wait for its end; False if it cannot be part of the round."""
        arrivals, group, streams = self._arrivals, self._group, self._streams
        number, members = len(arrivals), self._members
        if number == len(members) or members[number] != me.number:
            return False
        rank = self._order[number]
        sequence = group.calls[rank]
        alone = sequence == self._sequence if number else streams.round is None
        busy = sequence in streams.open or streams.streams.get(rank)
        if not alone or busy or start_of_calls.get() is not None:
            return False
        # Above are the program, the collective, play, this function and the next.
        entry = note_call(group, me, self._call.name, buffers, above=5)
        if not number:
            self._sequence, streams.round = sequence, self
            self._emulator.rounds[self] = None
            self._stage = self._emulator.stage(self._take.plan, fake=self._call.fake)
        now_fs = entry.started_fs = entry.created_fs
        if self._stage is not None:
            self._stage.take_input(rank, buffers[0])
        caller = getcurrent()
        place, task = (caller, caller) if type(caller) is Task else place_of_call()
        if not number:
            # All call at this time, and before a deadline passes, the round breaks up: then each
            # of them gets its own.
            limit_wait(task, now_fs, now_fs + group.timeout_fs, explicit=group.explicit)
        arrivals.append(_RoundMember(me, task, entry, buffers[1]))
        end = self._end
        if number + 1 == len(members):
            self._begin()
        while not end.done:
            works = end.works
            if works:
                work, wake = works[task]
                if not work.done:
                    work.watchers.remove(wake)
                wait_until(work, explicit=work.explicit, deadline_fs=work.deadline_fs)
                return True
            task.waiting = end
            place.pause()
        return True

    def _begin(self) -> None:
        """Play the operation of all ranks."""
        self._after_earlier()
        playing = self._play(self._leave_alone, self._close)
        if playing.enter_together(self._take, self._leave):
            self._playing = playing
        else:
            self._break_up(playing)

    def _play(self, leave: Callable[[int, Array | None], None], end: Callable[[], None]) -> Playing:
        label = (self._group.name, self._sequence, self._call.name)
        plan, fake = self._take.plan, self._call.fake
        return Playing(self._emulator, plan, label, leave, end, fake, stage=self._stage)

    def _after_earlier(self) -> None:
        """Let rounds that began before come first."""
        for earlier in list(self._emulator.rounds):
            if earlier is self:
                return
            if earlier.is_open:
                earlier.break_up()

    def _leave(self, outputs: Sequence[Array | None]) -> None:
        """Finish the calls of all ranks."""
        op, now_fs, nranks = self._call.op, self._emulator.calendar.now, len(self._order)
        averages = op is not None and op.name == "avg"
        ready = self._group.world.tasks.ready
        self._end.done = True
        for rank, arrival in zip(self._order, self._arrivals, strict=True):
            values, targets = outputs[rank], arrival.targets
            if values is not None:
                if averages and op is not None:
                    op.finish(values, nranks)
                if len(targets) == 1 and targets[0].ndim == 1:
                    targets[0][:] = values
                else:
                    fill(targets, values)
            arrival.entry.completed_fs = now_fs
            ready.append(arrival.task)
        del self._emulator.rounds[self]
        self._streams.round = None
        self._broken_up = 0
        self._reset()

    def _leave_alone(self, rank: int, values: Array | None) -> None:
        """Let a rank leave whose operation does not take the expected course."""
        playing = self._playing
        self.break_up()
        if playing is not None:
            playing.leave(rank, values)

    def _close(self) -> None:
        """Do nothing: the ranks have left."""

    def break_up(self) -> None:
        """Make its calls those of an operation."""
        self._after_earlier()
        if self._arrivals:
            self._break_up(self._playing)

    def _break_up(self, playing: Playing | None) -> None:
        group, streams, arrivals = self._group, self._streams, self._arrivals
        plan, stage_is_entered = self._take.plan, self._playing is not None
        del self._emulator.rounds[self]
        streams.round = None
        self._broken_up += 1
        if self._broken_up == BROKEN_UP:
            group.rounds[self._call] = None
        ranks = self._order[: len(arrivals)]
        operation = streams.resume(self._sequence, plan, ranks)
        ready = group.world.tasks.ready
        for rank, arrival in zip(ranks, arrivals, strict=True):
            task, entry = arrival.task, arrival.entry
            deadline_fs = entry.created_fs + entry.timeout_fs
            limit_wait(task, entry.created_fs, deadline_fs, explicit=group.explicit)
            work = Work(
                self._call.name,
                group.raises,
                rank=arrival.rank,
                sources=(),
                targets=arrival.targets,
                entry=entry,
                deadline_fs=deadline_fs,
                explicit=group.explicit,
                gate=None,
            )
            wake = functools.partial(ready.append, task)
            work.watchers.append(wake)
            self._end.works[task] = work, wake
            task.waiting = work
            operation.match(rank, self._call, work)
        if playing is None:
            playing = self._play(operation.leave, operation.close)
        playing.leave, playing.on_end, playing.leave_all = operation.leave, operation.close, None
        operation.playing = playing
        self._reset()
        if not stage_is_entered:
            for rank in ranks:
                playing.enter(rank, ())
