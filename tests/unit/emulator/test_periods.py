"""Runs without their periods take the same time as whole ones."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import simcoll
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.folding import periods
from simcoll.emulator.folding.periods import PeriodicSteps, Stretch, stretches_of
from simcoll.emulator.folding.remembered import runs_of
from simcoll.emulator.request import Request
from simcoll.emulator.run import run_checked
from simcoll.emulator.steps.run_links import all_links
from simcoll.emulator.steps.step_columns import Moves
from simcoll.emulator.steps.timed import StepTimer
from simcoll.errors import ConfigError
from simcoll.topology import Topology, load_topology
from tests.support.agreement_cases import TableRouter, random_protocol, table_topology

pytestmark = pytest.mark.skipif(not COMPILED, reason="needs numba")

LATE_LOOK = 40


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch):
    """Short stretches are compared, and not loaded whole before their first steps have ended."""
    monkeypatch.setattr("simcoll.emulator.fast.driver.AHEAD_ROWS", 1)
    monkeypatch.setattr("simcoll.emulator.fast.driver.LEAST_STEPS_AHEAD", 1)
    monkeypatch.setattr(periods, "LEAST_STEPS", 16)
    monkeypatch.setattr(periods, "FIRST_LOOK", 6)


def random_step(rng, nranks, channels, *, whole):
    """Transfers of a step; with ``whole``, every lane sends."""
    if whole:
        src, channel = (each.reshape(-1) for each in np.mgrid[:nranks, :channels])
        dst = rng.permutation(nranks)[src]
    else:
        src, dst = rng.integers(0, nranks, (2, int(rng.integers(1, 2 * nranks))))
        channel = rng.integers(0, channels, len(src))
    size = rng.choice([1, 1000, 4096, 10**6], len(src))
    one = np.ones(len(src), np.int64)
    return Moves(src, dst, channel, size, np.zeros(len(src), np.int8), one, None)


def random_run(seed):
    """Steps that recur on a random machine, where flows share links and hops differ: the steps as
    a quotient has them, and what else the loops take.
    """
    rng = np.random.default_rng(seed)
    nranks, channels = int(rng.integers(2, 8)), int(rng.integers(1, 3))
    _, topology = table_topology(rng, nranks, int(rng.integers(1, 12)), 3)
    schedule = simcoll.schedule("all_reduce", "ring", nranks=nranks, channels=channels)
    protocol = replace(random_protocol(rng, jitter=False), fifo_depth=0)
    plan = simcoll.bind(schedule, 64 * nranks, protocol=protocol)
    capacity, placement, _ = all_links(plan, topology)
    moves, which = [], []
    for period in rng.choice([1, 1, 2, 4, 9], int(rng.integers(1, 4))).tolist():
        which += [len(moves) + number % period for number in range(int(rng.integers(20, 300)))]
        whole = period > 1 or rng.random() < 0.5
        moves += [random_step(rng, nranks, channels, whole=whole) for _ in range(period)]
    steps = tuple(StepTimer(protocol, topology, placement)(moves, 0))
    lane_steps = np.zeros(nranks * channels, np.int64)
    for number in which:
        shape = steps[number].shape
        lane_steps[np.unique([*shape.sender, *shape.receiver])] += 1
    run = SimpleNamespace(steps=steps, which=np.array(which))
    return run, capacity, lane_steps, protocol.launch_fs


def outcome(run, capacity, lane_steps, launch_fs, periodic=None):
    """Time and number of messages; an error's first words."""
    from simcoll.emulator.fast.driver import StepMachine

    stream = (((run.steps[number],), 1) for number in run.which)
    machine = StepMachine(
        capacity,
        lane_steps,
        periodic.stream() if periodic else stream,
        launch_fs=launch_fs,
        hashed=False,
        on_step=periodic,
    )
    if periodic:
        periodic.lane_left = machine.state.lane_left
    try:
        machine.play(str)
    except ConfigError as error:
        return str(error)[:20]
    left_out = (periodic.left_out_fs, periodic.left_out) if periodic else (0, 0)
    return machine.time_fs + left_out[0], machine.messages + left_out[1]


