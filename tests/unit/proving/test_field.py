"""Arithmetic of the field against Python's integers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.proving.field import PRIME, add, column_sums, multiply, random_words, run_sums

ELEMENTS = st.one_of(
    st.integers(0, PRIME - 1),
    st.sampled_from([0, 1, 2, 2**30, 2**31 - 1, 2**31, 2**60, PRIME - 2, PRIME - 1]),
)


def words(*numbers):
    return np.array(numbers, np.uint64)


@pytest.mark.slow
@given(st.lists(st.tuples(ELEMENTS, ELEMENTS), min_size=1, max_size=20))
def test_sums_and_products_are_those_of_integers(pairs):
    left, right = words(*(pair[0] for pair in pairs)), words(*(pair[1] for pair in pairs))
    assert add(left, right).tolist() == [(a + b) % PRIME for a, b in pairs]
    assert multiply(left, right).tolist() == [a * b % PRIME for a, b in pairs]


@pytest.mark.slow
@given(st.lists(st.lists(ELEMENTS, min_size=1, max_size=40), min_size=1, max_size=6))
def test_sums_of_runs(runs):
    starts = np.cumsum([0, *map(len, runs)])[:-1]
    assert run_sums(words(*(number for run in runs for number in run)), starts).tolist() == [
        sum(run) % PRIME for run in runs
    ]


def test_sums_of_many_large_elements_do_not_wrap():
    many = np.full((100_000, 2), PRIME - 1, np.uint64)
    assert column_sums(many).tolist() == [100_000 * (PRIME - 1) % PRIME] * 2
    assert run_sums(many[:, 0], np.array([0, 1])).tolist() == [
        PRIME - 1,
        99_999 * (PRIME - 1) % PRIME,
    ]


def test_random_words_are_those_of_the_keyed_hash():
    stream = hashlib.shake_128(b"key").digest(800)
    expected = [int.from_bytes(stream[k : k + 8], "little") % PRIME for k in range(0, 800, 8)]
    assert random_words(b"key", 100).tolist() == expected


@pytest.mark.parametrize("count", [0, 1])
def test_few_random_words(count):
    assert len(random_words(b"key", count)) == count
