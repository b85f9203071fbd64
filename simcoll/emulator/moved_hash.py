"""The trace hash of a run that begins later than one that has been played."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from simcoll.arrays import Words
from simcoll.core.hashing import mix, mix_in_place
from simcoll.emulator.digest import SEED_COLUMN, digits_of
from simcoll.emulator.fast.compiled import COMPILED

__all__ = ["MovedHash"]

MIXED_TOGETHER = 1 << 13
"""Messages that numpy mixes at once: of 16,384 each takes twice as long, out of the cache."""
LOADS_QUICKLY, LOADS_SLOWLY = 1 << 20, 1 << 23
"""Moved messages beyond which compiled code is loaded, which hashes one in 1.4 ns instead of 14:
that takes 10 ms where numba is in memory, and 180 ms where not.
"""


class MovedHash:
    """The trace hash of messages whose times are all shifted by the same amount.

    >>> from simcoll.emulator.digest import TraceHash
    >>> one, at = TraceHash(), [[0], [0], [1], [8], [5], [7], [9]]
    >>> one.add([*at[:4], [15], [17], [19]])
    >>> MovedHash(at).hexdigests([10, 20])[0] == one.hexdigest()
    True
    """

    __slots__ = ("_hashed", "_states", "_times")

    def __init__(self, columns: Sequence[ArrayLike]) -> None:
        arrays = [np.asarray(column, np.int64) for column in columns]
        self._states = np.repeat(SEED_COLUMN, len(arrays[0]), axis=1)
        self._times = np.array(arrays[4:]).astype(np.uint64)
        self._hashed = 0
        for array in arrays[:4]:
            self._states = mix((self._states ^ array.astype(np.uint64)) + SEED_COLUMN)

    def hexdigests(self, later: Sequence[int]) -> list[str]:
        """32 hexadecimal digits for each number of femtoseconds by which all times are later."""
        by, messages = np.array(later, np.uint64), self._states.shape[1]
        self._hashed += messages * len(later)
        limit = LOADS_QUICKLY if "numba" in sys.modules else LOADS_SLOWLY
        if COMPILED and self._hashed > limit:
            from simcoll.emulator.fast.trace_hashing import hash_later  # imports numba

            sums = np.zeros((len(later), 2), np.uint64)
            hash_later(sums, self._states, self._times, by)
            return [digits_of(pair) for pair in sums.tolist()]
        together = max(1, MIXED_TOGETHER // max(1, messages))
        parts = (by[begin : begin + together] for begin in range(0, len(by), together))
        return [digits for part in parts for digits in self._digits_in_numpy(part)]

    def _digits_in_numpy(self, by: Words) -> list[str]:
        seeds = SEED_COLUMN[:, None]
        states = np.repeat(self._states[:, None], len(by), axis=1)
        spare = np.empty_like(states)
        for time in self._times:
            np.bitwise_xor(states, time + by[:, None], out=states)
            np.add(states, seeds, out=states)
            mix_in_place(states, spare)
        return [digits_of(sums) for sums in np.add.reduce(states, axis=2).T.tolist()]
