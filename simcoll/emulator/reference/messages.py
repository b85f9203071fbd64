"""Messages of plan steps: routes and costs of a whole step at once, then one record per
transfer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcoll.core.plan import Plan, PlanStep
from simcoll.core.schedule import SWITCH_REDUCE
from simcoll.core.switches import switch_groups
from simcoll.emulator.data.dataplane import Storage
from simcoll.emulator.steps.plan_placement import Placement
from simcoll.emulator.steps.step_columns import moves_of
from simcoll.emulator.steps.timed import StepTimer
from simcoll.topology import Topology

__all__ = [
    "Bundle",
    "LaneState",
    "Message",
    "MessageBlock",
    "PreparedStep",
    "blocks",
    "prepared_steps",
    "where_stuck",
]


class LaneState:
    """A channel of a rank: its coming messages in step order, and the number unfinished in its
    current step.

    ``place`` is its endpoint of the topology; ``free_fs`` the time at which the overhead of all
    messages sent so far ends.
    """

    __slots__ = ("channel", "entered", "free_fs", "pending", "place", "queue", "rank", "steps_left")

    def __init__(self, rank: int, channel: int, steps: int, place: int) -> None:
        self.rank = rank
        self.place = place
        self.channel = channel
        self.steps_left = steps
        self.queue: deque[Message] = deque()
        self.pending = self.free_fs = 0
        self.entered: MessageBlock | None = None


class MessageBlock:
    """A step that some lane has reached: its messages and the number of unfinished ones."""

    __slots__ = ("first_id", "left", "messages", "step", "wire_bytes")

    def __init__(self, step: PlanStep, first_id: int, wire_bytes: int) -> None:
        self.step = step
        self.first_id = first_id
        self.wire_bytes = wire_bytes
        self.left = len(step)
        self.messages: list[Message] = []


class Message:
    """A transfer in flight.

    ``needs`` counts the conditions that keep the message from being ready, ``source_needs`` those
    that keep its source from being read.
    """

    __slots__ = (
        "arrived",
        "block",
        "bundle",
        "busy_fs",
        "consumed",
        "delay_fs",
        "done_fs",
        "end_fs",
        "follower",
        "id",
        "links",
        "needs",
        "payload",
        "place",
        "post_fs",
        "ready_fs",
        "receiver",
        "sender",
        "source_needs",
        "start_fs",
        "wire",
    )

    def __init__(
        self,
        block: MessageBlock,
        number: int,
        sender: LaneState,
        receiver: LaneState,
        links: tuple[int, ...],
        delay: int,
        busy: int,
        wire: int,
        post: int,
        place: Any,
    ) -> None:
        self.block = block
        self.id = number
        self.sender = sender
        self.receiver = receiver
        self.links = links
        self.delay_fs = delay
        self.busy_fs = busy
        self.wire = wire
        self.post_fs = post
        self.place = place
        self.payload: Any = None
        self.needs = self.source_needs = 1
        self.bundle: Bundle | None = None
        self.follower: Callable[[], None] | None = None
        self.arrived = self.consumed = False
        self.ready_fs = self.start_fs = self.end_fs = self.done_fs = -1


class Bundle:
    """Transfers that a switch joins into one flow (a multicast or a reduction), which starts when
    all are ready.

    ``links`` are those of all paths, without duplicates.
    """

    __slots__ = ("links", "messages", "needs", "wire")

    def __init__(self, messages: list[Message], ways_up: list[int]) -> None:
        self.messages = messages
        self.needs = len(messages)
        paths = [link for message in messages for link in message.links]
        self.links = tuple(dict.fromkeys([*paths, *ways_up]))
        self.wire = max(message.wire for message in messages)


def _ways_up(
    placement: Placement, topology: Topology, step: PlanStep, rows: list[int]
) -> list[int]:
    """The links to the switch of ranks that contribute to their own reduction: such an operand goes
    up like the others.
    """
    if step.op[rows[0]] != SWITCH_REDUCE:
        return []
    local = [row for row in rows if step.src_rank[row] == step.dst_rank[row]]
    peers = [int(rank) for rank in step.src_rank[rows] if rank != step.dst_rank[rows[0]]]
    if not local or not peers:
        return []
    end = placement.endpoints[step.src_rank[local[0]]]
    up = topology.route([end], [placement.endpoints[peers[0]]]).links[0, :1]
    if placement.shares is not None:
        up = np.concatenate([up, np.where(up >= 0, placement.shares[up], -1)])
    return [link for link in up.tolist() if link >= 0]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedStep:
    """One step of a plan with all data for its messages; it can be played repeatedly.

    ``columns`` has a row per message: sender's and receiver's lane, links, delay, busy, wire bytes,
    post, place. ``switched`` has the rows of every switch operation, and its links beyond those of
    the paths; ``wire_bytes`` counts each operation once.
    """

    step: PlanStep
    columns: tuple[tuple[Any, ...], ...]
    switched: tuple[tuple[list[int], list[int]], ...]
    wire_bytes: int


def prepared_steps(
    plan: Plan,
    topology: Topology,
    storage: Storage | None,
    placement: Placement,
    number: Callable[[int], int] = int,
) -> Iterator[PreparedStep]:
    """Stream the steps of a plan that move anything, with routes and costs.

    ``placement`` numbers the lanes; ``number`` maps a message of the plan to the number that
    determines its jitter.
    """
    timer, first_message, shape = StepTimer(plan.protocol, topology, placement), 0, None
    paths: list[tuple[int, ...]] = []
    for step in plan.steps():
        timed = timer([moves_of(plan, step)], number(first_message))[0]
        first_message += len(step)
        if timed.shape is not shape:  # a ring has the same peers in every step
            shape = timed.shape
            full = bool((shape.links >= 0).all())
            paths = [
                tuple(row) if full else tuple(l for l in row if l >= 0)
                for row in shape.links.tolist()
            ]
        columns = zip(
            shape.sender.tolist(),
            shape.receiver.tolist(),
            paths,
            np.maximum(timed.delay_fs, 0).tolist(),
            timed.busy_fs.tolist(),
            timed.wire.tolist(),
            timed.post_fs.tolist(),
            storage.places(step) if storage else [None] * len(step),
            strict=True,
        )
        groups = switch_groups(step)
        wire_bytes = int(timed.wire.sum()) - sum(
            int(timed.wire[rows].sum() - timed.wire[rows].max()) for rows in groups
        )
        switched = tuple((rows, _ways_up(placement, topology, step, rows)) for rows in groups)
        yield PreparedStep(step, tuple(columns), switched, wire_bytes)


def blocks(prepared: Iterable[PreparedStep], lanes: list[LaneState]) -> Iterator[MessageBlock]:
    """Stream the prepared steps of a plan as blocks of messages."""
    first_id = 0
    for prepared_step in prepared:
        block = MessageBlock(prepared_step.step, first_id, prepared_step.wire_bytes)
        block.messages = [
            Message(block, number, lanes[sender], lanes[receiver], *costs)
            for number, (sender, receiver, *costs) in enumerate(prepared_step.columns, first_id)
        ]
        first_id += len(prepared_step.columns)
        for rows, ways_up in prepared_step.switched:
            bundle = Bundle([block.messages[row] for row in rows], ways_up)
            for message in bundle.messages:
                message.bundle = bundle
        yield block


def where_stuck(lane: LaneState) -> str:
    """One line that states what a lane waits for."""
    place = f"  rank {lane.rank} channel {lane.channel}"
    if lane.entered is None:
        return f"{place} never entered its first step"
    for message in lane.entered.messages:
        if message.done_fs < 0 and lane in (message.sender, message.receiver):
            peer = message.receiver if lane is message.sender else message.sender
            peer_step = "no step" if peer.entered is None else f"step {peer.entered.step.step}"
            return (
                f"{place} is in step {lane.entered.step.step}, waiting for message {message.id} "
                "(rank "
                f"{message.sender.rank} -> {message.receiver.rank}, {message.needs} conditions "
                "open); "
                f"rank {peer.rank} channel {peer.channel} is in {peer_step}"
            )
    return f"{place} is in step {lane.entered.step.step}, with {lane.steps_left} steps left"
