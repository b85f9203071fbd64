"""The summary of a machine that models of libraries read: domains, what joins them inside, and the
NICs between them.
"""

import networkx as nx
import pytest

from simcoll.errors import ConfigError
from simcoll.topology import boxes, crossbar, fat_tree, from_networkx, load_topology, torus
from simcoll.topology.machine import FABRICS, GENERATIONS, TRAIT_VALUES, Machine, machine

GBps = 10**15


def seen(topology):
    found = machine(topology)
    return (
        found.domain_ranks,
        found.inside,
        found.gpu_uBps / GBps,
        found.nics,
        found.nic_uBps / GBps,
    )


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (lambda: crossbar(5, "50 GB/s"), ((5,), "link", 50, 0, 0)),
        (lambda: torus([3, 3], "25 GB/s"), ((9,), "link", 100, 0, 0)),
        (lambda: fat_tree(2, 3, "12.5 GB/s"), ((1,) * 6, "", 0, 1, 12.5)),
        # 18 NVLinks of 25 GB/s; 8 NICs of 400 Gbit/s, of which four ranks use four.
        (lambda: load_topology("dgx-h100", nodes=4), ((8,) * 4, "nvlink", 450, 8, 400)),
        (
            lambda: load_topology("dgx-h100", nodes=2).with_ranks([0, 1, 2, 8]),
            ((3, 1), "nvlink", 450, 1, 50),
        ),
        (lambda: load_topology("dgx-h100", nodes=2).with_ranks([0, 8]), ((1, 1), "", 0, 1, 50)),
        (lambda: load_topology("dgx-h100", nodes=1).take(1), ((1,), "", 0, 0, 0)),
        # Two GPUs share a NIC of 100 Gbit/s; four NICs of 100 Gbit/s serve one GPU.
        (lambda: load_topology("aws-p4d", nodes=2), ((8, 8), "nvlink", 300, 4, 50)),
        (
            lambda: load_topology("aws-p4d", nodes=2).with_ranks([0, 1, 8, 9]),
            ((2, 2), "nvlink", 300, 1, 12.5),
        ),
        (lambda: load_topology("aws-p5", nodes=2), ((8, 8), "nvlink", 450, 8, 400)),
        # NVLinks of some pairs join all eight GPUs of a DGX-1V, but not GPUs 0 and 5 alone: they
        # use PCIe and the sockets.
        (lambda: load_topology("dgx-1v", nodes=2), ((8, 8), "nvlink", 150, 4, 50)),
        (lambda: load_topology("dgx-1v", nodes=1).with_ranks([0, 5]), ((2,), "pcie", 12, 0, 0)),
        (lambda: load_topology("dgx-1v", nodes=1).with_ranks([0, 3]), ((2,), "nvlink", 50, 0, 0)),
        # In a mesh, links to GPUs without a rank carry nothing.
        (lambda: load_topology("mi300x", nodes=1), ((8,), "xgmi", 448, 0, 0)),
        (lambda: load_topology("mi300x", nodes=1).take(3), ((3,), "xgmi", 128, 0, 0)),
        # Domains of two nodes, the last of one.
        (
            lambda: boxes(5, 3, "300 GB/s", nodes_per_domain=2, nics=3, nic_bandwidth="25 GB/s"),
            ((6, 6, 3), "nvlink", 300, 3, 75),
        ),
        (lambda: load_topology("gb200-nvl72", nodes=36), ((72, 72), "nvlink", 900, 72, 3600)),
        # All NICs carry the same share, so the slowest decides.
        (
            lambda: load_topology("dgx-h100", nodes=2).degrade("box1.nic3 -> leaf0.rail3", "1/2"),
            ((8, 8), "nvlink", 450, 8, 200),
        ),
    ],
)
def test_domains_and_sums(topology, expected):
    assert seen(topology()) == expected


@pytest.mark.parametrize(
    ("name", "nodes", "expected"),
    [
        ("dgx-h100", 2, 8),  # 450 GB/s would fill nine NICs of 50
        ("dgx-1v", 2, 4),
        ("gb200-nvl72", 36, 18),  # 900 GB/s fill 18 of 72 NICs of 50
        ("oci-gb300", 32, 9),  # and nine of 64 NICs of 100
        ("rtx-pro-6000", 2, 2),  # 63 GB/s over PCIe fill two NICs of 50
        ("alps-gh200-1", 3, 1),
        ("dgx-h100", 1, 0),
    ],
)
def test_nics_that_rings_can_fill(name, nodes, expected):
    assert machine(load_topology(name, nodes=nodes)).ring_nics == expected


