"""Families against graph theory: routes are paths, as short as networkx says; capacities are as
asked for.
"""

import pickle
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from simcoll.errors import ConfigError
from simcoll.topology import (
    LINK_KINDS,
    Tier,
    boxes,
    crossbar,
    fat_tree,
    from_networkx,
    load_topology,
    torus,
)

GB = 10**15  # GB/s in micro-bytes per second

SMALL = {
    "crossbar-1": lambda: crossbar(1, "50 GB/s", "2 us"),
    "crossbar-5": lambda: crossbar(5, "50 GB/s", "2 us"),
    "fat-tree-1x3": lambda: fat_tree(1, 3, "50 GB/s", "1 us"),
    "fat-tree-3x2": lambda: fat_tree(
        3, 2, "50 GB/s", "1 us", oversubscription="3:2", spine_latency="3 ns"
    ),
    "ring-7": lambda: torus([7], "25 GB/s", "1 us"),
    "path-4": lambda: torus([4], "25 GB/s", "1 us", wrap=False),
    "torus-3x4": lambda: torus([3, 4], "25 GB/s", "1 us"),
    "torus-2x1x5": lambda: torus([2, 1, 5], "25 GB/s", "1 us"),
    "grid-3x3-half": lambda: torus([3, 3], "25 GB/s", "1 us", wrap=[True, False]),
    "one-box": lambda: boxes(1, 3, "300 GB/s", "1 us"),
    "boxes-3x4": lambda: boxes(
        3,
        4,
        "300 GB/s",
        "1 us",
        nics=4,
        nic_bandwidth="25 GB/s",
        nic_latency="3 us",
        spine_latency="1 us",
    ),
    "boxes-shared": lambda: boxes(
        2,
        4,
        "300 GB/s",
        "1 us",
        nics=2,
        nic_bandwidth="25 GB/s",
        nic_latency="3 us",
        spine_latency="1 us",
    ),
    "boxes-many-nics": lambda: boxes(
        2,
        2,
        "300 GB/s",
        "1 us",
        nics=8,
        nic_bandwidth="10 GB/s",
        nic_latency="3 us",
        spine_latency="5 fs",
    ),
    "boxes-pods": lambda: boxes(
        5,
        2,
        "300 GB/s",
        "1 us",
        nics=2,
        nic_bandwidth="25 GB/s",
        nic_latency="3 us",
        boxes_per_leaf=2,
        spine_latency="1 us",
    ),
    "mesh": lambda: boxes(
        2,
        3,
        "64 GB/s",
        "1 us",
        interconnect="mesh",
        nics=3,
        nic_bandwidth="25 GB/s",
        nic_latency="3 us",
    ),
    "dgx-1v": lambda: load_topology("dgx-1v", nodes=2),
}

# Traffic keeps to the network card of its rail, also where another way would be shorter.
RAILS_FIRST = {"boxes-shared", "dgx-1v"}


@pytest.mark.parametrize("name", SMALL)
def test_every_route_is_a_path_and_a_shortest_one(name):
    topology = SMALL[name]()
    n = topology.nranks
    graph = topology.to_networkx()
    src, dst = (ends.ravel() for ends in np.indices((n, n)))
    routes = topology.route(src, dst)
    assert routes.links.shape[0] == n * n
    if not topology.gpus_forward:  # neither GPUs nor, inside a node, NICs pass traffic on
        for edge in list(graph.edges):
            if graph.nodes[edge[0]]["kind"] == "gpu":
                graph.edges[edge]["latency_fs"] += 10**13
    for m in range(n * n):
        links = routes.links[m][routes.links[m] >= 0]
        a, b = (topology.node_names[topology.rank_nodes[end[m]]] for end in (src, dst))
        if a == b:
            assert links.size == 0
            assert routes.kind[m] == -1
            continue
        assert (routes.links[m][: links.size] >= 0).all()
        assert topology.node_names[topology.link_src[links[0]]] == a
        assert topology.node_names[topology.link_dst[links[-1]]] == b
        assert all(topology.link_dst[x] == topology.link_src[y] for x, y in pairwise(links))
        assert routes.latency_fs[m] == topology.link_latency_fs[links].sum()
        assert routes.kind[m] == topology.link_kind[links].max()
        if name in RAILS_FIRST:
            continue
        penalty = 0 if topology.gpus_forward else 10**13
        assert routes.latency_fs[m] + penalty == nx.shortest_path_length(
            graph, a, b, weight="latency_fs"
        )


