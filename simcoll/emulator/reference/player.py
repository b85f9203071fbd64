"""The reference engine: plays a plan on a fabric under the SimPy clock, with or without data.

It follows :mod:`simcoll.emulator.model` and streams the plan: a step is loaded when the first lane
needs it and dropped when its last message is done, so memory grows with the steps in flight, not
with the length of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import simpy

from simcoll.core.plan import Plan
from simcoll.emulator.data.dataplane import Storage
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.events.pace import Pace
from simcoll.emulator.reference.fabric import Fabric
from simcoll.emulator.reference.ledger import Ledger, Observer
from simcoll.emulator.reference.messages import (
    Bundle,
    LaneState,
    Message,
    MessageBlock,
    PreparedStep,
    blocks,
    prepared_steps,
    where_stuck,
)
from simcoll.emulator.steps.plan_placement import Caps, Placement, placement_of
from simcoll.emulator.steps.run_links import check_switches
from simcoll.emulator.steps.step_columns import PlanSummary, summary
from simcoll.errors import InternalError
from simcoll.topology import Topology

__all__ = ["Player", "Surroundings", "add_caps", "links_now"]

NEVER = 2**200
"""Later than the end of any work: completion time of work that a stopped rank never finishes."""


def links_now(detours: Detours | None, flow: Message | Bundle) -> tuple[int, ...]:
    """The current links of a flow: the planned route, or a detour around dead links. A switch
    operation has no detour.
    """
    if detours is None or isinstance(flow, Bundle):
        return flow.links
    return detours.links(flow.sender.place, flow.receiver.place, flow.links)


def add_caps(plan: Plan, fabric: Fabric) -> Placement:
    """Add the links that cap the plan's rates to the fabric, if any."""
    caps = Caps(plan.protocol, plan.nranks, plan.nchannels)
    return placement_of(plan, fabric.add_links(caps.rates, caps.name) if caps.rates else 0)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a plan shares with others that run beside it, and what disturbs it.

    Attributes
    ----------
    placement
        Endpoints, lanes and rate caps of the ranks; default: those of a plan that runs alone.
    recent
        The latest messages of each connection, shared by plans that use the same connections.
    on_leave
        Called with each rank when its last transfer is done.
    pace
        Of ranks that slow down or stop; ``None``: no rank does.
    detours, number
        Routes around links that are down (``None``: messages keep their routes); message numbers
        for the jitter.
    """

    placement: Placement | None = None
    recent: dict[tuple[int, int, int], list[Message]] | None = None
    on_leave: Callable[[int], None] | None = None
    pace: Pace | None = None
    detours: Detours | None = None
    number: Callable[[int], int] = int


class Player:
    """Plays one plan: create it, :meth:`start` it, run the environment, then :meth:`check` it.

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
    plan_summary
        Result of an earlier first pass over the plan, if any.
    prepared
        The steps of the same plan for the same topology, fabric and storage, if an earlier run
        has prepared them.
    surroundings
        What the plan shares with others, and what disturbs it; default: nothing.

    Attributes
    ----------
    ledger, lanes
        Accounts of completed work; the lanes of all ranks.
    steps, messages, switched
        Steps of the plan that move anything, and their transfers; whether switches multicast or
        reduce in the plan.
    finished
        SimPy event that succeeds when the last transfer is done.
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
        plan_summary: PlanSummary | None = None,
        prepared: Sequence[PreparedStep] | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        surroundings = surroundings or Surroundings()
        placement = surroundings.placement
        self.plan = plan
        self.fabric = fabric
        self.finished: simpy.Event = fabric.env.event()
        self._calendar = fabric.calendar
        self._depth = plan.protocol.fifo_depth
        self._summary = replace(plan_summary or summary(plan), groups=None)
        self.steps, self.messages = self._summary.steps, self._summary.messages
        self.switched = self._summary.switched
        if self.switched:
            check_switches(plan, topology)
        self.ledger = Ledger(self._summary, observer, keep=keep)
        self._pace, self._detours = surroundings.pace, surroundings.detours
        steps = self._summary.lane_steps.tolist()
        places = (plan.ranks if placement is None else placement.endpoints).tolist()
        channels = plan.nchannels
        self.lanes = [
            LaneState(*divmod(number, channels), count, places[number // channels])
            for number, count in enumerate(steps)
        ]
        streamed = (
            prepared
            if prepared is not None
            else prepared_steps(
                plan,
                topology,
                storage,
                placement or add_caps(plan, fabric),
                surroundings.number,
            )
        )
        self._blocks = blocks(streamed, self.lanes)
        self._on_leave = surroundings.on_leave
        self._busy_lanes = [0] * plan.nranks
        for lane in self.lanes:
            self._busy_lanes[lane.rank] += lane.steps_left > 0
        self._recent = {} if surroundings.recent is None else surroundings.recent
        self._waits = plan.waits
        self._awaited = frozenset(
            message for earlier_messages in self._waits.values() for message in earlier_messages
        )
        self._completed: set[int] = set()  # awaited messages that are done
        self._waiters: dict[int, list[Message]] = {}
        self._wire_bytes = 0

    def start(self) -> None:
        """Let every lane enter its first step at launch."""
        begin = self.ledger.time_fs = self._calendar.now + self.plan.protocol.launch_fs
        for lane in self.lanes:
            if lane.steps_left:
                self._calendar.at(begin, self._enter, lane)
        if not self._summary.messages:
            self._calendar.at(begin, self._finish, None)

    def enter(self, rank: int) -> None:
        """Let the lanes of one rank enter their first step at launch; the alternative to
        :meth:`start`.
        """
        launch_fs = self.plan.protocol.launch_fs
        begin = self._calendar.now + launch_fs
        if launch_fs or not self._busy_lanes[rank]:  # otherwise its messages set the time
            self.ledger.time_fs = max(self.ledger.time_fs, begin)
        channels = self.plan.nchannels
        for lane in self.lanes[rank * channels : (rank + 1) * channels]:
            if lane.steps_left:
                self._calendar.at(begin, self._enter, lane)
        if not self._busy_lanes[rank] and self._on_leave is not None:
            self._calendar.at(begin, self._on_leave, rank)

    def _enter(self, lane: LaneState) -> None:
        """Enter the next step of a lane."""
        if self._pace is not None and self._at_rest(lane):
            return
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
                self._meet_source_need(message)
                if depth and message.bundle is None and lane is not message.receiver:
                    self._follow(message)
            elif depth and message.bundle is None:
                if message.arrived:
                    self._consume(message)
                continue
            self._meet_need(message)

    def _meet_source_need(self, message: Message) -> None:
        """Set a staged source aside as soon as it is certain to hold the data that the step must
        read.
        """
        message.source_needs -= 1
        if not message.source_needs and message.place is not None and message.place.staged:
            message.payload = message.place.source.copy()

    def _load(self, lane: LaneState) -> None:
        """Hand out the messages of the next step to their lanes."""
        block = next(self._blocks, None)
        if block is None:
            raise InternalError(
                f"rank {lane.rank} channel {lane.channel} expects {lane.steps_left} more steps, "
                "but the plan has ended"
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
                    if earlier not in self._completed:
                        message.needs += 1
                        message.source_needs += 1
                        self._waiters.setdefault(earlier, []).append(message)

    def _follow(self, message: Message) -> None:
        """Make a message wait until the message ``fifo_depth`` before it on its connection is
        consumed.
        """
        recent = self._recent.setdefault(self._connection(message), [])
        if len(recent) == self._depth:
            predecessor = recent.pop(0)
            if not predecessor.consumed:
                # May belong to another player.
                predecessor.follower = partial(self._meet_need, message)
                message.needs += 1
        recent.append(message)

    def _meet_need(self, message: Message) -> None:
        message.needs -= 1
        if not message.needs:
            self._ready(message)

    def _connection(self, message: Message) -> tuple[int, int, int]:
        """Source and destination, as endpoints, and channel."""
        return message.sender.place, message.receiver.place, message.sender.channel

    def _work(
        self,
        lane: LaneState,
        work_fs: int,
        action: Callable[[Any], None],
        argument: Any,
        more_fs: int = 0,
    ) -> None:
        """Call ``action(argument)`` after a rank's work and a further delay; never, if the rank
        stops before.
        """
        now_fs = self._calendar.now
        end = now_fs + work_fs if self._pace is None else self._pace.end(lane.rank, now_fs, work_fs)
        if end is not None:
            self._calendar.at(end + more_fs, action, argument)

    def _at_rest(self, lane: LaneState) -> bool:
        return self._pace is not None and self._pace.at_rest(lane.rank, self._calendar.now)

    def _ready(self, message: Message) -> None:
        if self._pace is not None and self._at_rest(message.sender):
            return
        now_fs = message.ready_fs = self._calendar.now
        bundle = message.bundle
        if bundle is not None:
            bundle.needs -= 1
            if not bundle.needs:
                ends = [
                    self._work_end(m.sender, m.busy_fs) + m.delay_fs - m.busy_fs
                    for m in bundle.messages
                ]
                self._at(max(ends), self._flow_bundle, bundle)
        elif message.sender is message.receiver:
            message.start_fs = message.end_fs = now_fs
            self._work(message.receiver, message.post_fs, self._done, message)
        elif self._depth:
            lane = message.sender
            busy = (
                now_fs + message.busy_fs
                if self._pace is None
                else self._work_end(lane, message.busy_fs)
            )
            lane.free_fs = max(lane.free_fs, busy)
            self._flow(message)
        else:
            further_fs = message.delay_fs - message.busy_fs
            self._work(message.sender, message.busy_fs, self._flow, message, further_fs)

    def _work_end(self, lane: LaneState, work_fs: int) -> int:
        """End of work that a rank begins now."""
        now_fs = self._calendar.now
        end = now_fs + work_fs if self._pace is None else self._pace.end(lane.rank, now_fs, work_fs)
        return NEVER if end is None else end

    def _at(self, time_fs: int, action: Callable[[Any], None], argument: Any) -> None:
        if time_fs < NEVER:
            self._calendar.at(time_fs, action, argument)

    def _flow(self, message: Message) -> None:
        message.start_fs = self._calendar.now
        links = message.links if self._detours is None else links_now(self._detours, message)
        self.fabric.transfer(links, message.wire, self._end_flow, message)

    def _flow_bundle(self, bundle: Bundle) -> None:
        for message in bundle.messages:
            message.start_fs = self._calendar.now
        self.fabric.transfer(bundle.links, bundle.wire, self._end_bundle_flow, bundle)

    def _end_bundle_flow(self, bundle: Bundle) -> None:
        now_fs = self._calendar.now
        for message in bundle.messages:
            message.end_fs = now_fs
        self._at(
            max(self._work_end(m.receiver, m.post_fs) for m in bundle.messages),
            self._bundle_done,
            bundle,
        )

    def _bundle_done(self, bundle: Bundle) -> None:
        for message in bundle.messages:
            self._done(message)

    def _end_flow(self, message: Message) -> None:
        now_fs = message.end_fs = self._calendar.now
        if not self._depth:
            self._work(message.receiver, message.post_fs, self._done, message)
            return
        # The sender may now overwrite its source, so the bytes in flight are copied here.
        if message.place is not None and message.payload is None:
            message.payload = message.place.source.copy()
        self._calendar.at(now_fs + message.delay_fs, self._arrive, message)
        self._leave(message.sender)

    def _arrive(self, message: Message) -> None:
        message.arrived = True
        if message.receiver.entered is message.block and not self._at_rest(message.receiver):
            self._consume(message)

    def _consume(self, message: Message) -> None:
        message.consumed = True
        connection = self._connection(message)
        recent = self._recent.get(connection)
        if recent is not None and all(predecessor.consumed for predecessor in recent):
            del self._recent[connection]
        follower = message.follower
        if follower is not None:
            message.follower = None
            follower()
        self._work(message.receiver, message.post_fs, self._done, message)

    def _done(self, message: Message) -> None:
        message.done_fs = self._calendar.now
        place = message.place
        if place is not None:
            place.write(place.source if message.payload is None else message.payload)
            message.payload = None
        if message.id in self._awaited:
            self._completed.add(message.id)
            for waiter in self._waiters.pop(message.id, ()):
                self._meet_source_need(waiter)
                self._meet_need(waiter)
        sender, receiver = message.sender, message.receiver
        if sender is receiver or not self._depth or message.bundle is not None:
            self._leave(sender)
        if sender is not receiver:
            self._leave(receiver)
        block = message.block
        block.left -= 1
        if not block.left:
            self._retire(block)

    def _leave(self, lane: LaneState) -> None:
        """Note that a message of the lane's current step is finished for the lane."""
        lane.pending -= 1
        if lane.pending:
            return
        free = max(self._calendar.now, lane.free_fs)
        if lane.steps_left:
            self._at(free, self._enter, lane)
        elif free > self._calendar.now and self._on_leave is not None:
            self._at(free, self._end, lane)
        else:
            self._end(lane)

    def _end(self, lane: LaneState) -> None:
        """Note that the last step of a lane is finished."""
        self._busy_lanes[lane.rank] -= 1
        if not self._busy_lanes[lane.rank] and self._on_leave is not None:
            self._on_leave(lane.rank)

    def _retire(self, block: MessageBlock) -> None:
        """Account for a finished step, and drop it."""
        self.ledger.enter(block)
        if self.ledger.complete:
            self._finish(None)

    def _finish(self, _nothing: None) -> None:
        self.finished.succeed()

    def check(self) -> None:
        """Close the accounts of a run.

        Raises
        ------
        InternalError
            When a lane is stuck, or the bytes moved are not those of the plan.
        """
        stuck = [lane for lane in self.lanes if lane.steps_left or lane.pending]
        if stuck or not self.ledger.complete:
            listed = "\n".join(where_stuck(lane) for lane in stuck[:8])
            raise InternalError(
                f"{len(stuck)} lanes are stuck at {self._calendar.now} fs:\n{listed}"
            )
        self.ledger.close()

    def end_early(self) -> list[int]:
        """Close the accounts of a run that ends now; return the unfinished ranks.

        Raises
        ------
        InternalError
            When the bytes moved and the bytes dropped do not add up to the plan.
        """
        lanes = self.lanes
        entered = [lane.entered for lane in lanes if lane.entered is not None]
        reached = dict.fromkeys(
            [*entered, *(message.block for lane in lanes for message in lane.queue)]
        )
        self.ledger.end_early(
            [block for block in reached if block.left], (block.step for block in self._blocks)
        )
        self.ledger.close()
        return sorted({lane.rank for lane in lanes if lane.steps_left or lane.pending})

    def check_fabric(self) -> None:
        """Compare the wire bytes of a fabric that played nothing but this plan.

        Raises
        ------
        InternalError
            When they are not the plan's.
        """
        if self.fabric.delivered_bytes != self._wire_bytes:
            raise InternalError(
                f"links delivered {self.fabric.delivered_bytes} bytes; the plan puts "
                f"{self._wire_bytes} on them"
            )
