"""Neighbour exchange: all traffic is between neighbours, two blocks at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.algorithms.registered import algorithm
from simcoll.core.collective import Collective
from simcoll.core.schedule import Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

__all__ = ["all_gather"]

PLACE = 11  # in listings

NEIGHBOR = (
    "Chen et al.: Performance evaluation of allgather algorithms on terascale Linux "
    "cluster, HPC Asia 2005"
)


@algorithm(
    "all_gather",
    "neighbor_exchange",
    cost="n/2 a + (n-1)/n s b",
    source=NEIGHBOR,
    ranks="even",
)
def all_gather(collective: Collective) -> Schedule:
    """Neighbours exchange their own blocks; then, alternating neighbours, the two blocks received
    last; even n only.
    """
    n = collective.nranks
    if n % 2 and n > 1:
        raise ConfigError(
            f"neighbor_exchange needs an even number of ranks, got {n}; ring and bruck serve any "
            "number"
        )
    layout = Layout(collective)
    rank = np.arange(n, dtype=np.int64)
    forward = np.where(rank % 2 == 0, 1, -1)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(rank))
        if n > 1:
            yield transfers(rank, layout.output(rank), rank + forward, layout.output(rank))
        pair = rank - rank % 2
        for step in range(1, n // 2):
            peer = (rank - forward if step % 2 else rank + forward) % n
            address = layout.output(pair)
            yield transfers(rank, address, peer, address, count=2)
            pair = pair[peer]

    return Schedule("neighbor_exchange", layout, steps)
