"""Digests of steps, by which a schedule tells whether its source yields the same steps again.

A source is a program, which may know this module, but not the random numbers below: every process
draws its own. Two blocks that differ have equal digests with a probability of at most 2^-66,
whatever a source yields, for this reason.

* Only values count: columns have one type and byte order (:class:`simcoll.core.step.Step`), and
  their lengths are part of the digest.
* The values of up to 64 transfers go through SHA-256, and so does all of what follows. No two
  inputs with the same SHA-256 are known.
* The values of more transfers are words x of 64 bits: those of all columns in a row, or in a very
  long step of each column by itself. They are cut into parts of 8,192 words. Of each part, SHA-256
  gets two sums of f x modulo 2^64, each with its own random words f; and if a word of the row
  exceeds 32 bits, also two sums of f (x >> 32).
* Let a part differ. If some lower halves differ, let 2^v be the largest power of two that divides
  all differences of words; then v <= 31. A sum of f times the differences is 0 modulo 2^64 with
  probability 2^-(64 - v), at most 2^-33: divided by 2^v, one of the differences is odd, so whatever
  the other factors are, its factor must have one certain residue modulo 2^(64 - v). Two independent
  sums: 2^-66.
* If all lower halves agree, upper halves differ. Then either only one of the two rows has sums of
  upper halves, which its first letters tell, or the same argument holds for these sums, whose words
  are below 2^32.

Hashing all values would take ten times as long, and every pass over a schedule computes digests.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache, lru_cache
from hashlib import sha256

import numpy as np

from simcoll.arrays import Array, Ints
from simcoll.core.step import COLUMNS, Repeat, Step, distinct

__all__ = ["JOINED", "LongDigest", "digest"]

FEW = 64
"""Up to this many transfers, hashing the values themselves is faster."""
PART = 1 << 13
"""Words to a part: two such parts and their factors fit into a cache of 256 KB."""
JOINED = 1 << 17
"""Up to this many words, joining the columns is faster than handling each; beyond, columns of one
value count.
"""
WORD = np.dtype(np.int64)


@cache
def _factors() -> Ints:
    """Two random words for every place of a part: ``[2, PART]``."""
    return np.frombuffer(os.urandom(2 * PART * WORD.itemsize), WORD).reshape(2, PART)


def digest(block: Step | Repeat) -> bytes:
    """A digest of a step or repeat; equal ones have equal digests within a process.

    >>> from simcoll.core.step import transfers
    >>> digest(transfers(0, 1, 2, 3)) == digest(transfers(0, 1, 2, 4))
    False
    """
    if isinstance(block, Step):
        return sha256(b"".join(_of_step(block))).digest()
    numbers = block.count, block.stride, block.base, block.modulus
    parts = [
        b"repeat",
        repr(
            (numbers, len(block.steps), None if block.order is None else len(block.order))
        ).encode(),
    ]
    if block.order is not None:
        parts.append(_sums(block.order))
    return sha256(b"".join([*parts, *map(digest, block.steps)])).digest()


class LongDigest:
    """The digest of a step of more than :data:`JOINED` transfers that come in portions; the same as
    that of the whole.

    >>> from simcoll.core.step import transfers
    >>> step = transfers(np.arange(JOINED + 1), 1, 2, 3)
    >>> portions = LongDigest()
    >>> for rows in (slice(0, 1000), slice(1000, None)):
    ...     portions.add(step.rows(rows))
    >>> portions.value() == digest(step)
    True
    """

    def __init__(self) -> None:
        self._columns = [_LongColumn() for _ in COLUMNS]
        self._transits: list[bytes] = []

    def add(self, portion: Step) -> None:
        """Take the transfers that follow."""
        for sums, column in zip(self._columns, portion.columns, strict=True):
            sums.add(column)
        if portion.transits is not None:
            self._transits.append(portion.transits.key)

    def value(self) -> bytes:
        """The digest of all transfers so far."""
        sizes = distinct(np.array([sums.size for sums in self._columns]))
        lengths = b",".join(b"%d" % size for size in sizes.tolist()) + b":"
        sums = [sums.value() for sums in self._columns]
        return sha256(b"".join([lengths, *sums, *self._transits])).digest()


class _LongColumn:
    """The sums of a column that comes in portions."""

    def __init__(self) -> None:
        self.size = 0
        self._lower: list[bytes] = []
        self._upper: list[bytes] = []
        self._any_upper = False
        self._rest: Array | None = None  # values after the last whole part

    def add(self, values: Array) -> None:
        """Take the values that follow."""
        self.size += len(values)
        if self._rest is not None and len(self._rest):
            values = np.concatenate([self._rest, values])
        per_part = PART * WORD.itemsize // values.dtype.itemsize
        cut = len(values) - len(values) % per_part
        self._rest = values[cut:]
        self._add_parts(values[:cut])

    def _add_parts(self, values: Array) -> None:
        if not len(values):
            return
        if values.strides == (0,):
            sums = _of_equal(int(values[0]), len(values), values.dtype)
        else:
            sums = _sums(_words(values))
        kind, sums = sums[:5], sums[5:]
        tail = 2 * WORD.itemsize  # the sums of no words
        lower, upper = (sums, b"") if kind == b"lower" else _halves(sums)
        self._lower.append(lower[:-tail])
        self._upper.append(upper[:-tail] or bytes(len(lower) - tail))
        self._any_upper = self._any_upper or kind == b"upper"

    def value(self) -> bytes:
        """As :func:`_sums` of all values."""
        sums = _sums(np.zeros(0, WORD) if self._rest is None else _words(self._rest))
        kind, sums = sums[:5], sums[5:]
        lower, upper = (sums, bytes(len(sums))) if kind == b"lower" else _halves(sums)
        lower_sums = b"".join([*self._lower, lower])
        if not self._any_upper and kind == b"lower":
            return b"lower" + lower_sums
        return b"upper" + lower_sums + b"".join([*self._upper, upper])


def _halves(sums: bytes) -> tuple[bytes, bytes]:
    return sums[: len(sums) // 2], sums[len(sums) // 2 :]


def _of_step(step: Step) -> list[bytes]:
    """The lengths of the columns of a step, and their values or sums of these."""
    columns, size = step.columns, len(step)
    if step.transits is not None:  # rare: all of their bytes, which begin with their lengths
        return [*_of_step(replace(step, transits=None)), step.transits.key]
    if size <= FEW or [*map(len, columns)].count(size) < len(columns):
        return [
            b"%d,%d,%d,%d,%d,%d,%d:" % tuple(map(len, columns)),
            *[column.tobytes() for column in columns],
        ]
    lengths = b"%d:" % size
    if len(columns) * size <= JOINED:
        return [lengths, _sums(np.concatenate(columns))]
    return [lengths, *map(_of_column, columns)]


def _of_column(column: Array) -> bytes:
    """The sums of a long column."""
    if column.strides == (0,):
        return _of_equal(int(column[0]), len(column), column.dtype)
    return _sums(_words(column))


@lru_cache(maxsize=64)
def _of_equal(value: int, size: int, dtype: np.dtype[np.generic]) -> bytes:
    """The sums of a column of one value, which most long steps have several of."""
    return _sums(_words(np.full(size, value, dtype)))


def _words(column: Array) -> Ints:
    """A column as whole words; of bytes, eight make one."""
    if column.dtype.itemsize == WORD.itemsize:
        return column
    values = column.tobytes()
    return np.frombuffer(values + bytes(-len(values) % WORD.itemsize), WORD)


def _sums(words: Ints) -> bytes:
    """Two sums of random multiples of the words of every part; also of their upper halves if a word
    has more than 32 bits.
    """
    unsigned = words.view(np.uint64)
    if not int(unsigned.max(initial=0)) >> 32:
        return b"lower" + _products(words)
    return b"upper" + _products(words) + _products((unsigned >> 32).view(WORD))


def _products(words: Ints) -> bytes:
    factors = _factors()
    cut = len(words) - len(words) % PART
    tail_sums: Ints = np.einsum("i,ji->j", words[cut:], factors[:, : len(words) - cut])
    if not cut:
        return tail_sums.tobytes()
    sums: Ints = np.einsum("pi,ji->pj", words[:cut].reshape(-1, PART), factors)
    return sums.tobytes() + tail_sums.tobytes()
