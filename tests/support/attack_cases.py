"""Cases of directed attacks on provers: false variants and true twins, and how each prover is tried
on them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import simcoll
from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats.schedules.certificate import certificate_bytes
from simcoll.proving import check_lowering, lower, verify_device_program, verify_program
from tests.support.attack_certificates import (
    certificate,
    checker_words,
    has_checker,
    program_certificate,
)
from tests.support.exact_player import LEVELS, Verdict, WrongError, verdict_on
from tests.support.program_player import (
    ProgramPlayer,
    verdict_on_device_program,
    verdict_on_program,
)

MOST_LOWERED = 2_500
"""Up to this many single-chunk transfers a schedule is also lowered to a program and that is
proved.
"""
MOST_CHECKED = 60_000
"""Up to this many transfers the independent checker is asked as well."""
WEAKER = "weaker"


MOST_EMULATED = 600
"""Up to this many transfers a proved schedule is also emulated, with data."""


class UnaffectedError(Exception):
    """A change after the proof reached nothing that runs: as good as a refusal."""


class Trial(NamedTuple):
    """One prover on one case; ``prove`` returns its proof or refuses. ``may_decline``: it may also
    say that a true twin is beyond it.
    """

    prover: str
    prove: Callable[[], Any]
    may_decline: bool = False
    orders: bool = True


@dataclass(frozen=True)
class Case:
    """A false variant, a true twin, or (``WEAKER``) a right subject for which a prover might claim
    too strong an order.

    ``verdict`` is that of an independent player, which must agree.
    """

    label: str
    right: bool | str
    trials: tuple[Trial, ...]
    verdict: Callable[[], Verdict]


class Attack(NamedTuple):
    """A kind of attack: ``cases(rng, quick)`` yields variants and twins with random parameters."""

    name: str
    what: str
    cases: Callable[..., Iterable[Case]]


class Outcome(NamedTuple):
    """What one trial came to: ``refused``, ``proved``, ``declined`` or a failure in words."""

    kind: str
    why: str = ""


def level(order: str) -> int:
    return ("", *LEVELS).index(order)


def outcome(case: Case, trial: Trial, verdict: Verdict) -> Outcome:
    """Try one prover and compare."""
    try:
        proof = trial.prove()
    except UnaffectedError:
        return Outcome("refused" if case.right is False else "proved")
    except (ScheduleError, ConfigError) as error:
        if case.right is False:
            return Outcome("refused")
        if trial.may_decline and isinstance(error, ConfigError):
            return Outcome("declined")
        return Outcome("failure", f"refused, though right: {str(error).splitlines()[0]:.160}")
    except Exception as error:  # noqa: BLE001
        return Outcome(
            "failure",
            f"ended in {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else '':.160}",
        )
    if case.right is False:
        return Outcome("failure", f"PROVED, though wrong ({verdict.reason:.80}): {proof!s:.120}")
    order = getattr(proof, "order", None)
    if trial.orders and order is not None and order != verdict.order:
        said = (
            "claims too strong an order"
            if level(order) > level(verdict.order)
            else "claims too weak an order"
        )
        return Outcome("failure", f"{said}: {order or 'none'} instead of {verdict.order or 'none'}")
    return Outcome("refused" if case.right == WEAKER else "proved")


def schedule(
    collective,
    steps,
    *,
    chunks=1,
    scratch=(),
    pieces=None,
    channels=1,
    divisible=False,
    name="attack",
):
    """A schedule of a list of blocks, or of a function that yields them."""
    slots = np.array(scratch, np.int64)
    layout = simcoll.Layout(
        collective, chunks, slots, None if pieces is None else np.array(pieces, np.int64)
    )
    blocks = list(steps) if not callable(steps) else steps
    source = blocks if callable(blocks) else (lambda: blocks)
    return simcoll.Schedule(name, layout, source, channels, (), divisible)


def with_blocks(subject, blocks, channels=None):
    """A schedule with the same layout and other blocks."""
    return simcoll.Schedule(
        "attack",
        subject.layout,
        lambda: blocks,
        channels or subject.nchannels,
        (),
        subject.divisible,
    )


def size_of(subject) -> int:
    """Number of single-chunk transfers, or more."""
    total = 0
    for block in subject.source():
        steps, turns = (block.steps, block.count) if hasattr(block, "steps") else ((block,), 1)
        for step in steps:
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                total += turns * int(np.asarray(step.count).astype(object).sum())
    return total


def count_for(subject) -> int:
    return 2 * subject.layout.chunks + (0 if subject.divisible else 1)


def lowered_proof(subject, right):
    """The proof of a plan's program without that of the schedule.

    A few wrong schedules have a right program: one that breaks the rule against two writes, for
    instance, where the program writes in an order that happens to be right. Then the player of
    programs says so.
    """
    plan = simcoll.bind(subject, count_for(subject), "float64", unproved=True)
    proof = check_lowering(plan)
    if right is False and verdict_on_program(lower(plan)).right:
        raise UnaffectedError
    return proof


def schedule_case(
    label, right, make, *, exact=True, lowering=True, checker=True, may_decline=False
) -> Case:
    """Try every prover of schedules on what ``make`` makes afresh, unless that is refused
    already.
    """
    trials = [
        Trial("verify", lambda: simcoll.verify(make()), may_decline),
        Trial("verify by fingerprints", lambda: simcoll.verify(make(), exact=False), may_decline),
    ]
    try:
        subject = make()
    except (ScheduleError, ConfigError) as error:
        why = str(error)
        return Case(label, right, tuple(trials[:1]), lambda: Verdict(bool(right), "", why))
    size, barrier = size_of(subject), subject.collective.kind == "barrier"
    if exact:
        trials.append(
            Trial("verify by counts", lambda: simcoll.verify(make(), exact=True), may_decline=True)
        )
    if lowering and not barrier and size <= MOST_LOWERED and subject.layout.size < 10**6:
        # Operands of a switch keep the order of the plan there, so the level of the program may be
        # higher.
        trials.append(
            Trial("check_lowering", lambda: lowered_proof(make(), right), may_decline, orders=False)
        )
    verdicts: list[Verdict] = []

    def verdict() -> Verdict:
        if not verdicts:
            verdicts.append(verdict_on(subject))
        return verdicts[0]

    if checker and size <= MOST_CHECKED and has_checker():
        trials.append(
            Trial(
                "simcoll_check",
                lambda: checker_words(certificate(make(), verdict())),
                may_decline=True,
            )
        )
        trials.append(
            Trial(
                "its certificate", lambda: certified_proof(make(), simcoll.verify), may_decline=True
            )
        )
    return Case(label, right, tuple(trials), verdict)


def certified_proof(subject, prove):
    """Prove, and let the checker read the certificate that the package writes."""
    proof = prove(subject)
    checker_words(certificate_bytes(subject, proof))
    return proof


def program_case(label, right, make, like=None) -> Case:
    """Try the prover of per-rank programs; ``make`` may refuse as well. The player judges
    ``like()`` instead, if blocks.
    """

    def verdict() -> Verdict:
        try:
            return verdict_on_program((like or make)())
        except (ScheduleError, ConfigError) as error:
            return Verdict(False, "", str(error))

    def check():
        subject = make()
        try:
            player = ProgramPlayer(subject)
        except WrongError:
            player = None
        return checker_words(program_certificate(subject, verdict(), player))

    trials = [Trial("verify_program", lambda: verify_program(make()))]
    if has_checker():
        trials.append(Trial("simcoll_check", check, may_decline=True))
        trials.append(
            Trial(
                "its certificate", lambda: certified_proof(make(), verify_program), may_decline=True
            )
        )
    return Case(label, right, tuple(trials), verdict)


def device_case(label, right, make, seed=1) -> Case:
    """Try the prover of programs of thread blocks."""

    def verdict() -> Verdict:
        try:
            program = make()
        except (ScheduleError, ConfigError) as error:
            return Verdict(False, "", str(error))
        return verdict_on_device_program(program, seed)

    return Case(
        label,
        right,
        (Trial("verify_device_program", lambda: verify_device_program(make())),),
        verdict,
    )


def used_case(label, right, make, change) -> Case:
    """Prove, change what can be changed, then use: what then runs must be right, or be refused."""

    def prove():
        subject = make()
        proof = simcoll.verify(subject)
        with contextlib.suppress(ValueError, TypeError, AttributeError):  # what is frozen stays
            change(subject)
        still_right(subject)
        if right is False:
            raise UnaffectedError
        return proof

    truth = Verdict(bool(right), "", "its steps change after the proof")
    return Case(label, right, (Trial("verify, then use", prove, orders=False),), lambda: truth)


class WrongAtRunError(Exception):
    """What runs is wrong, though it was proved."""


def still_right(subject) -> None:
    """Use a proved schedule in every way, and judge what each user of it sees."""
    from simcoll.topology import crossbar

    # Judged as it is read: what this pass yields is what runs.
    seen = verdict_on(subject, subject.blocks())
    if not seen.right:
        raise WrongAtRunError(f"its steps are wrong after the proof: {seen.reason}")
    plan = simcoll.bind(subject, count_for(subject))
    if sum(map(len, plan.steps())) <= MOST_EMULATED:
        machine = crossbar(subject.nranks, "50 GB/s", "1 us")
        if simcoll.emulate(plan, machine, bound=False).wrong:
            raise WrongAtRunError("the emulated data is wrong after the proof")
        check_lowering(plan)
    again = verdict_on(subject, subject.steps())
    if not again.right:
        raise WrongAtRunError(f"a second pass is wrong after the proof: {again.reason}")


__all__ = [
    "WEAKER",
    "Attack",
    "Case",
    "Outcome",
    "Trial",
    "UnaffectedError",
    "WrongAtRunError",
    "count_for",
    "device_case",
    "level",
    "outcome",
    "program_case",
    "schedule",
    "schedule_case",
    "size_of",
    "still_right",
    "used_case",
    "with_blocks",
]
