"""Averaging by gossip: every rank adds the vectors of its neighbours, a few times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers
from simcoll.core.step import joined
from simcoll.errors import ConfigError

__all__ = ["gossip", "neighbour_rounds"]

MOST_ROUNDS = 8
"""After this number of rounds an output lists 3^8 = 6,561 contributions."""


def gossip(nranks: int, *, rounds: int = 1) -> Collective:
    """After each round, a rank of a ring holds the sum of what it and its two neighbours held.

    Bound with ``op="avg"``, the sum of 3^rounds contributions, some of them several times, becomes
    their average (decentralised SGD: Lian et al., NeurIPS 2017).

    >>> gossip(5).definition.outputs[0], gossip(5, rounds=2).definition.outputs[0]
    (((0, 1, 4),), ((0, 0, 0, 1, 1, 2, 3, 4, 4),))
    """
    if nranks < 3:
        raise ConfigError(f"gossip on a ring needs at least 3 ranks; got {nranks}")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise ConfigError(f"rounds={rounds}: expected 1 to {MOST_ROUNDS}")
    times = np.eye(nranks, dtype=np.int64)  # how often rank r has the vector of each rank
    for _ in range(rounds):
        times = times + np.roll(times, 1, axis=0) + np.roll(times, -1, axis=0)
    outputs = [[np.repeat(np.arange(nranks), row).tolist()] for row in times]
    return Collective.custom("gossip", [[rank] for rank in range(nranks)], outputs)


def neighbour_rounds(collective: Collective) -> Schedule:
    """In every round, each rank copies its sum and adds those of its neighbours, in a fold.

    >>> import simcoll
    >>> print(simcoll.verify(neighbour_rounds(gossip(5, rounds=2))))
    proved (full, exact): 30 transfers in 2 steps, reduction order position-independent
    """
    n, definition = collective.nranks, collective.definition
    total = 0 if definition is None else definition.most_summands
    rounds = next((count for count in range(1, MOST_ROUNDS + 1) if 3**count == total), 0)
    if definition is None or not rounds or collective != gossip(n, rounds=rounds):
        raise ConfigError(f"neighbour_rounds serves gossip, not {collective}")
    layout = Layout(collective, scratch=[0] * min(rounds - 1, 2))

    def place(number: int) -> int:
        """The chunk with the sums after some rounds: two of scratch in turn."""
        if number == 0:
            return int(layout.input())
        return int(layout.output() if number == rounds else layout.scratch_at((number - 1) % 2))

    def steps() -> Iterator[Step]:
        rank = np.arange(n)
        for number in range(rounds):
            source, target = place(number), place(number + 1)
            copies = transfers(rank, source, rank, target)
            additions = [
                transfers(rank, source, (rank + shift) % n, target, op=REDUCE) for shift in (1, -1)
            ]
            yield joined([copies, *additions])

    return Schedule("neighbour_rounds", layout, steps)
