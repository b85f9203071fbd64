"""An InfiniBand fabric as a topology: its listed switches and cables, a GPU at each adapter, and
subnet-manager routes.

The listing does not describe the inside of nodes, so its rates are requested. Latencies are
assumptions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints, Shorts
from simcoll.core.immutable import by_constructor, freeze
from simcoll.core.memory_limits import check_room
from simcoll.core.vocabulary import NodeKind
from simcoll.errors import ConfigError
from simcoll.files.reader_arguments import Content, content_of
from simcoll.topology.graph import Topology
from simcoll.topology.links import LinkTable, assemble
from simcoll.topology.readers.ib_listing import Listing, parse_listing
from simcoll.topology.readers.missing_rates import Rate, required_rates

__all__ = ["FabricRouter", "parse_ib_fabric"]

NVLINK_FS, PCIE_FS = 350_000_000, 400_000_000
CABLE_FS, HOP_FS = 500_000_000, 250_000_000
"""One-way latencies: GPU to the switch of its node, GPU to adapter, adapter to switch, switch to
switch.
"""
UBPS_PER_MBPS = 125_000 * 10**6
MAX_ADAPTERS = 1 << 14
BLOCK = 1 << 16
_INSIDE_SWITCHES = "Aggregation Node"
"""Adapters with this name are parts of switches."""


@dataclass(frozen=True, slots=True, eq=False)
class FabricRouter:
    """Shortest paths between adapters.

    If several ports qualify, the destination selects one, at each hop by another digit of its
    number.

    So traffic to one destination takes one path from everywhere, and the destinations at one switch
    are spread evenly, as in the fat-tree routing of a subnet manager (d-mod-k).

    Attributes
    ----------
    host
        Node of every rank.
    local_links
        Links from every rank to the switch of its node and back, -1 for none: ``[n, 2]``.
    ends
        Links from every rank to its adapter and back: ``[n, 2]``.
    adapter, number
        Vertex of every rank's adapter, and the number that selects ports: its position at its
        switch, then the switch.
    away
        Hops from every vertex of the fabric to the adapter of every rank: ``[n, vertices]``.
    out, head
        Links out of every vertex of the fabric, padded with -1, and their destinations:
        ``[vertices, ports]``.
    """

    host: Ints
    local_links: Shorts
    ends: Shorts
    adapter: Ints
    number: Ints
    away: NDArray[np.int16]
    out: Shorts
    head: Ints

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def links(self, src: Ints, dst: Ints) -> Shorts:
        """See :class:`simcoll.topology.routing.Router`."""
        longest = int(self.away[dst, self.adapter[src]].max(initial=0))
        routes = np.full((src.size, longest + 2), -1, np.int32)
        for begin in range(0, src.size, BLOCK):
            part = slice(begin, begin + BLOCK)
            self._fill(routes[part], src[part], dst[part])
        return routes

    def _fill(self, routes: Shorts, src: Ints, dst: Ints) -> None:
        together = self.host[src] == self.host[dst]
        local = np.flatnonzero(together & (src != dst))
        routes[local, 0], routes[local, 1] = (
            self.local_links[src[local], 0],
            self.local_links[dst[local], 1],
        )
        pairs = np.flatnonzero(~together)
        routes[pairs, 0] = self.ends[src[pairs], 0]
        vertex, digit, column = self.adapter[src[pairs]], self.number[dst[pairs]], 1
        goal = self.adapter[dst[pairs]]
        while pairs.size:
            arrived = np.flatnonzero(vertex == goal)
            routes[pairs[arrived], column] = self.ends[dst[pairs[arrived]], 1]
            going = vertex != goal
            pairs, digit = pairs[going], digit[going]
            vertex, goal = vertex[going], goal[going]
            to = dst[pairs]
            nearer = (self.out[vertex] >= 0) & (
                self.away[to[:, None], self.head[vertex]] == self.away[to, vertex][:, None] - 1
            )
            count = nearer.sum(axis=1)
            digit, choice = np.divmod(digit, np.maximum(count, 1))
            port = (np.cumsum(nearer, axis=1) > choice[:, None]).argmax(axis=1)
            routes[pairs, column] = self.out[vertex, port]
            vertex = self.head[vertex, port]
            column += 1


def _cable_links(listing: Listing, offset: int) -> LinkTable:
    """A pair of links for all cables between two vertices, whose rates add up."""
    rates: dict[tuple[int, int], int] = {}
    for cable in listing.cables:
        pair = (cable.a, cable.b) if cable.a < cable.b else (cable.b, cable.a)
        rates[pair] = rates.get(pair, 0) + cable.Mbps
    links = LinkTable([])
    for (a, b), rate in sorted(rates.items()):
        latency = CABLE_FS if "nic" in {listing.kinds[a], listing.kinds[b]} else HOP_FS
        links.add_pair(offset + a, offset + b, rate * UBPS_PER_MBPS, (latency, latency), "net")
    return links


def parse_ib_fabric(
    content: Content,
    *,
    file: str = "fabric",
    nodes: int | None = None,
    nvlink_bandwidth: Any = None,
    pcie_bandwidth: Any = None,
) -> Topology:
    """Build a topology from the output of ``ibnetdiscover`` or ``iblinkinfo``: a rank for each
    adapter, node by node.

    Adapters whose names differ only in the last word, such as ``node-1 mlx5_0`` and
    ``node-1 mlx5_1``, belong to one node.

    Parameters
    ----------
    content, file
        The text, and its name for messages.
    nodes
        Number of nodes that take part, in order of name; default: all.
    nvlink_bandwidth, pcie_bandwidth
        Rate between a GPU and the switch inside its node (if a node has several GPUs), and between
        a GPU and its adapter.

    Raises
    ------
    ConfigError
        For text that is not a listing, a missing rate, and a fabric that does not connect all
        adapters.
    """
    content = content_of(content, "parse_ib_fabric")
    listing = parse_listing(content, file)
    hosts = _hosts(listing)
    if not hosts:
        raise ConfigError("has no adapters with a cable", file=file)
    if nodes is not None and not 1 <= nodes <= len(hosts):
        raise ConfigError(f"nodes: {nodes}; the listing has {len(hosts)}", file=file)
    hosts = dict(list(hosts.items())[:nodes])
    adapters = [adapter for members in hosts.values() for adapter in members]
    if len(adapters) > MAX_ADAPTERS:
        raise ConfigError(
            f"{len(adapters):,} adapters; at most {MAX_ADAPTERS:,}, so take fewer nodes", file=file
        )
    check_room(
        len(adapters) * len(listing.names) * 10, "the routes of the fabric", "fewer nodes need less"
    )
    several = any(len(members) > 1 for members in hosts.values())
    inner = [
        Rate("pcie.bandwidth", "links from GPUs to adapters", "64 GB/s", pcie_bandwidth),
        Rate("nvlink.bandwidth", "links between GPUs of a node", "450 GB/s", nvlink_bandwidth),
    ]
    pcie, nvlink = (
        required_rates("the listing", file, inner)
        if several
        else (*required_rates("the listing", file, inner[:1]), 0)
    )
    n, offset = len(adapters), len(adapters)
    names = [
        f"{host}.gpu{place}" for host, members in hosts.items() for place in range(len(members))
    ]
    names += _distinct(listing.names)
    kinds: list[NodeKind] = ["gpu"] * n
    kinds += ["switch" if kind == "router" else kind for kind in listing.kinds]
    links = _cable_links(listing, offset)
    cables = links.columns()[:2] - offset
    ends = [
        links.add_pair(rank, offset + adapter, pcie, (PCIE_FS, PCIE_FS), "pcie")
        for rank, adapter in enumerate(adapters)
    ]
    local, host, rank = np.full((n, 2), -1, np.int32), np.zeros(n, np.int64), 0
    for number, (name, members) in enumerate(hosts.items()):
        if len(members) > 1:
            names.append(f"{name}.nvswitch")
            kinds.append("switch")
        for _ in members:
            if len(members) > 1:
                local[rank] = links.add_pair(
                    rank, len(names) - 1, nvlink, (NVLINK_FS, NVLINK_FS), "nvlink"
                )
            host[rank], rank = number, rank + 1
    router = _router(
        np.array(adapters),
        len(listing.names),
        cables,
        host,
        local,
        np.array(ends, np.int32),
        listing,
        file,
    )
    topology = assemble(
        _title(file),
        names,
        kinds,
        np.arange(n),
        links.columns(),
        router,
        {"box": host} if len(hosts) > 1 else {},
    )
    return replace(
        topology,
        description=f"InfiniBand fabric: {len(hosts)} nodes, {n} adapters, "
        f"{listing.kinds.count('switch')} switches",
        sources={
            "$": "ibnetdiscover or iblinkinfo: switches, cables and their rates; inside of nodes "
            "as given; latencies unverified"
        },
    )


def _title(file: str) -> str:
    return file.replace("\\", "/").rpartition("/")[2].rpartition(".")[0] or "fabric"


def _hosts(listing: Listing) -> dict[str, list[int]]:
    """Connected adapters of every node; nodes and adapters in natural order of their names."""
    wired = {end for cable in listing.cables for end in (cable.a, cable.b)}
    adapters = [
        number
        for number, kind in enumerate(listing.kinds)
        if kind == "nic" and number in wired and _INSIDE_SWITCHES not in listing.names[number]
    ]
    hosts: dict[str, list[int]] = {}
    for number in sorted(adapters, key=lambda adapter: (_natural(listing.names[adapter]), adapter)):
        host = listing.names[number].rpartition(" ")[0] or listing.names[number]
        hosts.setdefault(host, []).append(number)
    return dict(sorted(hosts.items(), key=lambda entry: _natural(entry[0])))


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Sort key that puts node-2 before node-10."""
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)


