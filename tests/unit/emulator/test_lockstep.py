"""Runs without a calendar: when they are taken, and that they are those of the loops."""

from dataclasses import replace
from threading import Event, Thread

import pytest

import simcoll
from simcoll.core.collective import Collective
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import Layout, Repeat, Schedule, transfers
from simcoll.emulator import emulate, engine_choice, fast_way, quotient_way
from simcoll.emulator.fast import recurrence
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.fast_way import play_every, plays_in_lockstep
from simcoll.emulator.request import Request
from simcoll.emulator.steps.step_columns import Spinning, spinning
from simcoll.errors import ConfigError
from simcoll.topology import boxes, crossbar, fat_tree

pytestmark = pytest.mark.skipif(not COMPILED, reason="needs numba")

QUIET = {"data": "none", "bound": False, "keep": True, "engine": "fast", "quotient": False}
JITTER = Protocol("jittered", jitter_fs=10**9, seed=5)
FIFO = Protocol(
    "fifo", fifo_depth=2, send_overhead_fs=10**8, receive_overhead_fs=3, reduce_as_per_byte=667
)
RAILS = boxes(3, 4, "400 GB/s", "1 us", nics=4, nic_bandwidth="50 GB/s", nic_latency="3 us")


def ring(nranks, count, protocol=None, **params):
    schedule = simcoll.schedule("all_reduce", "ring", nranks=nranks, **params)
    return simcoll.bind(
        schedule, count, "uint8", "max", **({"protocol": protocol} if protocol else {})
    )


def outcome(result):
    return (
        result.time_fs,
        result.messages,
        result.bytes_moved,
        result.trace_hash,
        result.done_fs.tolist(),
    )


@pytest.mark.parametrize("protocol", [None, JITTER, FIFO], ids=["ideal", "jitter", "fifo"])
@pytest.mark.parametrize("count", [17 * 99, 17 * 99 + 5])
def test_few_steps_are_played_in_arrays_as_in_the_compiled_loop(monkeypatch, count, protocol):
    plan, net = ring(17, count, protocol), crossbar(17, "9 GB/s", "1 us")
    expected = emulate(plan, net, **QUIET)

    def refuse(*_):
        raise AssertionError("the compiled loop was played")

    monkeypatch.setattr(recurrence, "advance", refuse)
    result = emulate(plan, net, **QUIET | {"engine": "auto"})
    assert outcome(result) == outcome(expected)
    assert (result.engine, result.path) == ("fast", "561 messages")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [None, JITTER, FIFO], ids=["ideal", "jitter", "fifo"])
@pytest.mark.parametrize("count", [12 * 99, 12 * 99 + 1, 12 * 99 + 11])
@pytest.mark.parametrize(
    "net",
    [crossbar(12, "9 GB/s", "1 us"), RAILS, RAILS.degrade(0, "1/3")],
    ids=["crossbar", "rails", "slow"],
)
def test_a_ring_is_played_in_lock_step(net, count, protocol):
    plan = ring(12, count, protocol)
    result = emulate(plan, net, **QUIET)
    request = Request(plan, net, keep=True)
    assert plays_in_lockstep(request)
    assert outcome(result) == outcome(play_every(request))
    assert outcome(result) == outcome(emulate(plan, net, **QUIET | {"engine": "simpy"}))


def test_an_uneven_ring_by_hand():
    # Chunks of 1, 1 and 2 bytes at 1 GB/s and 1 us: every rank passes each of them on in turn, the
    # longest sets the pace of its receiver.
    result = emulate(ring(3, 4), crossbar(3, "1 GB/s", "1 us"), **QUIET)
    assert any(isinstance(group, Spinning) for group in spinning(result.plan))
    latency, byte = 10**9, 10**6
    first = [latency + byte, latency + byte, latency + 2 * byte]  # rank r sends chunk r
    assert result.done_fs[-12:-9].tolist() == first


@pytest.mark.parametrize(
    ("plan", "net"),
    [
        (ring(4, 64, channels=2), crossbar(4, "9 GB/s")),  # two lanes on a link
        (
            simcoll.bind(simcoll.schedule("all_reduce", "one_shot", nranks=4), 64),
            crossbar(4, "9 GB/s"),
        ),  # fan-in
        (
            simcoll.bind(simcoll.schedule("all_to_all", "pairwise", nranks=6), 60),
            fat_tree(3, 2, "9 GB/s", oversubscription=2),
        ),
    ],
    ids=["channels", "fan-in", "uplink"],
)
def test_flows_that_may_meet_are_left_to_the_loops(plan, net):
    assert not plays_in_lockstep(Request(plan, net))


