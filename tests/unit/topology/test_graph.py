"""The record itself: placement, degraded links, arbitrary graphs, and what is refused."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.topology import boxes, crossbar, fat_tree, from_networkx, torus


def two_boxes():
    return boxes(2, 4, "300 GB/s", "1 us", nics=4, nic_bandwidth="25 GB/s", nic_latency="3 us")


def test_arrays_are_read_only():
    topology = two_boxes()
    routes = topology.route([0], [5])
    for array in (
        topology.link_src,
        topology.link_capacity_uBps,
        topology.groups["box"],
        routes.links,
        routes.latency_fs,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_placement_moves_ranks_and_groups():
    topology = two_boxes()
    placed = topology.with_ranks([6, 1, 4])
    assert placed.nranks == 3
    assert placed.path(0, 1) == topology.path(6, 1)
    assert placed.groups["box"].tolist() == [1, 0, 1]
    assert placed.take(2).path(0, 1) == topology.path(6, 1)
    assert topology.take(8) is topology


@pytest.mark.parametrize("bad", [[], [0, 0], [8], [-1], [0.7, 1.2], ["a"], [[0, 1]], [True]])
def test_bad_placement(bad):
    with pytest.raises(ConfigError):
        two_boxes().with_ranks(bad)


@pytest.mark.parametrize("nranks", [0, 9, -1])
def test_more_ranks_than_gpus(nranks):
    with pytest.raises(ConfigError, match="8 GPUs"):
        two_boxes().take(nranks)


@pytest.mark.parametrize(("src", "dst"), [([0], [8]), ([-1], [0]), ([0, 1], [0])])
def test_routes_of_ranks_that_are_not_there(src, dst):
    with pytest.raises(ConfigError):
        two_boxes().route(src, dst)


def test_no_pairs_no_routes():
    assert two_boxes().route([], []).links.shape[0] == 0


def test_degraded_link_keeps_its_route():
    topology = crossbar(3, "50 GB/s", "2 us")
    slow = topology.degrade("gpu1 -> switch", "1/4")
    assert slow.link_capacity_uBps[slow.link("gpu1 -> switch")] == 12_500 * 10**12
    assert (
        slow.link_capacity_uBps.sum()
        == topology.link_capacity_uBps.sum() * 6 // 6 - 37_500 * 10**12
    )
    assert slow.path(1, 2) == topology.path(1, 2)


def test_a_link_is_degraded_both_ways():
    topology = crossbar(3, "50 GB/s", "2 us")
    slow = topology.degrade("gpu1 <-> switch", "1/4")
    capacities = {
        slow.link_name(link): int(slow.link_capacity_uBps[link]) // 10**12
        for link in range(slow.nlinks)
    }
    assert capacities.pop("gpu1 -> switch") == capacities.pop("switch -> gpu1") == 12_500
    assert set(capacities.values()) == {50_000}


def test_dead_link_is_gone_round():
    ring = torus([4], "25 GB/s", "1 us")
    broken = ring.degrade("gpu0 -> gpu1", 0)
    assert broken.nlinks == ring.nlinks - 1
    assert broken.path(0, 1) == ["gpu0 -> gpu3", "gpu3 -> gpu2", "gpu2 -> gpu1"]
    assert broken.path(1, 0) == ["gpu1 -> gpu0"]


def test_dead_link_that_disconnects_names_the_pair():
    with pytest.raises(ConfigError, match=r"no route from rank 1 \(gpu1\) to rank 0 \(gpu0\)"):
        crossbar(3, "50 GB/s").degrade("gpu1 -> switch", 0)
    with pytest.raises(ConfigError, match=r"to rank 1 \(gpu1\)"):
        crossbar(3, "50 GB/s").degrade("switch -> gpu1", 0)


@pytest.mark.parametrize(
    ("link", "share", "message"),
    [
        ("gpu9 -> switch", "0.5", "no vertex 'gpu9'"),
        ("gpu0 -> gpu1", "0.5", "no link"),
        (6, "0.5", "expected 0 to 5"),
        (0, "1.5", "expected 0 to 1"),
        (0, "-1", "positive"),
        (0, False, "expected 0, or a positive"),
        (0, None, "expected 0, or a positive"),
        (
            "gpu9",
            "0.5",
            (
                "link 'gpu9': expected two vertices with an arrow between them, such as 'gpu0 -> "
                "switch', or one vertex"
            ),
        ),
        ("gpu0 ->", "0.5", "expected two vertices"),
        ("<->", "0.5", "expected two vertices"),
        ("gpu0<->gpu1", "0.5", "no link 'gpu0 -> gpu1'"),
        (1.5, "0.5", "expected a whole number, got 1.5"),
        (None, "0.5", "expected a whole number, got None"),
        (True, "0.5", "expected a whole number, got True"),
    ],
)
def test_bad_degrade(link, share, message):
    with pytest.raises(ConfigError, match=message):
        crossbar(3, "50 GB/s").degrade(link, share)


@pytest.mark.parametrize("nothing", [0, 0.0, "0", "0.00", "0/1", "0:1"])
def test_every_way_to_write_nothing(nothing):
    ring = torus([4], "25 GB/s")
    assert ring.degrade("gpu0 -> gpu1", nothing).nlinks == 7
    assert ring.degrade("gpu0<->gpu1", nothing).nlinks == 6


def test_arrows_need_no_blanks_and_links_may_be_numbers_of_numpy():
    topology = crossbar(3, "50 GB/s")
    by_name = topology.degrade("gpu1<->switch", "1/2")
    by_number = topology.degrade(np.int64(2), "1/2").degrade(3, "1/2")
    assert by_name.link_capacity_uBps.tolist() == by_number.link_capacity_uBps.tolist()
    assert topology.link("gpu1->switch") == 2


def test_ties_go_to_the_lowest_vertex():
    graph = nx.Graph()
    graph.add_nodes_from(["a", "b"], kind="gpu")
    for switch in ("s2", "s1", "s3"):
        graph.add_edge("a", switch, bandwidth="1 GB/s", latency="1 us")
        graph.add_edge(switch, "b", bandwidth="1 GB/s", latency="1 us")
    assert from_networkx(graph).path(0, 1) == ["a -> s2", "s2 -> b"]
    graph.edges["a", "s1"]["latency"] = "999999 ps"
    assert from_networkx(graph).path(0, 1) == ["a -> s1", "s1 -> b"]


def test_fewer_hops_win_at_equal_latency():
    graph = nx.Graph()
    graph.add_nodes_from(["a", "b"], kind="gpu")
    nx.add_path(graph, ["a", "x", "y", "b"], bandwidth="1 GB/s", latency=0)
    nx.add_path(graph, ["a", "z", "b"], bandwidth="1 GB/s", latency=0)
    assert from_networkx(graph).path(0, 1) == ["a -> z", "z -> b"]


def test_gpus_forward_only_when_told():
    ring = nx.cycle_graph(4)
    nx.set_node_attributes(ring, "gpu", "kind")
    nx.set_edge_attributes(ring, "25 GB/s", "bandwidth")
    with pytest.raises(ConfigError, match="gpus_forward=True"):
        from_networkx(ring)
    assert len(from_networkx(ring, gpus_forward=True).path(0, 2)) == 2


def test_ranks_and_parallel_links_of_a_multigraph():
    graph = nx.MultiDiGraph()
    graph.add_node("x", rank=1)
    graph.add_node("y", rank=0)
    for a, b in (("x", "y"), ("y", "x"), ("y", "x")):
        graph.add_edge(a, b, bandwidth="10 GB/s", kind="nvlink")
    topology = from_networkx(graph)
    assert topology.path(0, 1) == ["y -> x"]
    assert topology.link_capacity_uBps[topology.link("y -> x")] == 20 * 10**15
    assert topology.node_kinds == ("gpu", "gpu")


def _pair(**edge):
    graph = nx.Graph()
    graph.add_nodes_from([0, 1], kind="gpu")
    graph.add_edge(0, 1, **edge)
    return graph


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (_pair(), "no bandwidth"),
        (_pair(bandwidth=5), "has no unit"),
        (_pair(bandwidth="5 GB"), "unknown unit"),
        (_pair(bandwidth="5 GB/s", latency=3), "has no unit"),
        (_pair(bandwidth="5 GB/s", kind="wire"), "unknown kind"),
        (nx.Graph(), "no ranks"),
        (nx.Graph([(0, 0, {"bandwidth": "1 GB/s"})]), "to itself"),
    ],
)
def test_bad_graphs(graph, message):
    with pytest.raises(ConfigError, match=message):
        from_networkx(graph)


def test_bad_ranks_kinds_and_groups():
    graph = _pair(bandwidth="5 GB/s")
    graph.nodes[0]["rank"] = 1
    with pytest.raises(ConfigError, match="expected 0 to 0"):
        from_networkx(graph)
    graph = _pair(bandwidth="5 GB/s")
    with pytest.raises(ConfigError, match="one group per rank"):
        from_networkx(graph, groups={"box": [0]})
    with pytest.raises(ConfigError, match="did you mean 'nvlink'"):
        from_networkx(graph, efficiency={"nvlnk": "0.8"})
    graph.nodes[0]["kind"] = "tpu"
    with pytest.raises(ConfigError, match="unknown kind 'tpu'"):
        from_networkx(graph)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data(), n=st.integers(2, 9))
def test_random_graphs_route_as_networkx_does(data, n):
    seed = data.draw(st.integers(0, 10**6))
    graph = nx.gnp_random_graph(n, 0.5, seed=seed, directed=True)
    nx.set_node_attributes(graph, "gpu", "kind")
    for a, b in graph.edges:
        graph.edges[a, b].update(bandwidth="1 GB/s", latency_fs=(7 * a + 3 * b + seed) % 5)
    if not nx.is_strongly_connected(graph):
        with pytest.raises(ConfigError, match="disconnected"):
            from_networkx(graph, gpus_forward=True)
        return
    topology = from_networkx(graph, gpus_forward=True)
    lengths = dict(nx.all_pairs_dijkstra_path_length(graph, weight="latency_fs"))
    src, dst = (ends.ravel() for ends in np.indices((n, n)))
    expected = [lengths[a][b] for a, b in zip(src.tolist(), dst.tolist(), strict=True)]
    assert topology.route(src, dst).latency_fs.tolist() == expected


def test_routes_of_a_graph_too_large_for_a_table():
    ring = nx.cycle_graph(150)
    nx.set_node_attributes(ring, "gpu", "kind")
    nx.set_edge_attributes(ring, "25 GB/s", "bandwidth")
    nx.set_edge_attributes(ring, "1 us", "latency")
    topology = from_networkx(ring, gpus_forward=True)
    src = np.array([0, 149, 70, 70, 3, 0])
    dst = np.array([75, 1, 70, 20, 2, 0])
    routes = topology.route(src, dst)
    assert (routes.latency_fs // 10**9).tolist() == [75, 2, 0, 50, 1, 0]
    assert topology.path(149, 1) == ["149 -> 0", "0 -> 1"]
    assert topology.path(0, 75)[0] == "0 -> 1"
    assert topology.route([], []).links.shape == (0, 0)


def test_oversubscription_shows_in_the_link_names():
    tree = fat_tree(2, 2, "50 GB/s")
    assert [tree.link_name(link) for link in range(2)] == ["gpu0 -> leaf0", "leaf0 -> gpu0"]
