"""Bounds by linear programs, with the dual solution as a certificate that is checked in integers.

All-to-all is a multi-commodity flow: every rank sends each other rank a block. Any lengths of the
links prove a bound: the blocks together travel at least the sum of all distances, and the links
offer at most the sum of capacity times length. The solver only proposes the lengths; the claim is
computed from them exactly.

Similarly, prices of links bound the rates that the routes of messages can carry simultaneously.

Source: Basu et al.: Efficient all-to-all collective communication schedules for direct-connect
topologies, arXiv 2309.13541.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Floats, Ints
from simcoll.bounds.flows import FlowGraph
from simcoll.bounds.pair_routes import LINKS_LIMIT, TOLERANCE, Pairs, fair, pairs_of, slowest
from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import ConfigError
from simcoll.units import UBPS_PER_BPS

if TYPE_CHECKING:
    from simcoll.bounds.pair_rates import BestLinks
    from simcoll.topology import Topology

__all__ = [
    "VARIABLE_LIMIT",
    "all_to_all_bound",
    "all_to_all_by_routes",
    "distance_bound",
    "rooted_bound",
    "rooted_by_routes",
    "routed_bound",
]

VARIABLE_LIMIT = 8192
"""Limit of sources times links for solving the linear program."""
ROUNDINGS = (1, 2, 6, 12, 60, 840, 10**5)
"""Largest denominators of lengths to try; the best wins, and a coarse one is often exactly
optimal.
"""


def all_to_all_bound(graph: FlowGraph) -> Fraction:
    """A proved lower bound on the time of an all-to-all of one unit per pair.

    In units over the unit of capacity; it is the optimum if the solver's lengths have small
    denominators.
    """
    lengths = _lengths(graph)
    top = float(lengths.max(initial=0.0))
    if top <= 0:
        return Fraction(0)
    return max(distance_bound(graph, prices) for prices in _integers_near(lengths, top))


def _integers_near(values: Floats, top: float) -> Iterator[NDArray[np.object_]]:
    """Integers nearly proportional to some values, the largest of which is ``top``; coarse ones
    first.
    """
    for limit in ROUNDINGS:
        exact = [Fraction(float(value) / top).limit_denominator(limit) for value in values]
        scale = int(np.lcm.reduce([value.denominator for value in exact], dtype=object))
        yield np.array([int(value * scale) for value in exact], dtype=object)


def distance_bound(graph: FlowGraph, lengths: NDArray[np.object_]) -> Fraction:
    """The bound by link lengths (integers, 0 or more): the sum of all distances over that of
    capacity times length.
    """
    offered = sum(
        int(b) * int(length)
        for b, length in zip(graph.capacity.tolist(), lengths.tolist(), strict=True)
    )
    if not offered or max(lengths.tolist()) * graph.nvertices >= 2**53:
        return Fraction(0)
    # Zero would mean no link at all: use units so fine that 1 more on each link of a path is less
    # than one length.
    fine = graph.nvertices + 1
    weight = lengths.astype(np.float64) * fine + 1
    if float(weight.max()) * graph.nvertices >= 2**53:
        return Fraction(0)
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    links = csr_array((weight, (graph.tail, graph.head)), shape=(graph.nvertices, graph.nvertices))
    distance = dijkstra(links, indices=graph.ranks)[:, graph.ranks]
    travelled = sum(int(d) // fine for d in distance.reshape(-1).tolist())
    return Fraction(travelled, offered)


def _lengths(graph: FlowGraph) -> Floats:
    """Prices of the links in an optimal multi-commodity flow, with one commodity per source."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, identity, kron

    n, links, vertices = graph.nranks, graph.capacity.size, graph.nvertices
    column = np.arange(links)
    ones = np.ones(links)
    balance = csr_array((ones, (graph.head, column)), shape=(vertices, links)) - csr_array(
        (ones, (graph.tail, column)), shape=(vertices, links)
    )
    flows = kron(identity(n), balance)
    supply = np.zeros((n, vertices))
    supply[:, graph.ranks] = -1
    supply[np.arange(n), graph.ranks] = n - 1
    scale = float(graph.capacity.max())
    # Minimise the time t: the flow on a link, summed over sources, is at most t times its capacity.
    load = kron(np.ones((1, n)), identity(links))
    rows = csr_array(
        np.concatenate(
            [load.toarray(), -(graph.capacity.astype(np.float64) / scale)[:, None]], axis=1
        )
    )
    conserved = csr_array(
        (flows.data, flows.indices, flows.indptr) if flows.format == "csr" else flows.tocsr()
    )
    conserved.resize((n * vertices, n * links + 1))
    cost = np.zeros(n * links + 1)
    cost[-1] = 1
    solution = linprog(
        cost,
        A_ub=rows,
        b_ub=np.zeros(links),
        A_eq=conserved,
        b_eq=-supply.reshape(-1),
        bounds=(0, None),
        method="highs",
    )
    if not solution.success:
        return np.zeros(links)
    prices: Floats = np.maximum(-solution.ineqlin.marginals, 0)
    return prices


