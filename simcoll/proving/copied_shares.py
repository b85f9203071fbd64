"""Finds schedules that consist of equal copies, of which a proof follows one.

Each copy works on a share of the vector, and has channels of its own. If the transfers of every
step are those of the first share, moved to each of the others, the contents of a share are those of
the first one moved with it: transfers of different shares never touch one chunk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simcoll.core.schedule import SYNC, Repeat, Schedule, Step, lowered

__all__ = ["MANY_CELLS", "FirstShare", "one_share"]

MANY_CELLS = 1 << 22
"""Up to this number of chunks on all ranks, following all takes less than half a second."""


class FirstShare(NamedTuple):
    """The schedule of the first of equal shares, their number, and that of all steps."""

    schedule: Schedule
    shares: int
    steps: int


def one_share(schedule: Schedule) -> FirstShare | None:
    """The first of many equal shares; None if chunks are few, or shares are not alike."""
    layout = schedule.layout
    few = schedule.nranks * layout.size <= MANY_CELLS
    if few or layout.collective.nblocks != 1 or layout.scratch.size:
        return None
    if any(isinstance(block, Repeat) for block in schedule.blocks()):
        return None
    for shares in range(schedule.nchannels, 1, -1):
        if schedule.nchannels % shares or layout.chunks % shares:
            continue
        steps = _steps_of_first(schedule, shares)
        if steps is not None:
            return FirstShare(_share(schedule, shares, steps), shares, len(steps))
    return None


def _steps_of_first(schedule: Schedule, shares: int) -> list[Step] | None:
    """The steps of the first share; None if another one has different transfers."""
    chunks = schedule.layout.chunks
    width = chunks // shares
    lanes = schedule.nchannels // shares
    steps = []
    for _, step in lowered(schedule, as_given=True):
        region, place = np.divmod(step.dst_chunk, chunks)
        from_region, from_place = np.divmod(step.src_chunk, chunks)
        share, within = np.divmod(place, width)
        own_channels = np.array_equal(step.channel // lanes, share)
        own_chunks = np.array_equal(from_place, place) and (within + step.count <= width).all()
        if not (own_channels and own_chunks) or (step.op >= SYNC).any() or len(step) % shares:
            return None
        channel = step.channel % lanes
        columns = (
            step.src_rank,
            from_region * width + within,
            step.dst_rank,
            region * width + within,
            step.count,
            step.op,
            channel,
        )
        order = np.argsort(share, kind="stable").reshape(shares, -1)
        rows_per_share = np.bincount(share, minlength=shares)
        of_shares = [column[order] for column in columns]
        if (rows_per_share != order.shape[1]).any() or not all(
            (values == values[:1]).all() for values in of_shares
        ):
            return None
        steps.append(Step(*(values[0] for values in of_shares)))
    return steps


def _share(schedule: Schedule, shares: int, steps: list[Step]) -> Schedule:
    layout = schedule.layout
    share = replace(
        schedule,
        layout=replace(layout, chunks=layout.chunks // shares),
        source=lambda: steps,
        nchannels=schedule.nchannels // shares,
    )
    share.skip_checks()  # the whole schedule has been checked
    return share
