"""Packed trees: each spans all ranks, together they load no link beyond its capacity, and they reach the best cut."""

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from simcoll.bounds import all_gather_cut
from simcoll.bounds.packing import pack_trees, rank_links
from simcoll.errors import ConfigError
from simcoll.topology import boxes, crossbar, fat_tree, from_networkx, hybrid_cube_mesh, hypercube, load_topology, torus


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
    "dgx-degraded": lambda: both_ways(load_topology("dgx-h100"), "box0.gpu3", "box0.nvswitch", "17/18"),
    "fat-tree": lambda: fat_tree(2, 3, "50 GB/s", oversubscription=2),
    "boxes": lambda: boxes(2, 2, "300 GB/s", nics=2, nic_bandwidth="25 GB/s"),
}


def check(topology, packing, backwards):
    """Count from scratch what the packing says."""
    n = topology.nranks
    capacity, unit = rank_links(topology, backwards=backwards)
    load = dict.fromkeys(capacity, 0)
    per_root = [0] * n
    physical = np.zeros(topology.nlinks)
    for tree in packing.trees:
        reached = {tree.root}
        for a, b in tree.links:
            assert a in reached
            assert b not in reached
            reached.add(b)
            load[a, b] += tree.copies
            ends = (b, a) if backwards else (a, b)
            links = topology.route([ends[0]], [ends[1]]).links[0]
            physical[links[links >= 0]] += tree.copies
        assert len(reached) == n
        per_root[tree.root] += tree.copies
    assert per_root == [packing.per_root] * n
    # Seconds per byte of every physical link, when each root sends one byte in ``per_root`` parts.
    times = physical / packing.per_root / (topology.link_capacity_uBps / 1e6)
    assert times.max() <= float(packing.ratio) * (1 + 1e-12)
    assert all(
        Fraction(used, capacity[link]) / packing.per_root / unit * 10**6 <= packing.ratio for link, used in load.items()
    )


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", OPTIMAL)
def test_trees_reach_the_best_cut(name, backwards):
    topology = OPTIMAL[name]()
    packing = pack_trees(topology, backwards=backwards)
    check(topology, packing, backwards)
    assert packing.ratio == all_gather_cut(topology, backwards=backwards).ratio


@pytest.mark.parametrize("seed", range(40))
def test_irregular_graphs_of_direct_links(seed):
    topology = irregular(seed)
    if topology is None:
        return
    packing = pack_trees(topology)
    check(topology, packing, backwards=False)
    cut = all_gather_cut(topology).ratio
    assert cut <= packing.ratio <= cut * Fraction(51, 50)


def test_routes_that_cannot_use_every_link_cost_something_and_it_is_said():
    # PCIe could carry more than the four pairs without NVLink can send over it.
    topology = load_topology("dgx-1v")
    packing = pack_trees(topology)
    check(topology, packing, backwards=False)
    assert all_gather_cut(topology).ratio <= packing.ratio <= Fraction(7, 150) / 10**9 * Fraction(11, 10)


def test_too_many_ranks():
    assert pack_trees(crossbar(1, "50 GB/s")).ratio == 0
    with pytest.raises(ConfigError, match="up to 64 ranks"):
        pack_trees(crossbar(65, "50 GB/s"))
