"""Direct algorithms: every block travels straight from its source to its destination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simcoll.algorithms.compose import in_channels
from simcoll.algorithms.pairs import pair_by_pair
from simcoll.algorithms.registered import algorithm
from simcoll.core.collective import Collective
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, transfers

__all__ = [
    "all_gather",
    "linear_broadcast",
    "linear_gather",
    "linear_reduce",
    "linear_scatter",
    "one_shot_all_reduce",
    "reduce_scatter",
    "two_shot_all_reduce",
]

PLACE = 14  # in listings

PAIRS = "all pairs at once; the messages of a rank share its port"
LINE = "one rank after the other"


def _add_up(layout: Layout, total: Any) -> Iterator[Step]:
    """Every rank adds the contents of its scratch slots, in the order of the slots."""
    rank = np.arange(layout.collective.nranks)
    for source in rank.tolist():
        op = REDUCE if source else COPY
        yield transfers(rank, layout.scratch_at(source), rank, total, op=op)


@algorithm(
    "all_gather",
    "direct",
    cost="a + (n-1)/n s b",
    source=PAIRS,
    shared=pair_by_pair,
)
def all_gather(collective: Collective) -> Schedule:
    """Every rank sends its block to all others at once."""
    layout, rank = Layout(collective), np.arange(collective.nranks)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank[:, None], layout.output(rank))

    return Schedule("direct", layout, steps)


@algorithm(
    "reduce_scatter",
    "direct",
    cost="a + (n-1)/n s (b + g)",
    source=PAIRS,
    order="position-independent",
)
def reduce_scatter(collective: Collective) -> Schedule:
    """Every rank sends each block to its owner at once; the owner adds them in rank order."""
    n = collective.nranks
    rank = np.arange(n, dtype=np.int64)
    layout = Layout(collective, 1, np.repeat(rank[:, None], n, axis=1))

    def steps() -> Iterator[Step]:
        owner = rank[:, None]
        yield transfers(rank, layout.input(owner), owner, layout.scratch_at(rank))
        yield from _add_up(layout, layout.output())

    return Schedule("direct", layout, steps)


@algorithm(
    "all_reduce",
    "one_shot",
    cost="a + (n-1) s (b + g)",
    source=PAIRS,
    order="position-independent",
)
def one_shot_all_reduce(collective: Collective) -> Schedule:
    """Every rank sends its whole vector to all others; each adds them in rank order."""
    n = collective.nranks
    rank = np.arange(n, dtype=np.int64)
    layout = Layout(collective, 1, np.zeros(n, np.int64))

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank[:, None], layout.scratch_at(rank))
        yield from _add_up(layout, layout.output())

    return Schedule("one_shot", layout, steps)


@algorithm(
    "all_reduce",
    "two_shot",
    cost="2a + 2(n-1)/n s b + (n-1)/n s g",
    source=PAIRS,
    order="position-independent",
)
def two_shot_all_reduce(collective: Collective) -> Schedule:
    """Every rank adds one segment of all vectors in rank order and sends the result to all."""
    n = collective.nranks
    rank = np.arange(n, dtype=np.int64)
    owner = rank[:, None]
    # A rank receives n copies of its own segment.
    landing = np.broadcast_to(owner, (n, n))
    layout = Layout(collective, n, np.broadcast_to(0 * owner, (n, n)), landing)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(0, owner), owner, layout.scratch_at(rank))
        yield from _add_up(layout, layout.output(0, rank))
        sender, receiver = np.nonzero(owner != rank)
        segment = layout.output(0, sender)
        yield transfers(sender, segment, receiver, segment)

    return Schedule("two_shot", layout, steps)


@algorithm(
    "broadcast",
    "linear",
    cost="(n-1)(a + s b)",
    source=LINE,
    shared=in_channels,
)
def linear_broadcast(collective: Collective) -> Schedule:
    """The root sends to one rank after the other."""
    n, root, layout = collective.nranks, collective.root or 0, Layout(collective)

    def steps() -> Iterator[Step]:
        for shift in range(n):
            yield transfers(root, layout.input(), (root + shift) % n, layout.output())

    return Schedule("linear", layout, steps)


@algorithm(
    "reduce",
    "linear",
    cost="(n-1)(a + s b + s g)",
    source=LINE,
    order="position-independent",
    shared=in_channels,
)
def linear_reduce(collective: Collective) -> Schedule:
    """The root adds the vectors of one rank after the other."""
    n, root, layout = collective.nranks, collective.root or 0, Layout(collective)

    def steps() -> Iterator[Step]:
        for shift in range(n):
            yield transfers(
                (root + shift) % n,
                layout.input(),
                root,
                layout.output(),
                op=REDUCE if shift else COPY,
            )

    return Schedule("linear", layout, steps)


@algorithm(
    "gather",
    "linear",
    cost="(n-1)a + (n-1)/n s b",
    source=LINE,
)
def linear_gather(collective: Collective) -> Schedule:
    """The root receives the block of one rank after the other."""
    n, root, layout = collective.nranks, collective.root or 0, Layout(collective)

    def steps() -> Iterator[Step]:
        for shift in range(n):
            rank = (root + shift) % n
            yield transfers(rank, layout.input(), root, layout.output(rank))

    return Schedule("linear", layout, steps)


@algorithm(
    "scatter",
    "linear",
    cost="(n-1)a + (n-1)/n s b",
    source=LINE,
)
def linear_scatter(collective: Collective) -> Schedule:
    """The root sends each rank its block, one after the other."""
    n, root, layout = collective.nranks, collective.root or 0, Layout(collective)

    def steps() -> Iterator[Step]:
        # The root's own block comes last: in place, its output overlaps that block.
        for shift in range(1, n + 1):
            rank = (root + shift) % n
            yield transfers(root, layout.input(rank), rank, layout.output())

    return Schedule("linear", layout, steps)
