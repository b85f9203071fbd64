"""Pipelined chains: ranks in a row, pieces of the vector following one another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.algorithms import compose
from simcoll.algorithms.registered import algorithm
from simcoll.algorithms.ring import ring_orders
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers

__all__ = ["broadcast", "from_root", "reduce"]

PLACE = 3  # in listings

CHAN = "Chan, Heimlich, Purkayastha, van de Geijn: Collective communication, CCPE 19 (2007)"


def from_root(schedule: Schedule, rings: Ints, pieces: int) -> Schedule:
    """Parallel chains along rings, cut before the root, with pieces following one another."""
    n, root = schedule.nranks, schedule.collective.root or 0
    orders = np.empty_like(rings)
    for order, ring in zip(orders, rings, strict=True):
        order[(np.arange(n) + root) % n] = np.roll(ring, -int(np.flatnonzero(ring == root)[0]))
    return compose.pipelined(
        compose.channels(schedule, orders, by_rank=True), pieces, newest_first=True
    )


def rows(
    schedule: Schedule, *, channels: int = 1, pieces: int = 1, box: int | None = None
) -> Schedule:
    """Parallel chains from (or to) the root, ordered like rings."""
    return from_root(schedule, ring_orders(schedule.nranks, channels, box), pieces)


@algorithm(
    "broadcast",
    "chain",
    cost="(n-2+pieces)(a + s/pieces b)",
    source=CHAN,
    shared=rows,
)
def broadcast(collective: Collective) -> Schedule:
    """Every rank passes the vector to the next, starting from the root."""
    n, root, layout = collective.nranks, collective.root or 0, Layout(collective)

    def steps() -> Iterator[Step]:
        yield transfers(root, layout.input(), root, layout.output())
        for hop in range(n - 1):
            yield transfers(
                (root + hop) % n, layout.output(), (root + hop + 1) % n, layout.output()
            )

    return Schedule("chain", layout, steps)


@algorithm(
    "reduce",
    "chain",
    cost="(n-2+pieces)(a + s/pieces (b + g))",
    source=CHAN,
    order="run-consistent",
    shared=rows,
)
def reduce(collective: Collective) -> Schedule:
    """The reversed broadcast: each rank adds its vector to the arriving sum and passes it on."""
    n, root, layout, rank = (
        collective.nranks,
        collective.root or 0,
        Layout(collective),
        np.arange(collective.nranks),
    )

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output())
        for hop in reversed(range(n - 1)):
            yield transfers(
                (root + hop + 1) % n, layout.output(), (root + hop) % n, layout.output(), op=REDUCE
            )

    return Schedule("chain", layout, steps)
