"""One process's part of a plan's lowering, as byte spans batched into turns, independent of the
transport.

The instructions are those of :func:`simcoll.proving.lowering.lowering`. The work of a process's
ranks in one step on one channel is a turn: first copies of data that the step overwrites, then
conversions to wire formats, then one group of sends and receives (copies are received in place,
operands of reductions and converted data in staging memory), then copies within a rank and
reductions. Each channel is a lane of turns, which waits for
other lanes only where an instruction does. Batching only adds waits: tests read the turns back as a
program and check its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.plan import Plan, PlanStep
from simcoll.core.rank_program import NAMES, OPS, Op
from simcoll.core.wire_format import WireFormat
from simcoll.proving.lowering import Lowering, lowering

__all__ = ["STAGING", "Afterwards", "Encoding", "ProcessPart", "Span", "Turn", "part"]

STAGING = -1
"""In place of a rank: the process's staging memory; the buffer is the number of the lane."""
ALIGN = 64

Span: TypeAlias = tuple[int, int, int, int]
"""Rank (or ``STAGING``), buffer, first byte, bytes."""
Message: TypeAlias = tuple[Span, int, int]
"""Location, peer process and channel of a message."""


class Encoding(NamedTuple):
    """A conversion of data to a wire format, before the messages of a turn."""

    target: Span
    source: Span
    wire: WireFormat


