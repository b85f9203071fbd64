"""One call: data, metrics, bound, determinism, errors."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import bus_factor
from simcoll.core.protocol import Protocol
from simcoll.emulator import emulate
from simcoll.emulator.floor import latency_floor_fs
from simcoll.errors import ConfigError, InternalError
from simcoll.testing.examples import needed_params
from simcoll.topology import boxes, crossbar, fat_tree, from_networkx

US = 10**9


def ring(n, count=1 << 20, *, in_place=True, **bound_to):
    return simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=n, in_place=in_place), count=count, **bound_to
    )


@pytest.mark.slow
def test_ring_all_reduce_has_its_closed_form():
    # 2 (n - 1) steps of latency + chunk / bandwidth: 30 * (1 us + 262144 B / 50 GB/s)
    result = emulate(ring(16), crossbar(16, "50 GB/s", "1 us"), engine="simpy")
    assert result.time_fs == 30 * (US + 5_242_880_000)
    assert (result.wrong, result.messages, result.bytes_moved) == (0, 480, 480 * 262144)
    assert result.time == pytest.approx(187.2864e-6)
    assert result.algbw == pytest.approx(2**22 / 187.2864e-6)
    assert result.busbw == pytest.approx(result.algbw * 30 / 16)
    assert (result.engine, result.protocol, result.schedule, result.proof) == (
        "simpy",
        "ideal",
        "ring(channels=1, pieces=1)",
        "full",
    )


def test_without_latency_the_ring_meets_its_bound():
    result = emulate(ring(4), crossbar(4, "50 GB/s"))
    assert result.headroom == 1
    assert result.bound.kind == "bandwidth"
    assert result.bottleneck == result.bound.bottleneck != ""


PROTOCOLS = (
    Protocol("rendezvous"),
    Protocol(
        "fifo",
        fifo_depth=2,
        receive_overhead_fs=10**6,
        reduce_as_per_byte=667,
        copy_as_per_byte=300,
    ),
    Protocol("capped", channel_rate_uBps=7 * 10**15, header_bytes=16, launch_fs=US),
)


@cache
def two_nodes(n, *, switches_reduce):
    """n ranks on two nodes of four; made once, since a topology remembers its bounds."""
    topology = boxes(
        2, 4, "450 GB/s", "1 us", nics=4, nic_bandwidth="50 GB/s", nic_latency="2 us"
    ).take(n)
    return replace(topology, traits={"switch_reduce": "yes"}) if switches_reduce else topology


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.collective}-{a.name}")
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_every_algorithm_leaves_the_right_data_above_its_bound(algorithm, n):
    params = {"box": 2 if n % 2 == 0 else 1} if "box" in algorithm.params else {}
    params |= needed_params(algorithm.collective, algorithm.name, n)
    try:
        schedule = simcoll.schedule(algorithm.collective, algorithm.name, nranks=n, **params)
    except ConfigError:
        pytest.skip(f"{algorithm.name} does not serve {n} ranks")
    topology = two_nodes(n, switches_reduce=algorithm.topologies in {"switch", "sharp"})
    for place, count in enumerate((0, 1, n + 1, 1000)):
        # One, two and three ranks have every count under every protocol between them.
        protocol = PROTOCOLS[(place + n) % len(PROTOCOLS)]
        result = emulate(
            simcoll.bind(schedule, count=count, protocol=protocol), topology, seed=count
        )
        assert result.wrong == 0
        assert result.bound is not None  # checked inside


@pytest.mark.parametrize("dtype", ["int8", "bool", "bfloat16", "float16", "complex64"])
def test_dtypes(dtype):
    op = "max" if dtype == "bool" else "sum"
    assert emulate(ring(3, 10, dtype=dtype, op=op), crossbar(3, "50 GB/s")).wrong == 0


def test_in_place():
    schedule = simcoll.schedule("all_reduce", "recursive_doubling", nranks=4, in_place=True)
    assert any(step.staged.any() for step in simcoll.bind(schedule, count=8).steps())
    assert emulate(simcoll.bind(schedule, count=8), crossbar(4, "50 GB/s")).wrong == 0


def test_data_of_the_callers_own():
    data = [np.full(6, 10**rank, np.int64) for rank in range(3)]
    for in_place in (False, True):
        result = emulate(
            ring(3, 6, dtype="int64", in_place=in_place), crossbar(3, "50 GB/s"), data=data
        )
        assert [out.tolist() for out in result.outputs] == [[111] * 6] * 3
        assert result.wrong is None
        assert [array[0] for array in data] == [1, 10, 100]


def test_outputs_only_where_the_collective_has_them():
    plan = simcoll.bind(simcoll.schedule("reduce", "tree", nranks=3, root=1), count=4)
    outputs = emulate(plan, crossbar(3, "50 GB/s")).outputs
    assert [out is None for out in outputs] == [True, False, True]


def test_a_wrong_schedule_has_wrong_elements():
    layout = simcoll.Layout(simcoll.Collective("broadcast", 3))

    def steps():
        yield simcoll.transfers([0, 0], layout.input(), [0, 1], layout.output())

    plan = simcoll.bind(simcoll.Schedule("forgets_rank_2", layout, steps), 7, unproved=True)
    result = emulate(plan, crossbar(3, "50 GB/s"))
    assert (result.wrong, result.proof) == (7, "unproved")


def test_memory_that_nobody_wrote_is_not_zero():
    layout = simcoll.Layout(simcoll.Collective("broadcast", 2))

    def steps():
        yield simcoll.transfers([0, 1], layout.output(), [1, 0], layout.output())

    for dtype in ("float32", "int32"):
        plan = simcoll.bind(
            simcoll.Schedule("never_read_the_input", layout, steps), 7, dtype, unproved=True
        )
        outputs = emulate(plan, crossbar(2, "50 GB/s"), bound=False).outputs
        assert all((out != 0).all() for out in outputs)


def test_without_data():
    result = emulate(ring(4), crossbar(4, "50 GB/s", "1 us"), data="none", bound=False)
    assert (result.wrong, result.outputs, result.bound, result.headroom, result.bottleneck) == (
        None,
    ) * 4 + ("",)
    assert result.time_fs == emulate(ring(4), crossbar(4, "50 GB/s", "1 us")).time_fs


def test_one_rank():
    result = emulate(ring(1, 5), crossbar(1, "50 GB/s"))
    assert (result.wrong, result.time_fs, result.busbw, result.headroom) == (0, 0, 0, None)


def test_bus_factors_are_those_of_nccl_tests():
    kinds = ("all_reduce", "reduce_scatter", "all_to_all", "gather", "reduce", "send_recv")
    assert [bus_factor(kind, 4) for kind in kinds] == [1.5, 0.75, 0.75, 0.75, 1, 1]


def test_ranks_placed_elsewhere():
    topology = boxes(2, 2, "450 GB/s", nics=2, nic_bandwidth="50 GB/s")
    near = emulate(ring(2, ranks=[0, 1]), topology)
    far = emulate(ring(2, ranks=[0, 2]), topology)
    # Two steps of 2 MiB, at 450 and at 50 GB/s.
    assert near.time_us == pytest.approx(2 * 2**21 / 450e3)
    assert far.time_us == pytest.approx(2 * 2**21 / 50e3)


# ---- the bound ----


@pytest.mark.slow
def test_a_proved_schedule_below_the_bound_is_our_fault(monkeypatch):
    import simcoll.bounds

    real = simcoll.bounds.lower_bound

    def too_high(*args, **kwargs):
        found = real(*args, **kwargs)
        return type(found)(found.time_fs + 100, found.kind, found.bottleneck, found.certificate)

    monkeypatch.setattr(simcoll.bounds, "lower_bound", too_high)
    with pytest.raises(InternalError, match=r"its lower bound is .* \(the links of all 4 ranks\)"):
        emulate(ring(4), crossbar(4, "50 GB/s"))
    unproved = simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=4), count=1 << 20, unproved=True
    )
    assert emulate(unproved, crossbar(4, "50 GB/s")).headroom < 1


@pytest.mark.slow
def test_a_certificate_can_be_used_again():
    topology = crossbar(4, "50 GB/s")
    first = emulate(ring(4), topology)
    assert (
        emulate(ring(4), topology, bound=first.bound.certificate).bound.time_fs
        == first.bound.time_fs
    )


def test_rounding_is_not_mistaken_for_beating_the_bound():
    # 2 (n - 1) flows of 7 bytes, each rounded down by part of a femtosecond.
    for rate in ("3 GB/s", "7 GB/s", "11 GB/s"):
        assert emulate(ring(5, 35, dtype="int8"), crossbar(5, rate)).wrong == 0


def test_uneven_blocks_have_a_bound():
    plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=[1000, 5, 300])
    result = emulate(plan, crossbar(3, "50 GB/s", "1 us"))
    assert result.wrong == 0
    assert 0 < result.bound.time_fs <= result.time_fs


def test_latency_floor_counts_overheads_and_launch():
    plan = ring(
        4, 4, protocol=Protocol("p", launch_fs=1, send_overhead_fs=20, receive_overhead_fs=300)
    )
    assert latency_floor_fs(plan, crossbar(4, "50 GB/s", "1 us")) == US + 321


def test_latency_floor_takes_the_way_over_a_relay():
    # 0 and 2 are 10 us apart; over rank 1 it is two messages of 1 us.
    import networkx as nx

    graph = nx.Graph()
    for rank in range(3):
        graph.add_node(f"g{rank}", kind="gpu", rank=rank)
        graph.add_edge(f"g{rank}", "hub", bandwidth="10 GB/s", latency="5 us")
    for a, b in ((0, 1), (1, 2)):
        graph.add_edge(f"g{a}", f"g{b}", bandwidth="10 GB/s", latency="1 us")
    topology = from_networkx(graph)
    assert latency_floor_fs(ring(3, 3), topology) == 2 * US
    tree = simcoll.bind(simcoll.schedule("broadcast", "tree", nranks=3, root=1), count=3)
    assert latency_floor_fs(tree, topology) == US
    chain = simcoll.bind(simcoll.schedule("reduce", "tree", nranks=3, root=0), count=3)
    assert latency_floor_fs(chain, topology) == 2 * US


def test_no_floor_where_nothing_is_said():
    assert latency_floor_fs(ring(1), crossbar(1, "1 GB/s", "1 us")) == 0
    assert latency_floor_fs(ring(4, 0), crossbar(4, "1 GB/s", "1 us")) == 0
    barrier = simcoll.bind(simcoll.schedule("barrier", "dissemination", nranks=4), count=0)
    assert latency_floor_fs(barrier, crossbar(4, "1 GB/s", "1 us")) == US


def test_many_ranks_have_a_floor_too():
    assert latency_floor_fs(ring(300, 300), crossbar(300, "1 GB/s", "1 us")) == US


# ---- determinism ----

SCRIPT = """
import simcoll
from simcoll.emulator import emulate
from simcoll.topology import boxes
topology = boxes(2, 4, "450 GB/s", "1 us", nics=2, nic_bandwidth="50 GB/s", nic_latency="2 us")
for kind, name in (("all_reduce", "ring"), ("all_to_all", "direct"), ("all_reduce", "rabenseifner")):
    result = emulate(simcoll.bind(simcoll.schedule(kind, name, nranks=8), count=1001, protocol="LL128"), topology)
    print(result.time_fs, result.trace_hash)