def test_ranks_of_a_domain_need_not_be_neighbours():
    dealt = load_topology("dgx-h100", nodes=2, placement__order="round_robin", placement__ranks=6)
    assert seen(dealt) == ((3, 3), "nvlink", 450, 3, 150)


def test_domains_of_a_free_graph_end_at_the_network():
    graph = nx.Graph()
    for node in "ab":
        graph.add_nodes_from([f"{node}0", f"{node}1"], kind="gpu")
        graph.add_edge(f"{node}0", f"{node}1", bandwidth="300 GB/s", kind="nvlink")
        graph.add_edge(f"{node}0", "switch", bandwidth="25 GB/s", kind="net")
        graph.add_edge(f"{node}1", "switch", bandwidth="25 GB/s", kind="net")
    assert seen(from_networkx(graph)) == ((2, 2), "nvlink", 300, 2, 50)


@pytest.mark.parametrize(
    ("name", "ranks", "expected"),
    [
        ("dgx-h100", range(8), 450),  # behind switches, all links of a GPU
        ("dgx-1v", range(8), 0),  # GPUs 0 and 5 have no link
        ("dgx-1v", range(4), 25),  # one or two links
        ("dgx-1v", (0, 3), 50),
        ("perlmutter-a100", range(4), 100),  # 12 links of 25 GB/s to three GPUs
        ("mi300x", range(8), 64),
        ("rtx-pro-6000", range(2), 0),
    ],
)
def test_links_between_two_gpus(name, ranks, expected):
    assert (
        machine(load_topology(name, nodes=1).with_ranks(list(ranks))).peer_uBps == expected * GBps
    )


def test_traits_that_a_topology_does_not_name_are_empty():
    assert machine(crossbar(2, "1 GB/s")) == Machine(
        "", "", "", "", False, (2,), "link", 10**15, 0, 0
    )
    full = machine(load_topology("aws-p5", nodes=3))
    assert (full.generation, full.gpu, full.cpu, full.fabric) == (
        "hopper",
        "H100",
        "amd",
        "efa-p5",
    )
    assert (full.switch_reduce, full.domains) == (True, 3)


NODE = (
    'family = "boxes"\nnodes = 2\n[gpu]\ncount = 2\nbandwidth = "300 GB/s"\n[nic]\ncount = 2\n'
    'bandwidth = "200 Gbps"\n[traits]\n'
)


@pytest.mark.parametrize(
    ("trait", "message"),
    [
        (
            'fabric = "rocee"',
            "$.traits.fabric: unknown fabric 'rocee'; did you mean 'roce'? (valid: efa-p4, ",
        ),
        ('fabric = "IB"', "did you mean 'ib'?"),
        ('fabric = ""', "$.traits.fabric: unknown fabric ''; valid: "),
        (
            'generation = "hoper"',
            "$.traits.generation: unknown generation 'hoper'; did you mean 'hopper'?",
        ),
        ("fabric = 3", "$.traits.fabric: expected text, got 3"),
        (
            'peer_access = "never"',
            "$.traits.peer_access: unknown peer_access 'never'; valid: no, yes",
        ),
    ],
)
def test_traits_with_a_fixed_choice(tmp_path, trait, message):
    path = tmp_path / "mine.toml"
    path.write_text(NODE + trait + "\n")
    with pytest.raises(ConfigError) as error:
        load_topology(path)
    assert message in str(error.value)


@pytest.mark.parametrize("name", TRAIT_VALUES)
def test_every_value_of_a_fixed_choice_is_taken(tmp_path, name):
    path = tmp_path / "mine.toml"
    for value in TRAIT_VALUES[name]:
        path.write_text(f'{NODE}{name} = "{value}"\n')
        assert load_topology(path).traits == {name: value}
    assert all(FABRICS.values())
    assert all(GENERATIONS.values())


def test_a_slow_way_to_a_nic_slows_it():
    whole = load_topology("dgx-h100", nodes=2)
    slow = whole.degrade("box0.gpu0 -> box0.nic0", 0.25)
    assert machine(slow).nic_uBps * 4 == machine(whole).nic_uBps
    # The V100's PCIe is slower than its NIC on every way, which its measured share has in it.
    assert machine(load_topology("dgx-1v", nodes=2)).nic_uBps == 4 * 12_500_000_000 * 10**6
