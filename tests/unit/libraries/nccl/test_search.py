"""NCCL's search for graphs, held against what its own host code computed without a GPU.

The expected numbers are those of NCCL 2.27.7 and 2.30.7, run on stub libraries with a topology file
of each machine: of shipped machines the library's own table, of others as stated here.
"""

import itertools
import random
from dataclasses import asdict, replace

import pytest

from simcoll.errors import ConfigError
from simcoll.libraries.library import load_library
from simcoll.libraries.nccl import search as nccl_search
from simcoll.libraries.nccl.channel_search import ChannelSearch
from simcoll.libraries.nccl.communicator import CommunicatorFacts, call_channels, communicator_on
from simcoll.libraries.nccl.device_paths import LOC, PathRules
from simcoll.libraries.nccl.graph_search import Settings, search_domain
from simcoll.libraries.nccl.graphs import shipped_graphs
from simcoll.libraries.nccl.search import graphs_on, search
from simcoll.libraries.nccl.sends import send_channels
from simcoll.libraries.prediction_cache import VARIABLE
from simcoll.topology import load_topology
from simcoll.topology.capability import compute_capability
from simcoll.topology.host_tree import GpuDevice, HostTree, NicDevice, gpus_of, nics_of
from simcoll.topology.machine import machine
from simcoll.topology.readers.nccl_xml import parse_nccl_xml
from simcoll.topology.readers.nccl_xml_writer import nccl_topology_xml


def without_orders(graphs):
    """The graphs without what the table of shipped machines leaves out."""
    bare = {"orders": (), "nics": ()}
    nvls = graphs.nvls and replace(graphs.nvls, **bare)
    tree = replace(graphs.tree, **bare)
    ring = replace(graphs.ring, **bare, carries_inside_GBps=0.0, carries_between_GBps=0.0)
    return replace(graphs, ring=ring, tree=tree, nvls=nvls, nic_GBps=0.0, p2p_channels_per_peer=0)


def sends(topology, graphs, version):
    """Channels of sends, in total and to a peer."""
    library = load_library(f"nccl-{version[0]}.{version[1]}")
    capability = compute_capability(topology.traits)
    return send_channels(CommunicatorFacts(library, graphs, topology.nranks, capability, "amd"))


def shipped(name, domain_ranks):
    nodes = len(domain_ranks)
    topology = load_topology(name, nodes=nodes) if nodes > 1 else load_topology(name)
    return topology.take(sum(domain_ranks))


def agreement(names, version):
    """The machines on which the search finds other graphs than NCCL, and how many were compared."""
    wrong, count = [], 0
    for (name, domain_ranks), expected in shipped_graphs(version).items():
        if name not in names:
            continue
        topology = shipped(name, domain_ranks)
        if machine(topology).domain_ranks == domain_ranks:
            count += 1
            graphs = search(topology, version)
            counts = [
                sends(topology, channel_graphs, version) for channel_graphs in (graphs, expected)
            ]
            if without_orders(graphs) != without_orders(expected) or counts[0] != counts[1]:
                wrong.append((name, domain_ranks))
    return wrong, count


@pytest.mark.slow
def test_the_search_finds_what_nccl_found():
    assert agreement({"dgx-a100", "rtx-pro-6000", "kestrel-h100"}, (2, 30)) == ([], 12)


VERSIONS = ((2, 27), (2, 28), (2, 29), (2, 30))
SHIPPED = sorted({name for version in VERSIONS for name, _ in shipped_graphs(version)})


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_the_search_finds_what_nccl_found_on_every_shipped_machine(name):
    # Version after version: most attempts of their searches are the same, and made once.
    for version in VERSIONS:
        assert agreement({name}, version)[0] == []


@pytest.mark.slow
def test_most_rows_of_the_table_are_of_the_domains_of_their_machine():
    keys = {version: set(shipped_graphs(version)) for version in VERSIONS}
    of_machines = {
        (name, domain_ranks)
        for name, domain_ranks in set().union(*keys.values())
        if machine(shipped(name, domain_ranks)).domain_ranks == domain_ranks
    }
    assert min(len(of_version & of_machines) for of_version in keys.values()) >= 30


def test_a_version_without_data_has_the_graphs_of_its_search():
    # src/graph/search.cc: 45 GB/s came in with 2.29; src/transport/nvls.cc: two GPUs with 2.28.
    node = load_topology("dgx-b200")
    assert graphs_on(node, (2, 28)).tree.speed_inside == 40
    assert graphs_on(node.take(2), (2, 27)).nvls is None
    assert graphs_on(node.take(2), (2, 28)).nvls is not None


