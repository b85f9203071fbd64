"""The exact cut of all-gather and scatter: published values, closed forms, and every subset of small random graphs."""

from fractions import Fraction
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.bounds import all_gather_cut
from simcoll.bounds.cuts import scatter_cut
from simcoll.topology import boxes, crossbar, fat_tree, from_networkx, load_topology, torus


def hypercube(d):
    graph = nx.convert_node_labels_to_integers(nx.hypercube_graph(d), ordering="sorted")
    nx.set_node_attributes(graph, "gpu", "kind")
    nx.set_edge_attributes(graph, "25 GB/s", "bandwidth")
    return from_networkx(graph, gpus_forward=True)


def one_way_ring(n):
    graph = nx.cycle_graph(n, create_using=nx.DiGraph)
    nx.set_node_attributes(graph, "gpu", "kind")
    nx.set_edge_attributes(graph, "25 GB/s", "bandwidth")
    return from_networkx(graph, gpus_forward=True)


def dgx1v_without_pcie():
    graph = nx.Graph()
    graph.add_nodes_from(range(8), kind="gpu")
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    graph.add_edges_from(single, bandwidth="25 GB/s")
    graph.add_edges_from(double, bandwidth="50 GB/s")
    return from_networkx(graph, gpus_forward=True)


def dgx(nodes, gpu, nic, per_box=8):
    return boxes(nodes, per_box, f"{gpu} GB/s", nics=per_box, nic_bandwidth=f"{nic} GB/s")


