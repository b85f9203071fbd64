"""Tables of links under construction, and assembly of a topology from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.core.memory_limits import check_room
from simcoll.core.vocabulary import LinkKind, NodeKind
from simcoll.errors import ConfigError, nearest
from simcoll.topology.graph import LINK_KINDS, Topology
from simcoll.topology.routing import Router
from simcoll.topology.values import (
    Quantity,
    checked_capacity,
    duration_fs,
    halves_fs,
    parse_capacity,
)

__all__ = ["LinkTable", "add_hosts", "assemble", "checked_kind", "room_for_links", "switch_network"]

MAX_LINKS = 2**23
LINK_BYTES = 400
"""Memory per link under construction, including its share of names and routes."""


def room_for_links(number: int, subject: str) -> None:
    """Refuse a topology with too many links to build in about a minute, or to fit in memory.

    >>> room_for_links(1 << 30, "this torus")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: this torus has 1073741824 links; at most 8388608 can be made
    """
    if number > MAX_LINKS:
        raise ConfigError(f"{subject} has {number} links; at most {MAX_LINKS} can be made")
    check_room(
        number * LINK_BYTES,
        f"making the {number} links of {subject}",
        "a smaller topology needs less",
    )


def checked_kind(kind: str) -> LinkKind:
    """The kind, if it is one of :data:`~simcoll.topology.graph.LINK_KINDS`."""
    if kind not in LINK_KINDS:
        raise ConfigError(f"link_kind: unknown {kind!r}; {nearest(str(kind), LINK_KINDS)}")
    return kind


@dataclass(frozen=True, slots=True)
class LinkTable:
    """Links under construction: rows of (source, destination, capacity in uBps, latency in fs,
    kind).
    """

    rows: list[tuple[int, int, int, int, int]]

    def add(self, src: int, dst: int, capacity: int, latency_fs: int, kind: str) -> int:
        """Append one directed link and return its index."""
        checked_capacity(capacity, f"{checked_kind(kind)} link")
        self.rows.append((src, dst, capacity, latency_fs, LINK_KINDS.index(kind)))
        return len(self.rows) - 1

    def add_pair(
        self, a: int, b: int, capacity: int, latency_fs: tuple[int, int], kind: str
    ) -> tuple[int, int]:
        """Append a link in each direction, with their latencies, and return both indices."""
        return self.add(a, b, capacity, latency_fs[0], kind), self.add(
            b, a, capacity, latency_fs[1], kind
        )

    def columns(self) -> Ints:
        """The five columns as an array ``[5, L]``."""
        return np.array(self.rows, dtype=np.int64).reshape(-1, 5).T


def add_hosts(
    links: LinkTable, n: int, hosts: int, bandwidth: Quantity, latency: Quantity, kind: str
) -> tuple[int, Shorts]:
    """Link ranks 0..n-1 with the switches that follow them, ``hosts`` at each.

    Return the capacity and the links up and down.
    """
    capacity, halves = (
        parse_capacity(bandwidth, "bandwidth"),
        halves_fs(duration_fs(latency, "latency")),
    )
    up_fs, down_fs = halves
    number, begin = LINK_KINDS.index(checked_kind(kind)), len(links.rows)
    for v in range(n):
        switch = n + v // hosts
        links.rows.append((v, switch, capacity, up_fs, number))
        links.rows.append((switch, v, capacity, down_fs, number))
    return capacity, np.arange(begin, begin + 2 * n, dtype=np.int32).reshape(n, 2)


def switch_network(
    name: str,
    n: int,
    names: Sequence[str],
    links: LinkTable,
    router: Router,
    groups: Mapping[str, Ints],
    *,
    gpus_forward: bool = False,
) -> Topology:
    """Build a topology whose first vertices are ranks 0..n-1, followed by switches."""
    kinds: list[NodeKind] = ["gpu"] * n
    kinds += ["switch"] * (len(names) - n)
    return assemble(
        name, names, kinds, np.arange(n), links.columns(), router, groups, gpus_forward=gpus_forward
    )


def assemble(
    name: str,
    names: Sequence[str],
    kinds: Sequence[NodeKind],
    ranks: Ints,
    columns: Ints,
    router: Router,
    groups: Mapping[str, Ints],
    *,
    gpus_forward: bool = False,
) -> Topology:
    """Build a topology from vertices, the vertices of its ranks, and the columns of a table of
    links.
    """
    return Topology(
        name=name,
        node_names=tuple(names),
        node_kinds=tuple(kinds),
        rank_nodes=ranks,
        link_src=columns[0],
        link_dst=columns[1],
        link_capacity_uBps=columns[2],
        link_latency_fs=columns[3],
        link_kind=columns[4].astype(np.int8),
        router=router,
        rank_endpoints=np.arange(len(ranks)),
        gpus_forward=gpus_forward,
        groups=groups,
    )
