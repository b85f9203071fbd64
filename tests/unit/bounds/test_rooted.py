"""Rooted collectives: what is called exact is the optimum of a linear program over the routes of
messages.
"""

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import linprog

from simcoll.bounds import bottleneck
from simcoll.topology import crossbar, from_networkx, load_topology, torus

KINDS = ("broadcast", "reduce", "scatter", "gather")


def optimum(kind, topology, root):
    """Seconds per byte of all data: every pair of ranks has one route; a message takes all of its
    links.

    A broadcast is as fast as every rank alone could get all of it within shared capacities of the
    pairs (Edmonds); a scatter is one flow that leaves each rank its share. Reduce and gather are
    these two backwards. Independent of the package except for the routes.
    """
    n = topology.nranks
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    load = np.zeros((topology.nlinks, len(pairs)))
    for number, (a, b) in enumerate(pairs):
        for link in topology.route([a], [b]).links[0]:
            if link >= 0:
                load[link, number] = 1
    if kind in ("reduce", "gather"):
        pairs = [(b, a) for a, b in pairs]
    capacity = topology.link_capacity_uBps / 1e15  # bytes per nanosecond
    balance = np.zeros((n, len(pairs)))  # what enters a rank less what leaves it
    for number, (a, b) in enumerate(pairs):
        balance[a, number] -= 1
        balance[b, number] += 1
    flows = n - 1 if kind in ("broadcast", "reduce") else 1
    columns = 1 + len(pairs) * (1 + flows)  # the time, shared bytes of each pair, flows
    shared = slice(1, 1 + len(pairs))
    rows, limits, equal, wanted = [], [], [], []
    for link in range(topology.nlinks):
        row = np.zeros(columns)
        row[shared], row[0] = load[link], -capacity[link]
        rows.append(row)
        limits.append(0)
    sinks = [rank for rank in range(n) if rank != root]
    for flow in range(flows):
        own = slice(1 + len(pairs) * (1 + flow), 1 + len(pairs) * (2 + flow))
        for number in range(len(pairs)):
            row = np.zeros(columns)
            row[own.start + number], row[shared.start + number] = 1, -1
            rows.append(row)
            limits.append(0)
        for rank in range(n):
            if rank == root:
                continue
            row = np.zeros(columns)
            row[own] = balance[rank]
            equal.append(row)
            wanted.append(1 / n if flows == 1 else float(rank == sinks[flow]))
    cost = np.zeros(columns)
    cost[0] = 1
    found = linprog(
        cost, np.array(rows), limits, np.array(equal), wanted, bounds=(0, None), method="highs"
    )
    assert found.success
    return found.fun / 1e9


def random_graph(seed):
    """Links of random rates in both directions or one, between 3 to 6 ranks that forward, and often
    a switch or two.
    """
    rng = np.random.default_rng(seed)
    n, switches = int(rng.integers(3, 7)), int(rng.integers(0, 3))
    graph = nx.gnp_random_graph(n + switches, 0.5, seed=seed, directed=True)
    for vertex in graph:
        graph.nodes[vertex].update(
            {"kind": "gpu", "rank": vertex} if vertex < n else {"kind": "switch"}
        )
    for edge in graph.edges:
        graph.edges[edge]["capacity_uBps"] = int(rng.choice([1, 2, 3, 7, 10, 100])) * 10**15
        graph.edges[edge]["latency_fs"] = int(rng.integers(1, 4)) * 10**6
    return from_networkx(graph, gpus_forward=True) if nx.is_strongly_connected(graph) else None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_exact_is_the_optimum_and_nothing_is_above_it(kind):
    said = {True: 0, False: 0}
    for seed in range(60):
        topology = random_graph(seed)
        if topology is None:
            continue
        root = seed % topology.nranks
        proof = bottleneck(kind, topology, root=root)
        best = optimum(kind, topology, root)
        assert float(proof.seconds_per_byte) <= best * (1 + 1e-9), seed
        if proof.exact:
            assert float(proof.seconds_per_byte) == pytest.approx(best, rel=1e-6), seed
        said[proof.exact] += 1
    assert said[True] >= 20


@pytest.mark.parametrize("kind", KINDS)
def test_links_that_no_route_takes_prove_nothing(kind):
    # A fast link beside a short slow one: messages go the short way, and could not be faster over
    # the other.
    graph = nx.DiGraph()
    for rank in range(3):
        graph.add_node(rank, kind="gpu", rank=rank)
    for vertex in ("a", "b"):
        graph.add_node(vertex, kind="switch")
    for tail, head, rate in (
        (0, 1, 1),
        (1, 2, 1),
        (2, 0, 1),
        (0, "a", 9),
        ("a", "b", 9),
        ("b", 2, 9),
        (2, 1, 1),
        (1, 0, 1),
    ):
        graph.add_edge(tail, head, capacity_uBps=rate * 10**15)
    topology = from_networkx(graph, gpus_forward=True)
    for root in range(3):
        proof = bottleneck(kind, topology, root=root)
        best = optimum(kind, topology, root)
        assert float(proof.seconds_per_byte) <= best * (1 + 1e-9)
        assert not proof.exact or float(proof.seconds_per_byte) == pytest.approx(best)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "topology",
    [
        crossbar(8, "50 GB/s"),
        torus([4, 4], "25 GB/s"),
        load_topology("dgx-h100"),
        load_topology("dgx-1v"),
        load_topology("dgx-2"),
    ],
    ids=["crossbar", "torus", "dgx-h100", "dgx-1v", "dgx-2"],
)
def test_regular_machines(kind, topology):
    proof = bottleneck(kind, topology)
    best = optimum(kind, topology, 0)
    assert float(proof.seconds_per_byte) <= best * (1 + 1e-9)
    assert not proof.exact or float(proof.seconds_per_byte) == pytest.approx(best, rel=1e-6)
    if topology.name != "dgx-1v":  # links that hardly any route takes
        assert proof.exact
