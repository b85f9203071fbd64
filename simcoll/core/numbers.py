"""Checks of numbers that a caller gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from simcoll.arrays import Array, Ints
from simcoll.core.immutable import immutable
from simcoll.errors import ConfigError, shown
from simcoll.units import MAX_INT64

__all__ = ["LARGEST", "NUMBER", "check_seed", "whole_number", "whole_numbers"]

LARGEST = 2**40
"""Largest number of chunks, channels or turns."""
NUMBER = np.dtype(np.int64)


def whole_number(name: str, value: Any, minimum: int, maximum: int = LARGEST) -> int:
    """A number as a Python int; refuses fractions, text and numbers out of range."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number = int(value)  # first: the number that is compared must be the one that is used
        if minimum <= number <= maximum:
            return number
    raise ConfigError(
        f"{name} must be a whole number from {minimum} to {maximum}, got {shown(value)}"
    )


def check_seed(seed: Any, maximum: int = MAX_INT64) -> int:
    """A seed as a Python int; refuses what draws the same as another one would.

    >>> check_seed(2**64)
    Traceback (most recent call last):
    simcoll.errors.ConfigError: seed must be a whole number from 0 to 9223372036854775807, got ...
    """
    return whole_number("seed", seed, 0, maximum)


def whole_numbers(
    name: str, values: ArrayLike, kinds: str = "iub", dtype: np.dtype[Any] = NUMBER
) -> Ints:
    """Numbers as a frozen array of int64, or of ``dtype``; refuses fractions, text, masks and
    numbers that do not fit.

    >>> whole_numbers("ranks", np.array([0, 2], ">u2"))
    array([0, 2])
    """
    if type(values) is np.ndarray and values.dtype is dtype:  # the common case
        return immutable(values)
    try:
        array: Array = np.asarray(None if _has_mask(values) else values)
    except (ValueError, OverflowError, TypeError):
        array = np.asarray(None)
    if array.size == 0:
        return immutable(np.zeros(array.shape, dtype))
    if array.dtype.kind in kinds:
        if np.can_cast(array.dtype, dtype):
            return immutable(array, dtype)
        copy = array.copy()  # first: nobody must change it between the comparison and its use
        limits = np.iinfo(dtype)
        if int(copy.min()) >= limits.min and int(copy.max()) <= limits.max:
            return immutable(copy, dtype)
    raise ConfigError(
        f"{name} must be whole numbers of {8 * dtype.itemsize} bits, got {values!r:.60}"
    )


def _has_mask(values: Any) -> bool:
    """Whether numbers are hidden by a mask, which ``np.asarray`` would drop."""
    # numpy.ma is loaded only where there can be such an array.
    return (
        isinstance(values, np.ndarray)
        and type(values) is not np.ndarray
        and isinstance(values, np.ma.MaskedArray)
    )
