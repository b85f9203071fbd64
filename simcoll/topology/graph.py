"""A topology: vertices, directed links with capacity and latency, ranks on some vertices, and the routes between
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.errors import ConfigError, nearest
from simcoll.topology.routing import shortest_path_router, unreachable_pair
from simcoll.topology.values import Quantity, checked_capacity, duration_fs, factor, parse_capacity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import networkx as nx
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from simcoll.topology.routing import Router, ShortestPathRouter

__all__ = ["LINK_KINDS", "NODE_KINDS", "Routes", "Topology", "from_networkx"]

NODE_KINDS = ("gpu", "nic", "switch", "cpu", "pcie")
LINK_KINDS = ("nvlink", "link", "pcie", "cpu", "net")
"""Classes of links from the quickest to the slowest; arrays hold the index. ``nvlink`` is any scale-up link (NVLink,
xGMI), ``cpu`` a link between sockets, ``link`` one of no special class."""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Routes of M (source, destination) pairs.

    Attributes
    ----------
    links
        Link indices in order of travel ``[M, H]``, padded at the end with -1. A rank's way to itself has no links.
    latency_fs
        Latency of the whole path ``[M]``.
    kind
        Class of the slowest link of the path ``[M]``, an index into :data:`LINK_KINDS`; -1 without links.
    """

    links: NDArray[np.int32]
    latency_fs: NDArray[np.int64]
    kind: NDArray[np.int8]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the classes that ``kind`` counts."""
        return LINK_KINDS


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A frozen cluster. All arrays are read-only; mappings are not to be changed either.

    Attributes
    ----------
    node_names, node_kinds
        All vertices (``"box0.gpu3"``, ``"leaf2"``) and what they are, one of :data:`NODE_KINDS`.
    rank_nodes
        Vertex of each rank.
    link_src, link_dst, link_capacity_uBps, link_latency_fs, link_kind
        One entry per directed link; ``link_kind`` indexes :data:`LINK_KINDS`.
    router, rank_endpoints
        How routes are found, and the router's endpoint of each rank.
    gpus_forward
        Whether routes may pass through a GPU (torus, mesh of direct links).
    groups
        Level (``"box"``, ``"leaf"``, ...), finest first, to the group of each rank, numbered from 0.
    efficiency
        Measured share of the raw capacity per kind of link; missing means 1. Only protocol models use it.
    traits
        Facts that protocol models ask for: ``{"gpu": "H100", "generation": "hopper", "cpu": "intel"}``.
    sources
        Where each number comes from, by its place in the file.
    """

    name: str
    node_names: tuple[str, ...]
    node_kinds: tuple[str, ...]
    rank_nodes: NDArray[np.int64]
    link_src: NDArray[np.int64]
    link_dst: NDArray[np.int64]
    link_capacity_uBps: NDArray[np.int64]  # noqa: N815 -- names end with their unit
    link_latency_fs: NDArray[np.int64]
    link_kind: NDArray[np.int8]
    router: Router
    rank_endpoints: NDArray[np.int64]
    gpus_forward: bool = False
    groups: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    efficiency: Mapping[str, Fraction] = field(default_factory=dict)
    traits: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    description: str = ""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                object.__setattr__(self, each.name, _frozen(value, value.dtype))
        object.__setattr__(self, "groups", {level: _frozen(ids, np.int64) for level, ids in self.groups.items()})
        if self.nranks == 0:
            raise ConfigError(f"topology {self.name!r} has no ranks; expected at least one GPU")

    @property
    def nranks(self) -> int:
        """World size: ranks are numbered 0..nranks-1."""
        return len(self.rank_nodes)

    @property
    def nlinks(self) -> int:
        """Number of directed links."""
        return len(self.link_src)

    def link_name(self, link: int) -> str:
        """``"box0.gpu3 -> box0.nvswitch"``."""
        return f"{self.node_names[self.link_src[link]]} -> {self.node_names[self.link_dst[link]]}"

    def path(self, src: int, dst: int) -> list[str]:
        """The links from one rank to another by name, in order of travel."""
        return [self.link_name(link) for link in self.route([src], [dst]).links[0] if link >= 0]

    def route(self, src: ArrayLike, dst: ArrayLike) -> Routes:
        """Routes from rank ``src[m]`` to rank ``dst[m]`` for all m at once.

        Raises
        ------
        ConfigError
            When a rank is not in 0..nranks-1 or the two arrays differ in length.
        """
        a, b = np.atleast_1d(np.asarray(src, dtype=np.int64)), np.atleast_1d(np.asarray(dst, dtype=np.int64))
        if a.shape != b.shape or a.ndim != 1:
            raise ConfigError(f"routes need as many sources as destinations, got shapes {a.shape} and {b.shape}")
        for ranks in (a, b):
            if ranks.size and not (ranks.min() >= 0 and ranks.max() < self.nranks):
                bad = int(ranks[(ranks < 0) | (ranks >= self.nranks)][0])
                raise ConfigError(f"rank {bad} is not in topology {self.name!r}; expected 0 to {self.nranks - 1}")
        links = self.router.links(self.rank_endpoints[a], self.rank_endpoints[b])
        used = links >= 0
        latency = np.where(used, self.link_latency_fs[links], 0).sum(axis=1, dtype=np.int64) if self.nlinks else a * 0
        kind = np.where(used, self.link_kind[links], -1).max(axis=1, initial=-1) if self.nlinks else a * 0 - 1
        routes = Routes(links=links, latency_fs=latency, kind=kind.astype(np.int8))
        for array in (routes.links, routes.latency_fs, routes.kind):
            array.setflags(write=False)
        return routes

    def with_ranks(self, endpoints: Sequence[int] | NDArray[np.int64]) -> Topology:
        """The same cluster with rank r on what is now rank ``endpoints[r]``; the others hold no rank any more.

        Raises
        ------
        ConfigError
            When the selection is empty, repeats a rank, or names one that does not exist.
        """
        chosen = np.asarray(endpoints, dtype=np.int64)
        if chosen.ndim != 1 or chosen.size == 0:
            raise ConfigError("a placement needs at least one rank")
        if chosen.min() < 0 or chosen.max() >= self.nranks:
            raise ConfigError(
                f"a placement may use 0 to {self.nranks - 1} of topology {self.name!r}, got {chosen.tolist()[:8]}"
            )
        if np.unique(chosen).size != chosen.size:
            raise ConfigError("a placement puts two ranks on one GPU; expected distinct numbers")
        return replace(
            self,
            rank_nodes=self.rank_nodes[chosen],
            rank_endpoints=self.rank_endpoints[chosen],
            groups={level: np.unique(ids[chosen], return_inverse=True)[1] for level, ids in self.groups.items()},
        )

    def take(self, nranks: int) -> Topology:
        """The same cluster with ranks on its first ``nranks`` GPUs only."""
        if not 1 <= nranks <= self.nranks:
            raise ConfigError(f"topology {self.name!r} has {self.nranks} GPUs, {nranks} ranks asked for")
        return self if nranks == self.nranks else self.with_ranks(range(nranks))

    def link(self, name: str) -> int:
        """Index of the link called ``"box0.gpu3 -> box0.nvswitch"``."""
        tail, _, head = (part.strip() for part in name.partition("->"))
        for end in (tail, head):
            if end not in self.node_names:
                raise ConfigError(f"link {name!r}: no vertex {end!r}; {_near(end, self.node_names)}")
        a, b = self.node_names.index(tail), self.node_names.index(head)
        found = np.flatnonzero((self.link_src == a) & (self.link_dst == b))
        if not found.size:
            heads = [self.node_names[v] for v in self.link_dst[self.link_src == a]]
            raise ConfigError(f"no link {name!r}; from {tail!r} {_near(head, heads)}")
        return int(found[0])

    def degrade(self, link: str | int, share: str | float | Fraction) -> Topology:
        """The same cluster with one link at a share of its capacity; at 0 it is gone and routes go around it.

        Raises
        ------
        ConfigError
            When the link does not exist, the share is not between 0 and 1, or a dead link cuts two ranks off.
        """
        index = self.link(link) if isinstance(link, str) else link
        if not 0 <= index < self.nlinks:
            raise ConfigError(f"link {index} is not in topology {self.name!r}; expected 0 to {self.nlinks - 1}")
        left = Fraction(0) if str(share) in {"0", "0.0"} else factor(share, "share of capacity")
        if left > 1:
            raise ConfigError(f"share of capacity: expected 0 to 1, got {share}")
        if left:
            capacity = self.link_capacity_uBps.copy()
            capacity[index] = checked_capacity(int(capacity[index]) * left, "degraded link")
            return replace(self, link_capacity_uBps=capacity)
        kept = np.arange(self.nlinks) != index
        parts = {
            name: getattr(self, name)[kept]
            for name in ("link_src", "link_dst", "link_capacity_uBps", "link_latency_fs", "link_kind")
        }
        router = _graph_router(
            self.name,
            self.node_names,
            self.node_kinds,
            self.rank_nodes,
            parts["link_src"],
            parts["link_dst"],
            parts["link_latency_fs"],
            gpus_forward=self.gpus_forward,
        )
        return replace(self, **parts, router=router, rank_endpoints=np.arange(self.nranks))

    def to_networkx(self) -> nx.DiGraph:
        """A ``networkx.DiGraph`` over vertex names: nodes with ``kind`` and ``rank``, edges with ``capacity_uBps``,
        ``latency_fs``, ``kind``.
        """
        import networkx as nx

        graph = nx.DiGraph(name=self.name)
        rank_of = {int(node): rank for rank, node in enumerate(self.rank_nodes)}
        for index, (name, kind) in enumerate(zip(self.node_names, self.node_kinds, strict=True)):
            graph.add_node(name, kind=kind, **({"rank": rank_of[index]} if index in rank_of else {}))
        for link in range(self.nlinks):
            graph.add_edge(
                self.node_names[self.link_src[link]],
                self.node_names[self.link_dst[link]],
                capacity_uBps=int(self.link_capacity_uBps[link]),
                latency_fs=int(self.link_latency_fs[link]),
                kind=LINK_KINDS[self.link_kind[link]],
            )
        return graph


