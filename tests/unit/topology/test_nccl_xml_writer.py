"""NCCL topology files written from topologies: what NCCL would see again, and what it has no words
for.
"""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.topology import crossbar, load_topology, shipped_topologies
from simcoll.topology.readers.nccl_host_writer import ANY_CPU
from simcoll.topology.readers.nccl_xml import parse_nccl_xml
from simcoll.topology.readers.nccl_xml_writer import nccl_topology_xml


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("dgx-h100", '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'),
        ("dgx-a100", '<nvlink target="fffffff:ff:ff.0" count="12" tclass="0x068000"/>'),
        ("mi300x", 'tclass="0x030200"/>'),
        ("rtx-pro-6000", 'class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16"'),
    ],
)
def test_links_are_counted(name, links):
    topology = load_topology(name, nodes=1)
    text = nccl_topology_xml(topology).decode()
    assert links in text
    again = parse_nccl_xml(text.encode())
    assert again.nranks == topology.nranks
    assert again.traits["generation"] == topology.traits["generation"]
    if "pcie" not in topology.node_kinds:
        ends = [
            [each.rpartition(".")[2] for each in machine.path(0, 1)]
            for machine in (again, topology)
        ]
        assert ends[0] == ends[1]


def sockets_that_nccl_sees(content):
    """Sockets in the files of all ranks, joined by equal attributes (``ncclTopoFuseXml``), after
    each rank has added what the socket of its own GPU lacks (``ncclTopoGetXmlFromCpu``).
    """
    cpus = ET.fromstring(content).findall("cpu")
    of_rank = [number for number, cpu in enumerate(cpus) for _ in cpu.iter("gpu")]
    files = [
        [
            {"affinity": "ff", **cpu.attrib} if number == own else cpu.attrib
            for number, cpu in enumerate(cpus)
        ]
        for own in of_rank
    ]
    return {tuple(sorted(attributes.items())) for file in files for attributes in file}


@pytest.mark.parametrize("name", ["dgx-h100", "gcp-a4x-max", "mi300x", "rtx-pro-6000", "dgx-1v"])
def test_nccl_sees_each_socket_once(name):
    content = nccl_topology_xml(load_topology(name, nodes=1))
    sockets = sockets_that_nccl_sees(content)
    assert len(sockets) == content.count(b"<cpu ") >= 1
    without = re.sub(rb' affinity="[^"]*"', b"", content)
    ranks = {cpu.get("numaid") for cpu in ET.fromstring(content) if cpu.find(".//gpu") is not None}
    assert (len(sockets_that_nccl_sees(without)) > len(sockets)) == (len(ranks) > 1)


@pytest.mark.parametrize(
    ("affinity", "written"),
    [("0000ffff,ffff0000", "0000ffff,ffff0000"), ("0&quot;/&gt;", ANY_CPU), ("", ANY_CPU)],
)
def test_cpus_of_a_dump_are_kept(affinity, written):
    content = nccl_topology_xml(load_topology("dgx-h100", nodes=1)).decode()
    dump = content.replace(ANY_CPU, affinity, 1)
    again = ET.fromstring(nccl_topology_xml(parse_nccl_xml(dump.encode())))
    assert [cpu.get("affinity") for cpu in again] == [written, ANY_CPU]


@pytest.mark.slow
def test_every_machine_with_a_known_gpu():
    written = 0
    for name in shipped_topologies():
        try:
            topology = load_topology(name, nodes=1)
        except ConfigError:
            continue
        if topology.traits.get("generation"):
            assert parse_nccl_xml(nccl_topology_xml(topology)).nranks == topology.nranks
            written += 1
    assert written > 50


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (
            crossbar(4, "25 GB/s"),
            "its GPUs are of generation '', and links cannot be counted without; known: pascal",
        ),
        (load_topology("dgx-h100", nodes=2), "'dgx-h100' has several nodes"),
        (
            load_topology("dgx-h100", nodes=1, gpu__bandwidth="440 GB/s"),
            "440 GB/s from gpu0 to switch is not a whole number of links",
        ),
    ],
)
def test_what_nccl_has_no_words_for(topology, says):
    with pytest.raises(ConfigError, match=says):
        nccl_topology_xml(topology)


def test_rates_of_pcie_that_do_not_exist():
    topology = load_topology("rtx-pro-6000", nodes=1)
    slow = replace(topology, link_capacity_uBps=topology.link_capacity_uBps * 2 // 3)
    with pytest.raises(
        ConfigError, match=r"GB/s between .* matches no generation and width of PCIe"
    ):
        nccl_topology_xml(slow)


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "dgx-h100", "topo.xml", "--to", "nccl-topology"]) == 0
    assert "8 ranks" in capsys.readouterr().out
    assert load_topology("topo.xml").nranks == 8


def test_a_graph_of_one_node_is_written_and_one_of_two_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "dgx-h100", "one.graphml"]) == 0
    assert main(["convert", "one.graphml", "no.xml", "--to", "nccl-topology"]) == 2
    assert "of generation ''" in capsys.readouterr().err
    assert (
        main(
            ["convert", "one.graphml:traits.generation=hopper", "one.xml", "--to", "nccl-topology"]
        )
        == 0
    )
    # A graph has links and no PCIe devices.
    bare = replace(load_topology("dgx-h100", nodes=1), host=None)
    assert (tmp_path / "one.xml").read_bytes() == nccl_topology_xml(bare)
    assert main(["convert", "dgx-h100:nodes=2", "two.graphml"]) == 0
    assert (
        main(["convert", "two.graphml:traits.generation=hopper", "no.xml", "--to", "nccl-topology"])
        == 2
    )
    assert "joins its GPUs by a network" in capsys.readouterr().err
    assert not (tmp_path / "no.xml").exists()


def test_what_is_no_workload_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "dgx-h100", "one.graphml"]) == 0
    for source, told in (
        ("one.graphml", "this is a GraphML graph"),
        ("ring", "an algorithm is no workload"),
    ):
        assert main(["convert", source, "out", "--to", "workload"]) == 2
        assert f"{told}; expected a list of operations, a workload" in capsys.readouterr().err
