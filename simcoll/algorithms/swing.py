"""Swing: halving and doubling with near partners on a ring or torus, at distances 1, 1, 3, 5, 11,
..., on alternating sides.
"""

from __future__ import annotations

from math import prod

import numpy as np

from simcoll.algorithms import butterfly
from simcoll.algorithms.butterfly import fold
from simcoll.algorithms.compose import in_shares
from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError

__all__ = ["all_reduce"]

PLACE = 12  # in listings

SWING = (
    "De Sensi et al.: Swing, short-cutting rings for higher bandwidth allreduce, NSDI 2024, "
    "arXiv 2401.09356"
)


def _torus_peers(dims: tuple[int, ...], start: int, *, mirrored: bool) -> Ints:
    """Partners on a torus: one step in each dimension in turn, starting with dimension ``start``,
    until all are done.
    """
    n = prod(dims)
    rank = np.arange(n, dtype=np.int64)
    stride = [prod(dims[d + 1 :]) for d in range(len(dims))]
    waiting = [list(butterfly.swing_peers(size, mirrored=mirrored)) for size in dims]
    peers = []
    turn = start
    while any(waiting):
        d = turn % len(dims)
        turn += 1
        if waiting[d]:
            place = rank // stride[d] % dims[d]
            peers.append(rank + (waiting[d].pop(0)[place] - place) * stride[d])
    return np.array(peers, np.int64).reshape(-1, n)


@algorithm(
    "all_reduce",
    "swing",
    cost="2 lg n a + 2(n-1)/n s b + (n-1)/n s g, n = 2^k",
    source=SWING,
    pattern="tree",
    topologies="torus",
    order="run-consistent",
)
def all_reduce(
    collective: Collective, *, dims: tuple[int, ...] | None = None, channels: int = 1
) -> Schedule:
    """Reduce-scatter and all-gather with swinging partners.

    With ``dims``, the sizes of a torus (powers of two, the last varies fastest), every channel
    consists of two copies per dimension, each starting in a different dimension, the second
    mirrored, so that all links are used. Without ``dims``, ranks beyond a power of two fold first.
    """
    n = collective.nranks
    if dims is None:
        plain = butterfly.all_reduce("swing", collective, butterfly.swing_peers(fold(n)[0]))
        return in_shares([plain] * channels)
    if prod(dims) != n:
        raise ConfigError(f"dims={dims} make {prod(dims)} ranks, but there are {n}")
    if any(size & (size - 1) for size in dims):
        raise ConfigError(
            f"swing needs dimensions that are powers of two, got dims={dims}; torus serves any"
        )
    ways = [(start, mirrored) for mirrored in (False, True) for start in range(len(dims))]
    copies = [
        butterfly.all_reduce("swing", collective, _torus_peers(dims, start, mirrored=mirrored))
        for start, mirrored in ways
    ]
    return in_shares(copies * channels)
