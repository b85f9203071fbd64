"""The graphs that NCCL finds on shipped machines."""

from dataclasses import replace

import pytest

from simcoll.libraries.nccl.graphs import graphs_of, shipped_graphs
from simcoll.topology import load_topology


def test_a_shipped_machine_has_the_graphs_of_its_own_nccl():
    graphs = graphs_of(load_topology("aws-p5en", nodes=2), (2, 30))
    assert graphs.nvls.channels == 8
    assert graphs.ring.net_latency_us == 35
    assert graphs.ring.cross_nic == 2
    assert (graphs.nodes, graphs.p2p_channels_per_peer) == (2, 4)


def test_versions_differ():
    machine = load_topology("dgx-b200")
    assert graphs_of(machine, (2, 27)).tree.speed_inside == 40
    assert graphs_of(machine, (2, 30)).tree.speed_inside == 45


def test_machines_that_are_equal_for_nccl_share_graphs():
    two = graphs_of(load_topology("oci-h200", nodes=2), (2, 27))
    assert two == graphs_of(load_topology("dgx-h100", nodes=2), (2, 27))


def test_trays_of_one_nvlink_domain_are_one_node():
    graphs = graphs_of(load_topology("gb200-nvl72", nodes=2), (2, 30))
    assert (graphs.nodes, graphs.ring.channels) == (1, 16)


def test_a_part_of_a_node_has_other_graphs():
    pair = graphs_of(load_topology("dgx-h100").take(2), (2, 27))
    assert pair.nvls is None
    assert pair.tree.speed_inside == 60


@pytest.mark.slow
@pytest.mark.parametrize("version", [(2, 27), (2, 28), (2, 29), (2, 30)])
def test_every_machine_of_the_table_is_found_by_its_name(version):
    for name, domain_ranks in shipped_graphs(version):
        nodes = len(domain_ranks)
        topology = load_topology(name, nodes=nodes) if nodes > 1 else load_topology(name)
        assert graphs_of(topology.take(sum(domain_ranks)), version), (name, domain_ranks)


def test_a_name_alone_is_no_machine():
    changed = load_topology("dgx-h100").with_ranks([0, 1, 2, 3, 4, 5, 6])
    assert graphs_of(changed, (2, 27)) is None


def test_a_network_that_reduces_has_the_same_graphs():
    two = load_topology("dgx-h100", nodes=2)
    sharp = replace(two, traits={**two.traits, "switch_reduce": "nvlink-sharp sharp"})
    assert graphs_of(sharp, (2, 27)) == graphs_of(two, (2, 27))
