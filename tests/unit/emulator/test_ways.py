"""The ways to play: which one plays a request, that its result is a function of the request, and an
engine that is added.
"""

from dataclasses import replace

import pytest

import simcoll
from simcoll.core.protocol import Protocol
from simcoll.emulator import emulate, ways
from simcoll.emulator.engine_choice import choose_way
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.folding.remembered import runs_of
from simcoll.emulator.programs import Program
from simcoll.emulator.programs import run as programs_run
from simcoll.emulator.programs.program_request import ProgramRequest
from simcoll.emulator.programs.program_ways import PROGRAM_WAYS, ProgramPlayersWay
from simcoll.emulator.request import Request
from simcoll.emulator.run import run_checked
from simcoll.topology import crossbar, load_topology
from tests.support.ring_formula import RingFormula

SWITCH = crossbar(16, "50 GB/s", "1 us")
DGX = load_topology("dgx-h100", nodes=16)

CASES = {
    "few messages": ("all_reduce", "ring", 8, {}, SWITCH),
    "some messages": ("all_reduce", "ring", 16, {}, SWITCH),
    "classes": ("all_reduce", "recursive_doubling", 128, {"channels": 8}, DGX),
    "lock-step": ("all_reduce", "ring", 128, {}, DGX),
    "many messages": ("all_reduce", "ring", 128, {"channels": 8}, DGX),
    "switches": ("all_reduce", "nvls_tree", 128, {"channels": 8, "pieces": 4, "box": 8}, DGX),
    "waits": ("all_reduce", "nccl_tree", 128, {"channels": 8, "pieces": 4, "box": 8}, DGX),
}


def told(result):
    """All that a user can read, without the wall clock."""
    shown = (
        str(result),
        result.engine,
        result.path,
        result.classes,
        result.time_fs,
        result.trace_hash,
        result.messages,
    )
    return (*shown, result.bytes_moved, result.steps, result.no_data)


def plan_of(case, count=1 << 15, **protocol):
    kind, algorithm, nranks, params, topology = CASES[case]
    schedule = simcoll.schedule(kind, algorithm, nranks=nranks, **params)
    chosen = {"protocol": Protocol("capped", **protocol)} if protocol else {}
    return simcoll.bind(schedule, count * schedule.layout.chunks, **chosen), topology


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto"] + ["fast"] * COMPILED)
@pytest.mark.parametrize("case", CASES)
def test_a_plan_that_is_emulated_four_times_has_four_equal_results(case, engine):
    plan, topology = plan_of(case)
    how = {"data": "none", "bound": False, "engine": engine}
    results = [told(emulate(plan, topology, **how)) for _ in range(4)]
    assert len(set(results)) == 1


@pytest.mark.slow
@pytest.mark.skipif(not COMPILED, reason="needs numba")
@pytest.mark.parametrize("case", CASES)
def test_what_ran_before_does_not_show(case):
    plan, topology = plan_of(case)
    how = {"data": "none", "bound": False}
    alone = told(emulate(plan, topology, **how))
    used, _ = plan_of(case)
    capped, uneven = (
        replace(used, protocol=Protocol("capped", channel_rate_uBps=10**15)),
        replace(used, sizes=1001),
    )
    for other in (capped, uneven, used, capped, uneven, used):
        emulate(other, topology, **how, engine="fast")
        run_checked(Request(other, topology, engine="fast", protocols=3), **how)
        emulate(other, topology, **how, quotient=True)
        assert told(emulate(used, topology, **how)) == alone
    assert runs_of(used.schedule).by_key


@pytest.mark.skipif(not COMPILED, reason="needs numba")
def test_a_table_says_the_same_whatever_came_before():
    plan, topology = plan_of("classes")
    request = Request(plan, topology, engine="fast", protocols=3)
    first = told(run_checked(request, data="none", bound=False))
    assert first[2:4] == ("quotient: 8 classes stand for 8192 messages", 8)
    for _ in range(3):
        emulate(plan, topology, data="none", bound=False, engine="fast")
        assert told(run_checked(request, data="none", bound=False)) == first


def test_the_last_way_refuses_nothing():
    plan, topology = plan_of("few messages")
    assert ways.WAYS[-1].refuses(Request(plan, topology, engine="fast", quotient=True)) is None


def test_an_engine_is_added_by_a_line(monkeypatch):
    monkeypatch.setattr(ways, "WAYS", (RingFormula(), *ways.WAYS))
    plan, topology = plan_of("some messages")
    result, expected = (
        emulate(plan, topology, data="none", bound=False, engine=engine)
        for engine in ("formula", "simpy")
    )
    assert (result.engine, result.path) == ("formula", "asked for")
    assert (result.time_fs, result.trace_hash, result.messages, result.bytes_moved) == (
        expected.time_fs,
        expected.trace_hash,
        expected.messages,
        expected.bytes_moved,
    )


def test_an_added_engine_ends_where_the_clock_ends(monkeypatch):
    monkeypatch.setattr(ways, "WAYS", (RingFormula(), *ways.WAYS))
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=2), 1 << 20)
    with pytest.raises(simcoll.ConfigError, match="the clock ends at"):
        emulate(plan, crossbar(2, "1 B/s"), data="none", engine="formula")


def test_why_an_added_engine_does_not_play_is_told(monkeypatch):
    monkeypatch.setattr(ways, "WAYS", (RingFormula(), *ways.WAYS))
    tree = simcoll.bind(simcoll.schedule("all_reduce", "tree", nranks=8), 64)
    result = emulate(tree, crossbar(8, "50 GB/s"), engine="formula")
    assert (result.engine, result.wrong) == ("fast", 0)
    assert (
        result.path
        == "formula: no ring all_reduce of one channel, but tree(channels=1, pieces=1); only 22 "
        "messages; step by step, in numpy"
    )
    with pytest.raises(
        simcoll.ConfigError, match="engine 'formule' is not known; did you mean 'formula'"
    ):
        emulate(tree, crossbar(8, "50 GB/s"), engine="formule")


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"quotient": True}, {"engine": "fast"}, {"engine": "simpy"}])
def test_a_program_is_played_by_the_same_loop(how):
    if how.get("engine") == "fast" and not COMPILED:
        pytest.skip("needs numba")
    plan, topology = plan_of("some messages")
    paths = {emulate([plan, plan], topology, data="none", **how).path for _ in range(3)}
    (path,) = paths
    request = ProgramRequest(Program.of([plan, plan]), topology, **how)
    way, refusals = choose_way(PROGRAM_WAYS, request, request.engine)
    assert path == (way.play(request).path or refusals)


def test_an_added_way_plays_programs(monkeypatch):
    class Instant:
        name = "instant"

        def refuses(self, request):
            return None if request.engine == "instant" else "instant: not asked for"

        def play(self, request):
            return replace(ProgramPlayersWay().play(request), engine=self.name, time_fs=0)

    monkeypatch.setattr(programs_run, "PROGRAM_WAYS", (Instant(), *PROGRAM_WAYS))
    plan, topology = plan_of("few messages")
    first, second = (
        emulate([plan], topology, data="none", engine=engine) for engine in ("instant", "auto")
    )
    assert (first.engine, first.time_fs, first.path) == ("instant", 0, "asked for")
    assert second.time_fs > 0
    assert second.path.startswith("instant: not asked for; ")
