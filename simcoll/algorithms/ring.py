"""Ring algorithms: every rank passes segments to its neighbour, so that each link carries every
byte once.

With ``box``, the number of ranks per node, the rings of different channels leave each node through
different members, and every other node is traversed backwards, so that a message between nodes
stays on its rail (in nodes of two, only for an even number of nodes). The bidirectional forms send
half of the data in the opposite direction, for topologies whose links are full-duplex rings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from simcoll.algorithms import compose
from simcoll.algorithms.grid_stages import nodes_of
from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Repeat, Schedule, Step, joined, transfers

__all__ = [
    "all_gather",
    "all_reduce",
    "bidirectional_all_gather",
    "bidirectional_all_reduce",
    "bidirectional_reduce_scatter",
    "reduce_scatter",
    "ring_orders",
]

PLACE = 1  # in listings

PATARASUK = "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms, JPDC 69 (2009)"


def ring_orders(nranks: int, channels: int, box: int | None, cycles: Ints | None = None) -> Ints:
    """The rank at each position of each channel's ring: ``[channels, nranks]``.

    ``cycles`` gives each ring in its first node.

    >>> ring_orders(8, 2, 4).tolist()
    [[0, 1, 2, 3, 7, 6, 5, 4], [1, 2, 3, 0, 4, 7, 6, 5]]
    """
    rank = np.arange(nranks, dtype=np.int64)
    if box is None:
        return np.tile(rank, (channels, 1))
    nodes, local = nodes_of(nranks, box)[0], rank % box
    walk = np.where(rank // box % 2 == 1, box - 1 - local, local)
    if cycles is None:
        cycles = (np.arange(box) + np.arange(channels)[:, None]) % box
        # The last node is left, and the first entered, by a third rail.
        if nodes % 2 and nodes > 1 and box > 2:
            walk[:2], walk[-box:] = (1, 0), (0, *range(2, box), 1)
    return rank - local + cycles[:, walk]


def rings(
    schedule: Schedule, *, channels: int = 1, pieces: int = 1, box: int | None = None
) -> Schedule:
    """Parallel rings, whose segments are cut into pieces that follow each other."""
    return compose.channels(
        compose.pieces(schedule, pieces), ring_orders(schedule.nranks, channels, box)
    )


def both_ways(
    schedule: Schedule, *, channels: int = 1, pieces: int = 1, box: int | None = None
) -> Schedule:
    """Parallel pairs of rings in opposite directions."""
    orders = ring_orders(schedule.nranks, channels, box)
    return compose.channels(
        compose.pieces(schedule, pieces), np.concatenate([orders, orders[:, ::-1]])
    )


@algorithm(
    "all_reduce",
    "ring",
    cost="2(n-1)a + 2(n-1)/n s b + (n-1)/n s g",
    source=PATARASUK,
    order="run-consistent",
    shared=rings,
)
def all_reduce(collective: Collective) -> Schedule:
    """Reduce every segment once around the ring, then pass the results on: n-1 steps each."""
    n = collective.nranks
    layout, rank = Layout(collective, chunks=n), np.arange(n)

    def turn(lead: int, **op: Any) -> tuple[Step]:
        segment = layout.output(0, (rank + lead) % n)
        return (transfers(rank, segment, (rank + 1) % n, segment, **op),)

    def steps() -> Iterator[Step | Repeat]:
        yield transfers(rank, layout.input(), rank, layout.output(), count=n)
        yield Repeat(turn(0, op=REDUCE), n - 1, -1, layout.output_base, n)
        yield Repeat(turn(1), n - 1, -1, layout.output_base, n)

    return Schedule("ring", layout, steps)


@algorithm("all_gather", "ring", cost="(n-1)a + (n-1)/n s b", source=PATARASUK, shared=rings)
def all_gather(collective: Collective) -> Schedule:
    """In each of n-1 steps, every rank passes on the block received in the previous step."""
    layout, rank = Layout(collective), np.arange(collective.nranks)

    def steps() -> Iterator[Step | Repeat]:
        block = layout.output(rank)
        yield transfers(rank, layout.input(), rank, block)
        yield Repeat(
            (transfers(rank, block, np.roll(rank, -1), block),),
            len(rank) - 1,
            -1,
            layout.output_base,
            len(rank),
        )

    return Schedule("ring", layout, steps)


@algorithm(
    "reduce_scatter",
    "ring",
    cost="(n-1)a + (n-1)/n s b + (n-1)/n s g",
    source=PATARASUK,
    order="run-consistent",
    shared=rings,
)
def reduce_scatter(collective: Collective) -> Schedule:
    """The block of a rank starts at its successor and gathers contributions all the way around.

    Every rank copies its own contribution one step before it is needed.
    """
    n = collective.nranks
    layout, rank = Layout(collective, 1, np.arange(n)), np.arange(n)

    def own(slot: Ints) -> Step:
        home = np.where(slot == rank, layout.output(), layout.scratch_at(slot))
        return transfers(rank, layout.input(slot), rank, home)

    def pass_on(step: int) -> Step:
        partial_sum = layout.scratch_at(np.roll(rank, 1 + step))
        return transfers(
            rank,
            partial_sum,
            np.roll(rank, -1),
            layout.output() if step == n - 2 else partial_sum,
            op=REDUCE,
        )

    def turn(step: int) -> Step:
        return joined([pass_on(step), own((rank - 3 - step) % n)])

    def steps() -> Iterator[Step | Repeat]:
        yield own((rank - np.arange(1, min(n, 2) + 1)[:, None]) % n)
        if n > 3:
            slots = np.concatenate([layout.input(rank), layout.scratch_at(rank)])
            yield Repeat((turn(0),), n - 3, -1, 0, n, slots)
        if n > 2:
            yield turn(n - 3)
        if n > 1:
            yield pass_on(n - 2)

    return Schedule("ring", layout, steps)


BOTH_WAYS: dict[str, Any] = {
    "name": "bidirectional_ring",
    "machine": "ring",
    "topologies": "torus",
    "shared": both_ways,
}
"""Two rings in opposite directions, each with half of the data; ``channels`` counts such pairs."""

bidirectional_all_reduce = replace(all_reduce, cost="2(n-1)a + (n-1)/n s (2b + g)/2", **BOTH_WAYS)
bidirectional_all_gather = replace(all_gather, cost="(n-1)a + (n-1)/n s b/2", **BOTH_WAYS)
bidirectional_reduce_scatter = replace(
    reduce_scatter, cost="(n-1)a + (n-1)/n s (b + g)/2", **BOTH_WAYS
)
