"""Trees of shortest paths: found once, shared by the ranks of a switch, and bounded."""

from __future__ import annotations

import numpy as np
import pytest

from simcoll.topology import dragonfly, routing
from simcoll.topology.routing import ShortestPathRouter, shortest_path_router


@pytest.fixture
def roots(monkeypatch):
    """The roots of the trees that are looked for."""
    looked_for = []
    find = routing._PathTrees._find
    monkeypatch.setattr(
        routing._PathTrees,
        "_find",
        lambda trees, root: looked_for.append(root) or find(trees, root),
    )
    return looked_for


def network():
    """144 ranks on 36 switches."""
    topology = dragonfly(4, 4, 2, "50 GB/s", "1 us", global_latency="300 ns")
    assert isinstance(topology.router, ShortestPathRouter)
    return topology


def test_the_ranks_of_a_switch_share_its_tree(roots):
    topology = network()
    ranks = np.arange(topology.nranks)
    for shift in (1, 50):
        topology.route(ranks, (ranks + shift) % topology.nranks)
    assert len(roots) == len(set(roots)) == topology.nranks // 4


def test_only_the_latest_trees_are_kept(roots, monkeypatch):
    topology = network()
    monkeypatch.setattr(routing, "KEPT_BYTES", 2 * 4 * topology.router.nvertices)
    target = np.array([143])
    for source in (0, 4, 0, 8, 4, 0):  # of three switches
        topology.route(np.array([source]), target)
    assert len(roots) == 4
    assert len(routing._trees_of(topology.router).vias) == 2


def random_router(rng):
    """A router of a random graph, in which some vertices have one link out."""
    inner, leaves = int(rng.integers(1, 40)), int(rng.integers(0, 40))
    links = rng.integers(0, inner, (2, int(rng.integers(0, 4 * inner))))
    ends = np.stack([inner + np.arange(leaves), rng.integers(0, inner, leaves)])
    src, dst = np.concatenate([links, ends, ends[::-1]], axis=1)
    src, dst = src[src != dst], dst[src != dst]
    n = inner + leaves
    latency_fs, forwards = rng.integers(0, 4, len(src)), rng.random(n) < rng.random()
    return shortest_path_router(n, src, dst, latency_fs, rng.permutation(n), forwards)


@pytest.mark.parametrize("seed", range(20))
def test_routes_are_those_of_a_tree_out_of_every_rank(seed):
    rng = np.random.default_rng(seed)
    router = random_router(rng)
    src, dst = rng.integers(0, len(router.leave), (2, 300))
    shared = router.links(src, dst)
    trees = routing._trees_of(router)
    assert seed or (trees.root != router.leave).any()
    trees.root, trees.first_link = router.leave, np.full(len(router.leave), -1, np.int32)
    assert np.array_equal(router.links(src, dst), shared)
