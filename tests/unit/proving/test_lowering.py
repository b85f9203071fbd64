"""What plans lower to orders every hazard; without its waits or its staging it does not."""

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.rank_program import OPS
from simcoll.core.schedule import REDUCE, Layout, Schedule, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.proving import check_lowering, lower, verify_program
from simcoll.testing.examples import needed_params


def variants(algorithm, n):
    """Schedules of an algorithm at n ranks: in place and not; with 2 and 3 channels and pieces
    where it has them, one of them in place.

    From six ranks on: in place or not, and with more channels than pieces or the other way round;
    of numbers that follow each other, and of even and odd ones, some have either.
    """
    for turn, (channels, pieces) in enumerate(((1, 1), (2, 3), (3, 2))):
        params = {"channels": channels, "pieces": pieces}
        params = {name: value for name, value in params.items() if name in algorithm.params}
        if (channels, pieces) != (1, 1) and not params:
            continue
        if n >= 6 and turn == 2 - n % 2:  # even numbers have the first of the two
            continue
        params = needed_params(algorithm.collective, algorithm.name, n) | params
        if algorithm.name == "hierarchical":
            params["box"] = max(box for box in (1, 2, 3, 4) if n % box == 0)
        # Which of the two takes turns, such that even numbers, odd ones and powers of two have
        # both.
        for in_place in (False, True) if turn == 0 and n < 6 else (bool((n // 2 + turn) % 2),):
            try:
                yield simcoll.schedule(
                    algorithm.collective, algorithm.name, nranks=n, in_place=in_place, **params
                )
            except ConfigError:
                continue


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.collective}-{a.name}")
def test_every_algorithm(algorithm):
    count = 0
    for n in range(1, 10):
        for schedule in variants(algorithm, n):
            proof = check_lowering(simcoll.bind(schedule, schedule.layout.chunks))
            assert proof.data == (algorithm.collective != "barrier")
            assert proof.least_depth == 0
            if schedule.layout.chunks > 1 and (n + count) % 2:  # most chunks are empty
                check_lowering(simcoll.bind(schedule, 1))
            count += 1
    assert count


def edit(program, change):
    """Every instruction through ``change(rank, lane, position, instruction)``."""
    lanes = tuple(
        tuple(
            replace(
                lane,
                instructions=tuple(
                    change(rank, number, at, each) for at, each in enumerate(lane.instructions)
                ),
            )
            for number, lane in enumerate(lanes)
        )
        for rank, lanes in enumerate(program.lanes)
    )
    return replace(program, lanes=lanes)


def test_staging_is_needed():
    collective = simcoll.Collective("all_to_all", 2)
    layout = Layout(collective)
    rank = np.arange(2)

    def steps():
        yield transfers(rank, layout.input(rank), rank, layout.output(rank))
        yield transfers(rank, layout.input(1 - rank), rank, layout.output(1 - rank))
        # Both outputs for the other rank lie at the same slot as what comes in: a swap.
        yield transfers(rank, layout.output(1 - rank), 1 - rank, layout.output(rank))

    plan = simcoll.bind(Schedule("swap", layout, steps, divisible=True), 4)
    program = lower(plan)
    assert verify_program(program).data
    size = plan.schedule.layout.size
    staged = [
        i
        for lanes in program.lanes
        for lane in lanes
        for i in lane.instructions
        if i.op == "copy" and i.dst >= size
    ]
    assert len(staged) == 2

    def unstaged(rank, lane, position, instruction):
        if instruction.op == "send" and instruction.src >= size:
            return replace(instruction, src=layout.output(1 - rank))
        if instruction.op == "copy" and instruction.dst >= size:
            return replace(instruction, op="nop")
        return instruction

    bare = edit(program, unstaged)
    unordered = edit(
        bare,
        lambda _rank, _lane, _position, each: (
            replace(each, waits=()) if each.op == "recv" else each
        ),
    )
    with pytest.raises(ScheduleError, match="race"):
        verify_program(bare)
    with pytest.raises(ScheduleError, match="race"):
        verify_program(unordered)


@pytest.mark.parametrize(
    ("collective", "name"), [("all_reduce", "ring"), ("all_reduce", "tree"), ("all_gather", "ring")]
)
def test_without_waits_a_lowering_races(collective, name):
    program = lower(simcoll.bind(simcoll.schedule(collective, name, nranks=4, in_place=True), 16))
    waiting = [
        each
        for lanes in program.lanes
        for lane in lanes
        for each in lane.instructions
        if each.waits
    ]
    assert waiting
    with pytest.raises(ScheduleError, match=r"race|holds nothing|wrong"):
        verify_program(edit(program, lambda _rank, _lane, _position, each: replace(each, waits=())))


def test_waits_between_channels_are_needed():
    """Channel 1 sends on what channel 0 received: only the explicit wait orders them."""
    layout = Layout(simcoll.Collective("broadcast", 3))

    def steps():
        yield transfers([0], layout.input(), [0], layout.output())
        yield transfers([0], layout.output(), [1], layout.output())
        yield transfers([1], layout.output(), [2], layout.output(), channel=1)

    plan = simcoll.bind(Schedule("relay", layout, steps, 2), 8)
    assert plan.waits
    program = lower(plan)
    assert check_lowering(plan).data

    def forgetful(rank, lane, position, each):
        return replace(each, waits=()) if rank == 1 and each.op == "send" else each

    with pytest.raises(ScheduleError, match=r"race on rank 1 output\[0\]"):
        verify_program(edit(program, forgetful))


def test_single_waits_are_redundant_or_found():
    """Dropping one wait is either found, or the program stays right in the order of its proof."""
    program = lower(
        simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=3, in_place=True), 6)
    )
    found = 0
    for rank, lanes in enumerate(program.lanes):
        for number, lane in enumerate(lanes):
            for position, instruction in enumerate(lane.instructions):
                for wait in instruction.waits:
                    kept = tuple(other for other in instruction.waits if other != wait)
                    here = (rank, number, position)

                    def change(r, l, p, each, here=here, kept=kept):
                        return replace(each, waits=kept) if (r, l, p) == here else each

                    try:
                        verify_program(edit(program, change))
                    except ScheduleError:
                        found += 1
    assert found >= 6


