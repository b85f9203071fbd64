"""Links that never bind: which they are, that they have slack, and that nothing changes without
them.
"""

import networkx as nx
import numpy as np
import pytest

import simcoll
from simcoll.core.protocol import IDEAL
from simcoll.emulator import emulate
from simcoll.emulator.model import SLACK, effective_capacities
from simcoll.emulator.programs.step_lowering import lower
from simcoll.planning import Call, Program, Send
from simcoll.topology import boxes, fat_tree, from_networkx


def two_leaves(rates, uplink, other=10**9):
    """Hosts with these rates on one leaf, as many fast ones on another."""
    graph = nx.DiGraph()
    for leaf, hosts in enumerate((rates, [other] * len(rates))):
        for host, rate in enumerate(hosts):
            name = f"h{leaf}.{host}"
            graph.add_node(name, kind="gpu")
            graph.add_edge(name, f"leaf{leaf}", capacity_uBps=rate)
            graph.add_edge(f"leaf{leaf}", name, capacity_uBps=rate)
    graph.add_edge("leaf0", "leaf1", capacity_uBps=uplink)
    graph.add_edge("leaf1", "leaf0", capacity_uBps=uplink)
    for leaf in ("leaf0", "leaf1"):
        graph.nodes[leaf]["kind"] = "switch"
    return from_networkx(graph)


@pytest.mark.parametrize("engine", ["simpy", "fast"])
def test_a_link_as_wide_as_its_sources_takes_nothing_from_them(engine):
    # (3 c + 1) // 3 = c: with shares rounded down the uplink would give the third flow c, not c +
    # 1.
    if engine == "fast":
        pytest.importorskip("numba")
    rates = [10**6, 10**6, 10**6 + 1]
    pairs = simcoll.Collective("send_recv", 6, pairs=((0, 3), (1, 4), (2, 5)))
    plan = simcoll.bind(simcoll.schedule(pairs, "direct"), 1, "uint8")
    alone = [(10**21 + rate // 3) // rate for rate in (10**6, 10**6 + 1)]
    done = emulate(plan, two_leaves(rates, sum(rates)), engine=engine, keep=True).done_fs.tolist()
    assert done == [alone[0], alone[0], alone[1]]
    narrow = emulate(
        plan, two_leaves(rates, sum(rates) - 1), engine=engine, keep=True
    ).done_fs.tolist()
    assert narrow == [alone[0]] * 3


def names(topology, links):
    return [topology.link_name(link) for link in np.flatnonzero(links)]


def test_only_wide_links_have_slack():
    def wide(topology):
        more = np.array(effective_capacities(topology, IDEAL)) - topology.link_capacity_uBps
        assert set(more.tolist()) <= {0, SLACK}
        return names(topology, more > 0)

    both = ["leaf0 -> leaf1", "leaf1 -> leaf0"]
    assert wide(two_leaves([5 * 10**8, 5 * 10**8], 10**9)) == both
    assert wide(two_leaves([5 * 10**8, 5 * 10**8], 10**9 - 1)) == []
    # One of two as wide as each other must keep its capacity.
    assert wide(two_leaves([10**9], 10**9)) == []
    assert len(wide(fat_tree(2, 4, "50 GB/s", "1 us"))) == 4
    assert wide(fat_tree(2, 4, "50 GB/s", "1 us", oversubscription=2)) == []


def test_sums_beyond_63_bits():
    most = 9 * 10**18
    topology = two_leaves([most] * 3, most, most)
    assert effective_capacities(topology, IDEAL) == topology.link_capacity_uBps.tolist()
    dropped = lower(Program(6, [Send([(0, 3), (1, 4), (2, 5)], 5)]), topology).dropped
    # Three flows share an uplink as wide as one of the hosts: it is the others' only excuse.
    assert names(topology, dropped) == ["leaf1 -> h1.0", "leaf1 -> h1.1", "leaf1 -> h1.2"]


def test_links_are_dropped_by_what_crosses_them():
    topology = boxes(
        4,
        2,
        "400 GB/s",
        "1 us",
        nics=2,
        nic_bandwidth="50 GB/s",
        boxes_per_leaf=2,
        oversubscription=2,
    )
    plan = simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=4, in_place=True), count=1 << 20
    )
    both = lower(Program(8, [Call(plan, [[0, 2, 4, 6], [1, 3, 5, 7]])]), topology)
    # All that crosses an uplink of 50 GB/s comes from one NIC of 50 GB/s.
    uplinks = {name for name in map(topology.link_name, range(topology.nlinks)) if "spine" in name}
    assert {name for name in names(topology, both.dropped) if "spine" in name} == uplinks
    two = lower(Program(8, [Send([(0, 4), (2, 6)], 5)]), topology)
    assert {name for name in names(topology, two.dropped) if "spine" in name} == {
        "spine -> leaf1.rail0"  # behind the uplink, which two NICs share
    }
    far = lower(Program(8, [Send([(0, 4)], 5)]), topology)
    route = topology.path(0, 4)
    assert set(route) - set(names(topology, far.dropped)) == {route[0]}  # one of equals remains
    plain = boxes(4, 2, "400 GB/s", "1 us", nics=2, nic_bandwidth="50 GB/s", boxes_per_leaf=2)
    crossed = lower(Program(8, [Call(plan, [[0, 2, 4, 6], [1, 3, 5, 7]])]), plain)
    assert {name for name in names(plain, crossed.dropped) if "spine" in name} == {
        name for name in map(plain.link_name, range(plain.nlinks)) if "spine" in name
    }


def test_a_flow_without_an_excuse_keeps_its_link():
    # Whatever the others cross: one message takes the uplink alone, inside a step of its own.
    graph = nx.DiGraph()
    for one, two, rate in (
        ("a", "s", 10**9),
        ("b", "s", 10**9),
        ("s", "c", 10**10),
        ("c", "d", 10**10),
    ):
        graph.add_edge(one, two, capacity_uBps=rate)
        graph.add_edge(two, one, capacity_uBps=rate)
    for name in "abcd":
        graph.nodes[name]["kind"] = "gpu"
    graph.nodes["s"]["kind"] = "switch"
    topology = from_networkx(graph, gpus_forward=True)
    a, b, c, d = range(4)
    through = Send([(a, d), (b, c)], 5, name="through")
    assert "c -> d" in names(topology, lower(Program(4, [through]), topology).dropped)
    own = Send([(c, d)], 5, after="through")
    assert "c -> d" not in names(topology, lower(Program(4, [through, own]), topology).dropped)
