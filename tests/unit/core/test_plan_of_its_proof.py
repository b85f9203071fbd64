"""No plan carries a proof that is not of its own schedule."""

from dataclasses import fields, replace

import numpy as np
import pytest

import simcoll
from simcoll import REDUCE, Collective, ConfigError, Layout, Schedule, ScheduleError, transfers
from simcoll.types import Plan, Proof

RANKS = 6


def doubling():
    """Three doublings of six ranks, which add two of the vectors twice."""
    layout, rank = Layout(Collective("all_reduce", nranks=RANKS)), np.arange(RANKS)

    def steps():
        yield transfers(rank, layout.input(), rank, layout.output())
        for k in range(3):
            yield transfers(
                rank, layout.output(), (rank + 2**k) % RANKS, layout.output(), op=REDUCE
            )

    return Schedule("doubling", layout, steps)


@pytest.fixture
def proved():
    return simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=RANKS), 4)


def test_a_proved_plan_does_not_take_another_schedule(proved):
    with pytest.raises(ConfigError, match=r"this proof is not of doubling all_reduce n=6; bind\("):
        replace(proved, schedule=doubling())


def test_a_plan_made_by_hand_does_not_take_the_proof_of_another_schedule(proved):
    given = {field.name: getattr(proved, field.name) for field in fields(Plan) if field.init}
    with pytest.raises(ConfigError, match="this proof is not of doubling"):
        Plan(**{**given, "schedule": doubling()})


@pytest.mark.parametrize("made", ["borrowed", "by hand"])
def test_an_unproved_plan_does_not_become_proved(proved, made):
    plan = simcoll.bind(doubling(), 4, unproved=True)
    proof = (
        proved.proof
        if made == "borrowed"
        else Proof("full", "fingerprint", "run-consistent", 22, 4, False)
    )
    with pytest.raises(ConfigError, match="this proof is not of doubling"):
        replace(plan, proof=proof)


def test_a_proved_plan_keeps_its_proof_elsewhere_and_in_other_sizes(proved):
    moved = replace(proved, ranks=proved.ranks[::-1].copy(), sizes=8)
    assert moved.proof is proved.proof


def test_a_forged_proof_is_not_believed(proved):
    for forged in (proved.proof, Proof("full", "fingerprint", "run-consistent", 22, 4, False)):
        schedule = doubling()
        schedule.known.proof = forged
        with pytest.raises(ScheduleError, match="is wrong at the end"):
            simcoll.bind(schedule, 4)
