"""Pseudo-random 64-bit words for fingerprints of contributions and hashes of expression trees."""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Ints, Words

__all__ = ["SALTS", "mix", "mix_in_place", "token_at"]

SALTS = tuple(np.uint64(salt) for salt in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
"""Salts that keep hashes of different kinds of things apart."""


def mix(values: Words) -> Words:
    """A bijective mix of 64-bit words (the finaliser of SplitMix64: Steele, Lea, Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        z = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def mix_in_place(words: Words, spare: Words) -> None:
    """:func:`mix` without allocation; ``spare`` is overwritten."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(words, np.uint64(shift), out=spare)
        np.bitwise_xor(words, spare, out=words)
        np.multiply(words, np.uint64(factor), out=words)
    np.right_shift(words, np.uint64(31), out=spare)
    np.bitwise_xor(words, spare, out=words)


def token_at(index: Ints, salt: int) -> Words:
    """Pseudo-random 64-bit words as a function of (salt, index)."""
    with np.errstate(over="ignore"):
        return mix((index.astype(np.uint64) + np.uint64(1 + (salt << 40))) * np.uint64(0x9E3779B97F4A7C15))
