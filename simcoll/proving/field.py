"""Arithmetic modulo the prime 2^61 - 1, on arrays of 64-bit words, and random elements of this
field.
"""

from __future__ import annotations

import hashlib
from typing import cast

import numpy as np

from simcoll.arrays import Ints, Words

__all__ = ["PRIME", "add", "column_sums", "multiply", "random_words", "run_sums"]

PRIME = 2**61 - 1

_PRIME = np.array(PRIME, np.uint64)
_LOW30 = np.array(2**30 - 1, np.uint64)
_LOW31 = np.array(2**31 - 1, np.uint64)
_LOW32 = np.array(2**32 - 1, np.uint64)
_1 = np.array(1, np.uint64)
_30 = np.array(30, np.uint64)
_31 = np.array(31, np.uint64)
_32 = np.array(32, np.uint64)
_61 = np.array(61, np.uint64)


def _reduce(words: Words) -> Words:
    """Words below 2^64 as elements of the field: 2^61 = 1."""
    folded = (words & _PRIME) + (words >> _61)
    # A negative difference wraps to a huge number.
    return cast("Words", np.minimum(folded, folded - _PRIME))


def add(x: Words, y: Words) -> Words:
    """Sum of elements of the field.

    >>> add(np.array([PRIME - 1], np.uint64), np.array([3], np.uint64)).tolist()
    [2]
    """
    total = x + y
    return cast("Words", np.minimum(total, total - _PRIME))


def multiply(x: Words, y: Words) -> Words:
    """Product of elements of the field.

    Each has 30 high and 31 low bits. The product of two high parts has the weight 2^62 = 2, the
    middle products have 2^31, and their bits from the 30th on 2^61 = 1. The four terms below are
    less than 2^61, 2^32, 2^61 and 2^62, so their sum does not wrap.

    >>> multiply(np.array([2**60], np.uint64), np.array([6], np.uint64)).tolist()
    [3]
    """
    x_high = x >> _31
    x_low = x & _LOW31
    y_high = y >> _31
    y_low = y & _LOW31
    middle = x_high * y_low + x_low * y_high
    high = (x_high * y_high) << _1
    return _reduce(high + (middle >> _30) + ((middle & _LOW30) << _31) + x_low * y_low)


def _from_halves(low: Words, high: Words) -> Words:
    """Elements of the field from sums of the low and the high 32 bits of fewer than 2^31 words."""
    return add(_reduce(low), multiply(_reduce(high), np.full(len(high), 2**32, np.uint64)))


def run_sums(words: Words, starts: Ints) -> Words:
    """Sum of each run of elements, of which each begins at one of ``starts``."""
    return _from_halves(
        np.add.reduceat(words & _LOW32, starts), np.add.reduceat(words >> _32, starts)
    )


def column_sums(words: Words) -> Words:
    """Sum of each column of a matrix of elements."""
    return _from_halves(
        (words & _LOW32).sum(axis=0, dtype=np.uint64), (words >> _32).sum(axis=0, dtype=np.uint64)
    )


def random_words(key: bytes, count: int) -> Words:
    """Independent random elements of the field, from a keyed hash.

    A word of 64 random bits modulo the prime takes its eight likeliest values with probability 9 /
    2^64, all others with 8 / 2^64.
    """
    return _reduce(np.frombuffer(hashlib.shake_128(key).digest(8 * count), "<u8").astype(np.uint64))
