"""The best simultaneous rates of pairs of ranks over shared links, by linear programs.

For an all-reduce, the program also chooses the share of the vector of which each rank is the root. Violated cuts are added until
none is left. All of this is in floating point: it only proposes, and :mod:`simcoll.bounds.packing` rounds and counts in integers.

Source: ForestColl, arXiv 2402.06787, for the program; the restriction to the paths of messages replaces its removal of switches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, vstack

from simcoll.arrays import Floats, Ints
from simcoll.bounds.pair_routes import TOLERANCE, Pairs, cut_before, leaving
from simcoll.errors import InternalError

__all__ = ["BestLinks", "best_flow", "best_links", "best_weights", "pair_prices"]


@dataclass(frozen=True, slots=True, eq=False)
class BestLinks:
    """The least time to send one byte in total, and pair capacities that allow it.

    The dual solution: ``prices`` of the links, and cuts (``sides[cut, rank]`` marks the sending side) with their ``worths``.
    """

    time: float
    capacity: Floats
    prices: Floats
    sides: NDArray[np.bool_]
    worths: Floats


def best_weights(pairs: Pairs, outward: Floats, inward: Floats) -> tuple[float, Floats]:
    """Least time of an all-reduce of one byte, and each rank's share of it as a root.

    The capacities of the pairs are given; they are used first inward and then outward.
    """
    n, scale = pairs.nranks, float(max(outward.max(), inward.max()))  # solvers cannot handle numbers with many digits
    given = (pairs.ends, outward / scale), (pairs.ends[::-1], inward / scale)

    def row(way: int, side: NDArray[np.bool_]) -> Floats:
        line = np.zeros(n + 2)
        line[:n] = side
        line[n + way] = -leaving(*given[way], side)
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

    ``ends`` are those of the pairs, possibly reversed. Among equally good capacities, those nearest to ``shares`` are found much sooner
    than the solver's own choice, which leaves most pairs unused and violates one cut after another.
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
    """The same for a single sink: the flow out of every rank is the flow into it plus its own weight.

    The dual solution assigns every rank a height; the cuts lie between heights.
    """
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
    """The cheapest total prices of links under which no path costs less than 1."""
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
    """Solve a program whose first variables are the weights of the roots (``fixed``, or free), adding violated cuts.

    ``rows`` are at most 0, as is the ``row`` of every cut; ``capacities`` extracts those of a solution. Among all solutions, it is the one
    nearest to the proportions of ``near``. Also returns the cuts, in the order of their rows.
    """
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
                flow, side = cut_before(n, ends, capacity, found.x[:n], sink)
                if flow < 1 - 10 * TOLERANCE and (way, side.tobytes()) not in known:
                    known.add((way, side.tobytes()))
                    cuts.append((way, side))
        if len(cuts) == table.shape[0] - rows.shape[0]:
            return found, cuts


def _levelled(cost: Floats, found: Any, rows: csr_array, equal: csr_array, bounds: list[Any], near: Floats) -> Floats:
    """Among the solutions of a program (rows at most 0), the one that contains the largest multiple of ``near``."""
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
