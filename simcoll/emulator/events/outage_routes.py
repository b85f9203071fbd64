"""Routes around links that are temporarily down."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.topology import Topology
from simcoll.topology.routing import Router

__all__ = ["Detours"]


class Detours:
    """The routes of a topology while some of its links are down.

    A message whose route has such a link takes the detour given by
    :meth:`simcoll.topology.Topology.degrade`; without a detour it keeps its route. The result
    depends only on the set of links that are down.

    Parameters
    ----------
    topology
        The intact topology.
    shares
        For every link of the topology, a second link that messages over it cross as well, or -1.
    """

    def __init__(self, topology: Topology, shares: Shorts | None = None) -> None:
        self._topology = topology
        self._shares = shares
        self._own = frozenset[int]() if shares is None else frozenset(shares[shares >= 0].tolist())
        self._down = frozenset[int]()
        self._rest: tuple[Router, Ints] | None = None
        self._known: dict[tuple[int, int, tuple[int, ...]], tuple[int, ...]] = {}

    def lose(self, down: Iterable[int]) -> None:
        """Set the links that are down from now on."""
        self._down, self._rest, self._known = frozenset(down), None, {}

    def links(self, src: int, dst: int, planned: tuple[int, ...]) -> tuple[int, ...]:
        """The links of a message between two endpoints, given its planned links."""
        if self._down.isdisjoint(planned):
            return planned
        key = (src, dst, planned)
        if key not in self._known:
            self._known[key] = self._around(src, dst, planned)
        return self._known[key]

    def _around(self, src: int, dst: int, planned: tuple[int, ...]) -> tuple[int, ...]:
        topology = self._topology
        if self._rest is None:
            intact = ~np.isin(np.arange(topology.nlinks), list(self._down))
            self._rest = topology.detours(intact), np.flatnonzero(intact)
        router, number = self._rest
        row = router.links(np.array([src]), np.array([dst]))[0]
        route = number[row[row >= 0]].tolist()
        if not route:
            return planned
        caps = [link for link in planned if link >= topology.nlinks and link not in self._own]
        shares = (
            []
            if self._shares is None
            else [link for link in self._shares[route].tolist() if link >= 0]
        )
        return (*caps, *route, *shares)
