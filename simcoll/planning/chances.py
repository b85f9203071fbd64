"""Seeded draws before a run: values of distributions from hashes of (seed, stream, number), in integers and decimals, alike everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Context, Decimal

import numpy as np

from simcoll.core.hashing import token_at

__all__ = ["PPM", "exponential", "flaps", "lognormal", "standard_exponential", "words"]

PPM = 10**6
_DIGITS = Context(prec=24)
_QUANTILES_PPM = (
    4896,
    14688,
    24481,
    34277,
    44076,
    53879,
    63688,
    73503,
    83324,
    93154,
    102993,
    112841,
    122701,
    132573,
    142457,
    152356,
    162269,
    172199,
    182145,
    192110,
    202093,
    212097,
    222122,
    232170,
    242241,
    252336,
    262457,
    272606,
    282782,
    292988,
    303225,
    313493,
    323794,
    334130,
    344502,
    354911,
    365359,
    375846,
    386375,
    396947,
    407564,
    418227,
    428937,
    439697,
    450509,
    461373,
    472291,
    483267,
    494301,
    505395,
    516552,
    527774,
    539062,
    550420,
    561849,
    573352,
    584932,
    596590,
    608330,
    620154,
    632066,
    644068,
    656164,
    668356,
    680649,
    693045,
    705549,
    718164,
    730894,
    743744,
    756718,
    769821,
    783057,
    796432,
    809950,
    823619,
    837443,
    851429,
    865583,
    879913,
    894426,
    909130,
    924034,
    939145,
    954474,
    970031,
    985826,
    1001870,
    1018177,
    1034759,
    1051631,
    1068808,
    1086306,
    1104143,
    1122338,
    1140913,
    1159890,
    1179294,
    1199152,
    1219495,
    1240356,
    1261771,
    1283781,
    1306430,
    1329771,
    1353859,
    1378760,
    1404546,
    1431302,
    1459123,
    1488122,
    1518429,
    1550199,
    1583615,
    1618900,
    1656324,
    1696223,
    1739020,
    1785262,
    1835672,
    1891229,
    1953324,
    2024014,
    2106554,
    2206575,
    2335233,
    2520502,
    2885635,
)
"""Of the standard normal distribution, at (256.5 + k) / 256 - 1/2 for k from 0 on: a table, since its inverse has no exact form."""


def words(seed: int, stream: int, count: int) -> list[int]:
    """``count`` pseudo-random 64-bit words, a function of (seed, stream) only."""
    start = int(token_at(np.array([stream]), seed)[0] >> np.uint64(2))
    return [int(word) for word in token_at(np.arange(start, start + count), 0)]


def lognormal(word: int, median: int, sigma_ppm: int) -> int:
    """A value of a lognormal distribution by its median and the standard deviation of its logarithm, in millionths.

    It is one of 256 equally likely ones, of which the most extreme are 2.89 standard deviations away.

    >>> [lognormal(word << 56, 1000, 500_000) for word in (0, 127, 128, 255)]
    [1002, 4233, 998, 236]
    """
    place = word >> 56
    sign = 1 if place < len(_QUANTILES_PPM) else -1
    away = Decimal(sign * _QUANTILES_PPM[place % len(_QUANTILES_PPM)] * sigma_ppm) / (PPM * PPM)
    return int(_DIGITS.multiply(median, _DIGITS.exp(away)).to_integral_value())


def standard_exponential(word: int) -> Decimal:
    """A value of the exponential distribution with mean 1."""
    return -_DIGITS.ln((Decimal(word) + 1) / (1 << 64))


def exponential(word: int, mean: int) -> int:
    """A value of an exponential distribution, at least 1.

    >>> [exponential(word << 62, 1000) for word in (1, 2, 3)]
    [1386, 693, 287]
    """
    return max(1, int(_DIGITS.multiply(mean, standard_exponential(word))))


def flaps(seed: int, link: int, mtbf_fs: int, mttr_fs: int, until_fs: int) -> Iterator[tuple[int, int]]:
    """When a link goes down before a time, and for how long: both times exponential, by their means, in femtoseconds.

    >>> list(flaps(1, 0, 10**12, 10**10, 2 * 10**12))
    [(138364493106, 21250660171), (950013433131, 3516156404)]
    """
    now, number = 0, 0
    drawn: list[int] = []
    while True:
        if number + 2 > len(drawn):
            drawn = words(seed, link + (1 << 20), max(64, 2 * len(drawn)))
        up, down = exponential(drawn[number], mtbf_fs), exponential(drawn[number + 1], mttr_fs)
        if now + up >= until_fs:
            return
        yield now + up, down
        now, number = now + up + down, number + 2
