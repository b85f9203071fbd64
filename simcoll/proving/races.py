"""Races in per-rank programs: two accesses to a chunk, one of them a write, that no message or lane orders.

Instructions are ordered by their lane, by explicit waits, and by messages: a send happens before its receive. A full FIFO that blocks a
sender orders nothing here, because the capacity of a FIFO depends on sizes and protocol.

In a play of the program each access is compared with the last write and the reads since then (as in FastTrack: Flanagan and Freund,
PLDI 2009); an access ordered with these is ordered with all. Vector clocks (Lamport 1978; Mattern 1989) represent the order: for every
instruction and lane, how far that lane must have advanced before. Most accesses are ordered within their rank, whose clocks need only
its own lanes; the rest use clocks of the whole program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints, Shorts
from simcoll.core.hazards import hazards
from simcoll.core.rank_program import place
from simcoll.core.step import spread
from simcoll.core.wiring import Wiring, op_where
from simcoll.proving.deadlock import Play, local_order

Clocks = Shorts

__all__ = ["check_races", "most_in_flight"]

CELLS = 2**24
"""Number of clock entries held at a time."""


def _clocks(
    wiring: Wiring, run: Play, edges: tuple[Ints, Ints], rows: Ints, column: Ints, width: int
) -> tuple[Clocks, Ints]:
    """Clocks of some lanes at the completion of some instructions, and the row of each instruction.

    Parameters
    ----------
    edges
        Pairs of instructions, earlier and later; both among the rows.
    rows
        Positions in the play of the instructions to follow.
    column
        Column of each lane, -1 for lanes that are not needed.
    width
        Number of columns.
    """
    number, level = run.order[rows], run.level[rows]
    row = np.full(len(wiring.lane), -1)
    row[number] = np.arange(len(number))
    before, after = row[edges[0]], row[edges[1]]
    kept = np.flatnonzero((before >= 0) & (after >= 0))
    kept = kept[np.argsort(after[kept], kind="stable")]
    before, after = before[kept], after[kept]
    clock = np.zeros((len(number), width), np.int32)
    own, reached = column[wiring.lane[number]], wiring.position[number] + 1
    starts = np.flatnonzero(np.diff(level, prepend=-1)).tolist()
    cuts = np.searchsorted(after, [*starts, len(number)]).tolist()
    first = np.flatnonzero(np.diff(after, prepend=-1))  # first edge of each row that has one
    firsts = np.searchsorted(first, cuts).tolist()
    for low, high, low_edge, high_edge, a, b in zip(
        starts, [*starts[1:], len(number)], cuts[:-1], cuts[1:], firsts[:-1], firsts[1:], strict=True
    ):
        if a < b:
            clock[after[first[a:b]]] = np.maximum.reduceat(clock[before[low_edge:high_edge]], first[a:b] - low_edge)
        asked = low + np.flatnonzero(own[low:high] >= 0)
        clock[asked, own[asked]] = reached[asked]
    return clock, row


def _accesses(wiring: Wiring, run: Play) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Cell and instruction of every access, and whether it writes; by cell, in the order of the play."""
    code, size = wiring.code, sum(wiring.program.buffers)
    reads, writes, updates = (op_where(code, trait) for trait in ("reads", "writes", "updates"))
    both = np.flatnonzero(reads & writes & (code.src != code.dst) & (np.abs(code.src - code.dst) < code.count))
    if len(both):
        _overlap(wiring, int(both[0]))
    when = run.when()
    rank = code.rank[wiring.lane]
    found = []
    for which, start, changes in ((reads, code.src, False), (updates, code.dst, False), (writes, code.dst, True)):
        number = np.flatnonzero(which)
        row, offset = spread(code.count[number])
        number = number[row]
        found.append((rank[number] * size + start[number] + offset, number, np.full(len(number), changes)))
    cell, number, write = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((write, when[number], cell))
    return cell[order], number[order], write[order]


def check_races(wiring: Wiring, run: Play) -> None:
    """Refuse unordered accesses.

    Parameters
    ----------
    wiring
        The program.
    run
        A complete play at any FIFO depth except 0, where instructions joined by a message share a level.

    Raises
    ------
    ScheduleError
        Names both accesses.
    """
    cell, number, write = _accesses(wiring, run)
    later, earlier = hazards(cell, write)
    apart = wiring.lane[number[later]] != wiring.lane[number[earlier]]
    later, earlier = later[apart], earlier[apart]
    a, b = number[earlier], number[later]
    open_ = ~_ordered_inside(wiring, run, a, b)
    if open_.any():
        open_[open_] = ~_ordered(wiring, run, a[open_], b[open_])
    if open_.any():
        when = run.when()
        left = np.flatnonzero(open_)
        worst = left[np.lexsort((when[a[left]], when[b[left]]))[0]]
        ends = ((int(a[worst]), bool(write[earlier[worst]])), (int(b[worst]), bool(write[later[worst]])))
        _race(wiring, int(cell[later[worst]]), *ends)


