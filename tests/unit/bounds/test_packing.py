"""Packed trees: each spans all ranks, together they load no link beyond its capacity, and they
reach the best cut.
"""

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from simcoll.bounds import all_gather_cut, bottleneck
from simcoll.bounds.composing import SHAPES
from simcoll.bounds.growing import _RemainingCapacity, grow, packs
from simcoll.bounds.packing import pack_all_reduce, pack_trees
from simcoll.errors import ConfigError
from simcoll.topology import (
    boxes,
    crossbar,
    fat_tree,
    from_networkx,
    hybrid_cube_mesh,
    hypercube,
    load_topology,
    torus,
)


def both_ways(topology, a, b, share):
    return topology.degrade(f"{a} -> {b}", share).degrade(f"{b} -> {a}", share)


def irregular(seed, n=6):
    graph = nx.gnp_random_graph(n, 0.5, seed=seed, directed=True)
    nx.set_node_attributes(graph, "gpu", "kind")
    rng = np.random.default_rng(seed)
    for edge in graph.edges:
        graph.edges[edge]["capacity_uBps"] = int(rng.integers(1, 5)) * 10**15
    return from_networkx(graph, gpus_forward=True) if nx.is_strongly_connected(graph) else None


OPTIMAL = {
    "crossbar": lambda: crossbar(8, "300 GB/s"),
    "ring": lambda: torus([5], "25 GB/s"),
    "path": lambda: torus([4], "25 GB/s", wrap=False),
    "torus": lambda: torus([3, 4], "25 GB/s"),
    "hypercube": lambda: hypercube(3, "25 GB/s"),
    "cube-mesh": lambda: hybrid_cube_mesh(2, "25 GB/s"),
    "cube-mesh-degraded": lambda: both_ways(hybrid_cube_mesh(2, "25 GB/s"), "gpu0", "gpu4", 0),
    "mesh": lambda: load_topology("mi300x"),
    "dgx-degraded": lambda: both_ways(
        load_topology("dgx-h100"), "box0.gpu3", "box0.nvswitch", "17/18"
    ),
    "fat-tree": lambda: fat_tree(2, 3, "50 GB/s", oversubscription=2),
    "boxes": lambda: boxes(2, 2, "300 GB/s", nics=2, nic_bandwidth="25 GB/s"),
}


UNEVEN = {
    "path": lambda: torus([6], "25 GB/s", wrap=False),
    "slow-rank": lambda: both_ways(crossbar(4, "100 GB/s"), "gpu0", "switch", "3/4"),
    "dgx-degraded": lambda: both_ways(
        load_topology("dgx-h100"), "box0.gpu3", "box0.nvswitch", "17/18"
    ),
    "cube-mesh-degraded": lambda: both_ways(hybrid_cube_mesh(2, "25 GB/s"), "gpu0", "gpu4", 0),
    "boxes": lambda: boxes(2, 2, "300 GB/s", nics=2, nic_bandwidth="25 GB/s"),
    "one-way": lambda: crossbar(4, "100 GB/s").degrade("gpu0 -> switch", "3/4"),
}


def loads(topology, packing, backwards):
    """Copies of trees over every physical link, counted from scratch; each tree spans all ranks."""
    n = topology.nranks
    shares = [0] * n
    physical = np.zeros(topology.nlinks, np.int64)
    for tree in packing.trees:
        reached = {tree.root}
        for a, b in tree.links:
            assert a in reached
            assert b not in reached
            reached.add(b)
            ends = (b, a) if backwards else (a, b)
            links = topology.route([ends[0]], [ends[1]]).links[0]
            physical[links[links >= 0]] += tree.copies
        assert len(reached) == n
        shares[tree.root] += tree.copies
    assert tuple(shares) == packing.shares
    return physical


