"""One process's part of a plan."""

from dataclasses import replace

import numpy as np
import pytest

import realcoll
import simcoll
from realcoll.turns import STAGING, part
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, SWITCH_REDUCE, Layout, Schedule, transfers
from simcoll.core.wiring import wire
from simcoll.proving import check_lowering, lower
from simcoll.proving.program_proof import check_order
from tests.support.turns_read_back import program_of


def by_hand(kind, n, *steps, count=2, **options):
    layout = Layout(Collective(kind, n, **options))
    return simcoll.bind(
        Schedule("by_hand", layout, lambda: iter(steps), 8), count, "int16", unproved=True
    ), layout


def test_two_ranks_swap_through_memory_set_aside():
    layout = Layout(Collective("all_reduce", 2, in_place=True))
    swap = transfers([0, 1], layout.input(), [1, 0], layout.input())
    plan, _ = by_hand("all_reduce", 2, swap, in_place=True)
    ((turn,),) = part(plan, [0, 1], 0).lanes
    ((aside, source),) = turn.aside
    assert aside[0] == STAGING
    assert source == (0, turn.recvs[0][0][1], 0, 4)
    assert turn.sends == ((aside, 1, 0),)
    assert turn.recvs == ((source, 1, 0),)
    assert turn.afterwards == ()


def test_operands_land_in_staging_and_combine_in_row_order():
    layout = Layout(Collective("reduce", 3))
    fold = transfers([2, 1, 0], layout.input(), 0, layout.output(), op=SWITCH_REDUCE)
    plan, _ = by_hand("reduce", 3, fold)
    found = part(plan, [0, 1, 2], 0)
    ((turn,),) = found.lanes
    target = (0, 1, 0, 4)
    (first, second) = turn.recvs
    assert first == (target, 2, 0)
    assert (second[0][0], second[1]) == (STAGING, 1)
    first_added, second_added = (operation[:3] for operation in turn.afterwards)
    assert first_added == (True, target, second[0])
    assert second_added == (True, target, (0, 0, 0, 4))
    assert found.staging_bytes == (64,)
    assert part(plan, [0, 1, 2], 1).lanes[0][0].afterwards == ()


def test_staging_is_shared_by_turns_and_not_by_rows():
    layout = Layout(Collective("all_to_all", 3))
    into = [transfers([1, 2], layout.input(0), 0, layout.output(np.array([1, 2])), op=REDUCE)] * 2
    plan, _ = by_hand("all_to_all", 3, *into, count=40)
    found = part(plan, [0, 1, 2], 0)
    assert found.staging_bytes == (2 * 128,)
    assert [[span for span, _, _ in turn.recvs] for turn in found.lanes[0]] == [
        [(-1, 0, 0, 80), (-1, 0, 128, 80)]
    ] * 2


def test_a_synchronisation_is_one_byte_each_way():
    plan = simcoll.bind(simcoll.schedule("barrier", "dissemination", nranks=2), 0)
    for process in (0, 1):
        ((turn,),) = part(plan, [0, 1], process).lanes
        ((landing, source, _),) = turn.recvs
        ((span, target, _),) = turn.sends
        assert (source, target) == (1 - process, 1 - process)
        assert (landing[3], span[3]) == (1, 1)
        assert landing != span
        assert turn.afterwards == ()


@pytest.mark.parametrize("hosts", [[0, 0, 0, 0, 0], [0, 1, 2, 3, 4], [1, 1, 0, 2, 0]])
@pytest.mark.parametrize("apart", [False, True])
def test_every_message_has_both_ends_in_one_order(hosts, apart):
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=5, channels=2), 13)
    parts = [part(plan, hosts, process, apart=apart) for process in range(max(hosts) + 1)]
    for here, mine in enumerate(parts):
        for there, other in enumerate(parts):
            for one, two in zip(mine.lanes, other.lanes, strict=True):
                sent = [
                    (t.step, span[3], channel)
                    for t in one
                    for span, to, channel in t.sends
                    if to == there
                ]
                wanted = [
                    (t.step, span[3], channel)
                    for t in two
                    for span, source, channel in t.recvs
                    if source == here
                ]
                assert sent == wanted
    steps = sum(len(step) - int((step.src_rank == step.dst_rank).sum()) for step in plan.steps())
    assert sum(len(turn.sends) for mine in parts for lane in mine.lanes for turn in lane) == steps


def test_channels_have_lanes_of_their_own():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=3, channels=2), 12)
    whole, parts = part(plan, [0, 0, 0], 0).lanes[0], part(plan, [0, 0, 0], 0, apart=True).lanes
    assert len(parts) == 2
    for position, turn in enumerate(whole):
        assert len(turn.sends) == sum(len(lane[position].sends) for lane in parts)
    assert not any(turn.waits for lane in parts for turn in lane)


