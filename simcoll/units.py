"""Conversion between text with units and exact integers.

Internally a size is a whole number of bytes, a time a whole number of femtoseconds (``_fs``) and a
rate a whole number of micro-bytes per second (``_uBps``). Prefixes of a bare size are binary, as in
nccl-tests (``"64M"`` is 64 MiB); those of a rate are decimal (``"50 GB/s"`` is 50 * 10**9 bytes per
second; ``"400 Gbps"`` is the same).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

from simcoll.errors import ConfigError, nearest, shown

__all__ = [
    "FS_PER_SECOND",
    "MAX_RATE_UBPS",
    "MAX_TIME_FS",
    "UBPS_PER_BPS",
    "Ratio",
    "counted",
    "exact_time",
    "format_memory",
    "format_rate",
    "format_size",
    "format_span",
    "format_time",
    "number_of",
    "parse_rate",
    "parse_ratio",
    "parse_size",
    "parse_span",
    "parse_time",
]

Ratio: TypeAlias = str | float | Fraction | Decimal
"""A factor or share as callers give it, such as ``2``, ``1.5``, ``"7/3"`` or ``Fraction(7, 3)``; it
is stored as a fraction.
"""

FS_PER_SECOND = 10**15
UBPS_PER_BPS = 10**6
MAX_INT64 = 2**63 - 1
MAX_TIME_FS = MAX_INT64
"""About 2.56 hours."""
MAX_RATE_UBPS = MAX_INT64
"""About 9.22 TB/s. A faster aggregated link must be split into several."""

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
# Digits of other scripts are refused: a reader of the file must see the same number.
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([A-Za-zµμ/]*)\s*", re.ASCII)
_RATIO = re.compile(rf"\s*({_NUMBER})\s*(?:[:/]\s*({_NUMBER})\s*)?", re.ASCII)
MOST_DIGITS, MOST_EXPONENT = 40, 30

_PREFIXED = re.compile(r"[A-Za-z]?i?[bB]")
"""The part of a unit that decides its size."""

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

_SIZE_UNITS: dict[str, int] = {
    "B": 1,
    **{form: f for p, f in _BINARY.items() if p for form in (p, p.lower())},
    **{f"{p}iB": f for p, f in _BINARY.items() if p},
    **{f"{p}B": f for p, f in _DECIMAL.items() if p},
}
_RATE_UNITS: dict[str, Fraction] = {
    **{f"{p}B/s": Fraction(f) for p, f in _DECIMAL.items()},
    **{f"{p}Bps": Fraction(f) for p, f in _DECIMAL.items()},
    **{f"{p}iB/s": Fraction(f) for p, f in _BINARY.items() if p},
    **{f"{p}bps": Fraction(f, 8) for p, f in _DECIMAL.items()},
    **{f"{p}bit/s": Fraction(f, 8) for p, f in _DECIMAL.items()},
    **{f"{p}b/s": Fraction(f, 8) for p, f in _DECIMAL.items()},
}
_TIME_UNITS: dict[str, int] = {
    "s": 10**15,
    "ms": 10**12,
    "us": 10**9,
    "µs": 10**9,
    "μs": 10**9,
    "ns": 10**6,
    "ps": 10**3,
    "fs": 1,
}
_SPAN_UNITS: dict[str, int] = {
    "us": 1,
    "ms": 10**3,
    "s": 10**6,
    "min": 60 * 10**6,
    "h": 3600 * 10**6,
    "hours": 3600 * 10**6,
    "day": 86400 * 10**6,
    "days": 86400 * 10**6,
}
MAX_SPAN_US = 100 * 366 * 86400 * 10**6
"""A hundred years."""


def _quantity(
    text: object,
    subject: str,
    example: str,
    units: Mapping[str, int | Fraction],
    place: dict[str, str | None],
) -> tuple[Fraction, str]:
    """A quantity in the smallest unit, and its given unit."""
    if not isinstance(text, str):
        raise ConfigError(
            f"{subject}: expected text with a unit such as {example!r}, got {shown(text)}", **place
        )
    match = _QUANTITY.fullmatch(text)
    if match is None:
        expected = f"expected a number and a unit such as {example!r}"
        raise ConfigError(f"{subject}: cannot read {shown(text)}; {expected}", **place)
    number, unit = match.groups()
    value = _exact(number)
    if value is None:
        raise ConfigError(f"{subject}: {shown(text)} is out of range", **place)
    if value < 0:
        raise ConfigError(
            f"{subject}: {shown(text)} is negative; expected a value such as {example!r}", **place
        )
    if unit and unit not in units:
        raise ConfigError(
            f"{subject}: unknown unit {shown(unit)} in {shown(text)}; {_nearest_unit(unit, units)}",
            **place,
        )
    return value * units.get(unit, 1), unit


def _nearest_unit(unit: str, units: Mapping[str, int | Fraction]) -> str:
    """The units that an unknown one may stand for, never one of another size: a wrong letter is
    easily a factor of 8 or 1000.
    """
    spelled = re.sub("bit", "bit", unit, flags=re.IGNORECASE)
    prefix = _PREFIXED.match(spelled)
    same_size = [name for name in units if prefix and name.startswith(prefix[0])]
    same_size = same_size or [name for name in units if len(name) > 1 and spelled.startswith(name)]
    if same_size:
        return nearest(spelled, same_size)
    same_letters = [name for name in units if name.lower() == spelled.lower()]
    if not same_letters:
        return nearest("", units)
    choices = " or ".join(repr(name) for name in same_letters)
    if "b" in spelled and all("B" in name for name in same_letters):
        return f"a small b stands for bits; for bytes, write {choices}"
    return f"did you mean {choices}?" if len(same_letters) == 1 else f"is it {choices}?"


def _exact(number: str, most_letters: int = MOST_DIGITS) -> Fraction | None:
    """A number exactly as written; None if its power of ten would take long to compute."""
    _, _, exponent = number.lower().partition("e")
    if len(number) > most_letters or (exponent and abs(int(exponent)) > MOST_EXPONENT):
        return None
    return Fraction(number)


def parse_ratio(text: str) -> Fraction | None:
    """A number or a quotient of two, exactly; None for other text and for out-of-range numbers.

    >>> parse_ratio("7:1"), parse_ratio("370/450"), parse_ratio("1e-3")
    (Fraction(7, 1), Fraction(37, 45), Fraction(1, 1000))
    >>> parse_ratio("1e9999999999") is parse_ratio("1/0") is parse_ratio("1_0") is None
    True
    """
    match = _RATIO.fullmatch(text)
    if match is None:
        return None
    above, below = (_exact(number, most_letters=80) for number in (match[1], match[2] or "1"))
    return above / below if above is not None and below else None


def _whole(
    exact: Fraction, subject: str, text: object, limit: int, place: dict[str, str | None]
) -> int:
    result = int(exact + Fraction(1, 2))
    if result > limit:
        raise ConfigError(
            f"{subject}: {shown(text)} is too large for the model (limit {limit})", **place
        )
    return result


def parse_size(
    text: str | int, *, what: str = "size", file: str | None = None, path: str | None = None
) -> int:
    """Bytes of a size such as ``"64M"``, ``"8"``, ``"1.5 GiB"`` or ``"10 MB"``.

    A bare number and the bare prefixes K, M, G, T are bytes and powers of 1024, as in nccl-tests;
    ``kB``, ``MB``, ``GB`` are powers of 1000.

    Raises
    ------
    ConfigError
        When the text is not a size, is negative, is not a whole number of bytes, or exceeds 2**63 -
        1.

    Examples
    --------
    >>> parse_size("64M"), parse_size("8"), parse_size("1.5 GiB"), parse_size("10 MB")
    (67108864, 8, 1610612736, 10000000)
    """
    place = {"file": file, "path": path}
    plain = isinstance(text, int) and not isinstance(text, bool) and text.bit_length() <= 128
    quantity_text = str(text) if plain else text
    exact, _ = _quantity(quantity_text, what, "64M", _SIZE_UNITS, place)
    if exact.denominator != 1:
        raise ConfigError(f"{what}: {shown(text)} is not a whole number of bytes", **place)
    return _whole(exact, what, text, MAX_INT64, place)


def parse_rate(
    text: str, *, what: str = "bandwidth", file: str | None = None, path: str | None = None
) -> int:
    """Micro-bytes per second of a rate such as ``"400 Gbps"`` or ``"50 GB/s"``. The unit is
    required.

    Raises
    ------
    ConfigError
        When the unit is missing or unknown, the rate is negative, or it exceeds 9.22 TB/s.

    Examples
    --------
    >>> parse_rate("400 Gbps") == parse_rate("50 GB/s") == 50 * 10**9 * 10**6
    True
    """
    place = {"file": file, "path": path}
    exact, unit = _quantity(text, what, "50 GB/s", _RATE_UNITS, place)
    if not unit:
        raise ConfigError(
            f"{what}: {shown(text)} has no unit; write for example '{text.strip()} GB/s' or "
            f"'{text.strip()} Gbps'",
            **place,
        )
    return _whole(exact * UBPS_PER_BPS, what, text, MAX_RATE_UBPS, place)


def parse_time(
    text: str, *, what: str = "time", file: str | None = None, path: str | None = None
) -> int:
    """Femtoseconds of a time such as ``"1.5 us"``. The unit is required, except for 0.

    Raises
    ------
    ConfigError
        When the unit is missing or unknown, the time is negative, or it exceeds 2.56 hours.

    Examples
    --------
    >>> parse_time("1.5 us"), parse_time("20 ns"), parse_time("0")
    (1500000000, 20000000, 0)
    """
    place = {"file": file, "path": path}
    exact, unit = _quantity(text, what, "1.5 us", _TIME_UNITS, place)
    if not unit and exact:
        raise ConfigError(
            f"{what}: {shown(text)} has no unit; write for example '{text.strip()} us'", **place
        )
    return _whole(exact, what, text, MAX_TIME_FS, place)


def parse_span(
    text: str, *, what: str = "time", file: str | None = None, path: str | None = None
) -> int:
    """Microseconds of a long time span, such as ``"90 s"``, ``"5 min"``, ``"1.5 h"`` or
    ``"54 days"``. The unit is required.

    Raises
    ------
    ConfigError
        When the unit is missing or unknown, the span is negative, or it exceeds a hundred years.

    Examples
    --------
    >>> parse_span("5 min"), parse_span("54 days") // 10**6 // 86400
    (300000000, 54)
    """
    place = {"file": file, "path": path}
    exact, unit = _quantity(text, what, "5 min", _SPAN_UNITS, place)
    if not unit and exact:
        raise ConfigError(
            f"{what}: {text!r} has no unit; write for example '{text.strip()} min'", **place
        )
    return _whole(exact, what, text, MAX_SPAN_US, place)


def number_of(text: str, path: str) -> int:
    """Parse a large number, such as ``"15T"`` (decimal).

    >>> number_of("15T", "$.objective.tokens"), number_of("2.5B", "")
    (15000000000000, 2500000000)
    """
    scale = {"K": 3, "M": 6, "B": 9, "G": 9, "T": 12}.get(text.strip()[-1:], 0)
    try:
        number = float(text.strip()[:-1] if scale else text) * float(10**scale)
    except ValueError:
        number = 0.0
    if not 1 <= number < 2**63:
        raise ConfigError(f"{text!r}: expected a number such as '15T'", path=path)
    return int(number + 0.5)


def format_span(span_us: int) -> str:
    """A span with three significant digits.

    >>> format_span(90_000_000), format_span(300_000_000), format_span(11_134_000_000)
    ('1.5 min', '5 min', '3.09 h')
    """
    unit = next((name for name in ("days", "h", "min", "s") if span_us >= _SPAN_UNITS[name]), "ms")
    return f"{_three_digits(span_us / _SPAN_UNITS[unit])} {unit}"


def format_size(size_bytes: int) -> str:
    """A size in the shortest exact binary form.

    >>> format_size(67108864), format_size(1000), format_size(0)
    ('64 MiB', '1000 B', '0 B')
    """
    for prefix, factor in reversed(_BINARY.items()):
        if prefix and size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor} {prefix}iB"
    return f"{size_bytes} B"


def format_memory(size_bytes: int) -> str:
    """A size with three significant digits, binary prefixes.

    >>> format_memory(1500), format_memory(0), format_memory(80 * 10**9)
    ('1.46 KiB', '0 B', '74.5 GiB')
    """
    for prefix, factor in reversed(_BINARY.items()):
        if prefix and size_bytes >= factor:
            return f"{_three_digits(size_bytes / factor)} {prefix}iB"
    return f"{size_bytes} B"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def format_time(time_fs: int) -> str:
    """A time with three significant digits.

    >>> format_time(1_500_000_000), format_time(0), format_time(123_456_000_000_000)
    ('1.5 us', '0 s', '123 ms')
    """
    for unit in ("s", "ms", "us", "ns", "ps"):
        if time_fs >= _TIME_UNITS[unit]:
            return f"{_three_digits(time_fs / _TIME_UNITS[unit])} {unit}"
    return f"{time_fs} fs" if time_fs else "0 s"


def format_signed(time_fs: int) -> str:
    """A difference of times, with its sign.

    >>> format_signed(-1_500_000_000), format_signed(0)
    ('-1.5 us', '+0 s')
    """
    return f"{'-' if time_fs < 0 else '+'}{format_time(abs(time_fs))}"


def exact_time(time_fs: int) -> str:
    """A time in the largest unit in which it is a whole number.

    >>> exact_time(1_500_000_000), exact_time(2 * 10**12), exact_time(0)
    ('1500ns', '2ms', '0')
    """
    unit = next(name for name, length in _TIME_UNITS.items() if time_fs % length == 0)
    return f"{time_fs // _TIME_UNITS[unit]}{unit}" if time_fs else "0"


def format_rate(rate_uBps: int) -> str:
    """A rate with three significant digits, decimal prefixes.

    >>> format_rate(50 * 10**15), format_rate(450 * 10**15)
    ('50 GB/s', '450 GB/s')
    """
    rate = rate_uBps / UBPS_PER_BPS
    for prefix in ("T", "G", "M", "k"):
        if rate >= _DECIMAL[prefix]:
            return f"{_three_digits(rate / _DECIMAL[prefix])} {prefix}B/s"
    return f"{_three_digits(rate)} B/s"


def counted(number: int, noun: str) -> str:
    """A count with its noun, in the plural where needed.

    >>> counted(1, "rank"), counted(1024, "rank")
    ('1 rank', '1,024 ranks')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"
