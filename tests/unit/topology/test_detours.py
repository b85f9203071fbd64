"""Lost links: only the routes that held one move, to what is left; shortest by networkx, and spread
where there are several ways.
"""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

import simcoll
from simcoll.bounds import all_gather_cut
from simcoll.errors import ConfigError
from simcoll.topology import (
    boxes,
    clos,
    crossbar,
    dragonfly,
    fat_tree,
    from_networkx,
    hybrid_cube_mesh,
    hypercube,
    hyperx,
    load_topology,
    place,
    rank_orbits,
    torus,
)


def two_ways():
    graph = nx.Graph()
    graph.add_nodes_from(["a", "b", "c"], kind="gpu")
    for gpu in ("a", "b", "c"):
        for switch in ("s1", "s2"):
            graph.add_edge(gpu, switch, bandwidth="1 GB/s", latency="1 us")
    return from_networkx(graph)


FAMILIES = {
    "torus": (lambda: torus([4, 5], "25 GB/s", "1 us"), (0, 17, 40)),
    "grid": (lambda: torus([4, 3], "25 GB/s", "1 us", wrap=False), (0, 17)),
    "hypercube": (lambda: hypercube(4, "25 GB/s", "1 us"), (0, 21)),
    "cube-mesh": (lambda: hybrid_cube_mesh(2, "25 GB/s", "1 us"), ("gpu0 -> gpu4", "gpu1 -> gpu2")),
    "hyperx": (
        lambda: hyperx([3, 3], 2, "50 GB/s", "1 us", switch_latency="300 ns"),
        ("switch0 -> switch1",),
    ),
    "dragonfly": (
        lambda: dragonfly(
            2, 4, 2, "50 GB/s", "1 us", local_latency="100 ns", global_latency="300 ns"
        ),
        ("group0.switch0 -> group0.switch1", 150),
    ),
    "dgx-1v": (
        lambda: load_topology("dgx-1v", nodes=2),
        ("box0.gpu0 -> box0.gpu1", "box0.gpu2 -> box0.gpu3"),
    ),
    "dgx": (lambda: load_topology("dgx-a100", nodes=2), ("box0.gpu0 -> box0.nvswitch",)),
    "clos": (
        lambda: clos(4, 3, 4, "50 GB/s", "1 us", spine_latency="1 us", seed=3),
        ("leaf0 -> spine0", "spine2 -> leaf3"),
    ),
    "clos-planes": (
        lambda: clos(3, 3, 2, "50 GB/s", "1 us", planes=3),
        ("gpu0 -> plane0.leaf0", "plane1.leaf0 -> plane1.spine1"),
    ),
    "clos-modulo": (
        lambda: clos(4, 4, 4, "50 GB/s", "1 us", ecmp="modulo"),
        ("leaf0 -> spine0", "spine3 -> leaf1"),
    ),
    "two-ways": (two_ways, ("a -> s1", "s1 -> b")),
}
CASES = [(name, link) for name, (_, links) in FAMILIES.items() for link in links]


def named_routes(topology):
    """The route of every pair, as names of links."""
    n = topology.nranks
    routes = topology.route(*np.divmod(np.arange(n * n), n)).links
    return {
        divmod(m, n): [topology.link_name(link) for link in row if link >= 0]
        for m, row in enumerate(routes)
    }


def check_detours(topology, before, degraded, lost):
    """Routes of pairs that did not use what is lost stay; the others are shortest ways from end to
    end over what is left.
    """
    graph = degraded.to_networkx()
    gpus = {
        name
        for name, kind in zip(topology.node_names, topology.node_kinds, strict=True)
        if kind == "gpu"
    }
    touched = 0
    for (src, dst), after in named_routes(degraded).items():
        if not lost & set(before[src, dst]):
            assert after == before[src, dst]
            continue
        touched += 1
        a, b = (topology.node_names[topology.rank_nodes[end]] for end in (src, dst))
        ends = [link.split(" -> ") for link in after]
        assert not lost & set(after)
        assert (ends[0][0], ends[-1][1]) == (a, b)
        assert all(one[1] == other[0] for one, other in pairwise(ends))
        assert topology.gpus_forward or not {end for end, _ in ends[1:]} & gpus
        allowed = graph if topology.gpus_forward else graph.subgraph(set(graph) - gpus | {a, b})
        assert int(degraded.route([src], [dst]).latency_fs[0]) == nx.dijkstra_path_length(
            allowed, a, b, "latency_fs"
        )
    return touched


