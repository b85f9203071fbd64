"""Barriers: messages without data, after which every rank knows that all ranks have entered."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.algorithms.registered import algorithm
from simcoll.core.collective import Collective
from simcoll.core.schedule import SYNC, Layout, Schedule, Step, transfers

__all__ = ["dissemination", "linear", "tree"]

PLACE = 23  # in listings

BARRIER = "Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, IJPP 17 (1988)"
LINE = "one rank after the other"


@algorithm(
    "barrier",
    "dissemination",
    cost="ceil(lg n) a",
    source=BARRIER,
    pattern="tree",
)
def dissemination(collective: Collective) -> Schedule:
    """Dissemination barrier: in step k, rank r passes its knowledge to rank r + 2^k."""
    n = collective.nranks
    rank = np.arange(n, dtype=np.int64)

    def steps() -> Iterator[Step]:
        for level in range((n - 1).bit_length()):
            yield transfers(rank, 0, (rank + (1 << level)) % n, 0, op=SYNC)

    return Schedule("dissemination", Layout(collective), steps)


@algorithm(
    "barrier",
    "tree",
    cost="2 ceil(lg n) a",
    source=BARRIER,
    pattern="tree",
)
def tree(collective: Collective) -> Schedule:
    """Tree barrier: arrivals go up a binomial tree to rank 0, the release comes down."""
    n = collective.nranks
    levels = range((n - 1).bit_length())

    def senders(level: int) -> np.ndarray:
        return np.arange(1 << level, n, 2 << level, dtype=np.int64)

    def steps() -> Iterator[Step]:
        for level in levels:
            yield transfers(senders(level), 0, senders(level) - (1 << level), 0, op=SYNC)
        for level in reversed(levels):
            yield transfers(senders(level) - (1 << level), 0, senders(level), 0, op=SYNC)

    return Schedule("tree", Layout(collective), steps)


@algorithm(
    "barrier",
    "linear",
    cost="2(n-1)a",
    source=LINE,
)
def linear(collective: Collective) -> Schedule:
    """Linear barrier: rank 0 collects every rank's arrival in turn, then releases each in turn."""
    n = collective.nranks

    def steps() -> Iterator[Step]:
        for rank in range(1, n):
            yield transfers(rank, 0, 0, 0, op=SYNC)
        for rank in range(1, n):
            yield transfers(0, 0, rank, 0, op=SYNC)

    return Schedule("linear", Layout(collective), steps)
