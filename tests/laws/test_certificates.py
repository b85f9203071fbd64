"""Every shipped algorithm has a certificate that the checker confirms, and no certificate with a
fault gets a false yes.

Slices; ``python -m tests.laws.certificates`` does all of it, with a million mutants.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

import simcoll
import simcoll_check
from simcoll.algorithms import ALGORITHMS
from simcoll.formats import certificate_bytes, dump_mscclpp_plan, load_algorithm, parse_mscclpp_plan
from simcoll.formats.schedules import certificate
from simcoll.proving import (
    check_lowering,
    lower,
    verify,
    verify_device_program,
    verify_program,
)
from simcoll.proving.symmetry import verify_by_symmetry
from tests.laws.certificates import check_algorithm, checked, mutant, play
from tests.support.certificate_judge import judge
from tests.support.certificate_mutants import SAMPLES, folding, proved, stock, travelling

TURNS = 5
MOST = 200
"""Chunks moved by the schedules that are checked here: larger ones take most of the time of the
whole sweep.
"""
MUTANTS = 2_000


def title(algorithm):
    return f"{algorithm.name}-{algorithm.collective}"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=title)
def test_three_or_four_ranks(algorithm):
    assert check_algorithm(algorithm, (3, 4), lowered=False, most=200)["schedules"]


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(TURNS))
def test_other_ranks_and_programs(turn):
    # Every algorithm meets every number of ranks of its turn; over all algorithms, all numbers come
    # up.
    done = Counter()
    for number, algorithm in enumerate(ALGORITHMS):
        if number % TURNS == turn:
            ranks = sorted({1, 2, 5 + number % 4, 9 + number % 8, 16})
            done += check_algorithm(algorithm, ranks, most=MOST)
    assert done["schedules"] == done["programs"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_rings_by_their_symmetry(kind):
    for n in (2, 3, 5, 8, 16):
        for params in ({}, {"channels": 2}, {"pieces": 2}):
            ring = simcoll.schedule(kind, "ring", nranks=n, **params)
            text = certificate_bytes(ring, verify_by_symmetry(ring))
            assert json.loads(text)["proof"]["kind"] == "by symmetry"
            assert checked(text) == judge(json.loads(text)) == ""
    large = simcoll.schedule(kind, "ring", nranks=100)
    assert checked(certificate_bytes(large, verify(large))) == ""


@pytest.mark.slow
def test_imported_files():
    done = Counter()
    for path in sorted(SAMPLES.glob("*.xml")):
        try:
            program = load_algorithm(path)
            proof = verify_program(program)
        except (simcoll.ConfigError, simcoll.ScheduleError):
            done["refused"] += 1
            continue
        text = certificate_bytes(program, proof)
        assert checked(text) == judge(json.loads(text)) == ""
        done["right"] += 1
    assert done["right"] >= 4
    for kind, name in (("all_reduce", "ring"), ("all_gather", "direct"), ("all_reduce", "nvls")):
        program = parse_mscclpp_plan(dump_mscclpp_plan(simcoll.schedule(kind, name, nranks=4)))
        text = certificate_bytes(program, verify_device_program(program))
        assert checked(text) == judge(json.loads(text)) == ""


@pytest.mark.parametrize("peer", [0, 1, 7])
def test_what_an_operation_does_not_need_is_ignored(peer):
    plan = simcoll.bind(simcoll.schedule("all_gather", "direct", nranks=3), 6)
    record = json.loads(certificate_bytes(lower(plan), check_lowering(plan)))
    lanes = [lane for lanes in record["program"]["ranks"] for lane in lanes]
    copies = [code for lane in lanes for code in lane["instructions"] if code["op"] == "copy"]
    for code in copies:
        code |= {"recv_from": peer, "send_to": peer}
    assert copies
    assert checked(json.dumps(record)) == judge(record) == proved(record) == ""


def test_folds():
    for schedule in folding():
        text = certificate_bytes(schedule, verify(schedule))
        assert json.loads(text)["claims"]["folds"] or schedule.nranks == 2
        assert checked(text) == judge(json.loads(text)) == ""


def test_paths_and_conversions_are_named_and_not_checked():
    answers = Counter()
    for schedule in travelling():
        text = certificate_bytes(schedule, verify(schedule))
        assert checked(text) == judge(json.loads(text)) == proved(json.loads(text)) == ""
        answer = simcoll_check.check(text)
        answers["wire"] += "conversions on the way are not: outputs are right up to" in answer
        answers["via"] += "its paths are not checked" in answer
        if schedule.collective.kind == "all_reduce" and schedule.nranks > 1:
            claims = json.loads(text)
            claims["claims"]["order"] = "rank-consistent"  # ranks may have other bits
            assert "values that are converted have no order" in checked(json.dumps(claims))
    assert answers == {"wire": 7, "via": 3}


def test_files_are_checked_compressed_or_not(tmp_path, capsys):
    ring = simcoll.schedule("all_reduce", "ring", nranks=4)
    for name in ("ring.json", "ring.json.gz"):
        simcoll.verify(ring, certificate=tmp_path / name)
        assert simcoll_check.main([str(tmp_path / name)]) == 0
    assert capsys.readouterr().out.count("right") == 2


def test_the_limits_of_writing_are_those_of_the_checker():
    for name in ("MAX_BYTES", "MAX_MOVES", "MAX_INSTRUCTIONS"):
        assert getattr(certificate, name) == getattr(simcoll_check, name)


@pytest.mark.slow
def test_mutants_are_judged_alike():
    verdicts = play(MUTANTS, seed=31)
    assert verdicts.lines == []
    assert min(verdicts.wrong.total(), verdicts.right.total()) > MUTANTS // 5
    # Every mutation makes wrong ones.
    assert not {name for name in verdicts.right if not verdicts.wrong[name]} - {"shuffled"}


@pytest.mark.slow
def test_the_judge_accepts_what_is_mutated():
    texts = [text for make in stock()[::10] if (text := make())]
    assert len(texts) > 200
    for text in texts:
        assert judge(json.loads(text)) == ""


@pytest.mark.slow
def test_a_mutant_is_the_same_each_time():
    assert [mutant(number, 5) for number in range(20)] == [
        mutant(number, 5) for number in range(20)
    ]
