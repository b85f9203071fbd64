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
    with pytest.raises(ConfigError, match="only flat clusters are read"):
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
        (
            parse_simgrid,
            PLATFORM.replace(b"Full", b"Vivaldi"),
            "with routing 'Vivaldi'; expected Full, Floyd, Dijkstra or Cluster",
        ),
        (parse_simgrid, b"<platform/>", "0 zones; expected one outermost <zone> or <cluster>"),
        (
            parse_simgrid,
            PLATFORM.replace(b"-&gt; switch", b"switch", 1),
            "no link 'gpu1 -> switch'|no link",
        ),
        (
            parse_simgrid,
            PLATFORM.replace(b"1000000000Bps", b"fast"),
            "bandwidth 'fast': expected a rate such as 10GBps",
        ),
        (
            parse_simgrid,
            PLATFORM.replace(b"<route", b"<rout", 1).replace(b"</route>", b"</rout>", 1),
            "<rout> in zone",
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


@pytest.mark.slow
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


@pytest.mark.slow
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


ZONES = """<platform version="4.1"><zone id="world" routing="{routing}">
<zone id="left" routing="Full"><host id="a" speed="1Gf"/><host id="b" speed="1Gf"/><router id="ra"/>
<link id="wa" bandwidth="1GBps" latency="1us"/>
<link id="wb" bandwidth="2GBps" latency="2us" sharing_policy="SPLITDUPLEX"/>
<route src="a" dst="b"><link_ctn id="wa"/><link_ctn id="wb" direction="DOWN"/></route>
<route src="a" dst="ra"><link_ctn id="wa"/></route>
<route src="b" dst="ra"><link_ctn id="wb" direction="UP"/></route></zone>
<cluster id="c" prefix="c-" suffix="" radical="0-1" speed="1Gf" bw="4GBps" lat="4us" {backbone}/>
<router id="middle"/>
<link id="l1" bandwidth="8GBps" latency="8us"/><link id="l2" bandwidth="8GBps" latency="16us" {policy}/>
{routes}</zone></platform>"""
STEPS = """<zoneRoute src="left" dst="middle" gw_src="ra" gw_dst="middle"><link_ctn id="l1"/></zoneRoute>
<zoneRoute src="middle" dst="c" gw_src="middle" gw_dst="c-c_router"><link_ctn id="l2"/></zoneRoute>"""
WHOLE = """<zoneRoute src="left" dst="c" gw_src="ra" gw_dst="c-c_router"><link_ctn id="l1"/><link_ctn id="l2"/>
</zoneRoute>"""


def platform(routing="Full", routes=WHOLE, backbone="", policy=""):
    text = ZONES.format(routing=routing, routes=routes, backbone=backbone, policy=policy)
    return parse_simgrid(text.encode())


def resources(topology, source, target):
    """Links of the platform on a route, without the steps between them."""
    names = topology.path(source, target)
    return [name.split(" in -> ")[0] for name in names if " in -> " in name]


@pytest.mark.parametrize(
    ("routing", "routes"), [("Full", WHOLE), ("Floyd", STEPS), ("Dijkstra", STEPS)]
)
def test_zones_in_zones(routing, routes):
    """Hosts are a, b, c-0, c-1; a route between zones goes over their gateways."""
    topology = platform(routing, routes)
    assert topology.nranks == 4
    assert resources(topology, 0, 1) == ["wa", "wb_DOWN"]
    assert resources(topology, 1, 0) == ["wb_UP", "wa"]
    assert resources(topology, 0, 2) == ["wa", "l1", "l2", "c_link_0_DOWN"]
    assert resources(topology, 3, 1) == ["c_link_1_UP", "l2", "l1", "wb_DOWN"]
    assert resources(topology, 2, 3) == ["c_link_0_UP", "c_link_1_DOWN"]
    assert topology.route([0], [2]).latency_fs.tolist() == [(1 + 8 + 16 + 4) * 10**9]
    shared = topology.link("l1 in -> l1 out")
    assert int(topology.link_capacity_uBps[shared]) == 8 * 10**15


def test_a_backbone_is_shared_and_a_fat_pipe_is_not():
    topology = platform(backbone='bb_bw="16GBps" bb_lat="1us"', policy='sharing_policy="FATPIPE"')
    assert resources(topology, 2, 3) == ["c_link_0_UP", "c_backbone", "c_link_1_DOWN"]
    assert resources(topology, 0, 2)[-3:] == ["l2 a to c-0", "c_backbone", "c_link_0_DOWN"]
    assert resources(topology, 0, 3)[-3] == "l2 a to c-1"


def test_both_directions_of_a_shared_link_halve_it():
    """Two hosts on one link of 1 GB/s: a message each way takes as long as two one after another."""
    text = b"""<platform version="4.1"><zone id="z" routing="Full"><host id="a" speed="1Gf"/>
    <host id="b" speed="1Gf"/><link id="l" bandwidth="1GBps" latency="0"/>
    <route src="a" dst="b"><link_ctn id="l"/></route></zone></platform>"""
    shared = parse_simgrid(text)
    duplex = parse_simgrid(
        text.replace(b'latency="0"', b'latency="0" sharing_policy="SPLITDUPLEX"').replace(
            b'"l"/></r', b'"l" direction="UP"/></r'
        )
    )
    plan = simcoll.bind(simcoll.schedule("all_to_all", "direct", nranks=2), 2 * 10**9 // 4)
    times = [
        simcoll.emulate(plan, each, data="none", bound=False).time_fs for each in (shared, duplex)
    ]
    assert times[0] == pytest.approx(2 * times[1], rel=1e-6)


def test_clusters_of_cabinets_and_of_single_hosts():
    text = b"""<platform version="4.1"><zone id="z" routing="Cluster">
    <cabinet id="k" prefix="h" suffix="" radical="0-1" speed="1Gf" bw="1GBps" lat="1us"/>
    <host id="x" speed="1Gf"/><link id="up" bandwidth="2GBps" latency="2us"/>
    <host_link id="x" up="up" down="up"/><backbone id="bb" bandwidth="8GBps" latency="8us"/>
    </zone></platform>"""
    topology = parse_simgrid(text)
    assert resources(topology, 0, 1) == ["link_k_0_UP", "bb", "link_k_1_DOWN"]
    assert resources(topology, 2, 0) == ["up", "bb", "link_k_0_DOWN"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"routes": ""}, "zone 'world' has no route from 'left' to 'c'"),
        ({"routes": WHOLE.replace('"ra"', '"rb"')}, "gateway 'rb' is not in zone 'left'"),
        ({"routes": WHOLE.replace('"l1"', '"l3"')}, "no link 'l3'; did you mean 'l2'"),
        (
            {"routes": WHOLE.replace('dst="c"', 'dst="d"')},
            "<zoneRoute> of zone 'world': 'd' is not in it",
        ),
        ({"backbone": 'topology="TORUS"'}, "of topology 'TORUS': only flat clusters are read"),
        (
            {"policy": 'sharing_policy="WIFI"'},
            "sharing_policy 'WIFI'; expected SHARED, SPLITDUPLEX",
        ),
        (
            {"routes": f"{WHOLE}<peer id='p'/>"},
            "<peer> in zone 'world': coordinates instead of links",
        ),
        ({"routing": "Vivaldi"}, "zone 'world' with routing 'Vivaldi'; expected Full"),
    ],
)
def test_platforms_that_are_refused(changes, said):
    with pytest.raises(ConfigError, match=f"platform: .*{said}"):
        platform(**changes)
