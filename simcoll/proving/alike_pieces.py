"""Finds the pieces of a vector that the same transfers move, of which a proof follows one.

In a pipeline every piece goes the same way, only later than its predecessor. If every transfer
keeps its piece, the content of a piece depends only on the transfers that move it: their ends,
operations and channels, in order, and which of them share a step. Pieces that agree in all of these
end alike, so one of them stands for all.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.hashing import token_at
from simcoll.core.schedule import SYNC, Repeat, Schedule, Step, joined
from simcoll.core.step import by_chunk

__all__ = ["one_of_each"]

FEWEST = 128
"""From this number of pieces on, finding those that are alike is faster than following all: it
takes 1.3 times as long with 64 pieces, 0.9 with 128 and 0.8 with 256 (nccl_tree of 64 ranks).
"""
SAVED = 4
"""Least number of pieces for each that is followed."""
MOST_ROWS = 1 << 17
"""Limit of the transfers held at a time."""


class _PieceTransfers(NamedTuple):
    """Transfers of single pieces, with the number of the step of each."""

    step: Step
    number: Ints


def one_of_each(schedule: Schedule) -> tuple[list[Schedule], int, int]:
    """The schedule of one piece of each kind, and the numbers of steps and transfers of the whole.

    No schedule if that would not save much, or a transfer changes its piece.
    """
    layout = schedule.layout
    collective = schedule.collective
    if (
        layout.chunks < FEWEST
        or collective.nblocks != 1
        or collective.in_place
        or layout.scratch.size
    ):
        return [], 0, 0
    rows, steps, transfers = _transfers(schedule)
    pieces = None if rows is None else _representatives(schedule, rows)
    if rows is None or pieces is None or SAVED * len(pieces) > layout.chunks:
        return [], 0, 0
    return [_restrict(schedule, rows, pieces)], steps, transfers


def _transfers(schedule: Schedule) -> tuple[_PieceTransfers | None, int, int]:
    """All transfers chunk by chunk, in the order of their steps, and the numbers of steps and
    transfers.

    No transfers if one changes its piece, or they are many.
    """
    layout = schedule.layout
    rows_by_block = []
    number = row_count = transfers = 0
    for block in schedule.blocks():
        if not schedule.known.checked:
            schedule.check_block(number, block)
        steps, turns = (block.steps, block.count) if isinstance(block, Repeat) else ((block,), 1)
        row_count += turns * sum(int(step.count.sum()) for step in steps)
        if row_count > MOST_ROWS or any((step.op >= SYNC).any() for step in steps):
            return None, 0, 0
        rows_by_block.append(_unroll(block, number))
        number += turns * len(steps)
        transfers += turns * sum(map(len, steps))
    schedule.skip_checks()
    if not rows_by_block:
        return None, 0, 0
    step = joined([rows.step for rows in rows_by_block])
    if ((step.src_chunk - step.dst_chunk) % layout.chunks != 0).any():
        return None, 0, 0
    return (
        _PieceTransfers(step, np.concatenate([rows.number for rows in rows_by_block])),
        number,
        transfers,
    )


def _unroll(block: Step | Repeat, number: int) -> _PieceTransfers:
    """The transfers of a step, or of all iterations of a repeat, chunk by chunk; the first step has
    this number.
    """
    if not isinstance(block, Repeat):
        step = block
        numbers = np.full(len(block), number)
    else:
        turn = np.arange(block.count)[:, None]
        iteration = joined(block.steps)
        inner = np.repeat(np.arange(len(block.steps)), [len(step) for step in block.steps])
        src, dst = (
            block.chunk_at(start + (place + turn * block.stride) % block.modulus).reshape(-1)
            for start, place in (block.window(chunk) for _, chunk in iteration.ends)
        )
        step = replace(
            iteration.rows(np.tile(np.arange(len(iteration)), block.count)),
            src_chunk=src,
            dst_chunk=dst,
        )
        numbers = (number + turn * len(block.steps) + inner).reshape(-1)
    return _PieceTransfers(by_chunk(step), np.repeat(numbers, step.count))


def _representatives(schedule: Schedule, rows: _PieceTransfers) -> Ints | None:
    """One piece of each kind, in ascending order; ``None`` for more ranks and channels than one
    number can tell apart.
    """
    layout, n, (step, number) = schedule.layout, schedule.nranks, rows
    if n * n * 4 * SYNC * schedule.nchannels > 2**61:
        return None
    into, out_of = (chunk >= layout.output_base for chunk in (step.dst_chunk, step.src_chunk))
    route = ((step.src_rank * n + step.dst_rank) * 2 + into) * 2 + out_of
    key = (route * SYNC + step.op) * schedule.nchannels + step.channel
    piece = step.dst_chunk % layout.chunks
    order = np.argsort(piece.astype(np.min_scalar_type(layout.chunks)), kind="stable")
    piece = piece[order]
    number = number[order]
    key = key[order]
    length = np.bincount(piece, minlength=layout.chunks)
    start = np.cumsum(length) - length
    place = np.arange(len(piece)) - start[piece]
    # Whether it shares the step of its predecessor.
    key = 2 * key + ((place > 0) & (np.diff(number, prepend=-1) == 0))
    sums = token_at(length, 2)
    np.add.at(sums, piece, token_at(key, 0) * (token_at(place, 1) | np.uint64(1)))
    _, first_piece, kind = np.unique(sums, return_index=True, return_inverse=True)
    # Equal sums only suggest that pieces are alike.
    like = np.where(
        length == length[first_piece[kind]], first_piece[kind], np.arange(layout.chunks)
    )
    differs = piece[key != key[start[like[piece]] + place]]
    like[differs] = differs
    return np.flatnonzero(like == np.arange(layout.chunks))


def _restrict(schedule: Schedule, rows: _PieceTransfers, pieces: Ints) -> Schedule:
    """The schedule of some pieces."""
    layout = schedule.layout
    width = len(pieces)
    index = np.full(layout.chunks, -1)
    index[pieces] = np.arange(width)
    selection = np.flatnonzero(index[rows.step.dst_chunk % layout.chunks] >= 0)
    step = rows.step.rows(selection)
    number = rows.number[selection]
    src, dst = (
        chunk // layout.chunks * width + index[chunk % layout.chunks] for _, chunk in step.ends
    )
    few = replace(step, src_chunk=src, dst_chunk=dst)
    edges = [*np.flatnonzero(np.diff(number, prepend=-1)).tolist(), len(number)]
    steps = [few.rows(slice(*ends)) for ends in pairwise(edges)]
    part = replace(schedule, layout=replace(layout, chunks=width), source=lambda: steps)
    part.skip_checks()  # the whole schedule has been checked
    return part
