"""Rates that another tool's file lacks: all missing ones are requested at once, with a command to
copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simcoll.errors import ConfigError
from simcoll.terminal import printable
from simcoll.topology.values import parse_capacity
from simcoll.units import format_rate

__all__ = ["Rate", "required_rates"]


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate that a topology needs and its file does not state.

    Attributes
    ----------
    name, subject, example
        The key that sets it, such as ``nvlink.bandwidth``; a description of the links; and an
        example value.
    stated
        Text, micro-bytes per second, or None.
    """

    name: str
    subject: str
    example: str
    stated: Any


def required_rates(source: str, file: str, rates: Sequence[Rate]) -> list[int]:
    """The rates in micro-bytes per second.

    >>> required_rates("the matrix", "m.txt", [Rate("nic.bandwidth", "NICs", "50 GB/s", "25 GB/s")])
    [25000000000000000]

    Raises
    ------
    ConfigError
        When some are missing.
    """
    missing = [rate for rate in rates if rate.stated is None]
    if missing:
        values = "".join(f":{rate.name}={_example(rate)}" for rate in rates)
        *earlier, last = (rate.subject for rate in missing)
        subjects = f"{', '.join(earlier)} and {last}" if earlier else last
        name = printable(file)
        raise ConfigError(
            f"{source} does not state the speed of {subjects}; set {'them' if earlier else 'it'}: "
            f"-t '{name}{values}', or in a file that "
            "extends it",
            file=file,
            path=f"$.{missing[0].name}",
        )
    return [
        rate.stated if isinstance(rate.stated, int) else parse_capacity(rate.stated, rate.name)
        for rate in rates
    ]


def _example(rate: Rate) -> str:
    return (
        format_rate(rate.stated)
        if isinstance(rate.stated, int)
        else str(rate.stated or rate.example)
    )
