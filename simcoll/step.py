"""Steps: transfers that all read the memory before the step, held as parallel arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    Ints = NDArray[np.int64]

__all__ = ["COPY", "MULTICAST", "OP_NAMES", "REDUCE", "SWITCH_REDUCE", "SYNC", "Repeat", "Step", "joined", "transfers"]

COPY, REDUCE, SYNC, MULTICAST, SWITCH_REDUCE = range(5)
OP_NAMES = ("copy", "reduce", "sync", "multicast", "switch_reduce")
"""``copy``: dst = src. ``reduce``: dst = dst (op) src. ``sync``: a message without data.

The others are done by a switch, for all transfers of a step together that have one channel and one source chunk (``multicast``: the source
sends once, every dst = src) or one destination chunk (``switch_reduce``: the destination receives once, dst = the reduction of
all sources in an order that nobody knows; what was at dst does not count).
"""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Transfers that all read the memory before the step, as parallel arrays of one length.

    ``count`` consecutive chunks from ``src_chunk`` on ``src_rank`` go to ``dst_chunk`` on ``dst_rank``, on an independent lane
    ``channel``. Equal ranks make it a local copy or reduction.
    """

    src_rank: Ints
    src_chunk: Ints
    dst_rank: Ints
    dst_chunk: Ints
    count: Ints
    op: NDArray[np.int8]
    channel: Ints

    def __len__(self) -> int:
        return len(self.src_rank)


def transfers(
    src_rank: ArrayLike,
    src_chunk: ArrayLike,
    dst_rank: ArrayLike,
    dst_chunk: ArrayLike,
    *,
    count: ArrayLike = 1,
    op: ArrayLike = COPY,
    channel: ArrayLike = 0,
) -> Step:
    """A step from arrays of any shapes that broadcast together.

    >>> ring = np.arange(4)
    >>> step = transfers(ring, ring, (ring + 1) % 4, ring)
    >>> len(step), step.dst_rank.tolist()
    (4, [1, 2, 3, 0])
    """
    columns = np.broadcast_arrays(src_rank, src_chunk, dst_rank, dst_chunk, count, channel, op)
    src, src_c, dst, dst_c, cnt, ch = (np.ascontiguousarray(column, np.int64).reshape(-1) for column in columns[:6])
    return Step(src, src_c, dst, dst_c, cnt, np.ascontiguousarray(columns[6], np.int8).reshape(-1), ch)


def joined(steps: Sequence[Step]) -> Step:
    """One step with the transfers of several."""
    if len(steps) == 1:
        return steps[0]
    columns = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")
    return Step(*(np.concatenate([getattr(step, column) for step in steps]) for column in columns))


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """A block of steps done ``count`` times, each time with its chunks shifted by ``stride``.

    The chunks lie in windows of ``modulus`` chunks that start at ``base``; a shift goes round inside its window. It means exactly the
    unrolled steps.
    """

    steps: tuple[Step, ...]
    count: int
    stride: int
    base: int
    modulus: int

    def unrolled(self) -> Iterator[Step]:
        """The steps that it stands for, one by one."""
        for turn in range(self.count):
            shift = turn * self.stride
            for step in self.steps:
                yield Step(
                    step.src_rank,
                    self._shifted(step.src_chunk, shift),
                    step.dst_rank,
                    self._shifted(step.dst_chunk, shift),
                    step.count,
                    step.op,
                    step.channel,
                )

    def _shifted(self, chunk: Ints, shift: int) -> Ints:
        if shift == 0:
            return chunk
        place = (chunk - self.base) % self.modulus
        return chunk - place + (place + shift) % self.modulus
