"""Every broken variant of every shipped schedule that an independent judge calls wrong must be
rejected by the proof.

A sample; ``python benchmarks/mutants.py`` judges every mutant.
"""

from __future__ import annotations

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, SYNC, Layout, Schedule, transfers
from simcoll.errors import ScheduleError
from simcoll.proving import verify
from tests.support.gate import gate, judged
from tests.support.judge import ORACLES, right, weakly_caught
from tests.support.mutants import originals, rebuilt, rows_of

EVERY = 251
"""Of the mutants of an algorithm every so many are judged, or fewer of those with more than
``4 * EVERY`` transfers.
"""
KINDS = {
    "channel changed",
    "count changed",
    "direction swapped",
    "drop",
    "duplicate",
    "in place flipped",
    "reduce flipped",
    "split over channels",
    "step moved",
    "steps merged",
    "steps swapped",
    "two transfers swapped",
    "wrong chunk",
    "wrong destination",
    "wrong source",
}


def named(algorithm):
    return f"{algorithm.name}-{algorithm.collective}"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=named)
def test_the_judge_accepts_every_shipped_schedule(algorithm):
    for schedule in originals((2, 3, 4, 6, 8), (algorithm,)):
        assert right(schedule, 1, plays=2), schedule


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=named)
def test_every_wrong_mutant_is_rejected(algorithm):
    schedules = list(originals((2, 3, 4, 5, 8), (algorithm,)))
    transfers_of_all = sum(len(step) for schedule in schedules for step in schedule.steps())
    missed, sees = gate(schedules, max(EVERY, transfers_of_all // 4))
    assert missed == []
    assert sees


@pytest.mark.slow
def test_all_kinds_of_faults_are_made():
    tally = judged(simcoll.schedule("all_reduce", "rabenseifner", nranks=4, channels=2), every=3)
    assert set(tally.mutants) <= KINDS
    whole = judged(simcoll.schedule("all_reduce", "ring", nranks=2, channels=2))
    assert set(whole.mutants) | set(tally.mutants) == KINDS
    assert whole.missed == []
    assert whole.mutants["drop"] == sum(
        map(len, rows_of(simcoll.schedule("all_reduce", "ring", nranks=2, channels=2)))
    )


def played(collective, steps, channels=1, scratch=0):
    layout = Layout(collective, 1, np.zeros(scratch, np.int64))
    return Schedule("mine", layout, lambda: iter(steps), channels)


AR2 = Collective("all_reduce", 2)
LOAD = transfers([0, 1], 0, [0, 1], 1)


def test_the_judge_sees_what_one_order_hides():
    # On two channels nothing but the plan's waits orders the loads and the exchange: a judge of the
    # plan needs them.
    cross = transfers([0, 1], 0, [1, 0], 1, op=REDUCE, channel=1)
    assert right(played(AR2, [LOAD, cross], channels=2), 3)
    # Swapped in one step, each side is copied aside first; without that one of the two would read
    # the other's result.
    swap = transfers([0, 1], 1, [1, 0], 1, op=REDUCE)
    assert right(played(AR2, [LOAD, swap]), 3)
    assert not right(
        played(AR2, [LOAD, transfers(0, 1, 1, 1, op=REDUCE), transfers(1, 1, 0, 1, op=REDUCE)]), 3
    )


def test_a_copy_set_aside_waits_for_other_channels():
    # Channel 1 brings what channel 0 then swaps: the copies that the swap makes must not be made
    # before.
    steps = [
        transfers([0, 1], 0, [1, 0], 2, channel=1),
        transfers([0, 1], 2, [1, 0], 2),
        transfers([0, 1], 0, [1, 0], 1),
        transfers([0, 1], 2, [0, 1], 1, op=REDUCE),
    ]
    schedule = played(AR2, steps, channels=2, scratch=1)
    verify(schedule)
    assert right(schedule, 5)


def test_weaker_oracles_miss_what_the_multiset_sees():
    # Rank 0 counted twice and rank 1 not at all, rank 0 counted four times, and the other way
    # round.
    twice = played(AR2, [transfers(0, 0, [0, 1], 1), transfers(0, 0, [0, 1], 1, op=REDUCE)])
    assert weakly_caught(twice) == dict(zip(ORACLES, (False, True, True, True), strict=True))
    zero = played(
        AR2,
        [LOAD, transfers([0, 1], 0, [1, 0], 1, op=REDUCE), transfers(0, 0, [0, 1], 1, op=REDUCE)],
    )
    assert weakly_caught(zero) == dict(zip(ORACLES, (True, False, False, True), strict=True))


def test_a_barrier_by_hand():
    barrier = Collective("barrier", 2)
    assert right(played(barrier, [transfers([0, 1], 0, [1, 0], 0, op=SYNC)]), 0)
    early = played(barrier, [transfers(0, 0, 1, 0, op=SYNC)])
    assert not right(early, 0)
    with pytest.raises(ScheduleError, match="may leave before"):
        verify(early)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=named)
def test_a_rebuilt_schedule_is_the_same_schedule(algorithm):
    # Otherwise what is rejected would be the rebuilding, not the fault.
    for schedule in originals((4,), (algorithm,)):
        assert rebuilt(schedule, rows_of(schedule)).content_hash() == schedule.content_hash()
