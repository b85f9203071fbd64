"""Optimal trees: as many copies of spanning trees out of every rank as the best cut allows, no link loaded beyond its capacity.

First all switches are replaced: the links into and out of switches become links from rank to rank, each with the path that a
message between the two takes. Fair shares of all pairs do where machines are regular; otherwise the switches are split off one
by one, without making any cut smaller. Then trees are grown link by link, each only as far as the other
trees can still be completed. Both steps ask maximum flows how far they may go, so they never have to go back.

Sources: Bang-Jensen, Frank, Jackson: Preserving and increasing local edge-connectivity in mixed graphs, SIAM J. Discrete Math. 8
(1995); Berczi, Frank: Packing arborescences, RIMS B23 (2010); ForestColl (arXiv 2402.06787).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor, gcd, lcm
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from simcoll.bounds.cuts import all_gather_cut, worst_ratio
from simcoll.bounds.flows import graph_of
from simcoll.errors import ConfigError, InternalError
from simcoll.units import UBPS_PER_BPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from simcoll.topology import Topology

    Path = tuple[int, ...]
    Arcs = dict[tuple[int, int], int]

__all__ = ["Packing", "Tree", "pack_trees", "rank_links"]

MAX_TREES = 64
"""Trees out of every rank at most. Where the optimum needs more, that many come as near as whole numbers allow."""
FEW_RANKS, MAX_RANKS = 16, 64
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
NEAR = Fraction(501, 500)
"""Fewer trees are taken where they cost no more than this."""


@dataclass(frozen=True, slots=True)
class Tree:
    """``copies`` equal spanning trees out of a rank: links ``(from, to)`` in an order in which each starts at a rank reached before."""

    root: int
    copies: int
    links: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """Trees that use the links of a topology at once.

    Attributes
    ----------
    trees
        They have ``per_root`` copies out of every rank in all.
    per_root
        Parts that a rank's data is cut into, one per copy.
    ratio
        Seconds per byte when every rank sends one byte to all others: what the best cut says, or a little more.
    """

    trees: tuple[Tree, ...]
    per_root: int
    ratio: Fraction


def pack_trees(topology: Topology, *, backwards: bool = False) -> Packing:
    """Trees out of every rank (``backwards``: into every rank, with the links of the trees still from the root outwards).

    Raises
    ------
    ConfigError
        When there are too many ranks for the method, or ranks are connected only by routes through other ranks' switches.

    Examples
    --------
    >>> from simcoll.topology import torus
    >>> packing = pack_trees(torus([4], "25 GB/s"))
    >>> packing.per_root, packing.ratio * 10**9
    (2, Fraction(3, 50))
    """
    n = topology.nranks
    if n > MAX_RANKS:
        raise ConfigError(f"packing trees serves up to {MAX_RANKS} ranks; topology {topology.name!r} has {n}")
    if n == 1:
        return Packing((Tree(0, 1, ()),), 1, Fraction(0))
    capacity, unit = rank_links(topology, backwards=backwards)
    ratio = worst_ratio(graph_of(n, capacity))
    if ratio is None:
        raise ConfigError(f"topology {topology.name!r}: no trees reach all ranks along the routes of messages")
    per_root, scaled = _whole(n, capacity, ratio)
    trees = _grow(n, scaled, per_root)
    load: Arcs = {}
    for tree in trees:
        for link in tree.links:
            load[link] = load.get(link, 0) + tree.copies
    worst = max(Fraction(used, capacity[link]) for link, used in load.items())
    return Packing(trees, per_root, worst / per_root / unit * UBPS_PER_BPS)


def rank_links(topology: Topology, *, backwards: bool = False) -> tuple[Arcs, Fraction]:
    """Capacities between pairs of ranks that can be used all at once, and their unit in micro-bytes per second.

    A pair has one path, that of its messages.
    """
    n, nodes = topology.nranks, {int(node): rank for rank, node in enumerate(topology.rank_nodes)}
    paths = _paths(topology, nodes)
    parts = {path[i:j] for path in paths.values() for i in range(len(path)) for j in range(i + 1, len(path) + 1)}
    ends = {link: (int(topology.link_src[link]), int(topology.link_dst[link])) for link in range(topology.nlinks)}
    if backwards:
        paths = {(b, a): path[::-1] for (a, b), path in paths.items()}
        parts = {part[::-1] for part in parts}
        ends = {link: (b, a) for link, (a, b) in ends.items()}
    raw = {link: int(topology.link_capacity_uBps[link]) for part in parts for link in part}
    unit = int(np.gcd.reduce(list(raw.values())))
    arcs: dict[Path, int] = {(link,): capacity // unit for link, capacity in sorted(raw.items())}
    if all(len(path) == 1 for path in paths.values()):
        return {pair: arcs[path] for pair, path in paths.items()}, Fraction(unit)
    best = all_gather_cut(topology, backwards=backwards).ratio * unit / UBPS_PER_BPS
    fair, scale = _fair_shares(paths, arcs)
    reached = worst_ratio(graph_of(n, fair))
    if reached is not None and reached * scale == best:
        return fair, unit / scale
    splitter = _Splitter(nodes, ends, parts, arcs, best)
    split = splitter.split()
    other = worst_ratio(graph_of(n, split))
    if other is None or (reached is not None and reached * scale <= other * splitter.scale):
        return fair, unit / scale
    return split, unit / splitter.scale


def _fair_shares(paths: Mapping[tuple[int, int], Path], arcs: Mapping[Path, int]) -> tuple[Arcs, Fraction]:
    """Max-min fair shares of all pairs at once, as whole numbers, and what they were multiplied by."""
    left = {path[0]: Fraction(capacity) for path, capacity in arcs.items()}
    users: dict[int, list[tuple[int, int]]] = {link: [] for link in left}
    for pair, path in paths.items():
        for link in path:
            users[link].append(pair)
    open_pairs = {link: len(pairs) for link, pairs in users.items() if pairs}
    share: dict[tuple[int, int], Fraction] = {}
    while open_pairs:
        level = min(left[link] / count for link, count in open_pairs.items())
        for full in [link for link, count in open_pairs.items() if left[link] / count == level]:
            for pair in users[full]:
                if pair not in share:
                    share[pair] = level
                    for link in paths[pair]:
                        left[link] -= level
                        open_pairs[link] -= 1
        open_pairs = {link: count for link, count in open_pairs.items() if count}
    scale = Fraction(lcm(*(each.denominator for each in share.values())))
    scale /= gcd(*(int(each * scale) for each in share.values()))
    return {pair: int(share[pair] * scale) for pair in paths}, scale


def _paths(topology: Topology, nodes: Mapping[int, int]) -> dict[tuple[int, int], Path]:
    """Path of every pair of ranks whose messages pass no other rank."""
    n = topology.nranks
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    routes = topology.route(src, dst).links.tolist()
    found = {}
    for a, b, row in zip(src.tolist(), dst.tolist(), routes, strict=True):
        path = tuple(link for link in row if link >= 0)
        if path and not any(int(topology.link_dst[link]) in nodes for link in path[:-1]):
            found[a, b] = path
    return found


class _Splitter:
    """Splits off the switches of a graph whose links carry paths."""

    def __init__(
        self,
        nodes: Mapping[int, int],
        ends: Mapping[int, tuple[int, int]],
        parts: set[Path],
        arcs: Mapping[Path, int],
        ratio: Fraction,
    ) -> None:
        self.ends, self.parts = ends, parts
        number = dict(nodes)
        for path in arcs:
            for vertex in ends[path[0]]:
                number.setdefault(vertex, len(number))
        self.number, self.n = number, len(nodes)
        # Trees per rank, and capacities in trees.
        self.k, self.scale = ratio.denominator, Fraction(ratio.numerator)
        if self.k > MAX_TREES:
            self.k = MAX_TREES
            self.scale = MAX_TREES * ratio
        self.arcs = {path: floor(capacity * self.scale) for path, capacity in arcs.items()}
        more = 0
        while not self._feasible():
            more += 1
            self.arcs = {path: floor(capacity * self.scale * (64 + more) / 64) for path, capacity in arcs.items()}
        self.scale *= Fraction(64 + more, 64)

    def tail(self, path: Path) -> int:
        return self.number[self.ends[path[0]][0]]

    def head(self, path: Path) -> int:
        return self.number[self.ends[path[-1]][1]]

    def _pairs(self) -> Arcs:
        pairs: Arcs = {}
        for path, capacity in self.arcs.items():
            if capacity:
                pair = (self.tail(path), self.head(path))
                pairs[pair] = pairs.get(pair, 0) + capacity
        source = len(self.number)
        for rank in range(self.n):
            pairs[source, rank] = self.k
        return pairs

    def _feasible(self) -> bool:
        pairs, source = self._pairs(), len(self.number)
        return all(_flow(source + 1, pairs, source, rank) == self.n * self.k for rank in range(self.n))

    def split(self) -> Arcs:
        """Do it, the vertices with the fewest links first."""
        degree = dict.fromkeys(range(self.n, len(self.number)), 0)
        for path in self.arcs:
            for vertex in (self.tail(path), self.head(path)):
                if vertex in degree:
                    degree[vertex] += 1
        for vertex in sorted(degree, key=lambda v: (degree[v], v)):
            inward = [path for path in self.arcs if self.head(path) == vertex]
            outward = [path for path in self.arcs if self.tail(path) == vertex]
            for first in inward:
                for second in outward:
                    if first + second in self.parts and self.arcs[first] and self.arcs[second]:
                        self._join(first, second)
            for path in inward + outward:
                del self.arcs[path]
        return {(self.tail(path), self.head(path)): capacity for path, capacity in self.arcs.items() if capacity}

    def _join(self, first: Path, second: Path) -> None:
        """Make as much as possible of two links at a switch one link that passes it."""
        u, w, t = self.tail(first), self.head(first), self.head(second)
        pairs, source = self._pairs(), len(self.number)
        much = sum(pairs.values()) + 1
        most, need = min(self.arcs[first], self.arcs[second]), self.n * self.k
        for v in range(self.n):
            if v not in (u, t):
                extra = {(u, source): much, (u, t): much, (v, w): much}
                most = min(most, _flow(source + 1, pairs | extra, u, w) - need)
            extra = {(w, source): much, (u, t): much} | ({(v, t): much} if v != t else {})
            most = min(most, _flow(source + 1, pairs | extra, w, t) - need)
            if most <= 0:
                return
        self.arcs[first] -= most
        self.arcs[second] -= most
        self.arcs[first + second] = self.arcs.get(first + second, 0) + most


def _flow(nvertices: int, pairs: Mapping[tuple[int, int], int], source: int, sink: int) -> int:
    """Value of a maximum flow."""
    ends = np.array(list(pairs), dtype=np.int32).T
    capacity = np.minimum(np.array(list(pairs.values()), dtype=np.int64), 2**30 - 1).astype(np.int32)
    graph = csr_array((capacity, (ends[0], ends[1])), shape=(nvertices, nvertices))
    return int(maximum_flow(graph, source, sink).flow_value)


def _whole(n: int, capacity: Arcs, ratio: Fraction) -> tuple[int, Arcs]:
    """Trees per rank, and how many trees every link can carry."""
    found: list[tuple[Fraction, int, Arcs]] = []
    most = MAX_TREES if n <= FEW_RANKS else MAX_TREES // 4
    if ratio.denominator <= most:
        most = ratio.denominator - 1
        found.append((ratio, ratio.denominator, {pair: each * ratio.numerator for pair, each in capacity.items()}))
    for count in COUNTS:
        if count > most or (found and found[-1][0] == ratio and found[-1][1] < count):
            break
        low, high = count * ratio, count * ratio * 3
        if _packs(n, _floors(capacity, low), count):
            high = low
        while high - low > low / 512:
            middle = (low + high) / 2
            if _packs(n, _floors(capacity, middle), count):
                high = middle
            else:
                low = middle
        found.append((high / count, count, _floors(capacity, high)))
    best = min(entry[0] for entry in found)
    _, per_root, whole = min((entry for entry in found if entry[0] <= best * NEAR), key=lambda entry: entry[1])
    return per_root, whole


def _floors(capacity: Arcs, scale: Fraction) -> Arcs:
    return {pair: floor(each * scale) for pair, each in capacity.items() if floor(each * scale)}


def _packs(n: int, capacity: Arcs, per_root: int) -> bool:
    pairs = capacity | {(n, rank): per_root for rank in range(n)}
    return all(_flow(n + 1, pairs, n, rank) == n * per_root for rank in range(n))


class _Group:
    """Copies of one tree that is being grown."""

    __slots__ = ("copies", "links", "reached", "root")

    def __init__(self, root: int, copies: int, reached: Iterable[int], links: Iterable[tuple[int, int]]) -> None:
        self.root, self.copies = root, copies
        self.reached, self.links = list(reached), list(links)


def _grow(n: int, capacity: Arcs, per_root: int) -> tuple[Tree, ...]:
    """Grow all trees, breadth first."""
    left = {pair: each for pair, each in capacity.items() if each}
    groups = [_Group(root, per_root, [root], []) for root in range(n)]
    number = 0
    while number < len(groups):
        group = groups[number]
        while len(group.reached) < n:
            if not _extend(n, left, groups, group):
                raise InternalError("a tree cannot be completed although every cut has room for it")
        number += 1
    return tuple(Tree(group.root, group.copies, tuple(group.links)) for group in groups)


def _extend(n: int, left: Arcs, groups: list[_Group], group: _Group) -> bool:
    """Add one link to a group; what copies cannot have it become a group of their own."""
    inside = set(group.reached)
    for x in group.reached:
        for y in range(n):
            if y in inside or not left.get((x, y)):
                continue
            most = min(left[x, y], group.copies, _room(n, left, groups, group, x, y))
            if most <= 0:
                continue
            if most < group.copies:
                groups.append(_Group(group.root, group.copies - most, group.reached, group.links))
                group.copies = most
            group.reached.append(y)
            group.links.append((x, y))
            left[x, y] -= most
            if not left[x, y]:
                del left[x, y]
            return True
    return False


def _room(n: int, left: Arcs, groups: list[_Group], group: _Group, x: int, y: int) -> int:
    """How many copies may take the link from x to y so that all other trees can still be completed."""
    pairs, much, vertex, promised = dict(left), sum(left.values()) + 1, n, 0
    for other in groups:
        if other is not group and len(other.reached) < n:
            pairs[x, vertex] = other.copies
            for z in other.reached:
                pairs[vertex, z] = much
            vertex += 1
            promised += other.copies
    return _flow(vertex, pairs, x, y) - promised
