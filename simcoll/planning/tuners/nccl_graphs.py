"""Check NCCL's channels against a machine, and convert NCCL's rings and trees to schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms import compose, schedule
from simcoll.algorithms.nccl_tree import levels
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, joined, transfers
from simcoll.errors import ConfigError
from simcoll.topology import Topology
from simcoll.topology.graph import LINK_KINDS
from simcoll.units import counted

if TYPE_CHECKING:
    from simcoll.formats.logs.nccl_graph import NcclGraph
    from simcoll.formats.logs.nccl_log import NcclCommunicator

__all__ = [
    "NcclChannels",
    "channels_of_graph",
    "channels_of_log",
    "channels_schedule",
    "connection_lines",
    "fit_lines",
]

_KINDS = {"NVL": "nvlink", "PIX": "pcie", "PXB": "pcie", "PHB": "pcie", "SYS": "cpu"}
"""The slowest kind of link on a path, by NCCL's name of the path."""
_BY_SWITCH = {"nvls", "collnet direct"}
MOST_LINES = 8
MAX_PIECES = 64


@dataclass(frozen=True, slots=True)
class NcclChannels:
    """NCCL's channels for one family of algorithms.

    Attributes
    ----------
    name, pattern
        ``ring``, ``tree``, ``collnet`` or ``nvls``, and the connection pattern of a channel's
        ranks.
    orders
        For rings, the ranks of each channel in order.
    parents
        For trees, the parent of each rank on each channel; -1 for the root.
    GBps
        Intended rate of each channel in each direction; 0 if unknown.
    path
        NCCL's name of the slowest path, such as NVL, if known.
    count
        Number of channels, including those connected by a switch.
    """

    name: str
    pattern: str
    orders: tuple[tuple[int, ...], ...]
    parents: tuple[tuple[int, ...], ...]
    GBps: float
    path: str
    count: int

    def edges(self) -> list[tuple[int, int]]:
        """Pairs of communicating ranks, in the direction of the data; for trees in both
        directions.
        """
        around = [
            pair
            for order in self.orders
            if len(order) > 1
            for pair in (*pairwise(order), (order[-1], order[0]))
        ]
        up = [
            (rank, parent)
            for tree in self.parents
            for rank, parent in enumerate(tree)
            if parent >= 0
        ]
        return [*around, *up, *((parent, rank) for rank, parent in up)]


def channels_of_graph(graph: NcclGraph) -> NcclChannels:
    """The channels of a graph file: rings, or trees, which are chains within a node."""
    orders, parents = (
        (graph.channels, ())
        if graph.pattern == "ring"
        else ((), tuple(map(_chain, graph.channels)))
    )
    if graph.pattern in _BY_SWITCH:
        parents = ()
    return NcclChannels(
        graph.name,
        graph.pattern,
        orders,
        parents,
        graph.intra_GBps,
        graph.type_intra,
        len(graph.channels),
    )


def _chain(order: Sequence[int]) -> tuple[int, ...]:
    """The parents in a chain whose root is its first rank; -1 for GPUs outside the chain too."""
    parents = [-1] * (max(order) + 1)
    for above, below in pairwise(order):
        parents[below] = above
    return tuple(parents)


def channels_of_log(communicator: NcclCommunicator, topology: Topology) -> list[NcclChannels]:
    """The rings and trees of a communicator, with the ranks that its GPUs have on a machine."""
    place = np.array(_places(communicator, topology))
    rings = tuple(tuple(place[list(ring)].tolist()) for ring in communicator.rings)
    trees = []
    for tree in communicator.trees:
        parents = np.full(len(tree), -1)
        above = np.array(tree)
        parents[place] = np.where(above < 0, -1, place[above])
        trees.append(tuple(parents.tolist()))
    families = [
        _with_search_rate(
            NcclChannels(name, name, orders, parents, 0.0, "", len(orders) + len(parents)),
            communicator,
        )
        for name, orders, parents in (("ring", rings, ()), ("tree", (), tuple(trees)))
        if orders or parents
    ]
    return families + [
        NcclChannels(
            name, search.pattern, (), (), search.intra_GBps, search.type_intra, search.count
        )
        for name, search in communicator.searches.items()
        if search.pattern in _BY_SWITCH
    ]


