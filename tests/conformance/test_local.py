"""The suite on the in-process transport."""

import itertools

import pytest

import realcoll
from tests.support.conformance_cases import COUNTS, DTYPES, OPS, RANKS, check, select

CASES = select()


def test_the_selection_covers_the_pairs():
    algorithms = {case.algorithm for case in CASES}
    assert {case.nranks for case in CASES} == set(RANKS)
    assert {(case.nranks, case.count) for case in CASES} == set(itertools.product(RANKS, COUNTS))
    assert {(case.algorithm, case.dtype) for case in CASES} == set(itertools.product(algorithms, DTYPES))
    assert ("all_reduce", "ring") in algorithms
    assert {"float32", "bfloat16"} <= {case.dtype for case in CASES if case.op == "avg"}
    assert {case.op for case in CASES} == set(OPS)


@pytest.mark.parametrize("algorithm", sorted({case.algorithm for case in CASES}), ids="-".join)
def test_results_are_those_of_the_definition_and_of_the_emulator(algorithm):
    for case in CASES:
        if case.algorithm == algorithm:
            assert check(case, realcoll.LocalTransport()) == []
