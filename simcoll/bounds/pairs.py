"""Rates that pairs of ranks can have at once, each on the one route of its messages, over shared links.

On regular machines max-min fair shares suffice. Otherwise a linear program chooses them, and for an all-reduce also the share of
the vector that each rank is the root of. Cuts that are violated are added to the program until there is none. All of this is in floating
point: it only proposes, and :mod:`simcoll.bounds.packing` rounds and counts in whole numbers.

Source: ForestColl, arXiv 2402.06787, for the program; the restriction to the paths of messages replaces its removal of switches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array, hstack, vstack

from simcoll.bounds.flows import min_cut
from simcoll.errors import ConfigError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from simcoll.topology import Topology

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = [
    "LINKS_LIMIT",
    "TOLERANCE",
    "BestLinks",
    "Pairs",
    "best_flow",
    "best_links",
    "best_weights",
    "fair",
    "pair_prices",
    "pairs_of",
    "slowest",
]

LINKS_LIMIT = 1024
"""Most pairs of ranks for which :func:`best_links` is used."""
TOLERANCE = 1e-7
GRAIN = 10**8
"""Flows are whole multiples of this fraction of the total."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs of ranks whose messages pass no other rank.

    Attributes
    ----------
    ends
        ``[2, pairs]``: from which rank, to which.
    load
        ``[links, pairs]``, sparse: 1 where the path of a pair has a link of the topology.
    capacity, unit_uBps
        Of the links, in a common unit.
    """

    nranks: int
    ends: Ints
    load: csr_array
    capacity: Ints
    unit_uBps: int


@dataclass(frozen=True, slots=True, eq=False)
class BestLinks:
    """The least time to send one byte in total, and the capacities of pairs that allow it.

    The dual solution: ``prices`` of the links, and cuts (``sides[cut, rank]``, those that send) with their ``worths``.
    """

    time: float
    capacity: Floats
    prices: Floats
    sides: NDArray[np.bool_]
    worths: Floats


def pairs_of(topology: Topology) -> Pairs:
    """The pairs of a topology.

    Raises
    ------
    ConfigError
        When ranks are connected only by paths through ranks that have no such pair.
    """
    n = topology.nranks
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    routes = topology.route(src, dst).links
    ranks = np.zeros(len(topology.node_names), np.bool_)
    ranks[topology.rank_nodes] = True
    used = routes >= 0
    last = np.cumsum(used[:, ::-1], axis=1)[:, ::-1] == 1
    through = (used & ~last & ranks[topology.link_dst[routes]]).any(axis=1)
    kept = np.flatnonzero(used.any(axis=1) & ~through)
    row, column = np.nonzero(used[kept])
    links = routes[kept][row, column]
    load = csr_array((np.ones(len(row)), (links, row)), shape=(topology.nlinks, len(kept)))
    capacity = np.asarray(topology.link_capacity_uBps, np.int64)
    unit = int(np.gcd.reduce(capacity))
    found = Pairs(n, np.stack([src[kept], dst[kept]]), load, capacity // unit, unit)
    for a, b in (found.ends, found.ends[::-1]):
        if len(np.unique(b)) < n or not _reached(n, a, b).all():
            raise ConfigError(f"topology {topology.name!r}: no trees reach all ranks along the routes of messages")
    return found


def _reached(n: int, tail: Ints, head: Ints) -> NDArray[np.bool_]:
    from scipy.sparse.csgraph import breadth_first_order

    graph = csr_array((np.ones(len(tail)), (tail, head)), shape=(n, n))
    inside = np.zeros(n, np.bool_)
    inside[breadth_first_order(graph, 0, return_predecessors=False)] = True
    return inside


def fair(pairs: Pairs) -> Floats:
    """Max-min fair shares of all pairs at once."""
    left, share = pairs.capacity.astype(np.float64), np.zeros(pairs.ends.shape[1])
    waiting = np.ones(len(share), np.bool_)
    while waiting.any():
        users = pairs.load @ waiting.astype(np.float64)
        level = np.where(users > 0, left / np.maximum(users, 1), np.inf)
        full = level <= level.min() * (1 + TOLERANCE)
        here = waiting & (full.astype(np.float64) @ pairs.load > 0)
        share[here] = level.min()
        left -= pairs.load @ np.where(here, level.min(), 0.0)
        waiting &= ~here
    return share


def slowest(n: int, ends: Ints, capacity: Floats, weights: Floats, sinks: Sequence[int] | None = None) -> float:
    """Time in which every rank u sends ``weights[u]`` to all ``sinks`` at once.

    It is the largest weight over capacity of all cuts; ``sinks`` are all ranks by default.
    """
    wanted = list(range(n) if sinks is None else sinks)
    entering = np.bincount(ends[1], weights=capacity, minlength=n)
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = float(np.nanmax(((weights.sum() - weights) / entering)[wanted]))
    while np.isfinite(worst):
        cuts = (_cut(n, ends, capacity * worst, weights, sink) for sink in wanted)
        sides = [side for flow, side in cuts if flow < 1 - TOLERANCE]
        if not sides:
            break
        found = max(float(weights[side].sum()) / max(_leaving(ends, capacity, side), 1e-300) for side in sides)
        if found <= worst * (1 + TOLERANCE):
            break
        worst = found
    return worst


def _leaving(ends: Ints, capacity: Floats, side: NDArray[np.bool_]) -> float:
    return float(capacity[side[ends[0]] & ~side[ends[1]]].sum())


def _cut(n: int, ends: Ints, capacity: Floats, weights: Floats, sink: int) -> tuple[float, NDArray[np.bool_]]:
    """The part of all weights that can flow to a rank, and the ranks before the smallest cut."""
    whole = np.rint(np.clip(np.concatenate([capacity, weights]), 0, 2) * GRAIN).astype(np.int64)
    tail = np.concatenate([ends[0], np.full(n, n)])
    head = np.concatenate([ends[1], np.arange(n)])
    flow, inside, _ = min_cut(n + 1, tail, head, whole, n, sink)
    return flow / GRAIN, inside[:n]


def best_weights(pairs: Pairs, outward: Floats, inward: Floats) -> tuple[float, Floats]:
    """Least time of an all-reduce of one byte, and each rank's share of it as a root.

    The capacities of the pairs are given; they are used first inward and then outward.
    """
    n, scale = pairs.nranks, float(max(outward.max(), inward.max()))  # solvers do not take numbers with many digits
    given = (pairs.ends, outward / scale), (pairs.ends[::-1], inward / scale)

    def row(way: int, side: NDArray[np.bool_]) -> Floats:
        line = np.zeros(n + 2)
        line[:n] = side
        line[n + way] = -_leaving(*given[way], side)
        return line

    def capacities(solution: Floats) -> list[tuple[Ints, Floats]]:
        return [(ends, capacity * solution[n + way]) for way, (ends, capacity) in enumerate(given)]

    cost = np.concatenate([np.zeros(n), np.ones(2)])
    found, _ = _solved(n, cost, csr_array((0, n + 2)), row, capacities, None, range(n))
    return float(found.fun) / scale, found.x[:n]


def best_links(
    pairs: Pairs, ends: Ints, weights: Floats, sinks: Sequence[int], shares: Floats | None = None
) -> BestLinks:
    """The best capacities of the pairs when rank u sends ``weights[u]`` to all ``sinks``.

    ``ends`` are those of the pairs, or reversed. Of equally good capacities those nearest to ``shares`` are found much sooner than those
    that the solver comes upon, which leave most pairs unused and violate cut after cut.
    """
    n, m, links = pairs.nranks, pairs.ends.shape[1], len(pairs.capacity)

    def row(_: int, side: NDArray[np.bool_]) -> Floats:
        line, (tail, head) = np.zeros(n + 1 + m), ends
        line[:n] = side
        line[n + 1 :] = -1.0 * (side[tail] & ~side[head])
        return line

    scale = float(pairs.capacity.max())
    rows = csr_array(hstack([csr_array((links, n)), csr_array(-pairs.capacity[:, None] / scale), pairs.load]))
    cost = np.zeros(n + 1 + m)
    cost[n] = 1
    near = None if shares is None else np.concatenate([np.zeros(n + 1), shares / shares.max()])
    found, cuts = _solved(n, cost, rows, row, lambda found: [(ends, found[n + 1 :])], weights, sinks, near)
    duals = np.maximum(-found.ineqlin.marginals, 0)
    return BestLinks(
        time=found.fun / scale,
        capacity=found.x[n + 1 :] / found.fun * scale,
        prices=duals[:links],
        sides=np.array([side for _, side in cuts]),
        worths=duals[links:],
    )


def best_flow(pairs: Pairs, ends: Ints, weights: Floats, sink: int) -> BestLinks:
    """The same for a single sink: what leaves every rank on its pairs is what enters it and its own.

    The dual solution gives every rank a height, and the cuts are between heights.
    """
    from scipy.optimize import linprog

    n, m = pairs.nranks, pairs.ends.shape[1]
    scale, others = float(pairs.capacity.max()), np.delete(np.arange(n), sink)
    pair = np.arange(m)
    leaving = csr_array((np.ones(m), (ends[0], pair)), shape=(n, m)) - csr_array(
        (np.ones(m), (ends[1], pair)), shape=(n, m)
    )
    found = linprog(
        np.append(np.zeros(m), 1.0),
        hstack([pairs.load, csr_array(-pairs.capacity[:, None] / scale)]).tocsr(),
        np.zeros(len(pairs.capacity)),
        hstack([leaving[others], csr_array((n - 1, 1))]).tocsr(),
        weights[others],
        bounds=(0, None),
        method="highs",
    )
    if not found.success:
        raise InternalError(f"the program of the best flow has no solution: {found.message}")
    height = np.zeros(n)
    height[others] = np.maximum(found.eqlin.marginals, 0)
    steps = np.unique(np.append(height, 0.0))
    return BestLinks(
        time=found.fun / scale,
        capacity=found.x[:m] / found.fun * scale,
        prices=np.maximum(-found.ineqlin.marginals, 0),
        sides=height[None, :] > steps[:-1, None],
        worths=np.diff(steps),
    )


def pair_prices(pairs: Pairs) -> Floats:
    """The cheapest prices of all links together for which no path is cheaper than 1."""
    from scipy.optimize import linprog

    capacity = pairs.capacity / pairs.capacity.max()
    found = linprog(capacity, -pairs.load.T.tocsr(), -np.ones(pairs.ends.shape[1]), bounds=(0, None), method="highs")
    if not found.success:
        raise InternalError(f"the program of the prices of links has no solution: {found.message}")
    prices: Floats = found.x
    return prices


def _solved(
    n: int,
    cost: Floats,
    rows: csr_array,
    row: Callable[[int, NDArray[np.bool_]], Floats],
    capacities: Callable[[Floats], list[tuple[Ints, Floats]]],
    fixed: Floats | None,
    sinks: Sequence[int],
    near: Floats | None = None,
) -> tuple[Any, list[tuple[int, NDArray[np.bool_]]]]:
    """Solve a program whose first variables are the weights of the roots (``fixed``, or free), adding the cuts that its solution violates.

    ``rows`` are at most 0, and so is the ``row`` of every cut; ``capacities`` are those of a solution. Of all solutions it is the one
    that comes nearest to the proportions of ``near``. Also returns the cuts, in the order of their rows.
    """
    from scipy.optimize import linprog

    equal = csr_array((np.ones(n), (np.zeros(n, int), np.arange(n))), shape=(1, len(cost)))
    weights = [(0, None)] * n if fixed is None else [(weight, weight) for weight in fixed.tolist()]
    bounds = weights + [(0, None)] * (len(cost) - n)
    cuts = [(way, side) for way in range(len(capacities(cost))) for side in ~np.eye(n, dtype=bool)[sinks]]
    while True:
        known = {(way, side.tobytes()) for way, side in cuts}
        table = vstack([rows, csr_array(np.array([row(*cut) for cut in cuts]))]).tocsr()
        found = linprog(cost, table, np.zeros(table.shape[0]), equal, np.ones(1), bounds=bounds, method="highs")
        if not found.success:
            raise InternalError(f"the program of the best trees has no solution: {found.message}")
        if near is not None:
            found.x = _levelled(cost, found, table, equal, bounds, near)
        for way, (ends, capacity) in enumerate(capacities(found.x)):
            for sink in sinks:
                flow, side = _cut(n, ends, capacity, found.x[:n], sink)
                if flow < 1 - 10 * TOLERANCE and (way, side.tobytes()) not in known:
                    known.add((way, side.tobytes()))
                    cuts.append((way, side))
        if len(cuts) == table.shape[0] - rows.shape[0]:
            return found, cuts


def _levelled(cost: Floats, found: Any, rows: csr_array, equal: csr_array, bounds: list[Any], near: Floats) -> Floats:
    """Of the solutions of a program (rows at most 0) the one with the largest multiple of ``near`` in it."""
    from scipy.optimize import linprog

    some = np.flatnonzero(near)
    kept = csr_array((-np.ones(len(some)), (np.arange(len(some)), some)), shape=(len(some), len(near)))
    table = vstack(
        [
            hstack([rows, csr_array((rows.shape[0], 1))]),
            hstack([kept, csr_array(near[some][:, None])]),
            csr_array(np.append(cost, 0.0)[None, :]),
        ]
    )
    most = np.append(np.zeros(table.shape[0] - 1), found.fun * (1 + TOLERANCE / 10))
    again = linprog(
        np.append(np.zeros(len(near)), -1.0),
        table.tocsr(),
        most,
        hstack([equal, csr_array((1, 1))]).tocsr(),
        np.ones(1),
        bounds=[*bounds, (0, None)],
        method="highs",
    )
    solution: Floats = again.x[:-1] if again.success else found.x
    return solution