def _distinct(names: list[str]) -> list[str]:
    """Distinct names of vertices: repeated names get their number."""
    often = (
        {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    )
    return [f"{name} #{number}" if name in often else name for number, name in enumerate(names)]


def _router(
    adapters: Ints,
    vertices: int,
    cables: Ints,
    host: Ints,
    local: Shorts,
    ends: Shorts,
    listing: Listing,
    file: str,
) -> FabricRouter:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    tail, head = cables
    # Adapters do not forward: paths into an adapter end there.
    through = np.array([kind != "nic" for kind in listing.kinds])
    graph = csr_array((np.ones(len(tail)), (tail, head)), shape=(vertices, vertices))
    reverse = graph.T.tocsr()
    switch_links = through[np.repeat(np.arange(vertices), np.diff(reverse.indptr))]
    away = np.empty((len(adapters), vertices))
    # Backwards from each adapter, over switches only.
    for number, adapter in enumerate(adapters.tolist()):
        usable = switch_links.copy()
        usable[reverse.indptr[adapter] : reverse.indptr[adapter + 1]] = True
        ways = csr_array(
            (usable.astype(float), reverse.indices.copy(), reverse.indptr.copy()),
            shape=reverse.shape,
        )
        ways.eliminate_zeros()  # they would be paths of length zero
        away[number] = shortest_path(ways, unweighted=True, indices=adapter)
    lost = np.argwhere(~np.isfinite(away[:, adapters]))
    if len(lost):
        a, b = (listing.names[adapters[place]] for place in lost[0])
        raise ConfigError(f"no way from {b!r} to {a!r}", file=file)
    away[~np.isfinite(away)] = 2**14
    degree = np.bincount(tail, minlength=vertices)
    out = np.full((vertices, int(degree.max())), -1, np.int32)
    heads = np.zeros_like(out, dtype=np.int64)
    order = np.argsort(tail, kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(degree) - degree, degree)
    out[tail[order], place], heads[tail[order], place] = order, head[order]
    chosen_by = _numbers(heads[adapters, 0])
    return FabricRouter(host, local, ends, adapters, chosen_by, away.astype(np.int16), out, heads)


def _numbers(leaf: Ints) -> Ints:
    """The position of every adapter at its switch plus, in multiples of a power of two, the
    position of the switch.

    >>> _numbers(np.array([9, 8, 9, 8, 9])).tolist()
    [0, 4, 1, 5, 2]
    """
    _, leaf_number = np.unique(leaf, return_inverse=True)
    switches: dict[int, int] = {}
    switch = np.array(
        [switches.setdefault(number, len(switches)) for number in leaf_number.tolist()]
    )
    place = np.array(
        [int((leaf_number[:rank] == number).sum()) for rank, number in enumerate(leaf_number)]
    )
    numbers: Ints = place + switch * (1 << int(place.max()).bit_length())
    return numbers
