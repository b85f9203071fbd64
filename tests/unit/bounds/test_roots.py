"""The program of the best all-reduce along trees: published optima, and never better than the
proved bound.
"""

import networkx as nx
import numpy as np
import pytest

from simcoll.bounds import bottleneck
from simcoll.bounds.roots import best_roots
from simcoll.errors import ConfigError
from simcoll.topology import crossbar, fat_tree, from_networkx, load_topology, torus
from tests.support import cuts

SMALL = [
    "crossbar-4",
    "dgx-a100",
    "dgx-h100",
    "ring-4-one-way",
    "ring-8",
    "ring-5",
    "path-4",
    "path-6",
    "torus-3x3",
    "torus-2x4",
    "hypercube-3",
    "mi300x",
    "dgx-1v",
    "fat-tree-2x4-2:1",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_published_optima(name):
    make, _, _, optimum = cuts.ORACLES[name]
    rate, shares = best_roots(make())
    assert rate / 1e9 == pytest.approx(optimum, rel=1e-6)
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize(
    ("make", "bandwidth"),
    [
        (lambda: crossbar(4, "300 GB/s"), 300),
        (lambda: crossbar(8, "300 GB/s"), 300),
        (lambda: fat_tree(2, 4, "50 GB/s", oversubscription=2), 50),
        (lambda: cuts.dgx(2, 300, 25, 4), 100),
    ],
)
def test_published_optima_with_reducing_switches(make, bandwidth):
    topology = make()
    assert best_roots(topology, in_network=True)[0] / 1e9 == pytest.approx(bandwidth, rel=1e-6)
    assert float(
        1 / bottleneck("all_reduce", topology, in_network=True).seconds_per_byte
    ) / 1e9 == pytest.approx(bandwidth)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_the_proved_bound_is_never_beaten(seed):
    """What trees can do is done by a schedule, so it must not be quicker than what is proved of all
    schedules.
    """
    graph = nx.gnp_random_graph(5, 0.6, seed=seed, directed=True)
    if not nx.is_strongly_connected(graph):
        return
    nx.set_node_attributes(graph, "gpu", "kind")
    rng = np.random.default_rng(seed)
    for edge in graph.edges:
        graph.edges[edge]["capacity_uBps"] = int(rng.integers(1, 9)) * 10**15
    topology = from_networkx(graph, gpus_forward=True)
    rate, _ = best_roots(topology)
    assert 1 / rate >= float(bottleneck("all_reduce", topology).seconds_per_byte) * (1 - 1e-9)


def test_slow_ranks_own_less():
    topology = (
        crossbar(4, "100 GB/s").degrade("gpu0 -> switch", "3/4").degrade("switch -> gpu0", "3/4")
    )
    rate, shares = best_roots(topology)
    # All links together carry each element six times; equal shares would wait for the slow rank: 50
    # instead of 62.5.
    assert rate / 1e9 == pytest.approx(375 / 6)
    assert shares[0] < max(shares[1:])
    assert float(1 / bottleneck("all_reduce", topology).seconds_per_byte) == pytest.approx(rate)


def test_too_large():
    assert best_roots(crossbar(1, "1 GB/s"))[1] == (1.0,)
    with pytest.raises(ConfigError, match="too many"):
        best_roots(load_topology("dgx-h100", nodes=8))
    assert best_roots(torus([2], "1 GB/s"))[0] == pytest.approx(1e9)