def test_order_and_nics_of_channels():
    # NCCL 2.30.7, two DGX H100: "0,7,6,5,4,3,2,1 1,2,3,4,5,6,7,0", NICs "0,1 1,0"
    ring = search(load_topology("dgx-h100", nodes=2), (2, 30)).ring
    assert ring.orders[:2] == ((0, 7, 6, 5, 4, 3, 2, 1), (1, 2, 3, 4, 5, 6, 7, 0))
    assert ring.nics[:2] == ((0, 1), (1, 0))
    assert len(ring.orders) == len(ring.nics) == 8


def with_nics_apart(host):
    """The host if NCCL sees its second socket twice: once with its NICs, once with its GPUs."""
    first, second = host.sockets
    nics, gpus = (
        tuple(
            replace(switch, devices=tuple(d for d in switch.devices if isinstance(d, kind)))
            for switch in second.devices
        )
        for kind in (NicDevice, GpuDevice)
    )
    return HostTree((first, replace(second, devices=nics), replace(second, number=2, devices=gpus)))


@pytest.mark.slow
def test_nics_of_a_socket_that_nccl_sees_twice_are_unused():
    """NCCL 2.30.7, built for x86, on the file of a machine with two Grace CPUs, two hosts.

    Each rank adds the vendor of its build's CPU to the socket of its own GPU alone, and NCCL joins
    the files of all ranks by equal attributes.
    """
    topology = load_topology("gcp-a4x-max-apart", nodes=2)
    whole = search(topology, (2, 30))
    apart = search(replace(topology, host=with_nics_apart(topology.host)), (2, 30))
    graphs = apart.tree, apart.ring, apart.nvls
    assert [(g.channels, g.speed_inside, g.speed_between, g.path_to_nic) for g in graphs] == [
        (4, 96, 48, "PIX"),
        (4, 48, 48, "PXN"),
        (2, 96, 96, "PIX"),
    ]
    assert [order for g in graphs for order in g.orders[:2]] == [
        *((0, 1, 2, 3), (1, 2, 3, 0), (0, 3, 2, 1), (1, 0, 3, 2), (0,), (1,)),
    ]
    assert all(g.nics[:2] == ((0, 0), (1, 1)) for g in graphs)
    # With the NICs of both sockets all has twice the channels.
    doubled = [g.channels for g in (whole.tree, whole.ring, whole.nvls)]
    assert doubled == [2 * g.channels for g in graphs]


L40S = """
name = "l40s"
family = "boxes"
nodes = 1
[traits]
gpu = "L40S"
generation = "ampere"
cpu = "intel"
fabric = "ib"
[gpu]
interconnect = "pcie"
count = 8
[nic]
count = 4
bandwidth = "200 Gbps"
[pcie]
bandwidth = "31.5 GB/s"
gpus_per_switch = 2
[cpu]
count = 2
bandwidth = "22 GB/s"
"""


@pytest.fixture
def l40s(tmp_path):
    path = tmp_path / "l40s.toml"
    path.write_text(L40S, encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "nodes", "channels"), [(1, 2, (2, 2)), (2, 4, (2, 1))])
def test_a_host_without_nvlink_is_several_nodes(l40s, hosts, nodes, channels):
    # NCCL 2.30.7, 8 L40S with a NIC for two: it sends from socket to socket by NICs.
    topology = load_topology(l40s, nodes=hosts)
    graphs = search(topology, (2, 30))
    tree, ring = graphs.tree, graphs.ring
    assert graphs.nodes == nodes
    assert sends(topology, graphs, (2, 30)) == channels
    assert (ring.channels, ring.speed_inside, ring.path_inside, ring.path_to_nic) == (
        1,
        20,
        "PHB",
        "PHB",
    )
    assert (tree.pattern, tree.speed_inside, tree.speed_between) == ("balanced_tree", 15, 12)


@pytest.mark.slow
def test_networks_may_be_kept_out_of_a_host(l40s):
    # NCCL_NET_DISABLE_INTRA=1: one node, and paths over the link between sockets.
    rules = PathRules(network_inside=False)
    graphs = search(load_topology(l40s), (2, 30), Settings(rules=rules))
    ring = graphs.ring
    assert (graphs.nodes, ring.speed_inside, ring.path_inside) == (1, 20, "SYS")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "channels", "speed", "path"),
    [
        (Settings(), 8, 24, "PIX"),
        (Settings(ports=(0,)), 1, 24, "PIX"),
        (Settings(rules=PathRules(peer_level=LOC)), 1, 24, "PIX"),
    ],
)
def test_variables_change_the_graphs_of_two_dgx_a100(settings, channels, speed, path):
    # NCCL 2.30.7: without variables, NCCL_IB_HCA=mlx5_0, NCCL_P2P_LEVEL=LOC
    ring = search(load_topology("dgx-a100", nodes=2), (2, 30), settings).ring
    assert (ring.channels, ring.speed_between, ring.path_to_nic) == (channels, speed, path)


