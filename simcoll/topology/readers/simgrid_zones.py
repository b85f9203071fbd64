"""The zones of a SimGrid platform, and the route of every pair of its hosts.

Zones with all routes, with shortest paths (Floyd, Dijkstra) and clusters may hold each other; a
route between zones goes through their gateways, as in SimGrid's manual ("Routing examples").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from xml.etree.ElementTree import Element

from simcoll.errors import ConfigError, nearest

__all__ = ["PlatformLink", "PlatformZone", "host_route", "link_of", "radical", "read_zone"]

Quantity = Callable[[str, str], int]
"""Parses a text of a kind, bandwidth or latency."""
SHORTEST = ("floyd", "dijkstra", "dijkstracache")
MOST_HOSTS_OF_RADICAL = 1 << 20
_WITHOUT_LINKS = frozenset(
    ["prop", "disk", "storage", "mount", "storage_type", "trace", "trace_connect", "config"]
)
"""Elements that are no hosts, links or routes; what they describe is not modelled."""
_READ = frozenset(["zone", "AS", "cluster", "cabinet", "host", "router", "link", "backbone"])
_REFUSED = {
    "peer": "coordinates instead of links",
    "include": "files that others include are not read",
}


@dataclass(frozen=True, slots=True)
class PlatformLink:
    """A link: all that use it share its rate, in both directions together.

    Attributes
    ----------
    name
        Its id; one for each direction of a link with two.
    capacity_uBps, latency_fs
        Its rate and delay.
    fat
        Whether every pair of hosts has the whole rate (FATPIPE).
    """

    name: str
    capacity_uBps: int
    latency_fs: int
    fat: bool = False


@dataclass(frozen=True, slots=True)
class _Route:
    """Links between two points of a zone, and their gateways if they are zones."""

    links: tuple[PlatformLink, ...]
    gateways: tuple[str, str] = ("", "")


@dataclass(slots=True)
class PlatformZone:
    """A zone: hosts, routers and zones in it, and routes between these."""

    name: str
    routing: str
    above: PlatformZone | None = None
    hosts: list[str] = field(default_factory=list)  # of this zone and those in it, in order
    points: dict[str, PlatformZone] = field(default_factory=dict)  # the zone of each point below
    inner: dict[str, PlatformZone] = field(default_factory=dict)
    links: dict[str, PlatformLink] = field(default_factory=dict)
    routes: dict[tuple[str, str], _Route] = field(default_factory=dict)
    # Of a cluster: links of each host upwards and downwards, and the backbone.
    private: dict[str, tuple[PlatformLink, PlatformLink]] = field(default_factory=dict)
    backbone: PlatformLink | None = None
    paths: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)

    def add_point(self, name: str, *, is_host: bool) -> None:
        """Add a host or router to this zone and those around it."""
        zone: PlatformZone | None = self
        while zone is not None:
            if name in zone.points:
                raise ConfigError(f"{name[:60]!r} occurs twice")
            zone.points[name] = self
            if is_host:
                zone.hosts.append(name)
            zone = zone.above

    def find_link(self, name: str) -> PlatformLink:
        """A link of this zone, of those around it, or of those inside."""
        zone: PlatformZone | None = self
        while zone is not None:
            if name in zone.links:
                return zone.links[name]
            zone = zone.above
        link = _link_inside(self, name)
        if link is None:
            raise ConfigError(f"no link {name[:60]!r}; {nearest(name, list(self.links)[:100])}")
        return link


def _link_inside(zone: PlatformZone, name: str) -> PlatformLink | None:
    for inner in zone.inner.values():
        link = inner.links.get(name) or _link_inside(inner, name)
        if link is not None:
            return link
    return None


def link_of(element: Element, name: str, quantity: Quantity) -> list[PlatformLink]:
    """The links of an element: one, or one for each direction.

    Raises
    ------
    ConfigError
        For a sharing policy that is not known here.
    """
    rate = quantity(element.get("bandwidth", ""), "bandwidth")
    delay = quantity(element.get("latency", "0"), "latency")
    policy = element.get("sharing_policy", "SHARED")
    if policy in {"SPLITDUPLEX", "FULLDUPLEX"}:
        return [PlatformLink(f"{name}_{direction}", rate, delay) for direction in ("UP", "DOWN")]
    if policy not in {"SHARED", "FATPIPE"}:
        raise ConfigError(
            f"link {name[:60]!r}: sharing_policy {policy[:40]!r}; expected SHARED, SPLITDUPLEX or "
            "FATPIPE"
        )
    return [PlatformLink(name, rate, delay, policy == "FATPIPE")]


def radical(text: str) -> Iterator[int]:
    """The numbers of a cluster's hosts.

    >>> list(radical("0-2,7"))
    [0, 1, 2, 7]
    """
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        if match is None:
            raise ConfigError(f"radical {text[:40]!r}: expected ranges such as 0-15")
        begin, end = int(match[1]), int(match[2] or match[1])
        if not begin <= end < begin + MOST_HOSTS_OF_RADICAL:
            raise ConfigError(f"radical {text[:40]!r}: expected ranges such as 0-15")
        yield from range(begin, end + 1)


def read_zone(element: Element, above: PlatformZone | None, quantity: Quantity) -> PlatformZone:
    """Read a zone with all that is in it.

    Raises
    ------
    ConfigError
        For elements and kinds of routing that are not read, by name.
    """
    name = element.get("id", "")
    if element.tag == "cluster":
        return _cluster(element, name, above, quantity)
    routing = element.get("routing", "").lower()
    if routing not in {"full", "cluster", "none", "empty", *SHORTEST}:
        raise ConfigError(
            f"zone {name[:60]!r} with routing {element.get('routing', '')[:40]!r}; expected Full, "
            "Floyd, Dijkstra or Cluster"
        )
    zone = PlatformZone(name, routing, above)
    for child in element:
        if child.tag in {"zone", "AS", "cluster"}:
            inner = read_zone(child, zone, quantity)
            zone.inner[inner.name] = inner
        elif child.tag in {"host", "router"}:
            zone.add_point(child.get("id", ""), is_host=child.tag == "host")
        elif child.tag == "link":
            zone.links.update(
                {link.name: link for link in link_of(child, child.get("id", ""), quantity)}
            )
        elif child.tag == "cabinet":
            _add_hosts(zone, child, f"link_{child.get('id', '')}", quantity)
        elif child.tag == "backbone":
            zone.backbone = link_of(child, child.get("id", ""), quantity)[0]
        elif child.tag in _REFUSED:
            raise ConfigError(f"<{child.tag}> in zone {name[:60]!r}: {_REFUSED[child.tag]}")
    for child in element:
        _read_route(child, zone)
    return zone


def _read_route(element: Element, zone: PlatformZone) -> None:
    """Read a route, or the private links of a cluster's host."""
    tag = str(element.tag)
    if tag in {"route", "zoneRoute", "ASroute", "bypassRoute", "bypassZoneRoute", "bypassASroute"}:
        between_zones = "one" in tag or "AS" in tag
        ends = element.get("src", ""), element.get("dst", "")
        gateways = (
            (element.get("gw_src", ""), element.get("gw_dst", "")) if between_zones else ("", "")
        )
        for end in ends:
            if end not in zone.inner and zone.points.get(end) is not zone:
                raise ConfigError(
                    f"<{tag}> of zone {zone.name[:60]!r}: {end[:60]!r} is not in it; "
                    f"{nearest(end, [*zone.inner, *zone.hosts][:100])}"
                )
        links = tuple(_links_of_route(element, zone))
        replaces = tag.startswith("bypass")
        if replaces or ends not in zone.routes:
            zone.routes[ends] = _Route(links, gateways)
        reverse = (ends[1], ends[0])
        symmetrical = not replaces and element.get("symmetrical", "YES").upper() in {"YES", "TRUE"}
        if symmetrical and reverse not in zone.routes:
            turned = tuple(_other_way(link, zone) for link in reversed(links))
            zone.routes[reverse] = _Route(turned, (gateways[1], gateways[0]))
    elif tag == "host_link":
        host = element.get("id", "")
        if zone.points.get(host) is not zone:
            raise ConfigError(f"<host_link> of zone {zone.name[:60]!r}: no host {host[:60]!r}")
        zone.private[host] = (
            zone.find_link(element.get("up", "")),
            zone.find_link(element.get("down", "")),
        )
    elif tag not in _READ | _WITHOUT_LINKS:
        raise ConfigError(f"<{tag[:40]}> in zone {zone.name[:60]!r} is not read")