# Exact ratios in seconds per gigabyte, ranks inside, and the all-reduce algorithm bandwidth (GB/s) of the optimal
# LP or of reduce-scatter plus all-gather where they agree. All-gather ratios come from max-flow with rational
# arithmetic (ForestColl, arXiv 2402.06787, and closed forms: crossbar (N-1)/b, d-regular (N-1)/(d b), boxes
# max((N-1)/(a+c), (N-g)/(g c)), fat tree max((N-1)/b, (N-p) s/(p b))).
ORACLES = {
    "crossbar-4": (lambda: crossbar(4, "300 GB/s"), "1/100", 3, 200.0),
    "dgx-a100": (lambda: load_topology("dgx-a100"), "7/300", 7, 171.428571),
    "dgx-h100": (lambda: load_topology("dgx-h100"), "7/450", 7, 257.142857),
    "dgx-b200": (lambda: load_topology("dgx-b200"), "7/900", 7, 514.285714),
    "dgx-2": (lambda: load_topology("dgx-2"), "1/10", 15, 80.0),
    "gb200-nvl72": (lambda: load_topology("gb200-nvl72"), "71/900", 71, 456.338028),
    "2-dgx-a100": (lambda: load_topology("dgx-a100", nodes=2), "3/65", 15, 173.333333),
    "3-dgx-a100": (lambda: load_topology("dgx-a100", nodes=3), "2/25", 16, 150.0),
    "4-dgx-a100": (lambda: dgx(4, 300, 25), "3/25", 24, 133.333333),
    "2-dgx-h100": (lambda: load_topology("dgx-h100", nodes=2), "3/100", 15, 266.666667),
    "4-dgx-h100": (lambda: dgx(4, 450, 50), "31/500", 31, 258.064516),
    "8-dgx-h100": (lambda: dgx(8, 450, 50), "7/50", 56, 228.571429),
    "16-dgx-h100": (lambda: dgx(16, 450, 50), "3/10", 120, 213.333333),
    "32-dgx-h100": (lambda: dgx(32, 450, 50), "31/50", 248, 206.451613),
    "8-nvl72": (lambda: dgx(8, 900, 50, 72), "23/38", 575, 475.826087),
    "ring-4-one-way": (lambda: one_way_ring(4), "3/25", 3, 16.666667),
    "ring-8": (lambda: torus([8], "25 GB/s"), "7/50", 7, 28.571429),
    "ring-5": (lambda: torus([5], "25 GB/s"), "2/25", 4, 31.25),
    # On a path the optimum of all-reduce is 25, more than reduce-scatter plus all-gather (16.7 and 15).
    "path-4": (lambda: torus([4], "25 GB/s", wrap=False), "3/25", 3, 25.0),
    "path-6": (lambda: torus([6], "25 GB/s", wrap=False), "1/5", 5, 25.0),
    "torus-3x3": (lambda: torus([3, 3], "25 GB/s"), "2/25", 8, 56.25),
    "torus-4x4": (lambda: torus([4, 4], "25 GB/s"), "3/20", 15, 53.333333),
    "torus-3x5": (lambda: torus([3, 5], "25 GB/s"), "7/50", 14, 53.571429),
    "torus-2x4": (lambda: torus([2, 4], "25 GB/s"), "7/75", 7, 42.857143),
    "torus-8x8": (lambda: torus([8, 8], "25 GB/s"), "63/100", 63, 50.793651),
    "torus-4x4x4": (lambda: torus([4, 4, 4], "25 GB/s"), "21/50", 63, 76.190476),
    "tpu-v5e": (lambda: load_topology("tpu-v5e"), "17/12", 255, 90.352941),
    "hypercube-3": (lambda: hypercube(3), "7/75", 7, 42.857143),
    "hypercube-4": (lambda: hypercube(4), "3/20", 15, 53.333333),
    "hypercube-6": (lambda: hypercube(6), "21/50", 63, 76.190476),
    "mi300x": (lambda: load_topology("mi300x"), "1/64", 7, 256.0),
    "dgx-1v": (dgx1v_without_pcie, "7/150", 7, 85.714286),
    "fat-tree-2x4-1:1": (lambda: fat_tree(2, 4, "50 GB/s"), "7/50", 7, 28.571429),
    "fat-tree-2x4-2:1": (lambda: fat_tree(2, 4, "50 GB/s", oversubscription=2), "7/50", 7, 28.571429),
    "fat-tree-4x4-2:1": (lambda: fat_tree(4, 4, "50 GB/s", oversubscription=2), "3/10", 15, 26.666667),
    "fat-tree-4x8-2:1": (lambda: fat_tree(4, 8, "50 GB/s", oversubscription=2), "31/50", 31, 25.806452),
    "fat-tree-4x8-16:1": (lambda: fat_tree(4, 8, "800 GB/s", oversubscription=16), "3/50", 24, 266.666667),
}


@pytest.mark.parametrize("name", ORACLES)
def test_published_ratios(name):
    make, ratio, inside, _ = ORACLES[name]
    cut = all_gather_cut(make())
    assert cut.ratio * 10**9 == Fraction(ratio)
    assert len(cut.ranks_inside) == inside
    assert cut.exact
    assert Fraction(inside, cut.capacity_uBps) * 10**6 == cut.ratio


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: load_topology("dgx-h100", nodes=2), "the links into box0.gpu0"),
        (lambda: load_topology("dgx-h100", nodes=8), "the NICs of box 0"),
        (lambda: fat_tree(4, 8, "800 GB/s", oversubscription=16), "the links into leaf 0"),
        (lambda: crossbar(5, "50 GB/s").degrade("switch -> gpu3", "1/2"), "the links into gpu3"),
        (lambda: crossbar(5, "50 GB/s").degrade("gpu3 -> switch", "1/8"), "the links out of gpu3"),
    ],
)
def test_the_cut_is_named_in_words(make, name):
    assert all_gather_cut(make()).name.replace("box 7", "box 0") == name


def test_reduce_scatter_is_the_all_gather_of_the_reversed_graph():
    topology = crossbar(5, "50 GB/s").degrade("gpu3 -> switch", "1/2")
    cut = all_gather_cut(topology, backwards=True)
    assert cut.ratio * 10**9 == Fraction(4, 25)
    assert cut.name == "the links out of gpu3"
    assert all_gather_cut(topology).ratio * 10**9 == Fraction(4, 50)