def seconds(topology, physical, copies):
    """Time of the busiest link, when all parts together are one byte."""
    capacities = topology.link_capacity_uBps.tolist()
    return max(
        Fraction(int(used) * 10**6, capacity * copies)
        for used, capacity in zip(physical, capacities, strict=True)
    )


def check(topology, packing, backwards):
    physical = loads(topology, packing, backwards)
    assert len(set(packing.shares)) == 1
    assert seconds(topology, physical, sum(packing.shares)) * topology.nranks == packing.ratio


@pytest.mark.slow
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", OPTIMAL)
def test_trees_reach_the_best_cut(name, backwards):
    topology = OPTIMAL[name]()
    packing = pack_trees(topology, backwards=backwards)
    check(topology, packing, backwards)
    assert packing.ratio == all_gather_cut(topology, backwards=backwards).ratio


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_irregular_graphs_of_direct_links(seed):
    topology = irregular(seed)
    if topology is None:
        return
    for backwards in (False, True):
        packing = pack_trees(topology, backwards=backwards)
        check(topology, packing, backwards)
        cut = all_gather_cut(topology, backwards=backwards).ratio
        assert cut <= packing.ratio <= cut * Fraction(1005, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNEVEN)
def test_trees_of_an_all_reduce_reach_the_bound(name):
    topology = UNEVEN[name]()
    inward, outward = pack_all_reduce(topology)
    assert inward.shares == outward.shares
    together = loads(topology, inward, backwards=True) + loads(topology, outward, backwards=False)
    bound = bottleneck("all_reduce", topology).seconds_per_byte
    assert bound <= seconds(topology, together, sum(outward.shares)) <= bound * Fraction(1005, 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "link"),
    [(lambda rate: crossbar(4, rate), "gpu1 -> switch"), (lambda rate: torus([3], rate), 0)],
)
def test_capacities_of_many_digits_are_packed_like_round_ones(family, link):
    def over_bound(rate):
        topology = family(rate).degrade(link, "17/18")
        inward, outward = pack_all_reduce(topology)
        together = loads(topology, inward, backwards=True) + loads(
            topology, outward, backwards=False
        )
        proved = bottleneck("all_reduce", topology).seconds_per_byte
        return float(seconds(topology, together, sum(outward.shares)) / proved)

    assert over_bound("300 GB/s") == pytest.approx(over_bound("18 GB/s"), rel=1e-3)


