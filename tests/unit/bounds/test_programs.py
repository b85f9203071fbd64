"""The all-to-all program: its optimum where cuts see less, and lengths that prove what they claim
and no more.
"""

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from simcoll.bounds import bottleneck
from simcoll.bounds.flows import flow_graph
from simcoll.bounds.linear_programs import all_to_all_bound, all_to_all_by_routes, distance_bound
from simcoll.topology import crossbar, fat_tree, from_networkx, hypercube, torus
from tests.support import cuts


def seconds(topology):
    """Seconds per byte that every pair sends, by the program."""
    graph = flow_graph(topology)
    return all_to_all_bound(graph) / graph.unit_uBps * 10**6


@pytest.mark.parametrize(
    ("make", "bandwidth"),
    [
        # GB/s of buffer over time: closed forms of the optimum (arXiv 2309.13541).
        (lambda: crossbar(4, "300 GB/s"), 400),
        (lambda: cuts.one_way_ring(4), Fraction(50, 3)),
        (lambda: cuts.one_way_ring(7), Fraction(25, 3)),
        (lambda: torus([5], "25 GB/s"), Fraction(125, 3)),
        (lambda: torus([3, 3], "25 GB/s"), 75),
        (lambda: torus([3, 5], "25 GB/s"), Fraction(125, 3)),
        (lambda: hypercube(3, "25 GB/s"), 50),
        (cuts.dgx1v_without_pcie, 75),
        (lambda: fat_tree(4, 4, "50 GB/s", oversubscription=2), Fraction(100, 3)),
        (lambda: cuts.dgx(2, 300, 25), 50),
    ],
)
def test_the_program_is_exact_where_closed_forms_are_known(make, bandwidth):
    topology = make()
    assert 1 / (seconds(topology) / topology.nranks) == bandwidth * 10**9


def test_the_bound_takes_the_program_where_cuts_see_less():
    proof = bottleneck("all_to_all", cuts.one_way_ring(4))
    assert proof.seconds_per_byte == Fraction(3, 50) / 10**9
    assert "lengths" in proof.argument


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_never_above_what_routes_can_do(seed):
    graph = nx.gnp_random_graph(6, 0.5, seed=seed, directed=True)
    if not nx.is_strongly_connected(graph):
        return
    nx.set_node_attributes(graph, "gpu", "kind")
    rng = np.random.default_rng(seed)
    for edge in graph.edges:
        graph.edges[edge]["capacity_uBps"] = int(rng.integers(1, 9)) * 10**15
    topology = from_networkx(graph, gpus_forward=True)
    per_byte = bottleneck("all_to_all", topology).seconds_per_byte
    assert seconds(topology) / 6 <= per_byte <= all_to_all_by_routes(topology) / 6


def test_any_lengths_prove_a_bound_and_none_proves_too_much():
    topology = torus([3, 3], "25 GB/s")
    graph = flow_graph(topology)
    best = all_to_all_bound(graph)
    rng = np.random.default_rng(1)
    for _ in range(50):
        lengths = np.array(rng.integers(0, 5, graph.capacity.size).tolist(), dtype=object)
        assert distance_bound(graph, lengths) <= best
    assert distance_bound(graph, np.zeros(graph.capacity.size, dtype=object)) == 0
