"""Scratch slots that hold one piece of a block each."""

from __future__ import annotations

import json

import numpy as np
import pytest

import simcoll
from simcoll.core.collective import Collective
from simcoll.core.plan import SCRATCH
from simcoll.core.schedule import Layout, Schedule, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats.schedules.schedule_json import dump_schedule, parse_schedule
from simcoll.testing import assert_implements
from simcoll.testing.rewrites import detour, relabel_ranks

GATHER = Collective("all_gather", 2)
# Input chunks 0..2, output 3..8, scratch 9 and 10: on rank 0 pieces 2 and 0 of block 1, on rank 1
# piece 1 of block 0 and 2 of block 1.
LAYOUT = Layout(GATHER, 3, [[1, 1], [0, 1]], [[2, 0], [1, 2]])


def test_addresses_blocks_and_pieces():
    assert (LAYOUT.scratch_base, LAYOUT.size, LAYOUT.scratch_chunks) == (9, 11, 1)
    assert [LAYOUT.scratch_at(slot) for slot in range(2)] == [9, 10]
    rank, chunk = np.array([0, 0, 1, 1, 1]), np.array([9, 10, 9, 10, 7])
    assert LAYOUT.piece(rank, chunk).tolist() == [2, 0, 1, 2, 1]
    assert LAYOUT.block(rank, chunk).tolist() == [1, 1, 0, 1, 1]
    assert [LAYOUT.name(9), LAYOUT.name(10)] == ["scratch slot 0", "scratch slot 1"]


def test_only_chunks_of_one_size_are_joined():
    def proved(src, dst):
        simcoll.verify(Schedule("mine", LAYOUT, lambda: [transfers(*src, *dst)]))

    with pytest.raises(ScheduleError, match="is wrong at the end"):
        proved((1, 2), (0, 9))
    with pytest.raises(ScheduleError, match="piece 1 of block 1 and piece 2 of block 1"):
        proved((1, 1), (0, 9))
    with pytest.raises(ScheduleError, match="piece 1 of block 1 and piece 1 of block 0"):
        proved((1, 1), (1, 9))


@pytest.mark.parametrize("sizes", [7, [7, 5]])
def test_offsets(sizes):
    steps = [transfers(1, [2, 0], 0, [9, 10]), transfers(0, 1, 1, 9), transfers(1, 2, 1, 10)]
    plan = simcoll.bind(Schedule("mine", LAYOUT, lambda: steps), sizes, unproved=True)
    a, b = (sizes, sizes) if isinstance(sizes, int) else sizes

    def length(block, piece):
        return (piece + 1) * block // 3 - piece * block // 3

    wanted = [[length(b, 2), length(b, 0)], [length(a, 1), length(b, 2)]]
    assert plan.buffer_elements()[:, SCRATCH].tolist() == [sum(wanted[0]), sum(wanted[1])]
    first, second, third = plan.steps()
    assert (first.dst_offset.tolist(), first.elements.tolist()) == ([0, wanted[0][0]], wanted[0])
    assert (second.dst_offset[0], second.elements[0]) == (0, wanted[1][0])
    assert (third.dst_offset[0], third.elements[0]) == (wanted[1][0], wanted[1][1])


@pytest.mark.slow
def test_two_shot_keeps_one_vector():
    schedule = simcoll.schedule("all_reduce", "two_shot", nranks=5)
    assert simcoll.bind(schedule, 23).buffer_elements().max(axis=0).tolist() == [23, 23, 25]
    large = simcoll.bind(
        simcoll.schedule("all_reduce", "two_shot", nranks=1000), 10**6, unproved=True
    )
    assert large.buffer_elements()[7].tolist() == [10**6] * 3


@pytest.mark.slow
def test_rewrites_and_files_keep_it():
    schedule = simcoll.schedule("all_reduce", "two_shot", nranks=4)
    again = parse_schedule(dump_schedule(schedule))
    assert again.content_hash() == schedule.content_hash()
    for made in (
        again,
        relabel_ranks(schedule, [2, 0, 3, 1]),
        detour(schedule, 0, 5),
        detour(schedule, 1, 2),
    ):
        assert_implements(made, counts=[0, 9], dtypes=["int32"])
    plain = Layout(schedule.collective, 4, schedule.layout.scratch)
    assert Schedule("two_shot", plain, schedule.source).content_hash() != schedule.content_hash()


@pytest.mark.parametrize(
    ("pieces", "says"),
    [([0], r"the shape of scratch, \(2, 2\); got \(1,\)"), ([[0, 3], [0, 0]], r"lie in 0\.\.2")],
)
def test_wrong_pieces_are_refused(pieces, says):
    with pytest.raises(ConfigError, match=says):
        Layout(GATHER, 3, [[1, 1], [0, 1]], pieces)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([0], "expected a number for each of scratch"),
        ([[0, 4], [0, 0], [0, 0], [0, 0]], r"piece numbers must lie in 0\.\.3"),
        ([[0, 1]], "one row per rank"),
        ("x", "scratch_pieces"),
        ([[0], [0, 1]], "rows of equal length"),
    ],
)
def test_wrong_pieces_in_a_file(pieces, says):
    record = json.loads(dump_schedule(simcoll.schedule("all_reduce", "two_shot", nranks=4)))
    record["scratch_pieces"] = pieces
    with pytest.raises(ConfigError, match=says) as error:
        parse_schedule(json.dumps(record))
    assert error.value.path == "$.scratch_pieces"
