"""Follows some places of the vector on every rank, transfer by transfer: the data part of a proof
by symmetry.

Uses lists instead of arrays: only a few transfers of a step touch the chosen places, and numpy
would spend more time on calls than on computing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.proof import LEVELS
from simcoll.core.schedule import REDUCE, Repeat, Schedule, Step
from simcoll.core.step import distinct, spread
from simcoll.core.vocabulary import OrderLevel
from simcoll.errors import ScheduleError
from simcoll.proving.kernel import Contents, Fingerprints, play_few, requirements
from simcoll.proving.vector import Vector

Moves = tuple[list[int], list[int], list[bool]]

__all__ = ["follow"]


def follow(schedule: Schedule, vector: Vector, places: Ints, salt: bytes) -> OrderLevel:
    """Follow some places on every rank, in a schedule whose transfers never change the place.

    Returns
    -------
    str
        The level of the reduction order, one of :data:`simcoll.core.proof.LEVELS`, or nothing
        without reductions.

    Raises
    ------
    ScheduleError
        Names step, rank and chunk of a wrong chunk.
    """
    layout = schedule.layout
    n = schedule.nranks
    count = len(places)
    table = _Table(vector, places, 2 + bool(layout.scratch_slots))
    algebra = Fingerprints(
        salt, n, distinct(places % layout.chunks if vector.own_block[0] else places)
    )
    contents = Contents.nothing(algebra, n * table.width)
    rank = np.repeat(np.arange(n), count)
    place = np.tile(places, n)
    has_input = vector.holds(0, rank, place)
    rank_in = rank[has_input]
    place_in = place[has_input]
    start = table.rows(rank_in, np.full(len(rank_in), int(schedule.collective.in_place)), place_in)
    contents.put_inputs(start, rank_in, vector.chunks(0, place_in))

    def fail(number: int, row: int, reason: str) -> ScheduleError:
        row_rank, buffer_place = divmod(row, table.width)
        address = vector.chunk(buffer_place // count, int(places[buffer_place % count]))
        message = f"{schedule}: step {number}: rank {row_rank} {layout.name(address)} {reason}"
        return ScheduleError(message, step=number, rank=row_rank, chunk=address)

    cells = [contents.leaves.tolist(), contents.sums.tolist(), contents.trees.tolist()]
    number = 0
    y = int(algebra.points[-2])
    for number, (sources, targets, reduces) in _moves(schedule, table):
        fault = play_few(cells, y, sources, targets, reduces)
        if fault:
            row, reason = fault.split(" ", 1)
            raise fail(number, int(row), reason)
    leaves, sums, trees = (
        np.array(cells[0], np.uint32),
        *(np.array(words, np.uint64) for words in cells[1:]),
    )
    sees_output = vector.holds(1, rank, place)
    rank = rank[sees_output]
    place = place[sees_output]
    rows = table.rows(rank, np.ones(len(rank), np.int64), place)
    required_leaves, required_sums, reduced = requirements(
        algebra, layout, rank, vector.chunks(1, place)
    )
    wrong = np.flatnonzero((leaves[rows] != required_leaves) | (sums[rows] != required_sums))
    if len(wrong):
        raise fail(number, int(rows[wrong[0]]), "does not hold the right contributions at the end")
    if (reduced < 0).any():
        return ""
    order = np.argsort(place, kind="stable")
    begins = np.diff(place[order], prepend=-1) != 0
    trees = trees[rows[order]]
    of_place = trees[begins]
    if (trees != of_place[np.cumsum(begins) - 1]).any():
        return LEVELS[0]
    return LEVELS[3] if (of_place == of_place[0]).all() else LEVELS[2]


class _Table:
    """Numbers the followed cells of all ranks: row
    ``(rank * buffers + buffer) * len(places) + index of the place``.
    """

    def __init__(self, vector: Vector, places: Ints, buffers: int) -> None:
        self.vector = vector
        self.places = places
        self.buffers = buffers
        self.width = buffers * len(places)
        self.index = np.full(vector.size, -1, np.int64)  # of every place; -1: not followed
        self.index[places] = np.arange(len(places))

    def rows(self, rank: Ints, buffer: Ints, place: Ints) -> Ints:
        """Rows of followed cells."""
        return (rank * self.buffers + buffer) * len(self.places) + self.index[place]


def _moves(schedule: Schedule, table: _Table) -> Iterator[tuple[int, Moves]]:
    """Transfers between followed cells, by step, as rows of the table."""
    number = 0
    for block in schedule.blocks():
        if isinstance(block, Repeat):
            yield from _turns(block, number, table)
            number += block.count * len(block.steps)
            continue
        step = schedule.layout.one_address(block)
        row, place = _followed_reads(step, table)
        sources, targets = (
            table.rows(rank[row], table.vector.layout.region(chunk[row]), place)
            for rank, chunk in step.ends
        )
        if len(row):
            yield number, (sources.tolist(), targets.tolist(), (step.op[row] == REDUCE).tolist())
        number += 1


def _followed_reads(step: Step, table: _Table) -> tuple[Ints, Ints]:
    """Transfer and place of every read of a followed cell in a step."""
    start = table.vector.at(*step.ends[0])[1]
    followed = table.index >= 0
    if (step.count == 1).all():
        row = np.flatnonzero(followed[start])
        return row, start[row]
    followed_places = np.flatnonzero(followed)
    preceding = np.concatenate([[0], np.cumsum(followed)])
    row, within = spread(preceding[start + step.count] - preceding[start])
    return row, followed_places[preceding[start][row] + within]


def _turns(block: Repeat, first_step: int, table: _Table) -> Iterator[tuple[int, Moves]]:
    """Transfers of a repeat between followed cells; the iterations of each transfer solve one
    congruence.
    """
    modulus = block.modulus
    vector = table.vector
    # A place of a window is touched in iteration t by the transfer at place p if p + t * stride =
    # that place, modulo the window: one linear congruence per pair, so the iterations are computed
    # instead of searched. Its solutions, if any, recur every ``period`` iterations.
    stride = block.stride % modulus
    common = int(np.gcd(stride, modulus)) if stride else modulus
    period = modulus // common
    inverse = pow(stride // common, -1, period) if period > 1 else 0
    parts = [np.zeros((4, 0), np.int64)]
    for inner, step in enumerate(block.steps):
        start, offset = block.window(step.src_chunk)
        starts = distinct(start)
        window_index = np.searchsorted(starts, start)
        chunks = block.chunk_at(starts[:, None] + np.arange(modulus))
        places = vector.at(np.zeros_like(chunks), chunks)[1]
        from_buffer, to_buffer = (
            vector.layout.region(chunk) for chunk in (step.src_chunk, step.dst_chunk)
        )
        for window, target in np.argwhere(table.index[places] >= 0).tolist():
            row = np.flatnonzero((window_index == window) & ((target - offset) % common == 0))
            turn = (target - offset[row]) // common * inverse % period
            place = places[window, target]
            while (turn < block.count).any():
                row = row[turn < block.count]
                turn = turn[turn < block.count]
                parts.append(
                    np.stack(
                        [
                            turn * len(block.steps) + inner,
                            table.rows(step.src_rank[row], from_buffer[row], place),
                            table.rows(step.dst_rank[row], to_buffer[row], place),
                            step.op[row] == REDUCE,
                        ]
                    )
                )
                turn = turn + period
    columns = np.concatenate(parts, axis=1)
    columns = columns[:, np.argsort(columns[0], kind="stable")]
    when = columns[0]
    sources = columns[1].tolist()
    targets = columns[2].tolist()
    reduces = (columns[3] == 1).tolist()
    edges = [*np.flatnonzero(np.diff(when, prepend=-1)).tolist(), len(when)]
    for begin, end in pairwise(edges):
        yield (
            first_step + int(when[begin]),
            (sources[begin:end], targets[begin:end], reduces[begin:end]),
        )
