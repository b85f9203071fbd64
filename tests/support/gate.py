"""The mutation gate: every mutant that the judge calls wrong must be rejected by the proof."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simcoll.errors import ScheduleError
from simcoll.proving import verify
from tests.support.judge import right, weakly_caught
from tests.support.mutants import mutants

if TYPE_CHECKING:
    from simcoll.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts per kind of fault, and the wrong mutants that were accepted, each with what replays it."""

    mutants: Counter = field(default_factory=Counter)
    wrong: Counter = field(default_factory=Counter)
    rejected: Counter = field(default_factory=Counter)
    strict: Counter = field(default_factory=Counter)
    weak: Counter = field(default_factory=Counter)
    missed: list = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the counts of another."""
        for name in ("mutants", "wrong", "rejected", "strict", "weak"):
            getattr(self, name).update(getattr(other, name))
        self.missed.extend(other.missed)


def judged(schedule: Schedule, every: int = 1, offset: int = 0) -> Tally:
    """Prove and judge every so many mutants of a schedule.

    ``wrong``: wrong by the judge; ``rejected``: and rejected by the proof; ``strict``: right in every order played, and rejected all
    the same; ``weak``: wrong, and seen by each weaker oracle.
    """
    tally = Tally()
    for number, (kind, made) in enumerate(mutants(schedule)):
        if (number + offset) % every:
            continue
        mutant = made()
        try:
            verify(mutant)
            rejected = False
        except ScheduleError:
            rejected = True
        fine = right(mutant, number)
        tally.mutants[kind] += 1
        tally.wrong[kind] += not fine
        tally.rejected[kind] += rejected and not fine
        tally.strict[kind] += rejected and fine
        if not fine:
            tally.weak.update(oracle for oracle, caught in weakly_caught(mutant).items() if caught)
        if not fine and not rejected:
            tally.missed.append((str(schedule), kind, number))
    return tally
