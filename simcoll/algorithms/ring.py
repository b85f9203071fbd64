"""Ring algorithms: every rank passes segments to its neighbour, so that each link carries every byte once.

With ``box`` the rings of different channels leave each box of that many consecutive ranks through different members, and every other box is
walked backwards, so that a message between boxes stays on its rail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.errors import ConfigError
from simcoll.schedule import COPY, REDUCE, Layout, Repeat, Schedule, Step, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from simcoll.collective import Collective

__all__ = ["all_gather", "all_reduce", "reduce_scatter", "ring_orders"]


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
    """Positions, neighbours and channels of parallel rings, as arrays ``[channels, nranks]``."""

    def __init__(self, nranks: int, channels: int, pieces: int, box: int | None) -> None:
        self.rank = ring_orders(nranks, channels, box)
        self.next = np.roll(self.rank, -1, axis=1)
        self.position = np.tile(np.arange(nranks, dtype=np.int64), (channels, 1))
        self.channel = np.arange(channels, dtype=np.int64)[:, None]
        self.pieces = pieces

    def share(self, piece: int) -> NDArray[np.int64]:
        """Chunk, inside a block of ``channels * pieces``, of each channel's piece."""
        return self.channel * self.pieces + piece


def all_reduce(collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None) -> Schedule:
    """Ring all-reduce: n-1 steps reduce a segment round the ring, n-1 steps pass the results on.

    ``pieces`` cuts every segment further; its pieces follow each other.
    """
    n = collective.nranks
    ring = _Ring(n, channels, pieces, box)
    window = n * pieces
    layout = Layout(collective, n * channels * pieces)

    def segment(number: NDArray[np.int64], piece: int) -> NDArray[np.int64]:
        chunk: NDArray[np.int64] = layout.output(0, ring.channel * window + number % n * pieces + piece)
        return chunk

    def turn(lead: int, op: int) -> tuple[Step, ...]:
        held = [segment(ring.position + lead, piece) for piece in range(pieces)]
        return tuple(transfers(ring.rank, chunk, ring.next, chunk, op=op, channel=ring.channel) for chunk in held)

    def steps() -> Iterator[Step | Repeat]:
        whole = ring.channel * window
        yield transfers(ring.rank, layout.input(0, whole), ring.rank, layout.output(0, whole), count=window, channel=ring.channel)
        if n > 1:
            yield Repeat(turn(0, REDUCE), n - 1, -pieces, layout.output_base, window)
            yield Repeat(turn(1, COPY), n - 1, -pieces, layout.output_base, window)

    return Schedule("ring", layout, steps, channels, (("channels", channels), ("pieces", pieces), ("box", box)))


def all_gather(collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None) -> Schedule:
    """Ring all-gather: in each of n-1 steps a rank passes on the block that it got in the step before."""
    n = collective.nranks
    ring = _Ring(n, channels, pieces, box)
    layout = Layout(collective, channels * pieces)

    def steps() -> Iterator[Step | Repeat]:
        own = ring.share(0)
        yield transfers(ring.rank, layout.input(0, own), ring.rank, layout.output(ring.rank, own), count=pieces, channel=ring.channel)
        for step in range(n - 1):
            origin = np.roll(ring.rank, step, axis=1)
            for piece in range(pieces):
                chunk = layout.output(origin, ring.share(piece))
                yield transfers(ring.rank, chunk, ring.next, chunk, channel=ring.channel)

    return Schedule("ring", layout, steps, channels, (("channels", channels), ("pieces", pieces), ("box", box)))


def reduce_scatter(collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None) -> Schedule:
    """Ring reduce-scatter: the block of a rank starts at its successor and gathers contributions all the way round."""
    n = collective.nranks
    ring = _Ring(n, channels, pieces, box)
    layout = Layout(collective, channels * pieces, np.arange(n))

    def steps() -> Iterator[Step | Repeat]:
        slot = np.arange(n)[:, None, None]
        own = ring.share(0)
        home = np.where(slot == ring.rank, layout.output(0, own), layout.scratch_at(slot, own))
        yield transfers(ring.rank, layout.input(slot, own), ring.rank, home, count=pieces, channel=ring.channel)
        for step in range(n - 1):
            block = np.roll(ring.rank, 1 + step, axis=1)
            last = step == n - 2
            for piece in range(pieces):
                share = ring.share(piece)
                chunk = layout.scratch_at(block, share)
                target = layout.output(0, share) + 0 * chunk if last else chunk
                yield transfers(ring.rank, chunk, ring.next, target, op=REDUCE, channel=ring.channel)

    return Schedule("ring", layout, steps, channels, (("channels", channels), ("pieces", pieces), ("box", box)))
