"""The numbers of a plan that time depends on: lanes, links and costs; equal steps are one object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simcoll.core.plan import switch_leaders
from simcoll.core.schedule import MULTICAST, OP_NAMES, SWITCH_REDUCE, SYNC, Repeat
from simcoll.core.step import in_fold_order
from simcoll.emulator.fast.joint import joint_costs, joint_links
from simcoll.emulator.model import message_costs
from simcoll.topology import Routes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from simcoll.core.plan import Plan, PlanStep
    from simcoll.core.schedule import Step
    from simcoll.topology import Topology

    Ints = NDArray[np.int64]
    Group = tuple[tuple["Moves", ...], int]
    Key = tuple[bytes, ...]

__all__ = ["Moves", "Shape", "StepTimer", "Summary", "Timed", "moves_of", "summary", "timed_steps", "turns"]

KEPT_ROWS = 1 << 21
"""Up to here the first pass over a plan is kept for the second (33 bytes a row)."""
BATCH_ROWS = 1 << 13
"""Small steps are given their routes and costs together, about so many messages at a time: each call of numpy costs microseconds."""
REMEMBERED_ROWS = 1 << 18
"""So many rows of the latest shapes are remembered, so that steps that come back need no new routes (some 80 bytes a row)."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Senders, receivers and links of a step.

    ``sender`` and ``receiver`` are lanes; ``links`` is ``[rows, hops]``, padded with -1, and ``weight`` of the same
    shape: how many flows like this one are on one such link. ``connection`` numbers connections where they are more than the pairs
    of lanes. ``leader`` has for each row that a switch does the first row of its operation, which stands for the flow of all; else -1.
    """

    sender: Ints
    receiver: Ints
    src: Ints
    dst: Ints
    links: NDArray[np.int32]
    weight: Ints
    connection: Ints | None = None
    leader: Ints | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """One step. ``delay_fs`` (see :class:`simcoll.emulator.model.Costs`) is -1 for a transfer inside a rank."""

    shape: Shape
    delay_fs: Ints
    busy_fs: Ints
    wire: Ints
    post_fs: Ints
    size: Ints
    bytes_by_op: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.size)


class Moves(NamedTuple):
    """The columns of a step that time depends on."""

    src_rank: Ints
    dst_rank: Ints
    channel: Ints
    size_bytes: Ints
    op: NDArray[np.int8]
    operands: Ints
    leader: Ints | None  # of its switch operation, a row; -1 for others

    @property
    def rows(self) -> int:
        """The number of transfers."""
        return len(self.src_rank)


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Counts from a first pass over a plan.

    ``rows`` counts transfers of steps that are given, not repeated; ``groups`` are the :func:`turns` again, if they are few;
    ``switched``: some of them between ranks are done by switches.
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


def moves_of(plan: Plan, step: PlanStep) -> Moves:
    """The columns of a step that time depends on."""
    fixed = (step.src_rank, step.dst_rank, step.channel, step.size_bytes, step.op, _operands(plan, step))
    return Moves(*fixed, _leaders(step))


def _leaders(step: Step | PlanStep) -> Ints | None:
    """Leaders of the switch operations, if there are any."""
    return switch_leaders(step) if (step.op > SYNC).any() else None


def _moves(plan: Plan, blocks: Iterable[Step | Repeat]) -> Iterator[Moves]:
    """The steps of some blocks as the plan has them: empty transfers are left out, and so are empty steps."""
    if not _even(plan):
        part = replace(plan.schedule, source=lambda: blocks)
        for bound in replace(plan, schedule=part, proof=None).steps():
            yield moves_of(plan, bound)
        return
    # Sizes without addresses: a third of the time.
    layout = plan.schedule.layout
    each = int(plan.sizes) // layout.chunks * plan.dtype.itemsize
    for given in chain.from_iterable(block.unrolled() if isinstance(block, Repeat) else (block,) for block in blocks):
        step = layout.one_address(given)
        sync = step.op == SYNC
        keep = sync if each == 0 else np.ones(len(step), np.bool_)
        if plan.schedule.known.folds is not False:
            step = in_fold_order(step, layout.size)
            sync = step.op == SYNC
        size_bytes = np.where(sync, 0, step.count * each)
        moves = Moves(step.src_rank, step.dst_rank, step.channel, size_bytes, step.op, _operands(plan, step), None)
        if not keep.any():
            continue
        if keep.all():
            yield moves._replace(leader=_leaders(step))
        else:
            src, dst, channel, size, op, operands, _ = moves
            yield Moves(src[keep], dst[keep], channel[keep], size[keep], op[keep], operands[keep], None)


def _operands(plan: Plan, step: Step | PlanStep) -> Ints:
    """:meth:`Plan.operands` as a column, which takes no memory where nothing folds."""
    return np.broadcast_to(np.asarray(plan.operands(step), np.int64), (len(step),))


def turns(plan: Plan) -> Iterator[Group]:
    """The steps of a plan in order, as groups of steps, each with its number of repeats."""
    for alike, blocks in groupby(plan.schedule.blocks(), lambda block: _alike(plan, block)):
        if alike:
            for block in blocks:
                if isinstance(block, Repeat):
                    steps = tuple(_moves(plan, block.steps))
                    if steps and block.count:
                        yield steps, block.count
        else:
            last, times = None, 0
            # The steps of a ring whose blocks have numbers of their own differ in chunks, not in time.
            for step in _moves(plan, blocks):
                if last is not None and _same(step, last):
                    times += 1
                    continue
                if last is not None:
                    yield (last,), times
                last, times = step, 1
            if last is not None:
                yield (last,), times


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
            by_switch = (step.op == MULTICAST) | (step.op == SWITCH_REDUCE)
            switched = switched or bool((by_switch & (step.src_rank != step.dst_rank)).any())
        if groups is not None:
            groups.append((group, times))
        if rows > KEPT_ROWS:
            groups = None
    return Summary(lane_steps, steps, messages, rows, tuple(moved), switched, groups)


class StepTimer:
    """Gives steps their routes and costs in batches; an unchanged step is handed out again.

    ``joint``: the transfers of a switch operation are one flow, that of its leader.
    """

    def __init__(self, plan: Plan, topology: Topology, cap_base: int | None, *, joint: bool = False) -> None:
        self.plan = plan
        self.joint = joint
        self.topology = topology
        self.cap_base = cap_base
        self.last: tuple[Moves, Timed] | None = None
        self.known: dict[Key, tuple[Routes, Shape]] = {}
        self.known_rows = 0

    def __call__(self, steps: list[Moves], first_message: int) -> list[Timed]:
        """Some steps that follow each other; ``first_message`` is the number of their first."""
        ways = self._remembered(steps)
        columns = zip(*((step.size_bytes, step.op, step.operands) for step in steps), strict=True)
        size, op, operands = (np.concatenate(column) for column in columns)
        local = np.concatenate([step.src_rank == step.dst_rank for step in steps])
        routes = _joined([routes for routes, _ in ways])
        costs = message_costs(size, op, local, routes, self.plan.protocol, first_message, operands)
        delay, first, made = np.where(local, -1, costs.delay_fs), 0, []
        for step, (_, shape) in zip(steps, ways, strict=True):
            here, first = slice(first, first + step.rows), first + step.rows
            if self.last is None or self.plan.protocol.jitter_fs or not _same(step, self.last[0]):
                fixed = (delay[here], costs.busy_fs[here], costs.wire_bytes[here], costs.post_fs[here])
                if shape.leader is not None:
                    fixed = joint_costs(shape.leader, *fixed)
                self.last = step, Timed(shape, *fixed, step.size_bytes, _bytes_by_op(step))
            made.append(self.last[1])
        return made

    def _remembered(self, steps: list[Moves]) -> list[tuple[Routes, Shape]]:
        """Routes and shape of each step, from the latest ones if they are there."""
        keys = [
            tuple(b"" if column is None else column.tobytes() for column in (*step[:3], step.leader)) for step in steps
        ]
        new = {key: step for key, step in zip(keys, steps, strict=True) if key not in self.known}
        if new:
            self.known |= zip(new, self._ways(list(new.values())), strict=True)
            self.known_rows += sum(step.rows for step in new.values())
        found = [self.known[key] for key in keys]
        while self.known_rows > REMEMBERED_ROWS and len(self.known) > 1:
            self.known_rows -= len(self.known.pop(next(iter(self.known)))[1].sender)
        return found

    def _ways(self, steps: list[Moves]) -> Iterator[tuple[Routes, Shape]]:
        """Routes and shapes, found at once."""
        ranks, channels = self.plan.ranks, self.plan.nchannels
        src, dst, channel = (
            np.concatenate(columns) for columns in list(zip(*(step[:3] for step in steps), strict=True))
        )
        routes = self.topology.route(ranks[src], ranks[dst])
        sender, receiver, links = src * channels + channel, dst * channels + channel, routes.links
        if self.cap_base is not None:
            linked = links[:, :1] >= 0 if links.shape[1] else np.zeros((len(src), 1), np.bool_)
            links = np.concatenate([np.where(linked, self._caps(src, dst, channel), -1), links], axis=1)
        first = 0
        for step in steps:
            here, first = slice(first, first + step.rows), first + step.rows
            once = np.broadcast_to(np.int64(1), links[here].shape)
            shape = Shape(sender[here], receiver[here], step.src_rank, step.dst_rank, links[here], once)
            if self.joint and step.leader is not None:
                shape = self._joint(shape, step, step.leader)
            yield Routes(routes.links[here], routes.latency_fs[here], routes.kind[here]), shape

    def _joint(self, shape: Shape, step: Moves, leader: Ints) -> Shape:
        """With the links of every switch operation at its leader."""
        # An operand in the rank that gets the reduction goes up to the switch like the others.
        own = np.flatnonzero((step.op == SWITCH_REDUCE) & (step.src_rank == step.dst_rank))
        other = np.full(len(leader), -1)
        far = np.flatnonzero((step.op == SWITCH_REDUCE) & (step.src_rank != step.dst_rank))[::-1]
        other[leader[far]] = step.src_rank[far]
        own = own[other[leader[own]] >= 0]
        ranks = self.plan.ranks
        up = self.topology.route(ranks[step.src_rank[own]], ranks[other[leader[own]]]).links[:, :1]
        links = joint_links(leader, shape.links, own, up)
        return replace(shape, links=links, weight=np.broadcast_to(np.int64(1), links.shape), leader=leader)

    def _caps(self, src: Ints, dst: Ints, channel: Ints) -> Ints:
        """The links that cap the rates of channels, and those for ranks, in the order of :func:`simcoll.emulator.score.cap_rates`."""
        protocol, channels, first, columns = self.plan.protocol, self.plan.nchannels, self.cap_base or 0, []
        if protocol.channel_rate_uBps:
            columns += [first + 2 * (src * channels + channel), first + 2 * (dst * channels + channel) + 1]
            first += 2 * self.plan.nranks * channels
        if protocol.rank_rate_uBps:
            columns += [first + 2 * src, first + 2 * dst + 1]
        return np.stack(columns, axis=1)


def _joined(routes: list[Routes]) -> Routes:
    """The routes of all messages of some steps."""
    if len(routes) == 1:
        return routes[0]
    # Costs ask for the first link only.
    links = [
        each.links[:, :1] if each.links.shape[1] else np.full((len(each.kind), 1), -1, np.int32) for each in routes
    ]
    latency, kind = [each.latency_fs for each in routes], [each.kind for each in routes]
    return Routes(np.concatenate(links), np.concatenate(latency), np.concatenate(kind))


def _same(a: Moves, b: Moves) -> bool:
    return all(
        getattr(a, name) is getattr(b, name) or np.array_equal(getattr(a, name), getattr(b, name))
        for name in Moves._fields
    )


def _batches(groups: Iterable[Group], *, unrolled: bool) -> Iterator[tuple[list[Moves], int]]:
    """Steps that are worth making at once, and their numbers of repeats; repeats turn by turn with ``unrolled``."""
    batch: list[Moves] = []
    rows = 0
    for group, times in groups:
        if times > 1 and not unrolled:
            if batch:
                yield batch, 1
                batch, rows = [], 0
            yield list(group), times
            continue
        for step in chain.from_iterable(repeat(group, times)):
            batch.append(step)
            rows += step.rows
            if rows >= BATCH_ROWS:
                yield batch, 1
                batch, rows = [], 0
    if batch:
        yield batch, 1


def timed_steps(
    plan: Plan, topology: Topology, cap_base: int | None, groups: Iterable[Group] | None = None
) -> Iterator[tuple[tuple[Timed, ...], int]]:
    """The groups of :func:`turns` with routes and costs; what comes once, step by step.

    ``groups`` are those of :func:`summary`, if it kept them. ``cap_base`` is the first of the links that cap the rates of channels
    and ranks, if the protocol caps them.
    """
    make, first = StepTimer(plan, topology, cap_base, joint=True), 0
    groups = turns(plan) if groups is None else groups
    for steps, times in _batches(groups, unrolled=plan.protocol.jitter_fs > 0):
        made = make(steps, first)
        first += times * sum(step.rows for step in steps)
        if times > 1:
            yield tuple(made), times
        else:
            yield from (((step,), 1) for step in made)
