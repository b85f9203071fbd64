"""The best simultaneous rates of pairs of ranks over shared links, by linear programs.

For an all-reduce, the program also chooses the share of the vector of which each rank is the root.
Violated cuts are added until none is left. All of this is in floating point: it only proposes, and
:mod:`simcoll.bounds.packing` rounds and counts in integers.

Source: ForestColl, arXiv 2402.06787, for the program; the restriction to the paths of messages
replaces its removal of switches.
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

    The dual solution: ``prices`` of the links, and cuts (``sides[cut, rank]`` marks the sending
    side) with their ``worths``.
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
    n = pairs.nranks
    # Solvers cannot handle numbers with many digits.
    scale = float(max(outward.max(), inward.max()))
    networks = (pairs.ends, outward / scale), (pairs.ends[::-1], inward / scale)

    def row(direction: int, side: NDArray[np.bool_]) -> Floats:
        line = np.zeros(n + 2)
        line[:n] = side
        line[n + direction] = -leaving(*networks[direction], side)
        return line

    def capacities(solution: Floats) -> list[tuple[Ints, Floats]]:
        return [
            (ends, capacity * solution[n + direction])
            for direction, (ends, capacity) in enumerate(networks)
        ]

    cost = np.concatenate([np.zeros(n), np.ones(2)])
    optimum, _ = _solve(n, cost, csr_array((0, n + 2)), row, capacities, None, range(n))
    return float(optimum.fun) / scale, optimum.x[:n]


def best_links(
    pairs: Pairs, ends: Ints, weights: Floats, sinks: Sequence[int], shares: Floats | None = None
) -> BestLinks:
    """The best capacities of the pairs when rank u sends ``weights[u]`` to all ``sinks``.

    ``ends`` are those of the pairs, possibly reversed. Among equally good capacities, those nearest
    to ``shares`` are found much sooner than the solver's own choice, which leaves most pairs unused
    and violates one cut after another.
    """
    n, m, links = pairs.nranks, pairs.ends.shape[1], len(pairs.capacity)

    def row(_: int, side: NDArray[np.bool_]) -> Floats:
        tail, head = ends
        line = np.zeros(n + 1 + m)
        line[:n] = side
        line[n + 1 :] = -1.0 * (side[tail] & ~side[head])
        return line

    scale = float(pairs.capacity.max())
    time_column = csr_array(-pairs.capacity[:, None] / scale)
    rows = csr_array(hstack([csr_array((links, n)), time_column, pairs.load]))
    cost = np.zeros(n + 1 + m)
    cost[n] = 1
    target = None
    if shares is not None:
        target = np.concatenate([np.zeros(n + 1), shares / shares.max()])

    def capacities(solution: Floats) -> list[tuple[Ints, Floats]]:
        return [(ends, solution[n + 1 :])]

    optimum, cuts = _solve(n, cost, rows, row, capacities, weights, sinks, target)
    duals = np.maximum(-optimum.ineqlin.marginals, 0)
    return BestLinks(
        time=optimum.fun / scale,
        capacity=optimum.x[n + 1 :] / optimum.fun * scale,
        prices=duals[:links],
        sides=np.array([side for _, side in cuts]),
        worths=duals[links:],
    )


def best_flow(pairs: Pairs, ends: Ints, weights: Floats, sink: int) -> BestLinks:
    """The same for a single sink: the flow out of every rank is the flow into it plus its own
    weight.

    The dual solution assigns every rank a height; the cuts lie between heights.
    """
    n, m = pairs.nranks, pairs.ends.shape[1]
    scale = float(pairs.capacity.max())
    peers = np.delete(np.arange(n), sink)
    pair, ones = np.arange(m), np.ones(m)
    sent = csr_array((ones, (ends[0], pair)), shape=(n, m))
    leaving = sent - csr_array((ones, (ends[1], pair)), shape=(n, m))
    time_column = csr_array(-pairs.capacity[:, None] / scale)
    solution = linprog(
        np.append(np.zeros(m), 1.0),
        hstack([pairs.load, time_column]).tocsr(),
        np.zeros(len(pairs.capacity)),
        hstack([leaving[peers], csr_array((n - 1, 1))]).tocsr(),
        weights[peers],
        bounds=(0, None),
        method="highs",
    )
    if not solution.success:
        raise InternalError(f"the program of the best flow has no solution: {solution.message}")
    height = np.zeros(n)
    height[peers] = np.maximum(solution.eqlin.marginals, 0)
    steps = np.unique(np.append(height, 0.0))
    return BestLinks(
        time=solution.fun / scale,
        capacity=solution.x[:m] / solution.fun * scale,
        prices=np.maximum(-solution.ineqlin.marginals, 0),
        sides=height[None, :] > steps[:-1, None],
        worths=np.diff(steps),
    )


def pair_prices(pairs: Pairs) -> Floats:
    """The cheapest total prices of links under which no path costs less than 1."""
    capacity = pairs.capacity / pairs.capacity.max()
    solution = linprog(
        capacity,
        -pairs.load.T.tocsr(),
        -np.ones(pairs.ends.shape[1]),
        bounds=(0, None),
        method="highs",
    )
    if not solution.success:
        raise InternalError(
            f"the program of the prices of links has no solution: {solution.message}"
        )
    prices: Floats = solution.x
    return prices


def _solve(
    n: int,
    cost: Floats,
    rows: csr_array,
    row: Callable[[int, NDArray[np.bool_]], Floats],
    capacities: Callable[[Floats], list[tuple[Ints, Floats]]],
    fixed: Floats | None,
    sinks: Sequence[int],
    target: Floats | None = None,
) -> tuple[Any, list[tuple[int, NDArray[np.bool_]]]]:
    """Solve a program whose first variables are the weights of the roots (``fixed``, or free),
    adding violated cuts.

    ``rows`` are at most 0, as is the ``row`` of every cut; ``capacities`` extracts those of a
    solution. Among all solutions, it is the one nearest to the proportions of ``target``. Also
    returns the cuts, in the order of their rows.
    """
    equal = csr_array((np.ones(n), (np.zeros(n, int), np.arange(n))), shape=(1, len(cost)))
    bounds: list[Any] = [(0, None)] * len(cost)
    if fixed is not None:
        bounds[:n] = [(weight, weight) for weight in fixed.tolist()]
    directions = range(len(capacities(cost)))
    cuts = [(direction, side) for direction in directions for side in ~np.eye(n, dtype=bool)[sinks]]
    while True:
        known_cuts = {(direction, side.tobytes()) for direction, side in cuts}
        table = vstack([rows, csr_array(np.array([row(*cut) for cut in cuts]))]).tocsr()
        solution = linprog(
            cost, table, np.zeros(table.shape[0]), equal, np.ones(1), bounds=bounds, method="highs"
        )
        if not solution.success:
            raise InternalError(
                f"the program of the best trees has no solution: {solution.message}"
            )
        if target is not None:
            solution.x = _nearest_solution(cost, solution, table, equal, bounds, target)
        for direction, (ends, capacity) in enumerate(capacities(solution.x)):
            for sink in sinks:
                flow, side = cut_before(n, ends, capacity, solution.x[:n], sink)
                if flow < 1 - 10 * TOLERANCE and (direction, side.tobytes()) not in known_cuts:
                    known_cuts.add((direction, side.tobytes()))
                    cuts.append((direction, side))
        if len(cuts) == table.shape[0] - rows.shape[0]:
            return solution, cuts


def _nearest_solution(
    cost: Floats, optimum: Any, rows: csr_array, equal: csr_array, bounds: list[Any], target: Floats
) -> Floats:
    """Among the solutions of a program (rows at most 0), the one that contains the largest multiple
    of ``target``.
    """
    some = np.flatnonzero(target)
    column = np.arange(len(some))
    excess = csr_array((-np.ones(len(some)), (column, some)), shape=(len(some), len(target)))
    table = vstack(
        [
            hstack([rows, csr_array((rows.shape[0], 1))]),
            hstack([excess, csr_array(target[some][:, None])]),
            csr_array(np.append(cost, 0.0)[None, :]),
        ]
    )
    limits = np.append(np.zeros(table.shape[0] - 1), optimum.fun * (1 + TOLERANCE / 10))
    again = linprog(
        np.append(np.zeros(len(target)), -1.0),
        table.tocsr(),
        limits,
        hstack([equal, csr_array((1, 1))]).tocsr(),
        np.ones(1),
        bounds=[*bounds, (0, None)],
        method="highs",
    )
    solution: Floats = again.x[:-1] if again.success else optimum.x
    return solution
