"""The fast engine: the same integers as the reference, its choice, its limits, its errors."""

import inspect
import os
import pickle
import pickletools
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import simcoll
from simcoll.core.protocol import IDEAL, Protocol
from simcoll.emulator import emulate
from simcoll.emulator.fast import calendar, changes, driver, filling, loading
from simcoll.emulator.fast import loops as kernel
from simcoll.emulator.fast.compiled import COMPILED, _jit, _tell, announce_compiling
from simcoll.emulator.fast.driver import LARGE_ROWS, _block_rows
from simcoll.emulator.fast.sources import SOURCES
from simcoll.emulator.model import jitter_fs
from simcoll.emulator.steps.plan_placement import placement_of
from simcoll.emulator.steps.step_columns import summary
from simcoll.emulator.steps.timed import timed_steps
from simcoll.errors import ConfigError
from simcoll.topology import Topology, boxes, crossbar, from_networkx, torus
from tests.support.agreement_cases import TableRouter

US = 10**9
compiled = pytest.mark.skipif(not COMPILED, reason="needs numba")


def ring(n, count=1 << 20, **bound_to):
    return simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=n, in_place=True), count=count, **bound_to
    )


def same(plan, topology, **how):
    """Both engines, equal in everything; returns the fast result."""
    one, two = (
        emulate(plan, topology, bound=False, keep=True, engine=name, quotient=False, **how)
        for name in ("simpy", "fast")
    )
    assert two.engine == "fast"
    names = ("time_fs", "messages", "bytes_moved", "trace_hash", "wrong")
    assert [getattr(one, name) for name in names] == [getattr(two, name) for name in names]
    assert np.array_equal(one.done_fs, two.done_fs)
    # Where nobody sees each step, steps that come again do not leave the loops.
    three = emulate(plan, topology, bound=False, engine="fast", quotient=False, **how)
    assert [getattr(one, name) for name in names] == [getattr(three, name) for name in names]
    return two


@pytest.mark.slow
@compiled
def test_ring_all_reduce_has_its_closed_form():
    # 2 (n - 1) steps of latency + chunk / bandwidth: 30 * (1 us + 262144 B / 50 GB/s)
    result = emulate(ring(16), crossbar(16, "50 GB/s", "1 us"), engine="fast")
    assert result.time_fs == 30 * (US + 5_242_880_000)
    assert (result.wrong, result.messages, result.bytes_moved, result.engine) == (
        0,
        480,
        480 * 262144,
        "fast",
    )
    assert result.headroom > 1
    assert result.wall_s > 0


@compiled
def test_a_flow_that_joins_as_another_leaves_keeps_the_level_that_others_know(by_hand):
    # GB/s. Link X (10) has A and B, which also crosses Y (12) beside D: A and B get 5, D 7. At 1 us
    # A ends and C takes its place, held to 3 by Z. What B is left by X grows from 5 to 7, so Y now
    # holds B and D to 6.
    table = np.full((7, 7, 2), -1, np.int32)
    table[0, 1, 0] = 0
    table[0, 2], table[3, 4] = (0, 2), (0, 1)
    table[5, 6, 0] = 1
    topology = Topology(
        name="crossed",
        node_names=tuple(f"r{rank}" for rank in range(7)),
        node_kinds=("gpu",) * 7,
        rank_nodes=np.arange(7),
        link_src=np.arange(3),
        link_dst=np.arange(3) + 1,
        link_capacity_uBps=np.array([10, 12, 3]) * 10**15,
        link_latency_fs=np.zeros(3, np.int64),
        link_kind=np.ones(3, np.int8),
        router=TableRouter(table),
        rank_endpoints=np.arange(7),
    )
    sizes = np.zeros((7, 7), np.int64)
    sizes[0, 0], sizes[0, 1], sizes[3, 0], sizes[5, 0] = 5000, 3000, 11_000, 13_000
    plan = by_hand(7, [[(0, 0, 1), (3, 0, 4), (5, 0, 6)], [(0, 1, 2)]], sizes=sizes.tolist())
    assert same(plan, topology, data="none").done_fs.tolist() == [US, 2 * US, 2 * US, 2 * US]


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("count", [1, 39, 40, 65537])
def test_state_grows_with_wide_steps_and_long_routes(count):
    plan = simcoll.bind(
        simcoll.schedule("all_to_all", "direct", nranks=40), count=count, unproved=True
    )
    same(plan, torus([5, 8], "20 GB/s", "1 us"), data="none")