def test_a_changed_machine_is_searched():
    # NCCL 2.30.7 on 8 H100 of two nodes, a NIC each of 400 Gbit/s: 2 of 24 for one NIC of eight
    slow = load_topology("dgx-h100", nodes=2, nic__count=1)
    assert graphs_on(slow, (2, 30)).ring.channels == 2
    node = communicator_on(slow, load_library("nccl-2.30"))
    assert call_channels(node) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "channels", "speed", "carries"), [("dgx-a100", 4, 12, 48), ("dgx-2", 4, 10, 40)]
)
def test_without_gpudirect_rings_go_through_the_cpu(name, channels, speed, carries):
    # NCCL 2.30.7 on two DGX A100, NCCL_NET_GDR_LEVEL=LOC: 4 channels of 12. Each of 4 PCIe switches
    # passes 24 GB/s, which what is sent and what is received share on its way up.
    settings = Settings(rules=PathRules(nic_level=LOC))
    ring = search(load_topology(name, nodes=2), (2, 30), settings).ring
    assert (ring.channels, ring.speed_between, ring.path_to_nic) == (channels, speed, "PHB")
    if name == "dgx-a100":
        assert ring.carries_between_GBps == carries


@pytest.mark.slow
def test_an_attempt_in_vain_is_not_repeated(monkeypatch):
    """Through CPUs NCCL repeats its attempts for types of paths that do not exist: 900 times."""
    attempts = []
    run = ChannelSearch.run

    def counted(self, draft, best, steps, optimum):
        attempts.append(draft.speed_between)
        return run(self, draft, best, steps, optimum)

    monkeypatch.setattr(ChannelSearch, "run", counted)
    rules = PathRules(nic_level=LOC, version=(2, 30))
    host = load_topology("dgx-h100").host
    search_domain([(host, 8)], 16, 0, Settings(rules=rules), multicast=True)
    assert len(attempts) < 120


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dgx-h100", "dgx-2", "azure-nd-a100-v4", "rtx-pro-6000"])
def test_a_search_ends_at_the_best_channels_with_what_all_its_steps_find(name, monkeypatch):
    host = load_topology(name).host
    gpus = len(gpus_of(host))
    settings = Settings(rules=PathRules(version=(2, 30)))

    def graphs():
        domain = search_domain([(host, gpus)], 2 * gpus, 0, settings, multicast=True)
        return [asdict(draft) for draft in (domain.ring, domain.tree, domain.nvls) if draft]

    ended = graphs()
    monkeypatch.setattr(ChannelSearch, "_is_optimal", lambda _: False)
    assert ended == graphs()


def test_gpus_of_unknown_kind_have_no_graphs():
    assert search(load_topology("mi300x"), (2, 30)) is None
    assert search(load_topology("crossbar"), (2, 30)) is None


