"""Routes of GPUs that have lost their NIC: over another GPU of the node, as in NCCL's PXN over NVLink to a neighbour's NIC.

A relayed route has up to three legs: within the source's node to a GPU with a path out, over the network, and within the destination's
node from the GPU that the network reaches. Preference: one relay before two, then shorter latency, then fewer links, then a relay at
the source, then the lower number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints, Links
from simcoll.core.frozen import freeze, rebuilt

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
        For every link and, last, for the padding -1: whether it leaves the node, whether it crosses a CPU, and its latency.
    """

    members: Ints
    node: Ints
    network: NDArray[np.bool_]
    host: NDArray[np.bool_]
    latency_fs: Ints

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = rebuilt

    def over_host(self, links: Links) -> NDArray[np.bool_]:
        """Whether a route reaches its NIC through a CPU; NCCL then prefers a neighbour's NIC."""
        before = np.cumsum(self.network[links], axis=1) == 0
        found: NDArray[np.bool_] = self.network[links].any(axis=1) & (self.host[links] & before).any(axis=1)
        return found

    def links(self, src: Ints, dst: Ints, direct: Direct, *, at_source: bool = False) -> Links:
        """The best relayed route of every pair, without links if there is none.

        ``direct`` yields unrelayed routes, without links if there is none. ``at_source`` allows only a relay at the source, with legs to
        and from it that cross no CPU on the way out.
        """
        most = self.members.shape[1]
        found = np.full((src.size, 0), -1, np.int32)
        for many in (1,) if at_source else (1, 2):
            left = np.flatnonzero((found < 0).all(axis=1))
            together = max(AT_ONCE // (most**2 if many == 2 else 2 * most), 1)
            for first in range(0, left.size, together):
                rows = left[first : first + together]
                best = self._best(src[rows], dst[rows], direct, many=many, at_source=at_source)
                found = wider(found, best.shape[1])
                found[rows, : best.shape[1]] = best
        return found

    def _best(self, src: Ints, dst: Ints, direct: Direct, *, many: int, at_source: bool) -> Links:
        """The best route of every pair over one relay, or over two."""
        out, into = self.members[self.node[src]], self.members[self.node[dst]]
        most = out.shape[1]
        if many == 2:
            first, last = np.repeat(out, most, axis=1), np.tile(into, (1, most))
        else:
            first, last = out, np.repeat(dst[:, None], most, axis=1)
            if not at_source:
                first = np.concatenate([first, np.repeat(src[:, None], most, axis=1)], axis=1)
                last = np.concatenate([last, into], axis=1)
        a, b = (np.repeat(end, first.shape[1]) for end in (src, dst))
        s, t = first.ravel(), last.ravel()
        fits = np.flatnonzero((s >= 0) & (t >= 0) & (s != t) & ((s != a) | (t != b)))
        if not fits.size:
            return np.full((src.size, 0), -1, np.int32)
        a, b, s, t = a[fits], b[fits], s[fits], t[fits]
        legs = [direct(a, s), direct(s, t), direct(t, b)]
        good = ~self.network[legs[0]].any(axis=1) & ~self.network[legs[2]].any(axis=1)
        for leg, (one, other) in zip(legs, ((a, s), (s, t), (t, b)), strict=True):
            good &= (leg >= 0).any(axis=1) | (one == other)
        way = np.concatenate(legs, axis=1)
        ordered = np.sort(way, axis=1)
        good &= ~((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
        if at_source:
            good &= ~self.over_host(way)
        cost, hops = np.full((2, first.size), FAR)
        cost[fits[good]], hops[fits[good]] = self.latency_fs[way[good]].sum(axis=1), (way[good] >= 0).sum(axis=1)
        cost, hops = cost.reshape(first.shape), hops.reshape(first.shape)
        # Among equal routes the first: a relay at the source, then the lower number.
        chosen = np.where(cost == cost.min(axis=1, keepdims=True), hops, FAR).argmin(axis=1)
        place = np.full(first.size, -1)
        place[fits] = np.arange(fits.size)
        rows = place.reshape(first.shape)[np.arange(src.size), chosen]
        best = np.where((cost.min(axis=1) < FAR)[:, None], way[rows], np.int32(-1))
        used = best >= 0
        return np.take_along_axis(best, np.argsort(~used, axis=1, kind="stable"), axis=1)


def wider(found: Links, width: int) -> Links:
    """Routes padded to at least a number of links."""
    return np.pad(found, ((0, 0), (0, max(width - found.shape[1], 0))), constant_values=-1)


def relays_of(node: Ints, network: NDArray[np.bool_], host: NDArray[np.bool_], latency_fs: Ints) -> Relays:
    """Relays among endpoints of one node, from the node of each endpoint and the properties of all links."""
    order = np.argsort(node, kind="stable")
    size = np.bincount(node)
    members = np.full((len(size), int(size.max())), -1)
    members[node[order], np.arange(len(node)) - np.repeat(np.cumsum(size) - size, size)] = order
    return Relays(members, node, np.append(network, False), np.append(host, False), np.append(latency_fs, 0))
