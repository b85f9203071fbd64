"""One process's part of a plan's lowering, as byte spans batched into turns, independent of the transport.

The instructions are those of :func:`simcoll.proving.lowering.lowering`. The work of a process's ranks in one step on one channel is a
turn: first copies of data that the step overwrites, then one group of sends and receives (copies are received in place, operands of
reductions in staging memory), then copies within a rank and reductions. Each channel is a lane of turns, which waits for other lanes
only where an instruction does. Batching only adds waits: tests read the turns back as a program and check its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.plan import Plan
from simcoll.core.rank_program import NAMES, OPS, Op
from simcoll.proving.lowering import Lowering, lowering

__all__ = ["STAGING", "Part", "Span", "Turn", "part"]

STAGING = -1
"""In place of a rank: the process's staging memory; the buffer is the number of the lane."""
ALIGN = 64

Span: TypeAlias = tuple[int, int, int, int]
"""Rank (or ``STAGING``), buffer, first byte, bytes."""
Message: TypeAlias = tuple[Span, int, int]
"""Location, peer process and channel of a message."""


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
    recvs, sends
        The group of messages.
    after
        ``(reduce, target, source)``: reductions and copies after the group, in order.
    """

    step: int
    waits: tuple[tuple[int, int], ...]
    aside: tuple[tuple[Span, Span], ...]
    recvs: tuple[Message, ...]
    sends: tuple[Message, ...]
    after: tuple[tuple[bool, Span, Span], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The turns of a process by lane, and the staging memory that the turns of each lane share."""

    lanes: tuple[tuple[Turn, ...], ...]
    staging_bytes: tuple[int, ...]


