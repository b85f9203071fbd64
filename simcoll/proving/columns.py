"""Follows some pieces of an all_reduce on every rank, transfer by transfer: the data part of a proof by symmetry.

Uses lists instead of arrays: only a few transfers of a step touch the chosen pieces, and numpy would spend more time on calls than on
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
from simcoll.core.step import spread
from simcoll.errors import ScheduleError

Moves = tuple[list[int], list[int], list[bool]]

__all__ = ["follow"]

MASK = 2**64 - 1


def _mix(z: int) -> int:
    """:func:`simcoll.core.hashing.mix` of one word."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def follow(schedule: Schedule, pieces: Ints) -> str:
    """Follow some pieces on every rank, in a schedule whose transfers never change the piece.

    Returns
    -------
    str
        The level of the reduction order, one of :data:`simcoll.core.proof.LEVELS`.

    Raises
    ------
    ScheduleError
        Names step, rank and chunk of a wrong chunk.
    """
    layout, n, count = schedule.layout, schedule.nranks, len(pieces)
    width, chunks = 2 * count, np.concatenate([pieces, layout.output_base + pieces])
    place = np.full(layout.size, -1, np.int64)
    place[chunks] = np.arange(width)
    rank, piece = np.repeat(np.arange(n), count), np.tile(pieces, n)
    memory = np.zeros((2, n, width), np.uint64)
    token = token_at(rank * layout.chunks + piece, 1).reshape(n, count)
    inputs = slice(count, width) if schedule.collective.in_place else slice(count)
    memory[:, :, inputs] = token, token_at(rank, 2).reshape(n, count)
    held, tree = (row.reshape(-1).tolist() for row in memory)

    def fail(number: int, row: int, reason: str) -> ScheduleError:
        at, where = divmod(row, width)
        address = int(chunks[where])
        message = f"{schedule}: step {number}: rank {at} {layout.name(address)} {reason}"
        return ScheduleError(message, step=number, rank=at, chunk=address)

    number = 0
    for number, (sources, targets, reduces) in _moves(schedule, place, width):
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
    found, trees = (np.array(row, np.uint64).reshape(n, width)[:, count:] for row in (held, tree))
    wrong = np.argwhere((found != token.sum(axis=0, dtype=np.uint64)) | (trees == 0))
    if len(wrong):
        raise fail(number, int(wrong[0] @ [width, 1]) + count, "does not hold the right contributions at the end")
    if (trees != trees[0]).any():
        return LEVELS[0]
    return LEVELS[3] if (trees == trees[0, 0]).all() else LEVELS[2]


def _moves(schedule: Schedule, place: Ints, width: int) -> Iterator[tuple[int, Moves]]:
    """Transfers between followed chunks, by step, as rows ``rank * width + place``."""
    number = 0
    for block in schedule.blocks():
        if isinstance(block, Repeat):
            yield from _turns(block, number, place, width)
            number += block.count * len(block.steps)
            continue
        step = schedule.layout.one_address(block)
        row, offset = _chosen(step, place)
        sources, targets = (rank[row] * width + place[chunk[row] + offset] for rank, chunk in step.ends)
        if len(row):
            yield number, (sources.tolist(), targets.tolist(), (step.op[row] == REDUCE).tolist())
        number += 1


def _chosen(step: Step, place: Ints) -> tuple[Ints, Ints]:
    """Transfer and offset of every read of a followed chunk in a step."""
    if (step.count == 1).all():
        row = np.flatnonzero(place[step.src_chunk] >= 0)
        return row, np.zeros_like(row)
    there = np.flatnonzero(place >= 0)
    before = np.concatenate([[0], np.cumsum(place >= 0)])
    first = before[step.src_chunk]
    row, within = spread(before[step.src_chunk + step.count] - first)
    return row, there[first[row] + within] - step.src_chunk[row]


def _turns(block: Repeat, first: int, place: Ints, width: int) -> Iterator[tuple[int, Moves]]:
    """Transfers of a repeat between followed chunks; the iterations of each transfer solve one congruence."""
    chunks, base, modulus = np.flatnonzero(place >= 0), block.base, block.modulus
    # Chunk c is touched in iteration t by the transfer at place p if p + t * stride = c modulo the window: one linear congruence per
    # pair, so the iterations are computed instead of searched. Its solutions, if any, recur every ``period`` iterations.
    common = int(np.gcd(block.stride % modulus, modulus)) if block.stride % modulus else modulus
    period = modulus // common
    inverse = pow(block.stride % modulus // common, -1, period) if period > 1 else 0
    found = [np.zeros((4, 0), np.int64)]
    for inner, step in enumerate(block.steps):
        at = (step.src_chunk - base) % modulus
        window = step.src_chunk - at
        for chunk in chunks.tolist():
            target = (chunk - base) % modulus
            row = np.flatnonzero((window == chunk - target) & ((target - at) % common == 0))
            turn = (target - at[row]) // common * inverse % period
            while (turn < block.count).any():
                row, turn = row[turn < block.count], turn[turn < block.count]
                other = step.dst_chunk[row] - at[row] + target
                rows = (turn * len(block.steps) + inner, step.src_rank[row] * width + place[chunk],
                        step.dst_rank[row] * width + place[other], step.op[row] == REDUCE)  # fmt: skip
                found.append(np.stack(rows))
                turn = turn + period
    columns = np.concatenate(found, axis=1)
    columns = columns[:, np.argsort(columns[0], kind="stable")]
    when, sources, targets, reduces = columns[0], columns[1].tolist(), columns[2].tolist(), (columns[3] == 1).tolist()
    edges = [*np.flatnonzero(np.diff(when, prepend=-1)).tolist(), len(when)]
    for begin, end in pairwise(edges):
        yield first + int(when[begin]), (sources[begin:end], targets[begin:end], reduces[begin:end])
