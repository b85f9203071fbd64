"""Spanning trees that share integer capacities: a given number out of every rank, grown link by
link.

A source feeds every rank as many trees as start there; all trees are then trees out of the source,
and by Edmonds' theorem they exist if every rank can receive all of them. Trees are grown one after
the other, each in as many equal copies as possible: a link may be taken while the remaining
capacity still brings all other trees to every rank (Lovász's proof), which a maximum flow decides.

Sources: Edmonds: Edge-disjoint branchings (1973); Lovász: On two minimax theorems in graph theory,
J. Combin. Theory B 21 (1976).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from simcoll.arrays import Ints
from simcoll.errors import InternalError

__all__ = ["Tree", "grow", "packs"]


@dataclass(frozen=True, slots=True)
class Tree:
    """``copies`` equal spanning trees out of a rank: links ``(from, to)``, each starting at a rank
    already reached.
    """

    root: int
    copies: int
    links: tuple[tuple[int, int], ...]


class _RemainingCapacity:
    """The remaining capacities. Vertex ``n`` is the source of all trees."""

    def __init__(self, ends: Ints, capacity: Ints, shares: Sequence[int]) -> None:
        self.n = n = len(shares)
        self.total = int(sum(shares))
        capacities = np.zeros((n + 1, n + 1), np.int64)
        capacities[ends[0], ends[1]] = np.minimum(capacity, self.total)
        capacities[n, :n] = shares
        # One matrix serves all flows: both directions of every link, as the solver needs, and the
        # source with every rank.
        entries = capacities > 0
        entries[n, :n] = True
        tail, head = np.nonzero(entries | entries.T)
        self.capacity = capacities
        self.place = np.full(capacities.shape, -1)
        self.place[tail, head] = np.arange(len(tail))
        start = np.searchsorted(tail, np.arange(n + 2))
        values = capacities[tail, head].astype(np.int32)
        self.graph = csr_array(
            (values, head.astype(np.int32), start.astype(np.int32)), shape=capacities.shape
        )
        self.neighbours = [np.flatnonzero(row[:n]).tolist() for row in capacities]

    def add(self, a: int, b: int, amount: int) -> None:
        """Change a capacity."""
        self.capacity[a, b] += amount
        self.graph.data[self.place[a, b]] += amount

    def reach(self, x: int, y: int, enough: int) -> int:
        """Maximum flow from the source and ``x`` together to ``y``; where it is ``enough`` or more,
        at least that.
        """
        # Mostly the ways over one other rank bring enough, or all that enters y: 0.01 ms instead of
        # 0.4 for a solver.
        n, entering = self.n, self.capacity[:, y]
        supply, inflow = self.capacity[n, :n], int(entering.sum())
        if x != n:
            supply = supply + self.capacity[x, :n]
            supply[x] = inflow
        over_one = int(entering[n]) + int(np.minimum(supply, entering[:n]).sum())
        if over_one >= min(enough, inflow):
            return over_one
        if x == n:
            return int(maximum_flow(self.graph, x, y).flow_value)
        place, share = self.place[n, x], self.capacity[n, x]
        self.graph.data[place] = 2 * self.total
        flow = int(maximum_flow(self.graph, n, y).flow_value)
        self.graph.data[place] = share
        return flow


def packs(ends: Ints, capacity: Ints, shares: Sequence[int]) -> bool:
    """Whether trees exist: ``shares[u]`` out of every rank u, over pairs of ranks ``ends`` with
    integer ``capacity``.
    """
    total = int(sum(shares))
    entering = np.bincount(ends[1], weights=np.minimum(capacity, total), minlength=len(shares))
    if (entering + np.asarray(shares) < total).any():
        return False
    remaining = _RemainingCapacity(ends, capacity, shares)
    return all(remaining.reach(remaining.n, rank, total) >= total for rank in range(remaining.n))


def grow(ends: Ints, capacity: Ints, shares: Sequence[int]) -> tuple[Tree, ...]:
    """Grow trees that are known to exist, each breadth-first.

    >>> for tree in grow(np.array([[0, 1], [1, 0]]), np.array([2, 1]), [2, 1]):
    ...     print(tree)
    Tree(root=0, copies=2, links=((0, 1),))
    Tree(root=1, copies=1, links=((1, 0),))
    """
    return _grow(ends.tobytes(), capacity.astype(np.int64).tobytes(), tuple(shares))


@lru_cache(maxsize=8)
def _grow(ends: bytes, capacity: bytes, shares: tuple[int, ...]) -> tuple[Tree, ...]:
    """The trees of the last few machines: schedules of other pieces, in or out of place, need the
    same.
    """
    pairs, widths = np.frombuffer(ends, np.int64).reshape(2, -1), np.frombuffer(capacity, np.int64)
    remaining, trees = _RemainingCapacity(pairs, widths, shares), []
    while remaining.total:
        root = int(np.argmax(remaining.capacity[remaining.n]))
        trees.append(_take_tree(remaining, root))
    return tuple(trees)


def _take_tree(remaining: _RemainingCapacity, root: int) -> Tree:
    """Take one tree out of the remaining capacities, in as many copies as possible."""
    n, copies = remaining.n, int(remaining.capacity[remaining.n, root])
    links = [(remaining.n, root)]
    remaining.add(remaining.n, root, -copies)
    reached, members = [root], {root}
    # A forbidden link stays forbidden: the cut that forbids it has no spare capacity while the tree
    # has that many copies.
    refused: set[tuple[int, int]] = set()
    while len(reached) < n:
        x, y, room = _next(remaining, reached, members, copies, refused)
        if room < copies:
            for a, b in links:
                remaining.add(a, b, copies - room)
            copies = room
            refused.clear()
        remaining.add(x, y, -copies)
        links.append((x, y))
        reached.append(y)
        members.add(y)
    remaining.total -= copies
    return Tree(root, copies, tuple(links[1:]))


def _next(
    remaining: _RemainingCapacity,
    reached: Sequence[int],
    members: set[int],
    copies: int,
    refused: set[tuple[int, int]],
) -> tuple[int, int, int]:
    """The next link of a tree, and the number of copies that can take it."""
    other_trees = remaining.total - copies
    for x in reached:
        for y in remaining.neighbours[x]:
            if y not in members and remaining.capacity[x, y] and (x, y) not in refused:
                room = min(int(remaining.capacity[x, y]), copies)
                room = min(room, remaining.reach(x, y, other_trees + room) - other_trees)
                if room > 0:
                    return x, y, room
                refused.add((x, y))
    raise InternalError("a tree cannot be completed although every cut has room for it")
