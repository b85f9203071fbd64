"""A per-rank program as a schedule: sends joined with receives, in an order that gives every chunk the same values.

A message becomes one transfer. Transfers are ordered by the hazards on the chunks that they touch and by their lanes,
and those that nothing orders share a step. Where a program needs the FIFO between its ranks (each sends before it
receives, say), lanes that keep the order of a whole thread block would wait for each other in a circle; then each
connection gets a lane of its own, and where even that is a circle (two ranks swap a chunk), messages go through a
scratch copy at the receiver, as they do in the FIFO.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.program import NAMES, OPS, Program
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, transfers
from simcoll.core.wiring import wire
from simcoll.errors import ConfigError, InternalError, expect
from simcoll.proving.deadlock import play
from simcoll.proving.program import verify_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from simcoll.core.wiring import Wiring
    from simcoll.proving.deadlock import Play

__all__ = ["program_schedule"]

Cell = tuple[int, int]


@dataclass(slots=True)
class _Event:
    """A transfer under construction: its ends, and the numbers of its predecessors."""

    op: int
    src: int
    src_chunk: int
    count: int
    channel: int
    dst: int = -1
    dst_chunk: int = -1
    after: dict[int, None] = field(default_factory=dict)
    level: int = -1


@dataclass(frozen=True, slots=True)
class _Channels:
    """Channel of the messages of every connection and of the local operations of every lane."""

    kind: str
    messages: list[int]
    locals: list[int]
    count: int


def _coloured(units: list[frozenset[int]]) -> list[int]:
    """For each unit the least channel on which none of its ranks is taken."""
    taken: dict[int, set[int]] = {}
    result = []
    for ranks in units:
        channel = next(c for c in range(len(units)) if not any(c in taken.get(rank, ()) for rank in sorted(ranks)))
        for rank in sorted(ranks):
            taken.setdefault(rank, set()).add(channel)
        result.append(channel)
    return result


def _by_blocks(wiring: Wiring) -> _Channels | None:
    """A channel for each set of lanes joined by connections; None if a set has two lanes of one rank."""
    ranks = wiring.code.rank.tolist()
    parent = list(range(len(ranks)))

    def root(lane: int) -> int:
        while parent[lane] != lane:
            parent[lane] = parent[parent[lane]]
            lane = parent[lane]
        return lane

    for connection in wiring.connections:
        parent[root(connection.receiver)] = root(connection.sender)
    members: dict[int, list[int]] = {}
    for lane, rank in enumerate(ranks):
        members.setdefault(root(lane), []).append(rank)
    units = [frozenset(unit) for unit in members.values()]
    if any(len(unit) != len(given) for unit, given in zip(units, members.values(), strict=True)):
        return None
    channel = dict(zip(members, _coloured(units), strict=True))
    lanes = [channel[root(lane)] for lane in range(len(ranks))]
    return _Channels(
        "blocks", [lanes[connection.sender] for connection in wiring.connections], lanes, max(lanes, default=0) + 1
    )


def _by_connections(wiring: Wiring, kind: str) -> _Channels:
    """A channel for each connection, and one for the local operations of each lane."""
    units = [frozenset((connection.src, connection.dst)) for connection in wiring.connections]
    lanes = [frozenset((rank,)) for rank in wiring.code.rank.tolist()]
    colours = _coloured(units + lanes)
    split = len(units)
    return _Channels(kind, colours[:split], colours[split:], max(colours, default=0) + 1)


class _Builder:
    """Turns a play into events."""

    def __init__(self, wiring: Wiring, channels: _Channels) -> None:
        program = wiring.program
        self.wiring = wiring
        self.channels = channels
        self.buffered = channels.kind == "buffered"
        self.events: list[_Event] = []
        self.written: dict[Cell, int] = {}
        self.read: dict[Cell, dict[int, None]] = {}
        self.lane_last: dict[tuple[int, int], int] = {}
        self.flying: list[deque[int]] = [deque() for _ in wiring.connections]
        self.free = [sum(program.buffers)] * program.nranks  # first unused chunk of each rank
        self.slots: dict[tuple[str, int], list[int]] = {}

    def temporary(self, key: tuple[str, int], rank: int, count: int) -> int:
        """Take a free range of scratch, to be given back under the same key."""
        slots = self.slots.setdefault(key, [])
        if slots:
            return slots.pop()
        first = self.free[rank]
        self.free[rank] += count
        return first

    def _order(self, number: int, rank: int) -> None:
        event = self.events[number]
        last = self.lane_last.get((rank, event.channel))
        if last is not None and last != number:
            event.after[last] = None
        self.lane_last[rank, event.channel] = number

    def _reads(self, number: int, rank: int, chunk: int) -> None:
        event = self.events[number]
        for cell in ((rank, chunk + offset) for offset in range(event.count)):
            if cell in self.written and self.written[cell] != number:
                event.after[self.written[cell]] = None
            self.read.setdefault(cell, {})[number] = None

    def _writes(self, number: int) -> None:
        event = self.events[number]
        if event.op == REDUCE:
            self._reads(number, event.dst, event.dst_chunk)
        for cell in ((event.dst, event.dst_chunk + offset) for offset in range(event.count)):
            if cell in self.written:
                event.after[self.written[cell]] = None
            event.after.update(self.read.pop(cell, {}))
            event.after.pop(number, None)
            self.written[cell] = number

    def _open(self, op: int, src: int, chunk: int, count: int, channel: int) -> int:
        """Start an event with its source."""
        self.events.append(_Event(op, src, chunk, count, channel))
        number = len(self.events) - 1
        self._order(number, src)
        self._reads(number, src, chunk)
        return number

    def _close(self, number: int, op: int, dst: int, chunk: int) -> None:
        """Give an event its destination."""
        event = self.events[number]
        event.op, event.dst, event.dst_chunk = op, dst, chunk
        self._order(number, dst)
        self._writes(number)

    def local(self, lane: int, op: int, src: int, dst: int, count: int, channel: int | None = None) -> None:
        """A copy or reduction inside a rank."""
        if count and (op == REDUCE or src != dst):
            rank = int(self.wiring.code.rank[lane])
            number = self._open(op, rank, src, count, self.channels.locals[lane] if channel is None else channel)
            self._close(number, op, rank, dst)

    def send(self, connection: int, src: int, count: int) -> None:
        """The first half of a message."""
        if not count:
            return
        ends = self.wiring.connections[connection]
        number = self._open(COPY, ends.src, src, count, self.channels.messages[connection])
        if self.buffered:
            most = int(self.wiring.code.count[ends.sends].max())
            self._close(number, COPY, ends.dst, self.temporary(("fifo", connection), ends.dst, most))
        self.flying[connection].append(number)

    def receive(self, connection: int, lane: int, op: int, dst: int, count: int) -> None:
        """The second half of a message."""
        if not count:
            return
        number = self.flying[connection].popleft()
        if self.buffered:
            held = self.events[number].dst_chunk
            self.local(lane, op, held, dst, count, self.channels.messages[connection])
            self.slots["fifo", connection].append(held)
        else:
            self._close(number, op, int(self.wiring.code.rank[lane]), dst)

    def instruction(self, number: int) -> None:
        """All events of one instruction."""
        wiring, code = self.wiring, self.wiring.code
        lane, rank = int(wiring.lane[number]), wiring.rank_of(number)
        op, src, dst, count = OPS[NAMES[code.op[number]]], *(int(c[number]) for c in (code.src, code.dst, code.count))
        incoming, outgoing = (
            int(wiring.connection[message]) if (message := ends[number]) >= 0 else -1
            for ends in (wiring.incoming, wiring.outgoing)
        )
        value, partial = (dst if op.writes else src), None
        if op.receives:
            if op.reads and not op.writes and count:
                most = int(code.count[wiring.lane == lane].max())
                value = partial = self.temporary(("partial", lane), rank, most)
            if op.reads:
                self.local(lane, COPY, src, value, count, self.channels.messages[incoming])
            self.receive(incoming, lane, REDUCE if op.reads else COPY, value, count)
        elif op.writes:
            self.local(lane, REDUCE if op.updates else COPY, src, dst, count)
        if op.sends:
            self.send(outgoing, value, count)
        if partial is not None:
            self.slots["partial", lane].append(partial)


def _levelled(events: list[_Event]) -> bool:
    """Give each event the first step after its predecessors; False if they form a circle."""
    following: list[list[int]] = [[] for _ in events]
    open_ = [len(event.after) for event in events]
    for number, event in enumerate(events):
        for earlier in event.after:
            following[earlier].append(number)
    ready = deque(number for number, count in enumerate(open_) if not count)
    done = 0
    while ready:
        number = ready.popleft()
        done += 1
        events[number].level = max((events[earlier].level + 1 for earlier in events[number].after), default=0)
        for later in following[number]:
            open_[later] -= 1
            if not open_[later]:
                ready.append(later)
    return done == len(events)


def _steps(events: list[_Event]) -> tuple[Step, ...]:
    levels: dict[int, list[_Event]] = {}
    for event in events:
        levels.setdefault(event.level, []).append(event)
    result = []
    for level in sorted(levels):
        rows = [(e.src, e.src_chunk, e.dst, e.dst_chunk, e.count, e.op, e.channel) for e in levels[level]]
        src, src_chunk, dst, dst_chunk, count, op, channel = np.array(rows, np.int64).T
        result.append(transfers(src, src_chunk, dst, dst_chunk, count=count, op=op, channel=channel))
    return tuple(result)


def _ways(wiring: Wiring) -> Iterator[_Channels]:
    """Channel assignments, from one that keeps most of the program's order to one that always works."""
    blocks = _by_blocks(wiring)
    if blocks is not None:
        yield blocks
    yield _by_connections(wiring, "connections")
    yield _by_connections(wiring, "buffered")


