"""Routes after link failures: all stay the same except those that used a lost link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints, Links
from simcoll.core.frozen import freeze, rebuilt
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

    Its endpoints are the ranks of the topology that lost the links. A detour is another equal route if the original router has several
    (:class:`Multipath`), else a shortest path, else a route over another GPU of the node (:class:`~simcoll.topology.relays.Relays`); the
    last also comes before a route to another GPU's NIC that crosses a CPU. A detour depends only on the set of lost links, not on their
    order, and losing a link changes no pair that did not use it, not even one on a detour.

    Attributes
    ----------
    whole, endpoints
        Router of the original topology, and its endpoint of each endpoint of this one.
    number
        New number of every link of the original topology, :data:`LOST` for lost ones, and -1 for the padding at the end.
    rest
        Shortest paths over the remaining links, in new numbers; no links if there is no path.
    relays
        GPUs that stand in for those without a path; None if there are no nodes.
    """

    whole: Router
    endpoints: Ints
    number: Links
    rest: Router
    relays: Relays | None = None

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = rebuilt

    def links(self, src: Ints, dst: Ints) -> Links:
        """See :class:`simcoll.topology.routing.Router`."""
        found, detour = self._direct(src, dst)
        if self.relays is None or not detour.size:
            return found
        a, b = src[detour], dst[detour]
        none = (a != b) & ~(found[detour] >= 0).any(axis=1)
        for wanted, at_source in ((none, False), (self.relays.over_host(found[detour]), True)):
            rows = np.flatnonzero(wanted)
            if rows.size:
                relayed = self.relays.links(a[rows], b[rows], lambda s, t: self._direct(s, t)[0], at_source=at_source)
                better = (relayed >= 0).any(axis=1)
                found = _put(found, detour[rows[better]], relayed[better])
        return found

    def _direct(self, src: Ints, dst: Ints) -> tuple[Links, Ints]:
        """Routes without relays, and a mask of the detours over the remaining links."""
        a, b = self.endpoints[src], self.endpoints[dst]
        found = self.number[self.whole.links(a, b)]
        broken = np.flatnonzero((found == LOST).any(axis=1))
        if broken.size and isinstance(self.whole, Multipath):
            found[broken] = self.number[self.whole.around(a[broken], b[broken], self.number == LOST)]
            broken = broken[(found[broken] == LOST).any(axis=1)]
        if not broken.size:
            return found, broken
        return _put(found, broken, self.rest.links(src[broken], dst[broken])), broken


def _put(found: Links, rows: Ints, detours: Links) -> Links:
    """The routes with some of them replaced."""
    found = wider(found, detours.shape[1])
    found[rows] = -1
    found[rows, : detours.shape[1]] = detours
    return found


def detour_router(
    router: Router, endpoints: Ints, kept: NDArray[np.bool_], rest: Router, relays: Relays | None
) -> DetourRouter:
    """The router of the remaining links, from the old router, the endpoints of its ranks, and a mask of the remaining links.

    ``rest`` has a route over the remaining links for every two ranks for which ``relays`` has none.
    """
    number = np.append(np.where(kept, np.cumsum(kept) - 1, LOST), -1).astype(np.int32)
    if not isinstance(router, DetourRouter):
        return DetourRouter(router, endpoints, number, rest, relays)
    before = router.number
    number = np.where(before == LOST, LOST, number[before]).astype(np.int32)
    return DetourRouter(router.whole, router.endpoints[endpoints], number, rest, relays)
