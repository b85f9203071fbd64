"""Ring algorithms: every rank passes segments to its neighbour, so that each link carries every byte once.

With ``box`` the rings of different channels leave each box of that many consecutive ranks through different members, and every other box is
walked backwards, so that a message between boxes stays on its rail. The bidirectional forms run half of the data the other way round, for
machines whose links are full duplex rings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms.registered import algorithm
from simcoll.core.schedule import COPY, REDUCE, Layout, Repeat, Schedule, Step, transfers
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from simcoll.core.collective import Collective

__all__ = [
    "all_gather",
    "all_reduce",
    "bidirectional_all_gather",
    "bidirectional_all_reduce",
    "bidirectional_reduce_scatter",
    "reduce_scatter",
    "ring_orders",
]

PATARASUK = "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms, JPDC 69 (2009)"


def ring_orders(nranks: int, channels: int, box: int | None) -> NDArray[np.int64]:
    """The rank at each position of each channel's ring: ``[channels, nranks]``.

    >>> ring_orders(8, 2, 4).tolist()
    [[0, 1, 2, 3, 7, 6, 5, 4], [1, 2, 3, 0, 4, 7, 6, 5]]
    """
    rank = np.arange(nranks, dtype=np.int64)
    if box is None:
        return np.tile(rank, (channels, 1))
    if nranks % box:
        raise ConfigError(f"box={box} does not divide the {nranks} ranks")
    local = rank % box
    walk = np.where(rank // box % 2 == 1, box - 1 - local, local)
    return rank - local + (walk + np.arange(channels)[:, None]) % box


class _Ring:
    """Ranks, neighbours, positions and lanes of parallel rings, as arrays ``[lanes, nranks]``."""

    def __init__(self, nranks: int, channels: int, pieces: int, box: int | None, *, both: bool) -> None:
        orders = ring_orders(nranks, channels, box)
        self.rank = np.concatenate([orders, orders[:, ::-1]]) if both else orders
        self.next = np.roll(self.rank, -1, axis=1)
        self.position = np.tile(np.arange(nranks, dtype=np.int64), (len(self.rank), 1))
        self.lanes = len(self.rank)
        self.lane = np.arange(self.lanes, dtype=np.int64)[:, None]
        self.pieces = pieces
        self.name = "bidirectional_ring" if both else "ring"
        self.params = (("channels", channels), ("pieces", pieces), ("box", box))

    def share(self, piece: int) -> NDArray[np.int64]:
        """Chunk, inside a block of ``lanes * pieces``, of each lane's piece."""
        return self.lane * self.pieces + piece


def _all_reduce(collective: Collective, ring: _Ring) -> Schedule:
    n, pieces = collective.nranks, ring.pieces
    window = n * pieces
    layout = Layout(collective, ring.lanes * window)

    def turn(lead: int, op: int) -> tuple[Step, ...]:
        segment = layout.output(0, ring.lane * window + (ring.position + lead) % n * pieces)
        held = [segment + piece for piece in range(pieces)]
        return tuple(transfers(ring.rank, chunk, ring.next, chunk, op=op, channel=ring.lane) for chunk in held)

    def steps() -> Iterator[Step | Repeat]:
        whole = ring.lane * window
        yield transfers(
            ring.rank, layout.input(0, whole), ring.rank, layout.output(0, whole), count=window, channel=ring.lane
        )
        if n > 1:
            yield Repeat(turn(0, REDUCE), n - 1, -pieces, layout.output_base, window)
            yield Repeat(turn(1, COPY), n - 1, -pieces, layout.output_base, window)

    return Schedule(ring.name, layout, steps, ring.lanes, ring.params)


def _all_gather(collective: Collective, ring: _Ring) -> Schedule:
    layout = Layout(collective, ring.lanes * ring.pieces)

    def steps() -> Iterator[Step]:
        own = ring.share(0)
        target = layout.output(ring.rank, own)
        yield transfers(ring.rank, layout.input(0, own), ring.rank, target, count=ring.pieces, channel=ring.lane)
        for step in range(collective.nranks - 1):
            origin = np.roll(ring.rank, step, axis=1)
            for piece in range(ring.pieces):
                chunk = layout.output(origin, ring.share(piece))
                yield transfers(ring.rank, chunk, ring.next, chunk, channel=ring.lane)

    return Schedule(ring.name, layout, steps, ring.lanes, ring.params)


