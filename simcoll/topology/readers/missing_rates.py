"""Rates that another tool's file lacks: all missing ones are requested at once, with a command to copy."""

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
    name, what, example
        The key that sets it, such as ``nvlink.bandwidth``; a description of the links; and an example value.
    given
        Text, micro-bytes per second, or None.
    """

    name: str
    what: str
    example: str
    given: Any


def required_rates(source: str, file: str, rates: Sequence[Rate]) -> list[int]:
    """The rates in micro-bytes per second.

    >>> required_rates("the matrix", "m.txt", [Rate("nic.bandwidth", "NICs", "50 GB/s", "25 GB/s")])
    [25000000000000000]

    Raises
    ------
    ConfigError
        When some are missing.
    """
    missing = [rate for rate in rates if rate.given is None]
    if missing:
        values = "".join(f":{rate.name}={_shown(rate)}" for rate in rates)
        *others, last = (rate.what for rate in missing)
        what = f"{', '.join(others)} and {last}" if others else last
        name = printable(file)
        raise ConfigError(
            f"{source} does not state the speed of {what}; set {'them' if others else 'it'}: -t '{name}{values}', or in a file that "
            "extends it",
            file=file,
            path=f"$.{missing[0].name}",
        )
    return [rate.given if isinstance(rate.given, int) else parse_capacity(rate.given, rate.name) for rate in rates]


def _shown(rate: Rate) -> str:
    return format_rate(rate.given) if isinstance(rate.given, int) else str(rate.given or rate.example)
