"""Routes of GPUs that have lost their NIC: over another GPU of the node, as in NCCL's PXN over
NVLink to a neighbour's NIC.

A relayed route has up to three legs: within the source's node to a GPU with a path out, over the
network, and within the destination's node from the GPU that the network reaches. Preference: one
relay before two, then shorter latency, then fewer links, then a relay at the source, then the lower
number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints, Links
from simcoll.core.immutable import by_constructor, freeze

Direct = Callable[[Ints, Ints], Links]

__all__ = ["Relays", "relays_of", "wider"]

AT_ONCE = 1 << 17
"""Number of candidates compared at a time."""
FAR = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Relays:
    """The GPUs that may stand in for each other, and the cost of their routes.

    Attributes
    ----------
    members
        Endpoints of each node ``[nodes, most]``, padded with -1.
    node
        Node of each endpoint.
    network, host, latency_fs
        For every link and, last, for the padding -1: whether it leaves the node, whether it crosses
        a CPU, and its latency.
    """

    members: Ints
    node: Ints
    network: NDArray[np.bool_]
    host: NDArray[np.bool_]
    latency_fs: Ints

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def over_host(self, links: Links) -> NDArray[np.bool_]:
        """Whether a route reaches its NIC through a CPU; NCCL then prefers a neighbour's NIC."""
        leaves_node = self.network[links]
        before_network = np.cumsum(leaves_node, axis=1) == 0
        by_host = (self.host[links] & before_network).any(axis=1)
        return np.asarray(leaves_node.any(axis=1) & by_host)

    def links(self, src: Ints, dst: Ints, direct: Direct, *, at_source: bool = False) -> Links:
        """The best relayed route of every pair, without links if there is none.

        ``direct`` yields unrelayed routes, without links if there is none. ``at_source`` allows
        only a relay at the source, with legs to and from it that cross no CPU on the way out.
        """
        width = self.members.shape[1]
        routes = np.full((src.size, 0), -1, np.int32)
        for nrelays in (1,) if at_source else (1, 2):
            pending = np.flatnonzero((routes < 0).all(axis=1))
            ncandidates = width**2 if nrelays == 2 else 2 * width
            together = max(AT_ONCE // ncandidates, 1)
            for begin in range(0, pending.size, together):
                rows = pending[begin : begin + together]
                best = self._best(
                    src[rows], dst[rows], direct, nrelays=nrelays, at_source=at_source
                )
                routes = wider(routes, best.shape[1])
                routes[rows, : best.shape[1]] = best
        return routes

    def _best(
        self, src: Ints, dst: Ints, direct: Direct, *, nrelays: int, at_source: bool
    ) -> Links:
        """The best route of every pair over one relay, or over two."""
        entries, exits = self._candidates(src, dst, nrelays=nrelays, at_source=at_source)
        ncandidates = entries.shape[1]
        source = np.repeat(src, ncandidates)
        target = np.repeat(dst, ncandidates)
        first_relay = entries.ravel()
        last_relay = exits.ravel()
        fitting = (first_relay >= 0) & (last_relay >= 0)
        fitting &= first_relay != last_relay
        fitting &= (first_relay != source) | (last_relay != target)
        fits = np.flatnonzero(fitting)
        if not fits.size:
            return np.full((src.size, 0), -1, np.int32)
        stops = [source[fits], first_relay[fits], last_relay[fits], target[fits]]
        legs = [direct(start, stop) for start, stop in pairwise(stops)]
        good = ~self.network[legs[0]].any(axis=1)
        good &= ~self.network[legs[2]].any(axis=1)
        for leg, (start, stop) in zip(legs, pairwise(stops), strict=True):
            good &= (leg >= 0).any(axis=1) | (start == stop)
        route = np.concatenate(legs, axis=1)
        good &= ~_uses_link_twice(route)
        if at_source:
            good &= ~self.over_host(route)
        cost, hops = np.full((2, *entries.shape), FAR)
        usable = fits[good]
        links = route[good]
        cost.flat[usable] = self.latency_fs[links].sum(axis=1)
        hops.flat[usable] = (links >= 0).sum(axis=1)
        # Among equal routes the first: a relay at the source, then the lower number.
        least_cost = cost.min(axis=1)
        chosen = np.where(cost == least_cost[:, None], hops, FAR).argmin(axis=1)
        row_of = np.full(entries.shape, -1)
        row_of.flat[fits] = np.arange(fits.size)
        rows = row_of[np.arange(src.size), chosen]
        reachable = least_cost < FAR
        best = np.where(reachable[:, None], route[rows], np.int32(-1))
        unused = best < 0
        return np.take_along_axis(best, np.argsort(unused, axis=1, kind="stable"), axis=1)

    def _candidates(
        self, src: Ints, dst: Ints, *, nrelays: int, at_source: bool
    ) -> tuple[Ints, Ints]:
        """First and last relay of every candidate ``[pair, candidate]``; an end of the pair itself
        stands for no relay there.
        """
        near_source = self.members[self.node[src]]
        near_target = self.members[self.node[dst]]
        width = near_source.shape[1]
        if nrelays == 2:
            return np.repeat(near_source, width, axis=1), np.tile(near_target, (1, width))
        no_last = np.repeat(dst[:, None], width, axis=1)
        if at_source:
            return near_source, no_last
        no_first = np.repeat(src[:, None], width, axis=1)
        return np.concatenate([near_source, no_first], axis=1), np.concatenate(
            [no_last, near_target], axis=1
        )


def _uses_link_twice(route: Links) -> NDArray[np.bool_]:
    ordered = np.sort(route, axis=1)
    repeated = ordered[:, 1:] == ordered[:, :-1]
    return np.asarray((repeated & (ordered[:, 1:] >= 0)).any(axis=1))


def wider(routes: Links, width: int) -> Links:
    """Routes padded to at least a number of links."""
    return np.pad(routes, ((0, 0), (0, max(width - routes.shape[1], 0))), constant_values=-1)


def relays_of(
    node: Ints, network: NDArray[np.bool_], host: NDArray[np.bool_], latency_fs: Ints
) -> Relays:
    """Relays among endpoints of one node, from the node of each endpoint and the properties of all
    links.
    """
    order = np.argsort(node, kind="stable")
    size = np.bincount(node)
    members = np.full((len(size), int(size.max())), -1)
    start = np.cumsum(size) - size
    position = np.arange(len(node)) - np.repeat(start, size)
    members[node[order], position] = order
    # A row without a link has the index -1, which reads the value appended here.
    return Relays(
        members,
        node,
        network=np.append(network, False),
        host=np.append(host, False),
        latency_fs=np.append(latency_fs, 0),
    )