def all_to_all_by_routes(topology: Topology) -> Fraction:
    """Seconds per byte if all pairs send simultaneously over their routes: a time that a schedule
    can reach.
    """
    return _sent_at_once(topology, *np.nonzero(~np.eye(topology.nranks, dtype=bool)))


def rooted_by_routes(kind: CollectiveKind, topology: Topology, root: int) -> Fraction:
    """Seconds per byte of a simple schedule: shares sent directly, or everything along a chain of
    ranks in pieces.
    """
    n = topology.nranks
    if kind in ("scatter", "gather"):
        peers = np.delete(np.arange(n), root)
        src, dst, per_message = np.full(n - 1, root), peers, Fraction(1, n)
    else:
        chain = (root + np.arange(n)) % n
        src, dst, per_message = chain[:-1], chain[1:], Fraction(1)
    if kind in ("reduce", "gather"):
        src, dst = dst, src
    return _sent_at_once(topology, src, dst) * per_message


def _sent_at_once(topology: Topology, src: Ints, dst: Ints) -> Fraction:
    """Seconds per byte on the slowest link if every source sends to its destination
    simultaneously.
    """
    links = topology.route(src, dst).links
    load = np.bincount(links[links >= 0], minlength=topology.nlinks)
    used = np.flatnonzero(load)
    pairs = zip(load[used].tolist(), topology.link_capacity_uBps[used].tolist(), strict=True)
    return max(
        (Fraction(count * 10**6, capacity) for count, capacity in pairs), default=Fraction(0)
    )


def routed_bound(kind: CollectiveKind, topology: Topology, worth: Fraction) -> Fraction:
    """The bound by routes for an all_gather, reduce_scatter or all_reduce, in seconds per byte.

    0 if it is known not to exceed ``worth``.

    A message uses all links of its route, even if others are free. Prices of links prove a bound if
    each route costs at least the weight of its pair: then the available capacity must pay for all
    weighted crossings. In an all-reduce every pair has the same weight, since only the number of
    crossings is known; in an all-gather the pairs that cross some weighted cuts count.
    """
    try:
        pairs = pairs_of(topology)
    except ConfigError:
        return Fraction(0)
    n, capacity = topology.nranks, fair(pairs)
    seconds = Fraction(UBPS_PER_BPS, pairs.unit_uBps)
    known_time = float(worth / seconds) * (1 + TOLERANCE)
    if kind == "all_reduce":
        if 2 * (n - 1) <= known_time * capacity.sum():
            return Fraction(0)
        from simcoll.bounds.pair_rates import pair_prices

        every_pair = np.ones((1, n, n))
        per_crossing = _bound_by_prices(topology, pairs, pair_prices(pairs), every_pair, np.ones(1))
        return 2 * (n - 1) * seconds * per_crossing
    backwards = kind == "reduce_scatter"
    ends = pairs.ends[::-1] if backwards else pairs.ends
    # If fair shares bring every rank its data in time, there is rarely more to prove, and a program
    # is expensive.
    entering = np.bincount(ends[1], weights=capacity, minlength=n).min()
    if (n - 1) / n <= known_time * entering or ends.shape[1] > LINKS_LIMIT:
        return Fraction(0)
    from simcoll.bounds.pair_rates import best_links

    links = best_links(pairs, ends, np.full(n, 1 / n), range(n), capacity)
    return (
        seconds * _by_cuts(topology, pairs, links, links.sides.sum(axis=1), backwards=backwards) / n
    )


