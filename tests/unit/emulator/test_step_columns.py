"""The transfers of an iteration that move something, looked up by the chunks that are filled."""

import numpy as np
import pytest

import simcoll
from simcoll.emulator.steps import equal_copies, step_columns
from simcoll.emulator.steps.step_columns import Spinning, spinning, summary, turns


@pytest.mark.parametrize("seed", range(5))
def test_both_ways_find_the_transfers_that_are_not_empty(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    for share in (0, 0.02, 0.1, 0.5, 1):
        modulus, windows, rows = (int(rng.integers(1, most)) for most in (40, 4, 200))
        filled = (rng.random((windows, modulus)) < share) * rng.integers(1, 3, (windows, modulus))
        table = np.tile(filled, 2).reshape(-1)
        place = 2 * modulus * rng.integers(0, windows, rows) + rng.integers(0, modulus, rows)
        for factor in (0, 1 << 30):
            monkeypatch.setattr(step_columns, "FEW_FILLED", factor)
            moving = step_columns._MovingRows(table, place)
            for shift in range(modulus):
                expected = np.flatnonzero(table[place + shift])
                assert np.array_equal(moving.at(shift), expected)


@pytest.mark.parametrize("name", ["ring", "bidirectional_ring"])
@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_a_ring_of_few_elements_has_the_same_steps_either_way(name, count, monkeypatch):
    schedule = simcoll.schedule("all_reduce", name, nranks=16, channels=4)
    plan = simcoll.bind(schedule, count, "float32")

    def moves(factor):
        monkeypatch.setattr(step_columns, "FEW_FILLED", factor)
        return [
            (times, [(step.src_rank, step.dst_rank, step.size_bytes) for step in group])
            for group, times in turns(plan)
        ]

    for (times, group), (expected_times, expected) in zip(moves(0), moves(1 << 30), strict=True):
        assert times == expected_times
        for columns, expected_columns in zip(group, expected, strict=True):
            assert all(map(np.array_equal, columns, expected_columns))


@pytest.mark.parametrize("many", [0, 1 << 40])
@pytest.mark.parametrize("count", [3, 4096, 4099])
@pytest.mark.parametrize("name", ["ring", "hierarchical", "recursive_doubling", "rabenseifner"])
def test_the_largest_step_of_a_plan_is_that_of_its_turns(name, count, many, monkeypatch):
    """Counted over the whole plan, and over one of the equal copies of which it consists."""
    monkeypatch.setattr(equal_copies, "MANY_TRANSFERS", many)
    box = {"box": 8} if name == "hierarchical" else {}
    schedule = simcoll.schedule("all_reduce", name, nranks=16, channels=8, **box)
    plan = simcoll.bind(schedule, count)
    assert summary(plan).largest == max(step.rows for group, _ in turns(plan) for step in group)


@pytest.mark.parametrize("most", [1 << 19, 0])
@pytest.mark.parametrize(("count", "recurring"), [(64 * 3 + 16, 4), (64 * 9 + 32, 2), (199, 63)])
def test_turns_whose_sizes_recur_are_one_object(count, recurring, most, monkeypatch):
    """Where every fourth chunk is larger, every fourth turn has the same sizes."""
    monkeypatch.setattr(step_columns, "REMEMBERED_ROWS", most)
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=64), count, "float32")
    halves = [block for block in spinning(plan) if isinstance(block, Spinning)]
    assert len(halves) == 2
    for spins in halves:
        steps = list(spins.unroll())
        for turn, step in enumerate(steps):
            assert np.array_equal(step.size_bytes, spins.sizes(turn, 0))
        assert len({id(step) for step in steps}) == (recurring if most else spins.times)
