"""Breadth-first broadcast: every rank gets the data of the ranks at distance t in step t, over all of its links at once.

For ranks with direct links (tori, hypercubes, rings, meshes): each step takes as long as its most loaded link, and where shares of a
block can come over all neighbours on shortest paths, the steps together are as short as the bound, in as many steps as the graph has
diameter. A reduction runs the steps backwards.

Source: Zhao et al.: Efficient direct-connect topologies for collective communications, arXiv 2202.03356.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms import forest
from simcoll.algorithms.forest import Forest, topology_of
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.collective import Collective
    from simcoll.schedule import Schedule
    from simcoll.topology import Topology

    Ints = NDArray[np.int64]

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]


def _neighbours(topology: Topology, *, backwards: bool) -> tuple[list[dict[int, int]], Ints]:
    """Capacity of the direct link into each rank from its neighbours, and the distance from every rank to every rank."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    n = topology.nranks
    rank_of = {int(node): rank for rank, node in enumerate(topology.rank_nodes)}
    into: list[dict[int, int]] = [{} for _ in range(n)]
    ends = zip(
        topology.link_src.tolist(), topology.link_dst.tolist(), topology.link_capacity_uBps.tolist(), strict=True
    )
    for src, dst, capacity in ends:
        if src in rank_of and dst in rank_of:
            a, b = (rank_of[dst], rank_of[src]) if backwards else (rank_of[src], rank_of[dst])
            into[b][a] = capacity
    pairs = np.array([(a, b) for b, sources in enumerate(into) for a in sources], np.int64).reshape(-1, 2).T
    links = csr_array((np.ones(pairs.shape[1]), (pairs[0], pairs[1])), shape=(n, n))
    distance = shortest_path(links, unweighted=True)
    if not np.isfinite(distance).all():
        raise ConfigError(
            f"bfb needs direct links between the ranks, which topology {topology.name!r} does not have throughout; "
            "packed serves any topology"
        )
    return into, distance.astype(np.int64)


def _shares(
    wanted: list[int], sources: dict[int, int], distance: Ints, at: int, parts: int
) -> tuple[Fraction, list[list[int]]]:
    """From which neighbour each of ``parts`` parts of each wanted block comes, so that the busiest link is soonest done.

    Returns that time, in parts over the share of the fastest link, and for each wanted block the source of every part.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    fastest = max(sources.values())
    near = list(sources)
    times = sorted({Fraction(load * fastest, sources[w]) for w in near for load in range(1, len(wanted) * parts + 1)})
    low, high = 0, len(times) - 1
    best: list[list[int]] = []
    first = len(wanted)
    sink = first + len(near) + 1
    ends = [(0, 1 + i, parts) for i in range(first)]
    ends += [
        (1 + i, 1 + first + j, parts)
        for i, block in enumerate(wanted)
        for j, w in enumerate(near)
        if distance[block, w] == distance[block, at] - 1
    ]
    while low <= high:
        middle = (low + high) // 2
        limits = [(1 + first + j, sink, int(times[middle] * sources[w] / fastest)) for j, w in enumerate(near)]
        src, dst, capacity = np.array([*ends, *limits]).T
        graph = csr_array((capacity.astype(np.int32), (src, dst)), shape=(sink + 1, sink + 1))
        found = maximum_flow(graph, 0, sink)
        if found.flow_value == first * parts:
            flow = found.flow.toarray()
            best = [
                [w for j, w in enumerate(near) for _ in range(max(int(flow[1 + i, 1 + first + j]), 0))]
                for i in range(first)
            ]
            high = middle - 1
        else:
            low = middle + 1
    return times[low], best


def _broadcasts(topology: Topology, *, backwards: bool) -> Forest:
    into, distance = _neighbours(topology, backwards=backwards)
    n = topology.nranks
    diameter = int(distance.max())

    def time_of(parts: int) -> Fraction:
        """Time of all steps, judged by one rank."""
        steps = (np.flatnonzero(distance[:, 0] == t).tolist() for t in range(1, diameter + 1))
        return sum((_shares(far, into[0], distance, 0, parts)[0] for far in steps if far), Fraction(0)) / parts

    degree = max((len(sources) for sources in into), default=1)
    parts = min(range(1, 2 * degree + 1), key=lambda parts: (time_of(parts), parts)) if n > 1 else 1
    rows: list[tuple[int, int, int, int, int]] = []
    for at in range(n):
        for t in range(1, diameter + 1):
            far = np.flatnonzero(distance[:, at] == t).tolist()
            if far:
                for block, sources in zip(far, _shares(far, into[at], distance, at, parts)[1], strict=True):
                    rows += [(w, at, block, part, t - 1) for part, w in enumerate(sources)]
    return Forest.of(rows, parts)


def all_gather(collective: Collective, *, topology: Topology | None = None, pieces: int = 1) -> Schedule:
    """In step t every rank gets the blocks of the ranks at distance t, in equal shares over its links."""
    machine = topology_of(collective, topology, "bfb")
    return forest.all_gather(collective, "bfb", machine, _broadcasts(machine, backwards=False), pieces)


def reduce_scatter(collective: Collective, *, topology: Topology | None = None, pieces: int = 1) -> Schedule:
    """The all-gather backwards: sums come nearer by one link in every step."""
    machine = topology_of(collective, topology, "bfb")
    return forest.reduce_scatter(collective, "bfb", machine, _broadcasts(machine, backwards=True).turned(), pieces)


def all_reduce(collective: Collective, *, topology: Topology | None = None, pieces: int = 1) -> Schedule:
    """Reduce-scatter, then all-gather."""
    machine = topology_of(collective, topology, "bfb")
    inward, outward = _broadcasts(machine, backwards=True).turned(), _broadcasts(machine, backwards=False)
    return forest.all_reduce(collective, "bfb", machine, inward, outward, pieces)
