"""Bounds by linear programs, with the dual solution as a certificate that is checked in whole numbers.

All-to-all is a multi-commodity flow: every rank sends each other one a block. Any lengths of the links prove a bound: the blocks
together travel at least the sum of all distances, and the links offer at most the sum of capacity times length. The solver only
proposes the lengths; what is claimed is computed from them exactly.

Source: Basu et al.: Efficient all-to-all collective communication schedules for direct-connect topologies, arXiv 2309.13541.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, identity, kron
from scipy.sparse.csgraph import dijkstra

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.bounds.flows import FlowGraph
    from simcoll.topology import Topology

__all__ = ["VARIABLE_LIMIT", "all_to_all_bound", "all_to_all_by_routes", "distance_bound"]

VARIABLE_LIMIT = 8192
"""Sources times links up to which the linear program is solved."""
ROUNDINGS = (1, 2, 6, 12, 60, 840, 10**5)
"""Largest denominators of lengths that are tried; the best wins, and a coarse one is often exactly optimal."""


def all_to_all_bound(graph: FlowGraph) -> Fraction:
    """The least time of an all-to-all of one unit per pair, in units over the unit of capacity: a proved bound, and the optimum where
    the solver's lengths have small denominators.
    """
    lengths = _lengths(graph)
    top = float(lengths.max(initial=0.0))
    if top <= 0:
        return Fraction(0)
    best = Fraction(0)
    for limit in ROUNDINGS:
        exact = [Fraction(float(length) / top).limit_denominator(limit) for length in lengths]
        scale = int(np.lcm.reduce([length.denominator for length in exact], dtype=object))
        best = max(best, distance_bound(graph, np.array([int(length * scale) for length in exact], dtype=object)))
    return best


def distance_bound(graph: FlowGraph, lengths: NDArray[np.object_]) -> Fraction:
    """What lengths of the links (whole numbers, 0 or more) prove: the sum of all distances over the sum of capacity times length."""
    offered = sum(int(b) * int(length) for b, length in zip(graph.capacity.tolist(), lengths.tolist(), strict=True))
    if not offered or max(lengths.tolist()) * graph.nvertices >= 2**53:
        return Fraction(0)
    # Zero would mean no link at all: count in units so fine that 1 more on each link of a path is less than one length.
    fine = graph.nvertices + 1
    weight = lengths.astype(np.float64) * fine + 1
    if float(weight.max()) * graph.nvertices >= 2**53:
        return Fraction(0)
    links = csr_array((weight, (graph.tail, graph.head)), shape=(graph.nvertices, graph.nvertices))
    distance = dijkstra(links, indices=graph.ranks)[:, graph.ranks]
    travelled = sum(int(d) // fine for d in distance.reshape(-1).tolist())
    return Fraction(travelled, offered)


def _lengths(graph: FlowGraph) -> NDArray[np.float64]:
    """Prices of the links in an optimal multi-commodity flow; one commodity for each source."""
    n, links, vertices = graph.nranks, graph.capacity.size, graph.nvertices
    column = np.arange(links)
    ones = np.ones(links)
    balance = csr_array((ones, (graph.head, column)), shape=(vertices, links)) - csr_array(
        (ones, (graph.tail, column)), shape=(vertices, links)
    )
    flows = kron(identity(n), balance)
    wanted = np.zeros((n, vertices))
    wanted[:, graph.ranks] = -1
    wanted[np.arange(n), graph.ranks] = n - 1
    scale = float(graph.capacity.max())
    # Minimise the time t: sum over sources of the flow on a link is at most t times its capacity.
    load = kron(np.ones((1, n)), identity(links))
    rows = csr_array(np.concatenate([load.toarray(), -(graph.capacity / scale)[:, None]], axis=1))
    conserved = csr_array((flows.data, flows.indices, flows.indptr) if flows.format == "csr" else flows.tocsr())
    conserved.resize((n * vertices, n * links + 1))
    cost = np.zeros(n * links + 1)
    cost[-1] = 1
    found = linprog(
        cost,
        A_ub=rows,
        b_ub=np.zeros(links),
        A_eq=conserved,
        b_eq=-wanted.reshape(-1),
        bounds=(0, None),
        method="highs",
    )
    if not found.success:
        return np.zeros(links)
    prices: NDArray[np.float64] = np.maximum(-found.ineqlin.marginals, 0)
    return prices


def all_to_all_by_routes(topology: Topology) -> Fraction:
    """Seconds per byte that every pair sends at once over the routes of messages: what a schedule can do."""
    src, dst = np.nonzero(~np.eye(topology.nranks, dtype=bool))
    links = topology.route(src, dst).links
    load = np.bincount(links[links >= 0], minlength=topology.nlinks)
    used = np.flatnonzero(load)
    pairs = zip(load[used].tolist(), topology.link_capacity_uBps[used].tolist(), strict=True)
    return max((Fraction(count * 10**6, capacity) for count, capacity in pairs), default=Fraction(0))
