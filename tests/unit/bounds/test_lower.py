"""Lower bounds: formulas by hand, optima of linear programs, and schedules that reach or respect
them.
"""

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from simcoll.binding import bind
from simcoll.bounds import all_gather_cut, bottleneck, flows, lower_bound
from simcoll.errors import ConfigError
from simcoll.topology import boxes, crossbar, fat_tree, load_topology, torus
from tests.support import cuts


def algbw(kind, topology, root=0):
    return float(1 / bottleneck(kind, topology, root=root).seconds_per_byte) / 1e9


@pytest.mark.slow
@pytest.mark.parametrize("name", cuts.ORACLES)
def test_all_reduce_reaches_the_optimum_of_the_linear_program(name):
    make, _, _, optimum = cuts.ORACLES[name]
    assert algbw("all_reduce", make()) == pytest.approx(optimum, rel=1e-7)


# Optimal all-to-all bandwidth (GB/s, buffer over time) by multi-commodity flow (arXiv 2309.13541),
# and closed forms: ring 8b/k (k even) and 8bk/(k^2-1) (odd), path 4b/N, torus as the ring of its
# longest dimension, hypercube 2b.
ALL_TO_ALL = {
    "crossbar-4": 400.0,
    "dgx-h100": 514.2857143,
    "2-dgx-a100": 50.0,
    "3-dgx-a100": 37.5,
    "4-dgx-h100": 66.6666667,
    "ring-8": 25.0,
    "ring-5": 41.6666667,
    "path-4": 25.0,
    "path-6": 16.6666667,
    "torus-3x3": 75.0,
    "torus-4x4": 50.0,
    "torus-3x5": 41.6666667,
    "torus-2x4": 50.0,
    "torus-8x8": 25.0,
    "torus-4x4x4": 50.0,
    "tpu-v5e": 22.5,
    "hypercube-4": 50.0,
    "mi300x": 512.0,
    "dgx-1v": 75.0,
    "fat-tree-2x4-1:1": 57.1428571,
    "fat-tree-4x4-2:1": 33.3333333,
    "fat-tree-4x8-16:1": 66.6666667,
}


@pytest.mark.parametrize("name", ALL_TO_ALL)
def test_all_to_all_reaches_the_optimum_of_the_flow_program(name):
    assert algbw("all_to_all", cuts.ORACLES[name][0]()) == pytest.approx(ALL_TO_ALL[name], rel=1e-7)


def test_all_to_all_on_a_one_way_ring():
    # A cut sees half of what this ring must carry; the optimum is 2b/(N-1).
    assert algbw("all_to_all", cuts.one_way_ring(4)) == pytest.approx(50 / 3)


@pytest.mark.parametrize(
    ("make", "bandwidth"),
    [
        (lambda: crossbar(8, "300 GB/s"), 300),
        (cuts.dgx1v_without_pcie, 150),
        (lambda: torus([4, 4], "25 GB/s"), 100),
        (lambda: cuts.dgx(2, 300, 25), 200),
        (lambda: cuts.dgx(4, 300, 25), 200),
        (lambda: torus([8], "25 GB/s"), 50),
        (lambda: cuts.hypercube(3), 75),
        (lambda: fat_tree(4, 8, "50 GB/s", oversubscription=2), 50),
    ],
)
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_rooted_collectives(kind, make, bandwidth):
    assert algbw(kind, make()) == pytest.approx(bandwidth)


def test_direction_matters_for_the_root():
    topology = crossbar(4, "50 GB/s").degrade("gpu2 -> switch", "1/5")
    assert algbw("broadcast", topology, root=0) == pytest.approx(50)
    assert algbw("broadcast", topology, root=2) == pytest.approx(10)
    assert algbw("reduce", topology, root=0) == pytest.approx(10)
    assert algbw("reduce", topology, root=2) == pytest.approx(50)
    assert algbw("scatter", topology, root=2) == pytest.approx(4 / 3 * 10)
    assert algbw("gather", topology, root=2) == pytest.approx(4 / 3 * 50)
    assert bottleneck("reduce", topology, root=0).name == "the links out of gpu2"


