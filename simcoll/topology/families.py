"""Families of topologies. Quantities are text with a unit (``"450 GB/s"``) or exact integers (uBps,
fs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.arrays import Ints
from simcoll.call_records import record_of, takes
from simcoll.core.vocabulary import Interconnect, NodeKind
from simcoll.errors import ConfigError, nearest
from simcoll.topology.graph import Topology
from simcoll.topology.links import (
    LinkTable,
    add_hosts,
    assemble,
    checked_kind,
    room_for_links,
    switch_network,
)
from simcoll.topology.routing import BoxRouter, Level, TorusRouter
from simcoll.topology.values import (
    Quantity,
    checked_capacity,
    count,
    duration_fs,
    factor,
    halves_fs,
    lengths,
    parse_capacity,
)
from simcoll.units import MAX_RATE_UBPS

if TYPE_CHECKING:
    from simcoll.topology.cluster import Tier

__all__ = ["BoxesParameters", "boxes", "crossbar", "fat_tree", "torus"]

MAX_RANKS = 2**20
MAX_MESH = 256
INTERCONNECTS: tuple[Interconnect, ...] = ("switch", "mesh", "links", "pcie")


def crossbar(
    nranks: int,
    bandwidth: Quantity,
    latency: Quantity = 0,
    *,
    name: str = "crossbar",
    link_kind: str = "link",
) -> Topology:
    """One non-blocking switch, with a link up and a link down for every rank.

    Parameters
    ----------
    bandwidth
        Of each link, per direction.
    latency
        From rank to rank; half of it on each of the two links.

    Examples
    --------
    >>> topology = crossbar(4, "50 GB/s", "2 us")
    >>> topology.link_name(0), topology.route([0], [3]).latency_fs.tolist()
    ('gpu0 -> switch', [2000000000])
    """
    n = count(nranks, "nranks", maximum=MAX_RANKS)
    room_for_links(2 * n, "this crossbar")
    links = LinkTable([])
    _, ends = add_hosts(links, n, n, bandwidth, latency, checked_kind(link_kind))
    level = Level(group=np.zeros(n, dtype=np.int64), up=ends[:, :1], down=ends[:, 1:])
    return switch_network(
        name, n, [*(f"gpu{v}" for v in range(n)), "switch"], links, _by_levels((level,)), {}
    )


def fat_tree(
    leaves: int,
    hosts_per_leaf: int,
    bandwidth: Quantity,
    latency: Quantity = 0,
    *,
    oversubscription: str | float | Fraction = 1,
    spine_latency: Quantity = 0,
    name: str = "fat-tree",
    link_kind: str = "net",
) -> Topology:
    """A two-level fat tree with balanced, aggregated uplinks.

    Parameters
    ----------
    bandwidth
        Of each host's link, per direction.
    latency
        Between two hosts at one leaf; half of it on each of their links.
    oversubscription
        Capacity of the hosts of a leaf over capacity of its uplink.
    spine_latency
        Additional latency of crossing the spine; half of it on each uplink.

    Examples
    --------
    >>> tree = fat_tree(4, 4, "12.5 GB/s", "2 us", oversubscription=2, spine_latency="2 us")
    >>> tree.route([0, 0], [3, 4]).latency_fs.tolist()
    [2000000000, 4000000000]
    """
    leaves, hosts = count(leaves, "leaves"), count(hosts_per_leaf, "hosts_per_leaf")
    n = count(leaves * hosts, "number of ranks", maximum=MAX_RANKS)
    room_for_links(2 * (n + leaves), "this tree")
    links, kind = LinkTable([]), checked_kind(link_kind)
    leaf = np.arange(n) // hosts
    capacity, ends = add_hosts(links, n, hosts, bandwidth, latency, kind)
    levels = [Level(group=leaf, up=ends[:, :1], down=ends[:, 1:])]
    names = [*(f"gpu{v}" for v in range(n)), *(f"leaf{k}" for k in range(leaves))]
    if leaves > 1:
        uplink = checked_capacity(
            hosts * capacity / factor(oversubscription, "oversubscription"), "uplink of a leaf"
        )
        halves = halves_fs(duration_fs(spine_latency, "spine_latency"))
        trunk = np.array(
            [links.add_pair(n + k, n + leaves, uplink, halves, kind) for k in range(leaves)],
            dtype=np.int32,
        )[leaf]
        up, down = (
            np.stack([ends[:, 0], trunk[:, 0]], axis=1),
            np.stack([trunk[:, 1], ends[:, 1]], axis=1),
        )
        levels.append(Level(group=np.zeros(n, dtype=np.int64), up=up, down=down))
        names.append("spine")
    return switch_network(name, n, names, links, _by_levels(tuple(levels)), {"leaf": leaf})


def torus(
    dims: Sequence[int],
    bandwidth: Quantity,
    latency: Quantity = 0,
    *,
    wrap: bool | Sequence[bool] = True,
    name: str = "torus",
    link_kind: str = "link",
) -> Topology:
    """A torus (without wrap, a grid) of ranks that forward for each other; the last dimension
    varies fastest.

    Routes go dimension by dimension, in the shorter direction. A dimension of length 2 has one
    link, not two. Ranks that differ only in dimension d are a group of level ``line<d>``; those
    with the same coordinate in it, a group of level ``plane<d>``.

    Parameters
    ----------
    bandwidth, latency
        Of each link, per direction.
    wrap
        Whether a dimension closes to a ring; one value for all, or one for each.

    Examples
    --------
    >>> ring = torus([5], "25 GB/s", "1 us")
    >>> ring.path(0, 3)
    ['gpu0 -> gpu4', 'gpu4 -> gpu3']
    """
    sizes = lengths(dims, "dims")
    wraps = (wrap,) * len(sizes) if isinstance(wrap, bool) else wrap
    if not isinstance(wraps, (list, tuple)) or not all(isinstance(w, bool) for w in wraps):
        raise ConfigError(
            f"wrap: expected true or false, or one of them for each dimension, got {wrap!r:.60}"
        )
    if len(wraps) != len(sizes):
        raise ConfigError(
            f"wrap: expected one value, or one for each of {len(sizes)} dimensions, got "
            f"{len(wraps)}"
        )
    n = count(math.prod(sizes), "number of ranks", maximum=MAX_RANKS)
    room_for_links(sum((1 if k == 2 else 2) * n for k in sizes if k > 1), "this torus")
    closed = tuple(w and k > 2 for w, k in zip(wraps, sizes, strict=True))
    capacity, latency_fs = parse_capacity(bandwidth, "bandwidth"), duration_fs(latency, "latency")
    links, kind = LinkTable([]), checked_kind(link_kind)
    table = np.full((len(sizes), 2, n), -1, dtype=np.int32)
    neighbour = np.tile(np.arange(n), (len(sizes), 2, 1))
    groups: dict[str, Ints] = {}
    stride = n
    for d, (k, ring) in enumerate(zip(sizes, closed, strict=True)):
        stride //= k
        coordinate = np.arange(n) // stride % k
        groups[f"line{d}"] = np.unique(np.arange(n) - coordinate * stride, return_inverse=True)[1]
        groups[f"plane{d}"] = coordinate
        for direction, step in enumerate((1, -1)):
            to = (coordinate + step) % k
            for v in np.flatnonzero((coordinate + step == to) | ring) if k > 1 else ():
                neighbour[d, direction, v] = v + (to[v] - coordinate[v]) * stride
                table[d, direction, v] = links.add(
                    int(v), int(neighbour[d, direction, v]), capacity, latency_fs, kind
                )
    router = TorusRouter(dims=sizes, wrap=closed, link=table, neighbour=neighbour)
    names = [f"gpu{v}" for v in range(n)]
    return assemble(
        name, names, ["gpu"] * n, np.arange(n), links.columns(), router, groups, gpus_forward=True
    )


@dataclass(frozen=True, slots=True)
class BoxesParameters:
    """Parameters of :func:`boxes`.

    Attributes
    ----------
    gpu_bandwidth, gpu_latency
        With a switch, of each GPU into it, and from GPU to GPU through it; otherwise of each link.
        Unused with PCIe alone.
    nodes_per_domain
        Number of nodes that share the switches between GPUs: such a domain (a rack) is one box.
        Domains are filled one after the other.
    nics, nic_bandwidth
        Number of NICs of a node, and the bandwidth of each, per direction.
    nic_latency
        From GPU to GPU on another node through one leaf (a PCIe tree adds its own latency).
    pcie_bandwidth, pcie_latency, gpus_per_pcie_switch
        Of the link from a GPU or NIC to PCIe. With ``gpus_per_pcie_switch`` there is a tree: PCIe
        switches under ``cpus`` sockets, at most 64, joined by ``cpu_bandwidth`` and
        ``cpu_latency``. Without, each GPU has a separate link to its NIC, by default as fast as its
        share of the NIC.
    boxes_per_leaf, oversubscription, spine_latency
        The network: a leaf for each rail and group of nodes (by default all, or as many as the
        model's links can carry), and a spine above the leaves.
    tiers
        The tiers in full, in place of the previous three arguments and ``nic_latency``.
    """

    nodes: int
    gpus_per_node: int
    gpu_bandwidth: Quantity | None = None
    gpu_latency: Quantity = 0
    _: KW_ONLY
    nodes_per_domain: int = 1
    interconnect: Interconnect = "switch"
    links: Sequence[tuple[int, int, int]] = ()
    nics: int = 0
    nic_bandwidth: Quantity | None = None
    nic_latency: Quantity = 0
    pcie_bandwidth: Quantity | None = None
    pcie_latency: Quantity = 0
    gpus_per_pcie_switch: int | None = None
    cpus: int = 2
    cpu_bandwidth: Quantity | None = None
    cpu_latency: Quantity = 0
    boxes_per_leaf: int | None = None
    oversubscription: str | float | Fraction = 1
    spine_latency: Quantity = 0
    tiers: Sequence[Tier] | None = None
    name: str = "boxes"


@takes(BoxesParameters)
def boxes(*arguments: Any, **keywords: Any) -> Topology:
    """Nodes of GPUs, joined by a rail-optimised network.

    Within a node the GPUs are joined by one switch (NVSwitch), by a full mesh, by a list of
    ``links`` (GPU, GPU, number of parallel links), or only by PCIe; pairs without a link
    communicate over PCIe and CPUs. To other nodes a GPU uses the NIC of its rail. With fewer NICs
    than GPUs, neighbours share one; with more, each GPU's NICs count as one of their total
    bandwidth.

    Takes a :class:`BoxesParameters`, or its fields as arguments.

    Examples
    --------
    >>> dgx = boxes(2, 8, "450 GB/s", "1 us", nics=8, nic_bandwidth="50 GB/s", nic_latency="3 us")
    >>> dgx.path(1, 9)
    ['box0.gpu1 -> box0.nic1', 'box0.nic1 -> leaf0.rail1', ..., 'box1.nic1 -> box1.gpu1']
    """
    shape = record_of(BoxesParameters, arguments, keywords)
    g = count(shape.gpus_per_node, "gpus_per_node", maximum=1024)
    nics = count(shape.nics, "nics", minimum=0)
    nodes = count(shape.nodes, "nodes", maximum=2**17)
    span = count(shape.nodes_per_domain, "nodes_per_domain")
    if span > 1 and (shape.interconnect != "switch" or shape.gpus_per_pcie_switch is not None):
        raise ConfigError(
            "nodes_per_domain: only GPUs joined by a switch, and without a PCIe tree, form a "
            "domain of several nodes"
        )
    ranks, domains, span = nodes * g, -(-nodes // span), min(nodes, span)
    g, nics = count(g * span, "GPUs of a domain", maximum=1024), nics * span
    table = LinkTable([])
    names = [f"gpu{i}" for i in range(g)]
    kinds: list[NodeKind] = ["gpu"] * g
    _interconnect(table, names, kinds, g, shape)
    cards, card_capacity, card_of_gpu = _cards(names, kinds, g, nics, shape.nic_bandwidth)
    if shape.gpus_per_pcie_switch is None:
        _direct_nics(table, cards, card_capacity, card_of_gpu, shape)
    else:
        _pcie_tree(table, names, kinds, g, cards, card_of_gpu, shape)
    from simcoll.topology.cluster import Box, cluster

    box = Box(tuple(names), tuple(kinds), table, tuple(range(g)), cards, card_capacity, card_of_gpu)
    return cluster(shape.name, box, domains, _tiers(shape, domains, card_capacity)).take(ranks)


def _tiers(shape: BoxesParameters, domains: int, card_capacity: tuple[int, ...]) -> Sequence[Tier]:
    """The tiers of switches between nodes: those in full, or a leaf and a spine."""
    if shape.tiers is not None:
        return shape.tiers
    boxes_per_leaf, oversubscription = shape.boxes_per_leaf, shape.oversubscription
    if boxes_per_leaf is None and card_capacity:
        boxes_per_leaf = _most_below_a_leaf(
            domains, card_capacity[0] / factor(oversubscription, "oversubscription")
        )
    from simcoll.topology.cluster import Tier

    leaf = Tier("leaf", boxes=boxes_per_leaf, rail_only=True, latency=shape.nic_latency)
    spine = Tier("spine", latency=shape.spine_latency, oversubscription=oversubscription)
    return leaf, spine


def _most_below_a_leaf(domains: int, uplink: Fraction) -> int | None:
    """The largest power of two whose total uplinks one link of the model can carry; None if all
    fit.
    """
    largest = int(MAX_RATE_UBPS / uplink)
    return None if domains <= largest else 1 << max(largest.bit_length() - 1, 0)


def _cards(
    names: list[str], kinds: list[NodeKind], g: int, nics: int, nic_bandwidth: Quantity | None
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Add the NICs; return their vertices, the capacity of each, and the NIC of each GPU."""
    if nics == 0:
        return (), (), ()
    if nic_bandwidth is None:
        raise ConfigError(
            f"nic_bandwidth: expected the bandwidth of each of {nics} NICs, such as '400 Gbps'"
        )
    if nics % g and g % nics:
        raise ConfigError(
            f"nics: {nics} NICs cannot be shared equally by {g} GPUs; expected a divisor or a "
            f"multiple of {g}"
        )
    rails = min(nics, g)
    nic_capacity = checked_capacity(
        parse_capacity(nic_bandwidth, "nic_bandwidth") * (nics // rails), "nic_bandwidth"
    )
    cards = tuple(range(len(names), len(names) + rails))
    names += [f"nic{k}" for k in range(rails)]
    kinds += ["nic"] * rails
    return cards, (nic_capacity,) * rails, tuple(i * rails // g for i in range(g))


def _interconnect(
    table: LinkTable, names: list[str], kinds: list[NodeKind], g: int, shape: BoxesParameters
) -> None:
    """Add the links between the GPUs of a node."""
    interconnect, links, bandwidth = shape.interconnect, shape.links, shape.gpu_bandwidth
    if interconnect not in INTERCONNECTS:
        raise ConfigError(
            f"interconnect: unknown {interconnect!r}; {nearest(interconnect, INTERCONNECTS)}"
        )
    if interconnect == "pcie":
        return
    if bandwidth is None:
        raise ConfigError(
            f"gpu_bandwidth: expected the bandwidth of interconnect {interconnect!r}, such as '450 "
            "GB/s'"
        )
    capacity, latency_fs = (
        parse_capacity(bandwidth, "gpu_bandwidth"),
        duration_fs(shape.gpu_latency, "gpu_latency"),
    )
    if interconnect == "switch":
        names.append("nvswitch")
        kinds.append("switch")
        for gpu in range(g):
            table.add_pair(gpu, g, capacity, halves_fs(latency_fs), "nvlink")
        return
    if interconnect == "mesh":
        if g > MAX_MESH:
            raise ConfigError(
                f"a mesh of {g} GPUs: at most {MAX_MESH} of a node can all be linked to each other"
            )
        links = [(a, b, 1) for a in range(g) for b in range(a + 1, g)]
    joined: set[tuple[int, int]] = set()
    for a, b, parallel in links:
        ends = (min(a, b), max(a, b))
        if not 0 <= ends[0] < ends[1] < g or parallel < 1:
            raise ConfigError(
                f"links: [{a}, {b}, {parallel}] is not two different GPUs of 0 to {g - 1} and a "
                "number of links"
            )
        if ends in joined:
            raise ConfigError(
                f"links: GPUs {a} and {b} are listed twice; give the number of parallel links "
                "instead"
            )
        joined.add(ends)
        table.add_pair(
            a, b, checked_capacity(capacity * parallel, "links"), (latency_fs, latency_fs), "nvlink"
        )


def _pcie_links(shape: BoxesParameters) -> tuple[int | None, int]:
    """The capacity of a link to PCIe, if one is given, and its latency."""
    bandwidth = shape.pcie_bandwidth
    capacity = None if bandwidth is None else parse_capacity(bandwidth, "pcie_bandwidth")
    return capacity, duration_fs(shape.pcie_latency, "pcie_latency")


def _direct_nics(
    table: LinkTable,
    cards: tuple[int, ...],
    card_capacity: tuple[int, ...],
    card_of_gpu: tuple[int, ...],
    shape: BoxesParameters,
) -> None:
    """Link every GPU with its NIC."""
    pcie, hop = _pcie_links(shape)
    if shape.interconnect == "pcie":
        raise ConfigError(
            "interconnect 'pcie': expected gpus_per_pcie_switch, for a PCIe tree that joins "
            "the GPUs"
        )
    for gpu, k in enumerate(card_of_gpu):
        table.add_pair(gpu, cards[k], pcie or card_capacity[k], halves_fs(hop), "pcie")


def _pcie_tree(
    table: LinkTable,
    names: list[str],
    kinds: list[NodeKind],
    g: int,
    cards: tuple[int, ...],
    card_of_gpu: tuple[int, ...],
    shape: BoxesParameters,
) -> None:
    """Add PCIe switches, sockets and the links between sockets; a NIC is attached to the switch of
    its first GPU.
    """
    capacity, hop = _pcie_links(shape)
    if capacity is None or shape.cpu_bandwidth is None:
        raise ConfigError(
            "gpus_per_pcie_switch: a PCIe tree needs pcie_bandwidth and cpu_bandwidth"
        )
    per_switch = count(shape.gpus_per_pcie_switch, "gpus_per_pcie_switch", maximum=g)
    trunk = parse_capacity(shape.cpu_bandwidth, "cpu_bandwidth")
    trunk_hop = duration_fs(shape.cpu_latency, "cpu_latency")
    sockets = count(shape.cpus, "cpus", maximum=64)
    switches = -(-g // per_switch)
    first_switch = len(names)
    names += [f"pcie{k}" for k in range(switches)] + [f"cpu{k}" for k in range(sockets)]
    kinds += ["pcie"] * switches
    kinds += ["cpu"] * sockets
    for gpu in range(g):
        table.add_pair(gpu, first_switch + gpu // per_switch, capacity, (hop, hop), "pcie")
    for k, card in enumerate(cards):
        table.add_pair(
            card, first_switch + card_of_gpu.index(k) // per_switch, capacity, (hop, hop), "pcie"
        )
    for k in range(switches):
        table.add_pair(
            first_switch + k,
            first_switch + switches + k * sockets // switches,
            capacity,
            (hop, hop),
            "pcie",
        )
    for a in range(sockets):
        for b in range(a + 1, sockets):
            table.add_pair(
                first_switch + switches + a,
                first_switch + switches + b,
                trunk,
                (trunk_hop, trunk_hop),
                "cpu",
            )


def _by_levels(levels: tuple[Level, ...]) -> BoxRouter:
    """The router of single ranks under levels of switches."""
    return BoxRouter(pair_links=np.zeros((1, 1, 0), dtype=np.int32), links_per_box=0, levels=levels)
