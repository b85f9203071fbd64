"""NCCL topology dumps: machines made up in the form of real dumps, and files that are not dumps."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.topology import LINK_KINDS, load_topology
from simcoll.topology.machine import machine
from simcoll.topology.readers.nccl_xml import parse_nccl_xml

GB = 10**15


def pci(busid, inside, speed="32.0 GT/s PCIe", width=16, kind="0x060400"):
    return (
        f'<pci busid="{busid}" class="{kind}" link_speed="{speed}" '
        f'link_width="{width}">{inside}</pci>'
    )


def gpu(busid, rank, links="", sm=90, extra="", **where):
    return pci(
        busid,
        f'<gpu dev="{rank}" sm="{sm}" rank="{rank}" gdr="1" {extra}>{links}</gpu>',
        kind="0x030200",
        **where,
    )


def nic(busid, *speeds, **where):
    ports = "".join(
        f'<net name="m{i}" dev="{i}" speed="{speed}" port="{i + 1}"/>'
        for i, speed in enumerate(speeds)
    )
    return pci(busid, f"<nic>{ports}</nic>", kind="0x020700", **where)


def cpu(number, inside, vendor="GenuineIntel", model=143, extra=""):
    return (
        f'<cpu {extra} numaid="{number}" arch="x86_64" vendor="{vendor}" familyid="6" '
        f'modelid="{model}">{inside}</cpu>'
    )


def system(*cpus):
    return ("<!-- written by hand --><system version='1'>" + "".join(cpus) + "</system>").encode()


def switches(*counts):
    return "".join(
        f'<nvlink target="0000:{7 + i:02x}:00.0" count="{c}" tclass="0x068000"/>'
        for i, c in enumerate(counts)
    )


HOPPER = switches(5, 5, 4, 4)


def two_socket_hopper(links=HOPPER, speed="32.0 GT/s PCIe"):
    """Four GPUs, a PCIe switch with a GPU and a network card each, two sockets."""

    def half(socket):
        return "".join(
            pci(
                f"0000:{socket}{k}:00.0",
                gpu(f"0000:{socket}{k}:01.0", 2 * socket + k, links)
                + nic(f"0000:{socket}{k}:02.0", 200_000, 200_000),
                speed=speed,
            )
            for k in range(2)
        )

    return system(cpu(0, half(0)), cpu(1, half(1)))


def test_nvlinks_to_several_nvswitches_are_one_bundle():
    topology = parse_nccl_xml(two_socket_hopper())
    assert topology.nranks == 4
    assert topology.path(0, 3) == ["box0.gpu0 -> box0.nvswitch", "box0.nvswitch -> box0.gpu3"]
    assert topology.link_capacity_uBps[topology.link("box0.gpu0 -> box0.nvswitch")] == 18 * 25 * GB
    # NCCL expects 20.6 of the 25 GB/s of a Hopper NVLink (src/graph/topo.h).
    assert float(topology.efficiency["nvlink"]) == 0.824
    assert topology.traits == {
        "gpu": "sm90",
        "generation": "hopper",
        "cpu": "intel",
        "switch_reduce": "nvlink-sharp",
    }


def test_virtual_machine_with_one_bundle_to_nowhere_is_the_same():
    virtual = two_socket_hopper('<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>')
    a, b = (parse_nccl_xml(content).to_networkx() for content in (two_socket_hopper(), virtual))
    assert list(a.edges(data=True)) == list(b.edges(data=True))


def test_copies_of_the_box_use_the_nearest_card():
    topology = parse_nccl_xml(two_socket_hopper(), nodes=3)
    assert topology.nranks == 12
    assert topology.path(3, 4 + 3) == [
        "box0.gpu3 -> box0.pcie-0000:11:00.0",
        "box0.pcie-0000:11:00.0 -> box0.nic3",
        "box0.nic3 -> leaf0.rail3",
        "leaf0.rail3 -> box1.nic3",
        "box1.nic3 -> box1.pcie-0000:11:00.0",
        "box1.pcie-0000:11:00.0 -> box1.gpu3",
    ]
    assert "not in the dump" in topology.description
    assert topology.link_capacity_uBps[topology.link("box0.nic3 -> leaf0.rail3")] == 50 * GB
    assert topology.groups["box"].tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("speed", "width", "GBps"),
    [
        ("2.5 GT/s", 16, 3),
        ("5.0 GT/s PCIe", 16, 6),
        ("8 GT/s", 16, 12),
        ("16.0 GT/s PCIe", 16, 24),
        ("16 GT/s", 8, 12),
        ("32.0 GT/s PCIe", 16, 48),
        ("64.0 GT/s PCIe", 16, 96),
        ("Unknown", 16, 12),
        ("16 GT/s", 0, 24),
    ],
)
def test_pcie_speed_is_width_times_lane_rate(speed, width, GBps):
    box = system(
        cpu(
            0, gpu("0:1.0", 0, speed=speed, width=width) + gpu("0:2.0", 1, speed=speed, width=width)
        )
    )
    topology = parse_nccl_xml(box)
    assert topology.path(0, 1) == ["box0.gpu0 -> box0.cpu0", "box0.cpu0 -> box0.gpu1"]
    assert topology.link_capacity_uBps[topology.link("box0.gpu0 -> box0.cpu0")] == GBps * GB


@pytest.mark.parametrize(
    ("vendor", "model", "GBps"),
    [
        ("GenuineIntel", 79, 6),
        ("GenuineIntel", 85, 10),
        ("GenuineIntel", 143, 22),
        ("GenuineIntel", 207, 40),
        ("AuthenticAMD", 1, 16),
    ],
)
def test_link_between_sockets(vendor, model, GBps):
    box = system(cpu(0, gpu("0:1.0", 0), vendor, model), cpu(1, gpu("0:2.0", 1), vendor, model))
    topology = parse_nccl_xml(box)
    assert topology.link_capacity_uBps[topology.link("box0.cpu0 -> box0.cpu1")] == GBps * GB
    assert LINK_KINDS[topology.route([0], [1]).kind[0]] == "cpu"


def test_direct_nvlinks_and_a_pair_without():
    def to(busid, count):
        return f'<nvlink target="{busid}" count="{count}" tclass="0x030200"/>'

    box = system(
        cpu(
            0,
            gpu("0:1.0", 0, to("0:2.0", 2), sm=70)
            + gpu("0:2.0", 1, to("0:1.0", 2) + to("0:3.0", 1), sm=70)
            + gpu("0:3.0", 2, to("0:2.0", 1) + to("0:9.0", 3), sm=70)
            + nic("0:4.0", 100_000),
        )
    )
    topology = parse_nccl_xml(box)
    assert topology.path(0, 1) == ["box0.gpu0 -> box0.gpu1"]
    assert topology.link_capacity_uBps[topology.link("box0.gpu1 -> box0.gpu0")] == 50 * GB
    assert topology.path(0, 2) == ["box0.gpu0 -> box0.cpu0", "box0.cpu0 -> box0.gpu2"]
    assert parse_nccl_xml(box, nodes=2).path(2, 3)[:2] == [
        "box0.gpu2 -> box0.cpu0",
        "box0.cpu0 -> box0.nic0",
    ]


def test_ranks_number_the_gpus_whatever_the_order_in_the_file():
    topology = parse_nccl_xml(
        system(cpu(0, gpu("0:1.0", 1, switches(4)) + gpu("0:2.0", 0, switches(8))))
    )
    assert topology.link_capacity_uBps[topology.link("box0.gpu0 -> box0.nvswitch")] == 8 * 25 * GB


def test_cards_are_shared_by_gpus_equally_near_and_far_ones_not_used():
    plenty = system(
        cpu(0, pci("0:1.0", gpu("0:2.0", 0) + nic("0:3.0", 100_000) + nic("0:4.0", 100_000)))
        + cpu(1, nic("0:5.0", 100))
    )
    topology = parse_nccl_xml(plenty, nodes=2)
    assert topology.link_capacity_uBps[topology.link("box0.nic0 -> leaf")] == 25 * GB
    assert "1 rail(s) of 3 network card(s)" in topology.description
    few = system(cpu(0, pci("0:1.0", gpu("0:2.0", 0) + gpu("0:3.0", 1) + nic("0:4.0", 100_000))))
    topology = parse_nccl_xml(few, nodes=2)
    assert topology.path(1, 3)[1:3] == ["box0.pcie-0:1.0 -> box0.nic0", "box0.nic0 -> leaf"]


def test_ports_without_a_speed_do_not_count():
    box = system(cpu(0, gpu("0:2.0", 0) + nic("0:3.0", -1, 0) + nic("0:4.0", 0, 100_000)))
    topology = parse_nccl_xml(box, nodes=2)
    assert topology.link_capacity_uBps[topology.link("box0.nic0 -> leaf")] == 12_500 * 10**12
    with pytest.raises(ConfigError, match="no NICs"):
        parse_nccl_xml(system(cpu(0, gpu("0:2.0", 0) + nic("0:3.0", -1))), nodes=2)


def test_amd_mesh():
    def to(*others):
        return "".join(
            f'<xgmi target="0:{other}.0" count="1" tclass="0x120000"/>' for other in others
        )

    ends = ((1, 2, 3), (2, 1, 3), (3, 1, 2))
    gpus = "".join(
        gpu(f"0:{a}.0", a - 1, to(b, c), sm=304, extra='gcn="gfx942" arch="38911"')
        for a, b, c in ends
    )
    topology = parse_nccl_xml(system(cpu(0, gpus)))
    assert topology.path(0, 2) == ["box0.gpu0 -> box0.gpu2"]
    assert topology.link_capacity_uBps[topology.link("box0.gpu0 -> box0.gpu2")] == 64 * GB
    assert topology.traits["generation"] == "mi300"
    newer = parse_nccl_xml(system(cpu(0, gpus)).replace(b"gfx942", b"gfx950"))
    assert newer.link_capacity_uBps[newer.link("box0.gpu0 -> box0.gpu2")] == 76_800 * 10**12
    assert newer.traits["generation"] == "mi355"
    with pytest.raises(ConfigError, match="gcn='gfx999' is not known"):
        parse_nccl_xml(system(cpu(0, gpus)).replace(b"gfx942", b"gfx999"))


def test_files_of_clouds_have_no_gpus_and_the_error_says_how_to_get_them():
    bare = system(
        cpu(0, '<pci busid="0:1.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>' * 1)
    )
    with pytest.raises(
        ConfigError, match=r"1 GPU devices \(class 0x03\) but no <gpu>.*NCCL_TOPO_DUMP_FILE"
    ):
        parse_nccl_xml(bare)
    with pytest.raises(ConfigError, match="no <gpu> elements"):
        parse_nccl_xml(system(cpu(0, "")))


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaaaaaaaa"><!ENTITY b '
    b'"&a;&a;&a;&a;&a;&a;">]><system>&b;</system>'
)
EXTERNAL = b'<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><system>&x;</system>'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: not well-formed XML: no element found"),
        (b"<system>\n<cpu>\n", "line 3: not well-formed XML: no element found"),
        (b"<system>\n<cpu></system>", "line 2: not well-formed XML: mismatched tag"),
        (b"(a quote)", "line 1: not well-formed XML: syntax error"),
        (BOMB, "document type definitions and entities are not allowed"),
        (EXTERNAL, "document type definitions and entities are not allowed"),
        (
            b'<!DOCTYPE system SYSTEM "http://localhost/x.dtd"><system/>',
            "document type definitions and entities are not allowed",
        ),
        (b"<graphs version='1'><graph/></graphs>", "this is a graph file"),
        (b"<html/>", "found <html>"),
        (b"<system/>", "no <gpu> elements"),
        (b"<system>" * 65 + b"</system>" * 65, "nested deeper than 64"),
        (b"<system>" + b"<cpu/>" * 100_001 + b"</system>", "more than 100000 elements"),
        (b"<system/>" + b" " * 2**24, "larger than 16 MiB"),
        (b"<?xml version='1.0' encoding='klingon'?><system/>", "XML"),
        (system(gpu("0:1.0", 0)), "is not inside a <cpu>"),
        (system(cpu(0, gpu("0:1.0", 0) + gpu("0:2.0", 0))), "two GPUs have the same rank"),
        (system(cpu(0, gpu("0:1.0", 0) + gpu("0:1.0", 1))), "occurs twice"),
        (system(cpu(0, gpu("0:1.0", 0, width="wide"))), "link_width='wide' is not a whole number"),
        (system(cpu(0, gpu("0:1.0", 0, width=65))), "link_width 65 is out of range"),
        (system(cpu(0, gpu("0:1.0", 0, switches(0)))), "expected 1 to 1000"),
        (system(cpu(0, gpu("0:1.0", 0, switches(1000)))), "9.22 TB/s"),
        (
            system(
                cpu(0, gpu("0:1.0", 0), extra='host_hash="0x1"'),
                cpu(1, "", extra='host_hash="0x2"'),
            ),
            "spans 2 hosts, which no NVSwitch joins",
        ),
    ],
)
def test_files_that_are_refused(content, message):
    with pytest.raises(ConfigError) as error:
        parse_nccl_xml(content, file="dump.xml")
    assert message in str(error.value)
    assert str(error.value).startswith("dump.xml: ")


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_dumps_load_or_raise_config_error(data):
    content = bytearray(two_socket_hopper())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] = data.draw(st.integers(0, 255))
        else:
            del content[at : at + data.draw(st.integers(1, 40))]
            content = content or bytearray(b" ")
    try:
        topology = parse_nccl_xml(bytes(content), nodes=data.draw(st.integers(1, 2)))
    except ConfigError:
        return
    ranks = np.arange(topology.nranks)
    assert (topology.route(ranks, ranks[::-1]).links < topology.nlinks).all()


def test_dumps_load_by_path_and_refuse_other_changes(tmp_path):
    path = tmp_path / "node.xml"
    path.write_bytes(two_socket_hopper())
    assert load_topology(path, nodes=2).nranks == 8
    assert load_topology(path).name == "node"
    assert (
        load_topology(path, nodes=2, placement__order="round_robin").groups["box"].tolist()
        == [0, 1] * 4
    )
    assert load_topology(path, traits__fabric="roce").traits["fabric"] == "roce"
    with pytest.raises(
        ConfigError, match=r"node\.xml: \$\.nic\.bandwidth: a full dump states this"
    ):
        load_topology(path, nic__bandwidth="3 GB/s")
    with pytest.raises(ConfigError, match="nodes: 0 is out of range"):
        load_topology(path, nodes=0)


def test_a_topology_file_adds_what_a_dump_does_not_say(tmp_path):
    (tmp_path / "node.xml").write_bytes(two_socket_hopper())
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "node.xml"\nnodes = 3\n[traits]\nfabric = "roce"\n[efficiency]\nnet = 0.9\n'
    )
    mine, dump = load_topology(path), load_topology(tmp_path / "node.xml", nodes=3)
    assert (mine.name, mine.nranks) == ("mine", 12)
    assert mine.link_capacity_uBps.tolist() == dump.link_capacity_uBps.tolist()
    assert mine.traits == {**dump.traits, "fabric": "roce"}
    assert mine.efficiency == {**dump.efficiency, "net": Fraction(9, 10)}
    assert {**mine.sources, "$.nodes": "argument"} == dump.sources
    found = machine(mine)
    assert (found.domain_ranks, found.inside, found.fabric) == ((4, 4, 4), "nvlink", "roce")
    for text, message in (
        ('extends = "node.xml"\n[nic]\ncount = 4', r"mine\.toml: \$\.nic\.count: unknown key"),
        (
            'extends = "node.xml"\nfamily = "boxes"',
            r"'boxes' is not the family of .*node\.xml; expected 'NCCL dump'",
        ),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_topology(path)
    path.write_text('extends = "node.xml"')
    (tmp_path / "node.xml").write_text("<system")
    with pytest.raises(ConfigError, match=r"node\.xml: line 1: not well-formed"):
        load_topology(path)


def two(first, second):
    return system(cpu(0, first + second))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            two_socket_hopper().replace(b' sm="90"', b"", 1),
            "<gpu> of <pci busid='0000:00:01.0'> has no sm",
        ),
        (
            two(gpu("0:1.0", 0, sm=-1), gpu("0:2.0", 1)),
            "<gpu> of <pci busid='0:1.0'>: sm='-1' is not a GPU",
        ),
        (
            two(gpu("0:1.0", 0, sm=90), gpu("0:2.0", 1, sm=80)),
            "0:1.0 has sm='90', 0:2.0 has sm='80'",
        ),
        (
            two(gpu("0:1.0", 0, extra='gcn="gfx942"'), gpu("0:2.0", 1, extra='gcn="gfx90a"')),
            "0:1.0 has gcn='gfx942', 0:2.0 has gcn='gfx90a'",
        ),
        (
            two(
                gpu("0:1.0", 0, '<nvlink target="0:1.0" count="2" tclass="0x030200"/>'),
                gpu("0:2.0", 1),
            ),
            "GPU 0:1.0: a link to itself",
        ),
        (
            two_socket_hopper().replace(b' speed="200000"', b"", 1),
            "<net name='m0'> has no speed; expected Mbit/s",
        ),
    ],
)
def test_what_link_speeds_follow_from_is_never_guessed(content, message):
    with pytest.raises(ConfigError) as error:
        parse_nccl_xml(content, file="dump.xml")
    assert message in str(error.value)
    assert str(error.value).startswith("dump.xml: ")


def chip(busid, rank, c2c, inside="", **where):
    """A GPU on the chip of its CPU."""
    return gpu(busid, rank, links=f"{c2c}{inside}", sm=121, **where)


C2C = '<c2c bw="43125" count="8"/>'


def test_a_gpu_on_the_chip_of_its_cpu_is_reached_by_c2c():
    """8 links of 43.125 GB/s, as NCCL computes it; the PCIe link of 2.5 GT/s only configures it."""
    dump = system(
        cpu(
            0,
            chip("000f:01:00.0", 0, C2C, speed="2.5 GT/s PCIe")
            + nic("0000:01:00.0", 200_000, width=4)
            + nic("0002:01:00.0", 200_000, width=4),
        )
    )
    two = parse_nccl_xml(dump, nodes=2)
    capacities = two.link_capacity_uBps[[two.link(link) for link in two.path(0, 1)]]
    assert int(capacities[0]) == 345 * GB
    assert int(capacities.min()) == 24 * GB  # two slots of 4 lanes at 32 GT/s, as NCCL counts them


def test_a_gpu_below_a_switch_keeps_its_pcie_link_beside_c2c():
    """Its NIC is below the same switch; memory of the CPU is reached by C2C."""
    inside = gpu("0:2.0", 0, links=f"{C2C}{HOPPER}", sm=100) + nic("0:3.0", 400_000)
    one = parse_nccl_xml(system(cpu(0, pci("0:1.0", inside) + gpu("0:4.0", 1, HOPPER, sm=100))))
    assert int(one.link_capacity_uBps[one.link("box0.gpu0 -> box0.cpu0")]) == 345 * GB
    assert int(one.link_capacity_uBps[one.link("box0.gpu0 -> box0.pcie-0:1.0")]) < 64 * GB


@pytest.mark.parametrize("c2c", ['<c2c bw="0" count="8"/>', '<c2c bw="43125" count="101"/>'])
def test_c2c_links_out_of_range_are_refused(c2c):
    with pytest.raises(ConfigError, match=r"<c2c bw=.*; expected Mbyte/s of a link, such as 43125"):
        parse_nccl_xml(system(cpu(0, chip("0:1.0", 0, c2c))))


@pytest.mark.parametrize("width", [0, 255])
def test_an_unknown_width_is_that_of_a_slot(width):
    dumps = [
        system(cpu(0, gpu("0:1.0", 0, width=lanes) + gpu("0:2.0", 1))) for lanes in (16, width)
    ]
    slot, unknown = map(parse_nccl_xml, dumps)
    assert unknown.link_capacity_uBps.tolist() == slot.link_capacity_uBps.tolist()


def test_a_rack_of_hosts_is_one_nvlink_domain():
    """As NCCL dumps it with NVLinks between nodes: the hosts' trees side by side, alike."""

    def host(number):
        return "".join(
            cpu(
                socket,
                gpu(f"000{socket}:01:00.0", 4 * number + 2 * socket, switches(18), sm=100)
                + gpu(f"000{socket}:02:00.0", 4 * number + 2 * socket + 1, switches(18), sm=100)
                + nic(f"000{socket}:03:00.0", 400_000),
                extra=f'host_hash="0x{number + 1}"',
            )
            for socket in range(2)
        )

    rack = parse_nccl_xml(system(host(0), host(1)))
    assert rack.nranks == 8
    assert rack.path(0, 7) == ["box0.gpu0 -> box0.nvswitch", "box0.nvswitch -> box0.gpu7"]
    assert machine(rack).domain_ranks == (8,)
    between = LINK_KINDS.index("cpu")
    assert int((rack.link_kind == between).sum()) == 4  # two sockets a host, both directions
    racks = parse_nccl_xml(system(host(0), host(1)), nodes=2)
    cards = [next(link for link in racks.path(rank, 8) if ".nic" in link) for rank in range(8)]
    assert len({card.split("nic")[1] for card in cards}) == 4
