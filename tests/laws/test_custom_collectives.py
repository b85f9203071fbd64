"""Collectives of one's own obey the laws of the ten: an independent judge decides on every mutant,
the checker has the last word, and hashes of all other schedules are what they were.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import realcoll
import simcoll
import simcoll_check
from simcoll import COPY, REDUCE, Collective, Layout, Schedule, ScheduleError, transfers
from simcoll.formats.schedules.certificate import _block, certificate_bytes
from simcoll.formats.schedules.schedule_json import dump_schedule, parse_schedule
from simcoll.proving import check_lowering, lower, verify, verify_program
from simcoll.topology import crossbar
from tests.support.custom_cases import rounding_inputs, shipped
from tests.support.gate import gate
from tests.support.judge import right
from tests.support.mutants import mutants

NAMES = sorted(shipped(4))


@pytest.mark.slow
@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
def test_shipped_collectives_are_proved_checked_emulated_and_written(nranks):
    for name, schedule in shipped(nranks).items():
        proof = verify(schedule)
        assert proof.order == verify(schedule, exact=False).order, name
        assert verify(schedule).steps == proof.steps
        line = simcoll_check.check(certificate_bytes(schedule, proof))
        assert schedule.collective.name in line
        again = parse_schedule(dump_schedule(schedule))
        assert again.collective == schedule.collective
        assert again.content_hash() == schedule.content_hash()
        result = simcoll.emulate(
            simcoll.bind(schedule, 37, "int64"), crossbar(nranks, "10 GB/s", "1 us")
        )
        assert (result.data, result.wrong) == ("exact", 0), name
        assert result.bound.time_fs <= result.time_fs


@pytest.mark.parametrize("name", NAMES)
def test_the_direct_algorithm_serves_every_definition(name):
    schedule = simcoll.schedule(shipped(4)[name].collective)
    assert schedule.name == "direct"
    verify(schedule)
    assert right(schedule, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_lowered_programs_are_proved_and_checked(name):
    plan = simcoll.bind(shipped(4)[name], 24)
    proof = check_lowering(plan)
    assert proof.data
    simcoll_check.check(certificate_bytes(lower(plan), proof))
    assert verify_program(lower(plan)).data


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", ["simpy", "fast"])
def test_engines_and_executors_agree_to_the_bit(name, engine):
    plan = simcoll.bind(shipped(4)[name], 101)
    inputs = rounding_inputs(plan)
    ours = simcoll.emulate(plan, crossbar(4, "10 GB/s", "1 us"), data=inputs, engine=engine)
    theirs = realcoll.execute(plan, inputs)
    for rank, output in theirs.items():
        assert output.tobytes() == ours.outputs[rank].tobytes()
    reference = simcoll.emulate(plan, crossbar(4, "10 GB/s", "1 us"), engine="simpy")
    assert (ours.time_fs, ours.trace_hash) == (reference.time_fs, reference.trace_hash)


def test_an_average_divides_by_the_contributions():
    plan = simcoll.bind(shipped(5)["gossip in three rounds"], 7, "float64", "avg")
    inputs = [np.full(7, float(rank)) for rank in range(5)]
    outputs = simcoll.emulate(plan, crossbar(5, "10 GB/s"), data=inputs).outputs
    times = np.array([7, 6, 4, 4, 6])  # of ranks 0, 1, 2, -2, -1 after three rounds, 27 in all
    assert times.sum() == 27
    np.testing.assert_allclose(outputs[0], (times @ np.arange(5)) / 27)
    with pytest.raises(simcoll.ConfigError, match="same number of contributions"):
        simcoll.bind(shipped(4)["scan by a chain"], 7, op="avg")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_wrong_mutant_is_rejected(name):
    schedules = [cases[name] for cases in map(shipped, (2, 3, 4, 5)) if name in cases]
    missed, sees = gate(schedules, 7)
    assert missed == []
    assert sees


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_checker_refuses_what_the_proof_refuses(name):
    schedule = shipped(4)[name]
    record = json.loads(certificate_bytes(schedule, verify(schedule)))
    refused = 0
    for number, (_, made) in enumerate(mutants(schedule)):
        if number % 11:
            continue
        mutant = made()
        try:
            proof = verify(mutant)
        except ScheduleError:
            refused += 1
        else:
            simcoll_check.check(certificate_bytes(mutant, proof))
            continue
        if mutant.collective != schedule.collective:
            continue
        wrong = dict(record, channels=mutant.nchannels)
        wrong["blocks"] = [_block(block) for block in mutant.blocks()]
        wrong["claims"] = record["claims"] | {
            "steps": sum(1 for _ in mutant.steps()),
            "transfers": sum(map(len, mutant.steps())),
            "shared_chunks": True,
            "folds": True,
        }
        with pytest.raises((simcoll_check.Wrong, simcoll_check.Unreadable)):
            simcoll_check.check(wrong)
    assert refused


def played(collective, *steps, scratch=0, chunks=1):
    layout = Layout(collective, chunks, [0] * scratch)
    return Schedule("mine", layout, lambda: iter(steps))


def verdicts(schedule):
    """By counting and by fingerprints."""
    answers = set()
    for exact in (True, False):
        try:
            verify(schedule, exact=exact)
            answers.add(True)
        except ScheduleError:
            answers.add(False)
    assert len(answers) == 1
    return answers.pop()


PAIR = [[0], [1]]
HERE, THERE = (0, 0, 0, 1), (1, 0, 0, 1)
"""From rank 0 and from rank 1 to the output of rank 0."""


@pytest.mark.parametrize(
    ("listed", "often", "holds"),
    [
        ([0, 1], 1, True),
        ([0, 1, 1], 1, False),
        ([0, 1, 1], 2, True),
        ([0, 1], 2, False),
        ([0, 0, 1], 2, False),
    ],
)
def test_a_contribution_counts_as_often_as_it_is_listed(listed, often, holds):
    collective = Collective.custom("weights", PAIR, [[listed], []])
    steps = [transfers(*HERE), *[transfers(*THERE, op=REDUCE)] * often]
    assert verdicts(played(collective, *steps)) is holds


@pytest.mark.parametrize("doublings", [63, 64, 65])
def test_powers_of_two_do_not_vanish(doublings):
    """2^64 times a vector is nothing in 64 bits, and is a wrong output all the same."""
    collective = Collective.custom("one", PAIR, [[0], []])
    layout = Layout(collective, 1, [0])
    steps = [transfers(*THERE[:2], 0, layout.scratch_at(0)), transfers(*HERE)]
    double = transfers(0, layout.scratch_at(0), 0, layout.scratch_at(0), op=REDUCE)
    steps += [double] * doublings
    good = played(collective, *steps, scratch=1)
    assert verdicts(good)
    bad = played(
        collective,
        *steps,
        transfers(0, layout.scratch_at(0), 0, layout.output(), op=REDUCE),
        scratch=1,
    )
    assert not verdicts(bad)


def test_equal_contributions_may_come_from_any_holder():
    collective = Collective.custom("copies", [[0], [0], [1]], [[1], [], [0]])
    for holder in (0, 1):
        good = played(collective, transfers([2, holder], 0, [0, 2], 1))
        assert verdicts(good)
    assert not verdicts(played(collective, transfers([2, 2], 0, [0, 2], 1)))


def test_slots_that_a_rank_does_not_have_are_neither_read_nor_filled():
    collective = Collective.custom("uneven", [[0, 1], [2]], [[2], [0, 1]])
    layout = Layout(collective)
    good = transfers([0, 0, 1], [0, 1, 0], [1, 1, 0], [2, 3, 2])
    assert verdicts(played(collective, good))
    unread = transfers([0, 0, 1], [0, 1, 1], [1, 1, 0], [2, 3, 2])
    assert not verdicts(played(collective, unread))
    beside = transfers([0, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0], [2, 3, 2, 3])
    assert not verdicts(played(collective, beside))
    assert layout.has_slot(np.array([0, 0]), np.array([2, 3])).tolist() == [True, False]


def test_blocks_of_two_size_classes_are_not_joined():
    collective = Collective.custom("sizes", [[0, 1], []], [[], [0, 1]], sizes=[0, 1])
    assert verdicts(played(collective, transfers(0, [0, 1], 1, [2, 3])))
    swapped = Collective.custom("sizes", [[0, 1], []], [[], [1, 0]], sizes=[0, 1])
    assert not verdicts(played(swapped, transfers(0, [0, 1], 1, [2, 3])))


@pytest.mark.parametrize("listed", [[0, 1, 2], [1, 0, 2], [2, 1, 0]])
def test_the_listed_order_is_held_against_the_brackets(listed):
    """(0 + 1) + 2 has the bits of (1 + 0) + 2, not of (2 + 1) + 0."""
    collective = Collective.custom("three", [[0], [1], [2]], [[listed], [], []], order="listed")
    steps = [transfers(r, 0, 0, 1, op=REDUCE if r else COPY) for r in range(3)]
    schedule = played(collective, *steps)
    holds = listed != [2, 1, 0]
    assert verdicts(schedule) is holds
    free = played(Collective.custom("three", [[0], [1], [2]], [[listed], [], []]), *steps)
    record = json.loads(certificate_bytes(free, verify(free)))
    record["collective"]["definition"]["order"] = "listed"
    if holds:
        simcoll_check.check(record)
        return
    with pytest.raises(simcoll_check.Wrong, match="listed order"):
        simcoll_check.check(record)


def test_a_required_level_is_held_against_the_proof():
    def summed(order):
        outputs = [[[0, 1, 2]], [[0, 1, 2]], []]
        return Collective.custom("two", [[0], [1], [2]], outputs, order=order)

    steps = [
        transfers([0, 1], 0, [0, 1], 1),
        transfers([1, 2], 0, [0, 1], 1, op=REDUCE),
        transfers([2, 0], 0, [0, 1], 1, op=REDUCE),  # (0 + 1) + 2 and (1 + 2) + 0
    ]
    free = played(summed(""), *steps)
    assert verify(free).order == "any"
    assert not verdicts(played(summed("rank-consistent"), *steps))
    record = json.loads(certificate_bytes(free, verify(free)))
    record["collective"]["definition"]["order"] = "rank-consistent"
    with pytest.raises(simcoll_check.Wrong, match="less than the definition requires"):
        simcoll_check.check(record)


def test_the_checker_reads_definitions_as_the_prover_does():
    schedule = shipped(4)["dispatch"]
    record = json.loads(certificate_bytes(schedule, verify(schedule)))
    text = json.dumps(record)
    definition = record["collective"]["definition"]
    for change in (
        {"inputs": definition["inputs"][:-1]},
        {"outputs": [[]] * 4},
        {"outputs": [[[99]], *definition["outputs"][1:]]},
        {"outputs": [[[]], *definition["outputs"][1:]]},
        {"sizes": [0]},
        {"order": "sideways"},
        {"inputs": [[1], [1], [], []]},
    ):
        wrong = json.loads(text)
        wrong["collective"]["definition"] |= change
        with pytest.raises(simcoll_check.Unreadable, match="definition"):
            simcoll_check.check(wrong)
        with pytest.raises(simcoll.ConfigError):
            Collective.custom(**(definition | change))
    swapped = json.loads(text)
    outputs = swapped["collective"]["definition"]["outputs"]
    rank = next(rank for rank, slots in enumerate(outputs) if len(slots) > 1)
    outputs[rank].reverse()
    with pytest.raises(simcoll_check.Wrong):
        simcoll_check.check(swapped)


def test_definitions_cannot_change_after_a_proof():
    definition = shipped(4)["scan by doubling"].collective.definition
    for name in ("input_numbers", "summands", "starts", "sums", "classes"):
        with pytest.raises(ValueError, match="WRITEABLE"):
            getattr(definition, name).flags.writeable = True


@pytest.mark.parametrize(
    ("collective", "algorithm", "nranks", "params", "content_hash"),
    [
        ("all_reduce", "ring", 5, {"channels": 2}, "a53ada5fc8fb886d60aac7c8cacd32f2"),
        ("broadcast", "tree", 4, {}, "dc8a35e30b43daeeaf7e1d51222d5f86"),
        ("all_to_all", "direct", 3, {}, "d0a2a0f13464321338d8d6a6782b00ec"),
        ("barrier", "dissemination", 4, {}, "2a83504a7aa56c67fb3f9cf2306837bf"),
    ],
)
def test_hashes_of_the_ten_are_what_they_were(collective, algorithm, nranks, params, content_hash):
    schedule = simcoll.schedule(collective, algorithm, nranks=nranks, **params)
    assert schedule.content_hash().startswith(content_hash)
