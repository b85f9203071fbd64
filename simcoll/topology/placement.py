"""Placements of ranks: compact, round-robin over nodes, random by seed, or explicit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.numbers import check_seed
from simcoll.errors import ConfigError, nearest
from simcoll.topology.ecmp import hash_of
from simcoll.topology.graph import Topology
from simcoll.topology.values import count

__all__ = ["ORDERS", "place"]

PlacementOrder: TypeAlias = Literal["compact", "round_robin", "random", "explicit"]
ORDERS: tuple[PlacementOrder, ...] = ("compact", "round_robin", "random", "explicit")
PLACEMENT = 3
"""Purpose that separates this hash from those of routes."""


def place(
    topology: Topology,
    order: str = "compact",
    *,
    nranks: int | None = None,
    level: str | None = None,
    seed: int = 0,
    gpus: Sequence[int] | None = None,
) -> Topology:
    """The same cluster with another placement of ranks.

    Parameters
    ----------
    order
        ``"compact"`` fills one group after the other, ``"round_robin"`` gives one rank to each
        group in turn, ``"random"`` shuffles all GPUs by the seed, ``"explicit"`` puts rank r on GPU
        ``gpus[r]``.
    nranks
        Number of ranks; default: one on every GPU (of the list).
    level
        The groups of ``round_robin``; default: the finest level of the topology, such as its nodes.

    Raises
    ------
    ConfigError
        For an unknown order or level, more ranks than GPUs, or a list that names a GPU twice.

    Examples
    --------
    >>> from simcoll.topology import load_topology
    >>> place(load_topology("dgx-h100", nodes=2), "round_robin").groups["box"].tolist()[:4]
    [0, 1, 0, 1]
    """
    if order not in ORDERS:
        raise ConfigError(f"placement: unknown order {order!r}; {nearest(str(order), ORDERS)}")
    if (order == "explicit") != (gpus is not None):
        raise ConfigError("placement: order 'explicit' and a list of gpus belong together")
    n = topology.nranks
    if gpus is not None:
        chosen = _gpu_numbers(gpus, n)
    elif order == "random":
        shuffle = check_seed(seed)
        chosen = np.argsort(
            hash_of(shuffle, PLACEMENT, np.arange(n), np.zeros(n, np.int64)), kind="stable"
        )
    elif order == "round_robin":
        ids = topology.groups.get(str(level or next(iter(topology.groups), "")))
        if ids is None:
            raise ConfigError(
                f"placement: no groups of level {level!r}; {nearest(str(level), topology.groups)}"
            )
        order_in = np.argsort(ids, kind="stable")
        turn = np.empty(n, np.int64)
        starts = np.searchsorted(ids[order_in], np.arange(int(ids.max()) + 1))
        turn[order_in] = np.arange(n) - starts[ids[order_in]]
        chosen = np.lexsort((ids, turn))
    else:
        chosen = np.arange(n)
    if nranks is not None and count(nranks, "placement: number of ranks") > len(chosen):
        raise ConfigError(
            f"placement: {nranks} ranks were requested, but {len(chosen)} GPUs given by topology "
            f"{topology.name!r}"
        )
    return topology.with_ranks(chosen[:nranks])


def _gpu_numbers(gpus: Sequence[int], n: int) -> Ints:
    """A list of GPU numbers below n."""
    try:
        numbers = list(gpus)
    except TypeError:
        raise ConfigError(
            f"placement: gpus: expected a list of whole numbers, got {gpus!r}"
        ) from None
    return np.array(
        [count(gpu, "placement: gpus", minimum=0, maximum=n - 1) for gpu in numbers], dtype=np.int64
    )
