"""The trusted core: saturating leaves, salts, expressions, and the two ways to play a step."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simcoll
from simcoll.core.collective import Collective
from simcoll.core.layout import Layout
from simcoll.core.schedule import MULTICAST, REDUCE, SWITCH_REDUCE, Repeat, Schedule, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.proving import verify
from simcoll.proving.field import PRIME
from simcoll.proving.kernel import MOST_LEAVES, Contents, Counts, Fingerprints, error_bits, play_few

SALT = bytes(range(32))


def doubled(turns, nranks=2):
    """Every rank adds its output to itself so many times before it adds the inputs of all ranks."""
    layout, rank = Layout(Collective("all_reduce", nranks)), np.arange(nranks)
    double = transfers(rank, layout.output(), rank, layout.output(), op=REDUCE)

    def steps():
        yield transfers(rank, layout.input(), rank, layout.output())
        yield Repeat((double,), turns, 0, 0, 1)
        for source in range(nranks):
            yield transfers(source, layout.input(), rank, layout.output(), op=REDUCE)

    return Schedule("doubled", layout, steps)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True, None])
@pytest.mark.parametrize(
    "turns", [1, 10, 30, 31, 32, 33, 53, 60, 61, 62, 63, 64, 65, 122, 128, 200]
)
def test_no_number_of_doublings_comes_back_to_nothing(turns, exact):
    with pytest.raises(ScheduleError, match="rank 0 output chunk 0 is wrong at the end"):
        verify(doubled(turns), exact=exact)


def multiplied(factor):
    """Adds its own input ``factor`` more times, by doubling and adding: a multiplicity of 0 modulo
    the factor.
    """
    layout, n = Layout(Collective("all_reduce", 2), 1, [0, 0]), 2
    rank, power, total = np.arange(n), layout.scratch_at(0), layout.scratch_at(1)

    def steps():
        yield transfers(rank, layout.input(), rank, power)
        yield transfers(rank, layout.input(), rank, total)
        yield transfers(1 - rank, layout.input(), rank, total, op=REDUCE)
        for bit in range(factor.bit_length()):
            if factor >> bit & 1:
                yield transfers(rank, power, rank, total, op=REDUCE)
            yield transfers(rank, power, rank, power, op=REDUCE)
        yield transfers(rank, total, rank, layout.output())

    return Schedule("multiplied", layout, steps)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "factor",
    [
        PRIME,
        2 * PRIME,
        PRIME * PRIME,
        2**31,
        2**32,
        2**31 * PRIME,
        2**64,
        2**64 * PRIME,
        2**61,
        2**62 - 2,
        2**128,
    ],
)
def test_no_multiplicity_that_is_zero_in_some_arithmetic_is_proved(factor, exact):
    assert verify(multiplied(0), exact=exact).order
    with pytest.raises(ScheduleError, match="counted more than once"):
        verify(multiplied(factor), exact=exact)


def test_leaves_saturate():
    algebra = Fingerprints(SALT, 1, np.arange(1))
    contents = Contents.nothing(algebra, 1)
    contents.put_inputs(np.array([0]), np.array([0]), np.array([0]))
    for _ in range(40):
        contents = contents.plus(contents)
    assert contents.leaves.tolist() == [MOST_LEAVES]
    copies = Contents(
        algebra, np.full(5, MOST_LEAVES, np.uint32), np.zeros(5, np.uint64), np.zeros(5, np.uint64)
    )
    assert copies.reduce_by_switch(np.zeros(5, np.int64))[1].leaves.tolist() == [MOST_LEAVES]


def test_a_proof_draws_a_salt_and_can_be_repeated_with_it():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=6)
    one, two = verify(schedule, exact=False), verify(schedule, exact=False)
    assert len(one.salt) == 32 != len(set(one.salt + two.salt))
    assert one.salt != two.salt
    assert one == two
    assert hash(one) == hash(two)
    assert repr(one) == repr(two)
    assert str(one) == str(two)
    again = verify(schedule, salt=one.salt)
    assert replace(again, error_bits=one.error_bits) == one
    assert again.salt == one.salt
    assert str(again).startswith("proved (full, repeated with a given salt): ")
    assert verify(schedule, exact=True).salt == b""


@pytest.mark.parametrize("salt", [b"", b"short", bytes(33), "text" * 8, 7])
def test_a_salt_that_is_none(salt):
    with pytest.raises((ConfigError, TypeError), match="salt"):
        verify(simcoll.schedule("all_reduce", "ring", nranks=3), salt=salt)


def test_a_collision_for_one_salt_is_refused_with_another():
    """Swaps multiplicities so that the sum of tokens of a known salt is right, with the right
    number of leaves.
    """
    n = 4
    tokens = [int(token) for token in Fingerprints(SALT, n, np.arange(1)).tokens[:, 0]]
    # With a multiplicity of -shift the leaves are refused; the arithmetic alone accepts it.
    inverse = pow(tokens[1] - tokens[0], -1, PRIME)
    shift = (tokens[2] - tokens[3]) * inverse % PRIME
    assert (tokens[0] * -shift + tokens[1] * shift - tokens[2] + tokens[3]) % PRIME == 0
    other = [int(token) for token in Fingerprints(bytes(32), n, np.arange(1)).tokens[:, 0]]
    assert (other[0] * -shift + other[1] * shift - other[2] + other[3]) % PRIME != 0


def test_the_probability_is_that_of_the_docs():
    # 9 / 2^64 for the data, n times as much for the order; rounded towards the greater probability.
    for nranks in (1, 2, 8, 1000, 2**20):
        assert (
            2 ** -error_bits(nranks, reduces=True)
            >= 9 * (nranks + 1) / 2**64
            > 2 ** -(error_bits(nranks, reduces=True) + 1)
        )
    assert error_bits(5, reduces=False) == 60


def trees(depth):
    return st.recursive(st.integers(0, 4), lambda inner: st.tuples(inner, inner), max_leaves=depth)


def canonical(tree):
    return tree if isinstance(tree, int) else tuple(sorted(map(canonical, tree), key=repr))


@pytest.mark.slow
@given(st.lists(trees(9), min_size=2, max_size=6), st.booleans())
def test_expressions_have_equal_values_exactly_if_they_are_equal(expressions, exact):
    algebra = Counts(5, 1) if exact else Fingerprints(SALT, 5, np.arange(1))

    def value(tree):
        if isinstance(tree, int):
            return algebra.inputs(np.array([tree]), np.array([0]))
        return algebra.reduce(*map(value, tree))

    values = [int(value(tree)[1][0]) for tree in expressions]
    for one, first in zip(expressions, values, strict=True):
        for two, second in zip(expressions, values, strict=True):
            assert (first == second) == (canonical(one) == canonical(two)), (one, two)


@pytest.mark.parametrize("exact", [False, True])
def test_a_switch_takes_operands_in_any_order_and_differs_from_a_chain(exact):
    algebra = Counts(5, 1) if exact else Fingerprints(SALT, 5, np.arange(1))
    contents = Contents.nothing(algebra, 9)
    ranks = np.array([0, 1, 2, 3, 3, 2, 1, 0, 4])
    contents.put_inputs(np.arange(9), ranks, np.zeros(9, np.int64))
    targets, results = contents.reduce_by_switch(np.array([7, 7, 7, 7, 5, 5, 5, 5, 9]))
    assert targets.tolist() == [5, 7, 9]
    assert results.leaves.tolist() == [4, 4, 1]
    assert results.trees[0] == results.trees[1] != results.trees[2]
    assert np.array_equal(results.sums[0], results.sums[1])
    one = contents.read(np.array([0])).plus(contents.read(np.array([1])))
    pair = contents.read(np.array([0, 1])).reduce_by_switch(np.array([0, 0]))[1]
    assert np.array_equal(one.sums, pair.sums)
    assert one.trees != pair.trees


@pytest.mark.slow
@given(st.data())
def test_few_transfers_are_played_as_many(data):
    """Random steps of single chunks on three ranks, by Python's integers and by arrays."""
    rows = 6
    algebra = Fingerprints(SALT, rows, np.arange(1))
    contents = Contents.nothing(algebra, rows)
    inputs = np.arange(rows)
    contents.put_inputs(inputs, inputs, np.zeros(rows, np.int64))
    cells = [contents.leaves.tolist(), contents.sums.tolist(), contents.trees.tolist()]
    for _ in range(data.draw(st.integers(1, 40))):
        targets = data.draw(
            st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows, unique=True)
        )
        sources = [data.draw(st.integers(0, rows - 1)) for _ in targets]
        reduces = [data.draw(st.booleans()) for _ in targets]
        assert play_few(cells, int(algebra.points[-2]), sources, targets, reduces) == ""
        read, old, adds = (
            contents.read(np.array(sources)),
            contents.read(np.array(targets)),
            np.array(reduces),
        )
        added = old.plus(read)
        read.write(np.flatnonzero(adds), added.read(np.flatnonzero(adds)))
        contents.write(np.array(targets), read)
        assert cells == [contents.leaves.tolist(), contents.sums.tolist(), contents.trees.tolist()]


