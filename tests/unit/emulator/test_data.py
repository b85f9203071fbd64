"""When data moves: how much it takes, how much there is, and what a result says of it."""

import sys
import tracemalloc
from itertools import product

import numpy as np
import pytest

import simcoll
from simcoll.core import memory_limits as memory
from simcoll.core.protocol import Protocol
from simcoll.emulator import emulate
from simcoll.emulator.data import budget
from simcoll.errors import ConfigError
from simcoll.topology import crossbar


def ring(n=4, count=1 << 10, **bound_to):
    return simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=n), count=count, **bound_to)


@pytest.fixture
def untouched(monkeypatch):
    """Fails a test that makes buffers or data."""

    def made(*_, **__):
        raise AssertionError("memory was taken")

    monkeypatch.setattr("simcoll.emulator.data.dataplane.Storage", made)
    monkeypatch.setattr("simcoll.core.reference.exact_inputs", made)


def test_small_data_moves_and_is_checked_without_being_asked_for():
    result = emulate(ring(), crossbar(4, "50 GB/s"))
    assert (result.data, result.no_data, result.wrong) == ("exact", "", 0)
    assert "exact, 0 wrong elements" in str(result)


def test_large_data_is_timed_only_and_the_result_says_so(untouched):
    result = emulate(ring(count=1 << 28), crossbar(4, "50 GB/s"))
    assert (result.data, result.wrong, result.outputs) == ("none", None, None)
    # 4 inputs of 1 GiB, and 48 bytes an element while the last of them is generated
    assert result.no_data == "exact data takes 16 GiB, more than the 2 GiB of SIMCOLL_MAX_BYTES"
    assert f"none, timing only: {result.no_data}" in str(result)
    assert (
        result.time_fs == emulate(ring(count=1 << 28), crossbar(4, "50 GB/s"), data="none").time_fs
    )


@pytest.mark.slow
def test_a_quarter_of_a_billion_elements_on_a_thousand_ranks_is_answered(untouched):
    result = emulate(ring(1024, 1 << 28, unproved=True), crossbar(1024, "50 GB/s", "1 us"))
    assert (result.data, result.nranks, result.messages) == ("none", 1024, 2_096_128)


def test_sums_are_right_beyond_64_bits():
    assert budget.exact_bytes(ring(64, 1 << 56, dtype="int8")) > 1 << 63


@pytest.mark.parametrize(
    ("text", "moves"), [("0", False), ("1K", False), ("1M", True), ("1 TiB", True)]
)
def test_the_limit_can_be_set(monkeypatch, text, moves):
    monkeypatch.setenv("SIMCOLL_MAX_BYTES", text)
    assert emulate(ring(), crossbar(4, "50 GB/s")).data == ("exact" if moves else "none")
    # What is asked for is not limited by it.
    assert emulate(ring(), crossbar(4, "50 GB/s"), data="exact").wrong == 0
    assert emulate(ring(), crossbar(4, "50 GB/s"), data="none").no_data == ""


@pytest.mark.parametrize("text", ["", "much", "-1", "2 GB/s", "1.5"])
def test_a_limit_that_is_no_size_is_refused(monkeypatch, text):
    monkeypatch.setenv("SIMCOLL_MAX_BYTES", text)
    with pytest.raises(ConfigError, match="SIMCOLL_MAX_BYTES"):
        emulate(ring(), crossbar(4, "50 GB/s"))
    emulate(ring(), crossbar(4, "50 GB/s"), data="none")


def test_exact_data_that_does_not_fit_is_refused_before_it_is_made(untouched):
    with pytest.raises(
        ConfigError, match=r"takes 4\d\.?\d* TiB, but only [\d.]+ [MG]iB is available; data='none'"
    ):
        emulate(ring(64, 1 << 36), crossbar(64, "50 GB/s"), data="exact")


def test_data_of_the_callers_own_must_fit_as_well(untouched, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.raises(ConfigError, match="only 1000 B is available"):
        emulate(
            ring(count=1 << 24), crossbar(4, "50 GB/s"), data=[np.zeros(1 << 24, np.float32)] * 4
        )


def test_data_of_the_callers_own_is_named():
    result = emulate(ring(), crossbar(4, "50 GB/s"), data=[np.zeros(1 << 10, np.float32)] * 4)
    assert (result.data, result.wrong) == ("given", None)
    assert "the caller's own" in str(result)


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
@pytest.mark.skipif(sys.platform != "linux", reason="how much a process uses is read from /proc")
def test_limits_of_the_process_count(limit):
    import resource

    kind = getattr(resource, limit)
    before = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (1 << 40, before[1]))
        assert memory.available_bytes() < 1 << 40
        assert any((1 << 39) < left < (1 << 40) for left in memory._limits())
    finally:
        resource.setrlimit(kind, before)


def test_control_groups_count(tmp_path):
    own = tmp_path / "own"
    group = tmp_path / "v2" / "a" / "b"
    group.mkdir(parents=True)
    own.write_text("0::/a/b\n")
    for folder, most, used in (
        (group, "max", "50"),
        (group.parent, "1000", "300"),
        (tmp_path / "v2", "5000", "600"),
    ):
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
    (group.parent / "memory.stat").write_text("anon 5\ninactive_file 100\n")
    assert memory._control_groups(tmp_path / "v2", own) == [1000 - 300 + 100, 5000 - 600]
    old = tmp_path / "v1" / "memory" / "job"
    old.mkdir(parents=True)
    own.write_text("3:cpuset:/\n4:memory:/job\n0::/\n")
    (old / "memory.limit_in_bytes").write_text("4096\n")
    (old / "memory.usage_in_bytes").write_text("5000\n")
    (old.parent / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory._control_groups(tmp_path / "v1", own) == [0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "algorithm", "in_place", "op", "protocol"),
    [
        *product(["all_reduce"], ["ring", "recursive_doubling"], [False, True], ["sum"], ["ideal"]),
        ("all_reduce", "ring", False, simcoll.types.premul_sum(0.5), "ideal"),
        ("all_reduce", "ring", False, "sum", Protocol("fifo", fifo_depth=4)),
        ("all_gather", "bruck", False, "sum", "ideal"),
        ("all_to_all", "direct", False, "sum", "ideal"),
        ("broadcast", "tree", False, "sum", "ideal"),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_no_run_takes_more_than_was_added_up(kind, algorithm, in_place, op, protocol, dtype):
    schedule = simcoll.schedule(kind, algorithm, nranks=8, in_place=in_place)
    if dtype == "int8" and op != "sum":
        pytest.skip("no such reduction of whole numbers")
    plan = simcoll.bind(schedule, 1 << 16, dtype, op, protocol=protocol)
    # Loads what it needs.
    emulate(simcoll.bind(schedule, 8, dtype, op, protocol=protocol), crossbar(8, "50 GB/s"))
    tracemalloc.start()
    try:
        emulate(plan, crossbar(8, "50 GB/s"), data="exact")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    wanted = budget.exact_bytes(plan)
    assert 0.4 * wanted < peak < wanted + 500_000  # and some records of messages


@pytest.mark.parametrize("seed", ["x", 0.5, None, 2**64])
def test_a_seed_is_a_whole_number(seed):
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=2), count=4)
    with pytest.raises(ConfigError, match="seed must be a whole number"):
        simcoll.emulate(plan, crossbar(2, "1 GB/s", "1 us"), seed=seed)
