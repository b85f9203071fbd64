"""Races in per-rank programs: two accesses to a chunk, one of them a write, that no message or lane
orders.

Instructions are ordered by their lane, by explicit waits, and by messages: a send happens before
its receive. A full FIFO that blocks a sender orders nothing here, because the capacity of a FIFO
depends on sizes and protocol.

In a play of the program each access is compared with the last write and the reads since then (as in
FastTrack: Flanagan and Freund, PLDI 2009); an access ordered with these is ordered with all. Vector
clocks (Lamport 1978; Mattern 1989) represent the order: for every instruction and lane, how far
that lane must have advanced before. Most accesses are ordered within their rank, whose clocks need
only its own lanes; the rest use clocks of the whole program.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
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
    # Level by level: no edge joins two instructions of one level, so the clocks of a level are
    # complete before the next one takes their maxima. With the edges sorted by their later end,
    # those that enter a level are one slice, and those of each row one run of it: one ``reduceat``
    # for a level. Levels are many and small, so their cuts are computed for all at once.
    number = run.order[rows]
    level = run.level[rows]
    row = np.full(len(wiring.lane), -1)
    row[number] = np.arange(len(number))
    earlier = row[edges[0]]
    later = row[edges[1]]
    selection = np.flatnonzero((earlier >= 0) & (later >= 0))
    selection = selection[np.argsort(later[selection], kind="stable")]
    earlier = earlier[selection]
    later = later[selection]
    clock = np.zeros((len(number), width), np.int32)
    own_column = column[wiring.lane[number]]
    reached = wiring.position[number] + 1
    starts = np.flatnonzero(np.diff(level, prepend=-1)).tolist()
    cuts = np.searchsorted(later, [*starts, len(number)]).tolist()
    first_edge = np.flatnonzero(np.diff(later, prepend=-1))  # first edge of each row that has one
    firsts = np.searchsorted(first_edge, cuts).tolist()
    level_rows = pairwise([*starts, len(number)])
    for (low, high), (low_edge, high_edge), span in zip(
        level_rows, pairwise(cuts), pairwise(firsts), strict=True
    ):
        leading = first_edge[slice(*span)]
        if len(leading):
            latest = np.maximum.reduceat(clock[earlier[low_edge:high_edge]], leading - low_edge)
            clock[later[leading]] = latest
        updated = low + np.flatnonzero(own_column[low:high] >= 0)
        clock[updated, own_column[updated]] = reached[updated]
    return clock, row


def _accesses(wiring: Wiring, run: Play) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Cell and instruction of every access, and whether it writes; by cell, in the order of the
    play.
    """
    code = wiring.code
    size = sum(wiring.program.buffers)
    reads = op_where(code, "reads")
    writes = op_where(code, "writes")
    updates = op_where(code, "updates")
    distance = np.abs(code.src - code.dst)
    overlapping = np.flatnonzero(reads & writes & (distance > 0) & (distance < code.count))
    if len(overlapping):
        _overlap(wiring, int(overlapping[0]))
    when = run.when()
    rank = code.rank[wiring.lane]
    accesses = []
    for mask, start, changes in (
        (reads, code.src, False),
        (updates, code.dst, False),
        (writes, code.dst, True),
    ):
        number = np.flatnonzero(mask)
        row, offset = spread(code.count[number])
        number = number[row]
        cell = rank[number] * size + start[number] + offset
        accesses.append((cell, number, np.full(len(number), changes)))
    cell, number, write = (np.concatenate(column) for column in zip(*accesses, strict=True))
    order = np.lexsort((write, when[number], cell))
    return cell[order], number[order], write[order]


def check_races(wiring: Wiring, run: Play) -> None:
    """Refuse unordered accesses.

    Parameters
    ----------
    wiring
        The program.
    run
        A complete play at any FIFO depth except 0, where instructions joined by a message share a
        level.

    Raises
    ------
    ScheduleError
        Names both accesses.
    """
    cell, number, write = _accesses(wiring, run)
    later, earlier = hazards(cell, write)
    across_lanes = wiring.lane[number[later]] != wiring.lane[number[earlier]]
    later = later[across_lanes]
    earlier = earlier[across_lanes]
    a = number[earlier]
    b = number[later]
    open_ = ~_ordered_within_rank(wiring, run, a, b)
    if open_.any():
        open_[open_] = ~_ordered_by_messages(wiring, run, a[open_], b[open_])
    if open_.any():
        when = run.when()
        unordered = np.flatnonzero(open_)
        worst = unordered[np.lexsort((when[a[unordered]], when[b[unordered]]))[0]]
        _race(
            wiring,
            int(cell[later[worst]]),
            (int(a[worst]), bool(write[earlier[worst]])),
            (int(b[worst]), bool(write[later[worst]])),
        )


