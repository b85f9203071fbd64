"""Seeded random draws before a run, from hashes of (seed, stream, number), in integers and
decimals: equal on all machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Context, Decimal
from functools import lru_cache
from itertools import count
from statistics import NormalDist

import numpy as np

from simcoll.core.hashing import token_at

__all__ = ["DIGITS", "PPM", "exponential", "flaps", "lognormal", "standard_exponential", "words"]

PPM = 10**6
DIGITS = Context(prec=24)
BLOCK = 256
"""Words generated at a time."""
_QUANTILES_PPM = tuple(round(PPM * NormalDist().inv_cdf((128.5 + k) / 256)) for k in range(128))
"""Quantiles of the standard normal distribution; none is near a rounding boundary, so they are
equal on all machines.
"""


def words(seed: int, stream: int) -> Iterator[int]:
    """An endless stream of pseudo-random 64-bit words, a function of (seed, stream) only."""
    for start in count(int(token_at(np.array([stream]), seed)[0] >> np.uint64(2)), BLOCK):
        yield from token_at(np.arange(start, start + BLOCK), 0).tolist()


def lognormal(word: int, median: int, sigma_ppm: int) -> int:
    """Draw from a lognormal distribution, given its median and its logarithm's standard deviation
    in millionths.

    Takes one of 256 equally likely values, the most extreme of which are 2.89 standard deviations
    away.

    >>> [lognormal(word << 56, 1000, 500_000) for word in (0, 127, 128, 255)]
    [1002, 4233, 998, 236]
    """
    place = word >> 56
    sign = 1 if place < len(_QUANTILES_PPM) else -1
    away = Decimal(sign * _QUANTILES_PPM[place % len(_QUANTILES_PPM)] * sigma_ppm) / (PPM * PPM)
    return int(DIGITS.multiply(median, DIGITS.exp(away)).to_integral_value())


@lru_cache(maxsize=1 << 14)
def standard_exponential(word: int) -> Decimal:
    """Draw from the exponential distribution with mean 1; runs that are compared draw the same
    numbers, each after a slow logarithm.
    """
    return -DIGITS.ln((Decimal(word) + 1) / (1 << 64))


def exponential(word: int, mean: int) -> int:
    """Draw from an exponential distribution, at least 1.

    >>> [exponential(word << 62, 1000) for word in (1, 2, 3)]
    [1386, 693, 287]
    """
    return max(1, int(DIGITS.multiply(mean, standard_exponential(word))))


def flaps(
    seed: int, link: int, mtbf_fs: int, mttr_fs: int, until_fs: int
) -> Iterator[tuple[int, int]]:
    """Times at which a link goes down before ``until_fs``, and their durations: exponential, in
    femtoseconds.

    >>> list(flaps(1, 0, 10**12, 10**10, 2 * 10**12))
    [(138364493106, 21250660171), (950013433131, 3516156404)]
    """
    time_fs, drawn = 0, words(seed, link + (1 << 20))
    for up, down in zip(drawn, drawn, strict=False):
        time_fs += exponential(up, mtbf_fs)
        if time_fs >= until_fs:
            return
        length = exponential(down, mttr_fs)
        yield time_fs, length
        time_fs += length