def test_one_slow_rank_bounds_all_reduce():
    topology = crossbar(4, "100 GB/s").degrade("gpu1 -> switch", "1/10")
    # Its own data must leave it once: 1/10 s per GB; the sum over all ranks says only 6/310.
    proof = bottleneck("all_reduce", topology)
    assert proof.seconds_per_byte * 10**9 == Fraction(1, 10)
    assert proof.name == "the links out of gpu1"
    topology = crossbar(4, "100 GB/s").degrade("switch -> gpu1", "1/10")
    assert bottleneck("all_reduce", topology).name == "the links into gpu1"


def test_time_is_exact_and_rounded_down():
    topology = crossbar(3, "7 GB/s")
    bound = lower_bound("all_gather", topology, 1000)
    # 1000 B / 3 ranks * 2 of them / 7e9 B/s = 95.238... ns
    assert bound.time_fs == 1000 * 2 * 10**15 // (3 * 7 * 10**9)
    assert bound.kind == "bandwidth"
    assert bound.bottleneck == "the links into gpu0"


def test_ring_schedules_on_a_crossbar_cannot_be_beaten():
    # The ring all-reduce takes 2 (n-1) steps of M/n bytes, all links busy: its bandwidth term is
    # the bound.
    for n in (2, 3, 5, 8):
        size = 840 * 10**6
        bound = lower_bound("all_reduce", crossbar(n, "50 GB/s"), size)
        assert bound.time_fs == 2 * (n - 1) * (size // n) * 10**15 // (50 * 10**9)


def test_latency_floor_of_the_caller():
    topology = crossbar(4, "50 GB/s")
    assert lower_bound("all_reduce", topology, 8, latency_fs=10**9).kind == "latency"
    assert lower_bound("all_reduce", topology, 8, latency_fs=10**9).time_fs == 10**9
    assert lower_bound("all_reduce", topology, 10**9, latency_fs=10**9).kind == "bandwidth"
    assert lower_bound("all_reduce", topology, 0).time_fs == 0
    for kind in ("barrier", "send_recv"):
        assert lower_bound(kind, topology, 10**9, latency_fs=5).time_fs == 5


KINDS = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_rank_needs_no_time(kind):
    assert lower_bound(kind, crossbar(1, "50 GB/s"), 10**9).time_fs == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["2-dgx-a100", "fat-tree-4x4-2:1", "torus-3x5", "dgx-1v", "mi300x"]
)
def test_greedy_cuts_of_large_clusters_are_valid(kind, name, monkeypatch):
    """Beyond the limit of exact flows the bound may be weaker, never stronger."""
    topology = cuts.ORACLES[name][0]()
    exact = bottleneck(kind, topology, root=3).seconds_per_byte
    for module in (flows, all_gather_cut.__globals__, bottleneck.__globals__):
        if isinstance(module, dict):
            monkeypatch.setitem(module, "FLOW_LIMIT", 1)
        else:
            monkeypatch.setattr(module, "FLOW_LIMIT", 1)
    assert exact / 2 <= bottleneck(kind, topology, root=3).seconds_per_byte <= exact


def test_doubling_every_rate_halves_every_bound():
    slow, fast = (fat_tree(3, 2, f"{b} GB/s", oversubscription=3) for b in (20, 40))
    for kind in KINDS:
        assert (
            bottleneck(kind, slow, root=1).seconds_per_byte
            == 2 * bottleneck(kind, fast, root=1).seconds_per_byte
        )