@compiled
def test_blocks_have_hardly_more_room_than_their_steps_need():
    rows = range(1, 40_000, 7)
    assert all(size <= _block_rows(size) < 2 * size for size in rows)
    assert all(_block_rows(size) <= size + size / 8 for size in rows if size > LARGE_ROWS)
    assert len({_block_rows(size) for size in range(1025, 2049)}) == 8


def test_uneven_chunks_make_every_turn_of_a_repeat_different():
    plan = ring(7, count=1003)
    assert summary(plan).rows == summary(plan).messages
    assert summary(ring(7, count=1001)).rows == 14
    same(
        plan,
        boxes(2, 4, "400 GB/s", "1 us", nics=4, nic_bandwidth="25 GB/s", nic_latency="5 us"),
        data="none",
    )


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("jitter", [0, 10**9])
def test_lanes_far_apart_in_the_schedule(jitter):
    # Many more steps than are loaded at a time, with one slow rank.
    slow = crossbar(5, "50 GB/s", "1 us").degrade(0, "1/50")
    same(ring(5, count=5 * 4, protocol=Protocol("j", jitter_fs=jitter)), slow, data="none")
    schedule = simcoll.schedule("all_reduce", "ring", nranks=5, pieces=200)
    same(
        simcoll.bind(
            schedule,
            count=5000,
            protocol=Protocol("j", jitter_fs=jitter, fifo_depth=3),
            unproved=True,
        ),
        slow,
        data="none",
    )


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("algorithm", ["ring", "double_tree", "recursive_doubling"])
def test_data_is_that_of_the_reference_bit_for_bit(algorithm):
    # float32 sums of thirds depend on the order of reduction.
    inputs = [np.full(37, rank + 1, np.float32) / 3 for rank in range(8)]
    plan = simcoll.bind(simcoll.schedule("all_reduce", algorithm, nranks=8), count=37)
    one, two = (
        emulate(plan, crossbar(8, "9 GB/s"), data=inputs, bound=False, engine=e)
        for e in ("simpy", "fast")
    )
    assert (one.engine, two.engine) == ("simpy", "fast")
    assert [array.tobytes() for array in one.outputs] == [array.tobytes() for array in two.outputs]


@pytest.mark.slow
@compiled
def test_more_than_the_arrays_can_number_is_refused_with_the_way_out(monkeypatch):
    from simcoll.emulator.fast import room

    monkeypatch.setattr(room, "MOST_ENTRIES", 2000)
    # All pairs at once need no loops, and none of their arrays.
    monkeypatch.setattr("simcoll.emulator.fast_way.play_concurrently", lambda *_: None)
    plan = simcoll.bind(
        simcoll.schedule("all_to_all", "direct", nranks=40), count=40, unproved=True
    )
    with pytest.raises(
        ConfigError, match=r"too many for the fast engine; .*engine='simpy' has no such limit"
    ):
        emulate(
            plan,
            crossbar(40, "20 GB/s", "1 us"),
            data="none",
            bound=False,
            engine="fast",
            quotient=False,
        )


@pytest.mark.slow
@compiled
def test_compiling_is_announced_once(capsys):
    import numba

    function, other = numba.njit(lambda number: number + 1), numba.njit(lambda number: number + 2)
    _tell.cache_clear()
    with announce_compiling(function):
        other(1)
    assert capsys.readouterr().err == ""
    with announce_compiling(function):
        function(1)
        function(2)
        function(1.5)  # compiled again, for another type
    told = capsys.readouterr()
    assert (told.out, told.err.splitlines()) == (
        "",
        ["simcoll: compiling the fast engine, which takes some seconds the first time"],
    )


@pytest.mark.parametrize("rows", [1 << 18, 16])
def test_steps_that_come_back_have_their_routes(monkeypatch, rows):
    from simcoll.emulator.steps import timed

    monkeypatch.setattr(timed, "REMEMBERED_ROWS", rows)
    monkeypatch.setattr(timed, "BATCH_ROWS", 1)
    plan = simcoll.bind(
        simcoll.schedule("all_reduce", "rabenseifner", nranks=8), count=8, unproved=True
    )
    shapes = [
        step.shape
        for steps, _ in timed_steps(plan, crossbar(8, "1 GB/s"), placement_of(plan, 0))
        for step in steps
    ]
    assert len(shapes) == 7
    del shapes[0]  # copies inside the ranks
    # The second half takes the same ways backwards; of 16 rows, the last two steps are remembered.
    assert [a is b for a, b in zip(shapes[:3], shapes[:2:-1], strict=True)] == [
        rows > 16,
        True,
        True,
    ]