def _with_search_rate(channels: NcclChannels, communicator: NcclCommunicator) -> NcclChannels:
    """Channels with the total rate found by NCCL's search, if the log has it."""
    search = communicator.searches.get(channels.name)
    if search is None:
        return channels
    alone = len({host for host, _ in communicator.places}) == 1 or communicator.nnodes == 1
    rate_GBps = search.intra_GBps if alone else min(search.intra_GBps, search.inter_GBps)
    path = search.type_intra if alone else ""
    return replace(channels, GBps=rate_GBps * search.count / channels.count, path=path)


def _places(communicator: NcclCommunicator, topology: Topology) -> list[int]:
    """The machine's rank of each rank of a communicator: by node and device, or by number if these
    are unknown.
    """
    n, size = communicator.nranks, topology.ranks_per_node
    if n > topology.nranks:
        raise ConfigError(
            f"the communicator has {n} ranks; {topology.name!r} has {topology.nranks}"
        )
    hosts = list(dict.fromkeys(host for host, _ in communicator.places))
    if not communicator.places or size is None or n != len(hosts) * size:
        return list(range(n))
    ranks = [hosts.index(host) * size + device for host, device in communicator.places]
    return ranks if sorted(ranks) == list(range(n)) else list(range(n))


def fit_lines(channels: NcclChannels, topology: Topology) -> Iterator[str]:
    """Describe the channels' load on a machine's links: rate, busiest link, and idle links.

    Raises
    ------
    ConfigError
        When they name GPUs that the machine lacks.
    """
    count, intended_GBps = channels.count, channels.GBps
    amount = f"{count} channel{'s' * (count != 1)}"
    rate = (
        f"{amount} of {intended_GBps:g} GB/s, {count * intended_GBps:g} GB/s in all"
        if intended_GBps
        else amount
    )
    yield f"{channels.name}: {rate}, {channels.pattern}" + (
        f", over {channels.path}" if channels.path else ""
    )
    edges = np.array(channels.edges(), np.int64).reshape(-1, 2)
    if not len(edges):
        if not channels.orders and not channels.parents:
            yield "  done by a switch, whose links are not checked"
        return
    if edges.max() >= topology.nranks:
        raise ConfigError(
            f"NCCL's {channels.name} graph names GPU {edges.max()}; {topology.name!r} has "
            f"{topology.nranks}"
        )
    routes = topology.route(edges[:, 0], edges[:, 1])
    used = routes.links[routes.links >= 0].ravel()
    times = dict(
        zip(*(column.tolist() for column in np.unique(used, return_counts=True)), strict=True)
    )
    GBps = {link: int(topology.link_capacity_uBps[link]) / 10**15 for link in times}
    busiest = max(times, key=lambda link: times[link] / GBps[link])
    name, capacity = topology.link_name(busiest), GBps[busiest]
    if intended_GBps:
        load = times[busiest] * intended_GBps
        verdict = "fits" if load <= capacity else "does not fit"
        yield (
            f"  {verdict}: the busiest link, {name}, would carry {load:g} GB/s of {capacity:g} "
            f"({100 * load / capacity:.0f} %)"
        )
    else:
        share_GBps = capacity / times[busiest]
        yield (
            f"  the busiest link, {name}, has {capacity:g} GB/s for "
            f"{counted(times[busiest], 'hop')} of the channels: {share_GBps:g} GB/s a channel, "
            f"{share_GBps * count:g} GB/s in all"
        )
    slowest = LINK_KINDS[int(routes.kind.max())]
    if channels.path in _KINDS and slowest != _KINDS[channels.path]:
        yield (
            f"  NCCL says that its slowest path is {channels.path}; on this machine it goes over "
            f"{slowest}"
        )
    fast = [
        link
        for link in range(topology.nlinks)
        if LINK_KINDS[topology.link_kind[link]] == "nvlink" and link not in times
    ]
    if fast:
        example = topology.link_name(fast[0])
        yield f"  {len(fast)} NVLinks of {topology.name} are left idle, such as {example}"


