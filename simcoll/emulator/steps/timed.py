"""Timed steps: the lanes, links and costs of a plan; equal steps share one object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, repeat
from typing import Any

import numpy as np

from simcoll.arrays import Array, Ints, Shorts
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import SWITCH_REDUCE
from simcoll.core.transit import Transits, transits_of
from simcoll.emulator.model import message_costs
from simcoll.emulator.steps.joint import RowCosts, joint_costs, joint_links
from simcoll.emulator.steps.plan_placement import Placement
from simcoll.emulator.steps.roles import MOVES, RECORDS, WAITS
from simcoll.emulator.steps.step_columns import Group, Moves, bytes_by_op, same_moves, turns
from simcoll.topology import Routes, Topology
from simcoll.topology.chosen_paths import chosen_routes

Key = tuple[bytes, ...]

__all__ = [
    "REMEMBERED_ROWS",
    "Key",
    "StepShape",
    "StepStream",
    "StepTimer",
    "Steps",
    "Timed",
    "batches",
    "content_key",
    "ends_key",
    "is_too_long",
    "joined_moves",
    "joined_routes",
    "timed_steps",
]

BATCH_ROWS = 1 << 13
"""Number of messages of small steps that are routed and costed together: each numpy call costs
microseconds (double_tree of 1,024 ranks in 8 pieces: 154 ms with 128, 126 with 1,024, 121 with
8,192, 117 with 65,536).
"""
ROUTED_ROWS = 1 << 16
"""Number of messages of a large step that are routed together (two_shot of 512 ranks: 1.51 s with
4,096, 1.43 with 65,536, 1.69 with 262,144).
"""
DIGESTED_BYTES = 1 << 16
"""Bytes of a column above which its digest stands for it in a key: the columns of two steps with
524,288 messages would take 85 MB, and a digest three times as long as Python's hash.
"""
REMEMBERED_ROWS = 1 << 18
"""Number of rows of recent steps and shapes kept for steps that recur (some 130 bytes a row)."""
MOST_COMPARED_ROWS = 1 << 19
"""Number of rows of a step up to which it is compared with others (bruck, the all_to_all of 1,024
ranks: of eleven steps of local copies, the ten with 524,288 are equal).
"""


@dataclass(frozen=True, slots=True, eq=False)
class StepShape:
    """Senders, receivers and links of a step.

    ``sender`` and ``receiver`` are lanes; ``links`` is ``[rows, hops]``, padded with -1, and
    ``weight``, of the same shape, is the number of such flows on one such link. ``connection``
    numbers connections if lane pairs do not identify them. ``leader`` is, for each row of a switch
    operation, the operation's first row, which carries the joint flow; else -1. ``linked`` lists
    the rows of ``links``, in order, if the other rows have no links.
    """

    sender: Ints
    receiver: Ints
    src: Ints
    dst: Ints
    links: Shorts
    weight: Ints
    connection: Ints | None = None
    leader: Ints | None = None
    linked: Ints | None = None

    def links_of(self, rows: Ints) -> Shorts:
        """The links of some rows, padded with -1."""
        if self.linked is None:
            return self.links[rows]
        place = np.minimum(np.searchsorted(self.linked, rows), len(self.linked) - 1)
        return np.where((self.linked[place] == rows)[:, None], self.links[place], np.int32(-1))


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """One step with its costs. ``delay_fs`` (see :class:`simcoll.emulator.model.Costs`) is -1 for a
    transfer within a rank.

    ``depth`` is that of the FIFOs, 0 for rendezvous. ``role`` is ``MOVES`` for transfers and work;
    :mod:`simcoll.emulator.fast.state` lists the further roles in programs.
    """

    shape: StepShape
    delay_fs: Ints
    busy_fs: Ints
    wire: Ints
    post_fs: Ints
    size: Ints
    bytes_by_op: tuple[int, ...]
    depth: int = 0
    role: int = MOVES

    def __len__(self) -> int:
        return len(self.size)

    @property
    def uses_connections(self) -> bool:
        """Whether its rows use connections: those of a FIFO, or records and waits."""
        return self.depth > 0 or self.role in {RECORDS, WAITS}


Steps = tuple[tuple[Timed, ...], int]


@dataclass(frozen=True, slots=True, eq=False)
class StepStream:
    """Groups of steps with their repetitions, in order.

    A training step has a hundred thousand places, but a few hundred different groups: what depends
    on the groups alone is computed once for each.

    Attributes
    ----------
    groups
        The distinct groups, by first appearance.
    order
        The number of the group at each place.
    """

    groups: tuple[Steps, ...]
    order: Ints

    def __iter__(self) -> Iterator[Steps]:
        return map(self.groups.__getitem__, self.order.tolist())

    def step_times(self) -> dict[Timed, int]:
        """How often each step comes in all, by first appearance."""
        places = np.bincount(self.order, minlength=len(self.groups)).tolist()
        total: dict[Timed, int] = {}
        for (group, times), count in zip(self.groups, places, strict=True):
            for step in group:
                total[step] = total.get(step, 0) + times * count
        return total


class StepTimer:
    """Assigns routes and costs to steps in batches; an unchanged step yields the same object again.

    ``placement`` positions ranks and channels. ``joint``: the transfers of a switch operation are
    one flow, that of its leader; ``sparse``: its other rows have no row of links.
    """

    def __init__(
        self,
        protocol: Protocol,
        topology: Topology,
        placement: Placement,
        *,
        joint: bool = False,
        sparse: bool = False,
    ) -> None:
        self.protocol = protocol
        self.joint = joint
        self.sparse = sparse
        self.link_kind: Any = np.int32
        self.topology = topology
        self.placement = placement
        self.last: tuple[Moves, Timed] | None = None
        self.routed: dict[Key, tuple[Routes, StepShape]] = {}
        self.routed_rows = 0
        self.timed: dict[int, tuple[Moves, Timed]] = {}
        self.timed_rows = 0

    def __call__(self, steps: list[Moves], first_message: int) -> list[Timed]:
        """Time consecutive steps; ``first_message`` is the number of their first message."""
        if self.protocol.jitter_fs:
            return self._time(steps, first_message)
        new = {id(step): step for step in steps if id(step) not in self.timed}
        if new:
            fresh = self._time(list(new.values()), first_message)
            self.timed |= {
                name: (step, timed) for (name, step), timed in zip(new.items(), fresh, strict=True)
            }
            self.timed_rows += sum(step.rows for step in new.values())
        timed = [self.timed[id(step)][1] for step in steps]
        while self.timed_rows > REMEMBERED_ROWS and len(self.timed) > 1:
            self.timed_rows -= self.timed.pop(next(iter(self.timed)))[0].rows
        return timed

    def _time(self, steps: list[Moves], first_message: int) -> list[Timed]:
        """The steps with their costs."""
        routed = self._recent(steps)
        columns = zip(*((step.size_bytes, step.op, step.operands) for step in steps), strict=True)
        size, op, operands = (np.concatenate(column) for column in columns)
        local = np.concatenate([step.src_rank == step.dst_rank for step in steps])
        routes = joined_routes([routes for routes, _ in routed])
        costs = message_costs(size, op, local, routes, self.protocol, first_message, operands)
        delay, begin, timed = np.where(local, -1, costs.delay_fs), 0, []
        for step, (_, shape) in zip(steps, routed, strict=True):
            rows, begin = slice(begin, begin + step.rows), begin + step.rows
            if self.last is None or self.protocol.jitter_fs or not same_moves(step, self.last[0]):
                fixed = RowCosts(
                    delay[rows],
                    costs.busy_fs[rows],
                    costs.wire_bytes[rows],
                    costs.post_fs[rows],
                )
                if shape.leader is not None:
                    fixed = joint_costs(shape.leader, fixed)
                self.last = (
                    step,
                    Timed(
                        shape, *fixed, step.size_bytes, bytes_by_op(step), self.protocol.fifo_depth
                    ),
                )
            timed.append(self.last[1])
        return timed

    def _recent(self, steps: list[Moves]) -> list[tuple[Routes, StepShape]]:
        """Routes and shape of each step, from the recent ones if possible."""
        if is_too_long(steps):
            return list(self._routes(steps))
        keys = [ends_key(step) for step in steps]
        new = {key: step for key, step in zip(keys, steps, strict=True) if key not in self.routed}
        if new:
            self.routed |= zip(new, self._routes(list(new.values())), strict=True)
            self.routed_rows += sum(step.rows for step in new.values())
        routed = [self.routed[key] for key in keys]
        while self.routed_rows > REMEMBERED_ROWS and len(self.routed) > 1:
            self.routed_rows -= len(self.routed.pop(next(iter(self.routed)))[1].sender)
        return routed

    def _routes(self, steps: list[Moves]) -> Iterator[tuple[Routes, StepShape]]:
        """Routes and shapes of all steps, computed together."""
        placement = self.placement
        src, dst, channel = (
            columns[0] if len(steps) == 1 else np.concatenate(columns)
            for columns in list(zip(*(step[:3] for step in steps), strict=True))
        )
        paths = transits_of([(step.rows, step.paths) for step in steps])
        routes, links = self._route(src, dst, channel, paths)
        sender, receiver = placement.lane(src, channel), placement.lane(dst, channel)
        connection = placement.connection(sender, receiver)
        begin = 0
        for step in steps:
            rows, begin = slice(begin, begin + step.rows), begin + step.rows
            ones = np.broadcast_to(np.int64(1), links[rows].shape)
            shape = StepShape(
                sender[rows], receiver[rows], step.src_rank, step.dst_rank, links[rows], ones
            )
            if connection is not None:
                shape = replace(shape, connection=connection[rows])
            if self.joint and step.leader is not None:
                shape = self._joint(shape, step, step.leader)
            yield Routes(routes.links[rows], routes.latency_fs[rows], routes.kind[rows]), shape

    def routes_of(self, src: Ints, dst: Ints, paths: Transits | None) -> Routes:
        """The routes of messages between ranks, over the paths that their schedule chooses."""
        ends = self.placement.endpoints[src], self.placement.endpoints[dst]
        return chosen_routes(self.topology, *ends, paths)

    def _route(
        self, src: Ints, dst: Ints, channel: Ints, paths: Transits | None
    ) -> tuple[Routes, Shorts]:
        """Routes with their first link, and all links, of messages; in blocks, which saves memory
        and time.
        """
        placement, routes, links = self.placement, [], np.zeros((len(src), 0), self.link_kind)
        for begin in range(0, len(src), ROUTED_ROWS):
            rows = slice(begin, begin + ROUTED_ROWS)
            a, b = src[rows], dst[rows]
            route = self.routes_of(a, b, None if paths is None else paths.rows(rows))
            crossed = placement.links(a, b, channel[rows], route.links)
            if (a == b).all():
                crossed = crossed[:, :0]  # local transfers cross no links
            if crossed.shape[1] > links.shape[1]:  # in the first block, and rarely later
                links = np.pad(
                    links, ((0, 0), (0, crossed.shape[1] - links.shape[1])), constant_values=-1
                )
            links[rows, : crossed.shape[1]] = crossed
            routes.append(replace(route, links=route.links[:, :1].copy()))
        return joined_routes(routes), links

    def _joint(self, shape: StepShape, step: Moves, leader: Ints) -> StepShape:
        """The shape with the links of every switch operation at its leader."""
        # An operand on the rank that receives the reduction goes up to the switch like the others.
        contributors = np.flatnonzero((step.op == SWITCH_REDUCE) & (step.src_rank == step.dst_rank))
        peer = np.full(len(leader), -1)
        far = np.flatnonzero((step.op == SWITCH_REDUCE) & (step.src_rank != step.dst_rank))[::-1]
        peer[leader[far]] = step.src_rank[far]
        contributors = contributors[peer[leader[contributors]] >= 0]
        ranks = self.placement.endpoints
        up = self.topology.route(
            ranks[step.src_rank[contributors]], ranks[peer[leader[contributors]]]
        ).links[:, :1]
        shares = self.placement.shares
        if shares is not None:
            up = np.concatenate([up, np.where(up >= 0, shares[up], -1)], axis=1)
        linked = (
            np.flatnonzero((leader < 0) | (leader == np.arange(len(leader))))
            if self.sparse
            else None
        )
        links = joint_links(leader, shape.links, contributors, up, linked)
        return replace(
            shape,
            links=links,
            weight=np.broadcast_to(np.int64(1), links.shape),
            leader=leader,
            linked=linked,
        )


def is_too_long(steps: Sequence[Moves]) -> bool:
    """Whether there is one step, of too many messages to be compared with later ones."""
    return len(steps) == 1 and steps[0].rows > MOST_COMPARED_ROWS


def ends_key(step: Moves) -> Key:
    """What determines the routes and the shape of a step."""
    columns = *step[:3], step.leader
    paths = b"" if step.paths is None else step.paths.key
    return *(b"" if column is None else content_key(column) for column in columns), paths


def content_key(column: Array) -> bytes:
    """The bytes of a column, or where these are many their digest."""
    if column.nbytes <= DIGESTED_BYTES:
        return column.tobytes()
    return sha256(np.ascontiguousarray(column).data).digest()


def joined_moves(steps: Sequence[Moves]) -> Moves:
    """The transfers of several steps, without their switch operations."""
    columns: Any = zip(*(step[:-2] for step in steps), strict=True)  # no leaders and paths
    paths = transits_of([(step.rows, step.paths) for step in steps])
    return Moves._make([*map(np.concatenate, columns), None, paths])


def joined_routes(routes: list[Routes]) -> Routes:
    """The routes of all messages of some steps, with only the first link, which suffices for
    costs.
    """
    if len(routes) == 1:
        return routes[0]
    links = [
        part.links[:, :1] if part.links.shape[1] else np.full((len(part.kind), 1), -1, np.int32)
        for part in routes
    ]
    latency, kind = [part.latency_fs for part in routes], [part.kind for part in routes]
    return Routes(np.concatenate(links), np.concatenate(latency), np.concatenate(kind))


def batches(groups: Iterable[Group], *, unrolled: bool) -> Iterator[tuple[list[Moves], int]]:
    """Steps grouped for joint processing, with their repetitions; repeats iteration by iteration
    with ``unrolled``.
    """
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
            if batch and step.rows > REMEMBERED_ROWS:  # alone, it may have narrower links
                yield batch, 1
                batch, rows = [], 0
            batch.append(step)
            rows += step.rows
            if rows >= BATCH_ROWS:
                yield batch, 1
                batch, rows = [], 0
    if batch:
        yield batch, 1


def timed_steps(
    plan: Plan,
    topology: Topology,
    placement: Placement,
    groups: Iterable[Group] | None = None,
    timer: StepTimer | None = None,
) -> Iterator[tuple[tuple[Timed, ...], int]]:
    """The groups of :func:`turns` with routes and costs; steps that do not repeat come one by one.

    ``groups`` are those of :func:`simcoll.emulator.steps.step_columns.summary`, if kept; ``timer``
    may supply columns other than costs.
    """
    make, first_message = timer or StepTimer(plan.protocol, topology, placement, joint=True), 0
    groups = turns(plan) if groups is None else groups
    for steps, times in batches(groups, unrolled=plan.protocol.jitter_fs > 0):
        timed = make(steps, first_message)
        first_message += times * sum(step.rows for step in steps)
        if times > 1:
            yield tuple(timed), times
        else:
            yield from (((step,), 1) for step in timed)
