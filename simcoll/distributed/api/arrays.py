"""What may be passed as a tensor: numpy arrays, and whatever shares its memory with one."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.core.memory import array_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

__all__ = ["as_array", "as_arrays", "checksum", "poison", "scatter_into"]


def as_array(value: Any, parameter: str = "tensor") -> Array:
    """An array on the memory of ``value``: an ndarray, a buffer (``bytearray``, ``array.array``), or an object with
    ``__array__`` or DLPack that shares memory, such as a torch CPU tensor.

    Raises
    ------
    TypeError
        For anything else.
    """
    if isinstance(value, np.ndarray):
        return value
    plain = isinstance(value, (list, tuple, str, int, float, complex, bool, type(None), dict))
    found = None if plain else array_on(value)
    if found is None:
        raise TypeError(
            f"Invalid function argument. Expected parameter `{parameter}` of type torch.Tensor but got {type(value)} instead."
            " Pass a numpy array, or an object that shares its memory (buffer protocol, DLPack)."
        )
    return found


def as_arrays(values: Any, parameter: str) -> list[Array]:
    """A list of arrays.

    Raises
    ------
    TypeError
        When it is no list, or has something else in it.
    """
    if not isinstance(values, list):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{parameter}` of type List[torch.Tensor] but got {type(values)} "
            "instead."
        )
    return [as_array(value, parameter) for value in values]


def scatter_into(targets: Sequence[Array], values: Array) -> None:
    """Fill the targets, one after the other, from a flat array."""
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
    """Make results that are read too early show: NaN, or bytes A5; bool becomes True."""
    for array in arrays:
        if array.dtype.kind in "iu":
            array[...] = np.frombuffer(b"\xa5" * array.dtype.itemsize, array.dtype)[0]
        elif array.dtype.kind == "b":
            array[...] = True
        else:
            array[...] = float("nan")
