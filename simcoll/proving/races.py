"""Races in per-rank programs: every two accesses to a chunk, one of them a write, must be ordered whatever the timing.

What orders instructions is the order of their lane, their explicit waits, and messages: a send happens before its
receive. That a full FIFO holds a sender back orders nothing here: how much fits in a FIFO is a matter of sizes and
protocol.

Vector clocks (Lamport 1978; Mattern 1989): for every instruction and lane, how far that lane must have come before.
In a play of the program each access is compared with the last write and the reads since (as FastTrack does: Flanagan
and Freund, PLDI 2009); ordered with these, it is ordered with all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from simcoll.core.program import OPS, place
from simcoll.errors import ConfigError, ScheduleError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.core.program import Instruction, Wiring

    Clock = NDArray[np.int32]

__all__ = ["check_races"]

MAX_LANES = 16_384


class _Clocks:
    """How far every lane has come before each instruction, kept only as long as somebody may ask."""

    def __init__(self, wiring: Wiring) -> None:
        lanes = len(wiring.code)
        self.wiring = wiring
        self.now = np.zeros((lanes, lanes), np.int32)
        self.flying: list[deque[Clock]] = [deque() for _ in wiring.connections]
        self.asked = Counter(
            (wiring.first[wiring.ranks[lane]] + other, position)
            for lane, code in enumerate(wiring.code)
            for instruction in code
            for other, position in instruction.waits
        )
        self.kept: dict[tuple[int, int], Clock] = {}

    def run(self, lane: int, position: int) -> Clock:
        """The clock of the next instruction of a lane."""
        wiring = self.wiring
        clock: Clock = self.now[lane]
        base = wiring.first[wiring.ranks[lane]]
        for other, awaited in wiring.code[lane][position].waits:
            key = (base + other, awaited)
            np.maximum(clock, self.kept[key], out=clock)
            self.asked[key] -= 1
            if not self.asked[key]:
                del self.kept[key]
        incoming, outgoing = wiring.incoming[lane][position], wiring.outgoing[lane][position]
        if incoming >= 0:
            np.maximum(clock, self.flying[incoming].popleft(), out=clock)
        clock[lane] = position + 1
        if outgoing >= 0:
            self.flying[outgoing].append(clock.copy())
        if (lane, position) in self.asked:
            self.kept[lane, position] = clock.copy()
        return clock


def check_races(wiring: Wiring, order: list[tuple[int, int]]) -> int:
    """Follow a complete play and refuse accesses that nothing orders.

    Parameters
    ----------
    wiring
        The program.
    order
        A complete play at any FIFO depth.

    Returns
    -------
    int
        The most messages that can be in flight on a connection when receivers are slow: sends that happen before, or
        beside, the receive of an earlier message.

    Raises
    ------
    ScheduleError
        Naming both accesses.
    ConfigError
        For more lanes than can be followed.
    """
    if len(wiring.code) > MAX_LANES:
        raise ConfigError(
            f"{wiring.program} has {len(wiring.code)} lanes; at most {MAX_LANES} can be checked for races"
        )
    clocks = _Clocks(wiring)
    written: dict[tuple[int, int], tuple[int, int]] = {}
    read: dict[tuple[int, int], dict[int, int]] = {}
    sent = [0] * len(wiring.connections)
    most = 0
    for lane, position in order:
        instruction = wiring.code[lane][position]
        clock, rank = clocks.run(lane, position), wiring.ranks[lane]
        outgoing = wiring.outgoing[lane][position]
        if outgoing >= 0:
            connection = wiring.connections[outgoing]
            received = bisect_left(connection.recvs, int(clock[connection.receiver]))
            most, sent[outgoing] = max(most, sent[outgoing] + 1 - received), sent[outgoing] + 1
        reads, writes = _accesses(wiring, lane, position, instruction)
        for chunk in reads:
            cell = (rank, chunk)
            last = written.get(cell)
            if last is not None and clock[last[0]] <= last[1]:
                _race(wiring, cell, (*last, "writes"), (lane, position, "reads"))
            read.setdefault(cell, {})[lane] = position
        for chunk in writes:
            cell = (rank, chunk)
            last = written.get(cell)
            if last is not None and clock[last[0]] <= last[1]:
                _race(wiring, cell, (*last, "writes"), (lane, position, "writes"))
            for other, when in read.pop(cell, {}).items():
                if clock[other] <= when:
                    _race(wiring, cell, (other, when, "reads"), (lane, position, "writes"))
            written[cell] = (lane, position)
    return most


def _accesses(wiring: Wiring, lane: int, position: int, instruction: Instruction) -> tuple[list[int], range]:
    """Chunks that an instruction reads and writes. Both at once must be the same or apart."""
    op, src, dst, count = OPS[instruction.op], instruction.src, instruction.dst, instruction.count
    if op.reads and op.writes and src != dst and abs(src - dst) < count:
        chunk = max(src, dst)
        raise ScheduleError(
            f"{wiring.program}: {wiring.where(lane, position)} races with itself: reads and writes {count} chunks that "
            "overlap, in any order",
            step=position,
            rank=wiring.ranks[lane],
            chunk=chunk,
        )
    reads = list(range(src, src + count)) if op.reads else []
    if op.updates:
        reads.extend(range(dst, dst + count))
    return reads, range(dst, dst + count) if op.writes else range(0)


def _race(wiring: Wiring, cell: tuple[int, int], first: tuple[int, int, str], second: tuple[int, int, str]) -> NoReturn:
    rank, chunk = cell
    lines = [f"  {wiring.where(lane, position)} {verb} it" for lane, position, verb in (first, second)]
    raise ScheduleError(
        f"{wiring.program}: race on rank {rank} {place(wiring.program, chunk)}: nothing orders these two\n"
        + "\n".join(lines),
        step=second[1],
        rank=rank,
        channel=wiring.program.lanes[rank][second[0] - wiring.first[rank]].channel,
        chunk=chunk,
    )
