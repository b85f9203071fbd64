"""Binomial trees: in step k every rank that has the data passes it 2^k places on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.schedule import COPY, REDUCE, Layout, Schedule, Step, joined, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simcoll.collective import Collective

__all__ = ["all_reduce", "broadcast", "reduce"]


def _levels(nranks: int) -> int:
    return (nranks - 1).bit_length()


def _round(layout: Layout, level: int, root: int, shares: tuple[int, int], *, up: bool) -> Step:
    """One level of the tree for one piece of every channel: to the children, or (``up``) from them."""
    n, (channels, pieces) = layout.collective.nranks, shares
    parent = np.arange(0, n, 2 << level, dtype=np.int64)
    parent = parent[parent + (1 << level) < n]
    child = (parent + (1 << level) + root) % n
    parent = (parent + root) % n
    channel = np.arange(channels, dtype=np.int64)[:, None]
    src, dst = (child, parent) if up else (parent, child)
    chunk = layout.output(0, channel * pieces)
    return transfers(src, chunk, dst, chunk, op=REDUCE if up else COPY, channel=channel)


def _shifted(step: Step, piece: int) -> Step:
    return Step(step.src_rank, step.src_chunk + piece, step.dst_rank, step.dst_chunk + piece, step.count, step.op, step.channel)


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


def broadcast(collective: Collective, *, channels: int = 1, pieces: int = 1) -> Schedule:
    """Binomial broadcast: the farthest child first. ``pieces`` pipelines the vector through the tree."""
    return _schedule(collective, channels, pieces, up=False, down=True)


def reduce(collective: Collective, *, channels: int = 1, pieces: int = 1) -> Schedule:
    """Binomial reduce: the broadcast backwards, the nearest child first."""
    return _schedule(collective, channels, pieces, up=True, down=False)


def all_reduce(collective: Collective, *, channels: int = 1, pieces: int = 1) -> Schedule:
    """Binomial reduce to rank 0, then binomial broadcast."""
    return _schedule(collective, channels, pieces, up=True, down=True)