class Afterwards(NamedTuple):
    """A copy or reduction after the messages of a turn, of a source in a wire format, if any."""

    combines: bool
    target: Span
    source: Span
    wire: WireFormat | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """A process's part of one step, on one channel or on all.

    Attributes
    ----------
    step
        Number of the step in the schedule.
    waits
        ``(lane, turn)`` of turns in other lanes that must finish first.
    aside
        ``(target, source)``: copies made before any message.
    encodings
        Conversions after these copies.
    recvs, sends
        The group of messages.
    afterwards
        Reductions and copies after the group, in order.
    """

    step: int
    waits: tuple[tuple[int, int], ...]
    aside: tuple[tuple[Span, Span], ...]
    recvs: tuple[Message, ...]
    sends: tuple[Message, ...]
    afterwards: tuple[Afterwards, ...]
    encodings: tuple[Encoding, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessPart:
    """The turns of a process by lane, and the staging memory that the turns of each lane share."""

    lanes: tuple[tuple[Turn, ...], ...]
    staging_bytes: tuple[int, ...]


class _TransferEnds(NamedTuple):
    """Source and target of a transfer, and its wire format, if not the type of the plan."""

    source: Span
    target: Span
    wire: WireFormat | None


class _TurnInstruction(NamedTuple):
    """An instruction of the process: its turn, and its place among the instructions of the turn."""

    turn: int
    op: int
    is_aside: bool
    transfer: int
    recv_from: int
    send_to: int
    channel: int
    depth: int


@dataclass(slots=True)
class _TurnWriter:
    """Builder of a turn, of elements of ``itemsize`` bytes."""

    lane: int
    itemsize: int
    used: int = 0
    aside: list[tuple[Span, Span]] = field(default_factory=list)
    recvs: list[Message] = field(default_factory=list)
    sends: list[Message] = field(default_factory=list)
    # With how many must come before.
    afterwards: list[tuple[int, Afterwards]] = field(default_factory=list)
    encodings: list[Encoding] = field(default_factory=list)
    saved: dict[int, Span] = field(default_factory=dict)  # what a transfer has set aside

    def staging(self, size_bytes: int) -> Span:
        """Reserve staging memory for this turn."""
        offset = self.used
        self.used += -(-max(size_bytes, 1) // ALIGN) * ALIGN
        return STAGING, self.lane, offset, size_bytes

    def write(
        self, op: Op, transfer: int, ends: _TransferEnds, peer: tuple[int, int], depth: int
    ) -> None:
        """Add an instruction. Messages stay in the order of transfers, which both ends share."""
        source, target, wire = ends
        sync = source[3] == 0
        if sync:
            source, target, wire = self.staging(1), self.staging(1), None
        source = self.saved.get(transfer, source)
        if wire is not None and not op.receives:
            encoded = self._message(source, wire)
            self.encodings.append(Encoding(encoded, source, wire))
            source = encoded
        if op.sends:
            self.sends.append((source, *peer))
        elif op.receives:
            if wire is not None:
                landing = self._message(target, wire)
            else:
                landing = self.staging(target[3]) if op.reads else target
            self.recvs.append((landing, *peer))
            if landing != target:
                # A converted copy takes effect as early as one that is received in place.
                order = depth if op.reads else -1
                self.afterwards.append((order, Afterwards(op.reads, target, landing, wire)))
        elif not sync:
            self.afterwards.append((depth, Afterwards(op.updates, target, source, wire)))

    def _message(self, span: Span, wire: WireFormat) -> Span:
        """Staging memory for the data of a span in a wire format."""
        return self.staging(wire.size_bytes(span[3] // self.itemsize))

    def set_aside(self, transfer: int, source: Span) -> None:
        """Save a source before the group."""
        self.saved[transfer] = self.staging(source[3])
        self.aside.append((self.saved[transfer], source))


def part(plan: Plan, hosts: Sequence[int], process: int, *, apart: bool = False) -> ProcessPart:
    """Compute one process's part of a plan.

    Parameters
    ----------
    plan
        The plan.
    hosts
        Process that hosts each rank of the plan.
    process
        Number of the process.
    apart
        Whether each channel has its own lane; otherwise a turn is a step of all channels.
    """
    lowered = lowering(plan, np.flatnonzero(np.asarray(hosts) == process).tolist())
    code, lanes = lowered.code, plan.nchannels if apart else 1
    channel = np.repeat(code.channel, np.diff(code.start))
    lane = np.where(_joint(plan, lowered), 0, channel) if apart else np.zeros_like(channel)
    keys, turn = np.unique(lowered.step * lanes + lane, return_inverse=True)
    aside = (code.op == NAMES.index("copy")) & (code.dst >= plan.schedule.layout.size)
    order = np.lexsort((~aside, lowered.transfer, turn))
    waits = _waits(lowered, turn, keys % lanes, channel, lanes)
    spans = _spans(plan, hosts, process)
    itemsize = plan.dtype.itemsize
    writers = [_TurnWriter(lane_number, itemsize) for lane_number in (keys % lanes).tolist()]
    columns = (
        turn,
        code.op,
        aside,
        lowered.transfer,
        code.recv_from,
        code.send_to,
        channel,
        _depth(lowered, turn),
    )
    for row in zip(*(column[order].tolist() for column in columns), strict=True):
        instruction = _TurnInstruction(*row)
        writer, ends = writers[instruction.turn], spans[instruction.transfer]
        if instruction.is_aside:
            writer.set_aside(instruction.transfer, ends.source)
            continue
        partner = max(instruction.recv_from, instruction.send_to)
        peer = (hosts[partner] if partner >= 0 else process, instruction.channel if apart else 0)
        op = OPS[NAMES[instruction.op]]
        writer.write(op, instruction.transfer, ends, peer, instruction.depth)
    result: list[list[Turn]] = [[] for _ in range(lanes)]
    staging = [0] * lanes
    for step, writer, needed in zip((keys // lanes).tolist(), writers, waits, strict=True):
        afterwards = tuple(entry for _, entry in sorted(writer.afterwards, key=itemgetter(0)))
        turn_of = Turn(
            step,
            needed,
            tuple(writer.aside),
            tuple(writer.recvs),
            tuple(writer.sends),
            afterwards,
            tuple(writer.encodings),
        )
        result[writer.lane].append(turn_of)
        staging[writer.lane] = max(staging[writer.lane], writer.used)
    return ProcessPart(tuple(map(tuple, result)), tuple(staging))


def _joint(plan: Plan, lowered: Lowering) -> NDArray[np.bool_]:
    """Mark steps whose channels wait for each other: there all processes take all channels as one
    turn.

    Turns that wait for turns of their own step could form a cycle through other processes, where
    single instructions do not.
    """
    if not plan.waits:
        return np.zeros(len(lowered.step), np.bool_)
    begin = np.cumsum([0, *(len(step) for step in plan.steps())])
    numbers = np.array([step.step for step in plan.steps()])
    pairs = np.array(
        [(later, earlier) for later, awaited in plan.waits.items() for earlier in awaited]
    ).T
    later, earlier = np.searchsorted(begin, pairs, "right") - 1
    return np.isin(lowered.step, numbers[later[later == earlier]])


def _depth(lowered: Lowering, turn: Ints) -> Ints:
    """The depth of each instruction within its turn; operands of one chunk share a depth."""
    code, depth = lowered.code, np.zeros(len(turn), np.int64)
    within_turn = turn[code.waiter] == turn[code.awaited]
    waiter, awaited = code.waiter[within_turn], code.awaited[within_turn]
    while (depth[waiter] <= depth[awaited]).any():
        np.maximum.at(depth, waiter, depth[awaited] + 1)
    return depth


def _waits(
    lowered: Lowering, turn: Ints, lane: Ints, channel: Ints, lanes: int
) -> list[tuple[tuple[int, int], ...]]:
    """The turns of other lanes that each turn waits for: those named by its instructions, and each
    channel's last.
    """
    count = len(lane)
    if lanes == 1 or not count:
        return [()] * count
    index = np.zeros(count, np.int64)
    for lane_number in range(lanes):
        index[lane == lane_number] = np.arange(np.count_nonzero(lane == lane_number))
    pairs = np.unique(np.stack([turn[lowered.code.waiter], turn[lowered.code.awaited]]), axis=1)
    needed: list[set[int]] = [set() for _ in range(count)]
    for later, earlier in pairs.T.tolist():
        needed[later].add(earlier)
    last: dict[int, int] = {}
    for turn_number, on in np.unique(np.stack([turn, channel]), axis=1).T.tolist():
        needed[turn_number].add(last.get(on, turn_number))
        last[on] = turn_number
    return [
        tuple(
            (int(lane[awaited]), int(index[awaited]))
            for awaited in sorted(earlier)
            if lane[awaited] != lane[turn_number]
        )
        for turn_number, earlier in enumerate(needed)
    ]


def _spans(plan: Plan, hosts: Sequence[int], process: int) -> dict[int, _TransferEnds]:
    """The ends of every transfer that involves the process's ranks."""
    host, itemsize, first_transfer = np.asarray(hosts), plan.dtype.itemsize, 0
    spans: dict[int, _TransferEnds] = {}
    for step in plan.steps():
        rows = np.flatnonzero((host[step.src_rank] == process) | (host[step.dst_rank] == process))
        sizes = (step.elements[rows] * itemsize).tolist()  # in memory, not on the way
        sources = zip(
            step.src_rank[rows].tolist(),
            step.src_buffer[rows].tolist(),
            (step.src_offset[rows] * itemsize).tolist(),
            sizes,
            strict=True,
        )
        targets = zip(
            step.dst_rank[rows].tolist(),
            step.dst_buffer[rows].tolist(),
            (step.dst_offset[rows] * itemsize).tolist(),
            sizes,
            strict=True,
        )
        transfers = (first_transfer + rows).tolist()
        wires = _wires(step)[rows].tolist()
        ends = map(_TransferEnds, sources, targets, wires)
        spans.update(zip(transfers, ends, strict=True))
        first_transfer += len(step)
    return spans


def _wires(step: PlanStep) -> NDArray[np.object_]:
    """The wire format of each transfer of a step."""
    wires = np.full(len(step), None, np.object_)
    if step.transits is not None:
        for wire, rows in step.transits.by_format():
            wires[rows] = wire
    return wires
