"""Pseudo-random 64-bit words for fingerprints of contributions and hashes of expression trees."""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Ints, Words

__all__ = ["SALTS", "mix", "mix_in_place", "token_at"]

SALTS = tuple(
    np.uint64(salt) for salt in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
)
"""Salts that keep hashes of different kinds of things apart."""

# The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): shifts, and factors between them.
# As arrays they need no conversion on every call, which for few words is half the time.
_SHIFTS = [np.array(shift, np.uint64) for shift in (30, 27, 31)]
_FACTORS = [np.array(factor, np.uint64) for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)]


def mix(values: Words) -> Words:
    """A bijective mix of 64-bit words."""
    with np.errstate(over="ignore"):
        z = (values ^ (values >> _SHIFTS[0])) * _FACTORS[0]
        z = (z ^ (z >> _SHIFTS[1])) * _FACTORS[1]
    return z ^ (z >> _SHIFTS[2])


def mix_in_place(words: Words, spare: Words) -> None:
    """:func:`mix` without allocation; ``spare`` is overwritten."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):  # the last shift has no factor
        np.right_shift(words, shift, out=spare)
        np.bitwise_xor(words, spare, out=words)
        np.multiply(words, factor, out=words)
    np.right_shift(words, _SHIFTS[2], out=spare)
    np.bitwise_xor(words, spare, out=words)


def token_at(index: Ints, salt: int) -> Words:
    """Pseudo-random 64-bit words as a function of (salt, index)."""
    with np.errstate(over="ignore"):
        return mix(
            (index.astype(np.uint64) + np.uint64(1 + (salt << 40))) * np.uint64(0x9E3779B97F4A7C15)
        )
