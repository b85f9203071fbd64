"""Breadth-first broadcast: in step t, data from distance t arrives over all links at once.

For ranks with direct links (tori, hypercubes, rings, meshes). Each step takes as long as its most
loaded link. If shares of a block can arrive over all neighbours on shortest paths, the total time
meets the bound, in as many steps as the diameter of the graph. A reduction runs the steps
backwards. On other graphs the result is correct but suboptimal: an all-reduce on a path of ranks
takes twice the optimal time.

Source: Zhao et al.: Efficient direct-connect topologies for collective communications, arXiv
2202.03356.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms import forest
from simcoll.algorithms.forest import Forest, topology_of
from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints, Shorts
from simcoll.core.collective import Collective
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.topology import Topology


__all__ = ["all_gather", "all_reduce", "reduce_scatter"]

PLACE = 21  # in listings

BFB = (
    "Zhao et al.: Efficient direct-connect topologies for collective communications, arXiv "
    "2202.03356"
)


def _neighbours(topology: Topology, *, backwards: bool) -> tuple[list[dict[int, int]], Ints]:
    """Capacity of each rank's direct links from its neighbours, and all distances between ranks."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components, shortest_path

    n = topology.nranks
    rank_of = {int(node): rank for rank, node in enumerate(topology.rank_nodes)}
    into: list[dict[int, int]] = [{} for _ in range(n)]
    ends = zip(
        topology.link_src.tolist(),
        topology.link_dst.tolist(),
        topology.link_capacity_uBps.tolist(),
        strict=True,
    )
    for src, dst, capacity in ends:
        if src in rank_of and dst in rank_of:
            a, b = (rank_of[dst], rank_of[src]) if backwards else (rank_of[src], rank_of[dst])
            into[b][a] = capacity
    pairs = (
        np.array([(a, b) for b, sources in enumerate(into) for a in sources], np.int64)
        .reshape(-1, 2)
        .T
    )
    links = csr_array((np.ones(pairs.shape[1]), (pairs[0], pairs[1])), shape=(n, n))
    # Before the distances of all pairs, which take 512 MB for 8,192 ranks.
    if connected_components(links, connection="strong", return_labels=False) > 1:
        raise ConfigError(
            f"bfb needs direct links between the ranks, which topology {topology.name!r} does not "
            "have throughout; "
            "packed serves any topology"
        )
    distance = shortest_path(links, unweighted=True)
    return into, distance.astype(np.int64)


