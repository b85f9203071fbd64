"""GOAL programs on the emulator: LogGP's closed forms, and the time of the schedule that a program
was written from.
"""

import pytest

import simcoll
from simcoll.core.protocol import Protocol, ideal
from simcoll.emulator.goal import goal_program
from simcoll.errors import ConfigError
from simcoll.formats import parse_goal
from simcoll.formats.goal.goal_writer import goal_of
from simcoll.topology import crossbar
from tests.unit.formats.test_goal import SMALL, binomial_tree

US = 10**9


@pytest.mark.parametrize("depth", [0, 8])
def test_a_binomial_tree_takes_its_loggp_time(depth):
    """log2(n) (2 o + L + G) for messages of a byte, whatever the order of the sends: L = 2.5 us, o
    = 1.5 us, G = 1 ns.

    With a FIFO the overhead occupies the sender and does not delay its message, so it is part of
    the latency.
    """
    overhead = Protocol(
        "loggp", send_overhead_fs=1500 * 10**6, receive_overhead_fs=1500 * 10**6, fifo_depth=depth
    )
    latency = "4 us" if depth else "2.5 us"
    program = goal_program(parse_goal(binomial_tree(32)), protocol=overhead)
    result = simcoll.emulate(program, crossbar(32, "1 GB/s", latency))
    assert result.time_fs == 5 * (2 * 1500 + 2500 + 1) * 10**6


def test_calculations_take_their_time():
    """1 us of work, then 1,001 bytes at 1 GB/s after 2 us; what runs beside it does not count."""
    text = SMALL.replace("d irequires s\n", "")
    result = simcoll.emulate(goal_program(parse_goal(text)), crossbar(2, "1 GB/s", "2 us"))
    assert result.time_fs == US + 2 * US + 1001 * 10**6


@pytest.mark.parametrize(
    ("kind", "name"), [("all_reduce", "ring"), ("broadcast", "tree"), ("all_gather", "ring")]
)
def test_a_schedule_takes_as_long_as_its_goal(kind, name):
    machine = crossbar(6, "10 GB/s", "1 us")
    plan = simcoll.bind(
        simcoll.schedule(kind, name, nranks=6), 6000, protocol=ideal(reduce_as_per_byte=10**6)
    )
    played = simcoll.emulate(
        goal_program(goal_of(plan), protocol=plan.protocol), machine, data="none"
    )
    without = simcoll.bind(simcoll.schedule(kind, name, nranks=6), 6000, protocol=plan.protocol)
    assert played.time_fs == simcoll.emulate(without, machine, data="none", bound=False).time_fs


def test_what_a_program_cannot_say():
    with pytest.raises(ConfigError, match="rank 0 operation 2 irequires rank 0 operation 1"):
        goal_program(parse_goal(SMALL))
