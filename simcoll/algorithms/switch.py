"""Algorithms for switches that multicast and reduce (NVLink SHARP, InfiniBand SHARP): every byte
goes up once and down once.

All ranks are attached to such switches: within the nodes of an NVSwitch system, or to a network
that reduces.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.algorithms import compose
from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import (
    MULTICAST,
    SWITCH_REDUCE,
    Layout,
    Schedule,
    Step,
    joined,
    transfers,
)

__all__ = [
    "SHARP",
    "all_gather",
    "all_reduce",
    "broadcast",
    "everyone",
    "fetch_step",
    "multicast_step",
    "reduce_scatter",
]

PLACE = 19  # in listings

SHARP = (
    "Graham et al.: Scalable hierarchical aggregation protocol (SHArP), COMHPC 2016; NVLS in "
    "NCCL since 2.17"
)


def everyone(nranks: int) -> Ints:
    """The members of each rank's switch if these are all ranks: ``[rank, member]``."""
    return np.broadcast_to(np.arange(nranks), (nranks, nranks))


def fetch_step(members: Ints, operand: Ints, result: Ints | int, channel: int = 0) -> Step:
    """Rank r fetches from its switch the reduction of all members' ``operand[r]`` into
    ``result[r]``.
    """
    return transfers(
        members.T, operand, np.arange(len(members)), result, op=SWITCH_REDUCE, channel=channel
    )


def multicast_step(members: Ints, chunk: Ints, landing: Ints, channel: int = 0) -> Step:
    """Rank r has its switch multicast ``chunk[r]`` to all other members, into ``landing[r]``."""
    receives = members != np.arange(len(members))[:, None]
    src, chunk, landing = (
        np.repeat(column, receives.sum(axis=1))
        for column in (np.arange(len(members)), chunk, landing)
    )
    return transfers(src, chunk, members[receives], landing, op=MULTICAST, channel=channel)


def overlapping(schedule: Schedule, *, pieces: int = 1) -> Schedule:
    """Pieces that follow one another: one is fetched while its predecessor is sent, so that links
    are busy in both directions.
    """
    return compose.pipelined(schedule, pieces, newest_first=True, drained=False)


@algorithm(
    "all_reduce",
    "switch",
    cost="2a + (2 - 1/n) s b; many pieces: (1 + 1/n) s b",
    source=SHARP,
    topologies="switch",
    order="rank-consistent",
    shared=overlapping,
)
def all_reduce(collective: Collective) -> Schedule:
    """Rank r fetches the reduction of its share from the switch, then has the switch multicast it
    to all.
    """
    n = collective.nranks
    layout, rank = Layout(collective, n), np.arange(n)
    share = layout.output(0, rank)

    def steps() -> Iterator[Step]:
        yield fetch_step(everyone(n), layout.input(0, rank), share)
        yield multicast_step(everyone(n), share, share)

    return Schedule("switch", layout, steps)


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
    layout, rank = Layout(collective), np.arange(collective.nranks)

    def steps() -> Iterator[Step]:
        yield fetch_step(everyone(len(rank)), layout.input(rank), layout.output())

    return Schedule("switch", layout, steps)


@algorithm(
    "all_gather",
    "switch",
    cost="a + (n-1)/n s b",
    source=SHARP,
    topologies="switch",
)
def all_gather(collective: Collective) -> Schedule:
    """Every rank has the switch multicast its block to all others."""
    layout, rank = Layout(collective), np.arange(collective.nranks)

    def steps() -> Iterator[Step]:
        copy = transfers(rank, layout.input(), rank, layout.output(rank))
        yield joined(
            [copy, multicast_step(everyone(len(rank)), layout.input(0 * rank), layout.output(rank))]
        )

    return Schedule("switch", layout, steps)


@algorithm(
    "broadcast",
    "switch",
    cost="a + s b",
    source=SHARP,
    topologies="switch",
)
def broadcast(collective: Collective) -> Schedule:
    """The root has the switch multicast its vector to all others."""
    n, root = collective.nranks, collective.root or 0
    layout = Layout(collective)
    receivers = np.flatnonzero(np.arange(n) != root)

    def steps() -> Iterator[Step]:
        copy = transfers(root, layout.input(), root, layout.output())
        yield joined(
            [copy, transfers(root, layout.input(), receivers, layout.output(), op=MULTICAST)]
        )

    return Schedule("switch", layout, steps)
