"""The graphs on which NCCL runs its algorithms: what its search in a topology finds.

NCCL decides by these few numbers, so that whoever knows them needs no topology. They are data for
shipped machines (``libraries/nccl-graphs.csv``).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, cast

from simcoll.files.paths import data_folder
from simcoll.libraries.path_types import PathType
from simcoll.topology import Topology, load_topology
from simcoll.topology.machine import machine

__all__ = [
    "ChannelGraph",
    "NcclGraphs",
    "Pattern",
    "channel_graph",
    "graphs_of",
    "read_graphs",
    "shipped_graphs",
]

Pattern = Literal["ring", "tree", "balanced_tree", "split_tree", "nvls"]


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """The graph of one algorithm.

    Attributes
    ----------
    channels
        Number of channels that the search finds, before NCCL doubles them.
    pattern
        Shape of a channel.
    speed_inside, speed_between
        Rate of one channel within a node and between nodes, in GB/s.
    path_inside, path_to_nic
        The worst type of path between GPUs, and from a GPU to its NIC.
    net_latency_us
        The latency that the network plugin reports, in microseconds.
    same_channels
        Whether all channels visit the GPUs in the same order.
    cross_nic
        Whether a channel may enter and leave a node by different NICs: 0 no, 1 yes, 2 alternating.
    orders
        Order of the GPUs of a node in each channel, by their index; empty if unknown.
    nics
        NIC by which each channel enters and leaves a node; empty if unknown.
    carries_inside_GBps, carries_between_GBps
        Total rate of all channels of a ring that the links of a node carry, between its GPUs and to
        its NICs; 0 if unknown.
    """

    channels: int
    pattern: Pattern
    speed_inside: float
    speed_between: float
    path_inside: PathType
    path_to_nic: PathType
    net_latency_us: float = 0.0
    same_channels: bool = False
    cross_nic: int = 0
    orders: tuple[tuple[int, ...], ...] = ()
    nics: tuple[tuple[int, int], ...] = ()
    carries_inside_GBps: float = 0.0
    carries_between_GBps: float = 0.0


@dataclass(frozen=True, slots=True)
class NcclGraphs:
    """The graphs of all algorithms of a communicator.

    Attributes
    ----------
    ring, tree, nvls
        The graphs; ``nvls`` is None where no switch multicasts.
    nodes
        Number of nodes as NCCL counts them: of a host whose GPUs reach each other by NICs, several.
    p2p_channels_per_peer
        Number of channels of sends and receives that the links or NICs to one peer can fill, before
        the limits of the communicator.
    nic_GBps
        Rate of the slowest NIC; 0 without NICs.
    least_node_ranks
        The least number of ranks of a node.
    """

    ring: ChannelGraph
    tree: ChannelGraph
    nvls: ChannelGraph | None
    nodes: int
    p2p_channels_per_peer: int
    nic_GBps: float
    least_node_ranks: int


_Key = tuple[str, tuple[int, ...]]
"""A machine and its number of ranks in each domain."""

_SAME = {
    "azure-nd-a100-v4": "dgx-a100",
    "azure-nd-h100-v5": "dgx-h100",
    "dell-xe9680": "dgx-h100",
    "dgx-h200": "dgx-h100",
    "hgx-h100-roce": "dgx-h100",
    "hgx-h200-roce": "dgx-h100",
    "oci-h200": "dgx-h100",
    "gcp-a4": "dgx-b200",
    "hgx-b200-roce": "dgx-b200",
    "oci-b200": "dgx-b200",
    "aws-p4de": "aws-p4d",
}
"""Machines that are equal to another one for NCCL."""


def graphs_of(topology: Topology, version: tuple[int, int]) -> NcclGraphs | None:
    """The graphs of NCCL on a topology; None if they are unknown.

    They are known for shipped machines. A topology that has the name of one and other links is none
    of them; a network that reduces changes no graph.

    Parameters
    ----------
    version
        Version of NCCL, such as ``(2, 27)``.

    Examples
    --------
    >>> graphs = graphs_of(load_topology("dgx-h100", nodes=2), (2, 27))
    >>> graphs.ring.channels, graphs.ring.speed_between, graphs.nvls.speed_inside, graphs.nodes
    (8, 48.0, 40.0, 2)
    """
    facts = machine(topology)
    graphs = shipped_graphs(version).get(
        (_SAME.get(topology.name, topology.name), facts.domain_ranks)
    )
    if graphs is None:
        return None
    shipped = _shipped_part(topology.name, facts.domain_ranks)
    if shipped is None:
        return None
    is_shipped = replace(machine(shipped), network_reduces=facts.network_reduces) == facts
    return graphs if is_shipped else None


@cache
def _shipped_part(name: str, domain_ranks: tuple[int, ...]) -> Topology | None:
    """The first ranks of a shipped machine, if these are its whole domains."""
    domains = len(domain_ranks)
    shipped = load_topology(name, nodes=domains) if domains > 1 else load_topology(name)
    return shipped.take(sum(domain_ranks)) if sum(domain_ranks) <= shipped.nranks else None


@cache
def shipped_graphs(version: tuple[int, int]) -> dict[_Key, NcclGraphs]:
    """The graphs of shipped machines, by name and ranks of each domain, for a version of NCCL."""
    path = data_folder("libraries") / "nccl-graphs.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return read_graphs(row for row in rows if _holds_for(row["versions"], version))


def _holds_for(versions: str, version: tuple[int, int]) -> bool:
    """Whether a version is in a range such as ``2.28-`` or ``-2.27``; an empty range has all."""
    oldest, _, newest = (versions or "-").partition("-")
    not_before = not oldest or _numbers(oldest) <= version
    return not_before and (not newest or version <= _numbers(newest))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def read_graphs(rows: Iterable[dict[str, str]]) -> dict[_Key, NcclGraphs]:
    """The graphs in rows of a table with one graph each, by machine and ranks of each domain."""
    rows_by_key: dict[_Key, dict[str, dict[str, str]]] = defaultdict(dict)
    for row in rows:
        domain_ranks = tuple(int(count) for count in row["domain_ranks"].split("+"))
        rows_by_key[row["machine"], domain_ranks][row["graph"]] = row
    return {key: _graphs(by_graph) for key, by_graph in rows_by_key.items()}


def _graphs(rows: dict[str, dict[str, str]]) -> NcclGraphs:
    ring = rows["ring"]
    ranks, nodes = sum(map(int, ring["domain_ranks"].split("+"))), int(ring["nccl_nodes"])
    return NcclGraphs(
        ring=channel_graph(ring),
        tree=channel_graph(rows["tree"]),
        nvls=channel_graph(rows["nvls"]) if "nvls" in rows else None,
        nodes=int(ring["nccl_nodes"]),
        p2p_channels_per_peer=int(ring["p2p_channels_per_peer"]),
        nic_GBps=float(ring["nic_GBps"]),
        least_node_ranks=ranks // nodes,
    )


def channel_graph(row: dict[str, str]) -> ChannelGraph:
    """The graph of one algorithm in a row of a table."""
    return ChannelGraph(
        channels=int(row["channels"]),
        pattern=cast("Pattern", row["pattern"]),
        speed_inside=float(row["speed_intra"]),
        speed_between=float(row["speed_inter"]),
        path_inside=cast("PathType", row["type_intra"]),
        path_to_nic=cast("PathType", row["type_inter"]),
        net_latency_us=float(row["latency_inter"]),
        same_channels=row["same_channels"] == "1",
        cross_nic=int(row["cross_nic"]),
    )
