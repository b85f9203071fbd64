"""Chosen paths against every simple path of small graphs."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from simcoll.core.step import transfers
from simcoll.errors import ConfigError
from simcoll.topology import LINK_KINDS, boxes, from_networkx, torus
from simcoll.topology.chosen_paths import check_paths, chosen_routes


def _links(topology, src, dst, via):
    step = transfers(src, 0, dst, 0, via=via)
    routes = chosen_routes(topology, step.src_rank, step.dst_rank, step.transits)
    return [link for link in routes.links[0].tolist() if link >= 0], routes


def _vertices(topology, links):
    return [int(topology.link_src[links[0]])] + [int(topology.link_dst[link]) for link in links]


def _random_graph(rng):
    """GPUs, and switches between some of them, with links of several classes."""
    graph = nx.DiGraph()
    gpus, switches = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    names = [f"gpu{rank}" for rank in range(gpus)] + [f"switch{rank}" for rank in range(switches)]
    for number, name in enumerate(names):
        kind = {"kind": "gpu", "rank": number} if number < gpus else {"kind": "switch"}
        graph.add_node(name, **kind)
    for a in names:
        for b in names:
            if a < b and (rng.random() < 0.5 or b == names[-1]):
                facts = {
                    "bandwidth": "50 GB/s",
                    "latency": f"{int(rng.integers(1, 9))} us",
                    "kind": str(rng.choice(["nvlink", "pcie", "net"])),
                }
                graph.add_edge(a, b, **facts)
                graph.add_edge(b, a, **facts)
    return from_networkx(graph, gpus_forward=bool(rng.random() < 0.4))


def _best(topology, src, dst, via):
    """Latency and number of links of the best simple path over something, of all there are."""
    graph = nx.DiGraph()
    for link in range(topology.nlinks):
        graph.add_edge(int(topology.link_src[link]), int(topology.link_dst[link]), link=link)
    start, end = (int(topology.rank_nodes[rank]) for rank in (src, dst))
    vertex = topology.node_names.index(via) if via in topology.node_names else -1
    best = None
    for path in nx.all_simple_paths(graph, start, end):
        links = [graph.edges[pair]["link"] for pair in pairwise(path)]
        kinds = [LINK_KINDS[topology.link_kind[link]] for link in links]
        through = [topology.node_kinds[inner] for inner in path[1:-1] if inner != vertex]
        if "gpu" in through and not topology.gpus_forward:
            continue
        if vertex in path or via in kinds:
            cost = int(topology.link_latency_fs[links].sum()), len(links)
            best = cost if best is None else min(best, cost)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_no_simple_path_is_better(seed):
    rng = np.random.default_rng(seed)
    topology = _random_graph(rng)  # the last switch joins all
    kinds = sorted({LINK_KINDS[kind] for kind in topology.link_kind.tolist()})
    for via in [*kinds, *topology.node_names]:
        for src, dst in ((0, 1), (1, 0)):
            best = _best(topology, src, dst, via)
            usual = topology.route([src], [dst])
            usual_links = usual.links[usual.links >= 0].tolist()
            if best is None:
                with pytest.raises(ConfigError, match="no path from"):
                    _links(topology, src, dst, via)
                continue
            links, routes = _links(topology, src, dst, via)
            visited = _vertices(topology, links)
            assert len(set(visited)) == len(visited)
            assert (visited[0], visited[-1]) == tuple(topology.rank_nodes[[src, dst]].tolist())
            assert routes.latency_fs[0] == topology.link_latency_fs[links].sum()
            relayed = via.startswith("gpu") and not topology.gpus_forward
            if links != usual_links and not relayed:  # relays keep the routes of the topology
                assert (int(routes.latency_fs[0]), len(links)) == best


def test_a_route_that_passes_stays():
    machine = boxes(2, 4, "400 GB/s", "1 us", nics=4, nic_bandwidth="50 GB/s", nic_latency="3 us")
    assert _links(machine, 0, 5, "net")[0] == machine.route([0], [5]).links[0].tolist()


def test_a_relay_keeps_the_routes_of_the_network():
    machine = boxes(2, 4, "400 GB/s", "1 us", nics=4, nic_bandwidth="50 GB/s", nic_latency="3 us")
    links, _ = _links(machine, 0, 5, "box0.gpu1")  # PXN: over the GPU with the NIC of the rail
    legs = machine.route([0, 1], [1, 5]).links
    assert links == legs[legs >= 0].tolist()


def test_a_switch_sends_nothing_back_over_one_nic():
    machine = boxes(2, 4, "400 GB/s", "1 us", nics=4, nic_bandwidth="50 GB/s", nic_latency="3 us")
    names = [machine.link_name(link) for link in _links(machine, 0, 1, "net")[0]]
    assert names[0] == "box0.gpu0 -> box0.nic0"
    assert names[-1] == "box0.nic1 -> box0.gpu1"


def test_names_that_do_not_exist():
    with pytest.raises(ConfigError, match=r"did you mean 'gpu3'\? \(classes: link; vertices: gpu0"):
        check_paths(torus([4], "25 GB/s"), ["gpu33"])
    with pytest.raises(ConfigError, match="no vertex or class of links"):
        check_paths(torus([4], "25 GB/s"), ["net"])