def test_a_plan_with_empty_chunks_is_checked_without_its_data():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=5), 3)
    assert not check_lowering(plan).data


def test_lowered_operations_are_known():
    program = lower(simcoll.bind(simcoll.schedule("all_reduce", "rabenseifner", nranks=6), 24))
    assert {
        each.op for lanes in program.lanes for lane in lanes for each in lane.instructions
    } <= set(OPS)
    assert program.fifo_depth is None


def test_several_reductions_into_one_chunk_follow_each_other_by_rank():
    layout = Layout(simcoll.Collective("reduce", 4))
    load = transfers(0, layout.input(), 0, layout.output())
    fold = transfers([3, 1, 2], layout.input(), 0, layout.output(), op=REDUCE)
    plan = simcoll.bind(Schedule("fold", layout, lambda: [load, fold]), 4, unproved=True)
    program = lower(plan)
    assert verify_program(program).data
    waits = {}
    for number, lane in enumerate(program.lanes[0]):
        for instruction in lane.instructions:
            if instruction.op == "recv_reduce_copy":
                waits[instruction.recv_from] = number, {other for other, _ in instruction.waits}
    assert waits[1][0] in waits[2][1]
    assert waits[2][0] in waits[3][1]
    assert waits[3][0] not in waits[1][1] | waits[2][1]
    local = next(
        number for number, lane in enumerate(program.lanes[0]) if lane.instructions[0].op == "copy"
    )

    def unchained(rank, lane, position, each):
        return replace(each, waits=tuple(wait for wait in each.waits if wait[0] == local))

    bare = edit(program, unchained)
    with pytest.raises(ScheduleError, match="race"):
        verify_program(bare)


@pytest.mark.parametrize("name", ["ring", "rabenseifner", "tree"])
def test_the_part_of_some_ranks_is_what_they_do_in_the_whole(name):
    plan = simcoll.bind(simcoll.schedule("all_reduce", name, nranks=6, channels=2), 24)
    whole, part = lower(plan).lanes, lower(plan, ranks=[1, 4]).lanes
    for rank in range(6):
        assert part[rank] == (whole[rank] if rank in {1, 4} else ())


@pytest.mark.slow
def test_a_ring_of_128_ranks():
    """Takes a fraction of a second; it was ten minutes when clocks were kept instruction by
    instruction.
    """
    proof = check_lowering(simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=128), 128))
    assert (proof.data, proof.order, proof.messages, proof.least_depth) == (
        True,
        "run-consistent",
        2 * 127 * 128,
        0,
    )