def relay():
    """Channel 1 sends on what channel 0 receives two steps before."""
    layout = Layout(Collective("broadcast", 3))
    steps = [
        transfers(0, layout.input(), 0, layout.output()),
        transfers(0, layout.output(), 1, layout.output()),
        transfers(1, layout.output(), 2, layout.output(), channel=1),
    ]
    return simcoll.bind(Schedule("relay", layout, lambda: iter(steps), 2), 8)


def test_lanes_wait_for_each_other_where_the_plan_says_so():
    first, second = part(relay(), [0, 1, 2], 1, apart=True).lanes
    assert [turn.waits for turn in first] == [()]
    assert [turn.waits for turn in second] == [((0, 0),)]
    values = [np.arange(8, dtype="float32") + rank for rank in range(3)]
    assert realcoll.execute(relay(), values)[2].tolist() == values[0].tolist()


def exchange():
    """In one step each of two channels overwrites what the other reads, on different ranks: turns
    would wait in a cycle.
    """
    layout = Layout(Collective("all_to_all", 4, in_place=False), 1)
    rank = np.arange(4)
    load = transfers(
        np.repeat(rank, 4),
        layout.input(np.tile(rank, 4)),
        np.repeat(rank, 4),
        layout.output(np.tile(rank, 4)),
    )
    cross = transfers(
        [0, 1, 0, 1],
        layout.output(np.array([1, 0, 3, 2])),
        [1, 0, 2, 3],
        layout.output(np.array([1, 0, 3, 2])),
        channel=[0, 1, 1, 0],
    )
    return simcoll.bind(
        Schedule("exchange", layout, lambda: iter([load, cross]), 2), 3, unproved=True
    )


@pytest.mark.parametrize("hosts", [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0], [2, 0, 1, 0]])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("make", [relay, exchange], ids=["relay", "exchange"])
def test_turns_read_back_are_ordered_and_do_not_block(make, hosts, apart):
    plan = make()
    check_lowering(plan) if make is relay else check_order(wire(lower(plan)))
    hosts = hosts[: plan.nranks]
    hosts = [sorted(set(hosts)).index(host) for host in hosts]
    parts = [part(plan, hosts, process, apart=apart) for process in range(max(hosts) + 1)]
    proof, _ = check_order(wire(program_of(plan, parts)))
    assert proof.least_depth == 0


def test_turns_without_their_waits_race():
    plan = relay()
    parts = [part(plan, [0, 1, 2], process, apart=True) for process in range(3)]
    bare = [
        replace(made, lanes=tuple(tuple(replace(t, waits=()) for t in lane) for lane in made.lanes))
        for made in parts
    ]
    check_order(wire(program_of(plan, parts)))
    with pytest.raises(simcoll.ScheduleError, match="race"):
        check_order(wire(program_of(plan, bare)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ring", "rabenseifner", "tree", "recursive_doubling"])
@pytest.mark.parametrize("apart", [False, True])
def test_turns_of_any_placement_are_ordered(name, apart):
    plan = simcoll.bind(simcoll.schedule("all_reduce", name, nranks=6), 11, "int16")
    for hosts in ([0] * 6, [0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2], [2, 1, 0, 0, 1, 2]):
        parts = [part(plan, hosts, process, apart=apart) for process in range(max(hosts) + 1)]
        proof, _ = check_order(wire(program_of(plan, parts)))
        assert proof.least_depth == 0


class Slow(realcoll.LocalTransport):
    """Messages of channel 0 take long: they are done when somebody waits for them."""

    def __init__(self):
        super().__init__()
        self.log = []
        self.held = []

    def group(self, recvs, sends):
        begin, channel = super().group(recvs, sends), sends[0][2]

        def post():
            self.log += [("sent", channel)] * len(sends)
            if channel != 0:
                return begin()
            self.held.append(begin)
            return begin

        return post

    def is_over(self, group):
        return group not in self.held

    def wait(self, groups):
        self.log.append(("wait", len(groups)))
        self.held.pop(0)()


def test_a_channel_does_not_wait_for_the_messages_of_another():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=3, channels=2), 12)
    transport = Slow()
    prepared = realcoll.prepare(plan, transport)
    prepared.load([np.full(12, rank, "float32") for rank in range(3)])
    prepared.run()
    assert prepared.fetch()[1].tolist() == [3.0] * 12
    first_wait = transport.log.index(("wait", 1))
    assert transport.log[:first_wait].count(("sent", 0)) == 3  # one step of three ranks
    assert transport.log[:first_wait].count(("sent", 1)) == 12  # all steps
