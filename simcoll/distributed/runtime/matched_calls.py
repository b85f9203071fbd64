"""The collectives of a group on the emulator: matching, comparing and playing calls.

A group is a stream: a rank enters an operation once it has called and its part of the previous
operation has finished. It does not wait for the other ranks' calls; only transfers that involve a
rank that has not called wait. Operations of different groups overlap and share the links.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.distributed.runtime.calls import CollectiveCall
from simcoll.distributed.runtime.collective_calls import (
    CollectiveOperation,
    begin,
    deliver,
    plan_of,
)
from simcoll.distributed.runtime.followers import AlikeCalls, Followers
from simcoll.distributed.runtime.plans_in_flight import Emulator, Playing
from simcoll.distributed.runtime.rounds import MOST_ROUNDS, Round, fits_rounds
from simcoll.distributed.runtime.work import Work
from simcoll.distributed.runtime.world import Buffers, Communicator, Rank

__all__ = ["Streams"]


@dataclass(eq=False)
class Streams:
    """A group's operations on the emulator: one stream per rank, and the operations that await
    further calls.
    """

    group: Communicator
    emulator: Emulator
    alike_calls: AlikeCalls | None = None
    streams: defaultdict[int, list[_Matched]] = field(default_factory=lambda: defaultdict(list))
    open: dict[int, _Matched] = field(default_factory=dict)
    round: Round | None = None

    @functools.cached_property
    def together(self) -> Mapping[int, Sequence[int]] | None:
        """The group ranks that enter with a rank: itself and its followers; None without these."""
        rank_classes = self.group.world.rank_classes
        return None if rank_classes is None else rank_classes.classes_of(self.group.members)

    def issue(self, me: Rank, call: CollectiveCall, buffers: Buffers, *, guard: bool) -> Work:
        """Match a call with the other ranks' calls, and enqueue it on the rank's stream."""
        if self.round is not None:
            self.round.break_up()
        work = begin(self.group, me, call.name, buffers)
        group_rank, sequence = self.group.group_rank[me.number], work.entry.sequence
        recording = self.group.world.history.recording
        if recording is not None:
            recording.call(me.number, self.group, call, work)
        operation = self.open.get(sequence)
        if operation is None:
            operation = self.open[sequence] = _Matched(
                self.group, sequence, followers=self.together, streams=self
            )
        operation.match(group_rank, call, work)
        if not work.done:
            if guard:
                work.guard()
            stream = self.streams[group_rank]
            stream.append(operation)
            if len(stream) == 1:
                operation.enter_with(group_rank, call, work)
        return work

    def resume(self, sequence: int, plan: Plan, ranks: Sequence[int]) -> _Matched:
        """An operation that these ranks are in."""
        operation = _Matched(self.group, sequence, plan=plan, streams=self)
        self.open[sequence] = operation
        for rank in ranks:
            self.streams[rank].append(operation)
        return operation

    def note_round(self, call: CollectiveCall, playing: Playing) -> None:
        """Handle later calls together that repeat this one of all ranks, if they can be."""
        group, take = self.group, playing.take
        if take is None or call in group.rounds or len(group.rounds) >= MOST_ROUNDS:
            return
        world, history = group.world, group.world.history
        watched = history.recording or history.timeline or world.tasks.turns
        if watched is None and self.emulator.steady and fits_rounds(take):
            group.rounds[call] = Round(self, call, take)

    def fail(self, error: str, sequence: int) -> None:
        """Fail this operation, all later ones and future calls: the ranks are out of step."""
        if self.round is not None:
            self.round.break_up()
        self.group.failure = self.group.failure or error
        for number in [number for number in self.open if number >= sequence]:
            self.open.pop(number).fail(error)
        for stream in self.streams.values():
            stream[:] = [operation for operation in stream if not operation.failed]


@dataclass(slots=True, eq=False, kw_only=True)
class _Matched(CollectiveOperation):
    """An operation of emulated ranks, from the first call to the last departure."""

    streams: Streams
    first_call: CollectiveCall | None = None
    aspects: tuple[Any, ...] = ()
    differs: bool = False
    mismatch: bool = False
    failed: bool = False
    playing: Playing | Followers | None = None
    early: list[int] = field(default_factory=list)

    def match(self, rank: int, call: CollectiveCall, work: Work) -> None:
        """Record the call of a rank, and compare it with the first one, which determines the
        plan.
        """
        if self.first_call is None:
            self.first_call, self.aspects = call, call.aspects()
            self.plan = self.plan or self.known_plan(call)
        elif call is not self.first_call:
            self.differs = True
            if call.aspects() != self.aspects:
                self.mismatch = True
                self.streams.emulator.unsettled[self.settle] = None
        self.calls[rank], self.works[rank] = call, work
        work.reason = self.describe
        if len(self.calls) == len(self.followers or self.group.members):
            if self.mismatch:
                self.settle()
            elif call.splits is not None:
                self._join_splits()

    def _join_splits(self) -> None:
        calls = self.of_all(self.calls)
        wrong = self.join_splits([calls[rank].splits or ((), ()) for rank in range(len(calls))])
        if wrong is not None:
            self._refuse(wrong)
        elif self.plan is not None:
            for rank in self.early:
                self.enter(rank)

    def settle(self) -> None:
        """Report a disagreement to every rank, once all have called or no more calls can come."""
        if not self.failed:
            reference = next(iter(self.calls.values()))
            aspects = dict.fromkeys(
                aspect for call in self.calls.values() for aspect in call.differences(reference)
            )
            calls = {rank: call.aspects() for rank, call in self.of_all(self.calls).items()}
            self._refuse(f"they differ in {', '.join(aspects)}{self.dissenters(calls)}")

    def _refuse(self, reason: str) -> None:
        reports = {
            rank: (str(call), self.works[rank].entry.site) for rank, call in self.calls.items()
        }
        self.streams.fail(self.refusal(self.of_all(reports), reason), self.sequence)

    def fail(self, error: str) -> None:
        """Fail the operation on all ranks."""
        self.failed = True
        if self.playing is not None:
            self.playing.stop()
        self.streams.emulator.unsettled.pop(self.settle, None)
        for work in self.works.values():
            work.over(error)

    def enter(self, rank: int) -> None:
        """Let a rank enter whose stream has reached the operation, once its device stream has
        too.
        """
        self.enter_with(rank, self.calls[rank], self.works[rank])

    def enter_with(self, rank: int, call: CollectiveCall, work: Work) -> None:
        """:meth:`enter` with the call of the rank and its Work."""
        gate = work.gate
        if gate is not None:
            if not gate.done:
                gate.when_done(functools.partial(self.enter, rank))
                return
            if gate.error is not None:
                work.over(gate.error)
                return
        if work.entry.started_fs < 0:
            work.entry.started_fs = self.streams.emulator.calendar.now
        if self.mismatch:
            return
        if self.plan is None:
            self.early.append(rank)
            return
        if self.playing is None:
            self.playing = self._begin(call, self.plan)
        self.playing.enter(rank, work.sources, call.op)
        work.sources = ()  # copied: what was kept of inputs that are outputs, too, can go

    def _begin(self, call: CollectiveCall, plan: Plan) -> Playing | Followers:
        """Start playing, in the corresponding groups of followers too."""
        streams, group = self.streams, self.group
        label = (group.name, self.sequence, call.name)
        if streams.alike_calls is None or self.followers is None:
            return Playing(streams.emulator, plan, label, self.leave, self.close, call.fake)
        followers = Followers(streams.alike_calls, self.followers, self.leave)
        family = streams.alike_calls.family(
            plan,
            streams.alike_calls.rank_classes.like(group.members),
            lambda members: plan_of(group, call, self.sizes_of(call), members),
        )
        together = len(self.followers) == 1
        followers.play(family, label, fake=call.fake, together=together, on_end=self.close)
        return followers

    def close(self) -> None:
        """Drop the operation after the last rank has left."""
        self.streams.open.pop(self.sequence, None)
        call, playing = self.first_call, self.playing
        if call is not None and isinstance(playing, Playing) and not self.differs:
            self.streams.note_round(call, playing)
        self.playing = None  # followers know this one: no circle is left to be collected

    def leave(self, rank: int, values: Array | None) -> None:
        """Finish the part of a rank, and advance its stream."""
        work = self.works[rank]
        work.over(deliver(work, self.calls[rank], values, len(self.group.members)))
        stream = self.streams.streams[rank]
        stream.pop(0)
        if stream:
            stream[0].enter(rank)
