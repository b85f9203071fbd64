"""Conversion of any networkx graph to a topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.vocabulary import NodeKind
from simcoll.errors import ConfigError, nearest
from simcoll.topology.graph import LINK_KINDS, NODE_KINDS, Topology
from simcoll.topology.links import assemble
from simcoll.topology.routing import graph_router
from simcoll.topology.values import Quantity, checked_capacity, duration_fs, factor, parse_capacity

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["from_networkx"]


def from_networkx(
    graph: nx.Graph,
    *,
    name: str | None = None,
    gpus_forward: bool = False,
    groups: Mapping[str, Sequence[int]] | None = None,
    efficiency: Mapping[str, str | float] | None = None,
    traits: Mapping[str, str] | None = None,
) -> Topology:
    """Build a topology from any networkx graph.

    Routes are shortest paths by latency, then by hops, then by lowest vertex.

    Nodes may carry ``kind`` (one of :data:`NODE_KINDS`) and ``rank`` (0..n-1; without any, the
    nodes of kind ``"gpu"`` are ranks in order). Edges carry ``bandwidth`` (text, or
    ``capacity_uBps``), ``latency`` (text, or ``latency_fs``; default 0) and ``kind`` (one of
    :data:`LINK_KINDS`; default ``"link"``). An undirected edge is two links; parallel edges are
    merged into one link.

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
    table = _edge_table(graph, index, names)
    ways = np.array(list(table), dtype=np.int64).reshape(-1, 2)
    values = np.array(list(table.values()), dtype=np.int64).reshape(-1, 3)
    for level, ids in (groups or {}).items():
        if len(ids) != len(rank_nodes):
            raise ConfigError(
                f"groups {level!r}: expected one group per rank ({len(rank_nodes)}), got {len(ids)}"
            )
    for kind_name in efficiency or {}:
        if kind_name not in LINK_KINDS:
            raise ConfigError(
                f"efficiency: unknown kind of link {kind_name!r}; {nearest(kind_name, LINK_KINDS)}"
            )
    router = graph_router(
        title,
        names,
        kinds,
        rank_nodes,
        ways[:, 0],
        ways[:, 1],
        values[:, 1],
        gpus_forward=gpus_forward,
        hint=", say gpus_forward=True if yours do",
    )
    levels = {level: np.asarray(ids, dtype=np.int64) for level, ids in (groups or {}).items()}
    columns = np.concatenate([ways, values], axis=1).T
    return replace(
        assemble(
            title, names, kinds, rank_nodes, columns, router, levels, gpus_forward=gpus_forward
        ),
        efficiency={
            kind: factor(share, f"efficiency of {kind}")
            for kind, share in (efficiency or {}).items()
        },
        traits=dict(traits or {}),
    )


def _edge_table(
    graph: nx.Graph, index: Mapping[Any, int], names: tuple[str, ...]
) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Capacity, latency and kind of each directed link, with parallel links merged."""
    table: dict[tuple[int, int], tuple[int, int, int]] = {}
    for tail, head, data in graph.edges(data=True):
        ways = [(index[tail], index[head])]
        if not graph.is_directed():
            ways.append((index[head], index[tail]))
        for ends in ways:
            link = f"link {names[ends[0]]} -> {names[ends[1]]}"
            if ends[0] == ends[1]:
                raise ConfigError(f"{link}: a link from a vertex to itself")
            capacity, latency, kind = _edge(link, data)
            parallel = table.get(ends)
            if parallel is not None:
                if parallel[1:] != (latency, kind):
                    raise ConfigError(
                        f"{link}: parallel links differ in latency or kind; they can be joined "
                        "only when equal"
                    )
                capacity = checked_capacity(capacity + parallel[0], link)
            table[ends] = (capacity, latency, kind)
    return table


def _node_kind(name: str, data: Mapping[str, Any]) -> NodeKind:
    kind: Any = data.get("kind", "gpu" if "rank" in data else "switch")
    text = str(kind)
    if text not in NODE_KINDS:
        raise ConfigError(f"vertex {name!r}: unknown kind {kind!r}; {nearest(text, NODE_KINDS)}")
    return text


def _rank_nodes(names: tuple[str, ...], kinds: tuple[NodeKind, ...], ranks: list[Any]) -> Ints:
    if len(set(names)) != len(names):
        raise ConfigError("two vertices have the same name")
    if all(rank is None for rank in ranks):
        return np.array([i for i, kind in enumerate(kinds) if kind == "gpu"], dtype=np.int64)
    vertex_of = {rank: i for i, rank in enumerate(ranks) if rank is not None}
    n = sum(rank is not None for rank in ranks)
    if list(range(n)) != sorted(
        r for r in vertex_of if isinstance(r, int) and not isinstance(r, bool)
    ):
        raise ConfigError(
            f"vertices carry ranks {[r for r in ranks if r is not None][:8]}; expected 0 to "
            f"{n - 1}, each once"
        )
    return np.array([vertex_of[rank] for rank in range(n)], dtype=np.int64)


def _edge(link: str, data: Mapping[str, Any]) -> tuple[int, int, int]:
    """Capacity, latency and kind index of one edge."""
    bandwidth: Quantity | None = data.get("capacity_uBps", data.get("bandwidth"))
    if bandwidth is None:
        raise ConfigError(
            f"{link}: no bandwidth; expected an attribute such as bandwidth='50 GB/s' (or "
            "capacity_uBps)"
        )
    if "capacity_uBps" not in data and not isinstance(bandwidth, str):
        raise ConfigError(
            f"{link}: bandwidth {bandwidth!r} has no unit; write for example '{bandwidth} GB/s'"
        )
    latency: Quantity = data.get("latency_fs", data.get("latency", 0))
    if "latency_fs" not in data and latency and not isinstance(latency, str):
        raise ConfigError(
            f"{link}: latency {latency!r} has no unit; write for example '{latency} us'"
        )
    kind = data.get("kind", "link")
    if kind not in LINK_KINDS:
        raise ConfigError(f"{link}: unknown kind {kind!r}; {nearest(str(kind), LINK_KINDS)}")
    return (
        parse_capacity(bandwidth, f"{link}: bandwidth"),
        duration_fs(latency, f"{link}: latency"),
        LINK_KINDS.index(kind),
    )
