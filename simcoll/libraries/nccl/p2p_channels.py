"""How many channels NCCL uses for sends and receives, by ``src/graph/paths.cc`` of 2.27 to 2.30."""

from __future__ import annotations

from simcoll.libraries.nccl.device_graph import DeviceGraph, Vertex
from simcoll.libraries.nccl.device_paths import NVB, NVL, PathRules, local_net, nearest, nearest_cpu
from simcoll.topology.readers.link_speeds import nvlink

__all__ = ["channels_per_peer"]

_MOST_CHANNELS = 64
_CHANNEL_GBps = 14


def channels_per_peer(graph: DeviceGraph, ranks: int, rules: PathRules) -> int:
    """Number of channels of sends that the links or NICs to one peer can fill: the least of a node.

    Before NCCL 2.29 it is 0 where a GPU reaches its NICs by no CPU link; the channels of the
    communicator then decide (:func:`simcoll.libraries.nccl.sends.send_channels`).

    Parameters
    ----------
    ranks
        Of the whole communicator.
    """
    channels_to_peer = _MOST_CHANNELS
    for gpu in graph.gpus:
        for peer in graph.gpus:
            if peer is not gpu:
                path = peer.paths["gpu"][graph.gpus.index(gpu)]
                channels_to_peer = min(
                    channels_to_peer, _within_node(gpu, path.type, path.rate_MBps, rules.version)
                )
        if len(graph.gpus) < ranks:
            channels_to_peer = min(channels_to_peer, _over_network(graph, gpu, rules))
    return channels_to_peer


def _within_node(gpu: Vertex, path_type: int, rate_MBps: int, version: tuple[int, int]) -> int:
    """By the rate of NVLinks, which before 2.30 must join both GPUs without a third between."""
    if path_type != NVL and (path_type != NVB or version < (2, 30)):
        return 2
    return 2 * max(1, int(rate_MBps / (1000 * nvlink(gpu.gpu.capability)[1])))


def _over_network(graph: DeviceGraph, gpu: Vertex, rules: PathRules) -> int:
    """At least one channel for each NIC of a GPU, and from 2.29 on enough for their rate."""
    if rules.version < (2, 29):
        return _nics_by_cpu_link(gpu)
    cpu_MBps = gpu.paths["cpu"][nearest_cpu(gpu)].rate_MBps
    nics: list[int] = []
    total_MBps = 0
    for channel in range(_MOST_CHANNELS):
        net = local_net(graph, gpu, channel, rules)
        if net is None or (nics and net == nics[0]):
            break
        nics.append(net)
        total_MBps += gpu.paths["net"][net].rate_MBps
        if total_MBps >= cpu_MBps:
            break
    return max(len(nics), -(-(total_MBps // 1000) // _CHANNEL_GBps)) if nics else 2


def _nics_by_cpu_link(gpu: Vertex) -> int:
    """Number of nearest NICs that fill the link from a GPU to its CPU."""
    to_cpu = [link.free_MBps for link in gpu.links if link.head.kind == "cpu"]
    nets, total_MBps, count = nearest(gpu, "net")[0], 0, 0
    for net in nets:
        if not to_cpu or total_MBps >= to_cpu[-1]:
            break
        total_MBps += gpu.paths["net"][net].rate_MBps
        count += 1
    return count