def _ordered_inside(wiring: Wiring, run: Play, earlier: Ints, later: Ints) -> NDArray[np.bool_]:
    """Mask of the pairs of instructions of one rank that are ordered within that rank."""
    code, edges = wiring.code, local_order(wiring)
    column = np.arange(len(code.rank)) - wiring.first_lane[code.rank]
    lanes = np.bincount(code.rank, minlength=wiring.program.nranks)
    rank = code.rank[wiring.lane]
    cells = np.bincount(rank, minlength=len(lanes)) * lanes.max(initial=1)
    group = np.cumsum(cells) // CELLS  # ranks processed together
    result, wanted = np.zeros(len(later), np.bool_), group[rank[later]]
    for each in np.unique(wanted).tolist():
        rows = np.flatnonzero(group[rank[run.order]] == each)
        clock, row = _clocks(wiring, run, edges, rows, column, int(lanes.max()))
        here = np.flatnonzero(wanted == each)
        known = clock[row[later[here]], column[wiring.lane[earlier[here]]]]
        result[here] = known > wiring.position[earlier[here]]
    return result


def _everywhere(wiring: Wiring, run: Play, lanes: Ints) -> Iterator[tuple[Ints, Clocks, Ints]]:
    """Clocks of some lanes over the whole program, a few at a time: column of each lane, clocks, and row of each instruction."""
    inside = local_order(wiring)
    edges = np.concatenate([inside[0], wiring.sends]), np.concatenate([inside[1], wiring.recvs])
    each = max(1, CELLS // max(1, len(wiring.lane)))
    for begin in range(0, len(lanes), each):
        some = lanes[begin : begin + each]
        column = np.full(len(wiring.code.rank), -1)
        column[some] = np.arange(len(some))
        yield column, *_clocks(wiring, run, edges, np.arange(len(run.order)), column, len(some))


def _ordered(wiring: Wiring, run: Play, earlier: Ints, later: Ints) -> NDArray[np.bool_]:
    """Mask of the pairs of instructions that are ordered, possibly by messages between ranks."""
    result, lane = np.zeros(len(later), np.bool_), wiring.lane[earlier]
    for column, clock, row in _everywhere(wiring, run, np.unique(lane)):
        here = np.flatnonzero(column[lane] >= 0)
        known = clock[row[later[here]], column[lane[here]]]
        result[here] = known > wiring.position[earlier[here]]
    return result


def most_in_flight(wiring: Wiring, run: Play) -> int:
    """Most messages in flight on a connection with slow receivers: sends not ordered after an earlier receive."""
    most, lane = 0, wiring.lane[wiring.recvs]
    longest = int(wiring.position.max(initial=0)) + 2
    taken = wiring.connection * longest + wiring.position[wiring.recvs]
    first = np.arange(len(taken)) - wiring.ordinal
    for column, clock, row in _everywhere(wiring, run, np.unique(lane)):
        here = np.flatnonzero(column[lane] >= 0)
        known = clock[row[wiring.sends[here]], column[lane[here]]]
        received = np.searchsorted(taken, wiring.connection[here] * longest + known) - first[here]
        most = max(most, int((wiring.ordinal[here] + 1 - received).max(initial=0)))
    return most


def _overlap(wiring: Wiring, number: int) -> NoReturn:
    """Refuse an instruction whose source and destination overlap without being identical."""
    code = wiring.code
    what = f"races with itself: reads and writes {code.count[number]} chunks that overlap, in any order"
    raise wiring.fault(number, f"{wiring.where(number)} {what}", chunk=int(max(code.src[number], code.dst[number])))


def _race(wiring: Wiring, cell: int, first: tuple[int, bool], second: tuple[int, bool]) -> NoReturn:
    rank, chunk = divmod(cell, sum(wiring.program.buffers))
    lines = [f"  {wiring.where(number)} {'writes' if write else 'reads'} it" for number, write in (first, second)]
    told = f"race on rank {rank} {place(wiring.program, chunk)}: nothing orders these two"
    raise wiring.fault(second[0], "\n".join([told, *lines]), chunk=chunk)
