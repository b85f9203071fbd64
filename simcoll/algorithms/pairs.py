"""Pairwise algorithms: every block travels straight to its destination, to all peers at once or in
turn.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.algorithms.compose import in_channels, in_shares
from simcoll.algorithms.registered import algorithm
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, joined, transfers
from simcoll.errors import ConfigError

__all__ = [
    "all_to_all",
    "pairwise_all_to_all",
    "pairwise_reduce_scatter",
    "send_recv",
    "xor_all_to_all",
]

PLACE = 9  # in listings

THAKUR = (
    "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in "
    "MPICH, IJHPCA 19 (2005)"
)
PAIRS = "all pairs at once; the messages of a rank share its port"


def _to_peer(layout: Layout, peer: np.ndarray) -> Step:
    """Rank r sends its block for ``peer[r]``."""
    rank = np.arange(len(peer), dtype=np.int64)
    return transfers(rank, layout.input(peer), peer, layout.output(rank))


def _peers(nranks: int, shift: int) -> np.ndarray:
    return (np.arange(nranks, dtype=np.int64) + shift) % nranks


def shift_by_shift(schedule: Schedule, *, channels: int = 1) -> Schedule:
    """Copies with equal shares of every block, which alternate after every shift."""
    return in_shares([schedule] * channels, run=schedule.nranks)


def pair_by_pair(schedule: Schedule, *, channels: int = 1) -> Schedule:
    """Copies with equal shares of every block, which alternate after every transfer."""
    return in_shares([schedule] * channels, run=1)


@algorithm(
    "all_to_all",
    "direct",
    cost="a + (n-1)/n s b",
    source=PAIRS,
    shared=shift_by_shift,
)
def all_to_all(collective: Collective) -> Schedule:
    """All blocks at once: one step, in which the messages of a rank share its port."""
    n, layout = collective.nranks, Layout(collective)

    def steps() -> Iterator[Step]:
        yield joined([_to_peer(layout, _peers(n, shift)) for shift in range(n)])

    return Schedule("direct", layout, steps)


@algorithm(
    "all_to_all",
    "pairwise",
    cost="(n-1)a + (n-1)/n s b",
    source=THAKUR,
    shared=in_channels,
)
def pairwise_all_to_all(collective: Collective) -> Schedule:
    """One peer at a time: in step k rank r sends to rank r + k."""
    n, layout = collective.nranks, Layout(collective)

    def steps() -> Iterator[Step]:
        for shift in range(n):
            yield _to_peer(layout, _peers(n, shift))

    return Schedule("pairwise", layout, steps)


@algorithm(
    "all_to_all",
    "xor",
    cost="(n-1)a + (n-1)/n s b",
    source=THAKUR,
    ranks="power of 2",
    shared=in_channels,
)
def xor_all_to_all(collective: Collective) -> Schedule:
    """One partner at a time: in step k ranks r and r XOR k exchange.

    Powers of two only.
    """
    n, layout = collective.nranks, Layout(collective)
    if n & (n - 1):
        raise ConfigError(
            f"xor all_to_all needs a power of two ranks, got {n}; pairwise serves any number"
        )

    def steps() -> Iterator[Step]:
        for mask in range(n):
            yield _to_peer(layout, np.arange(n, dtype=np.int64) ^ mask)

    return Schedule("xor", layout, steps)


@algorithm(
    "send_recv",
    "direct",
    cost="a + s b",
    source="any pairs at once",
    shared=pair_by_pair,
)
def send_recv(collective: Collective) -> Schedule:
    """All pairs at once: shifts, permutations, exchanges between neighbours, or any other."""
    layout, (source, target) = (
        Layout(collective),
        np.array(collective.pairs, np.int64).reshape(-1, 2).T,
    )

    def steps() -> Iterator[Step]:
        yield transfers(source, layout.input(), target, layout.output())

    return Schedule("direct", layout, steps)


@algorithm(
    "reduce_scatter",
    "pairwise",
    cost="(n-1)a + (n-1)/n s (b + g)",
    source=THAKUR,
    order="run-consistent",
)
def pairwise_reduce_scatter(collective: Collective) -> Schedule:
    """One peer at a time: in step k rank r sends its part of block r + k to that block's owner,
    which adds it.
    """
    n, layout = collective.nranks, Layout(collective)
    rank = np.arange(n, dtype=np.int64)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(rank), rank, layout.output())
        for shift in range(1, n):
            peer = _peers(n, shift)
            yield transfers(rank, layout.input(peer), peer, layout.output(), op=REDUCE)

    return Schedule("pairwise", layout, steps)
