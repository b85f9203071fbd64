"""What sizes and protocols of one schedule share is what each of them finds alone."""

import dataclasses

import numpy as np
import pytest

import simcoll
from simcoll.emulator.fast.turns import summary

CASES = [
    ("all_reduce", "ring", {"channels": 2}),
    ("all_reduce", "one_shot", {}),
    ("all_reduce", "switch", {}),
    ("all_gather", "bruck", {}),
    ("broadcast", "tree", {"pieces": 3}),
    ("all_to_all", "pairwise", {}),
]


def told(found):
    groups = [
        (tuple(tuple(None if each is None else each.tolist() for each in step) for step in group), times)
        for group, times in found.groups
    ]
    return found.lane_steps.tolist(), found.steps, found.messages, found.rows, found.bytes_by_op, found.switched, groups


@pytest.mark.parametrize(("kind", "algorithm", "params"), CASES)
def test_steps_of_a_size_are_the_same_whatever_came_before(kind, algorithm, params):
    def made():
        return simcoll.schedule(kind, algorithm, nranks=6, **params)

    shared = made()
    each = shared.layout.chunks
    for count, dtype in (
        (0, "int8"),
        (each, "int8"),
        (5 * each, "float64"),
        (each + 1, "float32"),
        (each + 1, "int8"),
        (3, "int8"),
        (each, "float32"),
    ):
        alone = summary(simcoll.bind(made(), count, dtype))
        assert told(summary(simcoll.bind(shared, count, dtype))) == told(alone)
        assert told(summary(simcoll.bind(shared, count, dtype, protocol="Simple"))) == told(alone)
    assert len(shared.known.summaries) <= 2


def test_uneven_blocks_are_not_remembered():
    made = simcoll.schedule("all_gather", "ring", nranks=4)
    first = summary(simcoll.bind(made, [1, 2, 3, 4]))
    assert told(summary(simcoll.bind(made, [4, 3, 2, 1]))) != told(first)
    assert told(summary(simcoll.bind(made, [1, 2, 3, 4]))) == told(first)
    assert made.known.summaries == {}


def test_a_changed_schedule_shares_nothing():
    made = simcoll.schedule("all_gather", "ring", nranks=4)
    summary(simcoll.bind(made, 8))
    assert made.known.summaries
    assert dataclasses.replace(made).known.summaries == {}
    assert np.array_equal(
        summary(simcoll.bind(dataclasses.replace(made), 8)).lane_steps, [4, 4, 4, 4]
    )  # a copy and three steps
