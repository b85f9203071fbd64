"""What time depends on in a plan: lanes, links and costs of its transfers, step by step, equal steps given once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simcoll.emulator.model import message_costs
from simcoll.plan import lowered
from simcoll.schedule import MULTICAST, OP_NAMES, SWITCH_REDUCE, SYNC, Repeat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from simcoll.plan import Plan
    from simcoll.schedule import Step
    from simcoll.topology import Routes, Topology

    Ints = NDArray[np.int64]
    Group = tuple[tuple["Moves", ...], int]

__all__ = ["Moves", "Shape", "Summary", "Timed", "summary", "timed_steps", "turns"]

KEPT_ROWS = 1 << 21
"""Up to here the first pass over a plan is kept for the second (33 bytes a row)."""
REMEMBERED_ROWS = 1 << 18
"""So many rows of the latest shapes are remembered, so that steps that come back need no new routes (some 80 bytes a row)."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Who sends to whom over which links.

    ``sender`` and ``receiver`` are lanes; ``links`` is ``[rows, hops]``, padded with -1, and ``weight`` of the same
    shape: how many flows like this one are on one such link.
    """

    sender: Ints
    receiver: Ints
    src: Ints
    dst: Ints
    links: NDArray[np.int32]
    weight: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """One step. ``pre_fs`` is -1 for a transfer inside a rank."""

    shape: Shape
    pre_fs: Ints
    wire: Ints
    post_fs: Ints
    size: Ints
    bytes_by_op: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.size)


class Moves(NamedTuple):
    """What time depends on in a step of a plan."""

    src_rank: Ints
    dst_rank: Ints
    channel: Ints
    size_bytes: Ints
    op: NDArray[np.int8]

    @property
    def rows(self) -> int:
        """How many transfers there are."""
        return len(self.src_rank)


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """What a first pass over a plan tells.

    ``rows`` counts transfers of steps that are given, not repeated; ``groups`` are the :func:`turns` again, if they are few.
    """

    lane_steps: Ints
    steps: int
    messages: int
    rows: int
    bytes_by_op: tuple[int, ...]
    switched: bool
    groups: list[Group] | None


def _even(plan: Plan) -> bool:
    """Whether all chunks have one size."""
    return isinstance(plan.sizes, int) and plan.sizes % plan.schedule.layout.chunks == 0


def _alike(plan: Plan, block: Step | Repeat) -> bool:
    """Whether all turns of a repeat take the same time: equal chunks, and no transfer that an alias can make vanish."""
    return (
        isinstance(block, Repeat)
        and _even(plan)
        and not any((step.src_rank == step.dst_rank).any() for step in block.steps)
    )


def _moves(plan: Plan, blocks: Iterable[Step | Repeat]) -> Iterator[Moves]:
    """The steps of some blocks as the plan has them: empty transfers are left out, and so are empty steps."""
    schedule = replace(plan.schedule, source=lambda: blocks)
    if not _even(plan):
        for bound in replace(plan, schedule=schedule).steps():
            yield Moves(bound.src_rank, bound.dst_rank, bound.channel, bound.size_bytes, bound.op)
        return
    # Sizes without addresses: a third of the time.
    each = int(plan.sizes) // schedule.layout.chunks * plan.dtype.itemsize
    for _, step in lowered(schedule):
        sync = step.op == SYNC
        keep = sync if each == 0 else np.ones(len(step), np.bool_)
        moves = Moves(step.src_rank, step.dst_rank, step.channel, np.where(sync, 0, step.count * each), step.op)
        if keep.any():
            yield moves if keep.all() else Moves(*(column[keep] for column in moves))


def turns(plan: Plan) -> Iterator[Group]:
    """The steps of a plan as groups of steps and how often each group comes, one after the other."""
    for alike, blocks in groupby(plan.schedule.blocks(), lambda block: _alike(plan, block)):
        if alike:
            for block in blocks:
                if isinstance(block, Repeat):
                    steps = tuple(_moves(plan, block.steps))
                    if steps and block.count:
                        yield steps, block.count
        else:
            for step in _moves(plan, blocks):
                yield (step,), 1


def _bytes_by_op(step: Moves) -> tuple[int, ...]:
    first = int(step.op[0])
    if (step.op == first).all():
        whole = int(step.size_bytes.sum())
        return tuple(whole if op == first else 0 for op in range(len(OP_NAMES)))
    return tuple(int(step.size_bytes[step.op == op].sum()) for op in range(len(OP_NAMES)))


def summary(plan: Plan) -> Summary:
    """Pass once over a plan."""
    groups: list[Group] | None = []
    lane_steps = np.zeros(plan.nranks * plan.nchannels, np.int64)
    steps = messages = rows = 0
    moved = [0] * len(OP_NAMES)
    switched = False
    for group, times in turns(plan):
        for step in group:
            part = np.zeros(len(lane_steps), np.bool_)
            part[step.src_rank * plan.nchannels + step.channel] = True
            part[step.dst_rank * plan.nchannels + step.channel] = True
            lane_steps += part * times
            steps += times
            rows += step.rows
            messages += step.rows * times
            moved = [sum_ + times * more for sum_, more in zip(moved, _bytes_by_op(step), strict=True)]
            switched = switched or bool(((step.op == MULTICAST) | (step.op == SWITCH_REDUCE)).any())
        if groups is not None:
            groups.append((group, times))
        if rows > KEPT_ROWS:
            groups = None
    return Summary(lane_steps, steps, messages, rows, tuple(moved), switched, groups)


class _Maker:
    """Makes timed steps, and hands out the last one again where nothing has changed."""

    def __init__(self, plan: Plan, topology: Topology, cap_base: int | None) -> None:
        self.plan = plan
        self.topology = topology
        self.cap_base = cap_base
        self.step: Moves | None = None
        self.timed: Timed | None = None
        self.known: dict[tuple[bytes, ...], tuple[Routes, Shape]] = {}
        self.known_rows = 0

    def __call__(self, step: Moves, first_message: int) -> Timed:
        last, self.step = self.step, step
        names = ("src_rank", "dst_rank", "channel", "size_bytes", "op")
        alike = last is not None and all(_equal(getattr(step, name), getattr(last, name)) for name in names)
        if alike and self.timed is not None and not self.plan.protocol.jitter_fs:
            return self.timed
        local = step.src_rank == step.dst_rank
        routes, shape = self._remembered(step)
        costs = message_costs(step.size_bytes, step.op, local, routes, self.plan.protocol, first_message)
        pre = np.where(local, -1, costs.pre_fs)
        self.timed = Timed(shape, pre, costs.wire_bytes, costs.post_fs, step.size_bytes, _bytes_by_op(step))
        return self.timed

    def _remembered(self, step: Moves) -> tuple[Routes, Shape]:
        """Routes and shape of a step, from the latest ones if they are there."""
        key = (step.src_rank.tobytes(), step.dst_rank.tobytes(), step.channel.tobytes())
        found = self.known.get(key)
        if found is None:
            routes = self.topology.route(self.plan.ranks[step.src_rank], self.plan.ranks[step.dst_rank])
            found = self.known[key] = routes, self._shape(step, routes)
            self.known_rows += step.rows
            while self.known_rows > REMEMBERED_ROWS and len(self.known) > 1:
                oldest = next(iter(self.known))
                self.known_rows -= len(self.known.pop(oldest)[1].sender)
        return found

    def _shape(self, step: Moves, routes: Routes) -> Shape:
        sender = step.src_rank * self.plan.nchannels + step.channel
        receiver = step.dst_rank * self.plan.nchannels + step.channel
        links = routes.links
        if self.cap_base is not None:
            linked = links[:, :1] >= 0 if links.shape[1] else np.zeros((step.rows, 1), np.bool_)
            caps = np.stack([self.cap_base + 2 * sender, self.cap_base + 2 * receiver + 1], axis=1)
            links = np.concatenate([np.where(linked, caps, -1), links], axis=1)
        once = np.broadcast_to(np.int64(1), links.shape)
        return Shape(sender, receiver, step.src_rank, step.dst_rank, links, once)


def _equal(a: NDArray[np.integer[Any]], b: NDArray[np.integer[Any]]) -> bool:
    return a is b or np.array_equal(a, b)


def timed_steps(
    plan: Plan, topology: Topology, cap_base: int | None, groups: Iterable[Group] | None = None
) -> Iterator[tuple[tuple[Timed, ...], int]]:
    """The groups of :func:`turns` with routes and costs.

    ``groups`` are those of :func:`summary`, if it kept them. ``cap_base`` is the first of the links that cap channel rates (two
    per lane: out, in), if the protocol caps them.
    """
    make, first = _Maker(plan, topology, cap_base), 0
    for group, times in turns(plan) if groups is None else groups:
        rows = sum(step.rows for step in group)
        if plan.protocol.jitter_fs:
            for _ in range(times):
                for step in group:
                    yield (make(step, first),), 1
                    first += step.rows
            continue
        yield tuple(make(step, first) for step in group), times
        first += times * rows
