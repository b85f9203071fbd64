"""The mutation gate: every mutant that the judge calls wrong must be rejected by the proof."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn
from unittest.mock import patch

from simcoll.errors import ScheduleError
from simcoll.proving import explain, verify
from tests.support.judge import right, weakly_caught
from tests.support.mutants import mutants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simcoll.arrays import Ints
    from simcoll.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts per kind of fault, and the wrong mutants that were accepted, each with what replays
    it.
    """

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

    ``wrong``: wrong by the judge; ``rejected``: and rejected by the proof; ``strict``: right in
    every order played, and rejected all the same; ``weak``: wrong, and seen by each weaker oracle.
    """
    tally = Tally()
    for number, kind, mutant in _taken(schedule, every, offset):
        rejected = _rejected(mutant)
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


def gate(schedules: Sequence[Schedule], every: int) -> tuple[list[tuple[str, str, int]], bool]:
    """The accepted mutants that the judge calls wrong, as in ``missed`` of :func:`judged`; and
    whether it calls any wrong.

    A mutant that the proof rejects cannot be missed, so that once the judge has called one wrong it
    need not see them.
    """
    missed, sees = [], False
    for position, schedule in enumerate(schedules):
        for number, kind, mutant in _taken(schedule, every, offset=17 * position):
            rejected = _rejected(mutant)
            if rejected and sees:
                continue
            wrong = not right(mutant, number)
            sees |= wrong
            if wrong and not rejected:
                missed.append((str(schedule), kind, number))
    return missed, sees


def _taken(schedule: Schedule, every: int, offset: int) -> Iterator[tuple[int, str, Schedule]]:
    """Number, kind and schedule of every so many mutants."""
    for number, (kind, made) in enumerate(mutants(schedule)):
        if (number + offset) % every == 0:
            yield number, kind, made()


def _rejected(mutant: Schedule) -> bool:
    """Whether the proof rejects a mutant by fingerprints and by counting alike."""
    verdicts = {_accepts(mutant, exact=exact) for exact in (False, True)}
    if len(verdicts) == 2:
        raise AssertionError(f"fingerprints and counts differ about {mutant}")
    return verdicts == {False}


def _accepts(mutant: Schedule, *, exact: bool) -> bool:
    # What is wrong is explained once: that takes as long as to find it.
    explained = patch.object(explain, "wrong_outputs", _wrong) if exact else nullcontext()
    with explained:
        try:
            verify(mutant, exact=exact)
        except ScheduleError:
            return False
    return True


def _wrong(schedule: Schedule, ranks: Ints, chunks: Ints) -> NoReturn:
    raise ScheduleError(f"{schedule}: {len(ranks)} wrong output chunks")
