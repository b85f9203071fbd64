"""Rows and lists compared in one pass: the numbers and answers of sorting."""

import itertools

import numpy as np
import pytest

pytest.importorskip("numba")

from simcoll.emulator.fast import grouping, refining
from simcoll.emulator.fast.grouping import (
    _equal_by_sorting,
    _number_by_sorting,
    _positions_by_sorting,
    group_rows,
    lists_equal,
    number_words,
    positions,
)
from simcoll.emulator.fast.refining import Colours, _spread, spread, tie_hashes
from simcoll.emulator.folding.partition import dense
from simcoll.emulator.steps.timed import StepShape


@pytest.mark.parametrize("different", [1, 3, 1000, 1 << 62])
@pytest.mark.parametrize("rows", [0, 1, 2, 777])
def test_rows_have_the_numbers_that_sorting_gives(rows, different):
    words = np.random.default_rng(rows).integers(0, different, rows).astype(np.uint64)
    names, first = number_words(words)
    assert all(
        np.array_equal(a, b) for a, b in zip((names, first), _number_by_sorting(words), strict=True)
    )
    assert np.array_equal(words[first][names], words)


def test_words_that_meet_in_the_table_are_told_apart():
    words = np.tile(np.arange(100, dtype=np.uint64) << np.uint64(40), 3)
    assert number_words(words)[0].tolist() == list(range(100)) * 3


@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize("rows", [0, 1, 777])
def test_rows_of_a_name_have_the_positions_that_sorting_gives(rows, count):
    names = np.random.default_rng(rows).integers(0, count, rows)
    assert np.array_equal(positions(names, count), _positions_by_sorting(names))


def pairs(*lists):
    """Columns of owners and values, and an owner of none."""
    found = [(owner, value) for owner, some in enumerate(lists) for value in some]
    return np.array([*found, (-1, 7)], np.int64)


@pytest.mark.parametrize(
    ("lists", "model", "same"),
    [
        (((1, 2, 2), (2, 1, 2)), [0, 0], True),
        (((1, 2, 2), (1, 1, 2)), [0, 0], False),
        (((1, 2), (1, 2, 2)), [0, 0], False),
        (((1, 2, 2), (1, 2)), [0, 0], False),
        (((), (), (5,), (2**24,)), [0, 0, 2, 3], True),
        (((), (), (5,), (6,)), [0, 0, 2, 2], False),
        (((9,), (3,), (9,), (3,)), [2, 1, 2, 1], True),
        ((), [], True),
    ],
)
def test_lists_are_equal_whatever_their_order(lists, model, same):
    wanted = np.array(model, np.int64)
    given = [tuple(pairs(*lists).T)]
    assert lists_equal(given, wanted) is _equal_by_sorting(given, wanted) is same


def test_random_lists_as_by_sorting():
    random, found = np.random.default_rng(5), set()
    for _ in range(300):
        owners = int(random.integers(1, 6))
        model = np.minimum(random.integers(0, 2, owners), np.arange(owners))
        one = [random.integers(0, 3, 4) for _ in range(2)]
        lists = [random.permutation(one[each]) for each in model]
        if random.random() < 0.5:
            lists[-1] = random.integers(0, 3, int(random.integers(3, 6)))
        mixed = [tuple(some.T) for some in np.array_split(random.permutation(pairs(*lists)), 3)]
        same = lists_equal(mixed, model)
        assert same == _equal_by_sorting(mixed, model)
        found.add(same)
    assert found == {True, False}


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.bool_])
def test_rows_of_columns_as_by_sorting(kind):
    random = np.random.default_rng(1)
    columns = [
        random.integers(0, 2, 500).astype(kind),
        random.integers(-5, 5, 500),
        random.integers(0, 3, 1000)[::2],
    ]
    names, equal = group_rows(columns)
    assert equal
    assert np.array_equal(names, _number_by_sorting(dense(*columns).astype(np.uint64))[0])


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_a_round_gives_the_hashes_that_numpy_gives(connected, tied):
    random, rows = np.random.default_rng(2), 200

    def words(count):
        return random.integers(0, 1 << 63, count).astype(np.uint64) * np.uint64(2) + np.uint64(1)

    links = np.sort(random.integers(-1, 9, (rows, 4)), axis=1)[:, ::-1].astype(np.int32)
    ends = random.integers(0, 16, (2, rows))
    shape = StepShape(*ends, *ends, links, np.ones_like(links))
    cost, ways, marks = words(rows), random.integers(0, 7, connected * rows), words(tied * rows)
    old = Colours(words(16), words(9), words(7))
    new = [Colours(*(hashes.copy() for hashes in old)) for _ in range(2)]
    messages = words(rows)
    spread(shape, cost, ways, marks, old, new[0], messages)
    assert np.array_equal(messages, _spread(shape, cost, ways, marks, old, new[1]))
    assert all(np.array_equal(*pair) for pair in zip(*new, strict=True))
    assert (new[0].ways == old.ways).all() != connected


def test_ties_give_the_hashes_that_numpy_gives(monkeypatch):
    random, rows = np.random.default_rng(3), 200
    messages = random.integers(0, 1 << 63, rows).astype(np.uint64)
    group = random.integers(0, 9, rows)
    leader = np.where(group < 5, [int(np.flatnonzero(group == each)[0]) for each in group], -1)
    later, earlier = random.integers(0, rows, (2, 90)).astype(np.int32)
    found = tie_hashes(messages, leader, later, earlier)
    monkeypatch.setattr(refining, "COMPILED", False)
    assert np.array_equal(found, tie_hashes(messages, leader, later, earlier))
    assert len(np.unique(found)) == rows


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("bulk", [0, 40, 1 << 13])
def test_lists_are_equal_in_however_many_columns_they_come(bulk, changed, monkeypatch):
    monkeypatch.setattr(grouping, "BULK", bulk)
    random = np.random.default_rng(4)
    values = random.integers(0, 9, 300)
    owner, value = (
        np.repeat([0, 1, -1], 300),
        np.concatenate([values, random.permutation(values), values + 1]),
    )
    value[450] += changed
    order = random.permutation(900)
    edges = [0, 3, 60, 80, 500, 510, 900]
    pairs = [(owner[order][a:b], value[order][a:b]) for a, b in itertools.pairwise(edges)]
    assert (
        lists_equal(pairs, np.array([0, 0]))
        == _equal_by_sorting(pairs, np.array([0, 0]))
        != changed
    )