def _links_of_route(element: Element, zone: PlatformZone) -> Iterator[PlatformLink]:
    for child in element:
        if child.tag in {"link_ctn", "ctn"}:
            direction = child.get("direction", "NONE")
            name = child.get("id", "")
            yield zone.find_link(name if direction == "NONE" else f"{name}_{direction}")


def _other_way(link: PlatformLink, zone: PlatformZone) -> PlatformLink:
    """The link of the other direction, if it has one."""
    for end, other_end in (("_UP", "_DOWN"), ("_DOWN", "_UP")):
        if link.name.endswith(end):
            try:
                return zone.find_link(f"{link.name.removesuffix(end)}{other_end}")
            except ConfigError:
                return link
    return link


def _cluster(
    element: Element, name: str, above: PlatformZone | None, quantity: Quantity
) -> PlatformZone:
    """A flat cluster: a link of each host to a router, perhaps over a backbone."""
    if element.get("topology", "FLAT") != "FLAT":
        raise ConfigError(
            f"<cluster id={name[:60]!r}> of topology {element.get('topology')!r}: only flat "
            "clusters are read; a fat tree, torus or dragonfly is a family of topology files"
        )
    if element.get("limiter_link"):
        raise ConfigError(f"<cluster id={name[:60]!r}>: limiter_link is not read")
    zone = PlatformZone(name, "cluster", above)
    prefix, suffix = element.get("prefix", ""), element.get("suffix", "")
    _add_hosts(zone, element, f"{name}_link", quantity)
    zone.add_point(element.get("router_id") or f"{prefix}{name}_router{suffix}", is_host=False)
    if element.get("bb_bw"):
        backbone = Element(
            "link",
            bandwidth=element.get("bb_bw", ""),
            latency=element.get("bb_lat", "0"),
            sharing_policy=element.get("bb_sharing_policy", "SHARED"),
        )
        zone.backbone = link_of(backbone, f"{name}_backbone", quantity)[0]
    if zone.backbone is not None:
        zone.links[zone.backbone.name] = zone.backbone
    return zone


