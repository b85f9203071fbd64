"""Finds schedules that consist of equal copies, of which a proof follows one.

Each copy works on a share of the vector, and has channels of its own. If the transfers of every
step are those of the first share, moved to each of the others, the contents of a share are those of
the first one moved with it: transfers of different shares never touch one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Array, Ints
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
    by_number = groupby(_without_repeats(schedule), itemgetter(0))
    for numbered, of_share in zip_longest(by_number, steps_without_repeats(model)):
        if numbered is None or of_share is None:
            return None
        if not _has_copies((portion for _, portion in numbered[1]), of_share, sizes):
            return None
        steps += 1
    return FirstShare(model, shares, steps)


def steps_without_repeats(schedule: Schedule) -> Iterator[Step | None]:
    """The checked steps, with aliases resolved; a None, and the end, at the first repeat."""
    for _, step in _without_repeats(schedule, whole_steps=True):
        yield step
        del step


def _without_repeats(
    schedule: Schedule, *, whole_steps: bool = False
) -> Iterator[tuple[int, Step | None]]:
    """The same with their numbers, long ones in portions unless ``whole_steps``."""
    for number, block in schedule.portions(whole_steps=whole_steps):
        if isinstance(block, Repeat):
            yield number, None
            return
        if not schedule.known.checked:
            schedule.check_block(number, block)
        resolved = schedule.layout.one_address(block)
        del block
        yield number, resolved
        del resolved
    schedule.skip_checks()


def _has_copies(portions: Iterable[Step | None], of_share: Step, sizes: _ShareSizes) -> bool:
    """Whether a step, given in portions, has the transfers of one share in each: share by share, or
    each transfer in all of them.
    """
    # Slots follow each other in all buffers, and each has a share of every copy.
    for _, chunk in of_share.ends:
        if (chunk % sizes.width + of_share.count > sizes.width).any():
            return False
    src, dst = (_in_first_share(chunk, sizes) for _, chunk in of_share.ends)
    rows_so_far = np.zeros(sizes.shares, np.int64)
    for portion in portions:
        if portion is None:
            return False
        # A part at a time, as it may have millions of rows.
        for begin in range(0, len(portion), COMPARED_ROWS):
            step = portion.rows(slice(begin, begin + COMPARED_ROWS))
            share = step.channel if sizes.lanes == 1 else step.channel // sizes.lanes
            if share.min() < 0 or share.max() >= sizes.shares:
                return False
            place = _place(share, rows_so_far)
            if rows_so_far.max() > len(of_share):
                return False
            agreements = (
                _equal(step.src_rank, of_share.src_rank, place),
                _equal(step.dst_rank, of_share.dst_rank, place),
                _equal(step.count, of_share.count, place),
                _equal(step.op, of_share.op, place),
                np.array_equal(step.channel - share * sizes.lanes, of_share.channel[place]),
                np.array_equal(step.src_chunk - share * sizes.width, src[place]),
                np.array_equal(step.dst_chunk - share * sizes.width, dst[place]),
            )
            if not all(agreements):
                return False
    return bool((rows_so_far == len(of_share)).all())


def _place(share: Ints, rows_so_far: Ints) -> Ints | slice:
    """The place of each transfer in its share, of which so many came before; counts them."""
    rows = len(share)
    if (share == share[0]).all():
        begin = int(rows_so_far[share[0]])
        rows_so_far[share[0]] += rows
        return slice(begin, begin + rows)
    counts = np.bincount(share, minlength=len(rows_so_far))
    small = share.astype(np.int16) if len(counts) < 1 << 15 else share  # sorted by its bytes
    order = np.argsort(small, kind="stable")
    place = np.empty(rows, np.int64)
    place[order] = np.arange(rows) + np.repeat(rows_so_far - np.cumsum(counts) + counts, counts)
    rows_so_far += counts
    return place


def _equal(column: Array, of_share: Array, place: Ints | slice) -> bool:
    """Whether a column has the values of a share at some places."""
    if column.strides == of_share.strides == (0,):
        return bool(column[0] == of_share[0])
    return np.array_equal(column, of_share[place])


def _in_first_share(chunk: Ints, sizes: _ShareSizes) -> Ints:
    """Chunks of a share alone as those of the first one among all."""
    slot, place = np.divmod(chunk, sizes.width)
    return slot * sizes.chunks + place


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
        if crosses or transfers > MOST_TRANSFERS or not _has_copies([step], of_share, sizes):
            return None
        steps.append(of_share)
    return steps
