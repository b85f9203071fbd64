"""Binomial trees: in step k every rank that has the data passes it 2^k places on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms.registered import algorithm
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, joined, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from simcoll.core.collective import Collective

    Ints = NDArray[np.int64]

__all__ = ["all_reduce", "binomial_edges", "broadcast", "gather", "reduce", "scatter"]

THAKUR = "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"


def binomial_edges(nranks: int, level: int) -> tuple[Ints, Ints, Ints]:
    """Parents and children of one level, and how many ranks the subtree of each child has: itself and the following ones.

    >>> [column.tolist() for column in binomial_edges(7, 1)]
    [[0, 4], [2, 6], [2, 1]]
    """
    child = np.arange(1 << level, nranks, 2 << level, dtype=np.int64)
    return child - (1 << level), child, np.minimum(1 << level, nranks - child)


def _levels(nranks: int) -> int:
    return (nranks - 1).bit_length()


def _round(layout: Layout, level: int, root: int, shares: tuple[int, int], *, up: bool) -> Step:
    """One level of the tree for one piece of every channel: to the children, or (``up``) from them."""
    n, (channels, pieces) = layout.collective.nranks, shares
    parent, child, _ = binomial_edges(n, level)
    channel = np.arange(channels, dtype=np.int64)[:, None]
    src, dst = (child, parent) if up else (parent, child)
    chunk = layout.output(0, channel * pieces)
    return transfers((src + root) % n, chunk, (dst + root) % n, chunk, op=REDUCE if up else COPY, channel=channel)


def _shifted(step: Step, piece: int) -> Step:
    return Step(
        step.src_rank, step.src_chunk + piece, step.dst_rank, step.dst_chunk + piece, step.count, step.op, step.channel
    )


def _pipelined(rounds: list[Step], pieces: int) -> Iterator[Step]:
    """Pieces follow each other through the rounds: step t does round t - p of piece p."""
    for time in range(len(rounds) + pieces - 1 if rounds else 0):
        ready = [_shifted(rounds[time - piece], piece) for piece in range(pieces) if 0 <= time - piece < len(rounds)]
        yield joined(ready)


def _load(layout: Layout, ranks: list[int], channels: int, pieces: int) -> Step:
    """Copy the inputs of some ranks to where the tree works on them."""
    rank, channel = np.array(ranks), np.arange(channels)[:, None]
    share = channel * pieces
    return transfers(rank, layout.input(0, share), rank, layout.output(0, share), count=pieces, channel=channel)


def _schedule(collective: Collective, channels: int, pieces: int, *, up: bool, down: bool) -> Schedule:
    n, root = collective.nranks, collective.root or 0
    layout = Layout(collective, channels * pieces)
    levels = range(_levels(n))

    def steps() -> Iterator[Step]:
        yield _load(layout, list(range(n)) if up else [root], channels, pieces)
        shares = (channels, pieces)
        if up:
            yield from _pipelined([_round(layout, level, root, shares, up=True) for level in levels], pieces)
        if down:
            yield from _pipelined([_round(layout, level, root, shares, up=False) for level in reversed(levels)], pieces)

    return Schedule("tree", layout, steps, channels, (("channels", channels), ("pieces", pieces)))


@algorithm(
    "broadcast",
    "tree",
    cost="ceil(lg n)(a + s b)",
    source=THAKUR,
    pattern="tree",
)
def broadcast(collective: Collective, *, channels: int = 1, pieces: int = 1) -> Schedule:
    """Binomial broadcast: the farthest child first. ``pieces`` pipelines the vector through the tree."""
    return _schedule(collective, channels, pieces, up=False, down=True)


@algorithm(
    "reduce",
    "tree",
    cost="ceil(lg n)(a + s b + s g)",
    source=THAKUR,
    pattern="tree",
    order="position-independent",
)
def reduce(collective: Collective, *, channels: int = 1, pieces: int = 1) -> Schedule:
    """Binomial reduce: the broadcast backwards, the nearest child first."""
    return _schedule(collective, channels, pieces, up=True, down=False)


@algorithm(
    "all_reduce",
    "tree",
    cost="2 ceil(lg n)(a + s b) + ceil(lg n) s g",
    source=THAKUR,
    pattern="tree",
    order="position-independent",
)
def all_reduce(collective: Collective, *, channels: int = 1, pieces: int = 1) -> Schedule:
    """Binomial reduce to rank 0, then binomial broadcast."""
    return _schedule(collective, channels, pieces, up=True, down=True)


def _subtrees(collective: Collective, level: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Parent, child, first block and number of blocks of the subtrees of a level; what passes the last rank is a part of its own."""
    n, root = collective.nranks, collective.root or 0
    parent, child, size = binomial_edges(n, level)
    first = (child + root) % n
    head = np.minimum(size, n - first)
    over = np.flatnonzero(head < size)
    both = np.concatenate([np.arange(len(child)), over])
    block = np.concatenate([first, np.zeros(len(over), np.int64)])
    count = np.concatenate([head, size[over] - head[over]])
    return (parent[both] + root) % n, (child[both] + root) % n, block, count


@algorithm(
    "gather",
    "tree",
    cost="ceil(lg n) a + (n-1)/n s b",
    source=THAKUR,
    pattern="tree",
)
def gather(collective: Collective) -> Schedule:
    """Binomial gather: the nearest child first, every child sends the blocks of its whole subtree."""
    n = collective.nranks
    layout, rank = Layout(collective), np.arange(n, dtype=np.int64)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(rank))
        for level in range(_levels(n)):
            parent, child, block, count = _subtrees(collective, level)
            yield transfers(child, layout.output(block), parent, layout.output(block), count=count)

    return Schedule("tree", layout, steps)


@algorithm(
    "scatter",
    "tree",
    cost="ceil(lg n) a + (n-1)/n s b",
    source=THAKUR,
    pattern="tree",
)
def scatter(collective: Collective) -> Schedule:
    """Binomial scatter: the farthest child first, every child gets the blocks of its whole subtree."""
    n, root = collective.nranks, collective.root or 0
    layout, rank = Layout(collective, 1, np.arange(n)), np.arange(n, dtype=np.int64)

    def steps() -> Iterator[Step]:
        for level in reversed(range(_levels(n))):
            parent, child, block, count = _subtrees(collective, level)
            held = np.where(parent == root, layout.input(block), layout.scratch_at(block))
            yield transfers(parent, held, child, layout.scratch_at(block), count=count)
        own = np.where(rank == root, layout.input(rank), layout.scratch_at(rank))
        yield transfers(rank, own, rank, layout.output())

    return Schedule("tree", layout, steps)
