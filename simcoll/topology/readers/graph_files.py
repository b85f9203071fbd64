"""Topologies in files of other tools: GraphML, as networkx writes it, and SimGrid platforms.

GraphML keeps every vertex and link, and routes are recomputed; a platform keeps the route of every
pair of ranks, and names its links by their ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise, permutations
from typing import Any, NoReturn
from xml.etree.ElementTree import Element
from xml.sax.saxutils import quoteattr

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.core.immutable import by_constructor, freeze
from simcoll.errors import ConfigError, blamed_on
from simcoll.files.reader_arguments import Content, content_of
from simcoll.files.xml import XmlLimits, parse_xml
from simcoll.topology.families import crossbar
from simcoll.topology.graph import LINK_KINDS, Topology
from simcoll.topology.networkx_graph import from_networkx
from simcoll.topology.readers.simgrid_zones import host_route, radical, read_zone
from simcoll.units import MAX_RATE_UBPS

__all__ = ["graphml_text", "parse_graphml", "parse_simgrid", "simgrid_text"]

LIMITS = XmlLimits(depth=16, elements=2_000_000)
MOST_ROUTED = 512
"""Limit of ranks of a platform, which lists the route of every pair."""
_TYPES = {str: "string", int: "long"}
_EDGE_KEYS: dict[str, type] = {"capacity_uBps": int, "latency_fs": int, "kind": str}
_NODE_KEYS: dict[str, type] = {"kind": str, "rank": int}


def graphml_text(topology: Topology) -> bytes:
    """A topology as GraphML, which :func:`networkx.read_graphml` also reads.

    Raises
    ------
    ConfigError
        When two links join the same vertices in one direction, since they would become one.
    """
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
        *(
            f'  <key id="n_{name}" for="node" attr.name="{name}" attr.type="{_TYPES[kind]}"/>'
            for name, kind in _NODE_KEYS.items()
        ),
        *(
            f'  <key id="e_{name}" for="edge" attr.name="{name}" attr.type="{_TYPES[kind]}"/>'
            for name, kind in _EDGE_KEYS.items()
        ),
        '  <key id="g_forward" for="graph" attr.name="gpus_forward" attr.type="boolean"/>',
        f'  <graph edgedefault="directed" id={quoteattr(topology.name)}>',
        f'    <data key="g_forward">{str(topology.gpus_forward).lower()}</data>',
    ]
    graph = topology.to_networkx()
    if graph.number_of_edges() != topology.nlinks:
        raise ConfigError(
            f"GraphML cannot hold {topology.name!r}: two of its links join the same vertices in "
            "one direction"
        )
    for name, data in graph.nodes(data=True):
        inner = "".join(
            f'<data key="n_{key}">{data[key]}</data>' for key in _NODE_KEYS if key in data
        )
        lines.append(f"    <node id={quoteattr(name)}>{inner}</node>")
    for tail, head, data in graph.edges(data=True):
        inner = "".join(f'<data key="e_{key}">{data[key]}</data>' for key in _EDGE_KEYS)
        lines.append(f"    <edge source={quoteattr(tail)} target={quoteattr(head)}>{inner}</edge>")
    return "\n".join([*lines, "  </graph>", "</graphml>", ""]).encode()


def _local(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


def parse_graphml(content: Content, file: str = "graph") -> Topology:
    """Read a GraphML graph as a topology, with the attributes of
    :func:`~simcoll.topology.from_networkx`.

    Raises
    ------
    ConfigError
        For content that is not GraphML, and as :func:`~simcoll.topology.from_networkx`.
    """
    content = content_of(content, "parse_graphml")
    import networkx as nx

    root = parse_xml(content, LIMITS, file)

    def refuse(message: str) -> NoReturn:
        raise ConfigError(message, file=file)

    if _local(root) != "graphml":
        refuse(f"expected <graphml>, found <{_local(root)[:40]}>")
    keys = {key.get("id", ""): key.get("attr.name", "") for key in root if _local(key) == "key"}
    graphs = [child for child in root if _local(child) == "graph"]
    if len(graphs) != 1:
        refuse(f"{len(graphs)} graphs; expected one")
    directed = graphs[0].get("edgedefault") == "directed"
    graph: Any = nx.MultiDiGraph() if directed else nx.MultiGraph()

    def data(element: Element) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for child in element:
            if _local(child) == "data":
                name, text = keys.get(child.get("key", ""), ""), (child.text or "").strip()
                number = re.fullmatch(r"-?[0-9]{1,19}", text)
                attributes[name] = (
                    int(text)
                    if number and name in {"rank", "capacity_uBps", "latency_fs"}
                    else text
                )
        return attributes

    for element in graphs[0]:
        if _local(element) == "node":
            graph.add_node(
                element.get("id", ""),
                **{key: value for key, value in data(element).items() if key in _NODE_KEYS},
            )
    for element in graphs[0]:
        if _local(element) == "edge":
            ends = [element.get(end, "") for end in ("source", "target")]
            missing = [end for end in ends if end not in graph]
            if missing:
                refuse(f"edge {ends[0][:40]!r} -> {ends[1][:40]!r}: no node {missing[0][:40]!r}")
            graph.add_edge(*ends, **data(element))
    forward = data(graphs[0]).get("gpus_forward") == "true"
    with blamed_on(file):
        return from_networkx(graph, name=graphs[0].get("id") or "graph", gpus_forward=forward)


def _decimal(value: int, unit: int) -> str:
    """A multiple of 1/unit as an exact decimal."""
    units, fraction = divmod(value, unit)
    return f"{units}.{fraction:0{len(str(unit)) - 1}d}".rstrip("0").rstrip(".")


def simgrid_text(topology: Topology) -> bytes:
    """A topology as a SimGrid platform: a host for each rank, the links that routes use, and the
    route of every pair.

    Raises
    ------
    ConfigError
        For too many ranks for a list of all routes.
    """
    n = topology.nranks
    if n > MOST_ROUTED:
        raise ConfigError(
            f"a platform lists the route of every pair of ranks; {topology.name!r} has {n}; at "
            f"most {MOST_ROUTED}"
        )
    pairs = np.array([(a, b) for a in range(n) for b in range(n) if a != b], np.int64).reshape(
        -1, 2
    )
    routes = topology.route(pairs[:, 0], pairs[:, 1]).links
    lines = [
        "<?xml version='1.0'?>",
        '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
        '<platform version="4.1">',
        f'  <zone id={quoteattr(topology.name)} routing="Full">',
        *(f'    <host id="rank-{rank}" speed="1Gf"/>' for rank in range(n)),
    ]
    for link in sorted({int(number) for number in routes[routes >= 0]}):
        rate = _decimal(int(topology.link_capacity_uBps[link]), 10**6)
        delay = _decimal(int(topology.link_latency_fs[link]), 10**15)
        lines.append(
            f'    <link id={quoteattr(topology.link_name(link))} bandwidth="{rate}Bps" '
            f'latency="{delay}s"/>'
        )
    for (a, b), route in zip(pairs.tolist(), routes.tolist(), strict=True):
        inner = "".join(
            f"<link_ctn id={quoteattr(topology.link_name(link))}/>" for link in route if link >= 0
        )
        lines.append(f'    <route src="rank-{a}" dst="rank-{b}" symmetrical="NO">{inner}</route>')
    return "\n".join([*lines, "  </zone>", "</platform>", ""]).encode()


_RATES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_TIMES = {
    unit: Fraction(1, 10**power)
    for unit, power in (("", 0), ("s", 0), ("ms", 3), ("us", 6), ("ns", 9), ("ps", 12))
}


def _quantity(text: str, kind: str, file: str | None) -> int:
    """A rate in micro-bytes per second, or a time in femtoseconds."""
    match = re.fullmatch(
        r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)(?:[eE](-?[0-9]{1,2}))?\s*([A-Za-z]*)\s*", text
    )
    if match is not None:
        power = int(match[2] or 0)
        number = Fraction(match[1]) * Fraction(10 ** max(power, 0), 10 ** max(-power, 0))
        unit = match[3]
        if kind == "latency" and unit in _TIMES:
            return int(number * _TIMES[unit] * 10**15)
        bits = re.fullmatch(r"(k|M|G|T|Ki|Mi|Gi|Ti|)(Bps|bps)", unit) if unit else None
        if kind == "bandwidth" and (bits or not unit):
            factor = _RATES[bits[1]] if bits else 1
            return int(number * factor * 10**6 / (8 if bits and bits[2] == "bps" else 1))
    raise ConfigError(
        f"{kind} {text[:40]!r}: expected "
        f"{'a time such as 5us' if kind == 'latency' else 'a rate such as 10GBps'}",
        file=file,
    )


def parse_simgrid(content: Content, file: str = "platform") -> Topology:
    """Read a SimGrid platform: zones of hosts, links and routes (Full, Floyd, Dijkstra) and flat
    clusters, inside each other.

    Links named ``a -> b`` are those of a topology that was written; of others only the rate that
    all share is known.

    Raises
    ------
    ConfigError
        For any other element, by name.
    """
    # The reference to SimGrid's DTD is not needed, and no DTD is read here.
    content = content_of(content, "parse_simgrid")
    root = parse_xml(
        re.sub(
            rb"<!DOCTYPE\s+platform\s+SYSTEM\s+[\"'][^\"'<>\[]{0,200}[\"']\s*>",
            b"",
            content,
            count=1,
        ),
        LIMITS,
        file,
    )

    def refuse(message: str) -> NoReturn:
        raise ConfigError(message, file=file)

    if root.tag != "platform":
        refuse(f"expected <platform>, found <{str(root.tag)[:40]}>")
    zones = [child for child in root if child.tag in {"zone", "AS", "cluster"}]
    if len(zones) != 1:
        refuse(f"{len(zones)} zones; expected one outermost <zone> or <cluster>")
    zone = zones[0]
    inner = [child for child in zone if child.tag != "prop"]
    if zone.tag == "cluster" or (len(inner) == 1 and inner[0].tag == "cluster"):
        cluster_element = zone if zone.tag == "cluster" else inner[0]
        if _is_flat(cluster_element):
            with blamed_on(file):
                return _cluster(cluster_element, file)
    hosts = [child.get("id", "") for child in inner if child.tag == "host"]
    tags = {child.tag for child in inner}
    link_names = [child.get("id", "") for child in inner if child.tag == "link"]
    has_ends = bool(link_names) and all(" -> " in name for name in link_names)
    if zone.get("routing", "").lower() == "full" and tags <= {"host", "link", "route"} and has_ends:
        if not 1 <= len(hosts) <= MOST_ROUTED:
            refuse(f"{len(hosts)} hosts; expected 1 to {MOST_ROUTED}")
        return _routed_topology(zone, hosts, file)
    with blamed_on(file):
        return _zoned_topology(zone)


def _is_flat(cluster: Element) -> bool:
    """Whether a cluster is a switch with a link of each host in both directions."""
    further = ("bb_bw", "limiter_link")
    return (
        cluster.get("topology", "FLAT") == "FLAT"
        and not any(cluster.get(key) for key in further)
        and cluster.get("sharing_policy", "SPLITDUPLEX") == "SPLITDUPLEX"
    )


def _zoned_topology(element: Element) -> Topology:
    """The topology of any zones: a vertex before and behind each link, since both directions of a
    route share it.
    """
    import networkx as nx

    root = read_zone(element, None, partial(_quantity, file=None))
    hosts = root.hosts
    if not 1 <= len(hosts) <= MOST_ROUTED:
        raise ConfigError(f"{len(hosts)} hosts; expected 1 to {MOST_ROUTED}")
    graph: Any = nx.DiGraph()
    for rank, host in enumerate(hosts):
        graph.add_node(host, kind="gpu", rank=rank)
    routes: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for a, b in permutations(range(len(hosts)), 2):
        links = host_route(root, hosts[a], hosts[b])
        if not links:
            raise ConfigError(f"the route of {hosts[a]!r} to {hosts[b]!r} has no link")
        vertices = [hosts[a]]
        for link in links:
            vertices += [f"{link.name} in", f"{link.name} out"]
            graph.add_edge(
                *vertices[-2:], capacity_uBps=link.capacity_uBps, latency_fs=link.latency_fs
            )
        vertices.append(hosts[b])
        # Between links is nothing that takes time.
        for tail, head in zip(vertices[::2], vertices[1::2], strict=True):
            graph.add_edge(tail, head, capacity_uBps=MAX_RATE_UBPS, latency_fs=0)
        routes[a, b] = list(pairwise(vertices))
    for vertex in graph:
        graph.nodes[vertex].setdefault("kind", "switch")
    topology = from_networkx(graph, name=root.name or "platform", gpus_forward=True)
    number_of = {topology.link_name(link): link for link in range(topology.nlinks)}
    table = np.full(
        (len(hosts), len(hosts), max(map(len, routes.values()), default=1)), -1, np.int32
    )
    for (a, b), steps in routes.items():
        table[a, b, : len(steps)] = [number_of[f"{tail} -> {head}"] for tail, head in steps]
    return replace(
        topology,
        router=_RouteTable(table),
        rank_endpoints=np.arange(len(hosts)),
        description="SimGrid platform: hosts, links, routes; no speeds of hosts, profiles, disks",
    )


def _routed_topology(zone: Element, hosts: list[str], file: str) -> Topology:
    """The topology of a zone with all routes; its vertices are the ends in the names of its
    links.
    """
    import networkx as nx

    graph = nx.DiGraph()
    for link in (child for child in zone if child.tag == "link"):
        tail, arrow, head = link.get("id", "").partition(" -> ")
        if not arrow or graph.has_edge(tail, head):
            raise ConfigError(
                f"link {link.get('id', '')[:60]!r}: its ends are unknown; expected a name such as "
                "'gpu0 -> switch'",
                file=file,
            )
        numbers = {key: _quantity(link.get(key, ""), key, file) for key in ("bandwidth", "latency")}
        graph.add_edge(
            tail, head, capacity_uBps=numbers["bandwidth"], latency_fs=numbers["latency"]
        )
    number = {host: rank for rank, host in enumerate(hosts)}
    ends: dict[int, str] = {}
    routes: dict[tuple[int, int], list[str]] = {}
    for route in (child for child in zone if child.tag == "route"):
        names = [child.get("id", "") for child in route if child.tag == "link_ctn"]
        pair = [route.get(key, "") for key in ("src", "dst")]
        if pair[0] not in number or pair[1] not in number or not names:
            raise ConfigError(
                f"route {pair[0][:40]!r} -> {pair[1][:40]!r}: expected two hosts and links",
                file=file,
            )
        a, b = number[pair[0]], number[pair[1]]
        routes[a, b] = names
        for rank, vertex in (
            (a, names[0].partition(" -> ")[0]),
            (b, names[-1].rpartition(" -> ")[2]),
        ):
            if ends.setdefault(rank, vertex) != vertex:
                raise ConfigError(
                    f"routes of {hosts[rank][:40]!r} begin or end in two places", file=file
                )
    if len(routes) != len(hosts) * (len(hosts) - 1):
        raise ConfigError(
            f"{len(routes)} routes; expected one for each of {len(hosts) * (len(hosts) - 1)} "
            "ordered pairs",
            file=file,
        )
    for rank, host in enumerate(hosts):
        vertex = ends.setdefault(rank, host)
        if vertex not in graph:
            graph.add_node(vertex)
        graph.nodes[vertex].update(kind="gpu", rank=rank)
    for vertex in graph:
        graph.nodes[vertex].setdefault("kind", "switch")
    with blamed_on(file):
        topology = from_networkx(graph, name=zone.get("id") or "platform", gpus_forward=True)
    number_of = {topology.link_name(link): link for link in range(topology.nlinks)}
    table = np.full(
        (len(hosts), len(hosts), max(map(len, routes.values()), default=1)), -1, np.int32
    )
    for (a, b), names in routes.items():
        missing = [name for name in names if name not in number_of]
        if missing:
            raise ConfigError(
                f"the route of hosts {a} and {b} has a link {missing[0][:60]!r}, which does not "
                "exist",
                file=file,
            )
        for link_before, link_after in pairwise(names):
            if link_before.rpartition(" -> ")[2] != link_after.partition(" -> ")[0]:
                raise ConfigError(
                    f"the route of hosts {a} and {b} jumps from {link_before[:60]!r} to "
                    f"{link_after[:60]!r}",
                    file=file,
                )
        table[a, b, : len(names)] = [number_of[name] for name in names]
    return replace(topology, router=_RouteTable(table), rank_endpoints=np.arange(len(hosts)))


@dataclass(frozen=True, slots=True, eq=False)
class _RouteTable:
    """Routes as listed in a platform: links ``[source, destination, hop]``, padded with -1."""

    table: Shorts

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def links(self, src: Ints, dst: Ints) -> Shorts:
        """Links of the routes of pairs of endpoints."""
        return self.table[src, dst]


def _cluster(cluster: Element, file: str) -> Topology:
    """A flat cluster: hosts with a link in each direction to a switch."""
    hosts = sum(1 for _ in radical(cluster.get("radical", "")))
    rate, delay = (
        _quantity(cluster.get(key, ""), kind, file)
        for key, kind in (("bw", "bandwidth"), ("lat", "latency"))
    )
    topology = crossbar(
        hosts, f"{_decimal(rate, 10**6)} B/s", 0, name=cluster.get("id") or "cluster"
    )
    latency: Ints = np.full(topology.nlinks, delay, np.int64)
    return replace(
        topology,
        link_latency_fs=latency,
        link_kind=np.full(topology.nlinks, LINK_KINDS.index("net"), np.int8),
    )
