"""Pipelined chains: the ranks in a row, the pieces of the vector one behind the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms.registered import algorithm
from simcoll.algorithms.ring import ring_orders
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, joined, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simcoll.core.collective import Collective

__all__ = ["broadcast", "reduce"]

CHAN = "Chan, Heimlich, Purkayastha, van de Geijn: Collective communication, CCPE 19 (2007)"


def _chain(collective: Collective, channels: int, pieces: int, box: int | None, *, up: bool) -> Schedule:
    """A row from the root on. Step t takes piece t - h over hop h; ``up`` runs the row from its end to the root."""
    n, root = collective.nranks, collective.root or 0
    layout = Layout(collective, channels * pieces)
    channel = np.arange(channels, dtype=np.int64)
    row = np.stack([np.roll(order, -int(np.flatnonzero(order == root)[0])) for order in ring_orders(n, channels, box)])
    if up:
        row = row[:, ::-1]

    def hop(number: int, piece: int) -> Step:
        chunk = layout.output(0, channel * pieces + piece)
        return transfers(row[:, number], chunk, row[:, number + 1], chunk, op=REDUCE if up else COPY, channel=channel)

    def steps() -> Iterator[Step]:
        loaded, whole = np.arange(n) if up else np.array([root]), channel[:, None] * pieces
        yield transfers(
            loaded, layout.input(0, whole), loaded, layout.output(0, whole), count=pieces, channel=channel[:, None]
        )
        for time in range(n - 2 + pieces if n > 1 else 0):
            yield joined(
                [hop(number, time - number) for number in range(max(0, time - pieces + 1), min(n - 1, time + 1))]
            )

    return Schedule("chain", layout, steps, channels, (("channels", channels), ("pieces", pieces), ("box", box)))


@algorithm(
    "broadcast",
    "chain",
    cost="(n-2+k)(a + s/k b), k pieces",
    source=CHAN,
)
def broadcast(collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None) -> Schedule:
    """Every rank passes each piece to the next one as soon as it has it. ``box`` orders the ranks as in a ring."""
    return _chain(collective, channels, pieces, box, up=False)


@algorithm(
    "reduce",
    "chain",
    cost="(n-2+k)(a + s/k (b + g)), k pieces",
    source=CHAN,
    order="run-consistent",
)
def reduce(collective: Collective, *, channels: int = 1, pieces: int = 1, box: int | None = None) -> Schedule:
    """The broadcast backwards: every rank adds its own to what comes and passes it on, the root last."""
    return _chain(collective, channels, pieces, box, up=True)
