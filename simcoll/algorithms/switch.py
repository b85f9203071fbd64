"""Algorithms for switches that copy and reduce (NVLink SHARP, InfiniBand SHARP): every byte goes up once and comes down once.

All ranks hang on switches that do it: the nodes of an NVSwitch system, or a network that reduces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms.registered import algorithm
from simcoll.core.schedule import MULTICAST, SWITCH_REDUCE, Layout, Schedule, Step, joined, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simcoll.core.collective import Collective

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce_scatter"]

SHARP = "Graham et al.: Scalable hierarchical aggregation protocol (SHArP), COMHPC 2016; NVLS in NCCL since 2.17"


@algorithm(
    "all_reduce",
    "switch",
    cost="2a + (1 + 1/n) s b, many pieces",
    source=SHARP,
    topologies="switch",
    order="rank-consistent",
)
def all_reduce(collective: Collective, *, pieces: int = 1) -> Schedule:
    """Rank r fetches the reduction of its share from the switch, then has the switch send it to all.

    Piece p is fetched while piece p - 1 is sent: with many pieces both directions of the links are busy.
    """
    n = collective.nranks
    layout = Layout(collective, n * pieces)
    rank, member = np.arange(n), np.arange(n)[:, None]

    def fetched(piece: int) -> Step:
        share = rank * pieces + piece
        return transfers(member, layout.input(0, share), rank, layout.output(0, share), op=SWITCH_REDUCE)

    def sent(piece: int) -> Step:
        share = layout.output(0, rank * pieces + piece)
        src, dst = np.nonzero(~np.eye(n, dtype=bool))
        return transfers(src, share[src], dst, share[src], op=MULTICAST)

    def steps() -> Iterator[Step]:
        for time in range(pieces + 1):
            yield joined([fetched(time)] * (time < pieces) + [sent(time - 1)] * (time > 0))

    return Schedule("switch", layout, steps, 1, (("pieces", pieces),))


@algorithm(
    "reduce_scatter",
    "switch",
    cost="a + s b",
    source=SHARP,
    topologies="switch",
    order="rank-consistent",
)
def reduce_scatter(collective: Collective) -> Schedule:
    """Every rank fetches the reduction of its block from the switch."""
    n = collective.nranks
    layout = Layout(collective)
    rank, member = np.arange(n), np.arange(n)[:, None]

    def steps() -> Iterator[Step]:
        yield transfers(member, layout.input(rank), rank, layout.output(), op=SWITCH_REDUCE)

    return Schedule("switch", layout, steps)


@algorithm(
    "all_gather",
    "switch",
    cost="a + (n-1)/n s b",
    source=SHARP,
    topologies="switch",
)
def all_gather(collective: Collective) -> Schedule:
    """Every rank has the switch send its block to all others."""
    n = collective.nranks
    layout = Layout(collective)
    rank = np.arange(n)

    def steps() -> Iterator[Step]:
        own = transfers(rank, layout.input(), rank, layout.output(rank))
        src, dst = np.nonzero(~np.eye(n, dtype=bool))
        yield joined([own, transfers(src, layout.input(), dst, layout.output(src), op=MULTICAST)])

    return Schedule("switch", layout, steps)


@algorithm(
    "broadcast",
    "switch",
    cost="a + s b",
    source=SHARP,
    topologies="switch",
)
def broadcast(collective: Collective) -> Schedule:
    """The root has the switch send its vector to all others."""
    n, root = collective.nranks, collective.root or 0
    layout = Layout(collective)
    others = np.flatnonzero(np.arange(n) != root)

    def steps() -> Iterator[Step]:
        own = transfers(root, layout.input(), root, layout.output())
        yield joined([own, transfers(root, layout.input(), others, layout.output(), op=MULTICAST)])

    return Schedule("switch", layout, steps)
