"""The reference engine: plays a plan on a fabric under the SimPy clock, with or without data.

It follows :mod:`simcoll.emulator.model` and streams the plan: a step is loaded when the first lane needs it and
dropped when its last message is done, so that memory follows the steps in flight, not the length of the schedule.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from simcoll.core.schedule import OP_NAMES
from simcoll.emulator.digest import TraceHash
from simcoll.emulator.fast.turns import summary
from simcoll.emulator.messages import Lane, blocks, parts, where_stuck
from simcoll.emulator.score import add_caps, check_switches
from simcoll.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

    import simpy
    from numpy.typing import NDArray

    from simcoll.core.plan import Plan
    from simcoll.emulator.dataplane import Storage
    from simcoll.emulator.fabric import Fabric
    from simcoll.emulator.fast.turns import Summary
    from simcoll.emulator.messages import Block, Bundle, Message
    from simcoll.emulator.score import Score
    from simcoll.emulator.seats import Seats
    from simcoll.topology import Topology

__all__ = ["Observer", "Player"]

HASH_BATCH = 4096


class Observer(Protocol):
    """A callback for every transfer of a run, in the order in which steps finish."""

    def __call__(
        self,
        message: int,
        step: int,
        src: int,
        dst: int,
        channel: int,
        op: int,
        size_bytes: int,
        ready_fs: int,
        start_fs: int,
        end_fs: int,
        done_fs: int,
        /,
    ) -> None:
        """Transfer ``message`` was ready, its flow started and ended, and it was done."""


class Player:
    """Plays one plan. Make it, :meth:`start` it, run the environment, :meth:`check` it.

    Parameters
    ----------
    plan, topology
        The plan, and the machine that runs it.
    fabric
        Starts with the links of the topology, at their effective capacities.
    storage
        Buffers; ``None`` for timing only.
    observer
        Called for every transfer.
    keep
        Whether ``done_fs`` of every transfer is kept.
    seen
        The first pass over the plan, if there was one.
    score
        The same plan, topology and storage made ready before.
    seats
        Where ranks are and what caps their rates, if not as of a plan that runs alone.
    recent
        The latest messages of connections between places, shared by plans that use the same connections.
    left
        Called with every rank whose last transfer is done.

    Attributes
    ----------
    steps
        Steps of the plan that move anything.
    switched
        Whether switches multicast or reduce in it.
    finished
        SimPy event that succeeds when the last transfer is done.
    time_fs
        When the last transfer was done (the launch, if there is none).
    """

    def __init__(
        self,
        plan: Plan,
        topology: Topology,
        fabric: Fabric,
        storage: Storage | None = None,
        observer: Observer | None = None,
        *,
        keep: bool = False,
        seen: Summary | None = None,
        score: Score | None = None,
        seats: Seats | None = None,
        recent: dict[tuple[int, int, int], list[Message]] | None = None,
        left: Callable[[int], None] | None = None,
    ) -> None:
        self.plan = plan
        self.fabric = fabric
        self.finished: simpy.Event = fabric.env.event()
        self.time_fs = 0
        self.messages = 0
        self.bytes_by_op = [0] * len(OP_NAMES)
        self.hash = TraceHash()
        self.done_fs: NDArray[np.int64] | None = None
        self._observer = observer
        self._calendar = fabric.calendar
        self._depth = plan.protocol.fifo_depth
        self._summary = replace(seen or (summary(plan) if score is None else score.summary), groups=None)
        self.steps = self._summary.steps
        self.switched = self._summary.switched
        if self.switched:
            check_switches(plan, topology)
        if keep:
            self.done_fs = np.full(self._summary.messages, -1, np.int64)
        steps = self._summary.lane_steps.tolist()
        self._lanes = [Lane(*divmod(number, plan.nchannels), count) for number, count in enumerate(steps)]
        streamed = score.parts if score else parts(plan, topology, storage, seats or add_caps(plan, fabric))
        self._blocks = blocks(streamed, self._lanes)
        self._left = left
        self._busy_lanes = [0] * plan.nranks
        for lane in self._lanes:
            self._busy_lanes[lane.rank] += lane.steps_left > 0
        self._recent = {} if recent is None else recent
        self._places = (plan.ranks if seats is None else seats.endpoints).tolist()
        self._waits = plan.waits
        self._awaited = frozenset(earlier for each in self._waits.values() for earlier in each)
        self._over: set[int] = set()  # awaited messages that are done
        self._waiters: dict[int, list[Message]] = {}
        self._rows: list[tuple[int, ...]] = []
        self._wire_bytes = 0

    def start(self) -> None:
        """Let every lane enter its first step at launch."""
        begin = self.time_fs = self._calendar.now + self.plan.protocol.launch_fs
        for lane in self._lanes:
            if lane.steps_left:
                self._calendar.at(begin, self._enter, lane)
        if not self._summary.messages:
            self._calendar.at(begin, self._finish, None)

    def enter(self, rank: int) -> None:
        """Let the lanes of one rank enter their first step at launch, instead of all by :meth:`start`."""
        begin = self._calendar.now + self.plan.protocol.launch_fs
        self.time_fs = max(self.time_fs, begin)
        channels = self.plan.nchannels
        for lane in self._lanes[rank * channels : (rank + 1) * channels]:
            if lane.steps_left:
                self._calendar.at(begin, self._enter, lane)
        if not self._busy_lanes[rank] and self._left is not None:
            self._calendar.at(begin, self._left, rank)

    def _enter(self, lane: Lane) -> None:
        """Take the next step of a lane."""
        queue = lane.queue
        while not queue:
            self._load(lane)
        block = queue[0].block
        lane.entered = block
        lane.steps_left -= 1
        depth = self._depth
        while queue and queue[0].block is block:
            message = queue.popleft()
            lane.pending += 1
            if lane is message.sender:
                self._source_need_met(message)
                if depth and message.bundle is None and lane is not message.receiver:
                    self._follow(message)
            elif depth and message.bundle is None:
                if message.arrived:
                    self._consume(message)
                continue
            self._need_met(message)

    def _source_need_met(self, message: Message) -> None:
        """Set a staged source aside as soon as it surely holds the data that the step must read."""
        message.source_needs -= 1
        if not message.source_needs and message.place is not None and message.place.staged:
            message.payload = message.place.source.copy()

    def _load(self, lane: Lane) -> None:
        """Hand the messages of the next step to their lanes."""
        block = next(self._blocks, None)
        if block is None:
            raise InternalError(
                f"rank {lane.rank} channel {lane.channel} expects {lane.steps_left} more steps, but the plan has ended"
            )
        self._wire_bytes += block.wire_bytes
        for message in block.messages:
            sender, receiver = message.sender, message.receiver
            sender.queue.append(message)
            if receiver is not sender:
                receiver.queue.append(message)
                if not self._depth or message.bundle is not None:
                    message.needs = 2
        if self._waits:
            for message in block.messages:
                for earlier in self._waits.get(message.id, ()):
                    if earlier not in self._over:
                        message.needs += 1
                        message.source_needs += 1
                        self._waiters.setdefault(earlier, []).append(message)

    def _follow(self, message: Message) -> None:
        """Let a message wait until the one ``fifo_depth`` before it on its connection is consumed."""
        recent = self._recent.setdefault(self._connection(message), [])
        if len(recent) == self._depth:
            before = recent.pop(0)
            if not before.consumed:
                before.follower = partial(self._need_met, message)  # it may be of another player
                message.needs += 1
        recent.append(message)

    def _need_met(self, message: Message) -> None:
        message.needs -= 1
        if not message.needs:
            self._ready(message)

    def _connection(self, message: Message) -> tuple[int, int, int]:
        """Source and destination, as endpoints, and channel."""
        return self._places[message.sender.rank], self._places[message.receiver.rank], message.sender.channel

    def _ready(self, message: Message) -> None:
        now = message.ready_fs = self._calendar.now
        bundle = message.bundle
        if bundle is not None:
            bundle.needs -= 1
            if not bundle.needs:
                self._calendar.at(now + bundle.delay_fs, self._flow_bundle, bundle)
        elif message.sender is message.receiver:
            message.start_fs = message.end_fs = now
            self._calendar.at(now + message.post_fs, self._done, message)
        elif self._depth:
            lane = message.sender
            lane.free_fs = max(lane.free_fs, now + message.busy_fs)
            self._flow(message)
        else:
            self._calendar.at(now + message.delay_fs, self._flow, message)

    def _flow(self, message: Message) -> None:
        message.start_fs = self._calendar.now
        self.fabric.transfer(message.links, message.wire, self._flowed, message)

    def _flow_bundle(self, bundle: Bundle) -> None:
        for message in bundle.messages:
            message.start_fs = self._calendar.now
        self.fabric.transfer(bundle.links, bundle.wire, self._bundle_flowed, bundle)

    def _bundle_flowed(self, bundle: Bundle) -> None:
        now = self._calendar.now
        for message in bundle.messages:
            message.end_fs = now
        self._calendar.at(now + max(message.post_fs for message in bundle.messages), self._bundle_done, bundle)

    def _bundle_done(self, bundle: Bundle) -> None:
        for message in bundle.messages:
            self._done(message)

    def _flowed(self, message: Message) -> None:
        now = message.end_fs = self._calendar.now
        if not self._depth:
            self._calendar.at(now + message.post_fs, self._done, message)
            return
        # The sender may go on and overwrite its source: the bytes on the way are these.
        if message.place is not None and message.payload is None:
            message.payload = message.place.source.copy()
        self._calendar.at(now + message.delay_fs, self._arrived, message)
        self._leave(message.sender)

    def _arrived(self, message: Message) -> None:
        message.arrived = True
        if message.receiver.entered is message.block:
            self._consume(message)

    def _consume(self, message: Message) -> None:
        message.consumed = True
        connection = self._connection(message)
        recent = self._recent.get(connection)
        if recent is not None and all(other.consumed for other in recent):
            del self._recent[connection]
        follower = message.follower
        if follower is not None:
            message.follower = None
            follower()
        self._calendar.at(self._calendar.now + message.post_fs, self._done, message)

    def _done(self, message: Message) -> None:
        message.done_fs = self._calendar.now
        place = message.place
        if place is not None:
            place.write(place.source if message.payload is None else message.payload)
            message.payload = None
        if message.id in self._awaited:
            self._over.add(message.id)
            for waiter in self._waiters.pop(message.id, ()):
                self._source_need_met(waiter)
                self._need_met(waiter)
        sender, receiver = message.sender, message.receiver
        if sender is receiver or not self._depth or message.bundle is not None:
            self._leave(sender)
        if sender is not receiver:
            self._leave(receiver)
        block = message.block
        block.left -= 1
        if not block.left:
            self._retire(block)

    def _leave(self, lane: Lane) -> None:
        """A message of the lane's current step is finished for it."""
        lane.pending -= 1
        if lane.pending:
            return
        free = max(self._calendar.now, lane.free_fs)
        if lane.steps_left:
            self._calendar.at(free, self._enter, lane)
        elif free > self._calendar.now and self._left is not None:
            self._calendar.at(free, self._end, lane)
        else:
            self._end(lane)

    def _end(self, lane: Lane) -> None:
        """The last step of a lane is finished."""
        self._busy_lanes[lane.rank] -= 1
        if not self._busy_lanes[lane.rank] and self._left is not None:
            self._left(lane.rank)

    def _retire(self, block: Block) -> None:
        """Account for a finished step, and forget it."""
        step, messages = block.step, block.messages
        block.messages = []
        times = [(m.ready_fs, m.start_fs, m.end_fs, m.done_fs) for m in messages]
        self.messages += len(messages)
        self.time_fs = max(self.time_fs, *(when[3] for when in times))
        columns = (
            step.src_rank.tolist(),
            step.dst_rank.tolist(),
            step.channel.tolist(),
            step.op.tolist(),
            step.size_bytes.tolist(),
        )
        for message, (_, start, end, done), src, dst, _, op, size in zip(messages, times, *columns, strict=True):
            self.bytes_by_op[op] += size
            self._rows.append((message.id, src, dst, size, start, end, done))
        if len(self._rows) >= HASH_BATCH:
            self._hash_rows()
        if self.done_fs is not None:
            self.done_fs[block.first_id : block.first_id + len(messages)] = [m.done_fs for m in messages]
        if self._observer is not None:
            for message, when, src, dst, channel, op, size in zip(messages, times, *columns, strict=True):
                self._observer(message.id, step.step, src, dst, channel, op, size, *when)
        if self.messages == self._summary.messages:
            self._finish(None)

    def _finish(self, _nothing: None) -> None:
        self.finished.succeed()

    def _hash_rows(self) -> None:
        if self._rows:
            self.hash.add(list(np.array(self._rows, np.int64).T))
            self._rows.clear()

    def check(self) -> None:
        """Close the books of a run.

        Raises
        ------
        InternalError
            When a lane is stuck, or the bytes that moved are not those of the plan.
        """
        self._hash_rows()
        stuck = [lane for lane in self._lanes if lane.steps_left or lane.pending]
        if stuck or self.messages != self._summary.messages:
            listed = "\n".join(where_stuck(lane) for lane in stuck[:8])
            raise InternalError(f"{len(stuck)} lanes are stuck at {self._calendar.now} fs:\n{listed}")
        if tuple(self.bytes_by_op) != self._summary.bytes_by_op:
            raise InternalError(
                f"moved {self.bytes_by_op} bytes by {OP_NAMES}; the plan has {self._summary.bytes_by_op}"
            )

    def check_fabric(self) -> None:
        """Compare the wire bytes of a fabric that played nothing else.

        Raises
        ------
        InternalError
            When they are not those of the plan.
        """
        if self.fabric.delivered_bytes != self._wire_bytes:
            raise InternalError(
                f"links delivered {self.fabric.delivered_bytes} bytes; the plan puts {self._wire_bytes} on them"
            )