def test_crossbar_latency_is_exact_also_when_odd():
    topology = crossbar(3, "50 GB/s", 5)
    assert topology.route([0, 1, 2], [1, 1, 0]).latency_fs.tolist() == [5, 0, 5]


def test_fat_tree_of_the_smpi_contention_runs():
    # SimGrid platform: 16 hosts, 4 a leaf, 12.5 GB/s links of 1 us, two uplinks a leaf.
    tree = fat_tree(4, 4, "12.5 GB/s", "2 us", oversubscription=2, spine_latency="2 us")
    links = tree.route([0, 0], [3, 4])
    assert links.latency_fs.tolist() == [2 * 10**9, 4 * 10**9]
    assert tree.path(0, 4) == ["gpu0 -> leaf0", "leaf0 -> spine", "spine -> leaf1", "leaf1 -> gpu4"]
    assert tree.link_capacity_uBps[links.links[1]].tolist() == [
        12_500 * 10**12,
        25 * GB,
        25 * GB,
        12_500 * 10**12,
    ]
    assert tree.groups["leaf"].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_oversubscribed_uplink_is_exact():
    tree = fat_tree(2, 3, "50 GB/s", oversubscription="7:3")
    assert tree.link_capacity_uBps[tree.link("leaf0 -> spine")] == 3 * 50 * GB * 3 // 7


@pytest.mark.parametrize("k", [3, 4, 5, 8])
def test_ring_loads_both_directions_equally_when_all_send_to_all(k):
    ring = torus([k], "25 GB/s")
    src, dst = (ends.ravel() for ends in np.indices((k, k)))
    links = ring.route(src, dst).links
    load = np.bincount(links[links >= 0], minlength=ring.nlinks)
    assert load.sum() == k * sum(min(d, k - d) for d in range(k))
    if k % 2 or k % 4 == 0:
        assert load.min() == load.max()


def test_torus_degree_and_groups():
    topology = torus([2, 3, 4], "45 GB/s")
    degree = np.bincount(topology.link_src, minlength=24)
    assert degree.tolist() == [1 + 2 + 2] * 24
    assert np.bincount(topology.groups["line2"]).tolist() == [4] * 6
    assert np.bincount(topology.groups["plane2"]).tolist() == [6] * 4
    assert topology.groups["line2"][:4].tolist() == [0, 0, 0, 0]


def test_boxes_use_the_card_of_their_rail():
    topology = boxes(
        2,
        8,
        "450 GB/s",
        "1 us",
        nics=4,
        nic_bandwidth="50 GB/s",
        nic_latency="3 us",
        spine_latency="1 us",
    )
    assert topology.path(5, 8 + 4) == [
        "box0.gpu5 -> box0.nic2",
        "box0.nic2 -> leaf0.rail2",
        "leaf0.rail2 -> box1.nic2",
        "box1.nic2 -> box1.gpu4",
    ]
    assert [hop.partition(" ->")[0] for hop in topology.path(0, 15)][2:5] == [
        "leaf0.rail0",
        "spine",
        "leaf0.rail3",
    ]
    assert topology.route([0, 0], [8, 15]).latency_fs.tolist() == [3 * 10**9, 4 * 10**9]
    assert [LINK_KINDS[k] for k in topology.route([0, 0], [1, 8]).kind] == ["nvlink", "net"]
    assert list(topology.groups) == ["box", "leaf"]


def test_more_cards_than_gpus_add_up():
    topology = boxes(2, 2, "450 GB/s", nics=8, nic_bandwidth="100 Gbps")
    assert topology.link_capacity_uBps[topology.link("box0.nic1 -> leaf0.rail1")] == 50 * GB


def test_pods_leaves_and_spine_capacity():
    topology = boxes(
        4, 2, "450 GB/s", nics=2, nic_bandwidth="50 GB/s", boxes_per_leaf=2, oversubscription=4
    )
    assert topology.link_capacity_uBps[topology.link("leaf1.rail0 -> spine")] == 2 * 50 * GB // 4
    assert topology.groups["pod"].tolist() == [0] * 4 + [1] * 4
    assert topology.groups["leaf"].tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


