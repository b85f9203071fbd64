"""What the links on the ways of NCCL's channels carry, which is not rounded to a list of speeds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from simcoll.libraries.nccl.channel_search import ChargedPath, Draft, route_along
from simcoll.libraries.nccl.device_graph import DeviceGraph, Vertex

__all__ = ["carried_rates"]

INTEL_BRIDGE = 6 / 5
"""Rate that a host bridge of Intel's takes for the rate of one."""


def carried_rates(graph: DeviceGraph, draft: Draft, *, between: bool) -> tuple[float, float]:
    """The total rate of all channels of a ring within a node and to the network, in GB/s, if all
    carry the same; 0 where they have no way.

    Parameters
    ----------
    between
        Whether the ring leaves the node.
    """
    gpu_of_rank = {gpu.rank: gpu for gpu in graph.gpus}
    to_gpus: list[ChargedPath] = []
    to_ports: list[ChargedPath] = []
    for channel in range(draft.channels):
        gpus = [gpu_of_rank[rank] for rank in draft.orders[channel]]
        stops = gpus if between else [*gpus, gpus[0]]
        to_gpus += [_route(graph, tail, head) for tail, head in pairwise(stops)]
        if between and graph.nets:
            # NCCL's last resort names no port.
            enter, leave = (graph.nets[max(port, 0)] for port in draft.nics[channel])
            if "gpu" in enter.paths and "net" in gpus[-1].paths:
                to_ports.append(_route(graph, enter, gpus[0]))
                to_ports.append(_route(graph, gpus[-1], leave))
    passes: dict[int, float] = {}
    for route in (*to_gpus, *to_ports):
        for link, is_pcie, _ in route.links:
            cost = 1.2 if is_pcie and route.costs_more else 1.0
            passes[id(link)] = passes.get(id(link), 0.0) + cost
    return draft.channels * _narrowest(to_gpus, passes), draft.channels * _narrowest(
        to_ports, passes
    )


def _route(graph: DeviceGraph, tail: Vertex, head: Vertex) -> ChargedPath:
    return route_along(tail, tail.paths[head.kind][graph.of_kind[head.kind].index(head)])


def _narrowest(routes: Iterable[ChargedPath], loads: dict[int, float]) -> float:
    """The rate of one channel that the narrowest link leaves."""
    rates = []
    for route in routes:
        for link, _, _ in route.links:
            rates.append(link.free_MBps / loads[id(link)] / 1000)
    return min(rates, default=0.0)