def test_few_transfers_are_refused():
    cells = [[1, 0], [5, 0], [5, 0]]
    assert "holds nothing" in play_few(cells, 1, [1], [0], [False])
    assert "reduced into but holds nothing" in play_few(cells, 1, [0], [1], [True])
    assert "several transfers" in play_few(cells, 1, [0, 0], [1, 1], [False, False])


def switched(missing=None, twice=None):
    layout, n = Layout(Collective("all_reduce", 4), 1), 4
    sources = [rank for rank in range(n) if rank != missing] + ([] if twice is None else [twice])
    steps = [
        transfers(np.array(sources), layout.input(), 0, layout.output(), op=SWITCH_REDUCE),
        transfers(0, layout.output(), np.arange(n), layout.output(), op=MULTICAST),
    ]
    return Schedule("switched", layout, lambda: steps)


@pytest.mark.parametrize("exact", [False, True])
def test_operands_of_a_switch(exact):
    assert verify(switched(), exact=exact).order == "rank-consistent"
    for wrong in ({"missing": 2}, {"twice": 1}, {"missing": 3, "twice": 0}):
        with pytest.raises(ScheduleError, match="wrong at the end"):
            verify(switched(**wrong), exact=exact)


def test_a_proof_travels_without_the_schedule():
    proof = verify(simcoll.schedule("all_reduce", "ring", nranks=4), exact=False)
    again = pickle.loads(pickle.dumps(replace(proof, of=None)))
    assert again == proof
    assert again.salt == proof.salt