def connection_lines(communicator: NcclCommunicator, topology: Topology) -> Iterator[str]:
    """Describe the paths of a communicator's connections, and those for which the machine has a
    better one.
    """
    if not communicator.connections:
        return
    yield "  connections: " + ", ".join(
        f"{count:,} {transport}" for transport, count in communicator.ways().items()
    )
    place = np.array(_places(communicator, topology))
    connections = [
        connection
        for connection in communicator.connections
        if max(connection[:2]) < communicator.nranks and connection[0] != connection[1]
    ]
    pairs = place[np.array([connection[:2] for connection in connections], np.int64).reshape(-1, 2)]
    kinds = topology.route(pairs[:, 0], pairs[:, 1]).kind.tolist() if len(pairs) else []
    worse: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for (a, b, transport), kind in zip(connections, kinds, strict=True):
        best = LINK_KINDS[kind]
        if (best == "nvlink" and not transport.startswith(("P2P", "NVLS"))) or (
            best == "pcie" and transport.startswith("NET")
        ):
            worse[transport, best].append((a, b))
        elif best == "net" and transport.startswith("NET/Socket"):
            worse[transport, "the network's RDMA"].append((a, b))
    for (transport, best), edges in list(worse.items())[:MOST_LINES]:
        a, b = edges[0]
        yield (
            f"  {len(edges)} of them, such as {a} -> {b}, go via {transport}, "
            f"where this machine has {best}"
        )


def channels_schedule(
    channels: NcclChannels, collective: str = "all_reduce", *, pieces: int = 1
) -> Schedule:
    """Convert NCCL's rings or trees to a schedule with an equal share of the data on each channel.

    Parameters
    ----------
    collective
        all_reduce, all_gather or reduce_scatter for rings; all_reduce for trees.
    pieces
        Number of pipelined pieces of a tree's data.

    Raises
    ------
    ConfigError
        For channels of switches, channels with different GPUs, invalid trees, and other
        collectives.
    """
    if channels.orders:
        return _ring_schedule(channels.orders, collective)
    if not channels.parents:
        raise ConfigError(
            f"NCCL's {channels.name} graph is a {channels.pattern}; only rings and trees become "
            "schedules"
        )
    if collective != "all_reduce":
        raise ConfigError(f"no tree of NCCL for {collective!r}; valid: all_reduce")
    if not 1 <= pieces <= MAX_PIECES:
        raise ConfigError(f"pieces={pieces}: expected 1 to {MAX_PIECES}")
    n, count = len(channels.parents[0]), len(channels.parents)
    trees = [np.array(tree) for tree in channels.parents]
    below = [levels(tree) for tree in trees]
    for number, (tree, tree_levels) in enumerate(zip(trees, below, strict=True)):
        if len(tree) != n or int((tree < 0).sum()) != 1 or sum(map(len, tree_levels)) != n - 1:
            raise ConfigError(
                f"channel {number} of NCCL's tree graph is no tree of GPUs 0 to {n - 1}"
            )
    layout, rank, lane = (
        Layout(Collective("all_reduce", n), count),
        np.arange(n),
        count * int(pieces > 1),
    )

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(), count=count)
        for time in range(max(map(len, below))):
            yield joined(
                [
                    transfers(
                        level,
                        layout.output(0, c),
                        tree[level],
                        layout.output(0, c),
                        op=REDUCE,
                        channel=c,
                    )
                    for c, (tree, tree_levels) in enumerate(zip(trees, below, strict=True))
                    if time < len(tree_levels)
                    for level in [tree_levels[len(tree_levels) - 1 - time]]
                ]
            )
        for time in range(max(map(len, below))):
            yield joined(
                [
                    transfers(
                        tree[level],
                        layout.output(0, c),
                        level,
                        layout.output(0, c),
                        channel=c + lane,
                    )
                    for c, (tree, tree_levels) in enumerate(zip(trees, below, strict=True))
                    if time < len(tree_levels)
                    for level in [tree_levels[time]]
                ]
            )

    return compose.pipelined(Schedule("nccl_trees", layout, steps, count + lane), pieces)


def _ring_schedule(orders: Sequence[Sequence[int]], collective: str) -> Schedule:
    gpus = sorted(orders[0])
    if any(sorted(order) != list(range(len(gpus))) for order in orders):
        raise ConfigError(
            f"the channels of NCCL's ring graph have not GPUs 0 to {len(gpus) - 1} each"
        )
    if collective not in {"all_reduce", "all_gather", "reduce_scatter"}:
        raise ConfigError(
            f"no ring of NCCL for {collective!r}; valid: all_reduce, all_gather, reduce_scatter"
        )
    return compose.channels(schedule(collective, "ring", nranks=len(gpus)), np.array(orders))
