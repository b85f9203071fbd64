"""Routes after link failures: all stay the same except those that used a lost link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints, Links
from simcoll.core.immutable import by_constructor, freeze
from simcoll.topology.relays import Relays, wider
from simcoll.topology.routing import Router

__all__ = ["DetourRouter", "Multipath", "detour_router"]

LOST = -2
"""Marks a lost link in place of its new number; -1 is padding."""


@runtime_checkable
class Multipath(Protocol):
    """A router with several equal routes per pair."""

    def around(self, src: Ints, dst: Ints, lost: NDArray[np.bool_]) -> Links:
        """Alternatives to the routes of ``links``, without lost links where possible.

        ``lost`` has an entry for every link, and False for the padding -1 at its end.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DetourRouter:
    """The routes of a topology before it lost links, with detours for those that used one.

    Its endpoints are the ranks of the topology that lost the links. A detour is another equal route
    if the original router has several (:class:`Multipath`), else a shortest path, else a route over
    another GPU of the node (:class:`~simcoll.topology.relays.Relays`); the last also comes before a
    route to another GPU's NIC that crosses a CPU. A detour depends only on the set of lost links,
    not on their order, and losing a link changes no pair that did not use it, not even one on a
    detour.

    Attributes
    ----------
    original, endpoints
        Router of the original topology, and its endpoint of each endpoint of this one.
    number
        New number of every link of the original topology, :data:`LOST` for lost ones, and -1 for
        the padding at the end.
    remainder
        Shortest paths over the remaining links, in new numbers; no links if there is no path.
    relays
        GPUs that stand in for those without a path; None if there are no nodes.
    """

    original: Router
    endpoints: Ints
    number: Links
    remainder: Router
    relays: Relays | None = None

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def links(self, src: Ints, dst: Ints) -> Links:
        """See :class:`simcoll.topology.routing.Router`."""
        routes, detour = self._direct(src, dst)
        if self.relays is None or not detour.size:
            return routes
        a, b = src[detour], dst[detour]
        none = (a != b) & ~(routes[detour] >= 0).any(axis=1)
        for needy, at_source in ((none, False), (self.relays.over_host(routes[detour]), True)):
            rows = np.flatnonzero(needy)
            if rows.size:
                relayed = self.relays.links(
                    a[rows], b[rows], lambda s, t: self._direct(s, t)[0], at_source=at_source
                )
                better = (relayed >= 0).any(axis=1)
                routes = _replace_rows(routes, detour[rows[better]], relayed[better])
        return routes

    def _direct(self, src: Ints, dst: Ints) -> tuple[Links, Ints]:
        """Routes without relays, and a mask of the detours over the remaining links."""
        a, b = self.endpoints[src], self.endpoints[dst]
        routes = self.number[self.original.links(a, b)]
        broken = np.flatnonzero((routes == LOST).any(axis=1))
        if broken.size and isinstance(self.original, Multipath):
            routes[broken] = self.number[
                self.original.around(a[broken], b[broken], self.number == LOST)
            ]
            broken = broken[(routes[broken] == LOST).any(axis=1)]
        if not broken.size:
            return routes, broken
        return _replace_rows(routes, broken, self.remainder.links(src[broken], dst[broken])), broken


def _replace_rows(routes: Links, rows: Ints, detours: Links) -> Links:
    """The routes with some of them replaced."""
    routes = wider(routes, detours.shape[1])
    routes[rows] = -1
    routes[rows, : detours.shape[1]] = detours
    return routes


def detour_router(
    router: Router,
    endpoints: Ints,
    present: NDArray[np.bool_],
    remainder: Router,
    relays: Relays | None,
) -> DetourRouter:
    """The router of the remaining links, from the old router, the endpoints of its ranks, and a
    mask of the remaining links.

    ``remainder`` has a route over the remaining links for every two ranks for which ``relays`` has
    none.
    """
    number = np.append(np.where(present, np.cumsum(present) - 1, LOST), -1).astype(np.int32)
    if not isinstance(router, DetourRouter):
        return DetourRouter(router, endpoints, number, remainder, relays)
    original_number = router.number
    number = np.where(original_number == LOST, LOST, number[original_number]).astype(np.int32)
    return DetourRouter(router.original, router.endpoints[endpoints], number, remainder, relays)
