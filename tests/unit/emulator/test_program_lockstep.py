"""Programs of one call in lock-step: the ends of ranks are those of the loops and of SimPy."""

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.core.protocol import Protocol
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.programs import Call, Compute, Program, Send, program_ways
from simcoll.emulator.programs.program_request import ProgramRequest
from simcoll.emulator.programs.program_ways import ProgramLoopsWay, ProgramPlayersWay
from simcoll.topology import boxes, crossbar

pytestmark = pytest.mark.skipif(not COMPILED, reason="needs numba")

RAILS = boxes(3, 4, "400 GB/s", "1 us", nics=4, nic_bandwidth="50 GB/s", nic_latency="3 us")
LAUNCHED = Protocol("launched", launch_fs=7 * 10**9, send_overhead_fs=10**6)
FIFO = Protocol("fifo", fifo_depth=2, launch_fs=5, send_overhead_fs=10**8, receive_overhead_fs=3)
ALL = np.arange(12)
GROUPS = {
    "all": ALL.reshape(1, 12),
    "rows": ALL.reshape(3, 4),
    "rails": np.ascontiguousarray(ALL.reshape(3, 4).T),
    "some": np.array([[5, 2, 9], [11, 0, 4]]),
}


def request_of(operations, topology=RAILS, **how):
    program = Program(topology.nranks, operations)
    needs = {"keep": "operations", "hashed": False, "engine": "fast"} | how
    return ProgramRequest(program, topology, **needs)


def plan_of(kind, algorithm, nranks, protocol, count, **params):
    schedule = simcoll.schedule(kind, algorithm, nranks=nranks, **params)
    return simcoll.bind(schedule, count, "uint8", protocol=protocol)


def outcome(result, *, ends=True):
    bounds = [result.begin_fs(0).tolist(), result.end_fs(0).tolist()] if ends else []
    return result.time_fs, result.messages, result.bytes_moved, *bounds


@pytest.mark.slow
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("protocol", [LAUNCHED, FIFO], ids=["rendezvous", "fifo"])
@pytest.mark.parametrize("count", [12 * 999, 7])
def test_a_ring_in_groups_ends_as_in_the_loops_and_in_simpy(monkeypatch, groups, protocol, count):
    ranks = GROUPS[groups]
    plan = plan_of("all_gather", "ring", ranks.shape[1], protocol, count)
    call = Call(plan, ranks)
    monkeypatch.setattr(program_ways, "play_all", None)  # only lock-step can play it
    together = ProgramLoopsWay().play(request_of([call]))
    monkeypatch.undo()
    loops = ProgramLoopsWay().play(request_of([call], hashed=True))
    simpy = ProgramPlayersWay().play(request_of([call], engine="simpy"))
    assert outcome(together) == outcome(loops) == outcome(simpy)
    assert not together.trace_hash


def test_channels_and_ranks_without_messages_end_like_those_of_the_loops():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=4, channels=3)
    # Channels of a fiftieth of a NIC do not meet: no link of theirs can bind.
    capped = replace(LAUNCHED, channel_rate_uBps=10**15)
    plan = simcoll.bind(schedule, 4096, "uint8", protocol=capped)
    chain = plan_of("broadcast", "chain", 4, LAUNCHED, 100)
    pairs = np.array([[0, 5], [7, 2]])
    for operation in (
        Call(plan, GROUPS["rows"]),
        Call(chain, GROUPS["rows"]),
        Call(replace(plan, protocol=replace(capped, launch_fs=0)), GROUPS["rows"]),
        Send(pairs, 10**6, protocol=LAUNCHED),
    ):
        together = ProgramLoopsWay().play(request_of([operation]))
        loops = ProgramLoopsWay().play(request_of([operation], hashed=True))
        assert not together.trace_hash
        assert outcome(together) == outcome(loops)


def test_flows_that_meet_and_several_operations_are_left_to_the_loops():
    narrow = boxes(3, 4, "400 GB/s", "1 us", nics=1, nic_bandwidth="50 GB/s", nic_latency="3 us")
    plan = plan_of("all_gather", "ring", 3, LAUNCHED, 999)
    for operations, topology in (
        ([Call(plan, GROUPS["rails"])], narrow),
        ([Call(plan, GROUPS["some"]), Compute([0], 10)], RAILS),
        ([Call(replace(plan, protocol=Protocol("j", jitter_fs=9)), GROUPS["some"])], RAILS),
    ):
        result = ProgramLoopsWay().play(request_of(operations, topology))
        assert result.trace_hash  # lock-step has none
        simpy = ProgramPlayersWay().play(request_of(operations, topology, engine="simpy"))
        assert outcome(result) == outcome(simpy)


def test_a_crossbar_of_one_group_needs_no_times_of_operations():
    plan = plan_of("all_gather", "ring", 8, LAUNCHED, 8000)
    request = request_of([Call(plan, ALL[:8].reshape(1, 8))], crossbar(8, "9 GB/s"), keep=False)
    loops = request_of([Call(plan, ALL[:8].reshape(1, 8))], crossbar(8, "9 GB/s"), hashed=True)
    ended = ProgramLoopsWay().play(request)
    assert outcome(ended, ends=False) == outcome(ProgramLoopsWay().play(loops), ends=False)