"""


@pytest.mark.slow
def test_two_processes_with_different_hash_seeds_agree():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "4242")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].split()) == 6


def test_the_hash_tells_runs_apart():
    base = emulate(ring(4), crossbar(4, "50 GB/s", "1 us"), data="none")
    again = emulate(ring(4), crossbar(4, "50 GB/s", "1 us"), observer=lambda *_: None, keep=True)
    assert base.trace_hash == again.trace_hash
    others = [
        emulate(ring(4), crossbar(4, "50 GB/s", "1.000000001 us"), data="none"),
        emulate(ring(4, (1 << 20) + 4), crossbar(4, "50 GB/s", "1 us"), data="none"),
    ]
    assert len({result.trace_hash for result in (base, *others)}) == 3


def test_the_observer_sees_every_transfer():
    rows = []
    result = emulate(
        ring(3, 9, in_place=False),
        crossbar(3, "50 GB/s", "1 us"),
        observer=lambda *row: rows.append(row),
        keep=True,
    )
    assert sorted(row[0] for row in rows) == list(range(result.messages))
    for message, _, src, dst, channel, _, size, ready, start, end, done in rows:
        assert (channel, size) == (0, 12 if src != dst else 36)
        assert ready <= start <= end <= done == result.done_fs[message]
        assert start - ready == (US if src != dst else 0)


# ---- errors ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "exakt"}, "did you mean 'exact'"),
        ({"data": [np.zeros(4, np.float32)] * 3}, "data for 3 ranks was given; the plan has 4"),
        (
            {"data": [np.zeros(4, np.float32)] * 3 + [None]},
            "rank 3 needs 4 elements of float32 as input; got none",
        ),
        (
            {"data": [np.zeros(4)] * 4},
            "rank 0 needs 4 elements of float32 as input; got 4 of float64",
        ),
        (
            {"data": [np.zeros(3, np.float32)] * 4},
            "rank 0 needs 4 elements of float32 as input; got 3 of float32",
        ),
    ],
)
def test_data_that_does_not_fit(change, message):
    with pytest.raises(ConfigError, match=message):
        emulate(ring(4, 4), crossbar(4, "50 GB/s"), **change)


def test_a_topology_that_is_too_small():
    with pytest.raises(
        ConfigError, match=r"places a rank on endpoint 3; topology 'crossbar' has 0\.\.2 only"
    ):
        emulate(ring(4, 4), crossbar(3, "50 GB/s"))


def test_a_run_beyond_the_clock():
    with pytest.raises(ConfigError, match="the clock ends at"):
        emulate(ring(2), crossbar(2, "1 B/s"), data="none")


# ---- an outside oracle under contention ----

# 16 hosts, 4 a leaf, uplinks 2:1, 1 MiB; without latency, and with 1 us on each of the 2 or 4 links
# of a way.
FAT_TREE_US = {
    ("all_reduce", "ring"): (157.3248, 277.3248),
    ("all_reduce", "recursive_doubling"): (503.32416, 515.32416),
    ("all_reduce", "rabenseifner"): (188.75904, 212.75904),
    ("all_gather", "recursive_doubling"): (141.56544, 153.56544),
    ("all_to_all", "direct"): (125.85984, 129.85984),
}
"""SimGrid SMPI 3.32 (CM02, latency and bandwidth factors 1, no cross traffic), which adds 16 bytes
to every message.
"""


@pytest.mark.parametrize("latency", [0, 1])
@pytest.mark.parametrize(("kind", "name"), FAT_TREE_US)
def test_a_fat_tree_under_contention_is_as_slow_as_simgrid_says(kind, name, latency):
    schedule = simcoll.schedule(kind, name, nranks=16, in_place=kind != "all_to_all")
    count = 2**20 if kind == "all_reduce" else 2**16
    plan = simcoll.bind(
        schedule, count=count, dtype="uint8", protocol=Protocol("smpi", header_bytes=16)
    )
    hop = ("0", "2 us")[latency]
    topology = fat_tree(4, 4, "12.5 GB/s", hop, oversubscription=2, spine_latency=hop)
    result = emulate(plan, topology, data="none")
    assert result.time_us == pytest.approx(FAT_TREE_US[kind, name][latency], rel=1e-12)
