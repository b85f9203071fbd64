"""Variables that choose links: they reach NCCL's choice and the times."""

import pytest

import simcoll
from simcoll.errors import ConfigError
from simcoll.libraries.environment import parse_environment
from simcoll.libraries.library import load_library
from simcoll.libraries.nccl.search_settings import used_ports
from simcoll.libraries.plans import library_plan
from simcoll.libraries.question import question_on
from simcoll.libraries.transports import Transports, read_transports
from simcoll.topology import load_topology

LARGE = 2**30


def bus_rate(name, nodes, variables, *, size=LARGE, collective="all_reduce"):
    """Bus bandwidth in GB/s."""
    topology = load_topology(name, nodes=nodes)
    environment = parse_environment(variables)
    prediction = simcoll.predict(collective, size, topology, environment=environment)
    ranks = topology.nranks
    return size / prediction.time_us / 1000 * 2 * (ranks - 1) / ranks


def machine_under(name, nodes, variables):
    topology = load_topology(name, nodes=nodes)
    environment = parse_environment(variables)
    return question_on("all_reduce", topology, load_library("nccl"), environment).machine


RINGS = "NCCL_ALGO=Ring,NCCL_PROTO=Simple"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "count"), [("mlx5_0", 1), ("mlx5_0,mlx5_1", 2), ("^mlx5_0", 7), ("mlx5", 8)]
)
def test_rings_have_the_named_nics_only(devices, count):
    machine = machine_under("dgx-a100", 2, f"NCCL_IB_HCA={devices}")
    assert machine.nics == count
    assert machine.nic_uBps == pytest.approx(count * 25 * 10**15)
    whole, part = (
        bus_rate("dgx-a100", 2, f"{RINGS}{rest}") for rest in ("", f",NCCL_IB_HCA={devices}")
    )
    assert part == pytest.approx(whole * count / 8, rel=0.03)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("=mlx5_1,mlx5_3:1", (1, 3)),
        ("^=mlx5_2", (0, 1, 3)),
        # A host that counts other devices too: the number of names counts.
        ("mlx5_4,mlx5_5", (0, 1)),
        ("bnxt_re0,bnxt_re1,bnxt_re2", (0, 1, 2)),
        ("^mlx5_bond_0", (0, 1, 2, 3)),
        ("rdma", (0, 1, 2, 3)),
        ("", (0, 1, 2, 3)),
    ],
)
def test_names_of_nics(text, ports):
    assert used_ports(Transports(devices=text), range(4)) == ports


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "part"),
    [
        # Both directions of one NIC of 25 GB/s share the way to the CPU of 24 GB/s.
        ("dgx-a100:nic.count=1", 0.5),
        # Eight of them have four such ways, more than the memory of the host carries: 22 GB/s.
        ("dgx-a100", 22 / 200),
        # The memory of a Grace CPU is behind NVLink.
        ("alps-gh200", 1.0),
    ],
)
def test_without_gpudirect_data_passes_the_memory_of_the_host(machine, part):
    whole, staged = (
        bus_rate(machine, 2, f"{RINGS}{rest}") for rest in ("", ",NCCL_NET_GDR_LEVEL=LOC")
    )
    assert staged == pytest.approx(whole * part, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        # One interface: a thread copies 3 GB/s; several threads as much as the host manages.
        ("NCCL_SOCKET_IFNAME=eth0", 3.0),
        ("NCCL_SOCKET_IFNAME=eth0,NCCL_SOCKET_NTHREADS=4", 5.0),
        ("NCCL_SOCKET_IFNAME=eth0,SOCKET_GBPS=10", 1.25 * 0.955),
        ("NCCL_SOCKET_IFNAME=eth0,eth1", 6.0),
        # A network that gives a flow 2 Gbit/s: two channels with a socket each, then with four.
        ("NCCL_SOCKET_IFNAME=eth0,NCCL_MAX_NCHANNELS=2,FLOW_GBPS=2", 0.5),
        ("NCCL_SOCKET_IFNAME=eth0,NCCL_MAX_NCHANNELS=2,FLOW_GBPS=2,NCCL_NSOCKS_PERTHREAD=4", 2.0),
    ],
)
@pytest.mark.parametrize("sockets", ["NCCL_IB_DISABLE=1", "NCCL_NET=Socket"])
def test_rings_over_sockets(sockets, variables, expected):
    rate = bus_rate("azure-nd-a100-v4", 2, f"{RINGS},{sockets},{variables}", size=2**32)
    assert rate == pytest.approx(expected, rel=0.03)


def test_the_plugin_of_a_fabric_takes_no_notice_of_a_variable_of_infiniband():
    assert machine_under("aws-p4d", 2, "NCCL_IB_DISABLE=1").fabric == "efa-p4"
    assert machine_under("aws-p4d", 2, "NCCL_NET_PLUGIN=none").fabric == "socket"


