"""Lowering of a program to timed steps, for the compiled engine and the quotient.

All ranks of an operation are rows of the same steps. Every stream of a rank has a first lane, on
which its operations follow each other; further channels of a collective fork from it and join it
again by messages without bytes. A dependency is two rows, like events on a GPU: the first stream
makes a record, and the second waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints, Shorts
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import OP_NAMES
from simcoll.core.transit import transits_of
from simcoll.emulator.programs.operations import Call, Compute, Operation, rank_array
from simcoll.emulator.programs.program import Program
from simcoll.emulator.programs.resources import Resources, call_of
from simcoll.emulator.steps.pruning import never_bind
from simcoll.emulator.steps.roles import LAUNCHES, MOVES, RECORDS, SILENT, WAITS
from simcoll.emulator.steps.run_links import check_switches
from simcoll.emulator.steps.step_columns import Moves, PlanSummary, summary, turns
from simcoll.emulator.steps.timed import Steps, StepShape, StepStream, StepTimer, Timed
from simcoll.topology import Topology

__all__ = ["BEGINS", "ENDS", "Lowered", "lower"]

NOTHING = tuple(0 for _ in OP_NAMES)
BEGINS, ENDS = range(2)


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A program as timed steps.

    Attributes
    ----------
    resources
        The lanes and links.
    stream
        Groups of steps with their repetitions.
    dropped
        Links that can never bind.
    lane_steps
        Number of steps of every lane.
    marks
        For every operation, the positions in the stream of the rows at which its ranks begin and
        end; empty unless requested.
    steps, messages, rows, bytes_by_op
        Number of steps; of transfers and computations; of all rows, including those that only
        order; and payload.
    distinct
        Number of rows of distinct steps.
    jittered
        For groups of the stream, by ``id``, whose messages have jitter: the inputs to time them
        again with jitter.
    """

    resources: Resources
    stream: StepStream
    dropped: NDArray[np.bool_]
    lane_steps: Ints
    marks: dict[int, tuple[int, int]]
    steps: int
    messages: int
    rows: int
    distinct: int
    bytes_by_op: tuple[int, ...]
    jittered: dict[int, tuple[StepTimer, list[Moves]]]

    def drawn(self) -> Iterator[Steps]:
        """The stream with jitter, which depends on a message's number: groups with jitter are
        repeated one by one.
        """
        first_message = 0
        for group, times in self.stream:
            rows = sum(len(step) for step in group if step.role == MOVES)
            if id(group) in self.jittered:
                timer, moves = self.jittered[id(group)]
                yield from (
                    (tuple(timer(moves, first_message + turn * rows)), 1) for turn in range(times)
                )
            else:
                yield group, times
            first_message += times * rows


def lower(program: Program, topology: Topology, *, marked: bool = False) -> Lowered:
    """The timed steps of a program; ``marked``: with rows that record when operations begin and
    end.

    Raises
    ------
    ConfigError
        When the topology cannot play it.
    """
    resources = Resources(program, topology)
    builder = _StepBuilder(resources)
    places: list[Steps] = []
    marks: dict[int, tuple[int, int]] = {}
    events = _Dependencies(resources, builder).steps()
    places += builder.starts()
    places += events.get(-1, ())
    for number, operation in enumerate(program.operations):
        call, ranks = call_of(operation), rank_array(operation)
        begin = len(places)
        if marked and ranks.size:
            places.append(builder.local(ranks, operation.stream, 0, SILENT))
        if call is not None:
            places += builder.call(call, operation.stream)
        elif isinstance(operation, Compute) and ranks.size:
            places.append(builder.local(ranks, operation.stream, operation.duration_fs, MOVES))
        if marked and ranks.size:
            marks[number] = begin, len(places)
            places.append(builder.local(ranks, operation.stream, 0, SILENT))
        places += events.get(number, ())
    return _count(builder, _stream_of(places), marks)


def _stream_of(places: list[Steps]) -> StepStream:
    """The stream of groups at consecutive places; those of one object are one group."""
    numbers: dict[int, int] = {}
    order = [numbers.setdefault(place, len(numbers)) for place in map(id, places)]
    groups = dict(zip(order, places, strict=True))
    return StepStream(tuple(groups.values()), np.array(order, np.int64))


