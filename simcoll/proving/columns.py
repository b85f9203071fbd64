"""Follows some places of the vector on every rank, transfer by transfer: the data part of a proof by symmetry.

Uses lists instead of arrays: only a few transfers of a step touch the chosen places, and numpy would spend more time on calls than on
computing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.hashing import token_at
from simcoll.core.proof import LEVELS
from simcoll.core.schedule import REDUCE, Repeat, Schedule, Step
from simcoll.core.step import distinct, spread
from simcoll.errors import ScheduleError
from simcoll.proving.vector import Vector

Moves = tuple[list[int], list[int], list[bool]]

__all__ = ["follow"]

MASK = 2**64 - 1


def _mix(z: int) -> int:
    """:func:`simcoll.core.hashing.mix` of one word."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def follow(schedule: Schedule, vector: Vector, places: Ints) -> str:
    """Follow some places on every rank, in a schedule whose transfers never change the place.

    Returns
    -------
    str
        The level of the reduction order, one of :data:`simcoll.core.proof.LEVELS`, or nothing without reductions.

    Raises
    ------
    ScheduleError
        Names step, rank and chunk of a wrong chunk.
    """
    collective, n, count = schedule.collective, schedule.nranks, len(places)
    table = _Table(vector, places, 2 + bool(schedule.layout.scratch_slots))
    memory = np.zeros((2, n, table.buffers, count), np.uint64)
    ranks = np.arange(n)[:, None]
    token = np.where(vector.holds(0, ranks, places), token_at(ranks * vector.size + places, 1), np.uint64(0))
    leaf = np.where(vector.holds(0, ranks, places), token_at(ranks, 2), np.uint64(0))
    memory[:, :, int(collective.in_place)] = token, leaf
    held, tree = (row.reshape(-1).tolist() for row in memory)

    def fail(number: int, row: int, reason: str) -> ScheduleError:
        at, where = divmod(row, table.width)
        address = vector.chunk(where // count, int(places[where % count]))
        message = f"{schedule}: step {number}: rank {at} {schedule.layout.name(address)} {reason}"
        return ScheduleError(message, step=number, rank=at, chunk=address)

    number = 0
    for number, (sources, targets, reduces) in _moves(schedule, table):
        if len(set(targets)) != len(targets):
            twice = max(targets, key=targets.count)
            raise fail(number, twice, "is written by several transfers; only the full proof handles that")
        values = [(held[row], tree[row]) for row in sources]  # all reads come before the first write
        for source, target, reduce, (value, made) in zip(sources, targets, reduces, values, strict=True):
            if not made:
                raise fail(number, source, "is read but holds nothing yet")
            if reduce:
                if not tree[target]:
                    raise fail(number, target, "is reduced into but holds nothing yet")
                value, made = (held[target] + value) & MASK, _mix((tree[target] + made) & MASK)  # noqa: PLW2901
            held[target], tree[target] = value, made
    found, trees = (np.array(row, np.uint64).reshape(n, table.buffers, count)[:, 1] for row in (held, tree))
    wanted = vector.holds(1, ranks, places)
    # A block of an all_gather has one input: the sum over the ranks is that of its owner.
    wrong = np.argwhere(wanted & ((found != token.sum(axis=0, dtype=np.uint64)) | (trees == 0)))
    if len(wrong):
        raise fail(number, int(wrong[0] @ [table.width, 1]) + count, "does not hold the right contributions at the end")
    if not collective.spec.reduces:
        return ""
    first = trees[wanted.argmax(axis=0), np.arange(count)]
    if ((trees != first) & wanted).any():
        return LEVELS[0]
    return LEVELS[3] if (first == first[0]).all() else LEVELS[2]


class _Table:
    """Numbers the followed cells of all ranks: row ``(rank * buffers + buffer) * len(places) + index of the place``."""

    def __init__(self, vector: Vector, places: Ints, buffers: int) -> None:
        self.vector, self.places, self.buffers = vector, places, buffers
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
        row, place = _chosen(step, table)
        sources, targets = (
            table.rows(rank[row], table.vector.layout.region(chunk[row]), place) for rank, chunk in step.ends
        )
        if len(row):
            yield number, (sources.tolist(), targets.tolist(), (step.op[row] == REDUCE).tolist())
        number += 1


def _chosen(step: Step, table: _Table) -> tuple[Ints, Ints]:
    """Transfer and place of every read of a followed cell in a step."""
    first, followed = table.vector.at(*step.ends[0])[1], table.index >= 0
    if (step.count == 1).all():
        row = np.flatnonzero(followed[first])
        return row, first[row]
    there = np.flatnonzero(followed)
    before = np.concatenate([[0], np.cumsum(followed)])
    row, within = spread(before[first + step.count] - before[first])
    return row, there[before[first][row] + within]


def _turns(block: Repeat, first: int, table: _Table) -> Iterator[tuple[int, Moves]]:
    """Transfers of a repeat between followed cells; the iterations of each transfer solve one congruence."""
    modulus, vector = block.modulus, table.vector
    # A place of a window is touched in iteration t by the transfer at place p if p + t * stride = that place, modulo the window: one linear
    # congruence per pair, so the iterations are computed instead of searched. Its solutions, if any, recur every ``period`` iterations.
    common = int(np.gcd(block.stride % modulus, modulus)) if block.stride % modulus else modulus
    period = modulus // common
    inverse = pow(block.stride % modulus // common, -1, period) if period > 1 else 0
    found = [np.zeros((4, 0), np.int64)]
    for inner, step in enumerate(block.steps):
        start, at = block.window(step.src_chunk)
        starts = distinct(start)
        which = np.searchsorted(starts, start)
        chunks = block.chunk_at(starts[:, None] + np.arange(modulus))
        places = vector.at(np.zeros_like(chunks), chunks)[1]
        from_buffer, to_buffer = (vector.layout.region(chunk) for chunk in (step.src_chunk, step.dst_chunk))
        for window, target in np.argwhere(table.index[places] >= 0).tolist():
            row = np.flatnonzero((which == window) & ((target - at) % common == 0))
            turn = (target - at[row]) // common * inverse % period
            place = places[window, target]
            while (turn < block.count).any():
                row, turn = row[turn < block.count], turn[turn < block.count]
                rows = (turn * len(block.steps) + inner, table.rows(step.src_rank[row], from_buffer[row], place),
                        table.rows(step.dst_rank[row], to_buffer[row], place), step.op[row] == REDUCE)  # fmt: skip
                found.append(np.stack(rows))
                turn = turn + period
    columns = np.concatenate(found, axis=1)
    columns = columns[:, np.argsort(columns[0], kind="stable")]
    when, sources, targets, reduces = columns[0], columns[1].tolist(), columns[2].tolist(), (columns[3] == 1).tolist()
    edges = [*np.flatnonzero(np.diff(when, prepend=-1)).tolist(), len(when)]
    for begin, end in pairwise(edges):
        yield first + int(when[begin]), (sources[begin:end], targets[begin:end], reduces[begin:end])
