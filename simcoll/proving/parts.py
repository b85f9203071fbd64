"""Splits a schedule on a long vector into parts that can be proved one by one.

If every transfer keeps its position in the vector, the content of a chunk depends only on chunks at
the same position. Each part of the vector is then a separate schedule, and a proof needs memory for
only one part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from simcoll.core.schedule import SYNC, Schedule, Step, lowered

__all__ = ["parts"]

CELLS = 2**22
"""Number of chunks, over all ranks, followed at a time: 64 MiB, plus half as much for a step."""
MOST_PARTS = 1 << 8
"""A schedule in more parts is refused for its memory: every part takes another pass over the
steps.
"""


def parts(schedule: Schedule) -> tuple[list[Schedule], int, int]:
    """The parts of a schedule, and its numbers of steps and transfers.

    Empty if chunks are few, or a transfer changes its position.
    """
    layout = schedule.layout
    number = min(-(-schedule.nranks * layout.size // CELLS), layout.chunks)
    if not 2 <= number <= MOST_PARTS or layout.collective.nblocks != 1 or layout.scratch.size:
        return [], 0, 0
    steps = transfers = 0
    for _, step in lowered(schedule, as_given=True):
        if ((step.src_chunk - step.dst_chunk) % layout.chunks != 0).any() or (
            step.op >= SYNC
        ).any():
            return [], 0, 0
        steps, transfers = steps + 1, transfers + len(step)
    edges = np.linspace(0, layout.chunks, number + 1).astype(np.int64)
    return [_part(schedule, *ends) for ends in pairwise(edges.tolist())], steps, transfers


def _part(schedule: Schedule, low: int, high: int) -> Schedule:
    """The schedule restricted to the chunks ``low .. high - 1`` of each vector."""
    chunks, width = schedule.layout.chunks, high - low

    def steps() -> Iterator[Step]:
        for _, step in lowered(schedule, as_given=True):
            place = step.dst_chunk % chunks
            begin, end = np.maximum(place, low), np.minimum(place + step.count, high)
            rows = np.flatnonzero(begin < end)
            src, dst = (chunk[rows] // chunks * width + begin[rows] - low for _, chunk in step.ends)
            count = (end - begin)[rows]
            yield Step(
                step.src_rank[rows],
                src,
                step.dst_rank[rows],
                dst,
                count,
                step.op[rows],
                step.channel[rows],
            )

    part = replace(schedule, layout=replace(schedule.layout, chunks=width), source=steps)
    part.skip_checks()  # the whole schedule has been checked
    return part
