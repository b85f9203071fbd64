"""Routes that a schedule chooses: over a vertex, or over a class of links.

* Where the route of the topology passes what is chosen, that is the route.
* Over the GPU of another rank, it is the route of the topology to that GPU and the one from there,
  if these two have no vertex in common but the GPU. So relays, as in NCCL's PXN, keep the routing
  of their network.
* Elsewhere it is the shortest path that passes what is chosen and visits no vertex twice: by
  latency, then by the number of links, then by the lowest vertices. GPUs forward only where they do
  in the topology, and where they are chosen.

Paths are searched from the source, guided by the exact distance to the destination, which a search
backwards gives; only where the shortest way would visit a vertex twice (into a switch and back over
one NIC, say) are others tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.core.facts import FactStore
from simcoll.core.transit import Transits
from simcoll.errors import ConfigError, nearest
from simcoll.topology.graph import LINK_KINDS, Routes, Topology

__all__ = ["check_paths", "chosen_routes"]

MOST_TRIED = 20_000
"""Partial paths that are tried for one pair of ranks."""
LISTED = 8
"""Names in an error."""


class _Required(NamedTuple):
    """What a path must pass: a vertex, or a link of a class; the other is -1."""

    vertex: int
    kind: int


class _PartialPath(NamedTuple):
    """The beginning of a path, by the least length of the whole; between equal ones the
    lowest vertices decide.
    """

    bound: int
    vertices: tuple[int, ...]
    links: tuple[int, ...]
    length: int
    passed: int


class _Paths:
    """The chosen paths of a topology that were asked for so far, and its links as lists."""

    def __init__(self, topology: Topology) -> None:
        self.known: dict[tuple[str, int, int], tuple[int, ...]] = {}
        self.distances: dict[tuple[str, int], list[list[int]]] = {}
        self.out: list[list[tuple[int, int]]] = [[] for _ in topology.node_names]
        self.into: list[list[tuple[int, int]]] = [[] for _ in topology.node_names]
        ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
        for link, (tail, head) in enumerate(ends):
            self.out[tail].append((link, head))
            self.into[head].append((link, tail))
        self.kind = topology.link_kind.tolist()
        # Latency first, then the number of links, in one number.
        self.length = [
            latency * (len(topology.node_names) + 1) + 1
            for latency in topology.link_latency_fs.tolist()
        ]
        stops = [kind == "gpu" and not topology.gpus_forward for kind in topology.node_kinds]
        if not topology.gpus_forward:
            for vertex in topology.rank_nodes.tolist():
                stops[vertex] = True
        self.stops = stops


_paths_of: FactStore[Topology, _Paths] = FactStore(_Paths)
FAR = 2**63 - 1


def chosen_routes(topology: Topology, src: Ints, dst: Ints, paths: Transits | None) -> Routes:
    """Routes from rank ``src[m]`` to rank ``dst[m]``, over what ``paths`` chooses for transfer m.

    Raises
    ------
    ConfigError
        When there is no such vertex or class of links, or no path over it.

    Examples
    --------
    >>> from simcoll.core.step import transfers
    >>> from simcoll.topology import torus
    >>> step = transfers([0, 0], 0, [1, 1], 0, via=["", "gpu2"])
    >>> routes = chosen_routes(torus([4], "25 GB/s"), step.src_rank, step.dst_rank, step.transits)
    >>> (routes.links >= 0).sum(axis=1).tolist()
    [1, 3]
    """
    routes = topology.route(src, dst)
    if paths is None:
        return routes
    links = routes.links
    vias = [entry.via for entry in paths.table]
    for place, via in enumerate(vias):
        rows = np.flatnonzero((paths.number == place) & (np.asarray(src) != np.asarray(dst)))
        if not via or not len(rows):
            continue
        required = _requirement(topology, via)
        away = rows[~_passes(topology, links[rows], required)]
        # One destination after the other, as each needs a search of its own.
        for row in away[np.argsort(np.asarray(dst)[away], kind="stable")].tolist():
            path = _path(topology, int(src[row]), int(dst[row]), via, required)
            if len(path) > links.shape[1]:
                links = np.pad(links, ((0, 0), (0, len(path) - links.shape[1])), constant_values=-1)
            elif links is routes.links:
                links = links.copy()
            links[row] = -1
            links[row, : len(path)] = path
    return topology.routes_over(links)


def check_paths(topology: Topology, vias: Sequence[str]) -> None:
    """Refuse vertices and classes of links that a topology does not have.

    >>> from simcoll.topology import torus
    >>> check_paths(torus([4], "25 GB/s"), ["gpu9"])
    Traceback (most recent call last):
    simcoll.errors.ConfigError: via 'gpu9': topology 'torus' has no vertex or class of ...
    """
    for via in vias:
        _requirement(topology, via)


def _requirement(topology: Topology, via: str) -> _Required:
    if via in topology.node_names:
        return _Required(topology.node_names.index(via), -1)
    if via in LINK_KINDS:
        kind = LINK_KINDS.index(via)
        if (topology.link_kind == kind).any():
            return _Required(-1, kind)
    kinds = [name for number, name in enumerate(LINK_KINDS) if (topology.link_kind == number).any()]
    close = nearest(via, [*kinds, *topology.node_names]).partition("? (")[0]
    hint = f"; {close}?" if close.startswith("did you mean") else ""
    names = ", ".join(topology.node_names[:LISTED])
    ellipsis = ", ..." if len(topology.node_names) > LISTED else ""
    raise ConfigError(
        f"via {via!r}: topology {topology.name!r} has no vertex or class of links of that name"
        f"{hint} (classes: {', '.join(kinds)}; vertices: {names}{ellipsis})"
    )


def _passes(topology: Topology, links: Shorts, required: _Required) -> np.ndarray:
    """Whether each route passes what is chosen."""
    real = links >= 0
    if required.kind >= 0:
        hit = topology.link_kind[links] == required.kind
    else:
        hit = (topology.link_src[links] == required.vertex) | (
            topology.link_dst[links] == required.vertex
        )
    result: np.ndarray = (hit & real).any(axis=1)
    return result


def _path(topology: Topology, src: int, dst: int, via: str, required: _Required) -> tuple[int, ...]:
    """The links from one rank to another over what is chosen."""
    paths = _paths_of(topology)
    key = via, src, dst
    if key not in paths.known:
        path = _relay_path(topology, src, dst, required) or _shortest_path(
            topology, paths, src, dst, via, required
        )
        if path is None:
            ends = " to ".join(
                topology.node_names[topology.rank_nodes[rank]] for rank in (src, dst)
            )
            raise ConfigError(
                f"via {via!r}: topology {topology.name!r} has no path from {ends} that passes it "
                "and no vertex twice"
            )
        paths.known[key] = path
    return paths.known[key]


def _relay_path(
    topology: Topology, src: int, dst: int, required: _Required
) -> tuple[int, ...] | None:
    """The routes of the topology to the GPU of a rank and from there; ``None`` if they meet before,
    or if another vertex is chosen.
    """
    relay = np.flatnonzero(topology.rank_nodes == required.vertex)
    if required.vertex < 0 or not len(relay):
        return None
    rows = topology.route([src, int(relay[0])], [int(relay[0]), dst]).links
    links = rows[rows >= 0].tolist()
    visited = [int(topology.link_src[link]) for link in links] + [int(topology.rank_nodes[dst])]
    return tuple(links) if len(set(visited)) == len(visited) else None


def _distances(
    topology: Topology, paths: _Paths, dst: int, via: str, required: _Required
) -> list[list[int]]:
    """For every vertex, the length of the shortest way to a rank that has still to pass what is
    chosen, and of one that has passed it.
    """
    key = via, dst
    if key in paths.distances:
        return paths.distances[key]
    target = int(topology.rank_nodes[dst])
    distance = [[FAR, FAR] for _ in paths.out]
    distance[target][1] = 0
    queue = [(0, target, 1)]
    while queue:
        length, vertex, passed = heappop(queue)
        if length > distance[vertex][passed]:
            continue
        if not passed and vertex == required.vertex:
            continue  # a way that arrives here has passed it
        for link, tail in paths.into[vertex]:
            if tail == target or (paths.stops[vertex] and vertex not in (target, required.vertex)):
                continue
            for state in (0, 1):
                if _state_after(paths, state, link, vertex, required) != passed:
                    continue
                total = length + paths.length[link]
                if total < distance[tail][state]:
                    distance[tail][state] = total
                    heappush(queue, (total, tail, state))
    paths.distances = {key: distance}  # of all destinations, they would take too much memory
    return distance


def _state_after(paths: _Paths, passed: int, link: int, head: int, required: _Required) -> int:
    """Whether a way has passed what is chosen after one ellipsis link."""
    return int(passed or head == required.vertex or paths.kind[link] == required.kind)


def _shortest_path(
    topology: Topology, paths: _Paths, src: int, dst: int, via: str, required: _Required
) -> tuple[int, ...] | None:
    """The shortest path, without a vertex twice, that passes what is chosen."""
    remaining = _distances(topology, paths, dst, via, required)
    start, target = (int(topology.rank_nodes[rank]) for rank in (src, dst))
    if remaining[start][0] == FAR:
        return None
    queue = [_PartialPath(remaining[start][0], (start,), (), 0, 0)]
    for _ in range(MOST_TRIED):
        if not queue:
            return None
        path = heappop(queue)
        vertex = path.vertices[-1]
        if vertex == target:
            return path.links
        if paths.stops[vertex] and vertex not in (start, required.vertex):
            continue
        for link, head in paths.out[vertex]:
            state = _state_after(paths, path.passed, link, head, required)
            to_go = remaining[head][state]
            if head in path.vertices or to_go == FAR or (head == target and not state):
                continue
            length = path.length + paths.length[link]
            ends = (*path.vertices, head), (*path.links, link)
            heappush(queue, _PartialPath(length + to_go, *ends, length, state))
    raise ConfigError(
        f"via {via!r}: no path of topology {topology.name!r} among the {MOST_TRIED} shortest from "
        f"rank {src} to rank {dst} visits no vertex twice; expected a vertex nearer to them"
    )
