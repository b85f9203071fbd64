"""NCCL's tree: a chain in every node, a double binary tree over the nodes (``src/graph/trees.cc``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms import compose
from simcoll.algorithms.double_tree import SANDERS, binary_tree
from simcoll.algorithms.registered import algorithm
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from simcoll.core.collective import Collective

    Ints = NDArray[np.int64]

__all__ = ["all_reduce", "levels", "tree_orders"]


def tree_orders(nranks: int, box: int, pairs: int) -> list[Ints]:
    """Numberings of the ranks for pairs of trees: member c of every node leads in pair c, the second tree mirrors the nodes.

    An odd number of nodes is shifted by one instead, so that no node but one has children in both trees.

    >>> [order.tolist() for order in tree_orders(6, 2, 1)]
    [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 0, 1]]
    """
    node, member = np.divmod(np.arange(nranks, dtype=np.int64), box)
    nodes = nranks // box
    other = (node + 1) % nodes if nodes % 2 else nodes - 1 - node
    return [home * box + (member + lead) % box for lead in range(pairs) for home in (node, other)]


def levels(parent: Ints) -> list[Ints]:
    """The ranks below the root of a tree, level by level.

    >>> [level.tolist() for level in levels(np.array([-1, 0, 0, 2]))]
    [[1, 2], [3]]
    """
    found = [np.flatnonzero(parent < 0)]
    while len(found[-1]):
        found.append(np.flatnonzero(np.isin(parent, found[-1])))
    return found[1:-1]


@algorithm(
    "all_reduce",
    "nccl_tree",
    cost="about 2(g-1 + lg m)a + max(2(g-1)/g s b_box, 2 s/g b_net), m nodes of g, g channels, many pieces",
    source=SANDERS,
    pattern="tree",
    topologies="boxes",
    order="run-consistent",
)
def all_reduce(collective: Collective, *, channels: int = 1, pieces: int = 4, box: int | None = None) -> Schedule:
    """Sums go up, and results down, the chain of every node and a binary tree of the nodes' first members.

    A rank adds what its children send in one step. Both trees of a pair run at once, each with half of the data; ``channels`` counts
    the pairs, each on another rail. With pieces, up and down are channels of their own, so that neither waits for the other.
    """
    n, lane = collective.nranks, int(pieces > 1)
    size = box or n
    if n % size:
        raise ConfigError(f"box={box} does not divide the {n} ranks")
    layout, rank = Layout(collective), np.arange(n, dtype=np.int64)
    parent, vector = rank - 1, layout.output()
    parent[::size] = np.array(binary_tree(n // size)) * size
    below = levels(parent)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, vector)
        for level in reversed(below):
            yield transfers(level, vector, parent[level], vector, op=REDUCE)
        for level in below:
            yield transfers(parent[level], vector, level, vector, channel=lane)

    tree = Schedule("nccl_tree", layout, steps, 1 + lane)
    return compose.pipelined(compose.channels(tree, tree_orders(n, size, channels)), pieces)