def test_runs_with_other_delays_are_not_examined_again(monkeypatch):
    examined, capped = [], 10**15
    look = fast_way._lockstep_of

    def spy(request):
        examined.append(request.plan.protocol.name)
        return look(request)

    monkeypatch.setattr(fast_way, "_lockstep_of", spy)
    net = crossbar(4, "1 GB/s")
    schedule = simcoll.schedule("all_reduce", "ring", nranks=4, channels=2)
    for name, delay_fs, cap in (("a", 1, 0), ("b", 2, 0), ("c", 3, capped), ("d", 4, capped)):
        protocol = Protocol(name, send_overhead_fs=delay_fs, channel_rate_uBps=cap)
        plan = simcoll.bind(schedule, 4096, "uint8", protocol=protocol)
        answer = plays_in_lockstep(Request(plan, net))
        assert answer == (look(Request(plan, net)).run is not None)
    assert examined == ["a", "c"]


def test_a_fifo_lets_senders_run_ahead_into_one_receiver():
    # Rank 0 sends to 2, then rank 1 does: under rendezvous one after the other, with a FIFO at
    # once.
    layout = simcoll.Layout(simcoll.Collective("all_to_all", 3))
    steps = [
        simcoll.transfers(0, layout.input(2), 2, layout.output(0)),
        simcoll.transfers(1, layout.input(2), 2, layout.output(1)),
    ]
    schedule = simcoll.Schedule("two senders", layout, lambda: steps)
    net, together = crossbar(3, "1 GB/s"), []
    for depth in (0, 1):
        plan = simcoll.bind(
            schedule, 9000, "uint8", protocol=Protocol("p", fifo_depth=depth), unproved=True
        )
        together.append(plays_in_lockstep(Request(plan, net)))
    assert together == [True, False]


def test_times_beyond_the_clock_are_refused_as_by_the_loops():
    plan = ring(4, 1 << 40)
    messages = []
    for engine in ("fast", "simpy"):
        with pytest.raises(ConfigError, match="the clock ends at") as caught:
            emulate(plan, crossbar(4, "1 MB/s"), **QUIET | {"engine": engine})
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_slow_refinement_is_given_up_for_lock_step(monkeypatch):
    monkeypatch.setattr(engine_choice, "MANY_MESSAGES", 100)
    monkeypatch.setattr(engine_choice, "LITTLE", 100)
    monkeypatch.setattr(quotient_way, "FEWEST_FOLDED", 100)
    monkeypatch.setattr(quotient_way, "MOST_HASHED", 200)
    monkeypatch.setattr(quotient_way, "PATIENCE", 1000)
    plan, net = ring(12, 12), crossbar(12, "1 GB/s")
    quiet = {"data": "none", "bound": False}
    result = emulate(plan, net, **quiet)
    assert (result.path, result.classes, len(result.trace_hash)) == ("276 messages", None, 32)
    monkeypatch.setattr(quotient_way, "PATIENCE", 1)
    assert emulate(ring(12, 12), net, **quiet).path.startswith("quotient")


@pytest.mark.slow
def test_other_threads_go_on_while_compiled_code_plays(monkeypatch):
    """So a command can say how far it is, once a minute, while one run takes longer."""
    real, over, ticks = recurrence.advance, Event(), []

    def watched(*arguments):
        before = len(ticks)
        real(*arguments)
        inside.append(len(ticks) - before)

    def tick():
        while not over.wait(0.001):
            ticks.append(None)

    inside = []
    monkeypatch.setattr(recurrence, "advance", watched)
    thread = Thread(target=tick)
    thread.start()
    try:
        plan = simcoll.bind(
            simcoll.schedule("all_reduce", "ring", nranks=4096), 4096, unproved=True
        )
        emulate(plan, crossbar(4096, "50 GB/s", "1 us"), **{**QUIET, "keep": False})
    finally:
        over.set()
        thread.join()
    assert max(inside) > 10


@pytest.mark.parametrize(
    ("base", "modulus", "order"),
    [(5, 8, None), (-3, 8, None), (0, 6, [5, 6, 7, 8, 9, 77])],
)
def test_windows_may_leave_the_buffers_where_no_transfer_does(base, modulus, order):
    layout = Layout(Collective("broadcast", 2), 5)
    start = transfers(0, layout.input(), 0, layout.output(), count=5)
    turn = Repeat((transfers(0, layout.output(), 1, layout.output()),), 5, 1, base, modulus, order)
    repeated = Schedule("pieces", layout, lambda: [start, turn])
    single = replace(repeated, source=repeated.steps)
    for count in (10, 1003):  # equal chunks, and others
        plans = [simcoll.bind(schedule, count, "uint8") for schedule in (repeated, single)]
        told, expected = (emulate(plan, crossbar(2, "1 GB/s", "1 us"), **QUIET) for plan in plans)
        assert outcome(told) == outcome(expected)
