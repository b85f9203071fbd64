"""Rules by which libraries choose what to run, and the readers' words for what is wrong in one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from simcoll.errors import ConfigError

__all__ = ["LARGEST", "MAX_RULES", "NO_LIMIT", "Rule", "refuse_line", "whole_of"]

MAX_RULES = 100_000
NO_LIMIT = -1
LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Rule:
    """What runs for a collective in a range of sizes; the first rule that fits wins.

    Attributes
    ----------
    collective
        A name of :mod:`simcoll`, such as ``all_reduce``.
    min_bytes, max_bytes
        Sizes, both included; ``max_bytes`` -1 is no limit.
    algorithm
        As the library calls it.
    protocol, channels
        NCCL's; empty and -1 where it chooses.
    nodes, ranks
        For so many; -1: any.
    conditions
        What else must hold, as the file says it.
    """

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str = ""
    channels: int = -1
    nodes: int = -1
    ranks: int = -1
    conditions: tuple[str, ...] = ()


def refuse_line(file: str | None, number: int, message: str) -> NoReturn:
    """Say what is wrong in a line."""
    raise ConfigError(message, file=file, path=f"line {number}")


def whole_of(text: str, file: str | None, number: int, what: str, least: int = 0) -> int:
    """A whole number of a line."""
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= LARGEST:
        refuse_line(file, number, f"{what} {text[:30]!r}: expected a whole number from {least}")
    return int(text)
