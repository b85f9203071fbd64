"""Expansion of the times of classes to those of all messages, and their trace hash.

It serves runs whose classes are too many to be loaded, and programs: their steps end one by one and
leave nothing for a further run. Loaded runs, which do, hash all steps at once
(:mod:`simcoll.emulator.folding.loaded_run`). Expanding all steps at the end for both would be one
function less, but would hold four times of 8 bytes for every message of every class until then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.emulator.digest import TraceHash
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.folding.quotient import Quotient
from simcoll.emulator.steps.timed import Timed

__all__ = ["ExpandedHash", "Expansion"]

SHORT_ROWS = 1 << 10
"""Up to this number of messages of a step, its columns are kept as the compiled function takes
them: making them takes longer than hashing 100 messages.
"""


class ExpandedHash:
    """The :class:`simcoll.emulator.digest.TraceHash` of all messages, in compiled code where
    available.
    """

    __slots__ = ("_columns", "_hash", "_sums")

    def __init__(self) -> None:
        self._columns: dict[tuple[Timed, int], tuple[Any, ...]] = {}
        self._sums = np.zeros(2, np.uint64)
        self._hash = TraceHash()

    def add(
        self, begin: int, step: Timed, names: Shorts, start: Ints, end: Ints, done: Ints
    ) -> None:
        """Add a step whose messages are numbered from ``begin``.

        ``names`` are their classes, and the times are per class.
        """
        shape = step.shape
        if not COMPILED:
            number = np.arange(begin, begin + len(step))
            times = [of_class[names] for of_class in (start, end, done)]
            self._hash.add([number, shape.src, shape.dst, step.size, *times])
            return
        from simcoll.emulator.fast.trace_hashing import hash_classes  # imports numba

        key = step, id(names)
        columns = self._columns.get(key)
        if columns is None:
            # The compiled function takes writable, row-major columns.
            ends = (shape.src, shape.dst, step.size)
            numbers = tuple(np.require(column, np.int64, ["C", "W"]) for column in ends)
            columns = numbers, np.require(names, np.int32, ["C", "W"]), names
            if len(step) <= SHORT_ROWS:
                self._columns[key] = columns
        hash_classes(self._sums, begin, columns[0], columns[1], (start, end, done))

    def hexdigest(self) -> str:
        """32 hexadecimal digits."""
        return (
            "".join(f"{int(value):016x}" for value in self._sums)
            if COMPILED
            else self._hash.hexdigest()
        )


class Expansion:
    """Expands the times of classes to those of all messages."""

    def __init__(self, quotient: Quotient, messages: int, *, keep: bool) -> None:
        self.quotient = quotient
        self.first_small, self.first_large, self.which = quotient.starts()
        self.done_fs = np.full(messages, -1, np.int64) if keep else None
        self.hash = ExpandedHash()

    def __call__(self, first: int, _timed: Timed, start: Ints, end: Ints, done: Ints) -> None:
        """Take the times of a step's classes; ``first`` is the step's first message in the
        quotient.
        """
        place = int(np.searchsorted(self.first_small, first))
        begin = int(self.first_large[place])
        which = int(self.which[place])
        step = self.quotient.patterns[which]
        names = self.quotient.classes[which]
        if self.done_fs is not None:
            self.done_fs[begin : begin + len(step)] = done[names]
        self.hash.add(begin, step, names, start, end, done)