def _ordered_within_rank(
    wiring: Wiring, run: Play, earlier: Ints, later: Ints
) -> NDArray[np.bool_]:
    """Mask of the pairs of instructions of one rank that are ordered within that rank."""
    code = wiring.code
    edges = local_order(wiring)
    column = np.arange(len(code.rank)) - wiring.first_lane[code.rank]
    lanes = np.bincount(code.rank, minlength=wiring.program.nranks)
    rank = code.rank[wiring.lane]
    cells = np.bincount(rank, minlength=len(lanes)) * lanes.max(initial=1)
    group = np.cumsum(cells) // CELLS  # ranks processed together
    result = np.zeros(len(later), np.bool_)
    pair_group = group[rank[later]]
    for number in np.unique(pair_group).tolist():
        rows = np.flatnonzero(group[rank[run.order]] == number)
        clock, row = _clocks(wiring, run, edges, rows, column, int(lanes.max()))
        pairs = np.flatnonzero(pair_group == number)
        lane = wiring.lane[earlier[pairs]]
        progress = clock[row[later[pairs]], column[lane]]
        result[pairs] = progress > wiring.position[earlier[pairs]]
    return result


def _everywhere(wiring: Wiring, run: Play, lanes: Ints) -> Iterator[tuple[Ints, Clocks, Ints]]:
    """Clocks of some lanes over the whole program, a few at a time: column of each lane, clocks,
    and row of each instruction.
    """
    local = local_order(wiring)
    edges = (
        np.concatenate([local[0], wiring.sends]),
        np.concatenate([local[1], wiring.recvs]),
    )
    batch = max(1, CELLS // max(1, len(wiring.lane)))
    for begin in range(0, len(lanes), batch):
        some = lanes[begin : begin + batch]
        column = np.full(len(wiring.code.rank), -1)
        column[some] = np.arange(len(some))
        yield column, *_clocks(wiring, run, edges, np.arange(len(run.order)), column, len(some))


def _ordered_by_messages(
    wiring: Wiring, run: Play, earlier: Ints, later: Ints
) -> NDArray[np.bool_]:
    """Mask of the pairs of instructions that are ordered, possibly by messages between ranks."""
    result = np.zeros(len(later), np.bool_)
    lane = wiring.lane[earlier]
    for column, clock, row in _everywhere(wiring, run, np.unique(lane)):
        pairs = np.flatnonzero(column[lane] >= 0)
        progress = clock[row[later[pairs]], column[lane[pairs]]]
        result[pairs] = progress > wiring.position[earlier[pairs]]
    return result


def most_in_flight(wiring: Wiring, run: Play) -> int:
    """Most messages in flight on a connection with slow receivers: sends not ordered after an
    earlier receive.
    """
    highest = 0
    lane = wiring.lane[wiring.recvs]
    longest = int(wiring.position.max(initial=0)) + 2
    receives = wiring.connection * longest + wiring.position[wiring.recvs]
    base = np.arange(len(receives)) - wiring.ordinal
    for column, clock, row in _everywhere(wiring, run, np.unique(lane)):
        messages = np.flatnonzero(column[lane] >= 0)
        progress = clock[row[wiring.sends[messages]], column[lane[messages]]]
        key = wiring.connection[messages] * longest + progress
        received = np.searchsorted(receives, key) - base[messages]
        in_flight = wiring.ordinal[messages] + 1 - received
        highest = max(highest, int(in_flight.max(initial=0)))
    return highest


def _overlap(wiring: Wiring, number: int) -> NoReturn:
    """Refuse an instruction whose source and destination overlap without being identical."""
    code = wiring.code
    conflict = (
        f"races with itself: reads and writes {code.count[number]} chunks that overlap, in "
        "any order"
    )
    chunk = int(max(code.src[number], code.dst[number]))
    raise wiring.fault(number, f"{wiring.where(number)} {conflict}", chunk=chunk)


def _race(
    wiring: Wiring, cell: int, earlier: tuple[int, bool], later: tuple[int, bool]
) -> NoReturn:
    rank, chunk = divmod(cell, sum(wiring.program.buffers))
    lines = [
        f"  {wiring.where(number)} {'writes' if write else 'reads'} it"
        for number, write in (earlier, later)
    ]
    headline = f"race on rank {rank} {place(wiring.program, chunk)}: nothing orders these two"
    raise wiring.fault(later[0], "\n".join([headline, *lines]), chunk=chunk)