@pytest.mark.slow
def test_an_engine_that_does_not_exist():
    with pytest.raises(ConfigError, match="engine 'quick' is not known; valid: auto, fast, simpy"):
        emulate(ring(4), crossbar(4, "1 GB/s"), engine="quick")
    with pytest.raises(ConfigError, match="engine None is not known; valid: auto, fast, simpy"):
        emulate(ring(4), crossbar(4, "1 GB/s"), engine=None)


@pytest.mark.slow
def test_little_work_is_done_without_the_compiled_loops():
    how = "only 24 messages; step by step, in numpy"
    result = emulate(ring(4), crossbar(4, "1 GB/s"))
    assert (result.engine, result.path, result.classes) == ("fast", how, None)
    met = simcoll.bind(simcoll.schedule("all_gather", "direct", nranks=4), 4)
    result = emulate(met, crossbar(4, "1 GB/s"))
    assert (result.engine, result.path) == ("simpy", f"only {result.messages} messages")
    assert emulate(ring(4), crossbar(4, "1 GB/s"), engine="simpy").path == "asked for"


@pytest.mark.slow
def test_numba_is_not_loaded_for_little_work():
    program = """
import sys, simcoll
from simcoll.topology import crossbar
plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=4)
simcoll.emulate(plan, crossbar(4, "1 GB/s"))
print("numba" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout) == ("", "False\n")


@pytest.mark.slow
@compiled
def test_numba_is_loaded_for_many_runs_of_a_schedule_and_changes_none():
    program = """
import sys, simcoll
from simcoll.topology import crossbar
schedule = simcoll.schedule("all_reduce", "recursive_doubling", nranks=64)
machine = crossbar(64, "1 GB/s")
for size in (64, 128, 128, 64, 64, 64, 64, 64, 64, 128):
    plan = simcoll.bind(schedule, count=size)
    result = simcoll.emulate(plan, machine, data="none", bound=False)
    print("numba" in sys.modules, size, result.time_fs, result.trace_hash, result.path)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    runs = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert [loaded for loaded, _ in runs] == 8 * ["False"] + 2 * ["True"]
    assert len({outcome for _, outcome in runs}) == 2


@pytest.mark.slow
@compiled
def test_much_work_is_given_to_the_fast_engine():
    plan = ring(120, protocol=Protocol("jittered", jitter_fs=1000))
    result = emulate(plan, crossbar(120, "1 GB/s"), data="none", bound=False)
    assert (result.engine, result.path) == ("fast", "28560 messages")
    split = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=120, channels=2), 120 * 64)
    jittered = replace(split, protocol=Protocol("jittered", jitter_fs=1000))
    result = emulate(jittered, crossbar(120, "1 GB/s"), data="none", bound=False)
    assert (result.engine, result.path) == ("fast", f"{result.messages} messages")


@pytest.mark.slow
@compiled
def test_little_work_is_done_in_one_way_whatever_is_loaded():
    emulate(ring(4), crossbar(4, "1 GB/s"), engine="fast")
    paths = [
        (result.engine, result.path)
        for result in (emulate(ring(n), crossbar(n, "1 GB/s")) for n in (11, 12))
    ]
    assert paths == [
        ("fast", "only 220 messages; step by step, in numpy"),
        ("fast", "264 messages"),
    ]


@pytest.mark.slow
@compiled
def test_what_the_fast_engine_does_not_know_goes_to_the_reference_with_the_reason():
    net, told = crossbar(4, "1 GB/s"), []
    watched = emulate(ring(4), net, engine="fast", observer=lambda *row: told.append(row))
    assert (watched.engine, watched.path, len(told)) == (
        "simpy",
        "an observer follows every transfer",
        24,
    )
    deep = emulate(ring(4, protocol=Protocol("deep", fifo_depth=65)), net, engine="fast")
    assert (deep.engine, deep.path) == ("simpy", "fifo_depth 65 is more than 64")


