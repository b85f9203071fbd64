"""What a person reads when a schedule is wrong: the transfers that the wrong chunk depends on, and where it goes wrong."""

from __future__ import annotations

import numpy as np
import pytest
from mutants import mutants

import simcoll
from simcoll.collective import Collective
from simcoll.errors import ScheduleError
from simcoll.schedule import REDUCE, SWITCH_REDUCE, Layout, Schedule, transfers
from simcoll.verify import verify
from simcoll.verify.minimal import history, trail


def made(collective, steps, chunks=1, scratch=0):
    return Schedule("mine", Layout(collective, chunks, np.zeros(scratch, np.int64)), lambda: iter(steps))


def message(schedule):
    with pytest.raises(ScheduleError) as error:
        verify(schedule)
    return str(error.value)


AR2 = Collective("all_reduce", 2)  # input chunk 0, output chunk 1, scratch from chunk 2 on
LOAD = transfers([0, 1], 0, [0, 1], 1)
CROSS = transfers([0, 1], 0, [1, 0], 1, op=REDUCE)


def test_a_contribution_counted_again_is_marked():
    assert message(made(AR2, [LOAD, CROSS, transfers(0, 0, 1, 1, op=REDUCE)])) == (
        "mine all_reduce n=2: rank 1 output chunk 0 is wrong at the end (1 wrong output chunk in all)\n"
        "  expected: rank 0 input chunk 0, rank 1 input chunk 0\n"
        "  found:    rank 0 input chunk 0, rank 1 input chunk 0\n"
        "  counted more than once: rank 0 input chunk 0\n"
        "  last written in step 2\n"
        "  how rank 1 output chunk 0 came about (3 of the 5 transfers):\n"
        "      step 0: rank 1 input chunk 0 -> rank 1 output chunk 0 (copy, channel 0): now rank 1\n"
        "      step 1: rank 0 input chunk 0 -> rank 1 output chunk 0 (reduce, channel 0): now rank 0, 1\n"
        "  =>  step 2: rank 0 input chunk 0 -> rank 1 output chunk 0 (reduce, channel 0): now rank 0 (2 times), 1\n"
        "          which counts rank 0 input chunk 0 again"
    )


def test_a_lost_contribution_is_marked_where_it_is_overwritten():
    text = message(made(AR2, [LOAD, transfers(0, 0, 1, 1), transfers(1, 0, 0, 1, op=REDUCE)]))
    assert (
        "missing: rank 1 input chunk 0\n  rank 1 input chunk 0 gets as far as rank 0 output chunk 0, in step 2" in text
    )
    lost = message(made(AR2, [LOAD, transfers(1, 0, 0, 1, op=REDUCE), transfers(0, 0, 0, 1)]))
    assert "rank 1 input chunk 0 gets as far as rank 0 output chunk 0, in step 1; step 2 overwrites it there" in lost
    assert "  =>  step 2: rank 0 input chunk 0 -> rank 0 output chunk 0 (copy, channel 0): now rank 0" in lost
    assert lost.endswith("which overwrites rank 1 input chunk 0")


def test_a_hole_says_how_far_the_contribution_came():
    # The last message of the reduction round the ring is missing: what rank 2 gathered goes nowhere.
    ring = simcoll.schedule("all_reduce", "ring", nranks=4)
    steps = list(ring.steps())
    keep = steps[3].src_rank != 2
    steps[3] = transfers(
        *(c[keep] for c in (steps[3].src_rank, steps[3].src_chunk, steps[3].dst_rank, steps[3].dst_chunk)), op=REDUCE
    )
    text = message(Schedule("ring with a hole", ring.layout, lambda: iter(steps)))
    assert "missing: rank 0 input chunk 0, rank 1 input chunk 0, rank 2 input chunk 0" in text
    assert "rank 0 input chunk 0 gets as far as rank 2 output chunk 0, in step 2" in text


def test_a_contribution_that_nobody_reads():
    assert "rank 1 input chunk 0 is read by no transfer" in message(made(AR2, [transfers(0, 0, [0, 1], 1)]))


def test_an_output_that_nobody_writes():
    text = message(made(Collective("broadcast", 3), [transfers(0, 0, [0, 1], 1)]))
    assert "rank 2 output chunk 0 is wrong at the end (1 wrong output chunk in all)" in text
    assert "found:    nothing" in text
    assert text.endswith("never written")


def test_a_long_story_is_cut_before_the_fault():
    # A chain of 20 ranks that adds the first rank again at the end.
    n = 20
    rank = np.arange(n)
    chain = [transfers(rank, 0, rank, 1), *(transfers(r, 1, r + 1, 1, op=REDUCE) for r in range(n - 1))]
    again = [*chain, transfers(0, 0, n - 1, 1, op=REDUCE), transfers(n - 1, 1, rank[:-1], 1)]
    text = message(made(Collective("all_reduce", n), again))
    lines = text.splitlines()
    assert len(lines) <= 6 + 12 + 4
    assert "... 28 before" in text
    assert "step 20: rank 0 input chunk 0 -> rank 19 output chunk 0" in next(line for line in lines if "=>" in line)
    assert "now rank 0 (2 times), 1, 2, 3, 4, 5, 6, 7 and 12 more" in text
    assert lines[-1].strip() == "... 1 after"


def test_reads_before_the_first_write_say_when_that_is():
    text = message(made(AR2, [transfers(1, 1, 0, 1), LOAD]))
    assert (
        "step 0: reads rank 1 output chunk 0, which holds nothing yet: it is first written in step 1, by rank 1 input"
        in text
    )
    assert "which holds nothing yet: no transfer copies anything there" in message(
        made(AR2, [transfers(1, 2, 0, 1)], scratch=1)
    )
    text = message(made(AR2, [transfers(1, 0, 0, 1, op=REDUCE), LOAD]))
    assert "reduces into rank 0 output chunk 0, which holds nothing yet: it is first written in step 1" in text


def test_overwriting_an_input_is_refused_only_out_of_place():
    # Both get the right sum, but the input of rank 0 is gone afterwards.
    steps = [transfers(1, 0, 0, 0, op=REDUCE), transfers(0, 0, [0, 1], 1)]
    assert "step 0: overwrites rank 0 input chunk 0: inputs are read-only" in message(made(AR2, steps))
    verify(made(Collective("all_reduce", 2, in_place=True), steps))


def test_the_history_of_a_switch_reduction():
    schedule = made(
        Collective("all_reduce", 3), [transfers([0, 1, 2] * 3, 0, np.repeat([0, 1, 2], 3), 1, op=SWITCH_REDUCE)]
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


def errors_of(schedule):
    for number, (_, mutant) in enumerate(mutants(schedule)):
        if number % 5 == 0:
            try:
                verify(mutant())
            except ScheduleError as error:
                yield error


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_every_rejected_mutant_names_what_is_wrong(kind):
    name = "tree" if kind == "broadcast" else "ring"
    found = list(errors_of(simcoll.schedule(kind, name, nranks=3)))
    assert len(found) > 3
    for error in found:
        text = str(error)
        never = "never written" in text
        assert (error.step is None, error.channel is None) == (never, never)
        assert None not in (error.rank, error.chunk)
        assert "rank " in text
        assert "chunk" in text or "slot" in text
