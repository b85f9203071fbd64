"""Conversion of a per-rank program to a schedule that gives every chunk the same values.

A send and its receive become one transfer. Transfers are ordered by the hazards on the chunks that
they touch and by their lanes; unordered ones share a step. Where a program needs the FIFO between
its ranks (for example, each sends before it receives), lanes that keep the order of a whole thread
block would wait for each other in a cycle; then each connection gets a separate lane. Where even
that forms a cycle (two ranks swap a chunk), messages go through a scratch copy at the receiver, as
they do in the FIFO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.hazards import hazards
from simcoll.core.rank_program import NAMES, OPS, RankProgram
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, transfers
from simcoll.core.step import spread
from simcoll.core.wiring import Wiring, wire
from simcoll.errors import ConfigError, InternalError, expect
from simcoll.proving.deadlock import levels, play
from simcoll.proving.program_proof import verify_program

__all__ = ["program_schedule"]

DST_RANK = 2
DST_CHUNK = 3
COUNT = 4
OP = 5
CHANNEL = 6
"""Columns of a step, as :func:`simcoll.core.step.transfers` takes them."""


@dataclass(frozen=True, slots=True)
class _Channels:
    """Channels of the messages of every connection and of the local operations of every lane."""

    kind: Literal["blocks", "connections", "buffered"]
    messages: list[int]
    locals: list[int]
    count: int


def _colour(units: list[frozenset[int]]) -> list[int]:
    """Assign each unit the lowest channel on which none of its ranks is taken."""
    used_channels: dict[int, set[int]] = {}
    result = []
    for ranks in units:
        channel = next(
            c
            for c in range(len(units))
            if not any(c in used_channels.get(rank, ()) for rank in sorted(ranks))
        )
        for rank in sorted(ranks):
            used_channels.setdefault(rank, set()).add(channel)
        result.append(channel)
    return result


def _by_blocks(wiring: Wiring) -> _Channels | None:
    """A channel for each set of lanes joined by connections; None if a set has two lanes on one
    rank.
    """
    # Imports take a quarter of a second, and most proofs do not need it.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ranks = wiring.code.rank
    ends = np.array([(c.sender, c.receiver) for c in wiring.connections]).reshape(-1, 2).T
    joined = coo_array((np.ones(ends.shape[1]), tuple(ends)), shape=(len(ranks), len(ranks)))
    count, unit = connected_components(joined, directed=False)
    ranks_of_unit = [ranks[unit == index].tolist() for index in range(count)]
    units = [frozenset(members) for members in ranks_of_unit]
    if any(len(unit) != len(members) for unit, members in zip(units, ranks_of_unit, strict=True)):
        return None
    lanes = np.array(_colour(units), np.int64)[unit].tolist()
    return _Channels(
        "blocks", [lanes[c.sender] for c in wiring.connections], lanes, max(lanes, default=0) + 1
    )


def _by_connections(wiring: Wiring, kind: Literal["connections", "buffered"]) -> _Channels:
    """A channel for each connection, and one for the local operations of each lane."""
    units = [frozenset((connection.src, connection.dst)) for connection in wiring.connections]
    lanes = [frozenset((rank,)) for rank in wiring.code.rank.tolist()]
    colours = _colour(units + lanes)
    split = len(units)
    return _Channels(kind, colours[:split], colours[split:], max(colours, default=0) + 1)


class _Touches(NamedTuple):
    """Columns of the ranges of chunks that transfers touch, in the order of a play."""

    transfer: Ints
    rank: Ints
    chunk: Ints
    length: Ints
    writes: Ints


class _Builder:
    """Turns a play into transfers, and records the chunks that they touch, in its order."""

    def __init__(self, wiring: Wiring, channels: _Channels) -> None:
        program = wiring.program
        self.wiring = wiring
        self.channels = channels
        self.buffered = channels.kind == "buffered"
        self.rows: list[
            list[int]
        ] = []  # the columns of a step; the destination of a message in flight is unknown
        self.turns: list[tuple[int, int, int]] = []  # transfer, rank, channel
        self.touches: list[tuple[int, int, int, int, bool]] = []  # as in _Touches
        self.flying: list[deque[int]] = [deque() for _ in wiring.connections]
        self.free = [sum(program.buffers)] * program.nranks  # first unused chunk of each rank
        self.slots: dict[tuple[str, int], list[int]] = {}

    def temporary(self, key: tuple[str, int], rank: int, count: int) -> int:
        """Take a free range of scratch, to be returned under the same key."""
        slots = self.slots.setdefault(key, [])
        if slots:
            return slots.pop()
        start = self.free[rank]
        self.free[rank] += count
        return start

    def _open(self, src: int, chunk: int, count: int, channel: int) -> int:
        """Start a transfer with its source."""
        number = len(self.rows)
        self.rows.append([src, chunk, -1, -1, count, COPY, channel])
        self.turns.append((number, src, channel))
        self.touches.append((number, src, chunk, count, False))
        return number

    def _close(self, number: int, op: int, dst: int, chunk: int) -> None:
        """Complete a transfer with its destination."""
        row = self.rows[number]
        row[DST_RANK], row[DST_CHUNK], row[OP] = dst, chunk, op
        count = row[COUNT]
        channel = row[CHANNEL]
        self.turns.append((number, dst, channel))
        if op == REDUCE:
            self.touches.append((number, dst, chunk, count, False))
        self.touches.append((number, dst, chunk, count, True))

    def local(
        self, lane: int, op: int, src: int, dst: int, count: int, channel: int | None = None
    ) -> None:
        """Add a copy or reduction within a rank."""
        if count and (op == REDUCE or src != dst):
            rank = int(self.wiring.code.rank[lane])
            number = self._open(
                rank, src, count, self.channels.locals[lane] if channel is None else channel
            )
            self._close(number, op, rank, dst)

    def send(self, connection: int, src: int, count: int) -> None:
        """Add the first half of a message."""
        if not count:
            return
        ends = self.wiring.connections[connection]
        number = self._open(ends.src, src, count, self.channels.messages[connection])
        if self.buffered:
            largest = int(self.wiring.code.count[ends.sends].max())
            self._close(
                number, COPY, ends.dst, self.temporary(("fifo", connection), ends.dst, largest)
            )
        self.flying[connection].append(number)

    def receive(self, connection: int, lane: int, op: int, dst: int, count: int) -> None:
        """Add the second half of a message."""
        if not count:
            return
        number = self.flying[connection].popleft()
        if self.buffered:
            buffer = self.rows[number][DST_CHUNK]
            self.local(lane, op, buffer, dst, count, self.channels.messages[connection])
            self.slots["fifo", connection].append(buffer)
        else:
            self._close(number, op, int(self.wiring.code.rank[lane]), dst)

    def instruction(self, number: int) -> None:
        """Add all transfers of one instruction."""
        wiring = self.wiring
        code = self.wiring.code
        lane = int(wiring.lane[number])
        rank = wiring.rank_of(number)
        op = OPS[NAMES[code.op[number]]]
        src = int(code.src[number])
        dst = int(code.dst[number])
        count = int(code.count[number])
        incoming, outgoing = (
            int(wiring.connection[message]) if (message := ends[number]) >= 0 else -1
            for ends in (wiring.incoming, wiring.outgoing)
        )
        value = dst if op.writes else src
        partial = None
        if op.receives:
            if op.reads and not op.writes and count:
                largest = int(code.count[wiring.lane == lane].max())
                value = partial = self.temporary(("partial", lane), rank, largest)
            if op.reads:
                self.local(lane, COPY, src, value, count, self.channels.messages[incoming])
            self.receive(incoming, lane, REDUCE if op.reads else COPY, value, count)
        elif op.writes:
            self.local(lane, REDUCE if op.updates else COPY, src, dst, count)
        if op.sends:
            self.send(outgoing, value, count)
        if partial is not None:
            self.slots["partial", lane].append(partial)

    def steps(self) -> tuple[Step, ...] | None:
        """The transfers, each in the first step after its predecessors; None if these form a
        cycle.
        """
        transfer, rank, channel = _columns(self.turns, 3)
        order = np.lexsort((channel, rank))
        again = (np.diff(rank[order]) == 0) & (np.diff(channel[order]) == 0)
        touches = _Touches(*_columns(self.touches, 5))
        row, offset = spread(touches.length)
        cell = touches.rank[row] * max(self.free) + touches.chunk[row] + offset
        by_cell = np.argsort(cell, kind="stable")
        writes = touches.writes[row][by_cell] == 1
        later, earlier = (
            touches.transfer[row[by_cell[ends]]] for ends in hazards(cell[by_cell], writes)
        )
        predecessor = np.concatenate([transfer[order[:-1][again]], earlier])
        successor = np.concatenate([transfer[order[1:][again]], later])
        unequal = predecessor != successor
        sequence, level = levels(len(self.rows), predecessor[unequal], successor[unequal])
        columns = _columns(self.rows, 7)[:, sequence]
        parts = (
            np.split(columns, np.flatnonzero(np.diff(level)) + 1, axis=1) if len(sequence) else []
        )
        if len(sequence) < len(self.rows):
            return None
        return tuple(
            transfers(*part[:COUNT], count=part[COUNT], op=part[OP], channel=part[CHANNEL])
            for part in parts
        )


def _columns(rows: Sequence[Sequence[int]], width: int) -> Ints:
    return np.array(rows, np.int64).reshape(-1, width).T


def _ways(wiring: Wiring) -> Iterator[_Channels]:
    """Channel assignments, from the one that keeps most of the program's order to one that always
    works.
    """
    blocks = _by_blocks(wiring)
    if blocks is not None:
        yield blocks
    yield _by_connections(wiring, "connections")
    yield _by_connections(wiring, "buffered")


def program_schedule(program: RankProgram) -> Schedule:
    """Convert a per-rank program to a schedule, to bind, emulate and run.

    Parameters
    ----------
    program
        A program with a collective. It is proved first.

    Returns
    -------
    Schedule
        Its parameter ``lanes`` names the meaning of a channel. ``blocks``: a set of thread blocks
        that connections join, with at most one per rank, so that the order within each is kept.
        ``connections``: one connection, or the local operations of one thread block, with the order
        between them left to the data; used if such a set has two thread blocks on a rank, or if
        keeping their order needs a FIFO. ``buffered``: the same with a scratch copy of each message
        at its receiver. Block sizes must be multiples of its chunks.

    Raises
    ------
    ScheduleError
        As :func:`~simcoll.proving.verify_program`.
    ConfigError
        When the program's collective is unknown, or moves no data.
    """
    expect(
        program,
        RankProgram,
        "program_schedule takes a program, made by load_msccl_xml(file) or lower(plan)",
    )
    if program.collective is None or program.collective.kind == "barrier":
        reason = (
            "no collective is known" if program.collective is None else "a barrier moves no data"
        )
        raise ConfigError(f"{program}: {reason}, so it is not a schedule")
    verify_program(program)
    wiring = wire(program)
    run = next(
        candidate
        for depth in (0, program.fifo_depth, None)
        if (candidate := play(wiring, depth)).complete
    )
    for channels in _ways(wiring):
        builder = _Builder(wiring, channels)
        for number in run.order.tolist():
            builder.instruction(number)
        steps = builder.steps()
        if steps is not None:
            slots = -(-(max(builder.free) - sum(program.buffers[:2])) // program.chunks)
            layout = Layout(program.collective, program.chunks, np.zeros(slots, np.int64))
            params = (("lanes", channels.kind),)
            return Schedule(
                program.name, layout, partial(iter, steps), channels.count, params, divisible=True
            )
    raise InternalError(f"{wiring.program}: its operations cannot be put in order")
