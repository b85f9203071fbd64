"""From plan steps to messages: routes and costs of a whole step at once, then one small record per transfer."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.emulator.model import Costs, message_costs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from simcoll.emulator.dataplane import Storage
    from simcoll.plan import Plan, PlanStep
    from simcoll.topology import Topology

    Ints = NDArray[np.int64]

__all__ = ["Block", "Lane", "Message", "Outline", "blocks", "outline"]


class Lane:
    """A channel of a rank: the messages ahead of it, in step order, and how many of its current step are unfinished."""

    __slots__ = ("channel", "entered", "pending", "queue", "rank", "steps_left")

    def __init__(self, rank: int, channel: int, steps: int) -> None:
        self.rank = rank
        self.channel = channel
        self.steps_left = steps
        self.queue: deque[Message] = deque()
        self.pending = 0
        self.entered: Block | None = None


class Block:
    """A step that some lane has reached: its messages and how many of them are not done."""

    __slots__ = ("first_id", "left", "messages", "step")

    def __init__(self, step: PlanStep, first_id: int) -> None:
        self.step = step
        self.first_id = first_id
        self.left = len(step)
        self.messages: list[Message] = []


class Message:
    """A transfer in flight. ``needs`` counts the conditions that keep it from being ready."""

    __slots__ = (
        "arrived", "block", "consumed", "done_fs", "end_fs", "follower", "id", "links", "needs", "payload", "place",
        "post_fs", "pre_fs", "ready_fs", "receiver", "sender", "start_fs", "wire",
    )  # fmt: skip

    def __init__(
        self,
        block: Block,
        number: int,
        sender: Lane,
        receiver: Lane,
        links: tuple[int, ...],
        pre: int,
        wire: int,
        post: int,
        place: Any,
    ) -> None:
        self.block = block
        self.id = number
        self.sender = sender
        self.receiver = receiver
        self.links = links
        self.pre_fs = pre
        self.wire = wire
        self.post_fs = post
        self.place = place
        self.payload: Any = None
        self.needs = 1
        self.follower: Message | None = None
        self.arrived = self.consumed = False
        self.ready_fs = self.start_fs = self.end_fs = self.done_fs = -1


class Outline:
    """What a first pass over a plan tells: how many steps each lane takes part in, how many transfers and bytes there
    are.

    ``bytes_by_op`` counts payload by operation, ``wire_bytes`` what flows over links.
    """

    __slots__ = ("bytes_by_op", "lane_steps", "messages", "steps", "wire_bytes")

    def __init__(self, lanes: int) -> None:
        self.lane_steps = np.zeros(lanes, np.int64)
        self.messages = 0
        self.steps = 0
        self.bytes_by_op = [0, 0, 0]
        self.wire_bytes = 0


def outline(plan: Plan, topology: Topology) -> Outline:
    """Pass once over a plan. Nothing is kept of its steps."""
    result = Outline(plan.nranks * plan.nchannels)
    prepared = _Routed(plan, topology)
    for step in plan.steps():
        took_part = np.zeros(len(result.lane_steps), np.bool_)
        took_part[step.src_rank * plan.nchannels + step.channel] = True
        took_part[step.dst_rank * plan.nchannels + step.channel] = True
        result.lane_steps += took_part
        result.steps += 1
        result.messages += len(step)
        for op in range(3):
            result.bytes_by_op[op] += int(step.size_bytes[step.op == op].sum())
        result.wire_bytes += int(prepared(step)[0].wire_bytes.sum())
    return result


class _Routed:
    """Costs and link tuples of steps. Rings repeat their peers every step, so the routes of the last step are kept."""

    __slots__ = ("_dst", "_paths", "_routes", "_src", "plan", "topology")

    def __init__(self, plan: Plan, topology: Topology) -> None:
        self.plan = plan
        self.topology = topology
        self._src = self._dst = np.zeros(0, np.int64)
        self._routes = topology.route(self._src, self._dst)
        self._paths: list[tuple[int, ...]] = []

    def __call__(self, step: PlanStep) -> tuple[Costs, list[tuple[int, ...]]]:
        if not (np.array_equal(step.src_rank, self._src) and np.array_equal(step.dst_rank, self._dst)):
            self._src, self._dst = step.src_rank, step.dst_rank
            self._routes = self.topology.route(self.plan.ranks[self._src], self.plan.ranks[self._dst])
            rows = self._routes.links.tolist()
            full = bool((self._routes.links >= 0).all())
            self._paths = [tuple(row) if full else tuple(link for link in row if link >= 0) for row in rows]
        return message_costs(
            step.size_bytes, step.op, step.src_rank == step.dst_rank, self._routes, self.plan.protocol
        ), self._paths


def blocks(
    plan: Plan, topology: Topology, lanes: list[Lane], storage: Storage | None, cap_base: int | None
) -> Iterator[Block]:
    """The steps of a plan as blocks of messages, streamed.

    ``cap_base`` is the first of the links that cap channel rates (two per lane: out, in), if the protocol caps them.
    """
    prepared, channels, first_id = _Routed(plan, topology), plan.nchannels, 0
    for step in plan.steps():
        costs, links = prepared(step)
        senders = (step.src_rank * channels + step.channel).tolist()
        receivers = (step.dst_rank * channels + step.channel).tolist()
        if cap_base is not None:
            links = [
                (*path, cap_base + 2 * sender, cap_base + 2 * receiver + 1) if path else path
                for path, sender, receiver in zip(links, senders, receivers, strict=True)
            ]
        block = Block(step, first_id)
        places = storage.places(step) if storage else [None] * len(step)
        columns = zip(
            senders,
            receivers,
            links,
            costs.pre_fs.tolist(),
            costs.wire_bytes.tolist(),
            costs.post_fs.tolist(),
            places,
            strict=True,
        )
        block.messages = [
            Message(block, number, lanes[sender], lanes[receiver], path, pre, wire, post, place)
            for number, (sender, receiver, path, pre, wire, post, place) in enumerate(columns, first_id)
        ]
        first_id += len(step)
        yield block
