"""Grouped sends, as between ncclGroupStart and ncclGroupEnd: every block straight to its
destination, on parallel channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import Layout, Schedule, Step, transfers

__all__ = ["all_to_all", "gather", "scatter"]

PLACE = 15  # in listings

NCCL = (
    "NCCL 2.27: src/enqueue.cc, collectives of grouped ncclSend and ncclRecv (2.28 has calls "
    "of "
    "their own)"
)
COST = "ceil((n-1)/channels) a + (n-1)/n s b"


def _by_distance(layout: Layout, channels: int, sends: Callable[[Ints, Ints], Step]) -> Schedule:
    """The sends over distances 1, 2, ..., ``channels`` of them per step, each made by
    ``sends(distance, channel)``.
    """
    n = layout.collective.nranks

    def steps() -> Iterator[Step]:
        yield sends(np.zeros(1, np.int64), np.zeros(1, np.int64))
        for start in range(1, n, channels):
            distance = np.arange(start, min(start + channels, n))
            yield sends(distance, distance - start)

    return Schedule(
        "grouped", layout, steps, min(channels, max(n - 1, 1)), (("channels", channels),)
    )


@algorithm("all_to_all", "grouped", cost=COST, source=NCCL)
def all_to_all(collective: Collective, *, channels: int = 32) -> Schedule:
    """Every rank sends to the next ``channels`` ranks at once, each on a separate channel, then to
    the following ones.
    """
    n = collective.nranks
    layout = Layout(collective)
    rank = np.arange(n)[:, None]

    def sends(distance: Ints, channel: Ints) -> Step:
        peer = (rank + distance) % n
        return transfers(rank, layout.input(peer), peer, layout.output(rank), channel=channel)

    return _by_distance(layout, channels, sends)


@algorithm("gather", "grouped", cost=COST, source=NCCL)
def gather(collective: Collective, *, channels: int = 32) -> Schedule:
    """The root receives from ``channels`` ranks at once."""
    n, root = collective.nranks, collective.root or 0
    layout = Layout(collective)

    def sends(distance: Ints, channel: Ints) -> Step:
        peer = (root + distance) % n
        return transfers(peer, layout.input(), root, layout.output(peer), channel=channel)

    return _by_distance(layout, channels, sends)


@algorithm("scatter", "grouped", cost=COST, source=NCCL)
def scatter(collective: Collective, *, channels: int = 32) -> Schedule:
    """The root sends to ``channels`` ranks at once."""
    n, root = collective.nranks, collective.root or 0
    layout = Layout(collective)

    def sends(distance: Ints, channel: Ints) -> Step:
        peer = (root + distance) % n
        return transfers(root, layout.input(peer), peer, layout.output(), channel=channel)

    return _by_distance(layout, channels, sends)