def _count(builder: _StepBuilder, stream: StepStream, marks: dict[int, tuple[int, int]]) -> Lowered:
    """The result with its numbers of steps and rows."""
    resources = builder.resources
    comes = stream.step_times()
    lane_steps = np.zeros(resources.lanes, np.int64)
    moved = [0] * len(OP_NAMES)
    for step, times in comes.items():
        lanes = step.shape.sender
        if step.shape.receiver is not lanes:
            lanes = np.unique(np.concatenate([lanes, step.shape.receiver]))
        lane_steps[lanes] += times
        moved = [
            total + times * added for total, added in zip(moved, step.bytes_by_op, strict=True)
        ]
    dropped = never_bind((step.shape for step in comes), resources.capacity)
    return Lowered(
        resources,
        stream,
        dropped,
        lane_steps,
        marks,
        steps=sum(times for step, times in comes.items() if step.role == MOVES),
        messages=sum(times * len(step) for step, times in comes.items() if step.role == MOVES),
        rows=sum(times * len(step) for step, times in comes.items()),
        distinct=sum(map(len, comes)),
        bytes_by_op=tuple(moved),
        jittered=builder.jittered,
    )


class _StepBuilder:
    """Builds timed steps; equal steps share one object."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.known: dict[Any, Any] = {}
        self.kept: list[Any] = []  # keeps objects alive whose addresses are in keys
        self.plans: dict[Plan, tuple[list[tuple[tuple[Moves, ...], int]], PlanSummary]] = {}
        self.timers: dict[tuple[str, Protocol], StepTimer] = {}
        self.jittered: dict[int, tuple[StepTimer, list[Moves]]] = {}

    def _once(self, key: tuple[Any, ...], *referents: Any, make: Callable[[], Any]) -> Any:
        """The value for a key, made on first use; the key may contain addresses of
        ``referents``.
        """
        if key not in self.known:
            self.kept += referents
            self.known[key] = make()
        return self.known[key]

    def local(
        self, ranks: Ints, stream: str, post_fs: Ints | int, role: int, peer: str = ""
    ) -> Steps:
        """A row for each rank on the first lane of a stream, with a duration."""
        key = (
            "local",
            id(ranks),
            stream,
            post_fs if isinstance(post_fs, int) else id(post_fs),
            role,
            peer,
        )
        steps: Steps | None = self.known.get(key)
        if steps is None:
            make = partial(self._local, ranks.reshape(-1), stream, post_fs, role, peer)
            steps = self._once(key, ranks, post_fs, make=make)
        return steps

    def _local(self, ranks: Ints, stream: str, post_fs: Ints | int, role: int, peer: str) -> Steps:
        lanes, count, connection = self.resources.lane(ranks, stream), len(ranks), None
        if role in {RECORDS, WAITS}:
            connection = self.resources.records(
                ranks, *((stream, peer) if role == RECORDS else (peer, stream))
            )
        shape = StepShape(lanes, lanes, ranks, ranks, *_no_links(count), connection)
        nothing, post = np.zeros(count, np.int64), np.broadcast_to(np.int64(post_fs), (count,))
        row = Timed(shape, nothing - 1, nothing, nothing, post, nothing, NOTHING, 0, role)
        return (row,), 1

    def starts(self) -> Iterator[Steps]:
        """Rows that hold the streams of ranks until the ranks begin."""
        program = self.resources.program
        starts = np.broadcast_to(np.int64(program.starts_fs), (program.nranks,))
        if not starts.any():
            return
        for stream in self.resources.channels:
            used = np.zeros(program.nranks, np.bool_)
            for operation in program.operations:
                if operation.stream == stream:
                    used[rank_array(operation)] = True
            ranks = np.flatnonzero(used & (starts > 0))
            if len(ranks):
                yield self.local(ranks, stream, starts[ranks], SILENT)

    def call(self, call: Call, stream: str) -> list[Steps]:
        """All steps of a collective, for all of its groups."""
        steps: list[Steps] = self._once(
            ("call", id(call.plan), id(call.groups), stream),
            call.plan,
            call.groups,
            make=lambda: list(self._call(call, stream)),
        )
        return steps

    def _call(self, call: Call, stream: str) -> Iterator[Steps]:
        plan, groups = call.plan, call.groups
        if plan not in self.plans:
            counts = summary(plan)
            self.plans[plan] = list(turns(plan)) if counts.groups is None else counts.groups, counts
        steps, counts = self.plans[plan]
        if counts.switched:
            check_switches(plan, self.resources.topology)
        protocol, channels = plan.protocol, plan.nchannels
        quiet = counts.lane_steps.reshape(plan.nranks, channels).sum(axis=1) == 0
        waiting = groups if protocol.launch_fs else groups[:, quiet]
        if waiting.size:
            yield self.local(waiting, stream, protocol.launch_fs, LAUNCHES)
        aside = self._once(
            ("aside", id(groups), stream, channels),
            groups,
            make=lambda: self._aside(groups, stream, channels),
        )
        if aside:
            yield aside, 1
        if (stream, protocol) not in self.timers:
            placement = self.resources.world_placement(stream, protocol)
            calm = replace(protocol, jitter_fs=0)
            self.timers[stream, protocol] = StepTimer(
                calm, self.resources.topology, placement, joint=True
            )
        timer = self.timers[stream, protocol]
        for group, times in steps:
            spread = [_spread(step, groups) for step in group]
            timed = tuple(timer(spread, 0))
            if protocol.jitter_fs:
                self.jittered[id(timed)] = (
                    StepTimer(protocol, timer.topology, timer.placement, joint=True),
                    spread,
                )
            yield timed, times
        if aside:
            yield aside, 1

    def _aside(self, groups: Ints, stream: str, channels: int) -> tuple[Timed, ...]:
        """A row for each further channel of each rank, which joins it with the first channel."""
        if channels == 1:
            return ()
        ranks = np.repeat(groups.reshape(-1), channels - 1)
        further = np.tile(np.arange(1, channels), groups.size)
        lanes = self.resources.lane(ranks, stream), self.resources.lane(ranks, stream, further)
        nothing = np.zeros(len(ranks), np.int64)
        shape = StepShape(*lanes, ranks, ranks, *_no_links(len(ranks)))
        return (Timed(shape, nothing, nothing, nothing, nothing, nothing, NOTHING, 0, SILENT),)


def _no_links(rows: int) -> tuple[Shorts, Ints]:
    return np.zeros((rows, 0), np.int32), np.zeros((rows, 0), np.int64)


def _spread(step: Moves, groups: Ints) -> Moves:
    """A step of a plan performed by all groups, group after group, with ranks of the program."""
    count = len(groups)
    src, dst = groups[:, step.src_rank].reshape(-1), groups[:, step.dst_rank].reshape(-1)
    channel, size, operands = (
        np.tile(column, count) for column in (step.channel, step.size_bytes, step.operands)
    )
    leader = step.leader
    if leader is not None:
        base = step.rows * np.arange(count)[:, None]
        leader = np.where(leader >= 0, base + leader, -1).reshape(-1)
    paths = transits_of([(step.rows, step.paths)] * count)
    return Moves(src, dst, channel, size, np.tile(step.op, count), operands, leader, paths)


class _RankParts:
    """A partition of the ranks of a program: the ranks of a part are in the same operations.

    What holds for one rank of a part holds for all, so that dependencies are followed by part.
    """

    def __init__(self, program: Program) -> None:
        arrays = [rank_array(operation) for operation in program.operations]
        different = {array.tobytes(): array.reshape(-1) for array in _by_address(arrays).values()}
        self.part = np.zeros(program.nranks, np.int64)
        sizes = [program.nranks]
        for ranks in different.values():
            touched, place, count = np.unique(
                self.part[ranks], return_inverse=True, return_counts=True
            )
            for row, (part, members) in enumerate(
                zip(touched.tolist(), count.tolist(), strict=True)
            ):
                if members < sizes[part]:
                    sizes[part] -= members
                    touched[row] = len(sizes)
                    sizes.append(members)
            self.part[ranks] = touched[place]
        self.count = len(sizes)
        self._parts = {name: self.of(array) for name, array in _by_address(arrays).items()}
        self._arrays = arrays  # whose addresses are the names

    def of(self, ranks: Ints) -> tuple[int, ...]:
        """The parts of some ranks, ascending."""
        return tuple(np.unique(self.part[ranks]).tolist())

    def of_operation(self, operation: Operation) -> tuple[int, ...]:
        """The parts of the ranks of an operation of the program."""
        return self._parts[id(rank_array(operation))]

    def among(self, ranks: Ints, parts: Sequence[int]) -> Ints:
        """Those of the ranks that are in some parts."""
        return ranks[np.isin(self.part[ranks], parts)]


def _by_address(arrays: Iterable[Ints]) -> dict[int, Ints]:
    return {id(array): array for array in arrays}


@dataclass(frozen=True, slots=True, eq=False)
class _Edge:
    """The ranks that two operations share, their parts, and, for every part of all ranks, the last
    operation of the first's stream that the second's stream waits for.
    """

    ranks: Ints
    parts: tuple[int, ...]
    waited: list[int]


class _Dependencies:
    """The steps of records and waits that follow an operation; those at -1 precede all operations.

    The n-th wait of a stream of a rank for another matches the n-th record that the other makes for
    it, so a dependency that an earlier one between the same two streams implies needs neither. A
    wait comes right after the preceding operation on its stream, possibly long before the record: a
    waiting lane requests no further steps.
    """

    def __init__(self, resources: Resources, builder: _StepBuilder) -> None:
        self.program, self.builder = resources.program, builder
        self.parts = _RankParts(self.program)
        # By streams and part, and by stream and part.
        self.waited: dict[tuple[str, str], list[int]] = {}
        self.latest = {stream: [-1] * self.parts.count for stream in resources.channels}
        self.shared: dict[tuple[int, int], tuple[Ints, tuple[int, ...]]] = {}
        self.subsets: dict[tuple[int, tuple[int, ...]], Ints] = {}
        self.pairs: dict[tuple[int, str, str], tuple[Steps, Steps]] = {}

    def steps(self) -> Mapping[int, Sequence[Steps]]:
        """The steps after every operation that some follow, by its number."""
        operations = self.program.operations
        records: dict[int, list[Steps]] = {}
        waits: dict[int, list[Steps]] = {}
        edges: dict[tuple[int, int, str, str], _Edge] = {}
        arrays = [id(rank_array(operation)) for operation in operations]
        streams = [operation.stream for operation in operations]
        for number, (array, stream, predecessors) in enumerate(
            zip(arrays, streams, self.program.before, strict=True)
        ):
            latest = self.latest[stream]
            several = len(predecessors) > 1
            for earlier in sorted(set(predecessors), reverse=True) if several else predecessors:
                if streams[earlier] == stream:
                    continue
                key = arrays[earlier], array, streams[earlier], stream
                edge = edges.get(key)
                if edge is None:
                    edge = edges[key] = self._edge(operations[earlier], operations[number])
                ranks, parts = self._new_waits(earlier, edge)
                if parts:
                    record, wait = self._pair(ranks, streams[earlier], stream)
                    records.setdefault(earlier, []).append(record)
                    place = max([latest[part] for part in parts])
                    waits.setdefault(place, []).append(wait)
            for part in self.parts.of_operation(operations[number]):
                latest[part] = number
        return {
            number: (*records.get(number, ()), *waits.get(number, ()))
            for number in {**records, **waits}
        }

    def _edge(self, predecessor: Operation, operation: Operation) -> _Edge:
        """The dependencies between operations like two, on two streams."""
        streams = predecessor.stream, operation.stream
        waited = self.waited.setdefault(streams, [-1] * self.parts.count)
        return _Edge(*self._common_ranks(predecessor, operation), waited)

    def _new_waits(self, earlier: int, edge: _Edge) -> tuple[Ints, tuple[int, ...]]:
        """The ranks, and their parts, on which an operation waits for an earlier one."""
        ranks, parts, waited = edge.ranks, edge.parts, edge.waited
        new = tuple([part for part in parts if waited[part] < earlier])
        for part in new:
            waited[part] = earlier
        if new and len(new) < len(parts):
            key = id(ranks), new
            if key not in self.subsets:
                self.subsets[key] = self.parts.among(ranks, new)
            ranks = self.subsets[key]
        return ranks, new

    def _common_ranks(
        self, predecessor: Operation, operation: Operation
    ) -> tuple[Ints, tuple[int, ...]]:
        """The ranks, and their parts, of two operations."""
        peers, members = rank_array(predecessor), rank_array(operation)
        key = id(peers), id(members)
        if key not in self.shared:
            ranks = members if peers is members else np.intersect1d(peers, members)
            self.shared[key] = ranks, self.parts.of(ranks)
        return self.shared[key]

    def _pair(self, ranks: Ints, records: str, waits: str) -> tuple[Steps, Steps]:
        """The record that one stream makes, and the wait of another for it."""
        key = id(ranks), records, waits
        if key not in self.pairs:
            self.pairs[key] = (
                self.builder.local(ranks, records, 0, RECORDS, waits),
                self.builder.local(ranks, waits, 0, WAITS, records),
            )
        return self.pairs[key]