def from_networkx(
    graph: nx.Graph,
    *,
    name: str | None = None,
    gpus_forward: bool = False,
    groups: Mapping[str, Sequence[int]] | None = None,
    efficiency: Mapping[str, str | float] | None = None,
    traits: Mapping[str, str] | None = None,
) -> Topology:
    """Make a topology of any networkx graph; routes are shortest paths by latency, then by hops, then by lowest vertex.

    Nodes may carry ``kind`` (one of :data:`NODE_KINDS`) and ``rank`` (0..n-1; without any, the nodes of kind
    ``"gpu"`` are ranks in their order). Edges carry ``bandwidth`` (text, or ``capacity_uBps``), ``latency`` (text, or
    ``latency_fs``; default 0) and ``kind`` (one of :data:`LINK_KINDS`; default ``"link"``). An undirected edge is two
    links; parallel edges add up to one link.

    Raises
    ------
    ConfigError
        When an attribute is missing or wrong, or when two ranks have no route between them.

    Examples
    --------
    >>> import networkx as nx
    >>> ring = nx.cycle_graph(4)
    >>> nx.set_node_attributes(ring, "gpu", "kind")
    >>> nx.set_edge_attributes(ring, "25 GB/s", "bandwidth")
    >>> nx.set_edge_attributes(ring, "1 us", "latency")
    >>> from_networkx(ring, gpus_forward=True).route([0, 0], [1, 2]).latency_fs.tolist()
    [1000000000, 2000000000]
    """
    title = name or str(graph.graph.get("name") or "graph")
    vertices = list(graph.nodes)
    index = {vertex: i for i, vertex in enumerate(vertices)}
    names = tuple(str(vertex) for vertex in vertices)
    kinds = tuple(_node_kind(names[i], graph.nodes[v]) for i, v in enumerate(vertices))
    rank_nodes = _rank_nodes(names, kinds, [graph.nodes[v].get("rank") for v in vertices])
    table: dict[tuple[int, int], tuple[int, int, int]] = {}
    for tail, head, data in graph.edges(data=True):
        ways = [(index[tail], index[head])]
        if not graph.is_directed():
            ways.append((index[head], index[tail]))
        for way in ways:
            where = f"link {names[way[0]]} -> {names[way[1]]}"
            if way[0] == way[1]:
                raise ConfigError(f"{where}: a link from a vertex to itself")
            capacity, latency, kind = _edge(where, data)
            before = table.get(way)
            if before is not None:
                if before[1:] != (latency, kind):
                    raise ConfigError(
                        f"{where}: parallel links differ in latency or kind; they can be joined only when equal"
                    )
                capacity = checked_capacity(capacity + before[0], where)
            table[way] = (capacity, latency, kind)
    ways_array = np.array(list(table), dtype=np.int64).reshape(-1, 2)
    values = np.array(list(table.values()), dtype=np.int64).reshape(-1, 3)
    for level, ids in (groups or {}).items():
        if len(ids) != len(rank_nodes):
            raise ConfigError(f"groups {level!r}: expected one group per rank ({len(rank_nodes)}), got {len(ids)}")
    for kind_name in efficiency or {}:
        if kind_name not in LINK_KINDS:
            raise ConfigError(f"efficiency: unknown kind of link {kind_name!r}; {nearest(kind_name, LINK_KINDS)}")
    return Topology(
        name=title,
        node_names=names,
        node_kinds=kinds,
        rank_nodes=rank_nodes,
        link_src=ways_array[:, 0],
        link_dst=ways_array[:, 1],
        link_capacity_uBps=values[:, 0],
        link_latency_fs=values[:, 1],
        link_kind=values[:, 2].astype(np.int8),
        router=_graph_router(
            title, names, kinds, rank_nodes, ways_array[:, 0], ways_array[:, 1], values[:, 1], gpus_forward=gpus_forward
        ),
        rank_endpoints=np.arange(len(rank_nodes)),
        gpus_forward=gpus_forward,
        groups={level: np.asarray(ids, dtype=np.int64) for level, ids in (groups or {}).items()},
        efficiency={kind: factor(share, f"efficiency of {kind}") for kind, share in (efficiency or {}).items()},
        traits=dict(traits or {}),
    )