def rooted_bound(
    kind: CollectiveKind, topology: Topology, root: int, worth: Fraction
) -> tuple[Fraction, bool]:
    """The bound by routes for a collective with a root, and whether a schedule reaches it.

    As in :func:`routed_bound` it is 0 if it does not exceed ``worth``; then the schedule must reach
    ``worth``.
    """
    try:
        pairs = pairs_of(topology)
    except ConfigError:
        return Fraction(0), False
    n = topology.nranks
    # A scatter is a reversed gather, a reduce a reversed broadcast: data from the root to all, or
    # from all to the root.
    backwards, gathers = kind in ("reduce", "scatter"), kind in ("gather", "scatter")
    ends = pairs.ends[::-1] if backwards else pairs.ends
    weights = np.full(n, 1 / n) if gathers else np.eye(n)[root]
    sinks = [root] if gathers else np.delete(np.arange(n), root).tolist()
    seconds = Fraction(UBPS_PER_BPS, pairs.unit_uBps)
    known_time = float(worth / seconds) * (1 + TOLERANCE)
    shares = fair(pairs)
    if slowest(n, ends, shares, weights, sinks) <= known_time:
        return Fraction(0), True
    if ends.shape[1] > LINKS_LIMIT:
        return Fraction(0), False
    from simcoll.bounds.pair_rates import best_flow, best_links

    links = (
        best_flow(pairs, ends, weights, root)
        if gathers
        else best_links(pairs, ends, weights, sinks, shares)
    )
    if links.time <= known_time:
        return Fraction(0), True
    gain = links.sides.sum(axis=1) if gathers else links.sides[:, root]
    proved = _by_cuts(topology, pairs, links, gain, backwards=backwards) / (n if gathers else 1)
    return seconds * proved, links.time <= max(float(proved) * (1 + TOLERANCE), known_time)


def _by_cuts(
    topology: Topology, pairs: Pairs, links: BestLinks, gain: Array, *, backwards: bool
) -> Fraction:
    """The bound by prices of links and worths of cuts, in units of the pairs; ``gain``: the data
    that must cross each cut.
    """
    crossed = links.sides[:, :, None] & ~links.sides[:, None, :]
    if backwards:
        crossed = crossed.swapaxes(1, 2)
    return _bound_by_prices(topology, pairs, links.prices, crossed, links.worths, gain)


def _bound_by_prices(
    topology: Topology,
    pairs: Pairs,
    prices: Floats,
    crossed: Array,
    worths: Floats,
    gain: Array | None = None,
) -> Fraction:
    """The bound of given prices, computed exactly.

    It is the gain of all cuts, each times its worth, over the price of all capacity, provided that
    no pair of ranks is worth more than its route costs. ``crossed[cut, a, b]``: whether a pair
    crosses a cut; without ``gain`` that is 1.
    """
    n = topology.nranks
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    routes = topology.route(src, dst).links
    best = Fraction(0)
    for integers in _integers_near(np.concatenate([prices, worths]), float(prices.max())):
        price, worth = integers[: len(prices)], integers[len(prices) :]
        cost = np.where(routes >= 0, price[routes], 0).sum(axis=1)
        worths_crossed = (crossed[:, src, dst] * worth[:, None]).sum(axis=0)
        cheapest = min(
            (Fraction(int(c), int(w)) for c, w in zip(cost, worths_crossed, strict=True) if w),
            default=Fraction(0),
        )
        offered = int((pairs.capacity.astype(object) * price).sum())
        total = int((worth if gain is None else worth * gain).sum())
        best = max(best, cheapest * Fraction(total, offered or 1))
    return best
