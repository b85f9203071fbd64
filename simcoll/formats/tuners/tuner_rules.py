"""Selection rules of libraries, and errors about them."""

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
    """The algorithm of a collective for a range of sizes; the first matching rule applies.

    Attributes
    ----------
    collective
        simcoll's name, such as ``all_reduce``.
    min_bytes, max_bytes
        Inclusive range of sizes; ``max_bytes`` -1 is no limit.
    algorithm
        The library's name.
    protocol, channels
        For NCCL; empty and -1 to leave them to NCCL.
    nodes, ranks
        Required numbers; -1: any.
    conditions
        Further conditions, in the file's form.
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
    """Raise a ConfigError about a line."""
    raise ConfigError(message, file=file, path=f"line {number}")


def whole_of(text: str, file: str | None, number: int, subject: str, minimum: int = 0) -> int:
    """Parse an integer in a line."""
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not minimum <= int(text) <= LARGEST:
        refuse_line(
            file, number, f"{subject} {text[:30]!r}: expected a whole number from {minimum}"
        )
    return int(text)