def compare(seeds):
    """Compare runs with and without their periods; the number of those that left some out."""
    shorter = 0
    for seed in seeds:
        case = random_run(seed)
        periodic = PeriodicSteps(case[0])
        assert outcome(*case, periodic) == outcome(*case), seed
        shorter += periodic.left_out > 0
    return shorter


@pytest.mark.slow
def test_random_machines_take_the_same_time_without_periods():
    assert compare(range(60)) > 8


def pairs_beside_a_chain(steps):
    """A run in which a step comes the same time later as the one before, but will not go on so.

    Rank 0 sends to rank 1, and 2 to 3 beside it on a link of 30 GB/s. The second pair also shares
    one of 15 with the first edge of a chain of ranks. While that edge sends all the time, at 5, the
    second pair gets 10 and the first one 20, 60 us a step. The edges of the chain need 48 us, but
    the last one 60, and each waits for the next: in each step one more takes 60. Then the first
    edge rests in between, the second pair gets 15, and takes 60 us a step, and the first one gets
    less. As it began 15 steps before the others, it has then done more steps than the chain has
    edges, and all others take 60 us for these later.
    """
    edges = 34
    nranks = 5 + edges
    src = np.array([0, 2, *range(4, 4 + edges)])
    dst = src + 1
    of_pairs, of_second = edges, edges + 1  # links, after those of the edges
    table = np.full((nranks, nranks, 2), -1, np.int32)
    table[src[2:], dst[2:], 0] = np.arange(edges)
    table[0, 1, 0] = of_pairs
    table[2, 3] = of_pairs, of_second
    table[4, 5, 1] = of_second
    speed = np.array([*[5] * (edges - 1), 10, 30, 15])  # GB/s
    link = np.arange(len(speed))
    topology = Topology(
        name="chain",
        node_names=tuple(f"r{rank}" for rank in range(nranks)),
        node_kinds=("gpu",) * nranks,
        rank_nodes=np.arange(nranks),
        link_src=link,
        link_dst=link + 1,
        link_capacity_uBps=speed * 10**15,
        link_latency_fs=0 * link,
        link_kind=np.zeros(len(link), np.int8),
        router=TableRouter(table),
        rank_endpoints=np.arange(nranks),
    )

    def moves(begin, size):
        zero, one = np.zeros(len(size), np.int64), np.ones(len(size), np.int64)
        return Moves(src[begin:], dst[begin:], zero, size, zero.astype(np.int8), one, None)

    late = 15 * np.array([600_000, *[300_000] * (edges - 1), 600_000])
    again = np.array([1_200_000, 660_000, *[240_000] * (edges - 1), 600_000])
    schedule = simcoll.schedule("all_reduce", "ring", nranks=nranks)
    plan = simcoll.bind(schedule, 64 * nranks)
    capacity, placement, _ = all_links(plan, topology)
    timer = StepTimer(plan.protocol, topology, placement)
    timed = tuple(timer([moves(1, late), moves(0, again)], 0))
    lane_steps = np.full(nranks, steps + 1)
    lane_steps[:2] = steps
    run = SimpleNamespace(steps=timed, which=np.array([0, *[1] * steps]))
    return run, capacity, lane_steps, plan.protocol.launch_fs


class OneStepCompared(PeriodicSteps):
    """Compares the last step alone, and not all since which messages are alive."""

    def _period(self, stretch):
        recent, period = list(self.recent), stretch.period
        if len(recent) <= period:
            return None
        later_fs = int(recent[-1].times[2, 0] - recent[-1 - period].times[2, 0])
        same = periods._is_later(recent[-1], recent[-1 - period], later_fs)
        return later_fs if same else None


@pytest.mark.slow
def test_a_step_that_recurs_is_no_period():
    case = pairs_beside_a_chain(800)
    every, hasty = outcome(*case), OneStepCompared(case[0])
    assert outcome(*case, PeriodicSteps(case[0])) == every
    took, messages = outcome(*case, hasty)
    assert (hasty.left_out > 0, messages, took < every[0]) == (True, every[1], True)


