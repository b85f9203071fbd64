"""The devices of one or several hosts as NCCL's search sees them: vertices, and links with rates.

Rates are whole numbers of MB/s, in which NCCL's own rounding to three decimals of GB/s is exact.
The rules are those of ``src/graph/topo.cc`` of NCCL 2.27 to 2.30.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, TypeAlias

from simcoll.topology.host_tree import (
    NVSWITCH,
    Device,
    GpuDevice,
    HostTree,
    NicDevice,
    NicPort,
    PcieSlot,
    Socket,
)
from simcoll.topology.readers.link_speeds import nvlink, pcie_rate, rate_between_sockets

__all__ = [
    "LOCAL_RATE",
    "DeviceGraph",
    "DeviceLink",
    "DeviceLinkKind",
    "Path",
    "Vertex",
    "VertexKind",
    "device_graph",
]

VertexKind: TypeAlias = Literal["gpu", "pcie", "nvs", "cpu", "nic", "net"]
"""A GPU, PCIe switch, all NVSwitches together, CPU, NIC, or port of a NIC."""
DeviceLinkKind: TypeAlias = Literal["NVL", "C2C", "PCI", "SYS", "NET"]
"""NVLink, the link of a Grace CPU, PCIe, a link between sockets, and from a NIC to its port."""


LOCAL_RATE = 5_000_000
"""Rate of a vertex with itself."""
_UNKNOWN_MBPS = 10_000
"""Speed of a port that reports none."""


_NO_GPU = GpuDevice(PcieSlot("", "", 0), -1, -1, 0)
_NO_PORT = NicPort(-1, 0)
_NO_SOCKET = Socket(-1, "", ())


@dataclass(slots=True, eq=False)
class DeviceLink:
    """A link in one direction; the search takes from its free rate."""

    kind: DeviceLinkKind
    head: Vertex
    free_MBps: int
    weight: int = 0  # of its rate in the search's number of the state of all links


@dataclass(slots=True, eq=False)
class Path:
    """The path from one vertex to another; ``links`` is empty and ``rate_MBps`` 0 if there is none.

    ``type`` is the worst part of the path, an index into
    :data:`~simcoll.libraries.path_types.PATH_TYPES`.
    """

    links: tuple[DeviceLink, ...]
    rate_MBps: int
    type: int


@dataclass(slots=True, eq=False)
class Vertex:
    """A GPU, port of a NIC, NIC, PCIe switch, CPU, or all NVSwitches together.

    ``gpu``, ``port`` and ``socket`` describe those that are one; ``host`` is the number of the
    host. ``paths`` holds, for a kind of vertex, the path to each vertex of that kind.
    """

    kind: VertexKind
    host: int
    number: int
    rank: int = -1
    gpu: GpuDevice = _NO_GPU
    port: NicPort = _NO_PORT
    socket: Socket = _NO_SOCKET
    model: tuple[int, int, int, int] = (0, 0, 0, 0)
    links: list[DeviceLink] = field(default_factory=list)
    paths: dict[VertexKind, list[Path]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class DeviceGraph:
    """All vertices by kind."""

    of_kind: dict[VertexKind, list[Vertex]]
    hosts: int

    @property
    def everything(self) -> list[Vertex]:
        """All vertices."""
        return [vertex for vertices in self.of_kind.values() for vertex in vertices]

    @property
    def gpus(self) -> list[Vertex]:
        """The GPUs, in the order in which NCCL finds them."""
        return self.of_kind["gpu"]

    @property
    def nets(self) -> list[Vertex]:
        """The ports of NICs."""
        return self.of_kind["net"]

    @property
    def capability(self) -> int:
        """The least compute capability."""
        return min(gpu.gpu.capability for gpu in self.gpus)

    @property
    def cpu_vendor(self) -> str:
        """Vendor of the first CPU."""
        return self.of_kind["cpu"][0].socket.vendor

    def remove_gpu(self, gone: Vertex) -> None:
        """Remove a GPU that cannot be reached other than by the network."""
        for vertices in self.of_kind.values():
            for vertex in vertices:
                vertex.links = [link for link in vertex.links if link.head is not gone]
        self.of_kind["gpu"] = [gpu for gpu in self.gpus if gpu is not gone]


def device_graph(
    hosts: Sequence[tuple[HostTree, int]], ports: Iterable[int] | None, port_mbps: int = 0
) -> DeviceGraph:
    """The graph of hosts that share NVSwitches, or of one host.

    Parameters
    ----------
    hosts
        Each host and its number of ranks: rank r of a host is on its GPU of rank r.
    ports
        Numbers of the ports in use; None for all.
    port_mbps
        Rate of each of them in Mbit/s; 0 for its own.
    """
    allowed = None if ports is None else set(ports)
    graph = DeviceGraph(
        {kind: [] for kind in ("gpu", "pcie", "nvs", "cpu", "nic", "net")}, len(hosts)
    )
    by_address: dict[tuple[int, str], Vertex] = {}
    cpu_of: dict[int, Vertex] = {}
    first_rank = 0
    for number, (host, ranks) in enumerate(hosts):
        builder = _TreeReader(
            graph, by_address, cpu_of, number, first_rank, ranks, allowed, port_mbps
        )
        builder.add_sockets(host)
        first_rank += ranks
    _add_nvlinks(graph, by_address)
    for gpu in graph.gpus:
        if gpu.gpu.cpu_link_GBps:
            rate = round(gpu.gpu.cpu_link_GBps * 1000)
            _join(gpu, cpu_of[id(gpu)], "C2C", rate)
    _flatten_broadcom(graph)
    _join_sockets(graph)
    for cpu in graph.of_kind["cpu"]:
        _up_link_last(cpu, None)
    links = [link for vertex in graph.everything for link in vertex.links]
    for number, link in enumerate(links):
        # Weights without a relation, so that the sums of different states differ.
        digest = blake2b(number.to_bytes(4, "big"), digest_size=8).digest()
        link.weight = int.from_bytes(digest, "big")
    return graph


@dataclass(slots=True)
class _TreeReader:
    graph: DeviceGraph
    by_address: dict[tuple[int, str], Vertex]
    cpu_of: dict[int, Vertex]
    host: int
    first_rank: int
    ranks: int
    allowed: set[int] | None
    port_mbps: int

    def add_sockets(self, host: HostTree) -> None:
        for socket in sorted(host.sockets, key=lambda part: self.first_rank_at(part.devices)):
            if self.first_rank_at(socket.devices) == self.ranks:
                continue
            cpu = self.add("cpu", socket.number)
            cpu.socket = socket
            for device in self.in_order(socket.devices):
                self.add_device(device, cpu, cpu)

    def first_rank_at(self, devices: Sequence[Device]) -> int:
        """The first rank that sees part of the tree: each sees its own GPU and all NICs, and NCCL
        joins what the ranks see in their order.
        """
        return min((self.rank_at(device) for device in devices), default=self.ranks)

    def rank_at(self, device: Device) -> int:
        if isinstance(device, GpuDevice):
            return min(device.rank, self.ranks)
        if isinstance(device, NicDevice):
            return 0 if any(map(self.uses, device.ports)) else self.ranks
        return self.first_rank_at(device.devices)

    def in_order(self, devices: Sequence[Device]) -> list[Device]:
        used = (device for device in devices if self.rank_at(device) < self.ranks)
        return sorted(used, key=self.rank_at)

    def uses(self, port: NicPort) -> bool:
        return self.allowed is None or port.number in self.allowed

    def add(self, kind: VertexKind, number: int) -> Vertex:
        vertex = Vertex(kind, self.host, number)
        self.graph.of_kind[kind].append(vertex)
        return vertex

    def add_device(self, device: Device, parent: Vertex, cpu: Vertex) -> None:
        if isinstance(device, GpuDevice):
            vertex = self.add("gpu", device.number)
            vertex.gpu, vertex.rank = device, self.first_rank + device.rank
            self.by_address[self.host, device.slot.address] = vertex
            self.cpu_of[id(vertex)] = cpu
        elif isinstance(device, NicDevice):
            vertex = self.add("nic", len(self.graph.of_kind["nic"]))
            for port in filter(self.uses, device.ports):
                net = self.add("net", port.number)
                net.port = port
                speed = self.port_mbps or port.speed_mbps
                _join(vertex, net, "NET", (speed if speed > 0 else _UNKNOWN_MBPS) // 8)
        else:
            vertex = self.add("pcie", len(self.graph.of_kind["pcie"]))
            vertex.model = device.model
            for below in self.in_order(device.devices):
                self.add_device(below, vertex, cpu)
        slot = device.slot
        _join(vertex, parent, "PCI", LOCAL_RATE if slot is None else _slot_rate(slot))


def _slot_rate(slot: PcieSlot) -> int:
    return round(1000 * pcie_rate(slot.lanes or 16, slot.speed))


def _join(a: Vertex, b: Vertex, kind: DeviceLinkKind, rate_MBps: int) -> None:
    _connect(a, b, kind, rate_MBps)
    _connect(b, a, kind, rate_MBps)


def _connect(tail: Vertex, head: Vertex, kind: DeviceLinkKind, rate_MBps: int) -> None:
    """Add the rate to the link, and move the link before slower ones."""
    links = tail.links
    place = next(
        (i for i, link in enumerate(links) if link.head is head and link.kind == kind), len(links)
    )
    if place == len(links):
        links.append(DeviceLink(kind, head, 0))
    links[place].free_MBps += rate_MBps
    while place and links[place - 1].free_MBps < links[place].free_MBps:
        links[place - 1], links[place] = links[place], links[place - 1]
        place -= 1


def _add_nvlinks(graph: DeviceGraph, by_address: dict[tuple[int, str], Vertex]) -> None:
    """NVLinks between GPUs, and to one vertex for all NVSwitches."""
    for gpu in graph.gpus:
        device = gpu.gpu
        one_MBps = round(1000 * nvlink(device.capability)[1])
        for bundle in device.nvlinks:
            if bundle.target == NVSWITCH:
                if not graph.of_kind["nvs"]:
                    graph.of_kind["nvs"].append(Vertex("nvs", gpu.host, 0))
                _join(gpu, graph.of_kind["nvs"][0], "NVL", bundle.links * one_MBps)
            elif (gpu.host, bundle.target) in by_address:
                peer = by_address[gpu.host, bundle.target]
                _connect(gpu, peer, "NVL", bundle.links * one_MBps)


def _join_sockets(graph: DeviceGraph) -> None:
    cpus = graph.of_kind["cpu"]
    for cpu in cpus:
        socket = cpu.socket
        model = socket.model if socket.family == 6 else 0
        rate = 1000 * rate_between_sockets(socket.vendor, model)
        for peer in cpus:
            if peer is not cpu and peer.host == cpu.host:
                _connect(cpu, peer, "SYS", rate)


def _broadcom(model: tuple[int, int, int, int], level: int) -> int:
    """Generation of a Broadcom switch that shows itself as a tree of two levels, else 0."""
    *maker, subdevice = model
    if [*maker, subdevice >> 12] == [0x1000, 0xC010, 0x1000, 0xA]:
        return 4
    return 5 if [*maker, subdevice >> 12] == [0x1000, 0xC030, 0x1000, level] else 0


def _flatten_broadcom(graph: DeviceGraph) -> None:
    """Make one switch of each Broadcom switch and the parts below that are of the same kind."""
    switches = graph.of_kind["pcie"]
    merged: set[int] = set()
    place = 0
    while place < len(switches):
        top = switches[place]
        generation = _broadcom(top.model, 0) if id(top) not in merged else 0
        if not generation:
            place += 1
            continue
        parts = [
            link.head
            for link in top.links
            if link.head.kind == "pcie" and _broadcom(link.head.model, 1) == generation
        ]
        top.links = [link for link in top.links if link.head not in parts]
        for part in parts:
            for link in part.links:
                if link.head is not top:
                    top.links.append(link)
                    for reverse in link.head.links:
                        if reverse.head is part:
                            reverse.head = top
                            break
            switches.remove(part)
        merged.add(id(top))
        place = 0


def _up_link_last(vertex: Vertex, above: Vertex | None) -> None:
    """Put the link upwards in the PCIe tree last, everywhere below the vertex."""
    if above is not None:
        up = next(link for link in vertex.links if link.head is above)
        vertex.links.remove(up)
        vertex.links.append(up)
    for link in vertex.links:
        if link.kind == "PCI" and link.head is not above:
            _up_link_last(link.head, vertex)
