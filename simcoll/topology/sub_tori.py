"""Whole rings and tori among the ranks of a torus, on which collectives run along the axes."""

from __future__ import annotations

from math import prod

import numpy as np

from simcoll.topology.graph import Topology
from simcoll.topology.routing import TorusRouter

__all__ = ["closed_dims"]


def closed_dims(topology: Topology) -> tuple[int, ...]:
    """The lengths of the axes along which the ranks of a torus fill whole rings; empty if they do
    not, and on other topologies.

    The ranks are in the order of the torus, the last axis fastest, and each axis has all of its
    chips or one: a part of an axis is no ring, because its ends are not joined.

    Examples
    --------
    >>> from simcoll.topology import torus
    >>> machine = torus([4, 8], "45 GB/s")
    >>> closed_dims(machine)
    (4, 8)
    >>> closed_dims(machine.with_ranks(range(0, 32, 8))), closed_dims(machine.with_ranks(range(4)))
    ((4,), ())
    """
    router = topology.router
    if not isinstance(router, TorusRouter):
        return ()
    coordinates = np.unravel_index(topology.rank_nodes, router.dims)
    dims = []
    for coordinate, length, wrap in zip(coordinates, router.dims, router.wrap, strict=True):
        used = np.unique(coordinate).size
        if used > 1:
            if used != length or not (wrap or length == 2):
                return ()
            dims.append(length)
    in_order = bool(np.all(np.diff(topology.rank_nodes) > 0))
    return tuple(dims) if in_order and prod(dims) == topology.nranks else ()