@pytest.mark.slow
def test_a_late_look_and_few_kept_times_change_nothing(monkeypatch):
    monkeypatch.setattr(periods, "FIRST_LOOK", LATE_LOOK)
    monkeypatch.setattr(periods, "KEPT_TIMES", 64)
    compare(range(60, 90))


@pytest.mark.slow
def test_rings_of_a_table_take_the_same_time_as_with_every_message(monkeypatch):
    for place in ("folding.remembered", "quotient_way"):
        monkeypatch.setattr(f"simcoll.emulator.{place}.MOST_SLOTS", 0)
        monkeypatch.setattr(f"simcoll.emulator.{place}.MOST_HASHED", 0)
    leaps, leap = [], PeriodicSteps._leap

    def watched(self, *place):
        leaps.append(place)
        return leap(self, *place)

    monkeypatch.setattr(PeriodicSteps, "_leap", watched)
    topology = load_topology("dgx-h100", nodes=8)
    for algorithm in ("ring", "bidirectional_ring"):
        schedule = simcoll.schedule("all_reduce", algorithm, nranks=64, channels=8, box=8)
        runs_of(schedule).by_key.clear()
        chunks = schedule.layout.chunks
        for count in (64 * chunks, chunks // 2):
            for protocol in ("LL", "LL128", "Simple"):
                plan = simcoll.bind(schedule, count, protocol=protocol)
                request = Request(plan, topology, engine="fast", protocols=3)
                every = simcoll.emulate(
                    plan, topology, engine="fast", quotient=False, data="none", bound=False
                )
                result = run_checked(request, data="none", bound=False)
                assert (result.time_fs, result.messages) == (every.time_fs, every.messages)
    assert len(leaps) > 10


@pytest.mark.slow
def test_steps_of_a_ring_of_racks_recur_after_nine(monkeypatch):
    """A power of two of elements in 72 x 8 chunks of two sizes."""
    for place in ("folding.remembered", "quotient_way"):
        monkeypatch.setattr(f"simcoll.emulator.{place}.MOST_SLOTS", 0)
        monkeypatch.setattr(f"simcoll.emulator.{place}.MOST_HASHED", 0)
    leaps, leap = [], PeriodicSteps._leap

    def watched(self, place, stretch, period_fs):
        leaps.append(stretch.period)
        return leap(self, place, stretch, period_fs)

    monkeypatch.setattr(PeriodicSteps, "_leap", watched)
    topology = load_topology("dgx-h100", nodes=9)
    schedule = simcoll.schedule("all_reduce", "ring", nranks=72, channels=8, box=8)
    plan = simcoll.bind(schedule, 1 << 14, protocol="LL")
    request = Request(plan, topology, engine="fast", protocols=3)
    every = simcoll.emulate(plan, topology, engine="fast", quotient=False, data="none", bound=False)
    result = run_checked(request, data="none", bound=False)
    assert (result.time_fs, result.messages) == (every.time_fs, every.messages)
    assert leaps == [9, 9]


def test_stretches_recur_and_share_lanes():
    def step(sender, receiver):
        shape = SimpleNamespace(sender=np.array(sender), receiver=np.array(receiver), leader=None)
        return SimpleNamespace(shape=shape, uses_connections=False)

    steps = step([0, 1], [1, 0]), step([0], [1]), step([2], [3]), step([3], [2])
    ring = np.array([2, *[0] * 20, *[1] * 30])
    assert stretches_of(ring, steps) == [Stretch(1, 21, 1), Stretch(21, 51, 1)]
    turning = np.array([0, *[0, 1] * 15])
    assert stretches_of(turning, steps) == [Stretch(1, 31, 2)]
    assert stretches_of(np.array([2, 3] * 15), steps) == [Stretch(0, 30, 2)]
    assert not stretches_of(np.array([1, 2] * 15), steps)  # other lanes
    nine = [2, 3, 2, 2, 3, 3, 2, 2, 2]
    assert stretches_of(np.array([0, *nine * 4]), steps) == [Stretch(1, 37, 9)]
    assert not stretches_of(np.array([0, 1, 2, 3]), steps)
