"""What people print fits on a screen."""

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.topology import crossbar, from_networkx, shipped_topologies


def result(nranks, count=1 << 20, *, unproved=True, **how):
    plan = simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=nranks, channels=2), count, unproved=unproved
    )
    return simcoll.emulate(plan, crossbar(nranks, "50 GB/s", "1 us"), **how)


def lines(thing):
    return str(thing).splitlines()


@pytest.mark.parametrize("name", shipped_topologies())
def test_a_topology_fits_in_five_lines(name):
    topology = simcoll.load_topology(name)
    assert 1 < len(lines(topology)) <= 5
    assert max(map(len, lines(topology))) <= 200
    assert topology.name in lines(topology)[0]
    assert str(topology.nranks) in lines(topology)[1]
    assert len(repr(topology)) < 100


def test_a_topology_says_what_it_is_made_of():
    assert lines(simcoll.load_topology("dgx-h100", nodes=2))[1:] == [
        "ranks     16 in groups: 2 box, 8 leaf",
        "vertices  16 gpu, 16 nic, 11 switch",  # an NVSwitch a node, eight rails, the spine
        # Two nodes a rail to the spine.
        "links     32 nvlink at 450 GB/s, 32 pcie at 50 GB/s, 48 net at 50 GB/s to 100 GB/s",
    ]


@pytest.mark.parametrize(
    "how", [{}, {"data": "none"}, {"bound": False}, {"data": [np.ones(64, np.float32)] * 8}]
)
def test_a_result_fits_in_five_lines(how):
    shown = result(8, 64, **how)
    assert len(lines(shown)) <= 5
    assert len(lines(shown.plan)) == 1
    assert len(repr(shown)) < 200
    assert len(repr(shown).splitlines()) == 1


@pytest.mark.slow
def test_a_large_result_fits_as_well():
    # Without its proof the waits between its channels would be looked for.
    shown = result(1024, unproved=False, data="none", keep=True)
    assert len(lines(shown)) <= 5
    assert max(map(len, lines(shown))) <= 200
    assert "played for all" in str(shown)


def test_no_bytes_and_no_time_have_words():
    assert "busbw 0 B/s" in str(result(1, 0))
    assert "busbw 0 B/s" in str(result(1, 5, bound=False))


def test_names_cannot_steer_a_terminal_or_a_page():
    evil = replace(crossbar(4, "50 GB/s"), name="a\x1b[2J\n<script>", description="b\n" * 20)
    assert len(lines(evil)) <= 5
    assert "\x1b" not in str(evil) + repr(evil)
    shown = simcoll.emulate(simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 8), evil)
    assert len(lines(shown)) == 5
    assert "<script>" not in shown._repr_html_()
    assert shown._repr_html_().count("<tr>") == 5


def test_any_graph_can_be_printed():
    import networkx as nx

    graph = nx.DiGraph()
    for rank in range(2):
        graph.add_node(rank, kind="gpu", rank=rank)
    graph.add_edge(0, 1, capacity_uBps=10**15)
    graph.add_edge(1, 0, capacity_uBps=2 * 10**15)
    assert lines(from_networkx(graph))[-1] == "links     2 link at 1 GB/s to 2 GB/s"
