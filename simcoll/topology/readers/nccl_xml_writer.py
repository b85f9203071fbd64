"""Writer of NCCL topology files: one node, as input for ``NCCL_TOPO_FILE``.

NCCL identifies PCIe links by generation and width, and NVLinks by their number. Anything else is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NoReturn

import numpy as np

from simcoll.errors import ConfigError, InternalError
from simcoll.topology.capability import GENERATIONS_OF_NVIDIA, compute_capability
from simcoll.topology.graph import LINK_KINDS, Topology
from simcoll.topology.host_tree import HostTree, gpus_of
from simcoll.topology.readers.link_speeds import XGMI, nvlink, pcie_rate
from simcoll.topology.readers.nccl_host import ANY_CPU
from simcoll.topology.readers.nccl_host_writer import host_lines
from simcoll.topology.readers.nccl_xml import parse_nccl_xml

__all__ = ["nccl_topology_xml"]

GBps = 10**15
MOST_ELEMENTS = 256
"""Limit of elements in NCCL's parser."""
_CPUS = {
    "intel": 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"',
    "amd": 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1"',
    "arm": 'arch="arm64"',
}
_SPEEDS = (
    ("8.0 GT/s PCIe", 8),
    ("16.0 GT/s PCIe", 16),
    ("32.0 GT/s PCIe", 32),
    ("64.0 GT/s PCIe", 64),
)
_WIDTHS = (16, 8, 4, 2, 1)
NVSWITCH = "fffffff:ff:ff.0"


