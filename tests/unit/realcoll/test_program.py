"""One process's part of a plan."""

import numpy as np
import pytest

import simcoll
from realcoll.turns import STAGING, program
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, SWITCH_REDUCE, Layout, Schedule, transfers


def by_hand(kind, n, *steps, count=2, **options):
    layout = Layout(Collective(kind, n, **options))
    return simcoll.bind(Schedule("by_hand", layout, lambda: iter(steps), 8), count, "int16", unproved=True), layout


def test_two_ranks_swap_through_memory_set_aside():
    layout = Layout(Collective("all_reduce", 2, in_place=True))
    swap = transfers([0, 1], layout.input(), [1, 0], layout.input())
    plan, _ = by_hand("all_reduce", 2, swap, in_place=True)
    (turn,) = program(plan, [0, 1], 0).turns
    ((aside, source),) = turn.aside
    assert aside[0] == STAGING
    assert source == (0, turn.recvs[0][0][1], 0, 4)
    assert turn.sends == ((aside, 1),)
    assert turn.recvs == ((source, 1),)
    assert turn.after == ()


def test_operands_land_in_staging_and_combine_in_row_order():
    layout = Layout(Collective("reduce", 3))
    fold = transfers([2, 1, 0], layout.input(), 0, layout.output(), op=SWITCH_REDUCE)
    plan, _ = by_hand("reduce", 3, fold)
    found = program(plan, [0, 1, 2], 0)
    (turn,) = found.turns
    target = (0, 1, 0, 4)
    (first, second) = turn.recvs
    assert first == (target, 2)
    assert (second[0][0], second[1]) == (STAGING, 1)
    assert turn.after == ((True, target, second[0]), (True, target, (0, 0, 0, 4)))
    assert found.staging_bytes == 64
    assert program(plan, [0, 1, 2], 1).turns[0].after == ()


def test_staging_is_shared_by_turns_and_not_by_rows():
    layout = Layout(Collective("all_to_all", 3))
    into = [transfers([1, 2], layout.input(0), 0, layout.output(np.array([1, 2])), op=REDUCE)] * 2
    plan, _ = by_hand("all_to_all", 3, *into, count=40)
    found = program(plan, [0, 1, 2], 0)
    assert found.staging_bytes == 2 * 128
    assert [[span for span, _ in turn.recvs] for turn in found.turns] == [[(-1, 0, 0, 80), (-1, 0, 128, 80)]] * 2


def test_a_synchronisation_is_one_byte_each_way():
    plan = simcoll.bind(simcoll.schedule("barrier", "dissemination", nranks=2), 0)
    for process in (0, 1):
        (turn,) = program(plan, [0, 1], process).turns
        ((landing, source),) = turn.recvs
        ((span, target),) = turn.sends
        assert (source, target) == (1 - process, 1 - process)
        assert (landing[3], span[3]) == (1, 1)
        assert landing != span
        assert turn.after == ()


@pytest.mark.parametrize("hosts", [[0, 0, 0, 0, 0], [0, 1, 2, 3, 4], [1, 1, 0, 2, 0]])
def test_every_message_has_both_ends_in_one_order(hosts):
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=5, channels=2), 13)
    programs = [program(plan, hosts, process) for process in range(max(hosts) + 1)]
    for here, mine in enumerate(programs):
        for there, other in enumerate(programs):
            sent = [(t.step, span[3]) for t in mine.turns for span, to in t.sends if to == there]
            wanted = [(t.step, span[3]) for t in other.turns for span, source in t.recvs if source == here]
            assert sent == wanted
    steps = sum(len(step) - int((step.src_rank == step.dst_rank).sum()) for step in plan.steps())
    assert sum(len(turn.sends) for mine in programs for turn in mine.turns) == steps


def test_channels_divide_the_program():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=3, channels=2), 12)
    whole = program(plan, [0, 0, 0], 0)
    parts = [program(plan, [0, 0, 0], 0, channel) for channel in (0, 1)]
    for position, turn in enumerate(whole.turns):
        assert len(turn.sends) == sum(len(part.turns[position].sends) for part in parts)
