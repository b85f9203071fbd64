"""Memory accounting of a rank: live bytes of its arrays or tensors, and their peak."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from simcoll.arrays import Array

__all__ = ["Memory"]


class Memory:
    """Bytes of the arrays that a rank has passed to calls; fake arrays count as if they were real.

    Attributes
    ----------
    held_bytes
        Bytes that are live now.
    peak_bytes
        Peak of ``held_bytes``.
    """

    __slots__ = ("_known", "held_bytes", "peak_bytes")

    def __init__(self) -> None:
        self.held_bytes = self.peak_bytes = 0
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}  # by a number that the owner has while it is alive

    def given(self, arrays: Iterable[Array]) -> None:
        """Count these arrays, or the arrays that they are views of, until they are freed."""
        for array in arrays:
            known = self._known.get(id(array))
            if known is not None and known[1] == array.nbytes:
                continue  # it is this array: a number is forgotten with its owner
            while isinstance(array.base, np.ndarray):
                array = array.base  # noqa: PLW2901  # up to the owner
            self.hold(id(array), array, array.nbytes)

    def hold(self, where: int, owner: Any, size_bytes: int) -> None:
        """Count an owner of memory until it is freed; for a known owner, update its size."""
        known = self._known.get(where)
        before = 0 if known is None else known[1]
        if known is None or size_bytes != before:
            found = weakref.ref(owner, functools.partial(self._gone, where)) if known is None else known[0]
            self._known[where] = found, size_bytes
            self.held_bytes += size_bytes - before
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def knows(self, where: int) -> bool:
        """Whether an owner of this number is counted."""
        return where in self._known

    def _gone(self, where: int, _reference: object) -> None:
        self.held_bytes -= self._known.pop(where)[1]