def test_ranks_on_some_gpus_only():
    # Two ranks a box on 2 boxes: the other GPUs carry nothing, not even through their network cards.
    topology = load_topology("dgx-h100", nodes=2).with_ranks([0, 1, 8, 9])
    assert all_gather_cut(topology).ratio * 10**9 == max(Fraction(3, 500), Fraction(2, 100))
    assert all_gather_cut(load_topology("dgx-h100").take(1)).ratio == 0


@pytest.mark.parametrize(
    ("make", "ratio"),
    [
        (lambda: crossbar(8, "300 GB/s"), "7/300"),
        (dgx1v_without_pcie, "7/150"),
        (lambda: torus([4, 4], "25 GB/s"), "3/20"),
        (lambda: dgx(2, 300, 25), "3/65"),
        (lambda: dgx(4, 300, 25), "3/25"),
        (lambda: torus([8], "25 GB/s"), "7/50"),
        (lambda: hypercube(3), "7/75"),
        (lambda: fat_tree(4, 8, "50 GB/s", oversubscription=2), "31/50"),
    ],
)
def test_scatter_ratios(make, ratio):
    assert scatter_cut(make(), 0).ratio * 10**9 == Fraction(ratio)


def test_capacities_at_the_edge_of_64_bits():
    topology = crossbar(5, 9 * 10**18 + 1).degrade("gpu1 -> switch", "999999999989/1000000000000")
    cut = all_gather_cut(topology)
    assert cut.ratio == Fraction(4 * 10**6, 9 * 10**18 + 1)
    assert all_gather_cut(topology, backwards=True).name == "the links out of gpu1"


def every_cut(topology, graph, wanted):
    """The largest ratio over all subsets of vertices, by trying each."""
    names = list(graph.nodes)
    ranks = {topology.node_names[v] for v in topology.rank_nodes}
    best = Fraction(0)
    for size in range(1, len(names)):
        for chosen in combinations(names, size):
            inside = set(chosen)
            weight = wanted(inside, ranks)
            if weight:
                out = sum(
                    data["capacity_uBps"] for a, b, data in graph.edges(data=True) if a in inside and b not in inside
                )
                best = max(best, Fraction(weight, out) * 10**6)
    return best


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 7), seed=st.integers(0, 10**6), big=st.booleans(), with_switch=st.booleans())
def test_random_graphs_against_all_subsets(n, seed, big, with_switch):
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(n, 0.6, seed=seed, directed=True)
    nx.set_node_attributes(graph, "gpu", "kind")
    if with_switch and n > 2:
        graph.nodes[0]["kind"] = "switch"
    scale = 999_999_999_989 if big else 10**15  # with a large prime the flows do not fit 32 bits exactly
    for a, b in graph.edges:
        graph.edges[a, b]["capacity_uBps"] = int(rng.integers(1, 9)) * scale + (
            int(rng.integers(0, 10**9)) if big else 0
        )
    if not nx.is_strongly_connected(graph):
        return
    topology = from_networkx(graph, gpus_forward=True)
    arcs = topology.to_networkx()
    for backwards in (False, True):
        edges = arcs.reverse() if backwards else arcs
        expected = every_cut(topology, edges, lambda inside, ranks: len(inside & ranks) if ranks - inside else 0)
        cut = all_gather_cut(topology, backwards=backwards)
        assert cut.ratio == expected if cut.exact else expected * 99 / 100 <= cut.ratio <= expected
        root = topology.node_names[topology.rank_nodes[0]]
        expected = every_cut(topology, edges, lambda inside, ranks: len(ranks - inside) if root in inside else 0)  # noqa: B023
        cut = scatter_cut(topology, 0, backwards=backwards)
        assert cut.ratio == expected if cut.exact else expected * 99 / 100 <= cut.ratio <= expected
