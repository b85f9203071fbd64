"""Placement of a plan: endpoints and lanes of its ranks and channels, and links that cap rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcoll.arrays import Ints, Links
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol

__all__ = ["Caps", "Placement", "placement_of"]


@dataclass(frozen=True, slots=True)
class Caps:
    """Links that a protocol adds: an outgoing and an incoming one per channel of each rank if it
    caps channels, then likewise per rank.

    ``first_link`` is the index of the first among all links.
    """

    protocol: Protocol
    nranks: int
    nchannels: int
    first_link: int = 0

    @property
    def rates(self) -> list[int]:
        """Their capacities."""
        channels, ranks = self.protocol.channel_rate_uBps, self.protocol.rank_rate_uBps
        rates = [channels] * (2 * self.nranks * self.nchannels) if channels else []
        return rates + ([ranks] * (2 * self.nranks) if ranks else [])

    def links(self, src: Ints, dst: Ints, channel: Ints) -> list[Ints]:
        """Columns of the cap links that each message crosses."""
        channels, base, columns = self.nchannels, self.first_link, []
        if self.protocol.channel_rate_uBps:
            columns += [
                base + 2 * (src * channels + channel),
                base + 2 * (dst * channels + channel) + 1,
            ]
            base += 2 * self.nranks * channels
        if self.protocol.rank_rate_uBps:
            columns += [base + 2 * src, base + 2 * dst + 1]
        return columns

    def name(self, position: int) -> str:
        """Name of a cap link, by its position from the first."""
        number, inward = divmod(position, 2)
        lanes = self.nranks * self.nchannels if self.protocol.channel_rate_uBps else 0
        rank, channel = divmod(number, self.nchannels)
        name = f"rank {rank} channel {channel}" if number < lanes else f"rank {number - lanes}"
        return f"{name} {('out', 'in')[inward]}"


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Placement of ranks and channels in a run.

    Attributes
    ----------
    endpoints
        Endpoint of the topology of every rank.
    stride, offset
        Channel c of rank r is lane ``r * stride + offset + c``.
    caps, capped
        The links that cap rates, and each rank's number there.
    shares
        For every link of the topology, the link that stands for the protocol's share of it, or -1;
        ``None`` if there is none.
    connections
        ``(lanes, first_number)``: with them connections are numbered
        ``first_number + sender * lanes + receiver``; ``None``: lane pairs name them.
    """

    endpoints: Ints
    stride: int
    offset: int = 0
    caps: Caps | None = None
    capped: Ints | None = None
    shares: Links | None = None
    connections: tuple[int, int] | None = None

    def lane(self, rank: Ints, channel: Ints) -> Ints:
        """Lane numbers of channels of ranks; with one channel per rank, the ranks themselves."""
        if self.stride == 1 and self.offset == 0:
            return rank
        return rank * self.stride + self.offset + channel

    def connection(self, sender: Ints, receiver: Ints) -> Ints | None:
        """Connection numbers between lanes; ``None`` if lane pairs identify the connections."""
        if self.connections is None:
            return None
        lanes, first_number = self.connections
        return first_number + sender * lanes + receiver

    def links(self, src: Ints, dst: Ints, channel: Ints, route: Links) -> Links:
        """All links of messages: those of their routes, and those that the protocol adds."""
        if self.shares is not None and route.shape[1]:
            partial = np.where(route >= 0, self.shares[route], -1)
            route = np.concatenate([route, partial], axis=1)
            route = np.take_along_axis(route, np.argsort(route < 0, axis=1, kind="stable"), axis=1)
        if self.caps is None:
            return route
        ends = (src, dst) if self.capped is None else (self.capped[src], self.capped[dst])
        columns = self.caps.links(*ends, channel)
        if not columns:
            return route
        links = np.full((len(src), len(columns) + route.shape[1]), -1, np.int32)
        if route.shape[1]:
            for place, column in enumerate(columns):
                links[:, place] = np.where(route[:, 0] >= 0, column, -1)
            links[:, len(columns) :] = route
        return links


def placement_of(plan: Plan, first_cap: int) -> Placement:
    """The placement of a plan that runs alone; its cap links start at ``first_cap``."""
    caps = Caps(plan.protocol, plan.nranks, plan.nchannels, first_cap)
    return Placement(plan.ranks, plan.nchannels, caps=caps if caps.rates else None)
