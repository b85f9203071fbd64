"""Meetings: ranks that must all arrive, each with its contribution, before any of them continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcoll.distributed.runtime.tasks import Waitable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Arrival", "Meeting", "listed"]

SHOWN_RANKS = 16


def listed(ranks: Iterable[int]) -> str:
    """Ranks for people: the first few."""
    every = list(ranks)
    return ", ".join(map(str, every[:SHOWN_RANKS])) + (", ..." if len(every) > SHOWN_RANKS else "")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rank's arrival at a meeting.

    Attributes
    ----------
    key
        Names the meeting: the same on all ranks, and used once.
    what
        What the ranks do together, for messages.
    expected
        The ranks to wait for; None for as many as it takes to compare the subjects.
    subject
        What this rank came for: must be equal on all ranks.
    value
        Its contribution to the meeting, as plain data.
    tell
        The ranks that may arrive; None: those that are waited for.
    """

    key: str
    what: str
    expected: Sequence[int] | None
    subject: Any = ""
    value: Any = None
    tell: Sequence[int] | None = None


class Meeting(Waitable):
    """Ranks that must all arrive; it takes no simulated time, since nothing crosses the network.

    Attributes
    ----------
    what, expected
        As of the first arrival in this process; empty before.
    subjects, values
        By rank, in order of arrival.
    clash
        The first two ranks that came for different things.
    """

    __slots__ = ("clash", "expected", "subjects", "values", "what")

    def __init__(self) -> None:
        super().__init__()
        self.what = ""
        self.expected: tuple[int, ...] = ()
        self.subjects: dict[int, Any] = {}
        self.values: dict[int, Any] = {}
        self.clash: tuple[int, int] | None = None

    def arrive(self, rank: int, subject: Any, value: Any) -> None:
        """Note that a rank is here."""
        self.subjects[rank] = subject
        self.values[rank] = value
        first = next(iter(self.subjects))
        if self.clash is None and self.subjects[first] != subject:
            self.clash = (first, rank)

    def missing(self) -> list[int]:
        """Expected ranks that have not arrived."""
        return [rank for rank in self.expected if rank not in self.subjects]

    def waits_for(self) -> str:
        """The missing ranks."""
        missing = self.missing()
        return f"{self.what} waits for rank {listed(missing)}" if missing else f"{self.what} waits for data"

    def settle(self, ended: Mapping[int, str]) -> None:
        """Finish if all ranks are here, if they disagree, or if one can never come: ``ended`` says why."""
        if not self.what:
            return
        if self.clash is not None:
            one, other = self.clash
            asked = f"rank {one} asked for {self.subjects[one]}, rank {other} for {self.subjects[other]}"
            text = f"{self.what} differs between ranks: {asked}"
            self.finish(text)
            self.error = text  # also for ranks that come after the others have gone on
        elif ended and not self.done and (gone := [rank for rank in self.missing() if rank in ended]):
            self.finish(f"{ended[gone[0]]}\n  {self.waits_for()}")
        elif len(self.subjects) >= len(self.expected) and not self.missing():
            self.finish()

    def check(self) -> None:
        """Raise if the ranks came for different things, or one of them has ended."""
        if self.error is not None:
            raise RuntimeError(self.error)