def _reduce_scatter(collective: Collective, ring: _Ring) -> Schedule:
    n = collective.nranks
    layout = Layout(collective, ring.lanes * ring.pieces, np.arange(n))

    def steps() -> Iterator[Step]:
        slot = np.arange(n)[:, None, None]
        own = ring.share(0)
        home = np.where(slot == ring.rank, layout.output(0, own), layout.scratch_at(slot, own))
        yield transfers(ring.rank, layout.input(slot, own), ring.rank, home, count=ring.pieces, channel=ring.lane)
        for step in range(n - 1):
            block = np.roll(ring.rank, 1 + step, axis=1)
            for piece in range(ring.pieces):
                share = ring.share(piece)
                chunk = layout.scratch_at(block, share)
                target = layout.output(0, share) if step == n - 2 else chunk
                yield transfers(ring.rank, chunk, ring.next, target, op=REDUCE, channel=ring.lane)

    return Schedule(ring.name, layout, steps, ring.lanes, ring.params)


@algorithm(
    "all_reduce",
    "ring",
    cost="2(n-1)a + 2(n-1)/n s b + (n-1)/n s g",
    source=PATARASUK,
    order="run-consistent",
)
def all_reduce(collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None) -> Schedule:
    """Ring all-reduce: n-1 steps reduce a segment round the ring, n-1 steps pass the results on.

    ``pieces`` cuts every segment further; its pieces follow each other.
    """
    return _all_reduce(collective, _Ring(collective.nranks, channels, pieces, box, both=False))


@algorithm(
    "all_gather",
    "ring",
    cost="(n-1)a + (n-1)/n s b",
    source=PATARASUK,
)
def all_gather(collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None) -> Schedule:
    """Ring all-gather: in each of n-1 steps a rank passes on the block that it got in the step before."""
    return _all_gather(collective, _Ring(collective.nranks, channels, pieces, box, both=False))


@algorithm(
    "reduce_scatter",
    "ring",
    cost="(n-1)a + (n-1)/n s b + (n-1)/n s g",
    source=PATARASUK,
    order="run-consistent",
)
def reduce_scatter(collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None) -> Schedule:
    """Ring reduce-scatter: the block of a rank starts at its successor and gathers contributions all the way round."""
    return _reduce_scatter(collective, _Ring(collective.nranks, channels, pieces, box, both=False))


@algorithm(
    "all_reduce",
    "bidirectional_ring",
    cost="as ring, half of the bytes each way round",
    source=PATARASUK,
    topologies="torus",
    order="run-consistent",
)
def bidirectional_all_reduce(
    collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None
) -> Schedule:
    """Two ring all-reduces in opposite directions, each with half of the vector; ``channels`` counts such pairs."""
    return _all_reduce(collective, _Ring(collective.nranks, channels, pieces, box, both=True))


@algorithm(
    "all_gather",
    "bidirectional_ring",
    cost="as ring, half of the bytes each way round",
    source=PATARASUK,
    topologies="torus",
)
def bidirectional_all_gather(
    collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None
) -> Schedule:
    """Two ring all-gathers in opposite directions, each with half of every block."""
    return _all_gather(collective, _Ring(collective.nranks, channels, pieces, box, both=True))


@algorithm(
    "reduce_scatter",
    "bidirectional_ring",
    cost="as ring, half of the bytes each way round",
    source=PATARASUK,
    topologies="torus",
    order="run-consistent",
)
def bidirectional_reduce_scatter(
    collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None
) -> Schedule:
    """Two ring reduce-scatters in opposite directions, each with half of every block."""
    return _reduce_scatter(collective, _Ring(collective.nranks, channels, pieces, box, both=True))
