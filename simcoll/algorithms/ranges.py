"""A combinator: what a rank sends to another in a step becomes one message, wherever it lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simcoll.algorithms.compose import single_steps
from simcoll.arrays import Ints
from simcoll.core.folds import in_fold_order
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, joined
from simcoll.core.step import COPY, first_alike, spread
from simcoll.errors import ConfigError, expect

__all__ = ["single_messages"]

MOST_SLOTS = 1 << 20
"""Scratch chunks of a rank, for all steps."""


@dataclass(frozen=True, slots=True)
class _Rooms:
    """Scratch chunks of a step, for each chunk that is packed: ``rank`` and ``place`` of that where
    it is packed, and of that where it arrives. ``blocks`` and ``pieces`` say what each holds:
    ``[nranks, chunks]``.
    """

    source: Ints
    target: Ints
    blocks: Ints
    pieces: Ints


def single_messages(schedule: Schedule) -> Schedule:
    """The same schedule, in which the ranges that a rank sends to another in a step, on one channel
    and by one operation, are one message.

    The sender copies them into scratch, one after the other; a single transfer moves them; the
    receiver copies, or reduces, from there. So ``MPI_Type_indexed`` and packing kernels do it, and
    the copies take the time that the protocol states. It pays where messages cost more than copies.
    Steps with folds, and switch operations, stay as they are; so does a schedule whose messages are
    single ranges already.

    >>> import simcoll
    >>> bruck = simcoll.schedule("all_gather", "bruck", nranks=8)
    >>> def messages(schedule):
    ...     return sum(int((step.src_rank != step.dst_rank).sum()) for step in schedule.steps())
    ...
    >>> messages(bruck), messages(single_messages(bruck))
    (28, 24)

    Raises
    ------
    ConfigError
        When all ranges together would need too much scratch.
    """
    expect(schedule, Schedule, "single_messages takes a schedule")
    old = schedule.layout
    rooms = list(_rooms(schedule))
    if not any(len(room.source) for room in rooms):
        return schedule
    starts: dict[tuple[bytes, bytes], int] = {}
    offsets, columns = [], [_single_chunks(old)]
    size = columns[0][0].shape[1]
    for room in rooms:
        key = room.blocks.tobytes(), room.pieces.tobytes()
        if key not in starts:  # steps with equal rooms share them
            starts[key] = size
            size += room.blocks.shape[1]
            columns.append((room.blocks, room.pieces))
        offsets.append(old.scratch_base + starts[key])
    if size > MOST_SLOTS:
        raise ConfigError(
            f"single_messages: the ranges of {schedule} would need {size:,} chunks of scratch; at "
            f"most {MOST_SLOTS:,} are supported"
        )
    blocks, pieces = (np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True))
    layout = Layout(schedule.collective, old.chunks, blocks, pieces)

    def steps() -> Iterator[Step]:
        for step, room, offset in zip(single_steps(schedule), rooms, offsets, strict=True):
            yield from _through_rooms(step, _packed_rows(step, old), room, offset)

    return replace(schedule, layout=layout, source=steps)


def _single_chunks(layout: Layout) -> tuple[Ints, Ints]:
    """Blocks and pieces of the scratch of a layout, chunk by chunk: ``[nranks, chunks]`` each. The
    chunks keep their addresses.
    """
    n, chunk = layout.collective.nranks, np.arange(layout.scratch_base, layout.size)
    rank, every = (ends.reshape(-1) for ends in np.meshgrid(np.arange(n), chunk, indexing="ij"))
    shape = n, len(chunk)
    return layout.block(rank, every).reshape(shape), layout.piece(rank, every).reshape(shape)


def _packed_rows(step: Step, layout: Layout) -> Ints:
    """The message of each transfer, by its first row, where it has several; else -1."""
    movable = (step.src_rank != step.dst_rank) & ((step.op == COPY) | (step.op == REDUCE))
    if in_fold_order(step, layout.size) is not step:
        return np.full(len(step), -1)
    transit = np.zeros(len(step), np.int64) if step.transits is None else step.transits.number
    leader = first_alike(step.src_rank, step.dst_rank, step.channel, step.op, transit)
    several = np.bincount(leader[movable], minlength=len(step)) > 1
    return np.where(movable & several[leader], leader, -1)


def _rooms(schedule: Schedule) -> Iterator[_Rooms]:
    """The scratch of every step."""
    layout, n = schedule.layout, schedule.nranks
    for step in single_steps(schedule):
        message = _packed_rows(step, layout)
        rows = np.flatnonzero(message >= 0)
        rows = rows[np.argsort(message[rows], kind="stable")]
        row, offset = spread(step.count[rows])
        row = rows[row]
        src, dst, chunk = step.src_rank[row], step.dst_rank[row], step.src_chunk[row] + offset
        # On every rank, first what it sends, then what it receives; each message is in one piece.
        place = _count_earlier(np.concatenate([src, dst]), n)
        size = int(place.max(initial=-1)) + 1
        blocks, pieces = np.zeros((n, size), np.int64), np.zeros((n, size), np.int64)
        source, target = place[: len(src)], place[len(src) :]
        for rank, position in ((src, source), (dst, target)):
            blocks[rank, position] = layout.block(src, chunk)
            pieces[rank, position] = layout.piece(src, chunk)
        yield _Rooms(source, target, blocks, pieces)


def _count_earlier(rank: Ints, nranks: int) -> Ints:
    """For each entry, the number of earlier ones with the same rank."""
    order = np.argsort(rank, kind="stable")
    count = np.bincount(rank, minlength=nranks)
    result = np.empty(len(rank), np.int64)
    result[order] = np.arange(len(rank)) - np.repeat(np.cumsum(count) - count, count)
    return result


def _through_rooms(step: Step, message: Ints, room: _Rooms, offset: int) -> Iterator[Step]:
    """Pack, send, unpack; whatever else is in the step goes with the messages."""
    rows = np.flatnonzero(message >= 0)
    if not len(rows):
        yield step
        return
    rows = rows[np.argsort(message[rows], kind="stable")]
    parts = step.rows(rows)
    begin = np.cumsum(parts.count) - parts.count  # of each range, in the order of the rooms
    source, target = offset + room.source[begin], offset + room.target[begin]
    local: dict[str, Any] = {"channel": parts.channel, "count": parts.count, "transits": None}
    heads = np.flatnonzero(np.append(True, np.diff(message[rows]) != 0))
    yield replace(
        parts,
        dst_rank=parts.src_rank,
        dst_chunk=source,
        op=np.zeros(len(parts), np.int8),
        **local,
    )
    sent = replace(
        parts.rows(heads),
        src_chunk=source[heads],
        dst_chunk=target[heads],
        count=np.add.reduceat(parts.count, heads),
        op=np.zeros(len(heads), np.int8),
    )
    yield joined([sent, step.rows(np.flatnonzero(message < 0))])
    yield replace(parts, src_rank=parts.dst_rank, src_chunk=target, **local)
