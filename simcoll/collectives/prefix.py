"""Prefix sums: MPI's scan and exscan."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

__all__ = ["chain", "doubling", "exclusive_scan", "scan"]


def scan(nranks: int, *, order: str = "") -> Collective:
    """Rank r gets the sum of the vectors of ranks 0 to r (MPI_Scan).

    ``order="listed"`` asks for additions from left to right, which :func:`chain` does.

    >>> print(scan(4), scan(4).definition.outputs[2])
    scan n=4 ((0, 1, 2),)
    """
    outputs = [[list(range(rank + 1))] for rank in range(nranks)]
    return Collective.custom("scan", [[rank] for rank in range(nranks)], outputs, order=order)


def exclusive_scan(nranks: int, *, order: str = "") -> Collective:
    """Rank r gets the sum of the vectors of ranks 0 to r - 1, and rank 0 nothing (MPI_Exscan).

    >>> exclusive_scan(3).definition.outputs
    ((), ((0,),), ((0, 1),))
    """
    outputs = [[list(range(rank))] if rank else [] for rank in range(nranks)]
    inputs = [[rank] for rank in range(nranks)]
    return Collective.custom("exclusive_scan", inputs, outputs, order=order)


def _lag(collective: Collective) -> int:
    """How many ranks the first one with an output is behind: 0 for a scan, 1 for an exclusive
    one.
    """
    n, definition = collective.nranks, collective.definition
    for lag, function in enumerate((scan, exclusive_scan)[:n]):
        if definition is not None and collective == function(n, order=definition.order):
            return lag
    raise ConfigError(f"this algorithm serves scan and exclusive_scan, not {collective}")


def chain(collective: Collective) -> Schedule:
    """One rank after the other adds its vector, and passes the sum on.

    >>> import simcoll
    >>> print(simcoll.verify(chain(scan(4, order="listed"))))
    proved (full, exact): 7 transfers in 4 steps, reduction order position-independent
    """
    n, lag, layout = collective.nranks, _lag(collective), Layout(collective)

    def steps() -> Iterator[Step]:
        rank = np.arange(n - lag)
        yield transfers(rank, layout.input(), rank + lag, layout.output())
        for sender in range(lag, n - 1):
            yield transfers(sender, layout.output(), sender + 1, layout.output(), op=REDUCE)

    return Schedule("chain", layout, steps)


def doubling(collective: Collective) -> Schedule:
    """Every rank adds its sum to that of the rank 1, 2, 4, ... further on, all at the same time
    (Hillis and Steele, CACM 1986).

    >>> import simcoll
    >>> print(simcoll.verify(doubling(scan(5))))
    proved (full, exact): 13 transfers in 4 steps, reduction order position-independent
    """
    n, lag, layout = collective.nranks, _lag(collective), Layout(collective)

    def steps() -> Iterator[Step]:
        rank = np.arange(n - lag)
        yield transfers(rank, layout.input(), rank + lag, layout.output())
        distance = 1
        while distance < n - lag:
            sender = np.arange(lag, n - distance)
            yield transfers(sender, layout.output(), sender + distance, layout.output(), op=REDUCE)
            distance *= 2

    return Schedule("doubling", layout, steps)
