"""Finds schedules that consist of equal copies, of which a proof follows one.

Each copy works on a share of the vector, and has channels of its own. If the transfers of every
step are those of the first share, moved to each of the others, the contents of a share are those of
the first one moved with it: transfers of different shares never touch one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.schedule import Repeat, Schedule, Step

__all__ = ["MANY_CELLS", "FirstShare", "one_share", "steps_without_repeats"]

MANY_CELLS = 1 << 22
"""Up to this number of chunks on all ranks, following all takes less than half a second."""
COMPARED_ROWS = 1 << 18
"""Number of transfers of a step that are compared at a time."""
MOST_TRANSFERS = 1 << 22
"""Limit of the transfers of a share that are held in memory: 240 MB."""


class FirstShare(NamedTuple):
    """The schedule of the first of equal shares, their number, and that of all steps."""

    schedule: Schedule
    shares: int
    steps: int


class _ShareSizes(NamedTuple):
    """Number of shares, channels and chunks of each, and chunks of all."""

    shares: int
    lanes: int
    width: int
    chunks: int


def one_share(schedule: Schedule) -> FirstShare | None:
    """The first of many equal shares; None if chunks are few, or shares are not alike."""
    layout = schedule.layout
    few = schedule.nranks * layout.size <= MANY_CELLS
    if few or schedule.nchannels == 1 or layout.collective.definition is not None:
        return None
    # A combinator may say of what the shares are copies. This is compared, too, and saves holding
    # the first share in memory.
    model = getattr(schedule.source, "schedule", None)
    if type(model) is Schedule:  # whose passes are compared with each other, from a first one on
        return _as_copies_of(replace(model), schedule)
    if layout.collective.nblocks != 1 or layout.scratch.size:
        return None
    for shares in range(schedule.nchannels, 1, -1):
        if schedule.nchannels % shares or layout.chunks % shares:
            continue
        sizes = _share_sizes(schedule, shares)
        steps = _steps_of_first(schedule, sizes)
        if steps is not None:
            share = replace(
                schedule,
                layout=replace(layout, chunks=sizes.width),
                source=_Kept(steps),
                nchannels=sizes.lanes,
            )
            share.skip_checks()  # the whole schedule has been checked
            return FirstShare(share, shares, len(steps))
    return None


class _Kept:
    """A source of steps that are held in memory."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps

    def __call__(self) -> Iterable[Step]:
        return self.steps


def _share_sizes(schedule: Schedule, shares: int) -> _ShareSizes:
    chunks = schedule.layout.chunks
    return _ShareSizes(shares, schedule.nchannels // shares, chunks // shares, chunks)


def _as_copies_of(model: Schedule, schedule: Schedule) -> FirstShare | None:
    """The model, if the schedule consists of copies of it, transfer by transfer."""
    shares = schedule.nchannels // model.nchannels
    sizes = _share_sizes(schedule, shares)
    layout = model.layout
    if (
        layout.collective != schedule.collective
        or model.divisible != schedule.divisible
        or (sizes.lanes, sizes.width) != (model.nchannels, layout.chunks)
        or (shares * sizes.lanes, shares * sizes.width) != (schedule.nchannels, sizes.chunks)
        or layout.scratch_pieces is not None
        or schedule.layout.scratch_pieces is not None
        or not np.array_equal(layout.scratch, schedule.layout.scratch)
        or shares == 1
    ):
        return None
    steps = 0
    for step, of_share in zip_longest(
        steps_without_repeats(schedule), steps_without_repeats(model)
    ):
        if step is None or of_share is None or not _has_copies(step, of_share, sizes):
            return None
        steps += 1
    return FirstShare(model, shares, steps)


def steps_without_repeats(schedule: Schedule) -> Iterator[Step | None]:
    """The checked steps, with aliases resolved; a None, and the end, at the first repeat."""
    for number, block in enumerate(schedule.blocks()):
        if isinstance(block, Repeat):
            yield None
            return
        if not schedule.known.checked:
            schedule.check_block(number, block)
        yield schedule.layout.one_address(block)
    schedule.skip_checks()


def _has_copies(step: Step, of_share: Step, sizes: _ShareSizes) -> bool:
    """Whether a step has the transfers of one share in each: share by share, or each transfer in
    all of them.
    """
    if len(step) != sizes.shares * len(of_share):
        return False
    # Slots follow each other in all buffers, and each has a share of every copy.
    if (of_share.src_chunk % sizes.width + of_share.count > sizes.width).any():
        return False
    if (of_share.dst_chunk % sizes.width + of_share.count > sizes.width).any():
        return False
    rows_so_far = np.zeros(sizes.shares, np.int64)
    # A part of the step at a time, as it may have millions of rows.
    for begin in range(0, len(step), COMPARED_ROWS):
        rows = slice(begin, begin + COMPARED_ROWS)
        channel = step.channel[rows]
        share = channel // sizes.lanes
        if share.min() < 0 or share.max() >= sizes.shares:
            return False
        order = np.argsort(share, kind="stable")
        share = share[order]
        counts = np.bincount(share, minlength=sizes.shares)
        place = np.arange(len(share)) + (rows_so_far - np.cumsum(counts) + counts)[share]
        rows_so_far += counts
        if rows_so_far.max() > len(of_share):
            return False
        copied = (
            (step.src_rank, of_share.src_rank[place]),
            (step.dst_rank, of_share.dst_rank[place]),
            (step.count, of_share.count[place]),
            (step.op, of_share.op[place]),
            (step.channel, of_share.channel[place] + share * sizes.lanes),
            (step.src_chunk, _chunk_of(of_share.src_chunk[place], share, sizes)),
            (step.dst_chunk, _chunk_of(of_share.dst_chunk[place], share, sizes)),
        )
        if not all(np.array_equal(column[rows][order], values) for column, values in copied):
            return False
    return True


def _chunk_of(chunk: Ints, share: Ints, sizes: _ShareSizes) -> Ints:
    """Chunks of a share alone as those of all."""
    slot, place = np.divmod(chunk, sizes.width)
    return slot * sizes.chunks + place + share * sizes.width


def _steps_of_first(schedule: Schedule, sizes: _ShareSizes) -> list[Step] | None:
    """The steps of the first share; None if another one has different transfers, or they are
    many.
    """
    steps = []
    transfers = 0
    for step in steps_without_repeats(schedule):
        if step is None:
            return None
        row = np.flatnonzero(step.channel < sizes.lanes)
        few = step.rows(row)
        src, dst = (
            chunk // sizes.chunks * sizes.width + np.minimum(chunk % sizes.chunks, sizes.width - 1)
            for _, chunk in few.ends
        )
        of_share = replace(few, src_chunk=src, dst_chunk=dst)
        transfers += len(row)
        crosses = any((chunk % sizes.width + few.count > sizes.width).any() for chunk in (src, dst))
        if crosses or transfers > MOST_TRANSFERS or not _has_copies(step, of_share, sizes):
            return None
        steps.append(of_share)
    return steps
