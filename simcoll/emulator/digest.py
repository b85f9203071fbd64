"""The trace hash: one number that covers everything that happened in a run.

Every message contributes seven whole numbers: id, source rank, destination rank, payload bytes, and
the femtoseconds at which its flow started, its flow ended, and it was done. From a seed they are
chained, ``state = finalise((state ^ number) + seed)`` modulo 2**64 with the finaliser of
SplitMix64; the states of all messages are summed modulo 2**64. A sum is independent of order, so
the hash depends neither on the order of events nor on the size of batches; the id distinguishes
otherwise equal messages. The hash is the sums for two seeds, as 32 hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from simcoll.core.hashing import mix_in_place

__all__ = ["SEED_COLUMN", "TraceHash", "digits_of"]

_SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
SEED_COLUMN = np.array(_SEEDS, np.uint64)[:, None]
"""Both seeds, as [seeds, 1]."""


class TraceHash:
    """A hash of a set of messages, starting from ``sums``, which are those of all messages so far.

    >>> one, two = TraceHash(), TraceHash()
    >>> one.add([[0, 1], [0, 1], [1, 0], [8, 8], [5, 6], [7, 8], [9, 9]])
    >>> for row in (1, 0):
    ...     two.add([[row], [row], [1 - row], [8], [5 + row], [7 + row], [9]])
    >>> one.hexdigest() == two.hexdigest() != TraceHash().hexdigest()
    True
    """

    __slots__ = ("sums",)

    def __init__(self, sums: Sequence[int] = (0, 0)) -> None:
        self.sums = [int(value) for value in sums]

    def add(self, columns: Sequence[ArrayLike]) -> None:
        """Add messages, given as columns: id, source, destination, bytes, start, end, done."""
        arrays = [np.asarray(column, np.int64).view(np.uint64) for column in columns]
        states = np.repeat(SEED_COLUMN, len(arrays[0]), axis=1)
        spare = np.empty_like(states)
        for array in arrays:
            np.bitwise_xor(states, array, out=states)
            np.add(states, SEED_COLUMN, out=states)
            mix_in_place(states, spare)
        added = np.add.reduce(states, axis=1).tolist()
        self.sums = [(old + new) % 2**64 for old, new in zip(self.sums, added, strict=True)]

    def hexdigest(self) -> str:
        """32 hexadecimal digits."""
        return digits_of(self.sums)


def digits_of(sums: Sequence[int]) -> str:
    """The sums for both seeds, as 32 hexadecimal digits."""
    return "".join(f"{value:016x}" for value in sums)
