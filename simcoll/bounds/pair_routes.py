"""Pairs of ranks with the routes of their messages over shared links, and simultaneous fair shares.

On regular topologies these shares suffice; elsewhere :mod:`simcoll.bounds.pair_rates` finds better
ones. They are in floating point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Floats, Ints
from simcoll.bounds.flows import min_cut
from simcoll.core.step import distinct
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from simcoll.topology import Topology


__all__ = [
    "LINKS_LIMIT",
    "TOLERANCE",
    "Pairs",
    "cut_before",
    "fair",
    "leaving",
    "pairs_of",
    "slowest",
]

LINKS_LIMIT = 1024
"""Limit of pairs of ranks for which rates better than fair shares are sought."""
TOLERANCE = 1e-7
GRAIN = 10**8
"""Flows are integer multiples of this fraction of the total."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs of ranks whose messages pass through no other rank.

    Attributes
    ----------
    ends
        ``[2, pairs]``: source and destination ranks.
    links, users
        Every link of every path, and the number of the path's pair, in ascending order of pairs.
    capacity, unit_uBps
        Link capacities, in a common unit.
    """

    nranks: int
    ends: Ints
    links: Ints
    users: Ints
    capacity: Ints
    unit_uBps: int

    @property
    def load(self) -> csr_array:
        """``[links, pairs]``, sparse: 1 if the path of a pair has a link of the topology."""
        from scipy.sparse import csr_array

        shape = (len(self.capacity), self.ends.shape[1])
        return csr_array((np.ones(len(self.links)), (self.links, self.users)), shape=shape)


def pairs_of(topology: Topology) -> Pairs:
    """The pairs of a topology.

    Raises
    ------
    ConfigError
        When ranks are connected only through other ranks, without such a pair.
    """
    n = topology.nranks
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    routes = topology.route(src, dst).links
    ranks = np.zeros(len(topology.node_names), np.bool_)
    ranks[topology.rank_nodes] = True
    used = routes >= 0
    last = np.cumsum(used[:, ::-1], axis=1)[:, ::-1] == 1
    through = (used & ~last & ranks[topology.link_dst[routes]]).any(axis=1)
    direct = np.flatnonzero(used.any(axis=1) & ~through)
    row, column = np.nonzero(used[direct])
    links = routes[direct][row, column].astype(np.int64)
    capacity = np.asarray(topology.link_capacity_uBps, np.int64)
    unit = int(np.gcd.reduce(capacity))
    pairs = Pairs(n, np.stack([src[direct], dst[direct]]), links, row, capacity // unit, unit)
    for a, b in (pairs.ends, pairs.ends[::-1]):
        if len(distinct(b)) < n or not _reach(n, a, b).all():
            raise ConfigError(
                f"topology {topology.name!r}: no trees reach all ranks along the routes of messages"
            )
    return pairs


def _reach(n: int, tail: Ints, head: Ints) -> NDArray[np.bool_]:
    reached: NDArray[np.bool_] = np.arange(n) == 0
    while not reached[head[reached[tail]]].all():
        reached[head[reached[tail]]] = True
    return reached


def fair(pairs: Pairs) -> Floats:
    """Max-min fair shares of all pairs simultaneously."""
    free_capacity, share = pairs.capacity.astype(np.float64), np.zeros(pairs.ends.shape[1])
    waiting = np.ones(len(share), np.bool_)
    links, users = pairs.links, pairs.users

    def on_links(amounts: Array) -> Floats:
        return np.bincount(links, amounts[users], len(free_capacity)).astype(np.float64, copy=False)

    while waiting.any():
        crossings = on_links(waiting)
        level = np.where(crossings > 0, free_capacity / np.maximum(crossings, 1), np.inf)
        full = level <= level.min() * (1 + TOLERANCE)
        fixed_now = waiting & (np.bincount(users, weights=full[links], minlength=len(share)) > 0)
        share[fixed_now] = level.min()
        free_capacity -= on_links(np.where(fixed_now, level.min(), 0.0))
        waiting &= ~fixed_now
    return share


def slowest(
    n: int, ends: Ints, capacity: Floats, weights: Floats, sinks: Sequence[int] | None = None
) -> float:
    """Time in which every rank u sends ``weights[u]`` to all ``sinks`` simultaneously.

    It is the largest weight over capacity of all cuts; ``sinks`` are all ranks by default.
    """
    targets = list(range(n) if sinks is None else sinks)
    entering = np.bincount(ends[1], weights=capacity, minlength=n)
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = float(np.nanmax(((weights.sum() - weights) / entering)[targets]))
    while np.isfinite(worst):
        cuts = (cut_before(n, ends, capacity * worst, weights, sink) for sink in targets)
        sides = [side for flow, side in cuts if flow < 1 - TOLERANCE]
        if not sides:
            break
        ratio = max(
            float(weights[side].sum()) / max(leaving(ends, capacity, side), 1e-300)
            for side in sides
        )
        if ratio <= worst * (1 + TOLERANCE):
            break
        worst = ratio
    return worst


def leaving(ends: Ints, capacity: Floats, side: NDArray[np.bool_]) -> float:
    """Capacity of the pairs from one side of a cut to the other."""
    return float(capacity[side[ends[0]] & ~side[ends[1]]].sum())


def cut_before(
    n: int, ends: Ints, capacity: Floats, weights: Floats, sink: int
) -> tuple[float, NDArray[np.bool_]]:
    """The part of all weights that can flow to a rank, and the source side of the smallest cut."""
    integers = np.rint(np.clip(np.concatenate([capacity, weights]), 0, 2) * GRAIN).astype(np.int64)
    tail = np.concatenate([ends[0], np.full(n, n)])
    head = np.concatenate([ends[1], np.arange(n)])
    flow, source_side, _ = min_cut(n + 1, tail, head, integers, n, sink)
    return flow / GRAIN, source_side[:n]
