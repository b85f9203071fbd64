"""The suite on the in-process transport."""

import itertools

import pytest

import realcoll
from simcoll.algorithms import ALGORITHMS
from tests.support.conformance_cases import COUNTS, DTYPES, OPS, RANKS, check, select

ALL = sorted({(found.collective, found.name) for found in ALGORITHMS})


@pytest.mark.slow
def test_the_selection_covers_the_pairs():
    cases = select()
    algorithms = {case.algorithm for case in cases}
    assert {case.nranks for case in cases} == set(RANKS)
    assert {(case.nranks, case.count) for case in cases} == set(itertools.product(RANKS, COUNTS))
    assert {(case.algorithm, case.dtype) for case in cases} == set(itertools.product(algorithms, DTYPES))
    assert algorithms == set(ALL)
    assert {"float32", "bfloat16"} <= {case.dtype for case in cases if case.op == "avg"}
    assert {case.op for case in cases} == set(OPS)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALL, ids="-".join)
def test_results_are_those_of_the_definition_and_of_the_emulator(algorithm):
    for case in select():
        if case.algorithm == algorithm:
            assert check(case, realcoll.LocalTransport()) == []