@pytest.mark.slow
def test_a_topology_with_ethernet_alone_is_timed():
    topology = load_topology("dgx-a100", nodes=2, traits__fabric="socket")
    prediction = simcoll.predict("all_reduce", LARGE, topology)
    assert prediction.protocol != "LL128"
    # 8 interfaces of 3 GB/s; a tree over two nodes crosses half as much.
    assert LARGE * 15 / 8 / prediction.time_us / 1000 < 2 * 8 * 3


@pytest.mark.slow
def test_without_peer_access_data_goes_through_host_memory():
    machine = machine_under("perlmutter-a100", 1, "NCCL_P2P_DISABLE=1")
    assert (machine.inside, machine.domains) == ("host", 1)
    # Two channels of 12 GB/s: PCIe 4 of each GPU carries 24.
    rate = bus_rate("perlmutter-a100", 1, f"{RINGS},NCCL_P2P_DISABLE=1", size=2**32)
    assert 15 < rate < 24


@pytest.mark.slow
def test_nics_inside_a_host_make_it_several_nodes():
    # NCCL 2.30.7 counts 4 nodes on a DGX A100 with NCCL_P2P_DISABLE=1, and one without NICs inside.
    machine = machine_under("dgx-a100", 1, "NCCL_P2P_DISABLE=1")
    assert (machine.domain_ranks, machine.nics) == ((2, 2, 2, 2), 2)
    machine = machine_under("dgx-a100", 1, "NCCL_P2P_DISABLE=1,NCCL_NET_DISABLE_INTRA=1")
    assert machine.domain_ranks == (8,)


def test_only_sockets_are_left_without_peers_host_memory_and_nics():
    machine = machine_under("rtx-2080ti-pair", 1, "NCCL_SHM_DISABLE=1")
    assert (machine.domain_ranks, machine.fabric) == ((1, 1), "socket")


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "send_recv", "broadcast"])
def test_a_small_buffer_or_slow_links_never_make_a_call_quicker(collective):
    topology = load_topology("dgx-a100", nodes=2)
    for size in (1024, 2**20, 2**28):
        plain = simcoll.predict(collective, size, topology, environment=parse_environment(RINGS))
        for variables in ("NCCL_BUFFSIZE=65536", "NCCL_IB_HCA=mlx5_0", "NCCL_NET_GDR_LEVEL=LOC"):
            environment = parse_environment(f"{RINGS},{variables}")
            slow = simcoll.predict(collective, size, topology, environment=environment)
            assert slow.time_fs >= plain.time_fs * 0.999


def test_a_buffer_limits_the_rate_of_a_channel():
    wide, narrow = (
        bus_rate("dgx-a100", 2, f"{RINGS}{rest}") for rest in ("", ",NCCL_BUFFSIZE=65536")
    )
    assert narrow < wide / 5
    assert bus_rate("dgx-a100", 2, f"{RINGS},NCCL_BUFFSIZE=8388608") == pytest.approx(wide)


def test_a_diverted_call_says_so_and_has_the_interval_of_its_library():
    topology = load_topology("dgx-a100", nodes=2)
    environment = parse_environment("NCCL_IB_HCA=mlx5_0")
    prediction = simcoll.predict("all_reduce", LARGE, topology, environment=environment)
    assert "other links than the routes" in prediction.note
    assert prediction.errors_of.endswith("uncalibrated, large, nccl")
    plan = library_plan("all_reduce", LARGE, topology, environment=environment)
    played = simcoll.emulate(plan, topology, data="none").time_fs
    assert played == pytest.approx(prediction.time_fs, rel=0.01)


@pytest.mark.slow
def test_a_rate_of_sockets_that_are_not_in_use_is_said():
    topology = load_topology("dgx-a100", nodes=2)
    environment = parse_environment("SOCKET_GBPS=10")
    prediction = simcoll.predict("all_reduce", LARGE, topology, environment=environment)
    assert "SOCKET_GBPS changes nothing" in prediction.assumed
    sockets = parse_environment("NCCL_NET=Socket,NCCL_NSOCKS_PERTHREAD=4")
    prediction = simcoll.predict("all_reduce", LARGE, topology, environment=sockets)
    assert "more sockets change nothing unless the network limits each" in prediction.assumed


@pytest.mark.slow
def test_the_rate_of_a_socket_is_that_of_its_links():
    # Data of a GPU and of its NIC of 400 Gbit/s shares the link to an Intel CPU: 400 / 2 / 1.2.
    topology = load_topology("dgx-h100", nodes=2)
    environment = parse_environment("NCCL_NET=Socket")
    prediction = simcoll.predict("all_reduce", LARGE, topology, environment=environment)
    assert "167 Gbit/s that a NIC and the links on its way carry" in prediction.assumed


def test_what_a_topology_without_devices_lacks_is_said():
    environment = parse_environment("NCCL_NET_GDR_LEVEL=LOC,NCCL_IB_HCA=mlx5_0")
    topology = load_topology("mi300x", nodes=2)
    prediction = simcoll.predict("all_reduce", LARGE, topology, environment=environment)
    assert "only peer access, GPUDirect, sockets and the number of NICs" in prediction.assumed


