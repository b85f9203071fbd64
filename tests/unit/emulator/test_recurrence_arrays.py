"""The loop of lock-step runs in array operations, against the compiled one."""

import numpy as np
import pytest

import simcoll
from simcoll.emulator import recurrence_arrays
from simcoll.emulator.fast import recurrence
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.fast.recurrence_rows import BY_RECEIVER, BY_SENDER, CROWDED, Tables
from simcoll.topology import crossbar

LANES, STEPS, CONNECTIONS = 5, 4, 6


def random_tables(seed):
    """Steps whose lanes and connections recur, some of their messages within a rank."""
    draws = np.random.default_rng(seed)
    begins = np.cumsum([0, *draws.integers(1, 12, STEPS)])
    rows, payloads = int(begins[-1]), int(draws.integers(1, 3))
    fixed = draws.integers(0, LANES, (8, rows))
    fixed[4] = draws.choice([-1, 0, 7, 900], rows)  # delays
    fixed[5] = draws.choice([0, 5, 2000], rows)  # how long the sender is busy
    fixed[6] = draws.integers(0, 3, rows)  # places in windows of three
    fixed[7] = draws.integers(0, CONNECTIONS, rows)
    varying = draws.integers(0, 1000, (payloads, 3, rows))
    window = np.tile(draws.integers(0, payloads, 3), 2)
    depth, jitter = (int(draws.choice(choices)) for choices in ([0, 1, 3], [0, 50]))
    settings = np.array([11, int(draws.integers(1, 6)), int(draws.integers(-2, 3)), depth, jitter])
    return fixed, varying, begins, window, settings


def everything_after(advance, tables, *, keep):
    """The state of all lanes and FIFOs, the hash, and all completion times."""
    fixed, varying, begins, window, settings = tables
    lanes = np.zeros((3, LANES), np.int64)
    rings = np.zeros(CONNECTIONS * int(settings[3]), np.int64)
    counts, sums = np.zeros(CONNECTIONS, np.int64), np.zeros(2, np.uint64)
    done_fs = np.zeros(11 + int(settings[1]) * fixed.shape[1] if keep else 0, np.int64)
    times = np.empty((3, fixed.shape[1]), np.int64)
    before = lanes, rings, counts, fixed, varying, times, begins, window, settings
    advance(Tables(*before, np.uint64(99), sums, done_fs))
    return [column.tolist() for column in (lanes, rings, counts, sums, done_fs)]


@pytest.mark.skipif(not COMPILED, reason="needs numba")
@pytest.mark.parametrize("seed", range(60))
def test_all_state_is_that_of_the_compiled_loop(seed):
    tables = random_tables(seed)
    expected = everything_after(
        lambda tables: recurrence.advance(*tables), tables, keep=seed % 2 == 0
    )
    assert everything_after(recurrence_arrays.advance, tables, keep=seed % 2 == 0) == expected


def test_hashes_do_not_depend_on_how_many_messages_are_hashed_together(monkeypatch):
    tables = random_tables(3)
    expected = everything_after(recurrence_arrays.advance, tables, keep=True)
    monkeypatch.setattr(recurrence_arrays, "HASHED_ROWS", 1)
    assert everything_after(recurrence_arrays.advance, tables, keep=True) == expected


@pytest.mark.skipif(not COMPILED, reason="needs numba")
@pytest.mark.parametrize("seed", range(30))
def test_the_owners_of_links_are_those_of_the_compiled_loop(seed):
    draws = np.random.default_rng(seed)
    both = [np.full((4, 9), -1) for _ in range(2)]
    for of in both:
        of[CROWDED] = 0
    for step in range(1, 5):
        rows = int(draws.integers(1, 7))
        hops = np.sort(draws.integers(-1, 9, (rows, 3)).astype(np.int32), axis=1)[:, ::-1]
        links = np.ascontiguousarray(hops)  # -1 after the last link of a route
        flows = draws.integers(0, 3, rows)
        sender, receiver = draws.integers(0, 4, (2, rows))
        for module, of in zip((recurrence, recurrence_arrays), both, strict=True):
            module.claim(links, flows, sender, receiver, step, of)
    told = [of[[BY_SENDER, BY_RECEIVER, CROWDED]] for of in both]
    assert told[0].tolist() == told[1].tolist()


def test_a_ring_without_a_compiler_is_played_step_by_step(monkeypatch):
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=20), 20 * 50 + 3)
    net = crossbar(20, "9 GB/s", "1 us")
    expected = simcoll.emulate(plan, net, engine="simpy")
    for module in ("fast_way", "engine_choice"):
        monkeypatch.setattr(f"simcoll.emulator.{module}.COMPILED", False)
        monkeypatch.setattr(f"simcoll.emulator.{module}.UNCOMPILED", "no compiler", raising=False)
    result = simcoll.emulate(plan, net)
    assert (result.time_fs, result.trace_hash) == (expected.time_fs, expected.trace_hash)
    assert result.wrong == 0
    assert (result.engine, result.path) == (
        "fast",
        f"only {result.messages} messages; step by step, in numpy",
    )
