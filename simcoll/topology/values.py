"""Topology arguments: text with units or exact integers in, exact integers out, errors for the
rest.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import SupportsIndex, TypeAlias, cast

from simcoll.errors import ConfigError, shown
from simcoll.units import MAX_RATE_UBPS, MAX_TIME_FS, Ratio, parse_rate, parse_ratio, parse_time

__all__ = [
    "Quantity",
    "checked_capacity",
    "count",
    "duration_fs",
    "factor",
    "halves_fs",
    "lengths",
    "parse_capacity",
    "whole",
]

Quantity: TypeAlias = str | int
"""Text with a unit (``"450 GB/s"``, ``"1.5 us"``), or an integer in the internal unit (uBps,
fs).
"""


def parse_capacity(value: Quantity, subject: str) -> int:
    """A positive capacity in micro-bytes per second.

    Examples
    --------
    >>> parse_capacity("50 GB/s", "bandwidth")
    50000000000000000
    """
    rate = (
        value
        if isinstance(value, int) and not isinstance(value, bool)
        else parse_rate(str(value), what=subject)
    )
    return checked_capacity(rate, subject)


def checked_capacity(rate_uBps: int | Fraction, subject: str) -> int:
    """Round down to whole micro-bytes per second; refuse rates beyond the integer model."""
    rate = int(rate_uBps)
    if rate <= 0:
        raise ConfigError(f"{subject}: expected a positive rate, got {shown(rate)} uB/s")
    if rate > MAX_RATE_UBPS:
        raise ConfigError(
            f"{subject}: {_terabytes(rate)} TB/s on one link is more than the model's 9.22 TB/s; "
            "split it, for example with fewer nodes per switch"
        )
    return rate


def _terabytes(rate_uBps: int) -> str:
    """A rate with three digits, even if too large for a float."""
    return f"{rate_uBps / 1e18:.3g}" if rate_uBps < 10**300 else shown(rate_uBps)


def duration_fs(value: Quantity, subject: str) -> int:
    """A latency of zero or more, in femtoseconds.

    Examples
    --------
    >>> duration_fs("1.5 us", "latency"), duration_fs(0, "latency")
    (1500000000, 0)
    """
    time = (
        value
        if isinstance(value, int) and not isinstance(value, bool)
        else parse_time(str(value), what=subject)
    )
    if not 0 <= time <= MAX_TIME_FS:
        raise ConfigError(
            f"{subject}: {shown(time)} fs is out of range; expected 0 to {MAX_TIME_FS} fs (2.5 "
            "hours)"
        )
    return time


def halves_fs(time_fs: int) -> tuple[int, int]:
    """Split a latency over an up link and a down link so that the sum is exact.

    Examples
    --------
    >>> halves_fs(5)
    (3, 2)
    """
    return time_fs - time_fs // 2, time_fs // 2


def whole(value: object, subject: str) -> int:
    """A whole number of Python or numpy; booleans do not count."""
    try:
        number = operator.index(cast("SupportsIndex", value))
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ConfigError(f"{subject}: expected a whole number, got {shown(value)}")
    return number


def count(value: object, subject: str, *, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
    """A whole number in a range."""
    number = whole(value, subject)
    if not minimum <= number <= maximum:
        raise ConfigError(
            f"{subject}: {shown(number)} is out of range; expected {minimum} to {maximum}"
        )
    return number


def lengths(values: Sequence[int], subject: str) -> tuple[int, ...]:
    """Lengths of the dimensions of a grid, at least one."""
    try:
        sizes = tuple(values)
    except TypeError:
        sizes = ()
    if not sizes:
        raise ConfigError(
            f"{subject}: expected at least one dimension, such as [4, 4], got {values!r}"
        )
    return tuple(count(value, subject) for value in sizes)


def factor(value: Ratio, subject: str, *, zero: bool = False) -> Fraction:
    """An exact positive ratio such as ``2``, ``1.5``, ``"7/3"`` or ``"2:1"``; with ``zero`` also 0.

    Examples
    --------
    >>> factor("7:1", "oversubscription"), factor(1.5, "oversubscription"), factor("37/45", "share")
    (Fraction(7, 1), Fraction(3, 2), Fraction(37, 45))
    """
    if isinstance(value, (int, Fraction)):
        ratio: Fraction | None = Fraction(value)
    else:  # a float stands for the decimal number that was written
        ratio = parse_ratio(str(value))
    if isinstance(value, bool) or ratio is None or ratio < 0 or not (ratio or zero):
        expected = (
            "0, or a positive number or ratio"
            if zero
            else "a positive number or ratio such as 2, 1.5 or '7:1'"
        )
        raise ConfigError(f"{subject}: expected {expected}, got {shown(value)}")
    return ratio
