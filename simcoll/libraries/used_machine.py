"""The machine that NCCL's variables leave: fewer NICs, host memory, sockets, NICs inside a host.

The rates are those of the links on the ways of NCCL's channels, which its search finds under the
same variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from simcoll.core.vocabulary import Fabric
from simcoll.libraries.nccl.communicator import settings_on, version_of
from simcoll.libraries.nccl.search import search
from simcoll.libraries.nccl.search_settings import used_ports
from simcoll.libraries.path_types import PATH_TYPES, PathType
from simcoll.libraries.transports import Transports
from simcoll.topology.host_tree import gpus_of, nics_of
from simcoll.topology.readers.link_speeds import SLOTS, pcie_rate
from simcoll.units import parse_rate

if TYPE_CHECKING:
    from simcoll.libraries.environment import Environment
    from simcoll.libraries.library import Library
    from simcoll.libraries.nccl.graphs import NcclGraphs
    from simcoll.topology import Topology
    from simcoll.topology.machine import Machine

__all__ = ["used_machine"]

_LINE_RATE = 63 / 48
"""Line rate of PCIe over the rate that NCCL expects: 63 GB/s and 48 GB/s with 16 lanes of 5.0."""
_GBPS = 10**15
_PEER_PATHS: Mapping[str, PathType] = {"nvlink": "NVL", "xgmi": "NVL"}
"""Type of the path between two GPUs of a node, by what joins them; over PCIe it may pass a CPU."""
_COHERENT_PATHS = {"C2C", "P2C"}
"""Paths by NVLink to the CPU, whose memory is as near to the NIC as that of the GPU."""
_SLOT = "63 GB/s"
"""PCIe of 16 lanes of generation 5.0, that of GPUs whose slot is unknown."""
_UNKNOWN_FABRIC: Fabric = "ib"
_UNKNOWN_GBPS = 10
"""What NCCL assumes of an interface that reports no speed, in Gbit/s."""


def used_machine(
    machine: Machine, topology: Topology, library: Library, environment: Environment
) -> Machine:
    """The machine as NCCL uses it under variables; the same one without such variables."""
    transports = environment.transports
    if transports == Transports():
        return machine
    graphs = plain = None
    if library.name == "nccl":
        version = version_of(library)
        graphs = search(topology, version, settings_on(topology, environment))
        plain = search(topology, version)
    if graphs is None or plain is None:
        return _by_rules(machine, topology, library, transports)
    machine = _by_links(machine, topology, graphs, plain, transports)
    if machine.domains > 1 and transports.uses_sockets(machine.fabric):
        machine = _by_sockets(machine, transports)
    elif (
        machine.domains > 1
        and plain.ring.path_to_nic not in _COHERENT_PATHS
        and _is_worse(plain.ring.path_to_nic, transports.nic_level)
    ):
        machine = _through_hosts(machine, library)
    return machine


def _by_links(
    machine: Machine,
    topology: Topology,
    graphs: NcclGraphs,
    plain: NcclGraphs,
    transports: Transports,
) -> Machine:
    """By the links that NCCL's channels pass with and without the variables."""
    if _is_worse(plain.ring.path_inside, transports.peer_level):
        machine = _host_memory(machine, topology)
    if graphs.nodes > plain.nodes and graphs.nodes > machine.domains:
        return _split(machine, topology, graphs, transports)
    if machine.domains > 1 and plain.ring.carries_between_GBps:
        share = min(1.0, graphs.ring.carries_between_GBps / plain.ring.carries_between_GBps)
        used = _count(topology, machine.fabric, transports)
        # Of a part of a node, fewer NICs may be in use anyway.
        nics = max(1, min(machine.nics, used))
        machine = replace(machine, nics=nics, nic_uBps=round(machine.nic_uBps * share))
    return machine


def _is_worse(path: PathType, level: int | None) -> bool:
    """Whether a path is of a worse type than a level permits."""
    return level is not None and PATH_TYPES.index(path) > level


def _host_memory(machine: Machine, topology: Topology) -> Machine:
    """GPUs that exchange data in the memory of their host."""
    return replace(
        machine,
        inside="host",
        gpu_uBps=_pcie_rate(topology, machine),
        peer_uBps=0,
        switch_reduce=False,
        through_cpu=False,
    )


