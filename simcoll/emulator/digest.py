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

from simcoll.core.hashing import mix, mix_in_place

__all__ = ["MovedHash", "TraceHash"]

_SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
_SEED_COLUMN = np.array(_SEEDS, np.uint64)[:, None]


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
        states = np.repeat(_SEED_COLUMN, len(arrays[0]), axis=1)
        spare = np.empty_like(states)
        for array in arrays:
            np.bitwise_xor(states, array, out=states)
            np.add(states, _SEED_COLUMN, out=states)
            mix_in_place(states, spare)
        added = np.add.reduce(states, axis=1).tolist()
        self.sums = [(old + new) % 2**64 for old, new in zip(self.sums, added, strict=True)]

    def hexdigest(self) -> str:
        """32 hexadecimal digits."""
        return _digits(self.sums)


class MovedHash:
    """The trace hash of messages whose times are all shifted by the same amount.

    >>> one, at = TraceHash(), [[0], [0], [1], [8], [5], [7], [9]]
    >>> one.add([*at[:4], [15], [17], [19]])
    >>> MovedHash(at).hexdigests([10, 20])[0] == one.hexdigest()
    True
    """

    __slots__ = ("_seeds", "_states", "_times")

    def __init__(self, columns: Sequence[ArrayLike]) -> None:
        arrays = [np.asarray(column, np.int64) for column in columns]
        self._seeds = _SEED_COLUMN
        self._states = np.repeat(self._seeds, len(arrays[0]), axis=1)
        self._times = [array.astype(np.uint64) for array in arrays[4:]]
        for array in arrays[:4]:
            self._states = mix((self._states ^ array.astype(np.uint64)) + self._seeds)

    def hexdigests(self, later: Sequence[int]) -> list[str]:
        """32 hexadecimal digits for each number of femtoseconds by which all times are later."""
        by, seeds = np.array(later, np.uint64)[:, None], self._seeds[:, None]
        states = np.repeat(self._states[:, None], len(later), axis=1)
        spare = np.empty_like(states)
        for time in self._times:
            np.bitwise_xor(states, time + by, out=states)
            np.add(states, seeds, out=states)
            mix_in_place(states, spare)
        return [_digits(sums) for sums in np.add.reduce(states, axis=2).T.tolist()]


def _digits(sums: Sequence[int]) -> str:
    return "".join(f"{value:016x}" for value in sums)
