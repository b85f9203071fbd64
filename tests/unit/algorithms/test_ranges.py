"""Ranges in one message: proofs, data, numbers of messages and times."""

import dataclasses

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS, single_messages
from simcoll.algorithms.ranges import MOST_SLOTS
from simcoll.core.collective import Collective
from simcoll.core.protocol import protocol
from simcoll.core.schedule import Layout, Repeat, Schedule, transfers
from simcoll.errors import ConfigError
from simcoll.proving import check_lowering
from simcoll.testing.examples import needed_params
from simcoll.topology import crossbar


def _messages(schedule):
    """Ends and channel of every message, step by step."""
    return [
        sorted(
            zip(
                *(column[away].tolist() for column in (step.src_rank, step.dst_rank, step.channel)),
                strict=True,
            )
        )
        for step in schedule.steps()
        if (away := step.src_rank != step.dst_rank).any()
    ]


def _scattered(chunks=8, **how):
    """A broadcast of every second chunk to either of two ranks, which then exchange them."""
    layout = Layout(Collective("broadcast", 3), chunks=chunks)
    even, odd = np.arange(0, chunks, 2), np.arange(1, chunks, 2)

    def steps():
        yield transfers(0, 0, 0, chunks, count=chunks)
        halves = ((1, even), (2, odd))
        yield tuple(transfers(0, part, to, chunks + part, **how) for to, part in halves)
        yield tuple(
            transfers(by, chunks + part, 3 - by, chunks + part, **how) for by, part in halves
        )

    return Schedule("scattered", layout, steps)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.collective}-{a.name}")
def test_shipped_algorithms_stay_right(algorithm):
    for n, in_place in ((4, False), (6, True), (8, False)):
        try:
            params = needed_params(algorithm.collective, algorithm.name, n)
            schedule = simcoll.schedule(
                algorithm.collective, algorithm.name, nranks=n, in_place=in_place, **params
            )
        except ConfigError:
            continue
        single = single_messages(schedule)
        if single is schedule:
            continue
        assert simcoll.verify(single).order == simcoll.verify(schedule).order
        for before, now in zip(_messages(schedule), _messages(single), strict=True):
            assert set(now) <= set(before)
            assert len(now) < len(before) or sorted(now) == sorted(before)
        plan = simcoll.bind(single, 101 if not single.divisible else 4 * single.layout.chunks)
        assert simcoll.emulate(plan, crossbar(n, "50 GB/s", "1 us")).wrong == 0
        check_lowering(plan)


@pytest.mark.parametrize("count", [1, 7, 8, 1001])
def test_each_pair_has_one_message_a_step(count):
    single = single_messages(_scattered())
    assert _messages(single) == [[(0, 1, 0), (0, 2, 0)], [(1, 2, 0), (2, 1, 0)]]
    plan = simcoll.bind(single, count)
    for engine in ("simpy", "fast"):
        result = simcoll.emulate(plan, crossbar(3, "50 GB/s", "1 us"), engine=engine)
        assert result.wrong == 0


def test_time_is_that_of_one_message():
    costs = dataclasses.replace(protocol("ideal"), header_bytes=1000)
    machine = crossbar(3, "50 GB/s", "1 us")
    times = [
        simcoll.emulate(simcoll.bind(schedule, 800, "uint8", protocol=costs), machine).time_fs
        for schedule in (_scattered(), single_messages(_scattered()))
    ]
    # The root sends 8 headers or 2, then every other rank 4 or 1; a byte takes 20,000 fs.
    assert times[0] - times[1] == (6 + 3) * 1000 * 20_000
    slow = dataclasses.replace(costs, copy_as_per_byte=10**7)
    copied = simcoll.emulate(
        simcoll.bind(single_messages(_scattered()), 800, "uint8", protocol=slow), machine
    )
    assert copied.time_fs > times[1]  # packing takes the time of its copies


def test_a_message_has_one_path_and_one_format():
    single = single_messages(_scattered(via="net", wire="int8/4"))
    for step in single.steps():
        away = step.src_rank != step.dst_rank
        texts = [""] * len(step) if step.transits is None else step.transits.texts()
        assert set(np.array(texts)[away]) <= {"via net, as int8/4"}
        assert set(np.array(texts)[~away]) <= {""}
    simcoll.verify(single)

    def steps():  # two ways between two ranks stay two messages
        yield transfers(0, 0, 0, 4, count=4)
        near, far = transfers(0, [0, 2], 1, [4, 6]), transfers(0, [1, 3], 1, [5, 7], via="net")
        yield near, far

    layout = Layout(Collective("broadcast", 2), chunks=4)
    assert _messages(single_messages(Schedule("two", layout, steps))) == [[(0, 1, 0), (0, 1, 0)]]


def test_what_is_one_range_already_stays():
    ring = simcoll.schedule("all_reduce", "ring", nranks=5)
    assert single_messages(ring) is ring
    barrier = simcoll.schedule("barrier", "dissemination", nranks=4)
    assert single_messages(barrier) is barrier
    with pytest.raises(ConfigError, match="single_messages takes a schedule"):
        single_messages("ring")


def test_equal_steps_share_their_scratch():
    layout = Layout(Collective("broadcast", 2), chunks=4)
    step = transfers(0, [0, 2], 1, [4, 6])

    def steps(turns):
        yield transfers(0, 0, 0, 4, count=4)
        yield transfers(0, [1, 3], 1, [5, 7])
        yield Repeat((step,), turns, 0, 0, 4)

    few, many = (
        single_messages(Schedule("again", layout, lambda turns=turns: steps(turns))).layout.size
        for turns in (1, 50)
    )
    assert few == many


def test_too_much_scratch_is_refused(monkeypatch):
    assert MOST_SLOTS >= 1 << 20
    monkeypatch.setattr("simcoll.algorithms.ranges.MOST_SLOTS", 5)
    with pytest.raises(ConfigError, match="at most 5 are supported"):
        single_messages(_scattered())