@lru_cache(maxsize=1 << 12)
def _shares(
    allowed: tuple[tuple[int, ...], ...], capacity: tuple[int, ...], parts: int
) -> tuple[Fraction, list[list[int]]]:
    """Assign each of the ``parts`` parts of every block to a link, minimising the load of the
    busiest link.

    ``allowed`` lists the links of every block. Returns the time, in parts over the share of the
    fastest link, and for each block the link of every part. Memoised, since all ranks of a regular
    graph have the same arguments.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    fastest, nblocks = max(capacity), len(allowed)
    times = sorted(
        {
            Fraction(load * fastest, rate)
            for rate in capacity
            for load in range(1, nblocks * parts + 1)
        }
    )
    low, high = 0, len(times) - 1
    best: list[list[int]] = []
    sink = nblocks + len(capacity) + 1
    ends = [(0, 1 + i, parts) for i in range(nblocks)]
    ends += [(1 + i, 1 + nblocks + j, parts) for i, links in enumerate(allowed) for j in links]
    while low <= high:
        middle = (low + high) // 2
        # No link carries more than everything, however slow the slowest one is.
        maxima = (min(int(times[middle] * rate / fastest), nblocks * parts) for rate in capacity)
        limits = [(1 + nblocks + j, sink, limit) for j, limit in enumerate(maxima)]
        src, dst, limit = np.array([*ends, *limits]).T
        graph = csr_array((limit.astype(np.int32), (src, dst)), shape=(sink + 1, sink + 1))
        solution = maximum_flow(graph, 0, sink)
        if solution.flow_value == nblocks * parts:
            flow = solution.flow.toarray()
            best = [
                [
                    j
                    for j in range(len(capacity))
                    for _ in range(max(int(flow[1 + i, 1 + nblocks + j]), 0))
                ]
                for i in range(nblocks)
            ]
            high = middle - 1
        else:
            low = middle + 1
    return times[low], best


def _broadcasts(topology: Topology, *directions: bool) -> list[Forest]:
    """The broadcasts along the links, or along reversed links where a direction is true; all with
    the same number of parts.
    """
    graphs = [_neighbours(topology, backwards=backwards) for backwards in directions]
    n = topology.nranks

    def time_of(parts: int) -> Fraction:
        """Time of all steps, evaluated for one rank."""
        steps = (
            (_step(into[0], hops, 0, t)[1], tuple(into[0].values()))
            for into, hops in graphs
            for t in range(1, n)
        )
        return sum((_shares(*step, parts)[0] for step in steps if step[0]), Fraction(0)) / parts

    degree = max((len(sources) for into, _ in graphs for sources in into), default=1)
    parts = min(range(1, 2 * degree + 1), key=lambda parts: (time_of(parts), parts)) if n > 1 else 1
    return [Forest.of(_rows(into, hops, parts), (parts,) * n) for into, hops in graphs]


def _step(
    into: dict[int, int], distance: Ints, rank: int, t: int
) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
    """The ranks at distance t from a rank, and the links into it over which each of their blocks
    may arrive.
    """
    sources = list(into)
    far = np.flatnonzero(distance[:, rank] == t).tolist()
    ways = [
        (tuple(j for j, w in enumerate(sources) if distance[block, w] == t - 1), block)
        for block in far
    ]
    ways.sort()
    return [block for _, block in ways], tuple(links for links, _ in ways)


def _rows(into: list[dict[int, int]], distance: Ints, parts: int) -> Shorts:
    """Source, destination, root, part and level of every transfer: ``[transfers, 5]``."""
    tables = [np.zeros((0, 5), np.int32)]
    for rank, sources in enumerate(into):
        links_in, rows = list(sources), []
        for t in range(1, int(distance.max()) + 1):
            far, allowed = _step(sources, distance, rank, t)
            if not far:
                continue
            _, chosen = _shares(allowed, tuple(sources.values()), parts)
            for block, links in zip(far, chosen, strict=True):
                rows += [(links_in[j], rank, block, part, t - 1) for part, j in enumerate(links)]
        tables.append(np.array(rows, np.int32).reshape(-1, 5))
    return np.concatenate(tables)


@algorithm(
    "all_gather",
    "bfb",
    cost="diameter a + (n-1)/n s b/links",
    machine="torus",
    source=BFB,
    pattern="tree",
    topologies="direct",
)
def all_gather(
    collective: Collective, *, topology: Topology | None = None, pieces: int = 1
) -> Schedule:
    """In step t every rank receives the blocks of the ranks at distance t, in equal shares over its
    links.
    """
    machine = topology_of(collective, topology, "bfb")
    (trees,) = _broadcasts(machine, False)
    return forest.all_gather(collective, "bfb", machine, trees, pieces)


@algorithm(
    "reduce_scatter",
    "bfb",
    cost="diameter a + (n-1)/n s b/links",
    machine="torus",
    source=BFB,
    pattern="tree",
    topologies="direct",
    order="run-consistent",
)
def reduce_scatter(
    collective: Collective, *, topology: Topology | None = None, pieces: int = 1
) -> Schedule:
    """The reversed all-gather: sums advance by one link in every step."""
    machine = topology_of(collective, topology, "bfb")
    (trees,) = _broadcasts(machine, True)
    return forest.reduce_scatter(collective, "bfb", machine, trees.reversal(), pieces)


@algorithm(
    "all_reduce",
    "bfb",
    cost="2 diameter a + 2(n-1)/n s b/links",
    machine="torus",
    source=BFB,
    pattern="tree",
    topologies="direct",
    order="run-consistent",
)
def all_reduce(
    collective: Collective, *, topology: Topology | None = None, pieces: int = 1
) -> Schedule:
    """Reduce-scatter, then all-gather."""
    machine = topology_of(collective, topology, "bfb")
    inward, outward = _broadcasts(machine, True, False)
    return forest.all_reduce(collective, "bfb", machine, inward.reversal(), outward, pieces)
