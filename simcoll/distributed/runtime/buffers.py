"""The caller's buffers: filling them, and detecting access while an operation is in flight."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simcoll.core.memory import Array

__all__ = ["checksum", "poison", "scatter_into"]


def scatter_into(targets: Sequence[Array], values: Array) -> None:
    """Fill the targets in order from a flat array."""
    begin = 0
    for target in targets:
        end = begin + target.size
        target[...] = values[begin:end].reshape(target.shape)
        begin = end


def checksum(arrays: Sequence[Array]) -> int:
    """CRC-32 of the contents."""
    value = 0
    for piece in _bytes(arrays):
        value = zlib.crc32(piece, value)
    return value


def _bytes(arrays: Sequence[Array]) -> Iterator[Any]:
    for array in arrays:
        whole = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        yield whole.reshape(-1).view(np.uint8)


def poison(arrays: Sequence[Array]) -> None:
    """Fill buffers with a pattern that betrays early reads: NaN, bytes A5, or True."""
    for array in arrays:
        if array.dtype.kind in "iu":
            array[...] = np.frombuffer(b"\xa5" * array.dtype.itemsize, array.dtype)[0]
        elif array.dtype.kind == "b":
            array[...] = True
        else:
            array[...] = float("nan")
