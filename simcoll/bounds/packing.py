"""Optimal trees: spanning trees out of every rank that together overload no link.

First come the rates that pairs of ranks can have simultaneously and, for an all-reduce, the share
of the vector of which each rank is the root (:mod:`simcoll.bounds.pair_routes`). These are rounded
to integer numbers of trees out of every rank and over each pair, the fewest that come near the
optimum. Then the trees are grown (:mod:`simcoll.bounds.growing`). The ratio is computed from the
trees themselves.

Source: ForestColl (arXiv 2402.06787).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from simcoll.arrays import Floats
from simcoll.bounds.composing import SHAPES, compose, nodes_alike, ratio_of_turns
from simcoll.bounds.cuts import all_gather_cut
from simcoll.bounds.flows import alike_both_ways
from simcoll.bounds.growing import Tree, grow, packs
from simcoll.bounds.pair_rates import best_links, best_weights
from simcoll.bounds.pair_routes import LINKS_LIMIT, Pairs, fair, pairs_of, slowest
from simcoll.errors import ConfigError, InternalError
from simcoll.topology import Topology
from simcoll.units import UBPS_PER_BPS

__all__ = ["Packing", "Tree", "pack_all_reduce", "pack_trees"]

MAX_RANKS = 64
"""Up to this many ranks trees are grown link by link; more ranks must be in equal nodes."""
LOSS = Fraction(101, 100)
"""Permitted ratio of composed trees to the best cut."""
PER_ROOT = (*range(1, 17), 20, 24, 32, 48, 64)
"""Numbers of trees per rank to try if all ranks have the same number."""
IN_ALL = (*range(1, 65), 80, 96, 128, 192, 256, 384, 512)
"""Total numbers of trees to try otherwise."""
EXACT = 1 + 1e-9  # the rates are in floating point: this much more still counts as the optimum
NEAR = (1.002, 1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0)
"""Permitted losses: the fewest trees within the first loss are taken; if there are none, the next
loss applies.
"""


@dataclass(frozen=True, slots=True)
class Packing:
    """Trees that use the links of a topology simultaneously.

    Attributes
    ----------
    trees
        Links point away from the root, even where data flows toward it.
    shares
        Number of tree copies of every rank, to which its part of the data is proportional.
    ratio
        Seconds per byte if ranks have one byte each on average: the best cut's, or slightly more.
    """

    trees: tuple[Tree, ...]
    shares: tuple[int, ...]
    ratio: Fraction


def pack_trees(topology: Topology, *, backwards: bool = False) -> Packing:
    """The same number of trees out of every rank (``backwards``: into every rank).

    Raises
    ------
    ConfigError
        When there are too many ranks for the method, or ranks are connected only by routes through
        other ranks' switches.

    Examples
    --------
    >>> from simcoll.topology import torus
    >>> packing = pack_trees(torus([4], "25 GB/s"))
    >>> packing.shares, packing.ratio * 10**9
    ((2, 2, 2, 2), Fraction(3, 50))
    """
    n = topology.nranks
    if n == 1:
        return Packing((Tree(0, 1, ()),), (1,), Fraction(0))
    return (_composed_trees if n > MAX_RANKS else _equal_trees)(topology, backwards=backwards)


@lru_cache(maxsize=64)
def _equal_trees(topology: Topology, *, backwards: bool) -> Packing:
    """As many trees for every rank; remembered, since schedules of other pieces, in or out of
    place, need the same.
    """
    n, pairs = topology.nranks, pairs_of(topology)
    if backwards and alike_both_ways(topology):
        # Reversed trees load the reversed links equally, unless the routes in the two directions
        # differ.
        outward = pack_trees(topology)
        if _ratio(pairs, outward.trees, outward.shares, backwards=True) == outward.ratio:
            return outward
    capacity, time = _equal(topology, pairs, backwards=backwards)
    for loss, per_root in _tries(PER_ROOT):
        shares = (per_root,) * n
        packing = _fit_trees(
            pairs, capacity, time * per_root * n * loss, shares, backwards=backwards
        )
        if packing is not None:
            return packing
    raise InternalError(f"topology {topology.name!r}: no number of trees fits its links")


def pack_all_reduce(topology: Topology) -> tuple[Packing, Packing]:
    """Trees into every rank and as many out of it, which use the links together.

    Ranks with few links are the roots of more trees, since a root's part need not be sent to it.

    Raises
    ------
    ConfigError
        As :func:`pack_trees`.

    Examples
    --------
    >>> from simcoll.topology import torus
    >>> inward, outward = pack_all_reduce(torus([3], "25 GB/s", wrap=False))
    >>> outward.shares
    (1, 0, 1)
    """
    n = topology.nranks
    if n == 1:
        return pack_trees(topology), pack_trees(topology)
    if n > MAX_RANKS:
        return _composed_trees(topology, backwards=True), _composed_trees(topology, backwards=False)
    return _weighted_trees(topology)


@lru_cache(maxsize=64)
def _weighted_trees(topology: Topology) -> tuple[Packing, Packing]:
    """Trees into and out of every rank, more for ranks with few links; remembered.

    An all-reduce pays twice for a rank's share: it is summed along the trees into the rank and
    broadcast along those out of it. The two directions may use different rates of the pairs of
    ranks, but their shares must be the same, since a root broadcasts exactly what it summed. So the
    search is over three things at once: rates for either direction, and one vector of shares.

    One program over all three is that of :func:`~simcoll.bounds.roots.best_roots`: it has two flows
    for every rank and link, and its flows need not follow the routes of messages. Here the rates
    are fixed first, to one of two candidates, and only the shares are optimised for them
    (:func:`~simcoll.bounds.pair_rates.best_weights`). Rates that are best when all ranks have equal
    shares favour the links into weak ranks, which weighted shares spare; max-min fair rates favour
    nobody. Neither always wins, so both are tried.

    Rates and shares are real numbers, trees are counted. Each try scales both by a number of trees
    and rounds down, so no link is loaded beyond its capacity; what rounding loses is paid for by
    the permitted loss of that try. Hence the order of ``_tries``: few trees with almost no loss
    first, because the data are cut into a piece for every tree. Both directions must succeed with
    the same shares before a try counts.
    """
    n, pairs = topology.nranks, pairs_of(topology)
    equal_rates = tuple(
        _equal(topology, pairs, backwards=backwards)[0] for backwards in (False, True)
    )
    fair_rates = (fair(pairs), fair(pairs))
    candidates = [(best_weights(pairs, *rates), rates) for rates in (fair_rates, equal_rates)]
    (time, weights), (out_rates, in_rates) = min(candidates, key=lambda candidate: candidate[0][0])
    # Weighted roots need many trees for integer shares, so equal ranks are preferred if they cost
    # next to nothing.
    equal_weights = np.full(n, 1 / n)
    equal = time * NEAR[0] >= sum(_times(pairs, out_rates, in_rates, equal_weights))
    out_time, in_time = _times(pairs, out_rates, in_rates, equal_weights if equal else weights)
    for loss, count in _tries(PER_ROOT if equal else IN_ALL):
        shares = (count,) * n if equal else _parts(weights, count)
        scale = sum(shares) * loss
        outward = _fit_trees(pairs, out_rates, out_time * scale, shares, backwards=False)
        if outward is None:
            continue
        # If links are equal in both directions, the same trees serve with data flowing the other
        # way.
        reversed_ratio = _ratio(pairs, outward.trees, shares, backwards=True)
        if reversed_ratio <= outward.ratio:
            return replace(outward, ratio=reversed_ratio), outward
        inward = _fit_trees(pairs, in_rates, in_time * scale, shares, backwards=True)
        if inward is not None:
            return inward, outward
    raise InternalError(f"topology {topology.name!r}: no number of trees fits its links")


def _times(pairs: Pairs, outward: Floats, inward: Floats, weights: Floats) -> tuple[float, float]:
    """Times of one byte outward and inward."""
    n = pairs.nranks
    return slowest(n, pairs.ends, outward, weights), slowest(n, pairs.ends[::-1], inward, weights)


def _composed_trees(topology: Topology, *, backwards: bool) -> Packing:
    """Trees over equal nodes, each continued inside all of them.

    Raises
    ------
    ConfigError
        When nodes are too large, or the trees miss the best cut by more than 1 %.
    """
    nodes = nodes_alike(topology)
    refused = (
        f"packing trees serves up to {MAX_RANKS} ranks, or more in nodes that are alike; topology "
        f"{topology.name!r} "
        f"has {topology.nranks}"
    )
    if nodes.shape[1] > MAX_RANKS:
        raise ConfigError(f"{refused} in nodes of {nodes.shape[1]}")
    best = all_gather_cut(topology, backwards=backwards).ratio
    inner = pack_trees(topology.with_ranks(nodes[0]), backwards=backwards)
    for shape in SHAPES:
        parents = shape(len(nodes))
        ratio = ratio_of_turns(topology, nodes, inner.trees, parents, backwards=backwards)
        if ratio is not None and ratio <= best * LOSS:
            shares = (inner.shares[0],) * topology.nranks
            return Packing(compose(nodes, inner.trees, parents), shares, ratio)
    raise ConfigError(
        f"{refused} that the same trees in all nodes do not serve within 1 % of the bound"
    )


def _tries(counts: Sequence[int]) -> list[tuple[float, int]]:
    """Permitted losses and numbers of trees to try: the fewest trees first, then more trees or a
    larger loss.
    """
    few = [count for count in counts if count <= len(counts) * 3 // 4]
    exact = [(EXACT, count) for count in few if count <= 16] + [(NEAR[0], count) for count in few]
    return exact + [(loss, count) for loss in NEAR for count in counts]


def _parts(weights: Floats, total: int) -> tuple[int, ...]:
    """Integers that add up to ``total`` by largest remainders; ties go to the lower rank."""
    exact = np.maximum(weights, 0) * total
    # The solver may be a little below a whole number.
    floors = np.floor(exact + 1e-6).astype(np.int64)
    # Rounded, so that noise does not choose between equal remainders.
    rounded_up = np.argsort(-np.round(exact - floors, 6), kind="stable")[
        : max(total - int(floors.sum()), 0)
    ]
    floors[rounded_up] += 1
    return tuple(floors.tolist())


def _equal(topology: Topology, pairs: Pairs, *, backwards: bool) -> tuple[Floats, float]:
    """Capacities of the pairs for equal ranks, and the time in which they gather one byte, in the
    unit of the pairs.
    """
    n, ends = pairs.nranks, pairs.ends[::-1] if backwards else pairs.ends
    shares, weights = fair(pairs), np.full(pairs.nranks, 1 / pairs.nranks)
    time = slowest(n, ends, shares, weights)
    best = (
        float(all_gather_cut(topology, backwards=backwards).ratio)
        / n
        * pairs.unit_uBps
        / UBPS_PER_BPS
    )
    if time > best * NEAR[0] and ends.shape[1] <= LINKS_LIMIT:
        chosen = best_links(pairs, ends, weights, range(n))
        if chosen.time < time / NEAR[0]:
            return chosen.capacity, chosen.time
    return shares, time


def _fit_trees(
    pairs: Pairs, capacity: Floats, scale: float, shares: tuple[int, ...], *, backwards: bool
) -> Packing | None:
    """Trees over integer capacities of at most ``scale`` times those of the links; None if there
    are none.
    """
    ends = pairs.ends[::-1] if backwards else pairs.ends
    # Rounding down overloads no link, but with few trees the loss is large, so the remainder is
    # redistributed once.
    widths = np.floor(capacity * scale + 1e-6).astype(np.int64)
    if not packs(ends, widths, shares):
        # Capacity left over by rounding goes to as many pairs as possible.
        spare = np.floor(pairs.capacity * scale + 1e-6) - pairs.load @ widths
        used = pairs.load.sum(axis=1) > 0
        extra = milp(
            -np.ones(len(widths)),
            integrality=np.ones(len(widths)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(
                pairs.load[np.flatnonzero(used)], ub=np.maximum(spare[used], 0)
            ),
        )
        if extra.x is None:
            return None
        widths += np.rint(extra.x).astype(np.int64)
        if not packs(ends, widths, shares):
            return None
    trees = grow(ends, widths, shares)
    return Packing(trees, shares, _ratio(pairs, trees, shares, backwards=backwards))


def _ratio(
    pairs: Pairs, trees: tuple[Tree, ...], shares: tuple[int, ...], *, backwards: bool
) -> Fraction:
    """Time of the most loaded link of the topology; practically infinite if trees use pairs without
    a route.
    """
    copies = np.zeros((pairs.nranks, pairs.nranks), np.int64)
    for tree in trees:
        for link in tree.links:
            copies[link] += tree.copies
    if backwards:
        copies = copies.T
    used = copies[pairs.ends[0], pairs.ends[1]]
    if used.sum() < copies.sum():
        return Fraction(2**62)
    load = (pairs.load @ used).astype(np.int64)
    links = zip(load.tolist(), pairs.capacity.tolist(), strict=True)
    worst = max(Fraction(copies_on, capacity) for copies_on, capacity in links if copies_on)
    return worst * pairs.nranks / sum(shares) / pairs.unit_uBps * UBPS_PER_BPS