def _through_hosts(machine: Machine, library: Library) -> Machine:
    """NICs that read and write host memory instead of GPUs'."""
    host_uBps = round(library.number("correction.staged_rate") * _GBPS)
    return replace(machine, nic_uBps=min(machine.nic_uBps, host_uBps))


def _split(
    machine: Machine, topology: Topology, graphs: NcclGraphs, transports: Transports
) -> Machine:
    """Hosts inside which NCCL uses NICs, because peer access is off and they are faster than host
    memory: to NCCL these are several nodes.
    """
    ranks, nodes = sum(machine.domain_ranks), graphs.nodes
    nodes = min(nodes, ranks)
    sizes = tuple(ranks // nodes + (node < ranks % nodes) for node in range(nodes))
    fabric: Fabric = machine.fabric or _UNKNOWN_FABRIC
    nics = _count(topology, fabric, transports) * machine.domains // nodes
    nic_uBps = round(graphs.ring.carries_between_GBps * _GBPS)
    if not nic_uBps:  # without NICs only sockets are left
        fabric, nics = "socket", 1
        nic_uBps = (transports.socket_Gbps or _UNKNOWN_GBPS) * _GBPS // 8
    return replace(
        machine,
        fabric=fabric,
        domain_ranks=sizes,
        inside=machine.inside if max(sizes) > 1 else "",
        nics=max(1, nics),
        nic_uBps=nic_uBps,
    )


def _by_sockets(machine: Machine, transports: Transports) -> Machine:
    """Sockets on interfaces of the NICs' rate, or of the one that is stated."""
    stated_uBps = machine.nics * transports.socket_Gbps * _GBPS // 8
    rate = min(machine.nic_uBps, stated_uBps or machine.nic_uBps)
    return replace(machine, fabric="socket", nic_uBps=rate)


def _by_rules(
    machine: Machine, topology: Topology, library: Library, transports: Transports
) -> Machine:
    """By what the variables forbid at all, for a library or a topology whose channels are unknown:
    peer access, direct access of NICs to GPUs, some of the NICs, RDMA.
    """
    has_peers = machine.inside and machine.inside != "host"
    if has_peers and _is_worse(_PEER_PATHS.get(machine.inside, "PHB"), transports.peer_level):
        machine = _host_memory(machine, topology)
        if not transports.shared_memory and machine.domains > 1:
            machine = _each_alone(machine)
    if machine.domains == 1:
        return machine
    used = len(used_ports(transports, range(machine.nics), machine.fabric)) or machine.nics
    nic_uBps = machine.nic_uBps * used // max(machine.nics, 1)
    machine = replace(machine, nics=used, nic_uBps=nic_uBps)
    if transports.uses_sockets(machine.fabric):
        return _by_sockets(machine, transports)
    # A NIC is never nearer to a GPU than below one switch.
    return _through_hosts(machine, library) if _is_worse("PIX", transports.nic_level) else machine


def _each_alone(machine: Machine) -> Machine:
    """GPUs of several hosts that exchange all data over the network, as if each were a node."""
    largest = max(machine.domain_ranks)
    return replace(
        machine,
        domain_ranks=(1,) * sum(machine.domain_ranks),
        inside="",
        nics=max(1, machine.nics // largest),
        nic_uBps=machine.nic_uBps // largest,
    )


def _count(topology: Topology, fabric: Fabric | Literal[""], transports: Transports) -> int:
    """Number of ports of a host that are in use."""
    nics = nics_of(topology.host) if topology.host else ()
    return len(used_ports(transports, [port.number for nic in nics for port in nic.ports], fabric))


def _pcie_rate(topology: Topology, machine: Machine) -> int:
    """The rate of the narrowest PCIe link of a GPU; of 16 lanes of its generation if the topology
    describes no PCIe.
    """
    slots = [gpu.slot for gpu in gpus_of(topology.host)] if topology.host else []
    if not slots:
        return parse_rate(SLOTS.get(machine.generation, _SLOT))
    rates = [float(pcie_rate(slot.lanes or 16, slot.speed)) for slot in slots]
    return round(min(rates) * _LINE_RATE * _GBPS)
