"""From plan steps to messages: routes and costs of a whole step at once, then one small record per transfer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.core.plan import switch_groups
from simcoll.core.schedule import OP_NAMES
from simcoll.emulator.model import Costs, message_costs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from simcoll.core.plan import Plan, PlanStep
    from simcoll.emulator.dataplane import Storage
    from simcoll.topology import Routes, Topology

    Ints = NDArray[np.int64]

__all__ = ["Block", "Bundle", "Lane", "Message", "Outline", "Part", "blocks", "outline", "parts"]


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
    """A transfer in flight.

    ``needs`` counts the conditions that keep it from being ready, ``source_needs`` those that keep its source from being read.
    """

    __slots__ = (
        "arrived", "block", "bundle", "consumed", "done_fs", "end_fs", "follower", "id", "links", "needs", "payload", "place",
        "post_fs", "pre_fs", "ready_fs", "receiver", "sender", "source_needs", "start_fs", "wire",
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
        self.needs = self.source_needs = 1
        self.bundle: Bundle | None = None
        self.follower: Message | None = None
        self.arrived = self.consumed = False
        self.ready_fs = self.start_fs = self.end_fs = self.done_fs = -1


class Bundle:
    """Transfers that a switch makes one flow of: a multicast, or a reduction of many sources. It starts when all are ready.

    ``links`` are those of all of its paths, each once; ``pre_fs`` is the longest of its transfers'.
    """

    __slots__ = ("links", "messages", "needs", "pre_fs", "wire")

    def __init__(self, messages: list[Message], ways_up: list[int]) -> None:
        self.messages = messages
        self.needs = len(messages)
        paths = [link for message in messages for link in message.links]
        self.links = tuple(dict.fromkeys([*paths, *ways_up]))
        self.pre_fs = max(message.pre_fs for message in messages)
        self.wire = max(message.wire for message in messages)


class Outline:
    """What a first pass over a plan tells: how many steps each lane takes part in, how many transfers and bytes there
    are.

    ``bytes_by_op`` counts payload by operation, ``wire_bytes`` what flows over links; ``switched``: some of it by switches.
    """

    __slots__ = ("bytes_by_op", "lane_steps", "messages", "steps", "switched", "wire_bytes")

    def __init__(self, lanes: int) -> None:
        self.lane_steps = np.zeros(lanes, np.int64)
        self.messages = 0
        self.steps = 0
        self.bytes_by_op = [0] * len(OP_NAMES)
        self.wire_bytes = 0
        self.switched = False


def outline(plan: Plan, topology: Topology) -> Outline:
    """Pass once over a plan. Nothing is kept of its steps."""
    result = Outline(plan.nranks * plan.nchannels)
    prepared = _Routed(plan, topology)
    for step in plan.steps():
        if not len(step):
            continue
        took_part = np.zeros(len(result.lane_steps), np.bool_)
        took_part[step.src_rank * plan.nchannels + step.channel] = True
        took_part[step.dst_rank * plan.nchannels + step.channel] = True
        result.lane_steps += took_part
        result.steps += 1
        result.messages += len(step)
        for op in range(len(OP_NAMES)):
            result.bytes_by_op[op] += int(step.size_bytes[step.op == op].sum())
        wire = prepared(step)[0].wire_bytes
        result.wire_bytes += int(wire.sum())
        for rows in switch_groups(step):
            result.switched |= bool((step.src_rank[rows] != step.dst_rank[rows]).any())
            result.wire_bytes -= int(wire[rows].sum() - wire[rows].max())
    return result


class _Routed:
    """Costs and link tuples of steps. Rings repeat their peers every step, so the routes of the last step are kept."""

    __slots__ = ("_last", "plan", "topology")

    def __init__(self, plan: Plan, topology: Topology) -> None:
        self.plan = plan
        self.topology = topology
        self._last: tuple[Ints, Ints, Routes, list[tuple[int, ...]]] | None = None

    def __call__(self, step: PlanStep, first_message: int = 0) -> tuple[Costs, list[tuple[int, ...]]]:
        src, dst = step.src_rank, step.dst_rank
        if self._last is None or not (np.array_equal(src, self._last[0]) and np.array_equal(dst, self._last[1])):
            routes = self.topology.route(self.plan.ranks[src], self.plan.ranks[dst])
            full = bool((routes.links >= 0).all())
            paths = [tuple(row) if full else tuple(l for l in row if l >= 0) for row in routes.links.tolist()]
            self._last = (src, dst, routes, paths)
        _, _, routes, paths = self._last
        costs = message_costs(
            step.size_bytes, step.op, src == dst, routes, self.plan.protocol, first_message, self.plan.operands(step)
        )
        return costs, paths


def _ways_up(plan: Plan, topology: Topology, step: PlanStep, rows: list[int]) -> list[int]:
    """The link to the switch of a rank that contributes to its own reduction: its operand goes up like all others."""
    local = [row for row in rows if step.src_rank[row] == step.dst_rank[row]]
    others = [int(rank) for rank in step.src_rank[rows] if rank != step.dst_rank[rows[0]]]
    if not local or not others:
        return []
    own = plan.ranks[step.src_rank[local[0]]]
    return [int(topology.route([own], [plan.ranks[others[0]]]).links[0, 0])]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One step of a plan with all that its messages need; it can be played many times.

    ``columns`` has a row per message: sender's and receiver's lane, links, pre, wire bytes, post, place. ``switched`` has the
    rows of every switch operation, and the links that they use beside those of their paths.
    """

    step: PlanStep
    columns: tuple[tuple[Any, ...], ...]
    switched: tuple[tuple[list[int], list[int]], ...]


def parts(plan: Plan, topology: Topology, storage: Storage | None, cap_base: int | None) -> Iterator[Part]:
    """The steps of a plan that move anything, with routes and costs, streamed.

    ``cap_base`` is the first of the links that cap channel rates (two per lane: out, in), if the protocol caps them.
    """
    prepared, channels, first_message = _Routed(plan, topology), plan.nchannels, 0
    for step in plan.steps():
        if not len(step):
            continue
        costs, links = prepared(step, first_message)
        first_message += len(step)
        senders = (step.src_rank * channels + step.channel).tolist()
        receivers = (step.dst_rank * channels + step.channel).tolist()
        if cap_base is not None:
            links = [
                (*path, cap_base + 2 * sender, cap_base + 2 * receiver + 1) if path else path
                for path, sender, receiver in zip(links, senders, receivers, strict=True)
            ]
        columns = zip(
            senders,
            receivers,
            links,
            costs.pre_fs.tolist(),
            costs.wire_bytes.tolist(),
            costs.post_fs.tolist(),
            storage.places(step) if storage else [None] * len(step),
            strict=True,
        )
        switched = tuple((rows, _ways_up(plan, topology, step, rows)) for rows in switch_groups(step))
        yield Part(step, tuple(columns), switched)


def blocks(score: Iterable[Part], lanes: list[Lane]) -> Iterator[Block]:
    """The parts of a plan as blocks of messages, streamed."""
    first_id = 0
    for part in score:
        block = Block(part.step, first_id)
        block.messages = [
            Message(block, number, lanes[sender], lanes[receiver], path, pre, wire, post, place)
            for number, (sender, receiver, path, pre, wire, post, place) in enumerate(part.columns, first_id)
        ]
        first_id += len(part.columns)
        for rows, ways_up in part.switched:
            bundle = Bundle([block.messages[row] for row in rows], ways_up)
            for message in bundle.messages:
                message.bundle = bundle
        yield block
