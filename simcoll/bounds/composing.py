"""Trees for topologies of many equal nodes: a tree over the nodes, a tree over the ranks of each,
and all rotations of both.

The part of rank j of a node goes to rank j of every other node along a tree over the nodes, and
there along a tree of rank j over the node. The tree over nodes has one of a few shapes over
*offsets*, counted from the root's node. Rotated to all nodes, it loads them equally: every node
receives each part of the others once, which is the minimum. Whether the links have the capacity is
not assumed: the rotations are counted on the links of the topology, and compared with the best cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from simcoll.arrays import Ints
from simcoll.bounds.growing import Tree
from simcoll.units import UBPS_PER_BPS

if TYPE_CHECKING:
    from simcoll.topology import Topology


Parents = list[int]

__all__ = ["SHAPES", "compose", "nodes_alike", "ratio_of_turns"]


def _binary(count: int) -> Parents:
    """Offset k is reached from offset (k - 1) // 2; the shallowest shape."""
    return [(offset - 1) // 2 for offset in range(count)]


def _two_chains(count: int) -> Parents:
    """Half of the offsets in each direction around the ring: every node receives from a
    neighbour.
    """
    half = count // 2
    return [offset - 1 if offset <= half else (offset + 1) % count for offset in range(count)]


def _chain(count: int) -> Parents:
    """Every offset is reached from the previous one."""
    return [offset - 1 for offset in range(count)]


SHAPES = (_binary, _two_chains, _chain)
"""Shapes of trees over nodes, as parents of all offsets except the first; shallow ones first, those
with the fewest crossings last.
"""


def nodes_alike(topology: Topology) -> Ints:
    """Ranks ``[node, place]`` of the finest groups if all have the same size.

    Otherwise every rank is a node.
    """
    n = topology.nranks
    for ids in list(topology.groups.values())[:1]:
        sizes = np.bincount(ids)
        if (sizes == sizes[0]).all() and sizes[0] < n:
            return np.argsort(ids, kind="stable").reshape(len(sizes), sizes[0])
    return np.arange(n)[:, None]


def _messages(
    nodes: Ints, inner: Sequence[Tree], steps: Ints, parts: int
) -> Iterator[tuple[Ints, Ints, int]]:
    """Sources and targets of the messages of all rotations, by distance over the nodes and by tree
    inside them, each with the copies of a part that it carries.
    """
    count = len(nodes)
    for step in np.flatnonzero(steps).tolist():
        yield (
            nodes.reshape(-1),
            nodes[(np.arange(count) + step) % count].reshape(-1),
            parts * int(steps[step]),
        )
    for tree in inner:
        if tree.links:  # a node may be a single rank
            parents, children = np.array(tree.links).T
            src, dst = nodes[:, parents], nodes[:, children]
            yield src.reshape(-1), dst.reshape(-1), tree.copies * count


def ratio_of_turns(
    topology: Topology, nodes: Ints, inner: Sequence[Tree], parents: Parents, *, backwards: bool
) -> Fraction | None:
    """Time of the most loaded link, as in :class:`simcoll.bounds.packing.Packing`; ``None`` if a
    message would pass through a rank.
    """
    count = len(nodes)
    parts = sum(tree.copies for tree in inner if tree.root == 0)
    steps = np.bincount(
        [(offset - parents[offset]) % count for offset in range(1, count)], minlength=count
    )
    ranks = np.zeros(len(topology.node_names), np.bool_)
    ranks[topology.rank_nodes] = True
    load = np.zeros(topology.nlinks, np.int64)
    # One distance or tree at a time: routes of all may take gigabytes, and the first may pass a
    # rank.
    for src, dst, copies in _messages(nodes, inner, steps, parts):
        ends = (dst, src) if backwards else (src, dst)
        routes = topology.route(*ends).links
        used = routes >= 0
        last = np.cumsum(used[:, ::-1], axis=1)[:, ::-1] == 1
        if not used[:, 0].all() or (used & ~last & ranks[topology.link_dst[routes]]).any():
            return None
        load += copies * np.bincount(routes[used], minlength=topology.nlinks)
    worst = max(
        Fraction(bytes_crossing, capacity)
        for bytes_crossing, capacity in zip(
            load.tolist(), topology.link_capacity_uBps.tolist(), strict=True
        )
        if bytes_crossing
    )
    return worst / parts * UBPS_PER_BPS


def compose(nodes: Ints, inner: Sequence[Tree], parents: Parents) -> tuple[Tree, ...]:
    """The trees out of every rank; ``inner`` are those of one node, over its places."""
    count, places = nodes.shape
    ranks, depth = nodes.tolist(), [0] * count
    for _ in range(count):  # a shape may have a parent that comes later
        depth = [0, *(depth[parents[offset]] + 1 for offset in range(1, count))]
    order = sorted(range(count), key=depth.__getitem__)
    trees = []
    for node in range(count):
        for place in range(places):
            for tree in (tree for tree in inner if tree.root == place):
                links = []
                for offset in order:
                    members = ranks[(node + offset) % count]
                    if offset:
                        links.append(
                            (ranks[(node + parents[offset]) % count][place], members[place])
                        )
                    links += [(members[a], members[b]) for a, b in tree.links]
                trees.append(Tree(ranks[node][place], tree.copies, tuple(links)))
    return tuple(trees)
