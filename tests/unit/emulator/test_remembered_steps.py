"""What sizes and protocols of one schedule share is what each of them finds alone."""

import dataclasses

import numpy as np
import pytest

import simcoll
from simcoll.emulator.steps.step_columns import summaries_of, summary, turns
from simcoll.emulator.steps.timed import DIGESTED_BYTES, content_key

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
        (
            tuple(
                tuple(None if each is None else each.tolist() for each in step) for step in group
            ),
            times,
        )
        for group, times in found.groups
    ]
    return (
        found.lane_steps.tolist(),
        found.steps,
        found.messages,
        found.rows,
        found.bytes_by_op,
        found.switched,
        groups,
    )


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
    assert len(summaries_of(shared)) <= 2


def test_uneven_blocks_are_not_remembered():
    made = simcoll.schedule("all_gather", "ring", nranks=4)
    first = summary(simcoll.bind(made, [1, 2, 3, 4]))
    assert told(summary(simcoll.bind(made, [4, 3, 2, 1]))) != told(first)
    assert told(summary(simcoll.bind(made, [1, 2, 3, 4]))) == told(first)
    assert summaries_of(made) == {}


def test_a_changed_schedule_shares_nothing():
    made = simcoll.schedule("all_gather", "ring", nranks=4)
    summary(simcoll.bind(made, 8))
    assert summaries_of(made)
    assert summaries_of(dataclasses.replace(made)) == {}
    # A copy and three steps.
    assert np.array_equal(
        summary(simcoll.bind(dataclasses.replace(made), 8)).lane_steps, [4, 4, 4, 4]
    )


@pytest.mark.parametrize("algorithm", ["ring", "bidirectional_ring", "tree"])
@pytest.mark.parametrize("params", [{}, {"channels": 2}, {"pieces": 3}])
def test_turns_with_empty_chunks_are_the_steps_of_the_plan(algorithm, params):
    made = simcoll.schedule("all_reduce", algorithm, nranks=5, **params)
    for count in (
        1,
        2,
        4,
        made.layout.chunks - 1,
        made.layout.chunks + 1,
        7 * made.layout.chunks + 3,
    ):
        plan = simcoll.bind(made, count, "float16")
        found = [step for group, times in turns(plan) for _ in range(times) for step in group]
        wanted = list(plan.steps())
        assert [step.rows for step in found] == list(map(len, wanted))
        for name in ("src_rank", "dst_rank", "channel", "size_bytes", "op"):
            assert all(
                np.array_equal(getattr(a, name), getattr(b, name))
                for a, b in zip(found, wanted, strict=True)
            )


def test_steps_that_come_back_are_one_object_and_counted_once():
    made = simcoll.schedule("all_reduce", "ring", nranks=32)
    # A chunk of every four has an element: four steps, again and again.
    found = summary(simcoll.bind(made, 8))
    distinct = {id(step): step.rows for group, _ in found.groups for step in group}
    assert found.rows == sum(distinct.values()) == 32 + 2 * 4 * 8
    assert found.messages == 32 + 62 * 8


def test_positions_are_the_addresses_of_chunks():
    for kind, algorithm in (("all_reduce", "ring"), ("all_gather", "bruck"), ("scatter", "tree")):
        made = simcoll.schedule(kind, algorithm, nranks=5)
        plan = simcoll.bind(made, 17)
        chunk = np.arange(made.layout.size)
        region = made.layout.region(chunk)
        rank = np.full(len(chunk), 3)
        positions = plan.positions()
        assert np.array_equal(
            positions[chunk] - positions[made.layout.bases()][region],
            plan._address(rank, chunk, region),
        )
        assert np.array_equal(
            np.diff(positions),
            plan._address(rank, chunk + 1, region) - plan._address(rank, chunk, region),
        )


@pytest.mark.parametrize("count", [1 << 12, 100])
def test_steps_are_kept_from_the_first_pass_until_waits_are_derived(count):
    made = simcoll.schedule("all_reduce", "hierarchical", nranks=64, box=8, pieces=4)
    plan = simcoll.bind(made, count)
    assert made.known.kept is None
    summary(plan)
    assert len(made.known.kept) == made.known.proof.steps
    pairs = plan.wait_pairs
    assert made.known.kept is made.known.lowered is None
    again = simcoll.bind(
        simcoll.schedule("all_reduce", "hierarchical", nranks=64, box=8, pieces=4), count
    )
    assert all(np.array_equal(*pair) for pair in zip(pairs, again.wait_pairs, strict=True))


@pytest.mark.parametrize("rows", [4, DIGESTED_BYTES])
def test_equal_columns_alone_have_one_key(rows):
    column = np.arange(2 * rows)[::2]
    same, last_differs = column.copy(), column.copy()
    last_differs[-1] += 1
    assert content_key(same) == content_key(column) != content_key(last_differs)
    assert len(content_key(column)) <= DIGESTED_BYTES
