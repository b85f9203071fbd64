"""NCCL's tree: a chain in every node, a double binary tree over the nodes
(``src/graph/trees.cc``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.algorithms import compose
from simcoll.algorithms.double_tree import SANDERS, binary_tree, tree_orders
from simcoll.algorithms.grid_stages import nodes_of
from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers

__all__ = ["all_reduce", "levels"]

PLACE = 6  # in listings


def levels(parent: Ints) -> list[Ints]:
    """The ranks below the root of a tree, level by level.

    >>> [level.tolist() for level in levels(np.array([-1, 0, 0, 2]))]
    [[1, 2], [3]]
    """
    tree_levels = [np.flatnonzero(parent < 0)]
    while len(tree_levels[-1]):
        tree_levels.append(np.flatnonzero(np.isin(parent, tree_levels[-1])))
    return tree_levels[1:-1]


@algorithm(
    "all_reduce",
    "nccl_tree",
    cost="at most 2(box-1 + ceil(lg nodes))a + 2(box-1)/box s b_box + (2 ceil(lg nodes) - 1)/box s "
    "b_net, channels = box; "
    "many pieces: max(2(box-1)/box s b_box, 2/box s b_net)",
    machine="boxes",
    source=SANDERS,
    pattern="tree",
    topologies="boxes",
    order="run-consistent",
)
def all_reduce(
    collective: Collective, *, channels: int = 1, pieces: int = 4, box: int | None = None
) -> Schedule:
    """Sums travel up, and results down, the chain of every node and a binary tree of the nodes'
    first members.

    A rank adds the data of its children in one step. Both trees of a pair run at once, each with
    half of the data; ``channels`` counts the pairs, each on another rail. With pieces, up and down
    are separate channels, so that neither waits for the other.
    """
    n, lane, (nodes, size) = collective.nranks, int(pieces > 1), nodes_of(collective.nranks, box)
    layout, rank = Layout(collective), np.arange(n)
    parent, vector = rank - 1, layout.output()
    parent[::size] = np.array(binary_tree(nodes)) * size
    below = levels(parent)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, vector)
        for level in reversed(below):
            yield transfers(level, vector, parent[level], vector, op=REDUCE)
        for level in below:
            yield transfers(parent[level], vector, level, vector, channel=lane)

    tree = Schedule("nccl_tree", layout, steps, 1 + lane)
    return compose.pipelined(compose.channels(tree, tree_orders(n, size, channels)), pieces)