def test_three_tiers():
    tiers = (
        Tier("leaf", boxes=2, rail_only=True, latency="2 us"),
        Tier("spine", boxes=4, rail_only=True, latency="1 us"),
        Tier("core", latency="500 ns", oversubscription=7),
    )
    topology = boxes(8, 2, "450 GB/s", nics=2, nic_bandwidth="50 GB/s", tiers=tiers)
    assert topology.route([0, 0, 0, 0], [2, 4, 8, 5]).latency_fs.tolist() == [
        2 * 10**9,
        3 * 10**9,
        35 * 10**8,
        35 * 10**8,
    ]
    assert topology.link_capacity_uBps[topology.link("spine1.rail0 -> core")] == 4 * 50 * GB // 7
    assert topology.groups["spine_pod"].tolist() == [0] * 8 + [1] * 8


def test_dgx1v_pair_without_nvlink_takes_pcie_and_sockets():
    topology = load_topology("dgx-1v")
    assert topology.path(0, 3) == ["box0.gpu0 -> box0.gpu3"]
    assert topology.link_capacity_uBps[topology.link("box0.gpu0 -> box0.gpu3")] == 50 * GB
    assert [hop.partition(" -> ")[2] for hop in topology.path(0, 5)] == [
        "box0.pcie0",
        "box0.cpu0",
        "box0.cpu1",
        "box0.pcie2",
        "box0.gpu5",
    ]