@pytest.mark.slow
@pytest.mark.parametrize(("name", "link"), CASES)
def test_only_routes_over_the_lost_link_move(name, link):
    topology = FAMILIES[name][0]()
    lost = link if isinstance(link, str) else topology.link_name(link)
    degraded = topology.degrade(link, 0)
    assert degraded.nlinks == topology.nlinks - 1
    assert check_detours(topology, named_routes(topology), degraded, {lost}) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (_, links) in FAMILIES.items() if len(links) > 1])
def test_two_lost_links_in_either_order(name):
    make, links = FAMILIES[name]
    topology = make()
    one, other = (link if isinstance(link, str) else topology.link_name(link) for link in links[:2])
    first = topology.degrade(one, 0)
    both = first.degrade(other, 0)
    routes = named_routes(both)
    assert routes == named_routes(topology.degrade(other, 0).degrade(one, 0))
    assert both.name == f"{topology.name} degraded"
    check_detours(topology, named_routes(topology), both, {one, other})
    # The second loss leaves detours alone that do not use it.
    assert all(routes[pair] == way for pair, way in named_routes(first).items() if other not in way)


@pytest.mark.slow
def test_a_table_of_routes_is_not_needed():
    topology = torus([12, 12], "25 GB/s", "1 us")
    degraded = topology.degrade("gpu0 -> gpu1", 0).degrade("gpu0 -> gpu11", 0)
    lost = {"gpu0 -> gpu1", "gpu0 -> gpu11"}
    before, after = named_routes(topology), named_routes(degraded)
    moved = {pair for pair in before if before[pair] != after[pair]}
    assert moved == {pair for pair in before if lost & set(before[pair])}
    assert len(after[0, 1]) == 3  # down, along, up


@pytest.mark.parametrize("name", ["clos", "clos-planes", "clos-modulo"])
def test_capacity_at_a_share_after_a_loss(name):
    topology = FAMILIES[name][0]()
    degraded = topology.degrade(FAMILIES[name][1][0], 0)
    slow = degraded.degrade(5, "1/2")
    assert named_routes(slow) == named_routes(degraded)
    assert slow.link_capacity_uBps[5] * 2 == degraded.link_capacity_uBps[5]


@pytest.mark.parametrize("name", FAMILIES)
def test_placement_before_and_after(name):
    make, links = FAMILIES[name]
    topology = make()
    names = [link if isinstance(link, str) else topology.link_name(link) for link in links]
    seats = np.random.default_rng(7).permutation(topology.nranks)[: topology.nranks - 1]
    lost, between = topology, topology.with_ranks(seats)
    for link in names:
        lost, between = (
            lost.degrade(link, 0),
            between.degrade(link, 0).with_ranks(np.arange(len(seats))[::-1]),
        )
    assert named_routes(lost.with_ranks(seats[::-1] if len(names) % 2 else seats)) == named_routes(
        between
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ecmp", "planes"), [("hash", 1), ("hash", 2), ("modulo", 1), ("modulo", 2)]
)
def test_detours_of_a_leaf_spread_over_what_is_left(ecmp, planes):
    topology = clos(16, 8, 4, "50 GB/s", "1 us", ecmp=ecmp, planes=planes)
    title = "plane0." if planes > 1 else ""
    lost = {f"{title}leaf0 -> {title}spine1", f"{title}leaf0 -> {title}spine2"}
    degraded = topology
    for link in sorted(lost):
        degraded = degraded.degrade(link, 0)
    before, after = named_routes(topology), named_routes(degraded)
    moved = [after[pair][1] for pair, way in before.items() if lost & set(way)]
    taken = {link: moved.count(link) for link in set(moved)}
    assert len(taken) == 4 * planes - 2
    # Every live uplink takes its share of the detours, or nearly.
    share = len(moved) / len(taken)
    assert 0.5 * share < min(taken.values()) <= max(taken.values()) < 1.5 * share


