"""Runs in which no message waits for another: the integers of the reference engine, without a
calendar.
"""

import numpy as np
import pytest

import simcoll
from simcoll.core.protocol import Protocol, nccl
from simcoll.emulator import emulate
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.fast_way import play_concurrently, play_every
from simcoll.emulator.request import Request
from simcoll.errors import ConfigError
from simcoll.topology import boxes, clos, crossbar, fat_tree, load_topology, torus

pytestmark = pytest.mark.skipif(not COMPILED, reason="needs numba")

TWO_LINKS = "crossbar", "DGX H100"
"""Machines on which no flow crosses more than two links that may bind."""

MACHINES = {
    "crossbar": lambda n: crossbar(n, "50 GB/s", "1 us"),
    "fat tree 3:1": lambda n: fat_tree(2, n // 2, "12.5 GB/s", "2 us", oversubscription=3),
    "ECMP": lambda n: clos(n // 4, 4, 2, "12.5 GB/s", "2 us", ecmp="hash"),
    "torus": lambda n: torus([n // 4, 4], "7 GB/s", "1 us"),
    "DGX H100": lambda n: load_topology("dgx-h100", nodes=n // 8),
    "boxes with shared NICs": lambda n: boxes(
        2, n // 2, "100 GB/s", nics=4, nic_bandwidth="200 Gbps", pcie_bandwidth="50 GB/s"
    ),
}
RULES = {
    "calm": Protocol("calm"),
    "jitter": Protocol("jitter", jitter_fs=10**9, seed=5),
    "FIFO and jitter": Protocol("FIFO", fifo_depth=2, jitter_fs=10**9, seed=5),
    "LL128": nccl("LL128"),
}


def unequal(n, seed):
    """Bytes between all pairs: few are large, and some are 0."""
    draws = np.random.default_rng(seed)
    return (60_000 * draws.pareto(1.2, (n, n))).astype(np.int64) * (draws.random((n, n)) > 0.1)


def all_pairs(sizes, **rules):
    """An exchange of one step."""
    return simcoll.bind(simcoll.schedule("all_to_all", "direct", nranks=len(sizes)), sizes, **rules)


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_message_is_that_of_the_reference_and_of_the_loops(machine, rules):
    plan = all_pairs(unequal(16, 1), protocol=RULES[rules])
    here = MACHINES[machine](16)
    request = Request(plan, here, keep=True)
    result = play_concurrently(request)
    reference = emulate(plan, here, engine="simpy", data="none", bound=False, keep=True)
    assert result.done_fs.tolist() == reference.done_fs.tolist()
    loops = play_every(request)
    for other in (reference, loops):
        assert (result.trace_hash, result.time_fs) == (other.trace_hash, other.time_fs)


@pytest.mark.slow
def test_fast_engine_plays_them_without_a_calendar(monkeypatch):
    def loops(*_):
        raise AssertionError("the loops with a calendar play it")

    monkeypatch.setattr("simcoll.emulator.fast_way.play_every", loops)
    plan = all_pairs(unequal(24, 2))
    result = emulate(plan, crossbar(24, "50 GB/s", "1 us"), engine="fast", quotient=False)
    assert result.wrong == 0
    assert result.engine == "fast"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_message_waits_for_room_in_the_fifo_of_its_connection(depth):
    layout = simcoll.Layout(simcoll.Collective("broadcast", 2), 2)
    chunks = [layout.input(0, 0), layout.input(0, 1)] * 2
    outputs = [layout.output(0, 0), layout.output(0, 1)] * 2
    step = simcoll.transfers(0, chunks, [0, 0, 1, 1], outputs)
    schedule = simcoll.Schedule("two pieces", layout, lambda: iter([step]))
    plan = simcoll.bind(schedule, count=200_000, protocol=Protocol("FIFO", fifo_depth=depth))
    wire = crossbar(2, "8 GB/s", "1 us")
    # 400 kB each: one after the other with the latency between, or both at half of the rate.
    expected_us = {1: 2 * (50 + 1), 2: 100 + 1}[depth]
    for engine in ("simpy", "fast"):
        result = emulate(plan, wire, engine=engine, data="none", bound=False, quotient=False)
        assert result.time_fs == expected_us * 10**9
    assert (play_concurrently(Request(plan, wire)) is None) == (depth == 1)


def test_shares_are_those_of_a_calculation_by_hand():
    # Three flows leave rank 0 at a third of 3 GB/s each; the one to rank 1 shares it with one of
    # rank 2, which gets the rest. 1 kB at 1 GB/s end after 1 us, and 1 kB more at 1.5 GB/s later.
    sizes = np.zeros((4, 4), np.int64)
    sizes[0, 1], sizes[0, 2], sizes[0, 3], sizes[2, 1] = 1000, 2000, 2500, 2000
    result = play_concurrently(
        Request(all_pairs(sizes, dtype="uint8"), crossbar(4, "3 GB/s", "0 us"), keep=True)
    )
    done_us = sorted({round(time / 1e9, 6) for time in result.done_fs.tolist()})
    # 0 -> 3 has 500 bytes left when 0 -> 2 ends at 1 + 1 / 1.5 us, and the link for itself then.
    assert done_us == [1, round(5 / 3, 6), round(5 / 3 + 0.5 / 3, 6)]


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        ("1e-6 B/s", "5 flows share 1 micro-bytes per second, which leaves nothing for each"),
        ("1e-3 B/s", r"the emulated time reaches .* s; the clock ends at 9223.37 s"),
    ],
)
def test_loops_explain_what_cannot_be_played(capacity, message):
    plan, here = all_pairs(unequal(6, 5) + 1), crossbar(6, capacity, "1 us")
    assert play_concurrently(Request(plan, here)) is None
    for engine in ("fast", "simpy"):
        with pytest.raises(ConfigError, match=message):
            emulate(plan, here, engine=engine, data="none", bound=False, quotient=False)


@pytest.mark.parametrize(
    ("algorithm", "events"), [("pairwise", ()), ("direct", ("t=1us rank 3 slower 1.5",))]
)
def test_other_runs_are_left_to_the_loops(algorithm, events):
    from simcoll.emulator.events import timeline_of

    schedule = simcoll.schedule("all_to_all", algorithm, nranks=8)
    plan, here = simcoll.bind(schedule, 999), crossbar(8, "50 GB/s", "1 us")
    timeline = timeline_of(events, "stall", here, 8) if events else None
    assert play_concurrently(Request(plan, here, timeline=timeline)) is None


def test_where_few_flows_meet_it_is_left_to_the_loops():
    sizes = np.zeros((64, 64), np.int64)
    sizes[np.arange(64), (np.arange(64) * 7 + 1) % 64] = 5000 + np.arange(64)
    sizes[np.arange(64), (np.arange(64) * 5 + 2) % 64] = 9000 - np.arange(64)
    plan, here = all_pairs(sizes), crossbar(64, "50 GB/s", "1 us")
    assert play_concurrently(Request(plan, here)) is None
    assert play_concurrently(Request(all_pairs(unequal(8, 3)), crossbar(8, "1 GB/s", "1 us")))


def test_flows_keep_their_rate_when_another_link_limits_them():
    """The links of rank 0 and of rank 4 have equal shares again and again."""
    plan = all_pairs(np.repeat([[1000], [2000], [4000], [1000], [8000]], 5, axis=1))
    here = crossbar(5, "1 GB/s", "0 us")
    request = Request(plan, here, keep=True)
    reference = emulate(plan, here, engine="simpy", data="none", bound=False, keep=True)
    assert play_concurrently(request).done_fs.tolist() == reference.done_fs.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("machine", MACHINES)
def test_array_operations_have_the_same_times(machine, rules, monkeypatch):
    plan = all_pairs(unequal(16, 4), protocol=RULES[rules])
    request = Request(plan, MACHINES[machine](16), keep=True)
    expected = play_concurrently(request)
    monkeypatch.setattr("simcoll.emulator.concurrent_run.COMPILED", False)
    result = play_concurrently(request)
    capped = rules == "LL128"  # the rate of a channel is a third link
    assert result is not None or machine not in TWO_LINKS or capped
    if result is not None:
        assert result.done_fs.tolist() == expected.done_fs.tolist()
        assert result.trace_hash == expected.trace_hash


@pytest.mark.parametrize("capacity", ["1e-6 B/s", "1e-3 B/s"])
def test_array_operations_leave_errors_to_the_reference(capacity, monkeypatch):
    monkeypatch.setattr("simcoll.emulator.concurrent_run.COMPILED", False)
    request = Request(all_pairs(unequal(6, 5) + 1), crossbar(6, capacity, "1 us"))
    assert play_concurrently(request) is None


@pytest.mark.slow
def test_without_a_compiler_many_messages_are_played_at_once(monkeypatch):
    plan, here = all_pairs(unequal(20, 6)), crossbar(20, "50 GB/s", "1 us")
    expected = emulate(plan, here, engine="simpy", data="exact", bound=False)
    assert "at once" not in expected.path
    for module in ("concurrent_run", "fast_way", "engine_choice"):
        monkeypatch.setattr(f"simcoll.emulator.{module}.COMPILED", False)
        monkeypatch.setattr(f"simcoll.emulator.{module}.UNCOMPILED", "no compiler", raising=False)
    result = emulate(plan, here, data="exact", bound=False, quotient=False)
    assert (result.engine, result.path) == (
        "fast",
        f"only {result.messages} messages; all messages at once, in numpy",
    )
    assert (result.time_fs, result.trace_hash) == (expected.time_fs, expected.trace_hash)
    assert result.wrong == expected.wrong == 0
