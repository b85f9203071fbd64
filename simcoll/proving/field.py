"""Arithmetic modulo the prime 2^61 - 1, on arrays of 64-bit words, and random elements of this field."""

from __future__ import annotations

import hashlib
from typing import cast

import numpy as np

from simcoll.arrays import Ints, Words

__all__ = ["PRIME", "add", "column_sums", "multiply", "random_words", "run_sums"]

PRIME = 2**61 - 1

_PRIME, _LOW30, _LOW31, _LOW32 = (np.array(number, np.uint64) for number in (PRIME, 2**30 - 1, 2**31 - 1, 2**32 - 1))
_1, _30, _31, _32, _61 = (np.array(number, np.uint64) for number in (1, 30, 31, 32, 61))


def _reduced(words: Words) -> Words:
    """Words below 2^64 as elements of the field: 2^61 = 1."""
    folded = (words & _PRIME) + (words >> _61)
    return cast("Words", np.minimum(folded, folded - _PRIME))  # a negative difference wraps to a huge number


def add(left: Words, right: Words) -> Words:
    """Sum of elements of the field.

    >>> add(np.array([PRIME - 1], np.uint64), np.array([3], np.uint64)).tolist()
    [2]
    """
    total = left + right
    return cast("Words", np.minimum(total, total - _PRIME))


def multiply(left: Words, right: Words) -> Words:
    """Product of elements of the field.

    Each has 30 high and 31 low bits. The product of two high parts has the weight 2^62 = 2, the middle products have 2^31, and their bits
    from the 30th on 2^61 = 1. The four terms below are less than 2^61, 2^32, 2^61 and 2^62, so their sum does not wrap.

    >>> multiply(np.array([2**60], np.uint64), np.array([6], np.uint64)).tolist()
    [3]
    """
    left_high, left_low, right_high, right_low = left >> _31, left & _LOW31, right >> _31, right & _LOW31
    middle = left_high * right_low + left_low * right_high
    high = (left_high * right_high) << _1
    return _reduced(high + (middle >> _30) + ((middle & _LOW30) << _31) + left_low * right_low)


def _from_halves(low: Words, high: Words) -> Words:
    """Elements of the field from sums of the low and the high 32 bits of fewer than 2^31 words."""
    return add(_reduced(low), multiply(_reduced(high), np.full(len(high), 2**32, np.uint64)))


def run_sums(words: Words, starts: Ints) -> Words:
    """Sum of each run of elements, of which each begins at one of ``starts``."""
    return _from_halves(np.add.reduceat(words & _LOW32, starts), np.add.reduceat(words >> _32, starts))


def column_sums(words: Words) -> Words:
    """Sum of each column of a matrix of elements."""
    return _from_halves((words & _LOW32).sum(axis=0, dtype=np.uint64), (words >> _32).sum(axis=0, dtype=np.uint64))


def random_words(key: bytes, count: int) -> Words:
    """Independent random elements of the field, from a keyed hash.

    A word of 64 random bits modulo the prime takes its eight likeliest values with probability 9 / 2^64, all others with 8 / 2^64.
    """
    return _reduced(np.frombuffer(hashlib.shake_128(key).digest(8 * count), "<u8").astype(np.uint64))