def test_a_leaf_without_a_plane_uses_the_others():
    topology = clos(2, 2, 2, "50 GB/s", "1 us", planes=2)
    degraded = topology.degrade("gpu0 <-> plane0.leaf0", 0)
    assert all(
        "plane1" in link
        for pair, way in named_routes(degraded).items()
        if 0 in pair
        for link in way
    )


def test_a_clos_without_a_direct_way_takes_a_valley():
    # Leaf 0 reaches leaf 2 only up over spine 0, down to leaf 1, and up again over spine 1.
    topology = clos(3, 1, 2, "50 GB/s", "1 us")
    for link in ("leaf0 -> spine1", "spine0 -> leaf2"):
        topology = topology.degrade(link, 0)
    assert topology.path(0, 2) == [
        "gpu0 -> leaf0",
        "leaf0 -> spine0",
        "spine0 -> leaf1",
        "leaf1 -> spine1",
        "spine1 -> leaf2",
        "leaf2 -> gpu2",
    ]


def test_a_lost_uplink_costs_an_exchange_what_the_others_have_to_take():
    # One uplink of four is gone: pairs of leaf 0 share three, all others keep theirs, so less than
    # twice the time.
    whole = clos(4, 4, 4, "50 GB/s", "1 us", ecmp="modulo")
    plan = simcoll.bind(simcoll.schedule("all_to_all", "pairwise", nranks=16), 16 * 16 * 2**16)
    times = [
        simcoll.emulate(plan, each, data="none").time_fs
        for each in (whole, whole.degrade("leaf0 -> spine0", 0))
    ]
    assert times[0] < times[1] < 1.5 * times[0]


def test_what_is_cut_off_is_named():
    with pytest.raises(
        ConfigError, match=r"without gpu1 -> switch' is disconnected: no route from rank 1 \(gpu1\)"
    ) as error:
        crossbar(3, "50 GB/s").degrade("gpu1 -> switch", 0)
    assert "gpus_forward" not in str(error.value)
    pair = clos(2, 1, 2, "50 GB/s", "1 us").degrade("leaf0 -> spine0", 0)
    with pytest.raises(ConfigError, match=r"no route from rank 0 \(gpu0\) to rank 1 \(gpu1\)"):
        pair.degrade("leaf0 -> spine1", 0)
    # Ranks that are not there cannot be cut off.
    assert (
        place(crossbar(3, "50 GB/s"), "explicit", gpus=[0, 2]).degrade("gpu1 -> switch", 0).nranks
        == 2
    )


@pytest.mark.parametrize(
    ("make", "links", "orbits"),
    [
        (lambda: torus([4, 3], "25 GB/s"), ["gpu0 -> gpu1"], 9),
        (lambda: torus([5], "25 GB/s"), [f"gpu{v} -> gpu{(v - 1) % 5}" for v in range(5)], 1),
        (lambda: clos(3, 2, 2, "50 GB/s"), ["leaf0 -> spine0"], 2),
        (lambda: fat_tree(2, 2, "50 GB/s"), [], 1),
        (
            lambda: boxes(2, 2, "300 GB/s", nics=2, nic_bandwidth="25 GB/s"),
            ["box0.gpu0 -> box0.nvswitch"],
            4,
        ),
    ],
)
def test_orbits_and_cuts_of_what_is_left(make, links, orbits):
    topology = make()
    for link in links:
        topology = topology.degrade(link, 0)
    assert len(rank_orbits(topology)) == orbits
    short, full = all_gather_cut(topology), all_gather_cut(topology, by_orbit=False)
    assert short.ratio == full.ratio


def test_a_collective_over_lost_links_is_right():
    for topology in (
        torus([3, 4], "25 GB/s", "1 us").degrade("gpu0 <-> gpu1", 0),
        clos(3, 4, 2, "50 GB/s", "1 us")
        .degrade("leaf0 -> spine0", 0)
        .degrade("spine1 -> leaf2", 0),
    ):
        plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=12), 12 * 100 + 5)
        assert simcoll.emulate(plan, topology).wrong == 0