@pytest.mark.parametrize(
    ("nodes", "variables", "expected"),
    [
        # Host memory: the share of PCIe 5.0 that a pair of GPUs without peer access has.
        (1, "NCCL_P2P_DISABLE=1", 0.3001 * 63),
        (2, f"{RINGS},NCCL_NET_GDR_LEVEL=LOC", 0.97 * 22),
        (2, f"{RINGS},NCCL_P2P_LEVEL=LOC,NCCL_SHM_DISABLE=1", 0.9 * 50),
    ],
)
def test_rccl_has_the_ways_that_variables_leave(nodes, variables, expected):
    assert bus_rate("mi300x", nodes, variables) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ("NCCL_P2P_LEVEL=NVLINK", "NCCL_P2P_LEVEL: NCCL takes no notice of 'NVLINK'; did you mean"),
        ("NCCL_IB_DISABLE=yes", "NCCL_IB_DISABLE: expected a whole number from 0 to 1, got 'yes'"),
        ("NCCL_SOCKET_NTHREADS=17", "expected a whole number from 0 to 16"),
        ("NCCL_NSOCKS_PERTHREAD=65", "expected a whole number from 0 to 64"),
        ("SOCKET_GBPS=-1", "SOCKET_GBPS: expected a whole number"),
    ],
)
def test_values_that_nccl_would_ignore_are_refused(variables, message):
    with pytest.raises(ConfigError, match=message):
        parse_environment(variables)


def test_old_numbers_of_levels():
    assert read_transports({"NCCL_P2P_LEVEL": "3"}) == read_transports({"NCCL_P2P_LEVEL": "PHB"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variables", "share", "bottleneck"),
    [
        ("dgx-a100", "NCCL_IB_HCA=mlx5_0", 8, "the NICs of a node in use (1)"),
        ("dgx-a100", "NCCL_IB_HCA=mlx5_0,mlx5_3", 4, "the NICs of a node in use (2)"),
        ("mi300x", "NCCL_IB_HCA=mlx5_0", 8, "the NICs of a node in use (1)"),
        ("dgx-a100", "NCCL_P2P_DISABLE=1,NCCL_IB_HCA=mlx5_0", 8, "the NICs of a node in use (1)"),
    ],
)
@pytest.mark.parametrize("collective", ["broadcast", "all_to_all"])
def test_the_bound_is_that_of_the_links_in_use(name, variables, share, bottleneck, collective):
    topology = load_topology(name, nodes=2)
    whole = simcoll.predict(collective, LARGE, topology)
    part = simcoll.predict(collective, LARGE, topology, environment=parse_environment(variables))
    assert whole.bottleneck == "the NICs of box 0"
    assert part.bottleneck == bottleneck
    assert part.bound_fs == pytest.approx(share * whole.bound_fs, rel=1e-6)
    assert part.bound_fs < part.time_fs < 3 * part.bound_fs


@pytest.mark.slow
def test_the_bound_without_gpudirect_or_peer_access_is_that_of_host_memory():
    environment = parse_environment("NCCL_NET_GDR_LEVEL=LOC")
    topology = load_topology("dgx-h100", nodes=2)
    staged = simcoll.predict("broadcast", LARGE, topology, environment=environment)
    assert staged.bottleneck == "the host memory of a node, through which its NICs reach GPUs"
    environment = parse_environment("NCCL_P2P_DISABLE=1")
    one_node = load_topology("mi300x", nodes=1)
    shared = simcoll.predict("all_gather", LARGE, one_node, environment=environment)
    assert shared.bottleneck == "the PCIe links of GPUs to host memory"
    for prediction in (staged, shared):
        assert 0 < prediction.bound_fs <= prediction.time_fs


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables", ["NCCL_NET_GDR_LEVEL=LOC", "NCCL_NET=Socket", "NCCL_IB_HCA=mlx5_0"]
)
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
def test_variables_do_not_lead_data_around_slow_links_between_sockets(variables, collective):
    slow = load_topology("rtx-pro-6000", nodes=2, cpu__bandwidth="4 GB/s")
    plain = simcoll.predict(collective, LARGE, slow)
    other = simcoll.predict(collective, LARGE, slow, environment=parse_environment(variables))
    assert plain.timed_by == other.timed_by == "events"
    assert plain.differs
    assert other.time_fs >= 0.999 * plain.time_fs


def test_without_peer_access_data_passes_the_same_slow_links():
    slow = load_topology("rtx-pro-6000-direct", cpu__bandwidth="4 GB/s")
    environment = parse_environment("NCCL_P2P_DISABLE=1")
    plain = simcoll.predict("all_gather", LARGE, slow)
    other = simcoll.predict("all_gather", LARGE, slow, environment=environment)
    assert other.time_fs >= 0.999 * plain.time_fs
