"""Whether the channels that NCCL chose fit a machine, and NCCL's rings as a schedule."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms import compose, schedule
from simcoll.errors import ConfigError
from simcoll.topology.graph import LINK_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simcoll.core.schedule import Schedule
    from simcoll.formats.nccl_graph import NcclGraph
    from simcoll.topology import Topology

__all__ = ["fit_lines", "graph_schedule"]

_KINDS = {"NVL": "nvlink", "PIX": "pcie", "PXB": "pcie", "PHB": "pcie", "SYS": "cpu"}
"""The slowest kind of link of a path that NCCL calls so."""


def _edges(graph: NcclGraph) -> list[tuple[int, int]]:
    """Pairs of GPUs that send to each other, in the direction of the data; of trees both directions."""
    edges = []
    for order in graph.channels:
        if graph.pattern == "ring":
            edges += [*pairwise(order), (order[-1], order[0])] if len(order) > 1 else []
        else:
            edges += [pair for a, b in pairwise(order) for pair in ((a, b), (b, a))]
    return edges


def fit_lines(graph: NcclGraph, topology: Topology) -> Iterator[str]:
    """What a graph asks of the links of a machine, in words: its rate, its busiest link, and links that it leaves idle.

    Raises
    ------
    ConfigError
        When it names GPUs that the machine does not have.
    """
    most = max(map(max, graph.channels))
    if most >= topology.nranks:
        raise ConfigError(f"NCCL's {graph.name} graph names GPU {most}; {topology.name!r} has {topology.nranks}")
    total = len(graph.channels) * graph.intra_GBps
    count = len(graph.channels)
    yield f"{graph.name}: {count} channels of {graph.intra_GBps:g} GB/s, {total:g} GB/s in all, {graph.pattern}, over {graph.type_intra}"
    if graph.pattern in {"nvls", "collnet direct"}:
        yield "  a switch does it; its links are not followed"
        return
    edges = np.array(_edges(graph), np.int64).reshape(-1, 2)
    if not len(edges):
        return
    routes = topology.route(edges[:, 0], edges[:, 1])
    load: dict[int, float] = defaultdict(float)
    for route in routes.links.tolist():
        for link in route:
            if link >= 0:
                load[link] += graph.intra_GBps
    share = {link: used * 10**15 / int(topology.link_capacity_uBps[link]) for link, used in load.items()}
    busiest = max(sorted(share), key=share.__getitem__)
    verdict = "fits" if share[busiest] <= 1 else "does not fit"
    yield (
        f"  {verdict}: the busiest link, {topology.link_name(busiest)}, would carry {load[busiest]:g} GB/s of "
        f"{int(topology.link_capacity_uBps[busiest]) / 10**15:g} ({100 * share[busiest]:.0f} %)"
    )
    slowest = LINK_KINDS[int(routes.kind.max())]
    if graph.type_intra in _KINDS and slowest != _KINDS[graph.type_intra]:
        yield f"  NCCL says that its slowest path is {graph.type_intra}; on this machine it goes over {slowest}"
    fast = [
        link for link in range(topology.nlinks)
        if LINK_KINDS[topology.link_kind[link]] == "nvlink" and link not in load
    ]  # fmt: skip
    if fast:
        yield f"  {len(fast)} NVLinks of {topology.name} are left idle, such as {topology.link_name(fast[0])}"


def graph_schedule(graph: NcclGraph, collective: str = "all_reduce") -> Schedule:
    """NCCL's rings as a schedule of a ring algorithm, a share of the data on each channel.

    Raises
    ------
    ConfigError
        For a graph that is no ring, or whose channels have not the same GPUs.
    """
    if graph.pattern != "ring":
        raise ConfigError(f"NCCL's {graph.name} graph is a {graph.pattern}; only rings become schedules")
    gpus = sorted(graph.channels[0])
    if any(sorted(order) != list(range(len(gpus))) for order in graph.channels):
        raise ConfigError(f"the channels of NCCL's ring graph have not GPUs 0 to {len(gpus) - 1} each")
    if collective not in {"all_reduce", "all_gather", "reduce_scatter"}:
        raise ConfigError(f"no ring of NCCL for {collective!r}; valid: all_reduce, all_gather, reduce_scatter")
    return compose.channels(schedule(collective, "ring", nranks=len(gpus)), np.array(graph.channels))