@compiled
@pytest.mark.parametrize("engine", ["simpy", "fast"])
def test_a_link_with_nothing_for_each_flow(by_hand, engine):
    import networkx as nx

    graph = nx.DiGraph()
    for rank in range(3):
        graph.add_node(rank, kind="gpu", rank=rank)
        graph.add_edge(rank, "s", capacity_uBps=10**15)
        graph.add_edge("s", rank, capacity_uBps=1)
    plan = by_hand(3, [[(0, 0, 2), (1, 1, 2)]], sizes=1)
    with pytest.raises(ConfigError, match=r"2 flows share 1 micro-bytes per second"):
        emulate(plan, from_networkx(graph), data="none", engine=engine)


@compiled
@pytest.mark.parametrize("engine", ["simpy", "fast"])
@pytest.mark.parametrize(
    "protocol", [{"launch_fs": 2**62, "send_overhead_fs": 2**62}, {"launch_fs": 2**63 - 2}]
)
def test_time_beyond_the_clock(by_hand, engine, protocol):
    plan = by_hand(2, [[(0, 0, 1)], [(1, 0, 0)]], sizes=10**9, **protocol)
    with pytest.raises(
        ConfigError, match=r"the emulated time reaches .*; the clock ends at 9223.37 s"
    ):
        emulate(plan, crossbar(2, "1 GB/s"), data="none", bound=False, engine=engine)


def test_jitter_is_a_function_of_seed_and_message():
    protocol = Protocol("j", jitter_fs=999, seed=5)
    drawn = jitter_fs(0, 5000, protocol)
    assert (drawn.min(), drawn.max()) == (0, 999)
    assert np.array_equal(
        np.concatenate([jitter_fs(0, 17, protocol), jitter_fs(17, 4983, protocol)]), drawn
    )
    assert abs(drawn.mean() - 499.5) < 12  # three standard errors of 5000 uniform draws
    assert not np.array_equal(jitter_fs(0, 5000, Protocol("j", jitter_fs=999, seed=6)), drawn)
    with pytest.raises(ConfigError, match=r"jitter_fs.*-1"):
        jitter_fs(0, 1, Protocol("j", jitter_fs=-1))


def test_jitter_delays_a_single_message_by_what_was_drawn(by_hand):
    plan = by_hand(2, [[(0, 0, 1)]], sizes=0 + 1000, jitter_fs=10**9, seed=3)
    plain = by_hand(2, [[(0, 0, 1)]], sizes=1000)
    late, early = (
        emulate(each, crossbar(2, "1 GB/s"), data="none", engine="simpy").time_fs
        for each in (plan, plain)
    )
    assert late - early == int(jitter_fs(0, 1, plan.protocol)[0]) > 0


def test_equal_steps_are_one_object():
    plan = ring(6, count=6)
    groups = list(timed_steps(plan, crossbar(6, "1 GB/s"), placement_of(plan, 0)))
    assert [(len(steps), times) for steps, times in groups] == [(1, 5), (1, 5)]
    assert groups[0][0][0].shape is groups[1][0][0].shape
    assert plan.protocol == IDEAL


IN_NUMPY = "step by step, in numpy | fast 207"
WITHOUT_NUMBA = {
    "absent": (
        'import sys; sys.modules["numba"] = None',
        "0",
        f"fast | numba is not installed; pip install 'simcoll[fast]' makes this faster; {IN_NUMPY}",
        "engine 'fast' needs numba: pip install 'simcoll[fast]'",
    ),
    "turned off": (
        "",
        "1",
        f"fast | NUMBA_DISABLE_JIT turns numba's compiler off; {IN_NUMPY}",
        "engine 'fast' needs numba: unset NUMBA_DISABLE_JIT, which turns its compiler off",
    ),
    "turned off in numba": (
        "import numba; numba.config.DISABLE_JIT = True",
        "0",
        f"fast | NUMBA_DISABLE_JIT turns numba's compiler off; {IN_NUMPY}",
        "engine 'fast' needs numba: unset NUMBA_DISABLE_JIT, which turns its compiler off",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "switch", "played", "refused"), WITHOUT_NUMBA.values(), ids=WITHOUT_NUMBA
)
def test_without_numba_numpy_plays_a_ring_and_says_how_to_get_faster(
    before, switch, played, refused
):
    program = f"""
{before}
import simcoll
from simcoll.emulator import emulate
from simcoll.topology import crossbar
plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=104), count=104, unproved=True)
full, folded = (
    emulate(plan, crossbar(104, "50 GB/s", "1 us"), data="none", bound=False, quotient=q, keep=True) for q in (False, True)
)
assert full.trace_hash == folded.trace_hash and (full.done_fs == folded.done_fs).all(), "differ"
print(full.engine, "|", full.path, "|", folded.engine, folded.classes)
try:
    emulate(plan, crossbar(104, "1 GB/s"), engine="fast")
except simcoll.ConfigError as error:
    print(error)
"""
    environment = os.environ | {"NUMBA_DISABLE_JIT": switch}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [played, refused]


