"""Families of direct and low-diameter networks: hypercube, hybrid cube-mesh, HyperX, dragonfly.

Routes are shortest paths by latency, then by number of links, then by lowest vertex.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from simcoll.arrays import Ints
from simcoll.call_records import record_of, takes
from simcoll.errors import ConfigError
from simcoll.topology.families import torus
from simcoll.topology.graph import Topology
from simcoll.topology.links import LinkTable, add_hosts, room_for_links, switch_network
from simcoll.topology.routing import graph_router
from simcoll.topology.values import (
    Quantity,
    checked_capacity,
    count,
    duration_fs,
    lengths,
    parse_capacity,
)

__all__ = ["DragonflyParameters", "dragonfly", "hybrid_cube_mesh", "hypercube", "hyperx"]


def hypercube(
    dimensions: int,
    bandwidth: Quantity,
    latency: Quantity = 0,
    *,
    name: str = "hypercube",
    link_kind: str = "link",
) -> Topology:
    """2**dimensions ranks that forward for each other, linked where their numbers differ in one
    bit.

    Examples
    --------
    >>> cube = hypercube(3, "25 GB/s", "1 us")
    >>> cube.nranks, cube.nlinks, len(cube.path(0, 7))
    (8, 24, 3)
    """
    bits = count(dimensions, "dimensions", maximum=20)
    return torus([2] * bits, bandwidth, latency, name=name, link_kind=link_kind)


def hybrid_cube_mesh(
    quads: int,
    bandwidth: Quantity,
    latency: Quantity = 0,
    *,
    name: str = "hybrid-cube-mesh",
    link_kind: str = "nvlink",
) -> Topology:
    """Fully connected groups of four ranks; ranks with the same position in their group form a
    hypercube.

    Two quads form a DGX-1 with P100. Ranks forward for each other.

    Examples
    --------
    >>> mesh = hybrid_cube_mesh(2, "20 GB/s", "1 us")
    >>> mesh.nlinks // 2, mesh.path(0, 5)
    (16, ['gpu0 -> gpu1', 'gpu1 -> gpu5'])
    """
    fours = count(quads, "quads", maximum=2**16)
    if fours & (fours - 1):
        raise ConfigError(
            f"quads: {fours} is not a power of two, as the hypercube between the quads needs"
        )
    capacity, delay = parse_capacity(bandwidth, "bandwidth"), duration_fs(latency, "latency")
    links, n = LinkTable([]), 4 * fours
    for quad in range(fours):
        for a, b in combinations(range(4), 2):
            links.add_pair(4 * quad + a, 4 * quad + b, capacity, (delay, delay), link_kind)
        for bit in range(fours.bit_length() - 1):
            neighbour = quad ^ (1 << bit)
            for place in range(4 if neighbour > quad else 0):
                links.add_pair(
                    4 * quad + place, 4 * neighbour + place, capacity, (delay, delay), link_kind
                )
    return _graph(
        name,
        n,
        [f"gpu{v}" for v in range(n)],
        links,
        {"quad": np.arange(n) // 4},
        gpus_forward=True,
    )


def hyperx(
    dims: Sequence[int],
    hosts_per_switch: int,
    bandwidth: Quantity,
    latency: Quantity = 0,
    *,
    switch_bandwidth: Quantity | None = None,
    switch_latency: Quantity = 0,
    name: str = "hyperx",
    link_kind: str = "net",
) -> Topology:
    """Switches on a grid, fully connected along every dimension, with ranks at each (Ahn et al., SC
    2009).

    Parameters
    ----------
    bandwidth, latency
        Of a rank's link, per direction; the latency is that between two ranks at one switch.
    switch_bandwidth, switch_latency
        Of a link between switches; the bandwidth defaults to that of a rank's link.

    Examples
    --------
    >>> network = hyperx([3, 3], 2, "50 GB/s", "1 us", switch_latency="300 ns")
    >>> network.nranks, network.path(0, 17)[1:3]
    (18, ['switch0 -> switch2', 'switch2 -> switch8'])
    """
    hosts, sizes = count(hosts_per_switch, "hosts_per_switch"), lengths(dims, "dims")
    switches = math.prod(sizes)
    n = count(hosts * switches, "number of ranks", maximum=2**20)
    room_for_links(2 * n + switches * sum(size - 1 for size in sizes), "this HyperX")
    links = LinkTable([])
    capacity, _ = add_hosts(links, n, hosts, bandwidth, latency, link_kind)
    capacity = parse_capacity(
        capacity if switch_bandwidth is None else switch_bandwidth, "switch_bandwidth"
    )
    delay = duration_fs(switch_latency, "switch_latency")
    stride = switches
    for size in sizes:
        stride //= size
        for switch in range(switches):
            for step in range(1, size - switch // stride % size):
                links.add_pair(
                    n + switch, n + switch + step * stride, capacity, (delay, delay), link_kind
                )
    names = [*(f"gpu{v}" for v in range(n)), *(f"switch{k}" for k in range(switches))]
    return _graph(name, n, names, links, {"switch": np.arange(n) // hosts})


@dataclass(frozen=True, slots=True)
class DragonflyParameters:
    """Parameters of :func:`dragonfly`.

    Attributes
    ----------
    hosts_per_switch, switches_per_group, global_links
        p, a and h of the paper: ranks per switch, switches per group, links of a switch to other
        groups.
    groups
        At most ``a h + 1``, the default. With fewer, pairs of groups have several links. Parallel
        links count as one.
    local_bandwidth, local_latency, global_bandwidth, global_latency
        Of the links within and between groups; bandwidths default to that of a rank's link.
    """

    hosts_per_switch: int
    switches_per_group: int
    global_links: int
    bandwidth: Quantity
    latency: Quantity = 0
    _: KW_ONLY
    groups: int | None = None
    local_bandwidth: Quantity | None = None
    local_latency: Quantity = 0
    global_bandwidth: Quantity | None = None
    global_latency: Quantity = 0
    name: str = "dragonfly"
    link_kind: str = "net"


@takes(DragonflyParameters)
def dragonfly(*arguments: Any, **keywords: Any) -> Topology:
    """Groups of fully connected switches, with links between all groups (Kim et al., ISCA 2008).
    Routes are minimal.

    Takes a :class:`DragonflyParameters`, or its fields as arguments.

    Examples
    --------
    >>> latencies = {"local_latency": "100 ns", "global_latency": "300 ns"}
    >>> network = dragonfly(2, 4, 2, "50 GB/s", "1 us", **latencies)
    >>> network.nranks, int(network.groups["group"].max()) + 1, len(network.path(0, 71))
    (72, 9, 5)
    """
    shape = record_of(DragonflyParameters, arguments, keywords)
    p = count(shape.hosts_per_switch, "hosts_per_switch")
    a = count(shape.switches_per_group, "switches_per_group")
    ports = a * count(shape.global_links, "global_links")
    g = count(ports + 1 if shape.groups is None else shape.groups, "groups", maximum=ports + 1)
    n = count(p * a * g, "number of ranks", maximum=2**20)
    links = LinkTable([])
    link_kind = shape.link_kind
    capacity, _ = add_hosts(links, n, p, shape.bandwidth, shape.latency, link_kind)
    within = capacity if shape.local_bandwidth is None else shape.local_bandwidth
    local_capacity = parse_capacity(within, "local_bandwidth")
    between = capacity if shape.global_bandwidth is None else shape.global_bandwidth
    far = parse_capacity(between, "global_bandwidth")
    delay = duration_fs(shape.local_latency, "local_latency")
    for group in range(g):
        for a_switch, b_switch in combinations(range(n + group * a, n + group * a + a), 2):
            links.add_pair(a_switch, b_switch, local_capacity, (delay, delay), link_kind)
    delay = duration_fs(shape.global_latency, "global_latency")
    joined: dict[tuple[int, int], int] = {}
    for near_end, far_end in _global_links(g, ports, ports // a):
        ends = (n + near_end[0] * a + near_end[1], n + far_end[0] * a + far_end[1])
        joined[ends] = joined.get(ends, 0) + 1
    for (low, second), parallel in joined.items():
        links.add_pair(
            low, second, checked_capacity(far * parallel, "global link"), (delay, delay), link_kind
        )
    names = [
        *(f"gpu{v}" for v in range(n)),
        *(f"group{k // a}.switch{k % a}" for k in range(a * g)),
    ]
    levels = {"switch": np.arange(n) // p, "group": np.arange(n) // (p * a)}
    return _graph(
        shape.name,
        n,
        names,
        links,
        {level: ids for level, ids in levels.items() if g > 1 or level == "switch"},
    )


def _global_links(
    groups: int, ports: int, per_switch: int
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Both ends, as (group, switch in it), of every link between groups.

    Port q of a group leads to the group q % (g - 1) + 1 further on; remaining ports join each group
    to its nearest neighbours.
    """
    if groups == 1:
        return []
    peer_groups = groups - 1
    regular = ports // peer_groups * peer_groups
    steps = {q: q % peer_groups + 1 for q in range(regular)}
    peers = {
        q: q // peer_groups * peer_groups + peer_groups - 1 - q % peer_groups
        for q in range(regular)
    }
    for q in range(regular, ports - 1, 2):
        distance = (q - regular) // 2 % peer_groups + 1
        steps |= {q: distance, q + 1: groups - distance}
        peers |= {q: q + 1, q + 1: q}
    pairs = []
    for group in range(groups):
        for q, step in steps.items():
            peer = (group + step) % groups
            if (group, q) < (peer, peers[q]):
                pairs.append(((group, q // per_switch), (peer, peers[q] // per_switch)))
    return pairs


def _graph(
    name: str,
    n: int,
    names: Sequence[str],
    links: LinkTable,
    groups: dict[str, Ints],
    *,
    gpus_forward: bool = False,
) -> Topology:
    """A topology of ranks 0..n-1 as the first vertices, and switches, with shortest paths."""
    kinds = ("gpu",) * n + ("switch",) * (len(names) - n)
    columns = links.columns()
    src, dst, latency_fs = columns[0], columns[1], columns[3]
    router = graph_router(
        name, tuple(names), kinds, np.arange(n), src, dst, latency_fs, gpus_forward=gpus_forward
    )
    return switch_network(name, n, names, links, router, groups, gpus_forward=gpus_forward)
