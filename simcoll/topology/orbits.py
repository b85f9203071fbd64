"""Orbits of ranks under symmetries of a topology, which are guessed from its structure and verified
link by link.

Candidates are rotations of the ranks: one step along a dimension of a torus or, elsewhere, at one
level of the groups, from every part (a GPU of a node, a node of a leaf) to the next part of its
whole with the same surroundings. Switches and NICs follow their neighbours. A candidate counts only
if it maps every link onto a link of equal capacity, so a missed symmetry costs time but never
correctness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simcoll.arrays import Ints, Words
from simcoll.core.facts import FactStore
from simcoll.core.hashing import SALTS, mix
from simcoll.core.step import distinct
from simcoll.topology.components import lowest_in_component
from simcoll.topology.graph import Topology
from simcoll.topology.routing import TorusRouter

__all__ = ["is_symmetry", "rank_orbits", "set_orbits", "symmetries", "symmetries_of"]

ROUNDS = 6
FAR = 16
"""Limit of links between a rank and a feature that distinguishes it from another."""

symmetries_of: FactStore[Topology, dict[int | None, tuple[Ints, ...]]] = FactStore(lambda _: {})
"""The symmetries of a topology that were asked for so far, by the rank that they fix."""


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
    pairs = [(every, image) for image in symmetries(topology, fixed)]
    return np.flatnonzero(_lowest_in_component(topology.nranks, pairs) == every)


def set_orbits(topology: Topology, sets: Sequence[Ints], fixed: int | None = None) -> Ints:
    """For each of some disjoint sets of ranks, the first set that a symmetry maps onto it."""
    size = np.array([len(ranks) for ranks in sets])
    start = np.cumsum(size) - size
    ranks = np.concatenate(sets)
    member = np.full(topology.nranks, -1)
    member[ranks] = np.repeat(np.arange(len(sets)), size)
    pairs = []
    for image in symmetries(topology, fixed):
        targets = member[image[ranks]]
        to = np.minimum.reduceat(targets, start)
        in_one_set = (to >= 0) & (to == np.maximum.reduceat(targets, start))
        mapped = np.flatnonzero(in_one_set & (size[to] == size))
        pairs.append((mapped, to[mapped]))
    return _lowest_in_component(len(sets), pairs)


def symmetries(topology: Topology, fixed: int | None = None) -> tuple[Ints, ...]:
    """Permutations of the ranks (``image[rank]``) that preserve all links and fix the rank
    ``fixed``.
    """
    cache = symmetries_of(topology)
    if fixed not in cache:
        candidates = (_extend(topology, image) for image in _turns(topology, fixed))
        rank = np.zeros(len(topology.node_names), np.int64)
        rank[topology.rank_nodes] = np.arange(topology.nranks)
        cache[fixed] = tuple(
            rank[nodes[topology.rank_nodes]]
            for nodes in candidates
            if nodes is not None and is_symmetry(topology, nodes)
        )
    return cache[fixed]


def _lowest_in_component(count: int, pairs: Sequence[tuple[Ints, Ints]]) -> Ints:
    """The lowest number joined to each of ``count`` numbers by the pairs."""
    tail, head = np.concatenate(
        [np.zeros((2, 0), np.int64), *(np.stack(pair) for pair in pairs)], axis=1
    )
    return lowest_in_component(count, tail, head)


def is_symmetry(topology: Topology, nodes: Ints) -> bool:
    """Whether a renumbering of the vertices preserves ranks, kinds, links and capacities."""
    kinds = np.array(topology.node_kinds)
    links = np.stack([topology.link_src, topology.link_dst, topology.link_capacity_uBps])
    images = np.stack(
        [nodes[topology.link_src], nodes[topology.link_dst], topology.link_capacity_uBps]
    )
    return bool(
        np.array_equal(np.sort(nodes), np.arange(len(kinds)))
        and np.array_equal(kinds, kinds[nodes])
        and np.array_equal(np.sort(topology.rank_nodes), np.sort(nodes[topology.rank_nodes]))
        and np.array_equal(links[:, np.lexsort(links)], images[:, np.lexsort(images)])
    )


def _turns(topology: Topology, fixed: int | None) -> Iterator[Ints]:
    """Permutations of the ranks that may be symmetries."""
    n = topology.nranks
    rank = np.arange(n)
    if isinstance(topology.router, TorusRouter) and int(np.prod(topology.router.dims)) == n:
        dims = topology.router.dims
        for number, size in enumerate(dims):
            stride = int(np.prod(dims[number + 1 :]))
            coordinate = rank // stride % size
            to = coordinate + 1
            if fixed is not None:  # a dimension can only be reversed around it
                to = 2 * (fixed // stride % size) - coordinate
            yield rank + (to % size - coordinate) * stride
        return
    look = _looks(topology, fixed)
    parts = _levels(topology)
    for part, coarser in zip(parts, [*parts[1:], np.zeros(n, np.int64)], strict=True):
        yield _next_alike(part, coarser, look)


def _levels(topology: Topology) -> list[Ints]:
    """Partitions of the ranks, from fine to coarse: the groups, and the parts of nodes that share a
    leaf.
    """
    partitions = list(topology.groups.values())
    levels = [np.arange(topology.nranks)]
    refined = [
        np.unique(partitions[0] * (1 + ids.max()) + ids, return_inverse=True)[1]
        for ids in partitions[1:]
    ]
    for ids in sorted((*refined, *partitions), key=lambda ids: -int(ids.max())):
        parts = levels[-1]
        count = 1 + int(ids.max())
        if not 1 < count <= parts.max():
            continue
        contains_parts = len(np.unique(parts * count + ids)) == parts.max() + 1
        if contains_parts:
            levels.append(ids)
    return levels


def _next_alike(part: Ints, coarser: Ints, look: Words) -> Ints:
    """Map every part to the next part of its whole whose ranks look the same one by one,
    cyclically.
    """
    order = np.argsort(part, kind="stable")
    start = np.flatnonzero(np.diff(part[order], prepend=-1))
    size = np.diff(start, append=len(order))
    place = np.arange(len(order)) - np.repeat(start, size)
    with np.errstate(over="ignore"):
        signature = np.add.reduceat(_mix(look[order] + _mix(place.astype(np.uint64))), start)
    keys = np.stack([coarser[order][start], size, signature.view(np.int64)])
    run = np.lexsort(keys[::-1])
    differs = keys[:, run[1:]] != keys[:, run[:-1]]
    new = np.append(True, differs.any(axis=0))
    run_start = np.flatnonzero(new)[np.cumsum(new) - 1]
    following = np.where(np.append(new[1:], True), run_start, np.arange(1, len(run) + 1))
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
        label = _refine(topology, label)
        earlier, classes = classes, len(distinct(label.view(np.int64)))
        if classes == earlier:
            break
    return label[topology.rank_nodes]


def _extend(topology: Topology, image: Ints) -> Ints | None:
    """Image of each vertex if rank r moves to rank ``image[r]``; None if it cannot be
    determined.
    """
    count = len(topology.node_names)
    label = np.zeros(count, np.uint64)
    label[topology.rank_nodes] = _mix(np.arange(1, topology.nranks + 1, dtype=np.uint64))
    moved = np.zeros(count, np.uint64)
    moved[topology.rank_nodes[image]] = label[topology.rank_nodes]
    for _ in range(ROUNDS):
        label = _refine(topology, label)
        moved = _refine(topology, moved)
    order = np.argsort(label, kind="stable")
    moved_order = np.argsort(moved, kind="stable")
    if not np.array_equal(label[order], moved[moved_order]):
        return None
    nodes = np.empty(count, np.int64)
    nodes[order] = moved_order
    return nodes


def _refine(topology: Topology, label: Words) -> Words:
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
