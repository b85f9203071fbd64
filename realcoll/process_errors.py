"""Failures between processes, and missing hardware or libraries."""

from __future__ import annotations

from collections.abc import Iterable

from simcoll.errors import SimcollError
from simcoll.terminal import printable_lines

__all__ = ["FaultError", "MissingError"]


class FaultError(SimcollError):
    """A rank died, never arrived, or disagrees with the others.

    Parameters
    ----------
    message
        What happened, naming the ranks.
    ranks
        Processes at fault, where known.
    """

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        self.message = printable_lines(message)
        self.ranks = tuple(sorted(ranks))
        super().__init__(message)


class MissingError(SimcollError):
    """Hardware or a library that a transport needs is missing; the message says what to install."""