def test_large_topologies_route_in_arrays():
    topology = load_topology("superpod-h100")
    ranks = np.arange(topology.nranks)
    links = topology.route(ranks, (ranks + 8) % topology.nranks).links
    # A shift by one box stays on the rail: every rank of a leaf's last box crosses the spine, the
    # others do not.
    assert ((links >= 0).sum(axis=1) == np.where(ranks // 8 % 32 == 31, 6, 4)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: crossbar(0, "50 GB/s"), "nranks: 0 is out of range"),
        (lambda: crossbar(2, "50"), "has no unit"),
        (lambda: crossbar(2, "0 GB/s"), "positive"),
        (lambda: crossbar(2, "50 GB/s", link_kind="nvlnk"), "did you mean 'nvlink'"),
        (lambda: crossbar(2.0, "50 GB/s"), "whole number"),
        (lambda: crossbar(True, "50 GB/s"), "whole number"),
        (lambda: crossbar(2, "50 GB/s", -1), "out of range"),
        (lambda: fat_tree(2, 400, "50 GB/s"), "9.22 TB/s"),
        (lambda: fat_tree(2, 2, "50 GB/s", oversubscription=0), "oversubscription"),
        (lambda: fat_tree(2, 2, "50 GB/s", oversubscription="a:b"), "oversubscription"),
        (
            lambda: torus([10**5, 10**5, 10**5], "50 GB/s"),
            "number of ranks: 1000000000000000 is out of range",
        ),
        (lambda: crossbar(10**7, "50 GB/s"), "nranks: 10000000 is out of range"),
        (lambda: torus([], "50 GB/s"), "at least one dimension"),
        (lambda: torus([3, 3], "50 GB/s", wrap=[True]), "one for each of 2"),
        (
            lambda: torus([3, 3], "50 GB/s", wrap=3),
            "wrap: expected true or false, or one of them for each dimension, got 3",
        ),
        (lambda: torus([3, 3], "50 GB/s", wrap=[[True], [True]]), "wrap: expected true or false"),
        (
            lambda: torus([3, 3], "50 GB/s").with_ranks([[0, 1], [2]]),
            "a placement must be whole numbers",
        ),
        (lambda: boxes(2, 8, "450 GB/s"), "no NICs"),
        (lambda: boxes(2, 8, "450 GB/s", nics=8), "nic_bandwidth"),
        (lambda: boxes(2, 8, "450 GB/s", nics=3, nic_bandwidth="50 GB/s"), "shared equally"),
        (lambda: boxes(1, 8, "450 GB/s", interconnect="swich"), "did you mean 'switch'"),
        (
            lambda: boxes(1, 3, "25 GB/s", interconnect="links", links=[(0, 1, 1)]),
            "no route from gpu0 to gpu2",
        ),
        (lambda: boxes(1, 3, "25 GB/s", interconnect="links", links=[(0, 3, 1)]), "GPUs of 0 to 2"),
        (
            lambda: boxes(1, 3, "25 GB/s", interconnect="links", links=[(0, 1, 1), (1, 0, 1)]),
            "listed twice",
        ),
        (
            lambda: boxes(
                2, 1, "25 GB/s", nics=1, nic_bandwidth="5 GB/s", tiers=[Tier("leaf"), Tier("leaf")]
            ),
            "distinct names",
        ),
        (lambda: boxes(1, 4, "25 GB/s", gpus_per_pcie_switch=2), "needs pcie_bandwidth"),
        (
            lambda: boxes(
                4, 1, "25 GB/s", nics=1, nic_bandwidth="5 GB/s", tiers=[Tier("leaf", boxes=2)]
            ),
            "2 separate switches",
        ),
        (
            lambda: boxes(
                6,
                1,
                "25 GB/s",
                nics=1,
                nic_bandwidth="5 GB/s",
                tiers=[Tier("leaf", boxes=2), Tier("top", boxes=3)],
            ),
            "whole switches",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)


def test_topology_survives_pickling():
    topology = load_topology("dgx-h100", nodes=3)
    copy = pickle.loads(pickle.dumps(topology))
    ranks = np.arange(24)
    assert (copy.route(ranks, ranks[::-1]).links == topology.route(ranks, ranks[::-1]).links).all()
    assert copy.efficiency["nvlink"] == Fraction(37, 45)


def test_networkx_round_trip_keeps_links_and_routes():
    topology = boxes(
        2,
        3,
        "300 GB/s",
        "1 us",
        nics=3,
        nic_bandwidth="25 GB/s",
        nic_latency="3 us",
        spine_latency="1 us",
    )
    graph = topology.to_networkx()
    copy = from_networkx(graph)
    src, dst = (ends.ravel() for ends in np.indices((6, 6)))
    assert [copy.path(a, b) for a, b in zip(src, dst, strict=True)] == [
        topology.path(a, b) for a, b in zip(src, dst, strict=True)
    ]
    assert copy.to_networkx().edges == graph.edges


def test_the_nvlinks_of_a_dgx_1v_make_a_ring_of_pairs_and_a_ring_of_single_links():
    # nvidia-smi topo -m of a DGX-1V: NV2 and NV1. Each GPU has two neighbours of either kind: 2 * 2
    # + 2 * 1 = 6 NVLinks.
    topology = load_topology("dgx-1v")
    bricks = {}
    for link in np.flatnonzero(topology.link_kind == LINK_KINDS.index("nvlink")):
        ends = int(topology.link_src[link]), int(topology.link_dst[link])
        bricks[ends] = int(topology.link_capacity_uBps[link]) / (25 * 10**15)
    assert sorted(set(bricks.values())) == [1, 2]
    for number, ring in ((2, [0, 3, 2, 1, 5, 6, 7, 4]), (1, [0, 1, 3, 7, 5, 4, 6, 2])):
        hops = {
            hop for a, b in zip(ring, [*ring[1:], ring[0]], strict=True) for hop in ((a, b), (b, a))
        }
        assert {ends for ends, count in bricks.items() if count == number} == hops


@pytest.mark.parametrize(
    ("nodes", "oversubscription", "leaves"),
    [(184, 1, 1), (185, 1, 2), (400, 1, 4), (369, "2:1", 2), (300, "1:2", 5)],
)
def test_leaves_hold_as_many_nodes_as_a_link_can_carry(nodes, oversubscription, leaves):
    # 9.22 TB/s are 184 NICs of 50 GB/s; the largest power of two below is 128. With half the
    # uplinks it is 256, with twice as many 64.
    topology = boxes(
        nodes, 1, "450 GB/s", nics=1, nic_bandwidth="50 GB/s", oversubscription=oversubscription
    )
    assert sum(name.startswith("leaf") for name in topology.node_names) == leaves
    assert (topology.route([0], [nodes - 1]).links >= 0).sum() == (6 if leaves > 1 else 4)