@dataclass(slots=True)
class _Writer:
    """Builder of a turn."""

    lane: int
    used: int = 0
    aside: list[tuple[Span, Span]] = field(default_factory=list)
    recvs: list[Message] = field(default_factory=list)
    sends: list[Message] = field(default_factory=list)
    after: list[tuple[int, bool, Span, Span]] = field(default_factory=list)  # with how many must come before
    held: dict[int, Span] = field(default_factory=dict)  # what a transfer has set aside

    def staging(self, size_bytes: int) -> Span:
        """Reserve staging memory for this turn."""
        first = self.used
        self.used += -(-max(size_bytes, 1) // ALIGN) * ALIGN
        return STAGING, self.lane, first, size_bytes

    def write(self, op: Op, transfer: int, source: Span, target: Span, peer: tuple[int, int], depth: int) -> None:
        """Add an instruction. Messages stay in the order of transfers, which both ends share."""
        sync = source[3] == 0
        if sync:
            source, target = self.staging(1), self.staging(1)
        source = self.held.get(transfer, source)
        if op.sends:
            self.sends.append((source, *peer))
        elif op.receives:
            landing = self.staging(target[3]) if op.reads else target
            self.recvs.append((landing, *peer))
            if op.reads:
                self.after.append((depth, True, target, landing))
        elif not sync:
            self.after.append((depth, op.updates, target, source))

    def set_aside(self, transfer: int, source: Span) -> None:
        """Save a source before the group."""
        self.held[transfer] = self.staging(source[3])
        self.aside.append((self.held[transfer], source))


def part(plan: Plan, hosts: Sequence[int], process: int, *, apart: bool = False) -> Part:
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
    found = lowering(plan, np.flatnonzero(np.asarray(hosts) == process).tolist())
    code, lanes = found.code, plan.nchannels if apart else 1
    channel = np.repeat(code.channel, np.diff(code.start))
    lane = np.where(_joint(plan, found), 0, channel) if apart else np.zeros_like(channel)
    keys, turn = np.unique(found.step * lanes + lane, return_inverse=True)
    aside = (code.op == NAMES.index("copy")) & (code.dst >= plan.schedule.layout.size)
    order = np.lexsort((~aside, found.transfer, turn))
    waits = _waits(found, turn, keys % lanes, channel, lanes)
    spans = _spans(plan, hosts, process)
    writers = [_Writer(each) for each in (keys % lanes).tolist()]
    columns = (turn, code.op, aside, found.transfer, code.recv_from, code.send_to, channel, _depth(found, turn))
    for at, op, first, transfer, source, target, on, depth in zip(*(c[order].tolist() for c in columns), strict=True):
        if first:
            writers[at].set_aside(transfer, spans[transfer][0])
        else:
            peer = hosts[max(source, target)] if source >= 0 or target >= 0 else process
            writers[at].write(OPS[NAMES[op]], transfer, *spans[transfer], (peer, on if apart else 0), depth)
    result: list[list[Turn]] = [[] for _ in range(lanes)]
    staging = [0] * lanes
    for step, writer, needed in zip((keys // lanes).tolist(), writers, waits, strict=True):
        after = tuple(each[1:] for each in sorted(writer.after, key=itemgetter(0)))
        turn_of = Turn(step, needed, tuple(writer.aside), tuple(writer.recvs), tuple(writer.sends), after)
        result[writer.lane].append(turn_of)
        staging[writer.lane] = max(staging[writer.lane], writer.used)
    return Part(tuple(map(tuple, result)), tuple(staging))


def _joint(plan: Plan, found: Lowering) -> NDArray[np.bool_]:
    """Mark steps whose channels wait for each other: there all processes take all channels as one turn.

    Turns that wait for turns of their own step could form a cycle through other processes, where single instructions do not.
    """
    if not plan.waits:
        return np.zeros(len(found.step), np.bool_)
    begin = np.cumsum([0, *(len(step) for step in plan.steps())])
    numbers = np.array([step.step for step in plan.steps()])
    pairs = np.array([(later, earlier) for later, each in plan.waits.items() for earlier in each]).T
    later, earlier = np.searchsorted(begin, pairs, "right") - 1
    return np.isin(found.step, numbers[later[later == earlier]])


def _depth(found: Lowering, turn: Ints) -> Ints:
    """The depth of each instruction within its turn; operands of one chunk share a depth."""
    code, depth = found.code, np.zeros(len(turn), np.int64)
    inside = turn[code.waiter] == turn[code.awaited]
    waiter, awaited = code.waiter[inside], code.awaited[inside]
    while (depth[waiter] <= depth[awaited]).any():
        np.maximum.at(depth, waiter, depth[awaited] + 1)
    return depth


def _waits(found: Lowering, turn: Ints, lane: Ints, channel: Ints, lanes: int) -> list[tuple[tuple[int, int], ...]]:
    """The turns of other lanes that each turn waits for: those named by its instructions, and each channel's last."""
    count = len(lane)
    if lanes == 1 or not count:
        return [()] * count
    index = np.zeros(count, np.int64)
    for each in range(lanes):
        index[lane == each] = np.arange(np.count_nonzero(lane == each))
    pairs = np.unique(np.stack([turn[found.code.waiter], turn[found.code.awaited]]), axis=1)
    needed: list[set[int]] = [set() for _ in range(count)]
    for later, earlier in pairs.T.tolist():
        needed[later].add(earlier)
    last: dict[int, int] = {}
    for at, on in np.unique(np.stack([turn, channel]), axis=1).T.tolist():
        needed[at].add(last.get(on, at))
        last[on] = at
    return [
        tuple((int(lane[each]), int(index[each])) for each in sorted(earlier) if lane[each] != lane[at])
        for at, earlier in enumerate(needed)
    ]


def _spans(plan: Plan, hosts: Sequence[int], process: int) -> dict[int, tuple[Span, Span]]:
    """Source and target spans of every transfer that involves the process's ranks."""
    host, item, first = np.asarray(hosts), plan.dtype.itemsize, 0
    found: dict[int, tuple[Span, Span]] = {}
    for step in plan.steps():
        here = np.flatnonzero((host[step.src_rank] == process) | (host[step.dst_rank] == process))
        columns = (
            first + here, step.src_rank[here], step.src_buffer[here], step.src_offset[here] * item,
            step.dst_rank[here], step.dst_buffer[here], step.dst_offset[here] * item, step.size_bytes[here],
        )  # fmt: skip
        for number, src, src_buffer, src_at, dst, dst_buffer, dst_at, size in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            found[number] = (src, src_buffer, src_at, size), (dst, dst_buffer, dst_at, size)
        first += len(step)
    return found