def _graph_router(
    title: str,
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    rank_nodes: NDArray[np.int64],
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
    latency_fs: NDArray[np.int64],
    *,
    gpus_forward: bool,
) -> ShortestPathRouter:
    forwards = np.array([gpus_forward or kind != "gpu" for kind in kinds])
    if not gpus_forward:
        forwards[rank_nodes] = False
    router = shortest_path_router(len(names), src, dst, latency_fs, rank_nodes, forwards)
    pair = unreachable_pair(router)
    if pair is not None:
        a, b = (f"rank {rank} ({names[rank_nodes[rank]]})" for rank in pair)
        hint = "" if gpus_forward else "; GPUs do not forward traffic here, say gpus_forward=True if yours do"
        raise ConfigError(f"topology {title!r} is disconnected: no route from {a} to {b}{hint}")
    return router


def _node_kind(name: str, data: Mapping[str, Any]) -> str:
    kind = data.get("kind", "gpu" if "rank" in data else "switch")
    if kind not in NODE_KINDS:
        raise ConfigError(f"vertex {name!r}: unknown kind {kind!r}; {nearest(str(kind), NODE_KINDS)}")
    return str(kind)


def _rank_nodes(names: tuple[str, ...], kinds: tuple[str, ...], ranks: list[Any]) -> NDArray[np.int64]:
    if len(set(names)) != len(names):
        raise ConfigError("two vertices have the same name")
    if all(rank is None for rank in ranks):
        return np.array([i for i, kind in enumerate(kinds) if kind == "gpu"], dtype=np.int64)
    held = {rank: i for i, rank in enumerate(ranks) if rank is not None}
    n = sum(rank is not None for rank in ranks)
    if list(range(n)) != sorted(r for r in held if isinstance(r, int) and not isinstance(r, bool)):
        raise ConfigError(
            f"vertices carry ranks {[r for r in ranks if r is not None][:8]}; expected 0 to {n - 1}, each once"
        )
    return np.array([held[rank] for rank in range(n)], dtype=np.int64)


