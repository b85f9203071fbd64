"""Memory accounting of a rank: live bytes of its arrays or tensors, and their peak."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from simcoll.arrays import Array

__all__ = ["RankMemory"]


class RankMemory:
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
        self._known: dict[
            int, tuple[weakref.ref[Any], int]
        ] = {}  # by a number that the owner has while it is alive

    def hold_arrays(self, arrays: Iterable[Array]) -> None:
        """Count these arrays, or the arrays that they are views of, until they are freed."""
        for array in arrays:
            entry = self._known.get(id(array))
            if entry is not None and entry[1] == array.nbytes:
                continue  # it is this array: a number is forgotten with its owner
            while isinstance(array.base, np.ndarray):
                array = array.base  # noqa: PLW2901  # up to the owner
            self.hold(id(array), array, array.nbytes)

    def hold(self, address: int, owner: Any, size_bytes: int) -> None:
        """Count an owner of memory until it is freed; for a known owner, update its size."""
        entry = self._known.get(address)
        known_bytes = 0 if entry is None else entry[1]
        if entry is None or size_bytes != known_bytes:
            reference = (
                weakref.ref(owner, functools.partial(self._gone, address))
                if entry is None
                else entry[0]
            )
            self._known[address] = reference, size_bytes
            self.held_bytes += size_bytes - known_bytes
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def knows(self, address: int) -> bool:
        """Whether an owner of this number is counted."""
        return address in self._known

    def release(self, address: int) -> None:
        """Stop counting an owner."""
        self.held_bytes -= self._known.pop(address)[1]

    def _gone(self, address: int, _reference: object) -> None:
        self.release(address)

    @property
    def host_peak_bytes(self) -> int:
        """Peak number of bytes that the program has moved to the memory of the host: none, unless
        its tensors have places.
        """
        return 0
