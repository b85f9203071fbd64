"""Runs that happen again give what a run of its own gives: time and trace hash, whatever was played
before.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

import simcoll
from simcoll.core.protocol import Protocol
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.folding.remembered import forget_sizes, runs_of
from simcoll.emulator.folding.unpriced import Folding
from simcoll.emulator.request import Request
from simcoll.emulator.run import run_checked
from simcoll.errors import ConfigError
from simcoll.topology import crossbar, load_topology

pytestmark = pytest.mark.skipif(not COMPILED, reason="needs numba")

CASES = [
    ("all_reduce", "ring", {"channels": 2}),
    ("all_reduce", "two_shot", {}),
    ("all_reduce", "double_tree", {"channels": 2, "pieces": 2}),
    (
        "all_reduce",
        "nccl_tree",
        {"channels": 2, "pieces": 2, "box": 8},
    ),  # channels wait for each other
    ("all_reduce", "nvls_tree", {"channels": 2, "pieces": 2, "box": 8}),  # switches reduce
    ("all_gather", "bruck", {}),
    ("broadcast", "tree", {"pieces": 3}),
    ("all_to_all", "pairwise", {}),
]
PROTOCOLS = ("LL", "LL128", "Simple", "ideal")


def kept(schedule):
    return [run for entry in runs_of(schedule).by_key.values() for run in entry.loaded.values()]


def in_table(plan, machine, protocols):
    """A run as a table makes it, of as many protocols."""
    return run_checked(Request(plan, machine, engine="fast", protocols=protocols), data="none")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "algorithm", "params"), CASES)
def test_every_size_and_protocol_as_on_their_own(kind, algorithm, params):
    machine = load_topology("dgx-h100", nodes=2)
    made, plain = (simcoll.schedule(kind, algorithm, nranks=16, **params) for _ in range(2))
    chunks = made.layout.chunks
    for count in (4 * chunks, 3, 4096 * chunks, 5 * chunks + 1, chunks):
        for protocol in PROTOCOLS:
            first, second = (
                simcoll.bind(each, count, "float16", protocol=protocol) for each in (made, plain)
            )
            found = in_table(first, machine, len(PROTOCOLS))
            alone = simcoll.emulate(second, machine, data="none", engine="fast", quotient=False)
            assert (found.time_fs, found.trace_hash, found.messages) == (
                alone.time_fs,
                alone.trace_hash,
                alone.messages,
            )
        assert kept(made)


@pytest.mark.slow
def test_folded_runs_share_classes_between_protocols_with_caps_and_without():
    machine = load_topology("dgx-h100", nodes=16)
    made, plain = (
        simcoll.schedule("all_reduce", "recursive_doubling", nranks=128, channels=8)
        for _ in range(2)
    )
    runs_of(made).by_key.clear()  # equal schedules share them, and other tests have some
    for count in (1 << 14, 1 << 20):
        for protocol in PROTOCOLS[:3]:
            first, second = (simcoll.bind(each, count, protocol=protocol) for each in (made, plain))
            found = in_table(first, machine, 3)
            alone = simcoll.emulate(second, machine, data="none", engine="fast", quotient=False)
            assert (found.time_fs, found.trace_hash) == (alone.time_fs, alone.trace_hash)
            assert found.path.startswith("quotient: 8 classes stand for 8192 messages")
    assert sum(isinstance(entry.folding, Folding) for entry in runs_of(made).by_key.values()) == 1
    assert len(kept(made)) == 2


def test_what_holds_for_one_size_is_forgotten():
    machine = crossbar(16, "50 GB/s", "1 us")
    made = simcoll.schedule("all_reduce", "ring", nranks=16)
    runs_of(made).by_key.clear()
    for count in (16, 17, 18):
        in_table(simcoll.bind(made, count), machine, 3)
    assert len(kept(made)) == 2
    forget_sizes(made)
    assert len(kept(made)) == 1


def test_a_run_beyond_the_clock_leaves_nothing_behind():
    machine = crossbar(4, "1 MB/s", "1 us")
    made = simcoll.schedule("all_reduce", "ring", nranks=4)
    small = in_table(simcoll.bind(made, 1 << 10), machine, 3)
    with pytest.raises(ConfigError, match="clock"):
        in_table(simcoll.bind(made, 1 << 36), machine, 3)
    again = in_table(simcoll.bind(made, 1 << 10), machine, 3)
    assert (again.time_fs, again.trace_hash) == (small.time_fs, small.trace_hash)


@pytest.mark.slow
def test_threads_that_play_one_schedule_at_once_do_not_meet():
    machine = load_topology("dgx-h100", nodes=4)
    made, plain = (simcoll.schedule("all_to_all", "pairwise", nranks=32) for _ in range(2))

    def times(schedule):
        plans = [
            simcoll.bind(schedule, count, protocol=name)
            for count in (32, 4096) * 4
            for name in PROTOCOLS
        ]
        return [in_table(plan, machine, len(PROTOCOLS)).trace_hash for plan in plans]

    expected = times(plain)
    runs_of(made).by_key.clear()  # that the threads make them
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(times, [made] * 4)) == [expected] * 4


@pytest.mark.slow
def test_many_steps_of_few_messages_are_loaded(monkeypatch):
    schedule = simcoll.schedule("all_reduce", "ring", nranks=16, channels=2)
    topology = load_topology("dgx-h100", nodes=2)
    plan = simcoll.bind(schedule, 8)
    request = Request(plan, topology, engine="fast", protocols=3)
    monkeypatch.setattr("simcoll.emulator.folding.loaded_run.MOST_SLOTS", 0)
    loaded = run_checked(request, data="none")
    assert [run.whole.row.size for run in kept(schedule)] == [loaded.messages]
    alone = simcoll.emulate(plan, topology, engine="simpy", data="none", bound=False)
    assert (loaded.time_fs, loaded.trace_hash) == (alone.time_fs, alone.trace_hash)


@pytest.mark.slow
def test_classes_too_many_to_be_loaded_are_found_once_for_all_caps(monkeypatch):
    for place in ("folding.remembered", "quotient_way"):
        monkeypatch.setattr(f"simcoll.emulator.{place}.MOST_SLOTS", 0)
        monkeypatch.setattr(f"simcoll.emulator.{place}.MOST_HASHED", 0)
    schedule = simcoll.schedule("all_reduce", "ring", nranks=64, channels=8, box=8)
    topology = load_topology("dgx-h100", nodes=8)
    runs_of(schedule).by_key.clear()
    chunks = schedule.layout.chunks
    for count in (4096 * chunks, chunks // 4 * 3):
        for protocol in ("LL", "LL128", "Simple", "ideal"):
            plan = simcoll.bind(schedule, count, protocol=protocol)
            request = Request(plan, topology, engine="fast", protocols=4)
            classes = run_checked(request, data="none", bound=False)
            every = simcoll.emulate(
                plan, topology, engine="fast", quotient=False, data="none", bound=False
            )
            assert classes.time_fs == every.time_fs
            assert classes.classes
        folded = [key for key, run in runs_of(schedule).by_key.items() if run.folding]
        assert all(key.caps[0] for key in folded)
        assert len(folded) == len({(key.sizes, key.shares) for key in folded})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "params"), [("ring", {"channels": 4}), ("recursive_doubling", {"channels": 8})]
)
def test_caps_of_ranks_count_after_runs_with_caps_of_channels(algorithm, params):
    """Classes of a run with both caps serve a run with one; only those it lacks are left out."""
    machine = load_topology("dgx-h100", nodes=8)
    schedule = simcoll.schedule("all_reduce", algorithm, nranks=64, **params)
    protocols = (
        Protocol("channels", channel_rate_uBps=10**16),
        Protocol("ranks", rank_rate_uBps=2 * 10**16),
        Protocol("both", channel_rate_uBps=10**16, rank_rate_uBps=2 * 10**16),
        Protocol("none"),
    )
    for protocol in (*protocols, *protocols[::-1], *protocols):
        plan = simcoll.bind(schedule, 2**14 * schedule.layout.chunks, protocol=protocol)
        repeated = simcoll.emulate(plan, machine, data="none")
        alone = simcoll.emulate(plan, machine, data="none", engine="fast", quotient=False)
        assert repeated.time_fs == alone.time_fs, protocol.name
        assert repeated.trace_hash in {alone.trace_hash, ""}
