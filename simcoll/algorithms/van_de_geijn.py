"""Van de Geijn's broadcast: scatter the vector down a binomial tree, then all-gather it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from simcoll.algorithms.compose import in_channels
from simcoll.algorithms.registered import algorithm
from simcoll.algorithms.tree import binomial_edges
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

# Rounds of an all-gather among n ranks: peer, first segment and number of segments that each rank
# sends.

Rounds = Callable[[int], Iterator[tuple[Ints, Ints, int]]]

__all__ = ["doubling_broadcast", "ring_broadcast"]

PLACE = 16  # in listings

GEIJN = "Barnett et al.: Interprocessor collective communication library, SHPCC 1994"


def _ring(nranks: int) -> Iterator[tuple[Ints, Ints, int]]:
    place = np.arange(nranks, dtype=np.int64)
    for step in range(nranks - 1):
        yield (place + 1) % nranks, (place - step) % nranks, 1


def _doubling(nranks: int) -> Iterator[tuple[Ints, Ints, int]]:
    place = np.arange(nranks, dtype=np.int64)
    for level in range(nranks.bit_length() - 1):
        mask = 1 << level
        yield place ^ mask, place & -mask, mask


def _broadcast(name: str, collective: Collective, rounds: Rounds) -> Schedule:
    """Places are counted from the root; the rank at place p gets segment p, then all segments."""
    n, root = collective.nranks, collective.root or 0
    layout, rank = Layout(collective, n), (np.arange(n, dtype=np.int64) + root) % n
    vector = layout.output()

    def steps() -> Iterator[Step]:
        yield transfers(root, layout.input(), root, vector, count=n)
        for level in reversed(range((n - 1).bit_length())):
            parent, child, size = binomial_edges(n, level)
            yield transfers(rank[parent], vector + child, rank[child], vector + child, count=size)
        for peer, segment, count in rounds(n):
            yield transfers(rank, vector + segment, rank[peer], vector + segment, count=count)

    return Schedule(name, layout, steps)


@algorithm(
    "broadcast",
    "scatter_ring",
    cost="(ceil(lg n) + n-1)a + 2(n-1)/n s b",
    source=GEIJN,
    shared=in_channels,
)
def ring_broadcast(collective: Collective) -> Schedule:
    """Binomial scatter, then a ring all-gather."""
    return _broadcast("scatter_ring", collective, _ring)


@algorithm(
    "broadcast",
    "scatter_doubling",
    cost="2 lg n a + 2(n-1)/n s b",
    source=GEIJN,
    pattern="tree",
    ranks="power of 2",
    shared=in_channels,
)
def doubling_broadcast(collective: Collective) -> Schedule:
    """Binomial scatter, then a recursive doubling all-gather; powers of two only."""
    n = collective.nranks
    if n & (n - 1):
        raise ConfigError(
            f"scatter_doubling needs a power of two ranks, got {n}; scatter_ring serves any number"
        )
    return _broadcast("scatter_doubling", collective, _doubling)
