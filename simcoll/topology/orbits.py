"""Orbits of ranks under symmetries of a topology, which are guessed from its structure and verified link by link.

Candidates are rotations of the ranks: one step along a dimension of a torus or, elsewhere, at one level of the groups, from every part (a
GPU of a node, a node of a leaf) to the next part of its whole with the same surroundings. Switches and NICs follow their neighbours. A
candidate counts only if it maps every link onto a link of equal capacity, so a missed symmetry costs time but never correctness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simcoll.arrays import Ints, Words
from simcoll.core.hashing import SALTS, mix
from simcoll.core.step import distinct
from simcoll.topology.components import first_joined
from simcoll.topology.graph import Topology
from simcoll.topology.routing import TorusRouter

__all__ = ["is_symmetry", "rank_orbits", "set_orbits", "symmetries"]

ROUNDS = 6
FAR = 16
"""Limit of links between a rank and a feature that distinguishes it from another."""


def rank_orbits(topology: Topology, fixed: int | None = None) -> Ints:
    """The first rank of every orbit, in order; ranks of an orbit have equal links and capacities.

    With ``fixed``, they also have the same position as seen from that rank.

    Examples
    --------
    >>> from simcoll.topology import crossbar
    >>> rank_orbits(crossbar(5, "50 GB/s")).tolist()
    [0]
    >>> rank_orbits(crossbar(5, "50 GB/s").degrade("gpu2 -> switch", "1/2")).tolist()
    [0, 2]
    >>> rank_orbits(crossbar(5, "50 GB/s"), fixed=3).tolist()
    [0, 3]
    """
    every = np.arange(topology.nranks)
    return np.flatnonzero(_joined(topology.nranks, [(every, image) for image in symmetries(topology, fixed)]) == every)


def set_orbits(topology: Topology, sets: Sequence[Ints], fixed: int | None = None) -> Ints:
    """For each of some disjoint sets of ranks, the first set that a symmetry maps onto it."""
    size = np.array([len(ranks) for ranks in sets])
    start, ranks = np.cumsum(size) - size, np.concatenate(sets)
    member = np.full(topology.nranks, -1)
    member[ranks] = np.repeat(np.arange(len(sets)), size)
    pairs = []
    for image in symmetries(topology, fixed):
        there = member[image[ranks]]
        to = np.minimum.reduceat(there, start)
        whole = np.flatnonzero((to >= 0) & (to == np.maximum.reduceat(there, start)) & (size[to] == size))
        pairs.append((whole, to[whole]))
    return _joined(len(sets), pairs)


def symmetries(topology: Topology, fixed: int | None = None) -> tuple[Ints, ...]:
    """Permutations of the ranks (``image[rank]``) that preserve all links and fix the rank ``fixed``."""
    known = topology.known.symmetries
    if fixed not in known:
        candidates = (_extended(topology, image) for image in _turns(topology, fixed))
        rank = np.zeros(len(topology.node_names), np.int64)
        rank[topology.rank_nodes] = np.arange(topology.nranks)
        known[fixed] = tuple(
            rank[nodes[topology.rank_nodes]]
            for nodes in candidates
            if nodes is not None and is_symmetry(topology, nodes)
        )
    return known[fixed]


def _joined(count: int, pairs: Sequence[tuple[Ints, Ints]]) -> Ints:
    """The lowest number joined to each of ``count`` numbers by the pairs."""
    tail, head = np.concatenate([np.zeros((2, 0), np.int64), *(np.stack(pair) for pair in pairs)], axis=1)
    return first_joined(count, tail, head)


def is_symmetry(topology: Topology, nodes: Ints) -> bool:
    """Whether a renumbering of the vertices preserves ranks, kinds, links and capacities."""
    kinds = np.array(topology.node_kinds)
    here = np.stack([topology.link_src, topology.link_dst, topology.link_capacity_uBps])
    there = np.stack([nodes[topology.link_src], nodes[topology.link_dst], topology.link_capacity_uBps])
    return bool(
        np.array_equal(np.sort(nodes), np.arange(len(kinds)))
        and np.array_equal(kinds, kinds[nodes])
        and np.array_equal(np.sort(topology.rank_nodes), np.sort(nodes[topology.rank_nodes]))
        and np.array_equal(here[:, np.lexsort(here)], there[:, np.lexsort(there)])
    )


def _turns(topology: Topology, fixed: int | None) -> Iterator[Ints]:
    """Permutations of the ranks that may be symmetries."""
    n, rank = topology.nranks, np.arange(topology.nranks)
    if isinstance(topology.router, TorusRouter) and int(np.prod(topology.router.dims)) == n:
        dims = topology.router.dims
        for number, size in enumerate(dims):
            stride = int(np.prod(dims[number + 1 :]))
            at = rank // stride % size
            # If a rank is fixed, a dimension can only be reversed around it.
            to = at + 1 if fixed is None else 2 * (fixed // stride % size) - at
            yield rank + (to % size - at) * stride
        return
    look = _looks(topology, fixed)
    parts = _levels(topology)
    for part, whole in zip(parts, [*parts[1:], np.zeros(n, np.int64)], strict=True):
        yield _next_alike(part, whole, look)


def _levels(topology: Topology) -> list[Ints]:
    """Partitions of the ranks, from fine to coarse: the groups, and the parts of nodes that share a leaf."""
    given = list(topology.groups.values())
    found = [np.arange(topology.nranks)]
    inside = [np.unique(given[0] * (1 + ids.max()) + ids, return_inverse=True)[1] for ids in given[1:]]
    for ids in sorted((*inside, *given), key=lambda ids: -int(ids.max())):
        parts, count = found[-1], 1 + int(ids.max())
        if 1 < count <= parts.max() and len(np.unique(parts * count + ids)) == parts.max() + 1:
            found.append(ids)
    return found


def _next_alike(part: Ints, whole: Ints, look: Words) -> Ints:
    """Map every part to the next part of its whole whose ranks look the same one by one, cyclically."""
    order = np.argsort(part, kind="stable")
    start = np.flatnonzero(np.diff(part[order], prepend=-1))
    size = np.diff(start, append=len(order))
    place = np.arange(len(order)) - np.repeat(start, size)
    with np.errstate(over="ignore"):
        seen = np.add.reduceat(_mix(look[order] + _mix(place.astype(np.uint64))), start)
    keys = np.stack([whole[order][start], size, seen.view(np.int64)])
    run = np.lexsort(keys[::-1])
    new = np.append(True, (keys[:, run[1:]] != keys[:, run[:-1]]).any(axis=0))
    first = np.flatnonzero(new)[np.cumsum(new) - 1]
    following = np.where(np.append(new[1:], True), first, np.arange(1, len(run) + 1))
    to = np.empty_like(run)
    to[run] = run[following]
    image = np.empty_like(order)
    image[order] = order[np.repeat(start[to], size) + place]
    return image


def _looks(topology: Topology, fixed: int | None) -> Words:
    """A label for each rank, equal for ranks whose surroundings are alike as far as links lead."""
    _, kind = np.unique(np.array(topology.node_kinds), return_inverse=True)
    label = kind.astype(np.uint64)
    label[topology.rank_nodes] += np.uint64(100)
    if fixed is not None:
        label[topology.rank_nodes[fixed]] += np.uint64(100)
    label, classes = _mix(label), 0
    for _ in range(FAR):
        label = _refined(topology, label)
        before, classes = classes, len(distinct(label.view(np.int64)))
        if classes == before:
            break
    return label[topology.rank_nodes]


def _extended(topology: Topology, image: Ints) -> Ints | None:
    """Image of each vertex if rank r moves to rank ``image[r]``; None if it cannot be determined."""
    count = len(topology.node_names)
    label = np.zeros(count, np.uint64)
    label[topology.rank_nodes] = _mix(np.arange(1, topology.nranks + 1, dtype=np.uint64))
    moved = np.zeros(count, np.uint64)
    moved[topology.rank_nodes[image]] = label[topology.rank_nodes]
    for _ in range(ROUNDS):
        label, moved = _refined(topology, label), _refined(topology, moved)
    here, there = np.argsort(label, kind="stable"), np.argsort(moved, kind="stable")
    if not np.array_equal(label[here], moved[there]):
        return None
    nodes = np.empty(count, np.int64)
    nodes[here] = there
    return nodes


def _refined(topology: Topology, label: Words) -> Words:
    """Labels refined by the labels one link away."""
    with np.errstate(over="ignore"):
        capacity = topology.link_capacity_uBps.astype(np.uint64)
        out = _mix(label[topology.link_dst] + capacity * np.uint64(3))
        into = _mix(label[topology.link_src] + capacity * np.uint64(5))
        total = label * np.uint64(7)
        np.add.at(total, topology.link_src, out)
        np.add.at(total, topology.link_dst, into)
    return _mix(total)


def _mix(words: Words) -> Words:
    """A mix of 64-bit words that changes every word, even 0."""
    with np.errstate(over="ignore"):
        return mix(words + SALTS[0])
