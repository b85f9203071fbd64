"""Paths between GPUs, CPUs and NICs as NCCL computes them before it searches for graphs.

The rules are those of ``src/graph/paths.cc`` of NCCL 2.27 to 2.30: which pairs of GPUs use peer
access, which NICs read and write GPUs directly, and which are used through another GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcoll.libraries.nccl.device_graph import (
    LOCAL_RATE,
    DeviceGraph,
    DeviceLink,
    Path,
    Vertex,
    VertexKind,
)
from simcoll.libraries.path_types import PATH_TYPES

__all__ = [
    "C2C",
    "DISCONNECTED",
    "LOC",
    "NET",
    "NVB",
    "NVL",
    "P2C",
    "PHB",
    "PIX",
    "PXB",
    "PXN",
    "SYS",
    "PathRules",
    "compute_paths",
    "local_gpu",
    "local_net",
    "nearest",
    "nearest_cpu",
    "without_unreachable",
]

LOC: Final = PATH_TYPES.index("LOC")
NVL: Final = PATH_TYPES.index("NVL")
NVB: Final = PATH_TYPES.index("NVB")
C2C: Final = PATH_TYPES.index("C2C")
PIX: Final = PATH_TYPES.index("PIX")
PXB: Final = PATH_TYPES.index("PXB")
P2C: Final = PATH_TYPES.index("P2C")
PXN: Final = PATH_TYPES.index("PXN")
PHB: Final = PATH_TYPES.index("PHB")
SYS: Final = PATH_TYPES.index("SYS")
NET: Final = PATH_TYPES.index("NET")
DISCONNECTED: Final = NET + 1
_TYPE_OF_LINK = {"NVL": NVL, "C2C": C2C, "PCI": PIX, "SYS": SYS, "NET": LOC}
_MOST_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class PathRules:
    """Version and settings that decide on paths.

    Attributes
    ----------
    version
        Version of NCCL, such as ``(2, 30)``.
    peer_level
        Worst type of path over which GPUs use peer access (``NCCL_P2P_LEVEL``); None for NCCL's
        own rule.
    nic_level
        Worst type of path over which NICs access GPUs (``NCCL_NET_GDR_LEVEL``); None for NCCL's
        own rule.
    through_gpus
        Whether a GPU may use the NIC of another GPU (not ``NCCL_PXN_DISABLE``).
    shared_memory
        Whether GPUs may exchange data in host memory (not ``NCCL_SHM_DISABLE``).
    network_inside
        Whether NICs are used inside a host where they are faster (not
        ``NCCL_NET_DISABLE_INTRA``).
    """

    version: tuple[int, int] = (2, 30)
    peer_level: int | None = None
    nic_level: int | None = None
    through_gpus: bool = True
    shared_memory: bool = True
    network_inside: bool = True

    @property
    def through_cpu_link(self) -> bool:
        """Whether GPUs use the NIC of a GPU that reaches it through its CPU (``NCCL_PXN_C2C``)."""
        return self.version >= (2, 29)


def compute_paths(graph: DeviceGraph, rules: PathRules) -> None:
    """Compute the paths of all vertices to CPUs, GPUs, NICs and switches."""
    for vertices in graph.of_kind.values():
        for vertex in vertices:
            vertex.paths = {}
    for kind in ("cpu", "gpu", "net", "nvs"):
        for index, base in enumerate(graph.of_kind[kind]):
            _paths_to(graph, kind, index, base, rules)
    _divert_peers(graph, rules)
    _mark_cpu_links(graph, rules)
    for index, net in enumerate(graph.nets):
        _paths_to_nic(graph, index, net, rules)


def _paths_to(
    graph: DeviceGraph, kind: VertexKind, index: int, base: Vertex, rules: PathRules
) -> None:
    """Paths from everywhere to one vertex, in widening circles around it."""
    count = len(graph.of_kind[kind])
    _path_table(base, kind, count)[index] = Path((), LOCAL_RATE, LOC)
    circle = [base]
    while circle:
        wider: list[Vertex] = []
        for vertex in circle:
            path = vertex.paths[kind][index]
            for link in vertex.links:
                neighbour = link.head
                current = _path_table(neighbour, kind, count)[index]
                longer = _extension(vertex, path, link, base)
                if longer and _better(longer, current, rules):
                    reverse = next(
                        link_back
                        for link_back in neighbour.links
                        if link_back.head is vertex and link_back.kind == link.kind
                    )
                    longer.links = (reverse, *path.links)
                    neighbour.paths[kind][index] = longer
                    if neighbour not in wider:
                        wider.append(neighbour)
        circle = wider


def _path_table(vertex: Vertex, kind: VertexKind, count: int) -> list[Path]:
    if kind not in vertex.paths:
        vertex.paths[kind] = [Path((), 0, DISCONNECTED) for _ in range(count)]
    return vertex.paths[kind]


def _extension(vertex: Vertex, path: Path, link: DeviceLink, base: Vertex) -> Path | None:
    """The path that the link would add to, without its links; only one GPU may lie between two."""
    neighbour, hops = link.head, len(path.links)
    if (
        vertex is not base
        and vertex.kind == "gpu"
        and (link.kind != "NVL" or neighbour.kind != "gpu" or hops > 1)
    ):
        return None
    kind = _TYPE_OF_LINK[link.kind]
    if vertex.kind == "pcie" and neighbour.kind == "pcie":
        kind = PXB
    if link.kind == "PCI" and "cpu" in {vertex.kind, neighbour.kind}:
        kind = PHB
    if vertex.kind == "gpu" and path.type == NVL and kind == NVL and hops == 1:
        kind = NVB
    # The number of links of the new path is that of the old one and one more.
    return Path((*path.links, link), min(path.rate_MBps, link.free_MBps), max(path.type, kind))


def _better(new: Path, current: Path, rules: PathRules) -> bool:
    if rules.version >= (2, 30):
        return (new.type, -new.rate_MBps, len(new.links)) < (
            current.type,
            -current.rate_MBps,
            len(current.links),
        )
    shorter = not current.rate_MBps or len(current.links) >= len(new.links)
    return shorter and current.rate_MBps < new.rate_MBps


def nearest(vertex: Vertex, kind: VertexKind) -> tuple[list[int], int]:
    """Vertices of a kind to which the path is fastest and, of these, of the best type; and the
    type.
    """
    paths = vertex.paths.get(kind, [])
    best = min(((-path.rate_MBps, path.type) for path in paths if path.rate_MBps), default=None)
    if best is None:
        return [], DISCONNECTED
    indices = [i for i, path in enumerate(paths) if (-path.rate_MBps, path.type) == best]
    return indices, best[1]


def nearest_cpu(gpu: Vertex) -> int:
    """The nearest CPU of a GPU."""
    cpus, _ = nearest(gpu, "cpu")
    return min(cpus, key=lambda cpu: len(gpu.paths["cpu"][cpu].links))


def local_net(graph: DeviceGraph, gpu: Vertex, channel: int, rules: PathRules) -> int | None:
    """The port that a GPU uses in a channel: neighbours start with different ones."""
    nets, _ = nearest(gpu, "net")
    if not nets:
        return None
    gpus, _ = nearest(graph.nets[nets[0]], "gpu")
    start = gpu.number % max(len(gpus), 1) if rules.version >= (2, 30) else gpu.number
    if len(nets) & (len(nets) - 1) == 0:
        start = _mirror_bits(start, len(nets))
    start += channel % -(-len(nets) // max(len(gpus), 1))
    return nets[start % len(nets)]


def _mirror_bits(number: int, power: int) -> int:
    """The lowest bits in reverse order."""
    bits = power.bit_length() - 1
    return sum(1 << (bits - 1 - bit) for bit in range(bits) if number >> bit & 1)


def local_gpu(graph: DeviceGraph, net: int, rules: PathRules) -> int | None:
    """The nearest GPU of a port that uses it first."""
    gpus, _ = nearest(graph.nets[net], "gpu")
    for channel in range(_MOST_CHANNELS):
        for gpu in gpus:
            if local_net(graph, graph.gpus[gpu], channel, rules) == net:
                return gpu
    return None


def _through(
    tail: Vertex, middle: Vertex, kind: VertexKind, index: int, via: tuple[VertexKind, int]
) -> Path:
    """The path from ``tail`` by ``middle`` to a vertex."""
    start, second = tail.paths[via[0]][via[1]], middle.paths[kind][index]
    worst, best = max(start.type, second.type), min(start.type, second.type)
    merged = P2C if (worst, best) == (PHB, C2C) else worst
    return Path(
        start.links + second.links,
        min(start.rate_MBps, second.rate_MBps),
        PXN if via[0] == "gpu" else merged,
    )


def _has_peer_access(graph: DeviceGraph, path: Path, rules: PathRules) -> bool:
    """Whether two GPUs use peer access: unless set otherwise, not across a host bridge."""
    level = rules.peer_level
    if level is None:
        level = SYS if graph.cpu_vendor == "amd" and len(graph.gpus) <= 2 else PXB
    return path.type <= level


def _divert_peers(graph: DeviceGraph, rules: PathRules) -> None:
    """Lead pairs of GPUs without peer access by the CPU, and mark those that only the network
    joins.
    """
    for g, gpu in enumerate(graph.gpus):
        for peer in graph.gpus:
            if not _has_peer_access(graph, peer.paths["gpu"][g], rules):
                cpu = nearest_cpu(gpu)
                middle = graph.of_kind["cpu"][cpu]
                peer.paths["gpu"][g] = _through(peer, middle, "gpu", g, ("cpu", cpu))
        for peer in graph.gpus:
            path = peer.paths["gpu"][g]
            if peer is not gpu and not _reaches(graph, peer, gpu, path, rules):
                path.type = NET


def _reaches(graph: DeviceGraph, tail: Vertex, head: Vertex, path: Path, rules: PathRules) -> bool:
    """Whether a GPU sends to another by peer access or host memory."""
    if _has_peer_access(graph, path, rules):
        relayed = len(path.links) == 2 and path.links[0].head.kind == "gpu"
        if relayed or not _network_is_faster(tail, head, path, rules):
            return True
    return (
        rules.shared_memory
        and tail.host == head.host
        and not _network_is_faster(tail, head, path, rules)
    )


def _network_is_faster(tail: Vertex, head: Vertex, path: Path, rules: PathRules) -> bool:
    def fastest(gpu: Vertex) -> int:
        paths = gpu.paths.get("net", [])
        return max((link_back.rate_MBps for link_back in paths if link_back.type <= PXB), default=0)

    return rules.network_inside and min(fastest(tail), fastest(head)) > path.rate_MBps


def _mark_cpu_links(graph: DeviceGraph, rules: PathRules) -> None:
    """Mark paths to NICs that lead over NVLink-C2C and the CPU."""
    for gpu_index, gpu in enumerate(graph.gpus):
        cpu = nearest_cpu(gpu)
        nets = nearest(gpu, "net")[0] if rules.version >= (2, 29) else range(len(graph.nets))
        for index in nets:
            net = graph.nets[index]
            ends = {gpu.paths["cpu"][cpu].type, net.paths["cpu"][cpu].type}
            if ends == {C2C, PHB}:
                for path in (gpu.paths["net"][index], net.paths["gpu"][gpu_index]):
                    path.type = min(path.type, P2C)


def _paths_to_nic(graph: DeviceGraph, index: int, net: Vertex, rules: PathRules) -> None:
    """Use a NIC through a GPU that is nearer to it, or through the CPU without direct access."""
    for g, gpu in enumerate(graph.gpus):
        path = gpu.paths["net"][index]
        if rules.through_gpus:
            middle = local_gpu(graph, index, rules)
            if middle is not None and middle != g:
                peer = graph.gpus[middle]
                if _is_relay(graph, peer, gpu, g, index, rules):
                    path = _through(gpu, peer, "net", index, ("gpu", middle))
                    gpu.paths["net"][index] = path
        if path.type < PHB and not _is_direct(graph, gpu, index, rules, reads=False):
            cpu = nearest_cpu(gpu)
            socket = graph.of_kind["cpu"][cpu]
            net.paths["gpu"][g] = _through(net, socket, "gpu", g, ("cpu", cpu))
            gpu.paths["net"][index] = _through(gpu, socket, "net", index, ("cpu", cpu))


def _is_relay(
    graph: DeviceGraph, peer: Vertex, gpu: Vertex, g: int, net: int, rules: PathRules
) -> bool:
    """Whether a GPU sends to a NIC through another GPU of the host (PXN).

    That one must be joined to it by NVLink, with a faster path to the NIC or without the CPU.
    """
    relayed, direct = peer.paths["net"][net], gpu.paths["net"][net]
    if relayed.type > (P2C if rules.through_cpu_link else PXB):
        return False
    if rules.version >= (2, 30) and not _is_direct(graph, peer, net, rules, reads=True):
        return False
    return (
        peer.paths["gpu"][g].type <= NVL
        and peer.host == gpu.host
        and (relayed.rate_MBps > direct.rate_MBps or direct.type > PXN)
    )


def _is_direct(graph: DeviceGraph, gpu: Vertex, net: int, rules: PathRules, *, reads: bool) -> bool:
    """Whether a NIC accesses the memory of a GPU directly (GPUDirect RDMA)."""
    port, device = graph.nets[net].port, gpu.gpu
    if not (port.gpu_direct and device.gpu_direct):
        return False
    if reads and device.capability < 80 and len(graph.gpus) > 1:
        index = graph.gpus.index(gpu)
        peer_paths = (path for i, path in enumerate(gpu.paths["gpu"]) if i != index)
        if all(path.type != NVL for path in peer_paths):
            return False
    distance = gpu.paths["net"][net].type
    if distance == PXN:
        relay = next(link.head for link in gpu.paths["net"][net].links if link.head.kind == "gpu")
        distance = relay.paths["net"][net].type
    if rules.nic_level is not None:
        level = rules.nic_level
        if distance == P2C and rules.version < (2, 29):
            distance = C2C
    else:
        level = P2C
    return distance <= level


def without_unreachable(graph: DeviceGraph, rank: int) -> None:
    """Keep the GPUs that a rank reaches other than by the network."""
    domains = list(range(len(graph.gpus)))
    for g, gpu in enumerate(graph.gpus):
        for peer in range(g):
            if gpu.paths["gpu"][peer].type < NET:
                domains[g] = min(domains[g], domains[peer])
    domain = {gpu.rank: domains[g] for g, gpu in enumerate(graph.gpus)}
    for gpu in list(graph.gpus):
        if domain[gpu.rank] != domain[rank]:
            graph.remove_gpu(gpu)
