"""Bruck's algorithms and PAT: partners 1, 2, 4, ... places away, ceil(lg n) steps for any n."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.algorithms.compose import in_channels
from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, joined, transfers

__all__ = ["all_gather", "all_to_all", "pat_all_gather", "pat_reduce_scatter"]

PLACE = 10  # in listings

BRUCK = (
    "Bruck et al.: Efficient algorithms for all-to-all communications in multiport "
    "message-passing systems, TPDS 8 (1997)"
)
PAT = (
    "Jeaugey: PAT, a new algorithm for all-gather and reduce-scatter operations at scale, arXiv "
    "2506.20252"
)


def _distances(nranks: int) -> list[int]:
    return [1 << level for level in range((nranks - 1).bit_length())]


@algorithm(
    "all_gather",
    "bruck",
    cost="ceil(lg n) a + (n-1)/n s b",
    source=BRUCK,
    pattern="tree",
)
def all_gather(collective: Collective) -> Schedule:
    """In step k, rank r receives the min(2^k, n - 2^k) consecutive blocks held by rank r + 2^k,
    starting with that rank's own.

    Blocks stay in their own slots; those that wrap around the end of the buffer are a second
    transfer of the same step.
    """
    n = collective.nranks
    layout = Layout(collective)
    rank = np.arange(n, dtype=np.int64)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(rank))
        for distance in _distances(n):
            count = min(distance, n - distance)
            head = np.minimum(count, n - rank)
            wraps = np.flatnonzero(head < count)
            to_end = transfers(
                rank, layout.output(rank), (rank - distance) % n, layout.output(rank), count=head
            )
            tail = count - head[wraps]
            from_start = transfers(
                wraps, layout.output(), (wraps - distance) % n, layout.output(), count=tail
            )
            yield joined([to_end, from_start])

    return Schedule("bruck", layout, steps)


@algorithm(
    "all_to_all",
    "bruck",
    cost="lg n (a + s/2 b), n = 2^k",
    source=BRUCK,
    pattern="tree",
)
def all_to_all(collective: Collective) -> Schedule:
    """A block that travels i places takes the hops of i's binary digits; equal blocks only.

    In step k every rank packs the blocks whose i has bit k, wherever they are, and sends them 2^k
    places on.
    """
    n = collective.nranks
    half, distances = -(-n // 2), _distances(n)
    layout = Layout(collective, 1, np.zeros(half * (1 + len(distances)), np.int64))
    rank, place = np.arange(n, dtype=np.int64), np.arange(n, dtype=np.int64)[:, None]

    def steps() -> Iterator[Step]:
        lies_at = layout.input((rank + place) % n)
        for level, distance in enumerate(distances):
            moving = np.flatnonzero(place & distance)
            packed, landed = layout.scratch_at(), layout.scratch_at(half * (1 + level))
            order = np.arange(len(moving))[:, None]
            yield transfers(rank, lies_at[moving], rank, packed + order)
            yield transfers(rank, packed, (rank + distance) % n, landed, count=len(moving))
            lies_at[moving] = landed + order
        yield transfers(rank, lies_at, rank, layout.output((rank - place) % n))

    return Schedule("bruck", layout, steps, divisible=True)


def _pat_rounds(
    collective: Collective,
) -> tuple[Layout, Ints, list[tuple[int, list[tuple[int, int, int]]]]]:
    """PAT's far-first tree: the block at each place of each rank, and per round the distance and
    (place, new place, count) runs.

    A round takes all blocks except the one, if any, that would travel further than n - 1: two runs
    at most.
    """
    n, offsets, rounds = collective.nranks, np.zeros(1, np.int64), []
    for distance in reversed(_distances(n)):
        reached = offsets + distance
        new = len(offsets)
        out = np.flatnonzero(reached >= n)
        cut = int(out[0]) if len(out) else new
        runs = [(0, new, cut), (cut + 1, new + cut, new - cut - 1)]
        rounds.append((distance, [run for run in runs if run[2] > 0]))
        offsets = np.concatenate([offsets, reached[reached < n]])
    blocks = (np.arange(n)[:, None] - offsets) % n
    return Layout(collective, 1, blocks), blocks.T, rounds


@algorithm(
    "all_gather",
    "pat",
    cost="ceil(lg n) a + (n-1)/n s b",
    source=PAT,
    pattern="tree",
    shared=in_channels,
)
def pat_all_gather(collective: Collective) -> Schedule:
    """Parallel aggregated trees: Bruck's distances, farthest first, so that long hops carry the
    least data.
    """
    n, (layout, block, rounds) = collective.nranks, _pat_rounds(collective)
    rank, place = np.arange(n), np.arange(n)[:, None]

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.scratch_at())
        for distance, runs in rounds:
            peer = (rank + distance) % n
            parts = [
                transfers(rank, layout.scratch_at(old), peer, layout.scratch_at(new), count=count)
                for old, new, count in runs
            ]
            yield joined(parts)
        yield transfers(rank, layout.scratch_at(place), rank, layout.output(block))

    return Schedule("pat", layout, steps)


@algorithm(
    "reduce_scatter",
    "pat",
    cost="ceil(lg n) a + (n-1)/n s (b + g), n = 2^j - 2^k",
    source=PAT,
    pattern="tree",
    order="run-consistent",
    shared=in_channels,
)
def pat_reduce_scatter(collective: Collective) -> Schedule:
    """The reversed all-gather trees, nearest first, with partial sums for each peer's subtrees."""
    n, (layout, block, rounds) = collective.nranks, _pat_rounds(collective)
    rank, place = np.arange(n), np.arange(n)[:, None]

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(block), rank, layout.scratch_at(place))
        for distance, runs in reversed(rounds):
            peer = (rank - distance) % n
            parts = [
                transfers(
                    rank,
                    layout.scratch_at(new),
                    peer,
                    layout.scratch_at(old),
                    count=count,
                    op=REDUCE,
                )
                for old, new, count in runs
            ]
            yield joined(parts)
        yield transfers(rank, layout.scratch_at(), rank, layout.output())

    return Schedule("pat", layout, steps)
