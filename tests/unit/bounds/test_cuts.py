"""The exact cut of all-gather and scatter: published values, closed forms, and every subset of
small random graphs.
"""

from fractions import Fraction
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.bounds import all_gather_cut
from simcoll.bounds.cuts import scatter_cut
from simcoll.topology import crossbar, fat_tree, from_networkx, load_topology, torus
from tests.support.cuts import ORACLES, dgx, dgx1v_without_pcie, hypercube


@pytest.mark.slow
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
    # Two ranks a box on 2 boxes: the other GPUs carry nothing, not even through their network
    # cards.
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
                    data["capacity_uBps"]
                    for a, b, data in graph.edges(data=True)
                    if a in inside and b not in inside
                )
                best = max(best, Fraction(weight, out) * 10**6)
    return best


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 7), seed=st.integers(0, 10**6), big=st.booleans(), with_switch=st.booleans()
)
def test_random_graphs_against_all_subsets(n, seed, big, with_switch):
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(n, 0.6, seed=seed, directed=True)
    nx.set_node_attributes(graph, "gpu", "kind")
    if with_switch and n > 2:
        graph.nodes[0]["kind"] = "switch"
    # With a large prime the flows do not fit 32 bits exactly.
    scale = 999_999_999_989 if big else 10**15
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
        expected = every_cut(
            topology, edges, lambda inside, ranks: len(inside & ranks) if ranks - inside else 0
        )
        cut = all_gather_cut(topology, backwards=backwards)
        assert cut.ratio == expected if cut.exact else expected * 99 / 100 <= cut.ratio <= expected
        root = topology.node_names[topology.rank_nodes[0]]
        expected = every_cut(
            topology,
            edges,
            lambda inside, ranks: len(ranks - inside) if root in inside else 0,  # noqa: B023
        )
        cut = scatter_cut(topology, 0, backwards=backwards)
        assert cut.ratio == expected if cut.exact else expected * 99 / 100 <= cut.ratio <= expected
