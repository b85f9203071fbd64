"""Schedules for switches that multicast and reduce: proved, emulated with data, and timed by
hand.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import simcoll
from simcoll.core.collective import Collective
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import MULTICAST, SWITCH_REDUCE, Layout, Schedule, transfers
from simcoll.topology import crossbar, load_topology

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


@cache
def reducing(nranks, latency="0"):
    return replace(crossbar(nranks, "1 GB/s", latency), traits={"switch_reduce": "yes"})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_place", [False, True])
def test_right_for_every_size_order_and_depth(kind, in_place):
    for n in (1, 2, 3, 4, 5, 7, 8, 16):
        for root in (0, n - 1) if kind == "broadcast" else (None,):
            schedule = simcoll.schedule(kind, "switch", nranks=n, root=root, in_place=in_place)
            assert simcoll.verify(schedule).order in ("", "rank-consistent")
            for place, count in enumerate((0, 1, n - 1, n + 1, 100)):
                # Every count at every depth with three ranks; else every count and every depth.
                for depth in (0, 1, 2) if n == 3 else ((place + n) % 3,):
                    plan = simcoll.bind(
                        schedule, count, "int32", protocol=Protocol("ideal", fifo_depth=depth)
                    )
                    assert simcoll.emulate(plan, reducing(n)).wrong == 0


def times(kind, n, count, **params):
    plan = simcoll.bind(simcoll.schedule(kind, "switch", nranks=n, **params), count, "int8")
    return simcoll.emulate(plan, reducing(n, "1 us"), data="none").time_us


def test_times_are_those_of_one_trip_up_and_one_down():
    # 1 GB/s is 1,000 bytes a microsecond; a message has 1 us of latency. Four ranks, 4,000 bytes in
    # all.
    assert times("broadcast", 4, 4000) == 1 + 4
    # Every rank sends its 1,000 bytes up once and gets 3 x 1,000.
    assert times("all_gather", 4, 1000) == 1 + 3
    # All 4 x 1,000 bytes of a rank go up, its own block too.
    assert times("reduce_scatter", 4, 1000) == 1 + 4
    # First all shares up, then all shares down.
    assert times("all_reduce", 4, 4000) == 2 + 4 + 3
    # Two pieces: 2,000 up; 2,000 of the second up together with 500 to be sent to all; 1,500 down.
    assert times("all_reduce", 4, 4000, pieces=2) == 3 + 2 + 2.5 + 1.5


def test_quicker_than_any_schedule_without_switches_and_never_below_its_own_bound():
    topology = load_topology("dgx-h100", nodes=1)
    count = 1 << 26
    plain = simcoll.emulate(
        simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=8), count), topology, data="none"
    )
    switched = simcoll.emulate(
        simcoll.bind(simcoll.schedule("all_reduce", "switch", nranks=8, pieces=16), count),
        topology,
        data="none",
    )
    assert switched.time_fs < plain.bound.time_fs
    assert switched.bound.time_fs < switched.time_fs


def test_needs_a_topology_whose_switches_do_it():
    with pytest.raises(
        simcoll.ConfigError,
        match="needs switches that reduce and multicast, which topology 'crossbar'",
    ):
        simcoll.emulate(
            simcoll.bind(simcoll.schedule("all_reduce", "switch", nranks=4), 8),
            crossbar(4, "1 GB/s"),
        )


def schedule_of(nranks, *steps):
    return Schedule("mine", Layout(Collective("all_reduce", nranks)), lambda: iter(steps), 2)


def test_a_missing_operand_is_found():
    short = transfers([0, 1], 0, [0, 0], 1, op=SWITCH_REDUCE)
    with pytest.raises(simcoll.ScheduleError, match=r"missing: rank 2 input"):
        simcoll.verify(schedule_of(3, short, transfers(0, 1, [1, 2], 1, op=MULTICAST)))


def test_an_operand_that_counts_twice_is_found():
    twice = transfers([0, 1, 1], 0, 0, 1, op=SWITCH_REDUCE)
    with pytest.raises(simcoll.ScheduleError, match=r"counted more than once: rank 1 input"):
        simcoll.verify(schedule_of(2, twice, transfers(0, 1, 1, 1, op=MULTICAST)))


def test_two_reductions_into_one_chunk_clash():
    clash = transfers([0, 1], 0, 0, 1, op=SWITCH_REDUCE, channel=[0, 1])
    with pytest.raises(simcoll.ScheduleError, match="twice in one step"):
        simcoll.verify(schedule_of(2, clash))
