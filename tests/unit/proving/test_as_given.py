"""Steps are checked as they were given, before in-place aliases are resolved; what is proved can be
written and read back.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.schedule import COPY, REDUCE, SYNC, Layout, Repeat, Schedule, Step, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats.schedules.schedule_json import dump_schedule, parse_schedule
from simcoll.proving.symmetry import verify_by_symmetry
from simcoll.testing.strategies import schedules

COLUMNS = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")


def in_place_gather(*last):
    """An all_gather in place on three ranks that is right, and then some more transfers."""
    layout = Layout(simcoll.Collective("all_gather", 3, in_place=True))
    rank = np.arange(3)

    def steps():
        yield transfers(rank, layout.input(), (rank + 1) % 3, layout.output(rank))
        yield transfers(
            rank, layout.output((rank - 1) % 3), (rank + 1) % 3, layout.output((rank - 1) % 3)
        )
        yield from last

    return Schedule("gather", layout, steps)


def refused(schedule, reason):
    with pytest.raises(ScheduleError, match=reason):
        simcoll.verify(schedule)
    with pytest.raises(ScheduleError, match=reason):
        simcoll.bind(schedule, 4)
    with pytest.raises(ScheduleError, match=reason):
        simcoll.bind(schedule, 4, unproved=True)
    with pytest.raises(ScheduleError, match=reason):
        verify_by_symmetry(schedule)


def raw(src, src_chunk, dst, dst_chunk, count=1, op=COPY, channel=0):
    return Step(
        *(np.array([value]) for value in (src, src_chunk, dst, dst_chunk, count, op, channel))
    )


# Output o of rank r is chunk 1 + o; the input of rank r, chunk 0, is its output r.
@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (
            raw(1, 0, 0, 2, count=2),
            "step 2, rank 1 -> 0, channel 0: source chunks 0..1 on rank 1 do not lie in one buffer",
        ),
        (raw(1, 1, 0, 0, count=2), "destination chunks 0..1 on rank 0 do not lie in one buffer"),
        (raw(1, 0, 1, 2, count=99), "source chunks 0..98 on rank 1 do not lie in one buffer"),
        (raw(1, 0, 1, 2, count=0), "count must be at least 1, got 0"),
        (raw(1, 0, 1, 2, op=7), "operation 7 is unknown"),
        (raw(1, 0, 1, 2, op=-1), "operation -1 is unknown"),
        (raw(1, 0, 1, 2, channel=1), "channel 1 does not exist"),
        (raw(3, 0, 3, 2), "source rank 3 does not exist"),
        (raw(1, 4, 1, 4), "source chunks 4..4 on rank 1 do not lie in one buffer"),
    ],
)
def test_a_transfer_is_checked_before_its_alias_hides_it(step, reason):
    assert simcoll.verify(in_place_gather()).transfers == 6
    refused(in_place_gather(step), reason)


def test_a_range_that_leaves_the_smaller_buffer_is_no_range_of_the_larger():
    layout = Layout(simcoll.Collective("all_gather", 3, in_place=True))

    def steps():
        yield transfers(0, layout.input(), 1, layout.output(0))
        yield transfers(1, layout.output(0), 2, layout.output(0), count=2)
        yield transfers(2, layout.output(2), 1, layout.output(2))
        yield transfers(1, layout.input(), 0, layout.output(1), count=2)

    refused(
        Schedule("leaves", layout, steps),
        "step 3, rank 1 -> 0, channel 0: source chunks 0..1 on rank 1",
    )


def test_columns_of_a_step_are_whole_numbers_of_one_length():
    short = Step(*(np.zeros(length, np.int64) for length in (2, 1, 2, 2, 2, 2, 2)))
    refused(
        in_place_gather(short),
        "step 2: the columns of a step are whole numbers, one for each transfer",
    )
    with pytest.raises(ConfigError, match="src_rank of a Step must be whole numbers of 64 bits"):
        Step(*(np.zeros(1) for _ in COLUMNS))


def test_every_turn_of_a_repeat_is_checked():
    layout = Layout(simcoll.Collective("all_reduce", 2), chunks=4)
    pair = transfers([0, 1], layout.output(), [1, 0], layout.output(), count=2)
    schedule = Schedule("turns", layout, lambda: [Repeat((pair,), 4, 1, 4, 4)])
    with pytest.raises(ScheduleError, match=r"step 3, .* source chunks 7..8 on rank 0"):
        simcoll.bind(schedule, 4, unproved=True)
    out = Schedule("out", layout, lambda: [Repeat((pair.rows(slice(0, 1)),), 4, 1, 4, 8)])
    with pytest.raises(ScheduleError, match="do not lie in one buffer"):
        simcoll.bind(out, 4, unproved=True)
    fine = Schedule("fine", layout, lambda: [Repeat((pair,), 3, 1, 4, 4)])
    assert simcoll.bind(fine, 4, unproved=True).proof is None


@st.composite
def edited(draw):
    """Any schedule, in place or not, with one number of one transfer changed or a transfer
    added.
    """
    schedule = draw(schedules())
    steps = list(schedule.steps())
    if not steps:
        return schedule
    at = draw(st.integers(0, len(steps) - 1))
    step = steps[at]
    if len(step) and draw(st.booleans()):
        values = {name: getattr(step, name).astype(np.int64) for name in COLUMNS}
        name = draw(st.sampled_from(COLUMNS))
        values[name][draw(st.integers(0, len(step) - 1))] = draw(
            st.integers(-1, schedule.layout.size + 1)
        )
        steps[at] = Step(*values.values())
    else:
        chunk, rank = st.integers(0, schedule.layout.size), st.integers(0, schedule.nranks - 1)
        op = (
            SYNC
            if schedule.collective.kind == "barrier"
            else draw(st.sampled_from([COPY, COPY, REDUCE]))
        )
        own = draw(rank)
        dst = own if draw(st.booleans()) else draw(rank)
        more = raw(own, draw(chunk), dst, draw(chunk), draw(st.integers(-1, 3)), op)
        steps.insert(draw(st.integers(0, len(steps))), more)
    return replace(schedule, source=lambda: iter(steps))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.one_of(schedules(), edited()))
def test_what_is_proved_is_written_and_read_back(schedule):
    try:
        simcoll.verify(schedule)
    except ScheduleError:
        return
    assert parse_schedule(dump_schedule(schedule)).content_hash() == schedule.content_hash()


def test_a_repeat_whose_windows_begin_before_the_first_chunk_is_written():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=4)
    shifted = [
        replace(block, base=block.base - 3 * block.modulus) if isinstance(block, Repeat) else block
        for block in schedule.blocks()
    ]
    moved = replace(schedule, source=lambda: shifted)
    assert simcoll.verify(moved) == simcoll.verify(schedule)
    assert (
        parse_schedule(dump_schedule(moved)).content_hash()
        == schedule.content_hash()
        == moved.content_hash()
    )
