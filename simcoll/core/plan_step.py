"""The record of a plan's step, with offsets and sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.immutable import by_constructor, freeze
from simcoll.core.transit import Transits

__all__ = ["PlanStep"]


@dataclass(frozen=True, slots=True, eq=False)
class PlanStep:
    """One step of a plan as parallel arrays, without empty transfers and self-copies.

    Attributes
    ----------
    step
        Number of the step in the schedule.
    src_rank, dst_rank
        Ranks of the schedule; equal for a local copy or reduction.
    src_buffer, dst_buffer
        0 input, 1 output, 2 scratch; with in-place aliases resolved.
    src_offset, dst_offset, elements
        Range within the buffer, in elements.
    size_bytes
        Payload as it travels: in its wire format, where it has one.
    src_chunk, dst_chunk, count
        The same ranges in chunks of the schedule.
    op
        ``COPY``, ``REDUCE`` or ``SYNC``.
    channel
        Lane.
    staged
        Another transfer of this step overwrites this one's source, which must therefore be read
        before the step writes.
    transits
        Paths and wire formats; ``None`` if no transfer has one.
    """

    step: int
    src_rank: Ints
    src_buffer: NDArray[np.int8]
    src_offset: Ints
    dst_rank: Ints
    dst_buffer: NDArray[np.int8]
    dst_offset: Ints
    elements: Ints
    size_bytes: Ints
    src_chunk: Ints
    dst_chunk: Ints
    count: Ints
    op: NDArray[np.int8]
    channel: Ints
    staged: NDArray[np.bool_]
    transits: Transits | None = None

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def __len__(self) -> int:
        return len(self.src_rank)