def test_shares_by_hand():
    # A path of ranks: both ends are roots of one half, so that each link carries one half each way,
    # twice.
    assert pack_all_reduce(torus([4], "25 GB/s", wrap=False))[1].shares == (1, 0, 0, 1)
    # Three quarters of the bandwidth: 375 / 4 is the mean; a rank need not receive what it is the
    # root of.
    shares = pack_all_reduce(both_ways(crossbar(4, "100 GB/s"), "gpu0", "switch", "3/4"))[1].shares
    assert [Fraction(share, sum(shares)) for share in shares] == [
        Fraction(2, 5),
        *[Fraction(1, 5)] * 3,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("lost", [False, True])
def test_routes_that_leave_links_idle_are_known_to_the_bound(kind, lost):
    # PCIe could carry more than the few pairs without NVLink can send over it.
    topology = load_topology("dgx-1v")
    if lost:
        topology = both_ways(topology, "box0.gpu0", "box0.gpu3", "1/2")
    bound = bottleneck(kind, topology)
    assert bound.name == "the routes between ranks"
    if kind == "all_reduce":
        reached = sum(packing.ratio for packing in pack_all_reduce(topology))
    else:
        packing = pack_trees(topology, backwards=kind == "reduce_scatter")
        check(topology, packing, backwards=kind == "reduce_scatter")
        reached = packing.ratio
    assert 1 <= reached / topology.nranks / bound.seconds_per_byte <= Fraction(1006, 1000)


def test_no_trees_where_a_cut_has_no_room():
    ends = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    assert packs(ends, np.array([1, 1, 1, 1]), [1, 0, 0])
    assert not packs(ends, np.array([1, 1, 0, 1]), [1, 0, 0])
    # Both trees enter rank 2 over one link.
    assert not packs(ends, np.array([1, 1, 1, 1]), [1, 1, 0])
    assert [tree.links for tree in grow(ends, np.array([1, 1, 1, 1]), [1, 0, 0])] == [
        ((0, 1), (1, 2))
    ]


ALIKE = {
    "nodes": lambda: boxes(4, 3, "300 GB/s", nics=3, nic_bandwidth="25 GB/s"),
    "two-leaves": lambda: boxes(
        4, 2, "300 GB/s", nics=2, nic_bandwidth="25 GB/s", boxes_per_leaf=2, oversubscription=2
    ),
    "crossbar": lambda: crossbar(9, "50 GB/s"),
    "oversubscribed": lambda: fat_tree(2, 6, "50 GB/s", oversubscription=3),
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", ALIKE)
def test_composed_trees_reach_the_best_cut(name, backwards, monkeypatch):
    topology = ALIKE[name]()
    monkeypatch.setattr("simcoll.bounds.packing.MAX_RANKS", 8)
    packing = pack_trees(topology, backwards=backwards)
    check(topology, packing, backwards)
    assert packing.ratio == all_gather_cut(topology, backwards=backwards).ratio


def test_an_all_reduce_of_many_nodes_has_composed_trees_both_ways(monkeypatch):
    monkeypatch.setattr("simcoll.bounds.packing.MAX_RANKS", 8)
    topology = ALIKE["nodes"]()
    inward, outward = pack_all_reduce(topology)
    check(topology, inward, backwards=True)
    check(topology, outward, backwards=False)
    bound = bottleneck("all_reduce", topology).seconds_per_byte
    assert (inward.ratio + outward.ratio) / topology.nranks == bound


@pytest.mark.parametrize(
    ("topology", "reason"),
    [
        (
            torus([6, 11], "25 GB/s"),
            "the same trees in all nodes do not serve within 1 % of the bound",
        ),
        (
            crossbar(66, "50 GB/s").degrade("gpu3 -> switch", "1/2"),
            "do not serve within 1 % of the bound",
        ),
        (boxes(2, 65, "300 GB/s", nics=5, nic_bandwidth="25 GB/s"), "in nodes of 65"),
    ],
    ids=["torus", "slow-rank", "large-nodes"],
)
def test_many_ranks_that_no_composed_trees_serve_are_refused(topology, reason):
    with pytest.raises(
        ConfigError, match=f"serves up to 64 ranks, or more in nodes that are alike.*{reason}"
    ):
        pack_trees(topology)


def test_the_shapes_of_trees_over_nodes_span_them():
    for shape in SHAPES:
        for count in range(1, 20):
            parents = shape(count)
            for offset in range(count):
                at, steps = offset, 0
                while at:
                    at, steps = parents[at], steps + 1
                assert steps < count


@pytest.mark.slow
def test_flows_are_those_of_another_solver():
    rng = np.random.default_rng(11)
    compared = 0
    for n in 20 * [*range(2, 10)]:
        ends = np.argwhere(~np.eye(n, dtype=bool) & (rng.random((n, n)) < rng.choice([0.3, 0.9]))).T
        shares = rng.integers(0, 9, n).tolist()
        remaining = _RemainingCapacity(ends, rng.integers(0, 20, ends.shape[1]), shares)
        for x in range(n + 1):
            y = (x + 1) % n
            graph = remaining.capacity.astype(np.int32)
            if x < n:
                graph[n, x] = graph.sum()
            flow = int(maximum_flow(csr_array(graph), n, y).flow_value)
            # More than all trees need does not matter.
            flow = min(flow, remaining.total)
            assert min(remaining.reach(x, y, 10**6), remaining.total) == flow
            assert remaining.reach(x, y, flow // 2) >= flow // 2
            compared += flow > 0
    assert compared > 500