def nccl_topology_xml(topology: Topology) -> bytes:
    """A topology of one node as an NCCL topology file.

    NVLinks and xGMI links are counted, and PCIe links identified, by NCCL's rates for them.
    Sockets, switches and NICs are those of the node where the topology knows them
    (:class:`~simcoll.topology.host_tree.HostTree`), NICs named as those of InfiniBand, ``mlx5_0``.
    Elsewhere GPUs without PCIe are attached to one CPU at Gen5 x16, and NCCL adds NICs itself. The
    file is read back to check that every two GPUs are joined by the same number of links.

    Raises
    ------
    ConfigError
        For several nodes, GPUs of unknown generation, rates that are not a multiple of a link's,
        and too many elements for NCCL's parser.
    """
    if len(np.unique(topology.groups.get("box", np.zeros(topology.nranks, np.int64)))) > 1:
        raise ConfigError(
            f"{topology.name!r} has several nodes; a file describes one, so load it with nodes=1"
        )
    # Ranks of one node reach each other without the network.
    host_gpus = len(gpus_of(topology.host)) if topology.host else topology.nranks
    if topology.nranks > host_gpus:
        hosts = -(-topology.nranks // host_gpus)
        raise ConfigError(
            f"{topology.name!r} has {hosts} hosts in one NVLink domain; a file describes one, so "
            "load it with nodes=1"
        )
    first_rank = np.zeros(topology.nranks - 1, np.int64)
    used = topology.route(first_rank, np.arange(1, topology.nranks)).links
    if (topology.link_kind[used[used >= 0]] == LINK_KINDS.index("net")).any():
        raise ConfigError(
            f"{topology.name!r} joins its GPUs by a network; a file describes one node"
        )
    writer = _SystemXmlWriter(topology)
    devices = list(writer.lines())
    if topology.host is not None and _is_whole(topology, topology.host):
        devices = list(host_lines(topology.host, topology.traits.get("fabric", "")))
    lines = ['<system version="1">', *devices, "</system>", ""]
    if (
        sum(line.lstrip().startswith("<") and not line.lstrip().startswith("</") for line in lines)
        > MOST_ELEMENTS
    ):
        writer.refuse(f"it needs more than the {MOST_ELEMENTS} elements that NCCL's parser takes")
    content = "\n".join(lines).encode()
    again = parse_nccl_xml(content, file="written")
    if writer.rates != _rates(again):
        raise InternalError(f"{topology.name}: its NCCL topology file reads back with other links")
    return content


def _is_whole(topology: Topology, host: HostTree) -> bool:
    """Whether the ranks are all GPUs of the host, in order."""
    names = [topology.node_names[vertex] for vertex in topology.rank_nodes.tolist()]
    gpus = [f"gpu{number}" for number in range(len(gpus_of(host)))]
    return [name.rpartition(".")[2] for name in names] == gpus


def _rates(topology: Topology) -> dict[tuple[str, str], int]:
    """Capacity of NVLinks and xGMI links, by the ranks that they join; all switches count as
    one.
    """
    rank_of = {int(vertex): f"gpu{rank}" for rank, vertex in enumerate(topology.rank_nodes)}
    rates: dict[tuple[str, str], int] = {}
    for link in np.flatnonzero(topology.link_kind == LINK_KINDS.index("nvlink")).tolist():
        ends = (
            rank_of.get(int(end[link]), "switch") for end in (topology.link_src, topology.link_dst)
        )
        key = (next(ends), next(ends))
        rates[key] = rates.get(key, 0) + int(topology.link_capacity_uBps[link])
    return rates


class _SystemXmlWriter:
    """The node being written."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        generation = topology.traits.get("generation", "")
        amd = {row[2]: gcn for gcn, row in XGMI.items()}
        if generation in amd:
            self.chip, self.one = f'gcn="{amd[generation]}"', XGMI[amd[generation]][0]
        elif generation in GENERATIONS_OF_NVIDIA:
            capability = compute_capability(topology.traits)
            self.chip, self.one = f'sm="{capability}"', nvlink(capability)[0]
        else:
            generations = ", ".join([*GENERATIONS_OF_NVIDIA, *amd])
            self.refuse(
                f"its GPUs are of generation {generation!r}, and links cannot be counted without; "
                f"known: {generations}"
            )
        self.amd = generation in amd
        self.rank_of = {int(vertex): rank for rank, vertex in enumerate(topology.rank_nodes)}
        self.rates = _rates(topology)
        self.buses = 0

    def refuse(self, reason: str) -> NoReturn:
        raise ConfigError(f"an NCCL topology file cannot hold {self.topology.name!r}: {reason}")

    def lines(self) -> Iterator[str]:
        """The CPUs and the devices below them."""
        topology, vendor = self.topology, self.topology.traits.get("cpu", "intel")
        cpus = [vertex for vertex, kind in enumerate(topology.node_kinds) if kind == "cpu"]
        below = self._below()
        attributes = _CPUS.get(vendor, _CPUS["intel"])
        visited: set[int] = set()
        for number, cpu in enumerate(cpus or [-1]):
            yield f'  <cpu numaid="{number}" affinity="{ANY_CPU}" {attributes}>'
            devices = list(self._inside(cpu, below, visited, 2)) if cpus else []
            yield from devices
            if not cpus:
                for vertex in self.rank_of:
                    visited.add(vertex)
                    yield from self._gpu(vertex, ("32.0 GT/s PCIe", 16), 2)
            yield "  </cpu>"
        missing = set(self.rank_of) - visited
        if missing:
            self.refuse(f"{topology.node_names[min(missing)]} is attached to no CPU by PCIe")

    def _below(self) -> dict[int, list[tuple[int, int]]]:
        """For each vertex, its PCIe neighbours and the capacity of the links."""
        neighbours: dict[int, list[tuple[int, int]]] = {}
        for link in np.flatnonzero(self.topology.link_kind == LINK_KINDS.index("pcie")).tolist():
            ends = int(self.topology.link_src[link]), int(self.topology.link_dst[link])
            neighbours.setdefault(ends[0], []).append(
                (ends[1], int(self.topology.link_capacity_uBps[link]))
            )
        return neighbours

    def _inside(
        self, vertex: int, below: dict[int, list[tuple[int, int]]], visited: set[int], depth: int
    ) -> Iterator[str]:
        visited.add(vertex)
        for neighbour, capacity in below.get(vertex, ()):
            kind = self.topology.node_kinds[neighbour]
            if neighbour in visited or kind in {"cpu", "nic"}:  # NCCL detects NICs itself
                continue
            visited.add(neighbour)
            speed = self._speed(vertex, neighbour, capacity)
            if kind == "gpu":
                yield from self._gpu(neighbour, speed, depth)
            else:
                link = f'link_speed="{speed[0]}" link_width="{speed[1]}"'
                yield f'{"  " * depth}<pci busid="{self._bus()}" class="0x060400" {link}>'
                yield from self._inside(neighbour, below, visited, depth + 1)
                yield f"{'  ' * depth}</pci>"

    def _speed(self, a: int, b: int, capacity: int) -> tuple[str, int]:
        """Generation and width of a PCIe link, by the rate that NCCL expects or by the line
        rate.
        """
        rate = Fraction(capacity, GBps)
        for width in _WIDTHS:
            for name, transfers in _SPEEDS:
                line = Fraction(transfers * width, 8)
                if rate == pcie_rate(width, name) or abs(rate / line - 1) < Fraction(3, 100):
                    return name, width
        names = " and ".join(self.topology.node_names[vertex] for vertex in (a, b))
        return self.refuse(
            f"{float(rate):g} GB/s between {names} matches no generation and width of PCIe"
        )

    def _bus(self, rank: int | None = None) -> str:
        if rank is not None:
            return f"0000:{0x80 + rank:02x}:00.0"
        self.buses += 1
        return f"0000:{self.buses:02x}:00.0"

    def _gpu(self, vertex: int, speed: tuple[str, int], depth: int) -> Iterator[str]:
        rank, space = self.rank_of[vertex], "  " * depth
        vendor = 'vendor="0x1002"' if self.amd else 'vendor="0x10de"'
        link = f'link_speed="{speed[0]}" link_width="{speed[1]}"'
        yield f'{space}<pci busid="{self._bus(rank)}" class="0x030200" {vendor} {link}>'
        yield f'{space}  <gpu dev="{rank}" {self.chip} rank="{rank}" gdr="1">'
        for (tail, head), capacity in sorted(self.rates.items()):
            if tail != f"gpu{rank}":
                continue
            count = Fraction(capacity, GBps) / self.one
            if count.denominator != 1:
                self.refuse(
                    f"{float(count * self.one):g} GB/s from {tail} to {head} is not a whole number "
                    f"of links of {float(self.one):g} GB/s"
                )
            target, kind = (
                (NVSWITCH, "0x068000")
                if head == "switch"
                else (self._bus(int(head[3:])), "0x030200")
            )
            word = "xgmi" if self.amd else "nvlink"
            links = f'count="{count.numerator}" tclass="{kind}"'
            yield f'{space}    <{word} target="{target}" {links}/>'
        yield f"{space}  </gpu>"
        yield f"{space}</pci>"