def _add_hosts(zone: PlatformZone, element: Element, link_name: str, quantity: Quantity) -> None:
    """Add the hosts of a cluster or cabinet, each with its private links."""
    wire = Element(
        "link",
        bandwidth=element.get("bw", ""),
        latency=element.get("lat", ""),
        sharing_policy=element.get("sharing_policy", "SPLITDUPLEX"),
    )
    for number in radical(element.get("radical", "")):
        host = f"{element.get('prefix', '')}{number}{element.get('suffix', '')}"
        zone.add_point(host, is_host=True)
        links = link_of(wire, f"{link_name}_{number}", quantity)
        zone.private[host] = (links[0], links[-1])
        zone.links.update({link.name: link for link in links})


def host_route(root: PlatformZone, source: str, target: str) -> list[PlatformLink]:
    """The links between two hosts or routers.

    Raises
    ------
    ConfigError
        When the platform has no route.
    """
    if source == target:
        return []
    zone = _common_zone(root, source, target)
    ends = tuple(_point_in(zone, point) for point in (source, target))
    between = _local_route(root, zone, ends[0], ends[1])
    links = [*between.links]
    entry, exit_point = between.gateways
    if ends[0] != source:
        links = [*host_route(root, source, _gateway(zone, ends[0], entry)), *links]
    if ends[1] != target:
        links = [*links, *host_route(root, _gateway(zone, ends[1], exit_point), target)]
    pair = f"{source} to {target}"
    return [replace(link, name=f"{link.name} {pair}") if link.fat else link for link in links]


def _gateway(zone: PlatformZone, name: str, gateway: str) -> str:
    """A gateway of a zone inside, which must be one of its hosts or routers."""
    if gateway not in zone.inner[name].points:
        raise ConfigError(f"gateway {gateway[:60]!r} is not in zone {name[:60]!r}")
    return gateway


def _common_zone(root: PlatformZone, source: str, target: str) -> PlatformZone:
    """The innermost zone with both points."""
    for point in (source, target):
        if point not in root.points:
            raise ConfigError(
                f"no host or router {point[:60]!r}; {nearest(point, root.hosts[:100])}"
            )
    zone: PlatformZone | None = root.points[source]
    while zone is not None and target not in zone.points:
        zone = zone.above
    return zone or root


def _point_in(zone: PlatformZone, point: str) -> str:
    """The point itself if it is in the zone directly, else the zone inside that has it."""
    if zone.points[point] is zone:
        return point
    return next(name for name, inner in zone.inner.items() if point in inner.points)


def _local_route(root: PlatformZone, zone: PlatformZone, source: str, target: str) -> _Route:
    """The route between two points of one zone."""
    if (source, target) in zone.routes:
        return zone.routes[source, target]
    if zone.routing == "cluster":
        up = zone.private[source][:1] if source in zone.private else ()
        down = zone.private[target][1:] if target in zone.private else ()
        backbone = (zone.backbone,) if zone.backbone is not None else ()
        return _Route((*up, *backbone, *down))
    if zone.routing in SHORTEST:
        if source not in zone.paths:
            zone.paths[source] = _shortest_paths(zone, source)
        if target in zone.paths[source]:
            return _along(root, zone, zone.paths[source][target])
    raise ConfigError(
        f"zone {zone.name[:60]!r} has no route from {source[:60]!r} to {target[:60]!r}"
    )


def _shortest_paths(zone: PlatformZone, source: str) -> dict[str, tuple[str, ...]]:
    """Points on the way with the fewest links from a point to each other."""
    import networkx as nx

    graph = nx.DiGraph()
    for (tail, head), step in zone.routes.items():
        graph.add_edge(tail, head, links=len(step.links))
    if source not in graph:
        return {}
    paths = nx.single_source_dijkstra_path(graph, source, weight="links")
    return {target: tuple(path) for target, path in paths.items()}


def _along(root: PlatformZone, zone: PlatformZone, path: Sequence[str]) -> _Route:
    """The routes of the steps of a path, joined inside the zones between them."""
    links: list[PlatformLink] = []
    entry = last = ""
    for tail, head in pairwise(path):
        step = zone.routes[tail, head]
        if links and tail in zone.inner and last != step.gateways[0]:
            ends = (_gateway(zone, tail, gateway) for gateway in (last, step.gateways[0]))
            links += host_route(root, *ends)
        entry = entry if links else step.gateways[0]
        links += step.links
        last = step.gateways[1]
    return _Route(tuple(links), (entry, last))
