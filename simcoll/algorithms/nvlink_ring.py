"""Rings along the direct links of a node's GPUs, such as NVLinks of DGX-1 or xGMI: as many as the
links can carry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.algorithms import chain, compose, ring
from simcoll.algorithms.forest import topology_of
from simcoll.arrays import Ints
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.topology import Topology


Cycle = tuple[int, ...]

__all__ = ["all_gather", "all_reduce", "broadcast", "link_rings", "reduce", "reduce_scatter"]

PLACE = 4  # in listings

NCCL = "NCCL 2.27: src/graph/search.cc, rings over NVLinks"
MOST_RANKS = 64
MOST_TRIES = 5_000
MOST_RINGS = 32
"""Rings of NCCL (half of MAXCHANNELS); also those that exact shares of links may ask for."""


def links_of(topology: Topology, size: int) -> Ints:
    """Capacity of the direct links between each pair of the first ranks: ``[size, size]``."""
    rank_of = np.full(len(topology.node_names), -1)
    rank_of[topology.rank_nodes[:size]] = np.arange(size)
    src, dst = rank_of[topology.link_src], rank_of[topology.link_dst]
    direct, capacity = (src >= 0) & (dst >= 0), np.zeros((size, size), np.int64)
    np.add.at(capacity, (src[direct], dst[direct]), topology.link_capacity_uBps[direct])
    return capacity


def link_rings(links: Ints) -> list[Cycle]:
    """Rings through all ranks that use no link more often than it exists: as many as a search
    finds, at most one per link of a rank.

    Rings over the widest links come first. The search is limited by a number of tries, not by time,
    so its result is deterministic.

    >>> link_rings(np.array([[0, 2, 1], [2, 0, 1], [1, 1, 0]]))
    [(0, 1, 2), (0, 2, 1)]
    """
    tries = iter(range(MOST_TRIES))

    def cycles(free: Ints, path: Cycle) -> Iterator[Cycle]:
        neighbours = free[path[-1]]
        if len(path) == len(free) and neighbours[path[0]]:
            yield path
        for peer in sorted(
            set(np.flatnonzero(neighbours).tolist()) - set(path),
            key=lambda peer: (-neighbours[peer], peer),
        ):
            if next(tries, None) is not None:
                yield from cycles(free, (*path, peer))

    def rings(free: Ints) -> list[Cycle]:
        best: list[Cycle] = []
        limit = int(min(free.sum(0).min(), free.sum(1).min()))
        for path in cycles(free, (0,)) if limit else ():
            used = np.zeros_like(free)
            used[path, np.roll(path, -1)] = 1
            times = int(free[used > 0].min())
            best = max(best, [path] * times + rings(free - times * used), key=len)
            if len(best) == limit:
                break
        return best

    return rings(links) if len(links) > 1 else [(0,)]


@lru_cache(maxsize=16)
def _through(topology: Topology, size: int) -> list[Cycle]:
    """Rings through the ranks of a node; for several nodes, one that enters at each rank, and one
    that leaves from each.

    The links of a node then carry as many rings as its NICs feed, and the network counts as one
    more position in every ring.
    """
    links = links_of(topology, size)
    if size == topology.nranks:
        return link_rings(links // _unit(links))
    # Imported late: topologies are loaded on first use.
    from simcoll.topology.machine import machine

    ring_rate = max(machine(topology).nic_uBps // size, 1)
    around = np.ones((size + 1, size + 1), np.int64)
    around[0, 0], around[1:, 1:] = 0, np.where(links > 0, np.maximum(links // ring_rate, 1), 0)
    return [tuple(place - 1 for place in ring[1:]) for ring in link_rings(around)]


def _unit(links: Ints) -> int:
    """The capacity of one ring: a common divisor of all links, or that of the narrowest if rings
    would be too many, as of a degraded link with 0.83 of its capacity.
    """
    unit = max(int(np.gcd.reduce(links, axis=None)), 1)
    smallest_port = int(min(links.sum(0).min(), links.sum(1).min()))
    if smallest_port <= MOST_RINGS * unit:
        return unit
    narrowest = int(links[links > 0].min())
    return max(narrowest, -(-smallest_port // MOST_RINGS))


def _orders(schedule: Schedule, topology: Topology | None) -> Ints:
    """The rank at each position of each ring, node by node."""
    machine = topology_of(schedule.collective, topology, "nvlink_ring")
    size = machine.ranks_per_node or machine.nranks
    rings = _through(machine, size) if size <= MOST_RANKS else []
    if not rings:
        raise ConfigError(
            f"nvlink_ring needs rings of direct links through the up to {MOST_RANKS} GPUs of a "
            f"node, which topology {machine.name!r} "
            "does not have; ring serves any topology"
        )
    return ring.ring_orders(machine.nranks, len(rings), size, np.array(rings))


def along_links(
    schedule: Schedule, *, topology: Topology | None = None, pieces: int = 1
) -> Schedule:
    """Copies of the ring along the links."""
    return compose.channels(compose.pieces(schedule, pieces), _orders(schedule, topology))


def rows_along_links(
    schedule: Schedule, *, topology: Topology | None = None, pieces: int = 4
) -> Schedule:
    """Copies of the chain along the links, starting at the root."""
    return chain.from_root(schedule, _orders(schedule, topology), pieces)


RINGS: dict[str, Any] = {
    "name": "nvlink_ring",
    "machine": "mesh",
    "source": NCCL,
    "topologies": "direct",
    "shared": along_links,
}
ROWS = RINGS | {"shared": rows_along_links}

all_reduce = replace(ring.all_reduce, **RINGS, cost="2(n-1)a + (n-1)/n s (2b + g)/rings")
all_gather = replace(ring.all_gather, **RINGS, cost="(n-1)a + (n-1)/n s b/rings")
reduce_scatter = replace(ring.reduce_scatter, **RINGS, cost="(n-1)a + (n-1)/n s (b + g)/rings")
broadcast = replace(chain.broadcast, **ROWS, cost="(n-2+pieces)(a + s/pieces b/rings)")
reduce = replace(chain.reduce, **ROWS, cost="(n-2+pieces)(a + s/pieces (b + g)/rings)")
