"""Ranks that a topology cannot tell apart: orbits under symmetries guessed from structure and checked link by link.

Candidates rotate one digit of the rank number: a dimension of a torus, the GPUs of a node, the nodes of a pod. Switches and NICs
follow their neighbours. A candidate counts only if it maps every link onto a link of equal capacity, so a symmetry that is not
found costs time and never correctness.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from simcoll.topology.routing import TorusRouter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from simcoll.topology.graph import Topology

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["is_symmetry", "rank_orbits"]

ROUNDS = 6


def rank_orbits(topology: Topology) -> Ints:
    """The first rank of every orbit, in order; ranks of an orbit have the same links and capacities.

    Examples
    --------
    >>> from simcoll.topology import crossbar
    >>> rank_orbits(crossbar(5, "50 GB/s")).tolist()
    [0]
    >>> rank_orbits(crossbar(5, "50 GB/s").degrade("gpu2 -> switch", "1/2")).tolist()
    [0, 1, 2, 3, 4]
    """
    n = topology.nranks
    pairs = [np.stack([np.arange(n)] * 2)]
    for image in _turns(topology):
        nodes = _extended(topology, image)
        if nodes is not None and is_symmetry(topology, nodes):
            pairs.append(np.stack([np.arange(n), image]))
    ends = np.concatenate(pairs, axis=1)
    _, orbit = connected_components(
        coo_array((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(n, n)), directed=False
    )
    first: Ints = np.sort(np.unique(orbit, return_index=True)[1])
    return first


def is_symmetry(topology: Topology, nodes: Ints) -> bool:
    """Whether a renumbering of the vertices keeps ranks, kinds, links and capacities."""
    kinds = np.array(topology.node_kinds)
    here = np.stack([topology.link_src, topology.link_dst, topology.link_capacity_uBps])
    there = np.stack([nodes[topology.link_src], nodes[topology.link_dst], topology.link_capacity_uBps])
    return bool(
        np.array_equal(np.sort(nodes), np.arange(len(kinds)))
        and np.array_equal(kinds, kinds[nodes])
        and np.array_equal(np.sort(topology.rank_nodes), np.sort(nodes[topology.rank_nodes]))
        and np.array_equal(here[:, np.lexsort(here)], there[:, np.lexsort(there)])
    )


def _turns(topology: Topology) -> Iterator[Ints]:
    """Permutations of the ranks that rotate one digit of their numbers."""
    n, rank = topology.nranks, np.arange(topology.nranks)
    sizes = [1, n]
    if isinstance(topology.router, TorusRouter) and int(np.prod(topology.router.dims)) == n:
        sizes += [int(np.prod(topology.router.dims[d:])) for d in range(len(topology.router.dims))]
    else:
        for ids in topology.groups.values():
            size = int((ids == ids[0]).sum())
            if n % size == 0 and np.array_equal(ids, rank // size):
                sizes.append(size)
    strides = sorted(set(sizes))
    if any(b % a for a, b in pairwise(strides)):
        strides = [1, n]
    for stride, period in pairwise(strides):
        digit = rank // stride % (period // stride)
        yield rank + ((digit + 1) % (period // stride) - digit) * stride


def _extended(topology: Topology, image: Ints) -> Ints | None:
    """Image of each vertex when rank r moves to rank ``image[r]``; None when it cannot be determined."""
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
    """A scrambling of 64-bit words (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        z = words + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = z ^ (z >> np.uint64(31))
    return mixed
