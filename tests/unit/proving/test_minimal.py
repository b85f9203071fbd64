"""What a person reads when a schedule is wrong: the transfers that the wrong chunk depends on, and
where it goes wrong.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import Collective
from simcoll.core.hazards import check_orderable
from simcoll.core.schedule import COPY, REDUCE, SWITCH_REDUCE, Layout, Schedule, lowered, transfers
from simcoll.errors import ScheduleError
from simcoll.proving import verify
from simcoll.proving.minimal import history, trail
from tests.support.mutants import mutants, originals


def made(collective, steps, chunks=1, scratch=0):
    return Schedule(
        "mine", Layout(collective, chunks, np.zeros(scratch, np.int64)), lambda: iter(steps)
    )


def message(schedule):
    with pytest.raises(ScheduleError) as error:
        verify(schedule)
    return str(error.value)


AR2 = Collective("all_reduce", 2)  # input chunk 0, output chunk 1, scratch from chunk 2 on
LOAD = transfers([0, 1], 0, [0, 1], 1)
CROSS = transfers([0, 1], 0, [1, 0], 1, op=REDUCE)


def test_a_contribution_counted_again_is_marked():
    assert message(made(AR2, [LOAD, CROSS, transfers(0, 0, 1, 1, op=REDUCE)])) == (
        "mine all_reduce n=2: rank 1 output chunk 0 is wrong at the end (1 wrong output chunk in "
        "all)\n"
        "  =>  step 2: rank 0 input chunk 0 -> rank 1 output chunk 0 (reduce, channel 0): now rank "
        "0 (2 times), 1\n"
        "          which counts rank 0 input chunk 0 again\n"
        "  expected: rank 0 input chunk 0, rank 1 input chunk 0\n"
        "  found:    rank 0 input chunk 0, rank 1 input chunk 0\n"
        "  counted more than once: rank 0 input chunk 0\n"
        "  last written in step 2; the counter-example is steps 0..2 of 0..2\n"
        "  how rank 1 output chunk 0 came about (3 of the 5 transfers):\n"
        "      step 0: rank 1 input chunk 0 -> rank 1 output chunk 0 (copy, channel 0): now rank "
        "1\n"
        "      step 1: rank 0 input chunk 0 -> rank 1 output chunk 0 (reduce, channel 0): now rank "
        "0, 1\n"
        "      step 2: rank 0 input chunk 0 -> rank 1 output chunk 0 (reduce, channel 0): now rank "
        "0 (2 times), 1"
    )


def test_a_lost_contribution_is_marked_where_it_is_overwritten():
    text = message(made(AR2, [LOAD, transfers(0, 0, 1, 1), transfers(1, 0, 0, 1, op=REDUCE)]))
    assert (
        text.splitlines()[1]
        == "  =>  rank 1 input chunk 0 gets as far as rank 0 output chunk 0, in step 2"
    )
    assert "missing: rank 1 input chunk 0\n" in text
    lost = message(made(AR2, [LOAD, CROSS, transfers(0, 0, 0, 1)]))
    assert (
        "rank 1 input chunk 0 gets as far as rank 0 output chunk 0, in step 1; step 2 overwrites "
        "it there" in lost
    )
    decisive, reason = lost.splitlines()[1:3]
    assert (
        decisive
        == "  =>  step 2: rank 0 input chunk 0 -> rank 0 output chunk 0 (copy, channel 0): now "
        "rank 0"
    )
    assert reason.strip() == "which overwrites rank 1 input chunk 0"


def test_a_hole_says_how_far_the_contribution_came():
    # The last message of the reduction round the ring is missing: what rank 2 gathered goes
    # nowhere.
    ring = simcoll.schedule("all_reduce", "ring", nranks=4)
    steps = list(ring.steps())
    keep = steps[3].src_rank != 2
    steps[3] = transfers(
        *(
            c[keep]
            for c in (steps[3].src_rank, steps[3].src_chunk, steps[3].dst_rank, steps[3].dst_chunk)
        ),
        op=REDUCE,
    )
    text = message(Schedule("ring with a hole", ring.layout, lambda: iter(steps)))
    assert "missing: rank 0 input chunk 0, rank 1 input chunk 0, rank 2 input chunk 0" in text
    assert "rank 0 input chunk 0 gets as far as rank 2 output chunk 0, in step 2" in text


def test_the_counter_example_says_that_no_later_step_writes_it():
    text = message(made(AR2, [LOAD, transfers(0, 0, 1, 1, op=REDUCE)]))
    assert "rank 0 output chunk 0 is wrong" in text
    assert "the counter-example is steps 0..0 of 0..1, because no later step writes it\n" in text


def test_a_contribution_that_nobody_reads():
    assert "rank 1 input chunk 0 is read by no transfer" in message(
        made(AR2, [transfers(0, 0, [0, 1], 1)])
    )


def test_an_output_that_nobody_writes():
    text = message(made(Collective("broadcast", 3), [transfers(0, 0, [0, 1], 1)]))
    assert "rank 2 output chunk 0 is wrong at the end (1 wrong output chunk in all)" in text
    assert "found:    nothing" in text
    assert text.endswith("never written")


def test_a_long_story_is_cut_before_the_fault():
    # A chain of 20 ranks that adds the first rank again at the end.
    n = 20
    rank = np.arange(n)
    chain = [
        transfers(rank, 0, rank, 1),
        *(transfers(r, 1, r + 1, 1, op=REDUCE) for r in range(n - 1)),
    ]
    again = [*chain, transfers(0, 0, n - 1, 1, op=REDUCE), transfers(n - 1, 1, rank[:-1], 1)]
    text = message(made(Collective("all_reduce", n), again))
    lines = text.splitlines()
    assert len(lines) <= 8 + 12 + 4
    assert "rank 19 output chunk 0 is wrong at the end (20 wrong output chunks in all)" in lines[0]
    assert "... 28 before" in text
    assert "=>  step 20: rank 0 input chunk 0 -> rank 19 output chunk 0" in lines[1]
    assert "now rank 0 (2 times), 1, 2, 3, 4, 5, 6, 7 and 12 more" in text
    assert "last written in step 20; the counter-example is steps 0..20 of 0..21" in text
    assert lines[2].strip() == "which counts rank 0 input chunk 0 again"


def test_reads_before_the_first_write_say_when_that_is():
    text = message(made(AR2, [transfers(1, 1, 0, 1), LOAD]))
    assert (
        "step 0: reads rank 1 output chunk 0, which holds nothing yet: it is first written in step "
        "1, by rank 1 input" in text
    )
    assert "which holds nothing yet: no transfer copies anything there" in message(
        made(AR2, [transfers(1, 2, 0, 1)], scratch=1)
    )
    text = message(made(AR2, [transfers(1, 0, 0, 1, op=REDUCE), LOAD]))
    assert (
        "reduces into rank 0 output chunk 0, which holds nothing yet: it is first written in step 1"
        in text
    )


def test_overwriting_an_input_is_refused_only_out_of_place():
    # Both get the right sum, but the input of rank 0 is gone afterwards.
    steps = [transfers(1, 0, 0, 0, op=REDUCE), transfers(0, 0, [0, 1], 1)]
    assert "step 0: overwrites rank 0 input chunk 0: inputs are read-only" in message(
        made(AR2, steps)
    )
    verify(made(Collective("all_reduce", 2, in_place=True), steps))


def test_the_history_of_a_switch_reduction():
    schedule = made(
        Collective("all_reduce", 3),
        [transfers([0, 1, 2] * 3, 0, np.repeat([0, 1, 2], 3), 1, op=SWITCH_REDUCE)],
    )
    moves, held = history(schedule, 1, 1)
    assert [move.src for move in moves] == [(0, 0), (1, 0), (2, 0)]
    assert held == {(0, 0): 1, (1, 0): 1, (2, 0): 1}
    assert trail(schedule, (2, 0)).overwritten is None


def test_the_history_is_a_small_part_of_the_schedule():
    schedule = simcoll.schedule("all_gather", "ring", nranks=16)
    moves, held = history(schedule, 3, schedule.layout.output(5))
    assert held == {(5, 0): 1}
    assert len(moves) == 15  # its way round from rank 5 to rank 3, of 256 transfers


def held_after(schedule, count):
    """What every chunk holds after some steps, played one by one: how often every contribution, as
    digits of one number.
    """
    layout, collective = schedule.layout, schedule.collective
    every = np.arange(layout.size)
    canonical = [
        layout.canonical(np.full_like(every, rank), every).tolist()
        for rank in range(schedule.nranks)
    ]

    def place(rank, chunk):
        return rank, canonical[rank][chunk]

    held = {
        place(rank, chunk): 1 << 32 * (rank * layout.output_base + chunk)
        for rank in range(schedule.nranks)
        if collective.has_input(rank)
        for chunk in range(layout.output_base)
    }
    for step in list(schedule.steps())[:count]:
        before, columns = (
            dict(held),
            (step.src_rank, step.src_chunk, step.dst_rank, step.dst_chunk, step.count, step.op),
        )
        switched, folded = {}, {}
        rows = zip(*(c.tolist() for c in columns), strict=True)
        for src, src_chunk, dst, dst_chunk, chunks, op in sorted(
            rows, key=lambda row: (row[5] == REDUCE, row[0])
        ):
            for offset in range(chunks):
                source, target = place(src, src_chunk + offset), place(dst, dst_chunk + offset)
                if source == target and op == COPY:
                    continue  # two names of one chunk
                value = before[source]
                if op == REDUCE:
                    value = (folded[target] if target in folded else before[target]) + value
                folded[target] = value
                if op == SWITCH_REDUCE:
                    value = switched[target] = switched.get(target, 0) + value
                held[target] = value
    return held, place


def prefix(schedule, count):
    return replace(schedule, source=lambda: list(schedule.steps())[:count])


def check_fields(schedule, error):
    """An error names step, rank, channel and chunk; what may be missing, and when, stands here."""
    text, barrier = str(error), schedule.collective.kind == "barrier"
    nothing_to_name = "is read by no transfer" in text or (
        "receives no message" in text and "sends no message" in text
    )
    assert error.rank is not None
    assert (error.chunk is None) == (barrier and "may leave before" in text)
    assert error.step is not None or nothing_to_name
    assert error.channel is not None or (nothing_to_name and schedule.nchannels > 1)
    assert "rank " in text
    if not barrier:
        assert "chunk" in text or "slot" in text


def refusal(schedule):
    try:
        verify(schedule)
    except ScheduleError as error:
        return str(error)
    return "is wrong at the end: no, all is right"


def check_prefix(schedule, error):
    """The smallest number of steps that shows the fault: one less does not."""
    if "may leave before" in str(error):
        later = list(schedule.steps())[0 if error.step is None else error.step + 1 :]
        heard_last = "the last message to rank" in str(error)
        assert not heard_last or not any((step.dst_rank == error.rank).any() for step in later)
        return
    if "is wrong at the end" in str(error):
        end, place = held_after(schedule, None)
        cell = place(error.rank, error.chunk)
        if "never written" in str(error):
            assert end.get(cell) == held_after(schedule, 0)[0].get(cell)
            return
        assert f"steps 0..{error.step} of 0..{len(list(schedule.steps())) - 1}" in str(error)
        assert held_after(schedule, error.step + 1)[0][cell] == end[cell]
        for number, step in lowered(schedule):
            here = step.dst_rank == error.rank
            over = (step.dst_chunk[here] <= cell[1]) & (
                cell[1] < (step.dst_chunk + step.count)[here]
            )
            assert number <= error.step or not over.any()
        return
    circle = "overwrite what each other read" in str(error)
    with pytest.raises(ScheduleError) as again:
        (check_orderable if circle else verify)(prefix(schedule, error.step + 1))
    where = ("step", "rank", "channel", "chunk")
    assert [getattr(again.value, name) for name in where] == [
        getattr(error, name) for name in where
    ]
    if circle:
        check_orderable(prefix(schedule, error.step))
    # Only because it is not done yet.
    assert "is wrong at the end" in refusal(prefix(schedule, error.step))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.name}-{a.collective}")
def test_every_rejected_mutant_is_located(algorithm):
    seen = 0
    for position, schedule in enumerate(originals((3, 4), (algorithm,))):
        for number, (_, made_anew) in enumerate(mutants(schedule)):
            if (number + 13 * position) % 89 == 0:
                mutant = made_anew()
                try:
                    verify(mutant)
                except ScheduleError as error:
                    seen += 1
                    check_fields(mutant, error)
                    check_prefix(mutant, error)
    assert seen > 0


def test_a_circle_of_channels_is_located():
    # Two channels exchange two chunks in one step: each would have to wait for the other.
    steps = [LOAD, transfers([0, 1], 1, [1, 0], 1, channel=[0, 1])]
    schedule = Schedule("mine", Layout(Collective("all_reduce", 2)), lambda: iter(steps), 2)
    with pytest.raises(ScheduleError) as error:
        verify(made(Collective("all_reduce", 2), [LOAD, transfers([0, 1], 1, [1, 0], 1)]))
    assert (error.value.step, error.value.rank, error.value.channel, error.value.chunk) == (
        1,
        0,
        0,
        1,
    )
    with pytest.raises(ScheduleError) as error:
        check_orderable(schedule)
    assert (error.value.step, error.value.rank, error.value.channel, error.value.chunk) == (
        1,
        0,
        0,
        1,
    )


def test_large_schedules_are_explained_part_by_part(monkeypatch):
    good = simcoll.schedule("all_reduce", "ring", nranks=16)
    steps = list(good.steps())
    steps[20] = steps[20].rows(np.arange(16) != 5)
    cut = replace(good, source=lambda: steps)
    whole = message(cut)
    monkeypatch.setattr(import_module("simcoll.proving.minimal"), "HELD", 40)
    assert message(cut) == whole
    # Too large for a story: still all that locates it.
    monkeypatch.setattr(import_module("simcoll.proving.explain"), "MAX_EXPLAINED", 100)
    with pytest.raises(ScheduleError, match="too large to explain") as error:
        verify(cut)
    check_fields(cut, error.value)


def test_a_history_that_nobody_would_read_is_not_told(monkeypatch):
    again = made(AR2, [LOAD, CROSS, *[transfers(0, 0, 1, 1, op=REDUCE)] * 39])
    assert "(41 of the 43 transfers)" in message(again)
    monkeypatch.setattr(import_module("simcoll.proving.minimal"), "MOST_MOVES", 40)
    assert "too large to explain" in message(again)
    with pytest.raises(ScheduleError) as error:
        verify(again)
    assert (error.value.step, error.value.rank) == (40, 1)
