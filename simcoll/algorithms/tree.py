"""Binomial trees: in step k every rank that has the data passes it on over 2^k places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simcoll.algorithms.compose import in_pieces
from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers

__all__ = ["all_reduce", "binomial_edges", "broadcast", "gather", "reduce", "scatter"]

PLACE = 2  # in listings

THAKUR = (
    "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in "
    "MPICH, IJHPCA 19 (2005)"
)


def binomial_edges(nranks: int, level: int) -> tuple[Ints, Ints, Ints]:
    """Parents and children of one level, and the size of each child's subtree: itself and the
    following ranks.

    >>> [column.tolist() for column in binomial_edges(7, 1)]
    [[0, 4], [2, 6], [2, 1]]
    """
    child = np.arange(1 << level, nranks, 2 << level, dtype=np.int64)
    return child - (1 << level), child, np.minimum(1 << level, nranks - child)


def _levels(nranks: int) -> int:
    return (nranks - 1).bit_length()


def _up(layout: Layout, root: int) -> Iterator[Step]:
    """Every child adds its vector to its parent's, the nearest first."""
    n, vector = layout.collective.nranks, layout.output()
    for level in range(_levels(n)):
        parent, child, _ = binomial_edges(n, level)
        yield transfers((child + root) % n, vector, (parent + root) % n, vector, op=REDUCE)


def _down(layout: Layout, root: int) -> Iterator[Step]:
    """Every parent passes the vector to its child, the farthest first."""
    n, vector = layout.collective.nranks, layout.output()
    for level in reversed(range(_levels(n))):
        parent, child, _ = binomial_edges(n, level)
        yield transfers((parent + root) % n, vector, (child + root) % n, vector)


@algorithm(
    "broadcast",
    "tree",
    cost="ceil(lg n)(a + s b)",
    source=THAKUR,
    pattern="tree",
    shared=in_pieces,
)
def broadcast(collective: Collective) -> Schedule:
    """Binomial broadcast: every rank that has the vector passes it on, the farthest child first."""
    layout, root = Layout(collective), collective.root or 0

    def steps() -> Iterator[Step]:
        yield transfers(root, layout.input(), root, layout.output())
        yield from _down(layout, root)

    return Schedule("tree", layout, steps)


@algorithm(
    "reduce",
    "tree",
    cost="ceil(lg n)(a + s b + s g)",
    source=THAKUR,
    pattern="tree",
    order="position-independent",
    shared=in_pieces,
)
def reduce(collective: Collective) -> Schedule:
    """Binomial reduce: the reversed broadcast, the nearest child first."""
    layout, rank = Layout(collective), np.arange(collective.nranks)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output())
        yield from _up(layout, collective.root or 0)

    return Schedule("tree", layout, steps)


@algorithm(
    "all_reduce",
    "tree",
    cost="2 ceil(lg n)(a + s b) + ceil(lg n) s g",
    source=THAKUR,
    pattern="tree",
    order="position-independent",
    shared=in_pieces,
)
def all_reduce(collective: Collective) -> Schedule:
    """Binomial reduce to rank 0, then binomial broadcast."""
    layout, rank = Layout(collective), np.arange(collective.nranks)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output())
        yield from _up(layout, 0)
        yield from _down(layout, 0)

    return Schedule("tree", layout, steps)


class Subtrees(NamedTuple):
    """Parent, child, first block and number of blocks of subtrees."""

    parent: Ints
    child: Ints
    block: Ints
    size: Ints


def _subtrees(collective: Collective, level: int) -> Subtrees:
    """A level's subtrees; blocks beyond the last rank form a separate part."""
    n, root = collective.nranks, collective.root or 0
    parent, child, size = binomial_edges(n, level)
    start = (child + root) % n
    head = np.minimum(size, n - start)
    wrapping = np.flatnonzero(head < size)
    rows = np.concatenate([np.arange(len(child)), wrapping])
    block = np.concatenate([start, np.zeros(len(wrapping), np.int64)])
    count = np.concatenate([head, size[wrapping] - head[wrapping]])
    return Subtrees((parent[rows] + root) % n, (child[rows] + root) % n, block, count)


@algorithm(
    "gather",
    "tree",
    cost="ceil(lg n) a + (n-1)/n s b",
    source=THAKUR,
    pattern="tree",
)
def gather(collective: Collective) -> Schedule:
    """Binomial gather: the nearest child first, every child sends the blocks of its whole
    subtree.
    """
    n = collective.nranks
    layout, rank = Layout(collective), np.arange(n, dtype=np.int64)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(rank))
        for level in range(_levels(n)):
            subtrees = _subtrees(collective, level)
            place = layout.output(subtrees.block)
            yield transfers(subtrees.child, place, subtrees.parent, place, count=subtrees.size)

    return Schedule("tree", layout, steps)


@algorithm(
    "scatter",
    "tree",
    cost="ceil(lg n) a + (n-1)/n s b",
    source=THAKUR,
    pattern="tree",
)
def scatter(collective: Collective) -> Schedule:
    """Binomial scatter: the farthest child first, every child receives the blocks of its whole
    subtree.
    """
    n, root = collective.nranks, collective.root or 0
    layout, rank = Layout(collective, 1, np.arange(n)), np.arange(n, dtype=np.int64)

    def steps() -> Iterator[Step]:
        for level in reversed(range(_levels(n))):
            subtrees = _subtrees(collective, level)
            parent, place = subtrees.parent, layout.scratch_at(subtrees.block)
            address = np.where(parent == root, layout.input(subtrees.block), place)
            yield transfers(parent, address, subtrees.child, place, count=subtrees.size)
        block = np.where(rank == root, layout.input(rank), layout.scratch_at(rank))
        yield transfers(rank, block, rank, layout.output())

    return Schedule("tree", layout, steps)
