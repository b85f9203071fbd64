"""Routing: from (source, destination) endpoints to the links between them, vectorised over pairs.

A router is a frozen record of small tables with one method, ``links(src, dst)``. Endpoints are
numbered in the order in which a family creates them; the topology maps ranks to endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Floats, Ints, Shorts
from simcoll.core.facts import FactStore
from simcoll.core.immutable import by_constructor, freeze
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from scipy.sparse import csr_array


__all__ = [
    "BoxRouter",
    "Level",
    "Router",
    "ShortestPathRouter",
    "TorusRouter",
    "graph_router",
    "shortest_path_router",
]


EXACT_FLOAT = 2**53
KEPT_BYTES = 1 << 26
"""Bytes of trees of shortest paths that a router keeps: those of 512 switches with 4,096 ranks take
19 MB.
"""
TABLE_LIMIT = 128
"""Up to this many ranks all routes of a graph are computed once and kept."""
FEW_VERTICES = 64
"""Up to this number, shortest paths are found without SciPy, whose import takes longer than a table
of a few sizes.
"""
_TOO_FINE = (
    "link latencies: the longest and the finest are too far apart for exact shortest paths; "
    "round them, for example to whole nanoseconds"
)


class Router(Protocol):
    """The interface through which a topology finds its routes."""

    def links(self, src: Ints, dst: Ints) -> Shorts:
        """Link indices ``[M, H]`` from endpoint ``src[m]`` to ``dst[m]`` in order of travel, padded
        at the end with -1.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One level of an up-and-down network: endpoints of one group share a switch.

    ``up[e]`` are the links from endpoint e to the switch of its group, ``down[e]`` those back, both
    padded with -1.
    """

    group: Ints
    up: Shorts
    down: Shorts

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def fill(self, routes: Shorts, src: Ints, dst: Ints) -> None:
        """Write the links from ``src[m]`` up and down to ``dst[m]`` into row m."""
        up, down = self.up.take(src, axis=0), self.down.take(dst, axis=0)
        routes[:, : up.shape[1]] = up
        routes[:, up.shape[1] : up.shape[1] + down.shape[1]] = down


@dataclass(frozen=True, slots=True, eq=False)
class BoxRouter:
    """Equal nodes with a table of internal routes (``[g, g, H]``, links of node 0), joined by
    levels, finest first.

    A pair uses the first level whose group it shares; the last level must contain every endpoint.
    Without nodes (crossbar, fat tree) ``pair_links`` is ``[1, 1, 0]``: every endpoint is its own
    node.
    """

    pair_links: Shorts
    links_per_box: int
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def links(self, src: Ints, dst: Ints) -> Shorts:
        """See :class:`Router`."""
        g, _, local_links = self.pair_links.shape
        width = max(
            [local_links, *(level.up.shape[1] + level.down.shape[1] for level in self.levels)]
        )
        # The last level has a route for every pair; finer levels, and finally the nodes, overwrite
        # their own pairs.
        routes = np.full((src.size, width), -1, dtype=np.int32)
        if self.levels:
            self.levels[-1].fill(routes, src, dst)
        for level in reversed(self.levels[:-1]):
            rows = np.flatnonzero(level.group[src] == level.group[dst])
            filled = np.full((rows.size, width), -1, dtype=np.int32)
            level.fill(filled, src[rows], dst[rows])
            routes[rows] = filled
        box = src // g
        local = np.flatnonzero(box == dst // g)
        pairs = self.pair_links[src[local] % g, dst[local] % g]
        offset = (box[local] * self.links_per_box).astype(np.int32)
        routes[local, :local_links] = np.where(pairs >= 0, pairs + offset[:, None], -1)
        routes[local, local_links:] = -1
        return _pack(routes)


def _pack(links: Shorts) -> Shorts:
    """Move padding to the end of every row."""
    used = links >= 0
    if links.shape[1] < 2 or not (used[:, 1:] & ~used[:, :-1]).any():
        return links
    return np.take_along_axis(links, np.argsort(~used, axis=1, kind="stable"), axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class TorusRouter:
    """Routes dimension by dimension, in the shorter direction.

    ``link[d, 0, v]`` is the link from v to its next neighbour in dimension d, ``link[d, 1, v]`` to
    the previous one (-1 for none); ``neighbour`` holds their other ends. If both directions are
    equally long, even coordinates go up and odd ones down, which loads both directions equally when
    all ranks send.
    """

    dims: tuple[int, ...]
    wrap: tuple[bool, ...]
    link: Shorts
    neighbour: Ints

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def links(self, src: Ints, dst: Ints) -> Shorts:
        """See :class:`Router`."""
        columns: list[Shorts] = []
        vertex = src.copy()
        stride = int(np.prod(self.dims, dtype=np.int64))
        for d, (k, wrap) in enumerate(zip(self.dims, self.wrap, strict=True)):
            stride //= k
            coordinate, to = vertex // stride % k, dst // stride % k
            if wrap:
                ahead = (to - coordinate) % k
                down = (2 * ahead > k) | ((2 * ahead == k) & (coordinate % 2 == 1))
                hops = np.where(down, k - ahead, ahead)
            else:
                down = to < coordinate
                hops = np.abs(to - coordinate)
            direction = down.astype(np.int64)
            for hop in range(int(hops.max(initial=0))):
                active = hop < hops
                columns.append(np.where(active, self.link[d, direction, vertex], np.int32(-1)))
                vertex = np.where(active, self.neighbour[d, direction, vertex], vertex)
        if not columns:
            return np.full((src.size, 0), -1, dtype=np.int32)
        return _pack(np.stack(columns, axis=1))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ShortestPathRouter:
    """Shortest paths by latency, then by number of links, then by lowest vertex.

    The graph is split: an endpoint that may not forward has one vertex where links arrive and
    another where they leave. Edges are sorted by (head, tail); ``weight`` combines latency and hop
    count in one exact integer. The tree of shortest paths out of a vertex is found when it is asked
    for first.
    """

    nvertices: int
    tail: Ints
    head: Ints
    weight: Ints
    link: Shorts
    leave: Ints
    arrive: Ints

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def links(self, src: Ints, dst: Ints) -> Shorts:
        """See :class:`Router`."""
        if src.size == 0:
            return np.full((0, 0), -1, dtype=np.int32)
        trees = _trees_of(self)
        root, first_link = trees.root[src], trees.first_link[src]
        rows: list[tuple[Ints, list[Shorts]]] = []
        order = np.argsort(root, kind="stable")
        roots, starts = np.unique(root[order], return_index=True)
        for start, members in zip(roots.tolist(), np.split(order, starts[1:]), strict=True):
            rows_wanted = members[dst[members] != src[members]]
            if rows_wanted.size == 0:
                continue
            via = trees.out_of(start)
            vertex = self.arrive[dst[rows_wanted]]
            backwards: list[Shorts] = []
            while (via[vertex] >= 0).any() and len(backwards) < self.nvertices:
                edge = via[vertex]
                backwards.append(np.where(edge >= 0, self.link[edge], np.int32(-1)))
                vertex = np.where(edge >= 0, self.tail[edge], vertex)
            backwards.append(np.where(vertex == start, first_link[rows_wanted], np.int32(-1)))
            rows.append((rows_wanted, backwards))
        routes = np.full((src.size, max((len(b) for _, b in rows), default=0)), -1, dtype=np.int32)
        for rows_wanted, backwards in rows:
            for column, values in enumerate(reversed(backwards)):
                routes[rows_wanted, column] = values
        return _without_padding(_pack(routes))


class _PathTrees:
    """The trees of shortest paths of a router, the latest of them kept.

    An endpoint with a single link leaves on it, and goes on as from its other end: all ranks of a
    switch share the tree of the switch.

    Attributes
    ----------
    root, first_link
        Where the tree of each endpoint begins, and the link before it; -1 for none.
    """

    def __init__(self, router: ShortestPathRouter) -> None:
        self.nvertices, self.tail, self.head = router.nvertices, router.tail, router.head
        self.weight = router.weight.astype(np.float64)
        edge = np.full(router.nvertices, -1)
        edge[router.tail] = np.arange(len(router.tail))
        single = np.bincount(router.tail, minlength=router.nvertices)[router.leave] == 1
        edges = edge[router.leave]
        self.root = np.where(single, np.append(router.head, -1)[edges], router.leave)
        self.first_link = np.where(
            single, np.append(router.link, np.int32(-1))[edges], np.int32(-1)
        )
        self.vias: dict[int, Shorts] = {}

    def out_of(self, root: int) -> Shorts:
        """The edge by which the shortest path from a vertex enters each vertex; -1 for none."""
        via = self.vias.get(root)
        if via is None:
            via = self.vias[root] = self._find(root)
            if len(self.vias) * via.nbytes > KEPT_BYTES:
                self.vias.pop(next(iter(self.vias)), None)
        return via

    def _find(self, root: int) -> Shorts:
        distance = self._lengths(root)
        reachable = np.isfinite(distance)
        if float(distance[reachable].max()) >= EXACT_FLOAT:
            raise ConfigError(_TOO_FINE)
        tight = np.flatnonzero(
            (distance[self.tail] + self.weight == distance[self.head]) & reachable[self.head]
        )
        via = np.full(self.nvertices, -1, dtype=np.int32)
        # Edges are sorted by tail within a head, and of several values written to one position
        # the last wins: the lowest tail.
        via[self.head[tight[::-1]]] = tight[::-1]
        return via

    def _lengths(self, root: int) -> Floats:
        """Length of the shortest path from a vertex to every vertex; infinite if there is none."""
        if self.nvertices <= FEW_VERTICES:
            return _relax(root, self.nvertices, self.tail, self.head, self.weight)
        from scipy.sparse.csgraph import dijkstra

        lengths: Floats = dijkstra(self._graph, indices=root)
        return lengths

    @cached_property
    def _graph(self) -> csr_array:
        return _csr(self.nvertices, self.tail, self.head, self.weight)


_trees_of: FactStore[ShortestPathRouter, _PathTrees] = FactStore(_PathTrees)


def _without_padding(links: Shorts) -> Shorts:
    """Packed links without the columns that no route has."""
    return links[:, : int((links >= 0).any(axis=0).sum())]


def _relax(source: int, nvertices: int, tail: Ints, head: Ints, weight: Floats) -> Floats:
    """Lengths of shortest paths (Bellman and Ford), in as many rounds as a path has edges."""
    length = np.full(nvertices, np.inf)
    length[source] = 0
    while True:
        shorter = length.copy()
        np.minimum.at(shorter, head, length[tail] + weight)
        if np.array_equal(shorter, length):
            return length
        length = shorter


def _csr(n: int, tail: Ints, head: Ints, weight: Floats) -> csr_array:
    from scipy.sparse import csr_array

    return csr_array((weight, (tail, head)), shape=(n, n))


def shortest_path_router(
    nvertices: int,
    link_src: Ints,
    link_dst: Ints,
    link_latency_fs: Ints,
    endpoints: Ints,
    forwards: NDArray[np.bool_],
) -> ShortestPathRouter:
    """The PCIe bandwidth of the GPU's generation, if the overriding NIC is faster than that;
    otherwise nothing.

    Parameters
    ----------
    endpoints
        Vertex of each endpoint.
    forwards
        For each vertex, whether traffic may pass through it.

    Raises
    ------
    ConfigError
        When the range of latencies is too wide for exact path lengths.
    """
    arrive = np.arange(nvertices, dtype=np.int64)
    leave = arrive.copy()
    stops = np.flatnonzero(~forwards)
    leave[stops] = nvertices + np.arange(stops.size)
    total = nvertices + int(stops.size)
    unit = max(int(np.gcd.reduce(link_latency_fs)) if link_latency_fs.size else 1, 1)
    latency = link_latency_fs // unit
    if int(latency.max(initial=0)) * (nvertices + 1) >= EXACT_FLOAT:
        raise ConfigError(_TOO_FINE)
    weight = latency * (nvertices + 1) + 1
    tail, head = leave[link_src], arrive[link_dst]
    order = np.lexsort((tail, head))
    return ShortestPathRouter(
        nvertices=total,
        tail=tail[order],
        head=head[order],
        weight=weight[order],
        link=order.astype(np.int32),
        leave=leave[endpoints],
        arrive=arrive[endpoints],
    )


def graph_router(
    title: str,
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    rank_nodes: Ints,
    src: Ints,
    dst: Ints,
    latency_fs: Ints,
    *,
    gpus_forward: bool,
    hint: str = "",
    otherwise: Callable[[Router, Ints, Ints], NDArray[np.bool_]] | None = None,
) -> Router:
    """The router of an arbitrary graph, in which GPUs may or may not forward.

    ``hint`` tells the caller how to allow it.

    ``otherwise`` marks pairs of ranks that have another path although this router has none, such as
    over another GPU of the node.

    Raises
    ------
    ConfigError
        When a rank has no path to another; both are named.
    """
    forwards = np.array([gpus_forward or kind != "gpu" for kind in kinds], dtype=bool)
    if not gpus_forward:
        forwards[rank_nodes] = False
    router = shortest_path_router(len(names), src, dst, latency_fs, rank_nodes, forwards)
    for source, missing in _unreachable(router):
        without = (
            missing
            if otherwise is None
            else missing[~otherwise(router, np.full(missing.size, source), missing)]
        )
        if without.size:
            a, b = (
                f"rank {rank} ({names[rank_nodes[rank]]})" for rank in (source, int(without[0]))
            )
            why = "" if gpus_forward else f"; GPUs do not forward traffic here{hint}"
            if otherwise is not None:
                why = ", nor one over another GPU of its node"
            raise ConfigError(f"topology {title!r} is disconnected: no route from {a} to {b}{why}")
    n = len(rank_nodes)
    if not 0 < n <= TABLE_LIMIT:
        return router
    pairs = router.links(*np.divmod(np.arange(n * n), n)).reshape(n, n, -1)
    return BoxRouter(pair_links=pairs, links_per_box=0, levels=())


def _unreachable(router: ShortestPathRouter) -> Iterator[tuple[int, Ints]]:
    """Each endpoint with missing routes, and the endpoints that it cannot reach."""
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    graph = _csr(router.nvertices, router.tail, router.head, np.ones(router.tail.size))
    parts, part = connected_components(graph, directed=True, connection="strong")
    tail, head = part[router.tail], part[router.head]
    between = _csr(
        parts, tail[tail != head], head[tail != head], np.ones(int((tail != head).sum()))
    )
    # Endpoints with links into the same parts reach the same parts (except themselves).
    similar: dict[tuple[int, ...], list[int]] = {}
    for source, start in enumerate(router.leave.tolist()):
        heads = part[graph.indices[graph.indptr[start] : graph.indptr[start + 1]]]
        similar.setdefault(tuple(np.unique(heads).tolist()), []).append(source)
    homes = part[router.arrive]
    for firsts, sources in similar.items():
        reached = np.zeros(parts, dtype=bool)
        for origin in firsts:
            if not reached[origin]:
                reached[breadth_first_order(between, origin, return_predecessors=False)] = True
        missing = np.flatnonzero(~reached[homes])
        for source in sources if missing.size else ():
            unreached = missing[missing != source]
            if unreached.size:
                yield source, unreached
