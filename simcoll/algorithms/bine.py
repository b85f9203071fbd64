"""Bine trees: binomial trees on negabinary digits, whose partners alternate sides and stay closer.

Ranks above a power of two fold into a partner first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simcoll.algorithms import butterfly
from simcoll.algorithms.butterfly import BlockPlacement, fold, rooted_fold
from simcoll.algorithms.compose import in_channels
from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers

__all__ = ["all_gather", "all_reduce", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"]

PLACE = 13  # in listings

BINE = (
    "De Sensi et al.: Bine trees, enhancing collective operations by optimizing communication "
    "locality, SC 2025, arXiv 2508.17311"
)


def _tree(peers: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Parents and children, step by step, if every holder passes the data to its partner; member 0
    starts.
    """
    have = np.zeros(1, np.int64)
    for peer in peers:
        yield have, peer[have]
        have = np.concatenate([have, peer[have]])


@algorithm(
    "broadcast",
    "bine",
    cost="lg n (a + s b), n = 2^k",
    source=BINE,
    pattern="tree",
    shared=in_channels,
)
def broadcast(collective: Collective) -> Schedule:
    """Whole vectors down the tree, the largest distance first."""
    root = collective.root or 0
    ranks = rooted_fold(collective.nranks, root)
    members, rank_of = ranks.members, ranks.rank_of
    even, odd = ranks.even, ranks.odd
    layout = Layout(collective)
    chunk = layout.output()

    def steps() -> Iterator[Step]:
        yield transfers(root, layout.input(), root, chunk)
        for parent, child in _tree(butterfly.swing_peers(members)[::-1]):
            yield transfers(rank_of[parent], chunk, rank_of[child], chunk)
        yield transfers(odd, chunk, even, chunk)

    return Schedule("bine", layout, steps)


@algorithm(
    "reduce",
    "bine",
    cost="lg n (a + s b + s g), n = 2^k",
    source=BINE,
    pattern="tree",
    order="position-independent",
    shared=in_channels,
)
def reduce(collective: Collective) -> Schedule:
    """The reversed broadcast: the smallest distance first."""
    ranks = rooted_fold(collective.nranks, collective.root or 0)
    members, rank_of = ranks.members, ranks.rank_of
    even, odd = ranks.even, ranks.odd
    layout, rank = Layout(collective), np.arange(collective.nranks)
    chunk = layout.output()

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, chunk)
        yield transfers(even, chunk, odd, chunk, op=REDUCE)
        for parent, child in reversed(list(_tree(butterfly.swing_peers(members)[::-1]))):
            yield transfers(rank_of[child], chunk, rank_of[parent], chunk, op=REDUCE)

    return Schedule("bine", layout, steps)


class SubtreeEdges(NamedTuple):
    """Edges from parents to children, and the range of each child's subtree: first place and
    size.
    """

    parent: Ints
    child: Ints
    low: Ints
    size: Ints


def _edges(blocks: BlockPlacement) -> list[SubtreeEdges]:
    """The edges of the tree, step by step from the root."""
    return [
        SubtreeEdges(
            blocks.rank_of[parent],
            blocks.rank_of[child],
            *blocks.range_after(blocks.number[child], step),
        )
        for step, (parent, child) in enumerate(_tree(blocks.peers))
    ]


@algorithm(
    "gather",
    "bine",
    cost="lg n a + (n-1)/n s b, n = 2^k",
    source=BINE,
    pattern="tree",
)
def gather(collective: Collective) -> Schedule:
    """Every child sends the blocks of its subtree, the largest distance and least data first."""
    n, root = collective.nranks, collective.root or 0
    blocks = BlockPlacement(collective, butterfly.swing_peers(fold(n).members))
    layout, rank, slot = blocks.layout, np.arange(n), np.arange(n)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.scratch_at(blocks.place))
        folded = layout.scratch_at(blocks.place[blocks.even])
        yield transfers(blocks.even, folded, blocks.odd, folded)
        for edges in reversed(_edges(blocks)):
            place = layout.scratch_at(edges.low)
            yield transfers(edges.child, place, edges.parent, place, count=edges.size)
        yield transfers(root, layout.scratch_at(slot), root, layout.output(blocks.order))

    return Schedule("bine", layout, steps)


@algorithm(
    "scatter",
    "bine",
    cost="lg n a + (n-1)/n s b, n = 2^k",
    source=BINE,
    pattern="tree",
)
def scatter(collective: Collective) -> Schedule:
    """The reversed gather: most data and the smallest distance first."""
    n, root = collective.nranks, collective.root or 0
    blocks = BlockPlacement(collective, butterfly.swing_peers(fold(n).members))
    layout, slot = blocks.layout, np.arange(n)

    def steps() -> Iterator[Step]:
        yield transfers(root, layout.input(blocks.order), root, layout.scratch_at(slot))
        for edges in _edges(blocks):
            place = layout.scratch_at(edges.low)
            yield transfers(edges.parent, place, edges.child, place, count=edges.size)
        yield transfers(
            blocks.rank_of,
            layout.scratch_at(blocks.place[blocks.rank_of]),
            blocks.rank_of,
            layout.output(),
        )
        yield transfers(
            blocks.odd, layout.scratch_at(blocks.place[blocks.even]), blocks.even, layout.output()
        )

    return Schedule("bine", layout, steps)


@algorithm(
    "all_gather",
    "bine",
    cost="lg n a + (n-1)/n s b, n = 2^k",
    source=BINE,
    pattern="tree",
)
def all_gather(collective: Collective) -> Schedule:
    """Doubling along the trees' partners, the largest distance and least data first."""
    return butterfly.all_gather(
        "bine", collective, butterfly.swing_peers(fold(collective.nranks).members)
    )


@algorithm(
    "reduce_scatter",
    "bine",
    cost="lg n a + (n-1)/n s (b + g), n = 2^k",
    source=BINE,
    pattern="tree",
    order="run-consistent",
)
def reduce_scatter(collective: Collective) -> Schedule:
    """Halving along the trees' partners, most data and the smallest distance first."""
    return butterfly.reduce_scatter(
        "bine", collective, butterfly.swing_peers(fold(collective.nranks).members)
    )


@algorithm(
    "all_reduce",
    "bine",
    cost="2 lg n a + 2(n-1)/n s b + (n-1)/n s g, n = 2^k",
    source=BINE,
    pattern="tree",
    order="run-consistent",
    shared=in_channels,
)
def all_reduce(collective: Collective) -> Schedule:
    """Reduce-scatter, then all-gather: in one dimension these are the partners of swing."""
    return butterfly.all_reduce(
        "bine", collective, butterfly.swing_peers(fold(collective.nranks).members)
    )