def test_capacities_whose_sum_is_beyond_64_bits():
    whole = boxes(2, 4, "9 TB/s", nics=4, nic_bandwidth="9 TB/s")
    topology = whole.degrade("box0.nic1 -> leaf0.rail1", "1/7")
    leaving = 3 * 9 * 10**18 + 9 * 10**18 // 7
    graph = flows.flow_graph(topology)
    capacity, _ = flows.egress(graph, np.arange(4))
    assert capacity * graph.unit_uBps == leaving > 2**63
    for kind in KINDS:
        assert (
            bottleneck(kind, topology).seconds_per_byte
            >= bottleneck(kind, whole).seconds_per_byte
            > 0
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_one_sink_of_each_orbit_stands_for_all(kind):
    machine = load_topology("dgx-h100", nodes=3).degrade("box1.gpu2 -> box1.nvswitch", "1/30")
    graph = machine.to_networkx()
    names = [machine.node_names[vertex] for vertex in machine.rank_nodes]
    for root in (0, 10, 17):
        ends = [
            (names[root], name) if kind == "broadcast" else (name, names[root]) for name in names
        ]
        least = min(nx.maximum_flow_value(graph, a, b, "capacity_uBps") for a, b in ends if a != b)
        assert bottleneck(kind, machine, root=root).seconds_per_byte == Fraction(10**6, least)


@pytest.mark.slow
def test_superpod_by_groups():
    # 1024 GPUs: all but one box send into one box's 8 cards of 50 GB/s.
    topology = load_topology("superpod-h100", nodes=128)
    assert algbw("all_to_all", topology) == pytest.approx(1024 * 50 / 1016)
    assert bottleneck("all_reduce", topology).seconds_per_byte * 10**9 == Fraction(
        2 * 127, 128 * 400
    )


@pytest.mark.parametrize(
    ("kind", "root", "message"),
    [
        ("allreduce", 0, "did you mean 'all_reduce'"),
        ("broadcast", 4, "0 to 3"),
        ("broadcast", -1, "0 to 3"),
    ],
)
def test_bad_questions(kind, root, message):
    with pytest.raises(ConfigError, match=message):
        lower_bound(kind, crossbar(4, "50 GB/s"), 8, root=root)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_switches_that_reduce_halve_the_all_reduce(n):
    # Every rank sends its vector once and receives the result once: M / b instead of 2 (n - 1) / n
    # M / b.
    topology = crossbar(n, "300 GB/s")
    assert bottleneck("all_reduce", topology, in_network=True).seconds_per_byte == Fraction(
        1, 300 * 10**9
    )
    assert bottleneck("all_reduce", topology).seconds_per_byte == Fraction(
        2 * (n - 1), n * 300 * 10**9
    )
    # 2-level fat tree 2:1 and boxes: published optima of the program without switch balance, in
    # GB/s.
    assert bottleneck(
        "all_reduce", fat_tree(2, 4, "50 GB/s", oversubscription=2), in_network=True
    ).seconds_per_byte == Fraction(1, 50 * 10**9)
    for nodes, per_box, bandwidth in ((2, 4, 100), (2, 8, 200), (4, 4, 100)):
        proof = bottleneck("all_reduce", cuts.dgx(nodes, 300, 25, per_box), in_network=True)
        assert proof.seconds_per_byte == Fraction(1, bandwidth * 10**9)


def test_a_certificate_without_switches_is_not_used_for_a_schedule_with_them():
    topology = crossbar(4, "300 GB/s")
    plain = bottleneck("all_reduce", topology)
    assert not plain.in_network
    assert (
        lower_bound("all_reduce", topology, 300 * 10**9, certificate=plain).time_fs == 15 * 10**14
    )
    assert (
        lower_bound("all_reduce", topology, 300 * 10**9, certificate=plain, in_network=True).time_fs
        == 10**15
    )
    for kind in ("all_gather", "reduce_scatter", "broadcast", "all_to_all"):
        assert bottleneck(kind, topology).in_network
        assert bottleneck(kind, topology) == bottleneck(kind, topology, in_network=True)


def test_the_emulator_takes_the_bound_that_fits_the_schedule():
    simcoll = pytest.importorskip("simcoll")
    from simcoll.algorithms import switch
    from simcoll.core.collective import Collective

    topology = load_topology("dgx-h100")
    schedule = switch.all_reduce(Collective("all_reduce", 8), pieces=64)
    result = simcoll.emulate(bind(schedule, 2**30), topology, data="none")
    # Up to the switch go a vector of contributions and a share of the result: 9/8 of the bound.
    assert 9 / 8 <= result.headroom < 1.15
    ring = bind(simcoll.schedule("all_reduce", "ring", nranks=8), 2**30)
    assert result.time_fs < simcoll.emulate(ring, topology, data="none").bound.time_fs