MACHINES = ["dgx-h100", "aws-p5", "oci-h100", "dgx-1v", "gb200-nvl72", "kestrel-h100"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_a_written_machine_is_the_same_for_nccl(name):
    node = load_topology(name, nodes=1)
    again = parse_nccl_xml(nccl_topology_xml(node))
    assert again.host == node.host
    traits = {key: node.traits.get(key, "") for key in ("switch_reduce", "cpu")}
    assert {key: again.traits.get(key, "") for key in traits} == traits
    assert search(again, (2, 30)) == search(node, (2, 30))


def test_a_rack_is_not_written_as_one_host():
    with pytest.raises(ConfigError, match="18 hosts"):
        nccl_topology_xml(load_topology("gb200-nvl72", nodes=18))


@pytest.mark.slow
def test_a_dump_of_two_switches_in_one():
    """A BM.GPU.H100.8: Broadcom switches that show themselves as two levels, NICs of two ports."""
    switch = 'class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x1000"'
    gen5 = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    parts = []
    for n in range(8):
        links = '<nvlink target="0000:07:00.0" count="18" tclass="0x068000"/>'
        gpu = (
            f'<pci busid="0000:{16 + n:02x}:00.0" class="0x030200" {gen5}>'
            f'<gpu dev="{n}" sm="90" rank="{n}" gdr="1">{links}</gpu></pci>'
        )
        ports = "".join(
            f'<net name="mlx5_{2 * n + port}" dev="{2 * n + port}" speed="180000" '
            f'port="{port + 1}" latency="0" guid="0x{n + 1}" gdr="1"/>'
            for port in range(2)
        )
        nic = (
            f'<pci busid="0001:{16 + n:02x}:00.0" class="0x020000" {gen5}><nic>{ports}</nic></pci>'
        )
        inner = "".join(
            f'<pci busid="0002:{2 * n + i:02x}:00.0" {switch} subsystem_device="0x1003" {gen5}>'
            f"{device}</pci>"
            for i, device in enumerate((gpu, nic))
        )
        parts.append(
            f'<pci busid="0003:{n:02x}:00.0" {switch} subsystem_device="0x0072" '
            f'link_speed="5.0 GT/s PCIe" link_width="16">{inner}</pci>'
        )
    cpus = "".join(
        f'<cpu numaid="{i}" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
        f"{''.join(parts[4 * i : 4 * i + 4])}</cpu>"
        for i in range(2)
    )
    topology = parse_nccl_xml(f"<system version='1'>{cpus}</system>".encode(), nodes=2)
    graphs = search(topology, (2, 30))
    # NCCL 2.30.7 on the dump of such a machine
    assert (graphs.ring.channels, graphs.ring.speed_between, graphs.ring.path_to_nic) == (
        16,
        22,
        "PXN",
    )
    assert (graphs.tree.speed_inside, graphs.tree.speed_between) == (24, 22)
    assert (graphs.nvls.channels, graphs.nvls.speed_between) == (8, 22)
    assert sends(topology, graphs, (2, 30)) == (32, 2)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder for graphs on disk; the search forgets what it found, as in another process."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    nccl_search._graphs.cache_clear()
    yield tmp_path
    nccl_search._graphs.cache_clear()


def searched_anew(topology):
    nccl_search._graphs.cache_clear()
    return search(topology, (2, 30))


def test_graphs_are_found_once_for_all_processes(cache, monkeypatch):
    node = load_topology("dgx-h100")
    first = searched_anew(node)
    monkeypatch.setattr(nccl_search, "_searched_graphs", None)
    assert searched_anew(node) == first
    with pytest.raises(TypeError):
        searched_anew(load_topology("dgx-h100", nodes=2))


@pytest.mark.parametrize("text", [b"", b"{}", b'{"graphs": "{}", "checksum": ""}'])
def test_damaged_graphs_on_disk_count_as_absent(cache, text):
    node = load_topology("dgx-h100")
    first = searched_anew(node)
    (path,) = cache.rglob("*.json")
    path.write_bytes(text)
    assert searched_anew(node) == first
    assert path.read_bytes() != text


def test_other_nodes_change_nothing_that_a_node_finds(cache):
    two, many = (
        search(load_topology("dgx-a100", nodes=nodes), (2, 30), Settings(nvls=False))
        for nodes in (2, 16)
    )
    assert (two.ring, two.tree, two.nvls) == (many.ring, many.tree, None)
    assert many.nodes == 16


@pytest.mark.parametrize(("nics", "speeds"), [(1, [100_000]), (2, [200_000]), (8, [400_000] * 2)])
def test_nics_that_a_plugin_joins_may_be_missing(nics, speeds):
    two = load_topology("aws-p5", nodes=2, nic__count=nics)
    assert [port.speed_mbps for nic in nics_of(two.host) for port in nic.ports] == speeds
    ring = search(two, (2, 30)).ring
    assert 0 < ring.channels * ring.speed_between <= nics * 12.5


CHANGES = {
    "nic__bandwidth": ("100 Gbps", "200 Gbps", "400 Gbps", "800 Gbps"),
    "host__sockets": (1, 2, 4),
    "host__gpus_per_switch": (0, 1, 2, 4),
    "host__pcie_transfers": (8, 16, 32, 64),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dgx-h100", "dgx-b200", "aws-p5", "kestrel-h100"])
def test_channels_fit_the_links_of_machines_that_nobody_ships(name):
    """No channels beyond NICs and links, none lost by a further NIC or by a CPU of AMD, whose host
    bridge costs nothing.
    """
    rng = random.Random(name)
    changes = {key: rng.choice(values) for key, values in CHANGES.items() if rng.random() < 0.5}
    rates = {}
    for cpu, nics in itertools.product(("intel", "amd"), (1, 4, 8)):
        two = load_topology(name, nodes=2, nic__count=nics, traits__cpu=cpu, **changes)
        ring = search(two, (2, 30)).ring
        rates[cpu, nics] = ring.channels * ring.speed_between
        ports = [port.speed_mbps / 8000 for nic in nics_of(two.host) for port in nic.ports]
        assert 1 < rates[cpu, nics] <= min(sum(ports), ring.carries_between_GBps) + 1e-6
    for cpu in ("intel", "amd"):
        assert rates[cpu, 1] <= rates[cpu, 4] <= rates[cpu, 8]
    assert all(rates["intel", nics] <= rates["amd", nics] for nics in (1, 4, 8))