def _scheduled(wiring: Wiring, run: Play, ways: Iterable[_Channels]) -> tuple[_Channels, list[_Event], int]:
    for channels in ways:
        builder = _Builder(wiring, channels)
        for number in run.order.tolist():
            builder.instruction(number)
        if _levelled(builder.events):
            return channels, builder.events, max(builder.free)
    raise InternalError(f"{wiring.program}: its operations cannot be put in order")


def program_schedule(program: Program) -> Schedule:
    """Convert a per-rank program to a schedule, to bind, emulate and run.

    Parameters
    ----------
    program
        A program with a collective. It is proved first.

    Returns
    -------
    Schedule
        Its parameter ``lanes`` says what a channel is: ``blocks``, a set of thread blocks that connections join, with
        at most one of each rank, so that the order inside each is kept; ``connections``, one connection or the local
        operations of one thread block (where such a set has two thread blocks of a rank, or keeping their order needs
        a FIFO), with the order between them left to the data; or ``buffered``, the same with a scratch copy of each
        message at its receiver. Blocks must be multiples of its chunks.

    Raises
    ------
    ScheduleError
        As :func:`~simcoll.proving.verify_program`.
    ConfigError
        When the program's collective is not known, or moves no data.
    """
    expect(program, Program, "program_schedule takes a program, made by load_msccl_xml(file) or lower(plan)")
    if program.collective is None or program.collective.kind == "barrier":
        what = "no collective is known" if program.collective is None else "a barrier moves no data"
        raise ConfigError(f"{program}: {what}, so it is not a schedule")
    verify_program(program)
    wiring = wire(program)
    run = next(found for depth in (0, program.fifo_depth, None) if (found := play(wiring, depth)).complete)
    channels, events, end = _scheduled(wiring, run, _ways(wiring))
    steps = _steps(events)
    base = sum(program.buffers[:2])
    layout = Layout(program.collective, program.chunks, np.zeros(-(-(end - base) // program.chunks), np.int64))
    return Schedule(program.name, layout, lambda: steps, channels.count, (("lanes", channels.kind),), divisible=True)
