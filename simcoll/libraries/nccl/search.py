"""The graphs that NCCL finds on a topology, by its own search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from simcoll.libraries.nccl.carried_rates import carried_rates
from simcoll.libraries.nccl.channel_search import Draft
from simcoll.libraries.nccl.graph_cache import cached_graphs
from simcoll.libraries.nccl.graph_search import DomainGraphs, Settings, search_domain
from simcoll.libraries.nccl.graphs import ChannelGraph, NcclGraphs, graphs_of
from simcoll.libraries.nccl.p2p_channels import channels_per_peer
from simcoll.libraries.path_types import PATH_TYPES, PathType
from simcoll.topology import Topology
from simcoll.topology.host_tree import Device, GpuDevice, HostTree, PcieSwitch, gpus_of, nics_of

__all__ = ["graphs_on", "search"]

_DEFAULT = Settings()


def graphs_on(topology: Topology, version: tuple[int, int]) -> NcclGraphs | None:
    """The graphs of NCCL on a topology: known for a shipped machine, else found by its search; None
    if the topology does not describe its PCIe devices.

    Examples
    --------
    >>> from simcoll.topology import load_topology
    >>> one_nic = load_topology("dgx-h100", nodes=2, nic__count=1)
    >>> graphs_on(one_nic, (2, 30)).ring.channels
    2
    """
    return graphs_of(topology, version) or search(topology, version)


def search(
    topology: Topology, version: tuple[int, int], settings: Settings = _DEFAULT
) -> NcclGraphs | None:
    """What NCCL's search finds on a topology; None if the topology does not describe its PCIe
    devices, its GPUs are not NVIDIA's, or an NVLink domain joins more than eight hosts.

    Parameters
    ----------
    version
        Version of NCCL, such as ``(2, 30)``.
    settings
        NCCL's variables that decide on graphs.

    Examples
    --------
    >>> from simcoll.topology import load_topology
    >>> graphs = search(load_topology("dgx-a100", nodes=2), (2, 30))
    >>> graphs.ring.channels, graphs.ring.speed_between, graphs.nodes
    (8, 24.0, 2)
    """
    host = topology.host
    if host is None or topology.nranks < 2:
        return None
    boxes = _boxes(topology, len(gpus_of(host)))
    if any(len(box) > MOST_HOSTS for box, _ in boxes):
        return None
    multicast = bool(set(topology.traits.get("switch_reduce", "").split()) - {"sharp"})
    rules = replace(settings.rules, version=version)
    return _graphs(host, boxes, multicast, replace(settings, rules=rules))


MOST_HOSTS = 8
"""Hosts of an NVLink domain that are searched: nine of an NVL72 take 5 s, eighteen take minutes."""
_Box = tuple[tuple[int, ...], ...]
"""For each host of an NVLink domain, the numbers of the GPUs that have a rank."""


def _boxes(topology: Topology, host_gpus: int) -> tuple[tuple[_Box, int], ...]:
    """The different domains of a topology, and the number of each."""
    domain = topology.groups.get("box")
    if domain is None:
        domain = np.zeros(topology.nranks, dtype=np.int64)
    names = [topology.node_names[vertex] for vertex in topology.rank_nodes.tolist()]
    numbers = [_trailing_number(name) for name in names]
    counts: dict[_Box, int] = {}
    for box in np.unique(domain).tolist():
        gpus = [numbers[rank] for rank in np.flatnonzero(domain == box).tolist()]
        hosts: dict[int, list[int]] = {}
        for gpu in gpus:
            hosts.setdefault(gpu // host_gpus, []).append(gpu % host_gpus)
        key = tuple(tuple(sorted(members)) for members in hosts.values())
        counts[key] = counts.get(key, 0) + 1
    return tuple(counts.items())


def _trailing_number(name: str) -> int:
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits or 0)


@lru_cache(maxsize=256)
def _graphs(
    host: HostTree, boxes: tuple[tuple[_Box, int], ...], multicast: bool, settings: Settings
) -> NcclGraphs:
    """The graphs on domains of equal hosts, from memory or disk if they were found before."""
    request = (host, boxes, multicast, settings)
    return cached_graphs(request, lambda: _searched_graphs(*request))


def _searched_graphs(
    host: HostTree, boxes: tuple[tuple[_Box, int], ...], multicast: bool, settings: Settings
) -> NcclGraphs:
    """The graphs on domains of equal hosts: NCCL takes the least of what its ranks find."""
    ranks = sum(count * sum(map(len, box)) for box, count in boxes)
    parts: list[tuple[DomainGraphs, int]] = []
    for box, count in boxes:
        hosts = tuple((_with_gpus(host, gpus), len(gpus)) for gpus in box)
        domain_ranks = sum(map(len, box))
        covered: set[int] = set()
        for rank in range(domain_ranks):
            if rank not in covered:
                # Rings and trees are the same without reduction in switches.
                graphs = _domain(
                    hosts,
                    rank,
                    replace(settings, nvls=True),
                    multicast=multicast,
                    is_whole=domain_ranks == ranks,
                )
                covered |= {gpu.rank for gpu in graphs.devices.gpus}
                parts.append((graphs if settings.nvls else replace(graphs, nvls=None), count))
    nodes = sum(count for _, count in parts)
    domains = [graphs for graphs, _ in parts]
    # A tree whose search finds no path has one channel, and rings then use one too.
    common = min(draft.channels for part in domains for draft in (part.ring, part.tree))
    rings = [replace(part.ring, channels=common) for part in domains]
    ring = _with_link_rates(_least(rings, domains), rings, domains)
    tree = _least([replace(part.tree, channels=common) for part in domains], domains)
    switched = [graphs.nvls for graphs in domains if graphs.nvls is not None]
    nvls = _least(switched, domains) if len(switched) == len(domains) else None
    per_peer = min(channels_per_peer(graphs.devices, ranks, settings.rules) for graphs in domains)
    ports = (port for nic in nics_of(host) for port in nic.ports)
    used = [port for port in ports if settings.ports is None or port.number in settings.ports]
    speeds = [settings.port_mbps or port.speed_mbps for port in used]
    return NcclGraphs(
        ring=ring,
        tree=tree,
        nvls=nvls,
        nodes=nodes,
        p2p_channels_per_peer=per_peer,
        nic_GBps=min((speed / 8000 for speed in speeds), default=0.0),
        least_node_ranks=min(len(graphs.devices.gpus) for graphs in domains),
    )


@lru_cache(maxsize=128)
def _domain(
    hosts: tuple[tuple[HostTree, int], ...],
    rank: int,
    settings: Settings,
    *,
    multicast: bool,
    is_whole: bool,
) -> DomainGraphs:
    """The graphs that one rank finds, which are the same for any number of other domains."""
    domain_ranks = sum(count for _, count in hosts)
    ranks = domain_ranks if is_whole else domain_ranks + 1
    return search_domain(hosts, ranks, rank, settings, multicast=multicast)


def _least(drafts: Sequence[Draft], domains: Sequence[DomainGraphs]) -> ChannelGraph:
    """The channels that all ranks have: the least number and speed, the worst paths."""
    example, devices = drafts[0], domains[0].devices
    ports = [net.number for net in devices.nets]
    local = {gpu.rank: gpu.rank for gpu in devices.gpus}
    channels = min(draft.channels for draft in drafts)
    between = domains[0].between and bool(ports)
    return ChannelGraph(
        channels=channels,
        pattern="tree" if any(draft.pattern == "tree" for draft in drafts) else example.pattern,
        speed_inside=min(draft.speed_inside for draft in drafts) / 1000,
        speed_between=min(draft.speed_between for draft in drafts) / 1000,
        path_inside=_path_type(max(draft.type_inside for draft in drafts)),
        path_to_nic=_path_type(max(draft.type_to_nic for draft in drafts)),
        net_latency_us=example.net_latency_us,
        same_channels=all(draft.same_channels for draft in drafts),
        cross_nic=max(draft.cross_nic for draft in drafts),
        orders=tuple(
            tuple(local[rank] for rank in order[: 1 if example.pattern == "nvls" else None])
            for order in example.orders[:channels]
        ),
        nics=tuple((ports[enter], ports[leave]) for enter, leave in example.nics[:channels])
        if between
        else (),
    )


def _with_link_rates(
    ring: ChannelGraph, drafts: Sequence[Draft], domains: Sequence[DomainGraphs]
) -> ChannelGraph:
    """The ring with the rates that the links of all domains carry."""
    rates = [
        carried_rates(part.devices, draft, between=part.between)
        for draft, part in zip(drafts, domains, strict=True)
    ]
    to_gpus, to_ports = (min(column) for column in zip(*rates, strict=True))
    return replace(ring, carries_inside_GBps=to_gpus, carries_between_GBps=to_ports)


def _path_type(index: int) -> PathType:
    return PATH_TYPES[min(index, len(PATH_TYPES) - 1)]


def _with_gpus(host: HostTree, gpus: tuple[int, ...]) -> HostTree:
    """The host with ranks on some of its GPUs, in this order; others are not seen."""
    if gpus == tuple(range(len(gpus_of(host)))):
        return host
    rank_of = {gpu.number: rank for rank, gpu in enumerate(gpus_of(host)) if rank in gpus}
    order = {number: gpus.index(rank) for number, rank in rank_of.items()}

    def used_part(devices: tuple[Device, ...]) -> tuple[Device, ...]:
        chosen: list[Device] = []
        for device in devices:
            if isinstance(device, GpuDevice):
                if device.number in order:
                    chosen.append(replace(device, rank=order[device.number]))
            elif isinstance(device, PcieSwitch):
                chosen.append(replace(device, devices=used_part(device.devices)))
            else:
                chosen.append(device)
        return tuple(chosen)

    return HostTree(
        tuple(replace(socket, devices=used_part(socket.devices)) for socket in host.sockets)
    )
