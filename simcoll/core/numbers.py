"""Checks of numbers that a caller gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from simcoll.arrays import Ints
from simcoll.errors import ConfigError, shown
from simcoll.units import MAX_INT64

__all__ = ["LARGEST", "check_seed", "whole_number", "whole_numbers"]

LARGEST = 2**40
"""Largest number of chunks, channels or turns."""


def whole_number(name: str, value: Any, least: int, most: int = LARGEST) -> int:
    """A number as a Python int; refuses fractions, text and numbers out of range."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}, got {shown(value)}")
    return int(value)


def check_seed(seed: Any, most: int = MAX_INT64) -> int:
    """A seed as a Python int; refuses what draws the same as another one would.

    >>> check_seed(2**64)
    Traceback (most recent call last):
    simcoll.errors.ConfigError: seed must be a whole number from 0 to 9223372036854775807, got 18446744073709551616
    """
    return whole_number("seed", seed, 0, most)


def whole_numbers(name: str, values: ArrayLike, kinds: str = "iub") -> Ints:
    """Numbers as int64; refuses fractions, text and numbers that do not fit."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        array = np.asarray(None)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in kinds or (array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max):
        raise ConfigError(f"{name} must be whole numbers of 64 bits, got {values!r:.60}")
    return array.astype(np.int64)