@compiled
@pytest.mark.slow
def test_with_the_compiler_turned_off_everything_runs_as_without_numba(tmp_path):
    root = Path(__file__).parents[3]
    job = (root / "docs" / "howto" / "llama-8b.toml").read_text()
    # A micro-batch for each replica: more repeat the same events, a third of a second each.
    (tmp_path / "job.toml").write_text(job.replace("global_batch = 32", "global_batch = 4"))
    program = """
import sys
if sys.argv[1:] == ["absent"]:
    sys.modules["numba"] = None
import simcoll
from simcoll.cli import main
machine = simcoll.load_topology("dgx-h100", nodes=2)
print(simcoll.predict("all_to_all", 2**20, machine, library="nccl").time_fs)
for words in (
    "perf all_reduce -b 1M -e 1M --algorithm ring --jitter 10ns",
    "perf all_reduce --nodes 4 -b 1K -e 64M -f 65536 --algorithm ring,tree",
    "step job.toml",
):
    assert main(words.split()) == 0, words
"""
    off, absent = (
        subprocess.run(
            [sys.executable, "-c", program, how],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=os.environ | {"NUMBA_DISABLE_JIT": switch, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for how, switch in (("off", "1"), ("absent", "0"))
    )
    assert (off.returncode, off.stderr) == (0, absent.stderr)
    spent = re.compile(r"[\d.]+ [mu]?s \(")  # by this machine
    assert spent.sub("(", off.stdout) == spent.sub("(", absent.stdout)
    assert len(off.stdout.splitlines()) > 20


@compiled
def test_compiled_functions_share_one_default():
    # Of functions whose defaults differ, numba calls all but the first at a hundred times the cost.
    entries = (
        kernel.run,
        loading.load,
        changes.change,
        changes.move,
        filling.index_blocks,
        filling.wait_for,
        calendar.rehash,
    )
    assert {
        inspect.signature(entry.py_func).parameters["_sources"].default for entry in entries
    } == {SOURCES}


@pytest.mark.slow
@compiled
def test_ctrl_c_waits_for_a_compilation():
    """Lost in LLVM it became a bug report, and a table lost the sizes that were done."""
    from numba.core import event

    # Which a shell's background job ignores.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    double = _jit(lambda number: 2 * number)
    interrupt = {
        "on_start": lambda *_: signal.raise_signal(signal.SIGINT),
        "on_end": lambda *_: None,
    }
    listener = type("Interrupt", (event.Listener,), interrupt)
    try:
        with event.install_listener("numba:compile", listener()), pytest.raises(KeyboardInterrupt):
            double(1)
        assert (double(2), len(double.signatures)) == (4, 1)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, usual)


@compiled
@pytest.mark.slow
def test_the_cache_of_compiled_code_is_pickles_and_can_be_moved(tmp_path):
    """What the threat model says of it, as its reason to trust no cache that others can write."""
    program = """
import numpy as np
from simcoll.emulator.fast.grouping import group_rows
print(group_rows([np.array([7, 7, 5])])[0].tolist())
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    index = next(tmp_path.rglob("*.nbi"))
    assert isinstance(pickle.loads(index.read_bytes()), str)  # the version, before the rest
    assert len(list(pickletools.genops(next(tmp_path.rglob("*.nbc")).read_bytes()))) > 10


@compiled
def test_room_for_all_messages_at_once_changes_nothing(monkeypatch):
    plan, topology = ring(6, 1000), crossbar(6, "50 GB/s", "1 us")
    before = emulate(plan, topology, bound=False, engine="fast", quotient=False)
    monkeypatch.setattr(driver, "RESERVED_SLOTS", 0)
    monkeypatch.setattr(driver, "SPARE", 1)
    after = same(plan, topology)
    assert (after.time_fs, after.trace_hash) == (before.time_fs, before.trace_hash)
