"""GraphML and SimGrid platforms: there and back, other tools' files, and what is refused."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.testing import topologies
from simcoll.topology import crossbar, load_topology
from simcoll.topology.readers.graph_files import (
    graphml_text,
    parse_graphml,
    parse_simgrid,
    simgrid_text,
)


def links(topology):
    columns = (topology.link_capacity_uBps, topology.link_latency_fs)
    return {
        topology.link_name(i): tuple(int(column[i]) for column in columns)
        for i in range(topology.nlinks)
    }


@settings(max_examples=20, deadline=None)
@given(topologies(2))
def test_graphml_there_and_back(topology):
    again = parse_graphml(graphml_text(topology))
    assert links(again) == links(topology)
    assert again.node_kinds == topology.node_kinds
    assert again.gpus_forward == topology.gpus_forward
    # Routes are found anew, the shortest by latency: a family may go another way, by NVLink beside
    # a network without latency.
    pairs = np.array([(i, j) for i in range(again.nranks) for j in range(again.nranks)])
    assert np.all(again.route(*pairs.T).latency_fs <= topology.route(*pairs.T).latency_fs)


def test_networkx_reads_what_is_written(tmp_path):
    topology = load_topology("dgx-h100", nodes=2)
    (tmp_path / "two.graphml").write_bytes(graphml_text(topology))
    graph = nx.read_graphml(tmp_path / "two.graphml")
    assert graph.number_of_edges() == topology.nlinks
    assert graph.nodes["box1.gpu0"]["rank"] == 8
    # And the other way round: what networkx writes is a topology.
    ring = nx.cycle_graph(4)
    nx.set_node_attributes(ring, "gpu", "kind")
    nx.set_edge_attributes(ring, "25 GB/s", "bandwidth")
    nx.write_graphml_xml(ring, tmp_path / "ring.graphml")
    # Whether GPUs pass on what is not theirs is not known.
    with pytest.raises(ConfigError, match="gpus_forward"):
        load_topology(tmp_path / "ring.graphml")


def test_platforms_there_and_back():
    for topology in (crossbar(5, "10 GB/s", "1 us"), load_topology("dgx-a100", nodes=2)):
        again = parse_simgrid(simgrid_text(topology))
        assert all(again.path(a, b) == topology.path(a, b) for a in range(5) for b in range(5))
        plans = simcoll.bind(
            simcoll.schedule("all_reduce", "ring", nranks=topology.nranks), 1 << 20
        )
        times = [
            simcoll.emulate(plans, each, data="none", bound=False).time_fs
            for each in (topology, again)
        ]
        assert times[0] == times[1]


def test_a_flat_cluster():
    text = b"""<?xml version='1.0'?><!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
    <platform version="4.1"><cluster id="c" prefix="n" suffix="" radical="0-2,7" speed="1Gf" bw="12.5GBps" lat="50us"/></platform>"""
    topology = parse_simgrid(text)
    assert topology.nranks == 4
    assert set(topology.link_capacity_uBps.tolist()) == {12_500_000_000 * 10**6}
    assert topology.route([0], [3]).latency_fs.tolist() == [100 * 10**9]
    with pytest.raises(ConfigError, match="only a flat cluster"):
        parse_simgrid(text.replace(b"speed", b'topology="TORUS" speed'))


PLATFORM = simgrid_text(crossbar(2, "8 Gbps", "1 us"))
GRAPH = graphml_text(crossbar(2, "8 Gbps", "1 us"))


@pytest.mark.parametrize(
    ("parse", "content", "says"),
    [
        (parse_graphml, GRAPH.replace(b"graphml", b"gml"), "expected <graphml>, found <gml>"),
        (parse_graphml, GRAPH.replace(b'target="gpu0"', b'target="gpu7"'), "no node 'gpu7'"),
        (parse_graphml, GRAPH.replace(b">link<", b">wire<"), "unknown kind 'wire'"),
        (
            parse_graphml,
            b"<!DOCTYPE a [<!ENTITY b 'c'>]>" + GRAPH[39:],
            "document type|DTD|entities",
        ),
        (parse_simgrid, PLATFORM.replace(b"Full", b"Floyd"), 'expected one <zone routing="Full">'),
        (parse_simgrid, PLATFORM.replace(b" -&gt; ", b"_"), "its ends are unknown"),
        (
            parse_simgrid,
            PLATFORM.replace(b"1000000000Bps", b"fast"),
            "bandwidth 'fast': expected a rate such as 10GBps",
        ),
        (
            parse_simgrid,
            PLATFORM.replace(b"<route", b"<rout", 1).replace(b"</route>", b"</rout>", 1),
            "<rout> in the zone",
        ),
        (
            parse_simgrid,
            PLATFORM.replace(b'dst="rank-1"', b'dst="rank-9"'),
            "expected two hosts and links",
        ),
    ],
)
def test_what_is_refused(parse, content, says):
    with pytest.raises(ConfigError, match=says):
        parse(content)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([GRAPH, PLATFORM]), st.data())
def test_broken_files_give_one_error(content, data):
    parse = parse_graphml if content is GRAPH else parse_simgrid
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6))
    try:
        parse(bytes(content))
    except ConfigError:
        return


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "dgx-h100", "one.graphml"]) == 0
    assert main(["convert", "one.graphml", "one.xml", "--to", "simgrid"]) == 0
    assert "8 ranks" in capsys.readouterr().out
    for name in ("one.graphml", "one.xml"):
        assert (
            main(
                [
                    "perf",
                    "all_reduce",
                    "-t",
                    name,
                    "-b",
                    "1M",
                    "-e",
                    "1M",
                    "-a",
                    "ring",
                    "-p",
                    "ideal",
                ]
            )
            == 0
        )