def _edge(where: str, data: Mapping[str, Any]) -> tuple[int, int, int]:
    """Capacity, latency and index of the kind of one edge."""
    bandwidth: Quantity | None = data.get("capacity_uBps", data.get("bandwidth"))
    if bandwidth is None:
        raise ConfigError(
            f"{where}: no bandwidth; expected an attribute such as bandwidth='50 GB/s' (or capacity_uBps)"
        )
    if "capacity_uBps" not in data and not isinstance(bandwidth, str):
        raise ConfigError(f"{where}: bandwidth {bandwidth!r} has no unit; write for example '{bandwidth} GB/s'")
    latency: Quantity = data.get("latency_fs", data.get("latency", 0))
    if "latency_fs" not in data and latency and not isinstance(latency, str):
        raise ConfigError(f"{where}: latency {latency!r} has no unit; write for example '{latency} us'")
    kind = data.get("kind", "link")
    if kind not in LINK_KINDS:
        raise ConfigError(f"{where}: unknown kind {kind!r}; {nearest(str(kind), LINK_KINDS)}")
    return (
        parse_capacity(bandwidth, f"{where}: bandwidth"),
        duration_fs(latency, f"{where}: latency"),
        LINK_KINDS.index(kind),
    )


def _frozen(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """A read-only copy; what is read-only already is shared."""
    fixed = np.array(array, dtype=dtype, copy=array.flags.writeable or None)
    fixed.setflags(write=False)
    return fixed


def _near(given: str, valid: Sequence[str]) -> str:
    return nearest(given, get_close_matches(given, valid, n=5, cutoff=0.0))
