"""Reader of NCCL topology dumps (``NCCL_TOPO_DUMP_FILE``), also RCCL's: one box as a real machine saw itself.

The rules for speeds are those of NCCL's ``src/graph/topo.cc`` and ``topo.h`` (2.30): a PCIe link has its width times
the rate of a lane; sockets are joined by what their vendor builds; NVLinks to several NVSwitches count as one bundle.
Capacities of NVLink and xGMI are line rates, and what NCCL expects of them is the topology's efficiency. A dump has
no latencies: those here are ours.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING
from xml.etree.ElementTree import ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import iterparse

from simcoll.errors import ConfigError
from simcoll.topology.cluster import Box, LinkTable, Tier, cluster
from simcoll.topology.values import halves_fs

if TYPE_CHECKING:
    from collections.abc import Callable
    from xml.etree.ElementTree import Element

    from simcoll.topology.graph import Topology

__all__ = ["parse_nccl_xml"]

MAX_BYTES = 2**24
MAX_DEPTH = 64
MAX_ELEMENTS = 100_000

GBps = 10**15  # in micro-bytes per second
NVLINK_FS = 700_000_000
PCIE_FS = 400_000_000
CPU_FS = 500_000_000
NET_FS = 1_000_000_000

# Units of 100 Mbit/s per lane, by the beginning of link_speed; an unknown speed counts as Gen3.
_LANE = (("2.5", 15), ("5", 30), ("8", 60), ("16", 120), ("32", 240), ("64", 480))
# Least compute capability -> line rate of one NVLink and what NCCL expects of it, in GB/s, and the generation.
_NVLINK = (
    (100, Fraction(50), Fraction("40.1"), "blackwell"),
    (90, Fraction(25), Fraction("20.6"), "hopper"),
    (86, Fraction("14.0625"), Fraction(12), "ampere"),
    (80, Fraction(25), Fraction(20), "ampere"),
    (70, Fraction(25), Fraction(20), "volta"),
    (60, Fraction(20), Fraction(18), "pascal"),
    (0, Fraction(20), Fraction(18), "before pascal"),
)
# gcn attribute of AMD GPUs -> line rate of one xGMI link and what RCCL expects of it, in GB/s, and the generation.
_XGMI = {
    "906": (Fraction(25), Fraction(24), "gcn5"),
    "908": (Fraction(25), Fraction(24), "cdna"),
    "910": (Fraction(50), Fraction(36), "cdna2"),
    "gfx90a": (Fraction(50), Fraction(36), "cdna2"),
    "gfx940": (Fraction(64), Fraction(48), "cdna3"),
    "gfx941": (Fraction(64), Fraction(48), "cdna3"),
    "gfx942": (Fraction(64), Fraction(48), "cdna3"),
}


@dataclass(frozen=True, slots=True)
class _Gpu:
    vertex: int
    rank: int
    sm: int
    gcn: str
    busid: str
    links: tuple[tuple[str, str, int], ...]  # target, class of the target, number of links


@dataclass(frozen=True, slots=True)
class _Card:
    parent: int
    pcie: int | None
    speed_mbps: int


@dataclass(frozen=True, slots=True)
class _Dump:
    """What the file says, in order."""

    file: str
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    links: LinkTable = field(default_factory=lambda: LinkTable([]))
    gpus: list[_Gpu] = field(default_factory=list)
    cards: list[_Card] = field(default_factory=list)
    cpus: list[tuple[int, str, int]] = field(default_factory=list)  # vertex, vendor, capacity between sockets
    hosts: list[str] = field(default_factory=list)
    gpu_devices: list[str] = field(default_factory=list)  # PCI devices of a GPU's class without <gpu>

    def vertex(self, name: str, kind: str) -> int:
        if name in self.names:
            raise ConfigError(f"{name!r} occurs twice", file=self.file)
        self.names.append(name)
        self.kinds.append(kind)
        return len(self.names) - 1


def parse_nccl_xml(content: bytes, *, file: str = "topology dump", nodes: int = 1) -> Topology:
    """Make a topology of an NCCL topology dump; ``nodes`` copies of the box are joined by a non-blocking network per
    rail.

    Raises
    ------
    ConfigError
        When the file is not well-formed, too large, contains a DTD, is no dump, or lacks GPUs.
    """
    root = _parse(content, file)
    dump = _Dump(file)
    _read_children(dump, root, None)
    if not dump.gpus:
        raise ConfigError(_no_gpus(dump), file=file)
    if len(set(dump.hosts)) > 1:
        raise ConfigError(f"the dump spans {len(set(dump.hosts))} hosts; expected the dump of one box", file=file)
    for i, (a, _, capacity) in enumerate(dump.cpus):
        for b, _, other in dump.cpus[i + 1 :]:
            dump.links.add_pair(a, b, min(capacity, other), (CPU_FS, CPU_FS), "cpu")
    gpus = sorted(dump.gpus, key=lambda gpu: (gpu.rank, gpu.vertex))
    if len({gpu.rank for gpu in gpus}) != len(gpus):
        raise ConfigError("two GPUs have the same rank", file=file)
    rails, rail_of_gpu = _rails(dump, gpus)
    raw, expected, generation = _scale_up(dump, gpus)
    for number, gpu in enumerate(gpus):
        dump.names[gpu.vertex] = f"gpu{number}"
    nics, capacities = [], []
    for number, cards in enumerate(rails):
        nic = dump.vertex(f"nic{number}", "nic")
        speed = sum(card.speed_mbps for card in cards) * 125 * GBps // 10**6
        pcie = sum(card.pcie if card.pcie is not None else card.speed_mbps * 125 * GBps // 10**6 for card in cards)
        dump.links.add_pair(nic, cards[0].parent, pcie, (PCIE_FS, PCIE_FS), "pcie")
        nics.append(nic)
        capacities.append(speed)
    box = Box(
        names=tuple(dump.names),
        kinds=tuple(dump.kinds),
        links=dump.links,
        gpus=tuple(gpu.vertex for gpu in gpus),
        nics=tuple(nics),
        nic_capacity=tuple(capacities),
        nic_of_gpu=tuple(rail_of_gpu),
    )
    tiers = (Tier("leaf", rail_only=True, latency=NET_FS), Tier("spine"))
    title = file.replace("\\", "/").rpartition("/")[2].removesuffix(".xml")
    try:
        topology = cluster(title, box, nodes, tiers)
    except ConfigError as error:
        raise ConfigError(error.message, file=file) from None
    joined = (
        f"; {nodes} copies joined by a non-blocking switch per rail and a spine (not in the dump)" if nodes > 1 else ""
    )
    unused = len(dump.cards) - sum(len(cards) for cards in rails)
    spare = f" ({unused} more not used)" if unused else ""
    vendor = dump.cpus[0][1] if dump.cpus else "unknown"
    return replace(
        topology,
        description=f"NCCL dump: {len(gpus)} GPUs, {len(rails)} rails of network cards{spare}{joined}",
        efficiency={"nvlink": expected / raw},
        traits={"gpu": gpus[0].gcn or f"sm{gpus[0].sm}", "generation": generation, "cpu": vendor},
        sources={"$": f"NCCL topology dump {file}; link speeds by NCCL 2.30 src/graph/topo.h; latencies unverified"},
    )


def _parse(content: bytes, file: str) -> Element:
    """The root element, within limits of size, depth and number of elements."""
    if len(content) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB; is this a topology dump?", file=file)
    depth = elements = 0
    root: Element | None = None
    try:
        for event, element in iterparse(io.BytesIO(content), events=("start", "end"), forbid_dtd=True):
            depth += 1 if event == "start" else -1
            elements += event == "start"
            if root is None:
                root = element
            if depth > MAX_DEPTH or elements > MAX_ELEMENTS:
                what = f"nested deeper than {MAX_DEPTH}" if depth > MAX_DEPTH else f"more than {MAX_ELEMENTS} elements"
                raise ConfigError(f"{what}; is this a topology dump?", file=file)
    except DefusedXmlException:
        raise ConfigError("contains a DTD or entities, which a topology dump never does; refused", file=file) from None
    except ParseError as error:
        line, column = error.position
        reason = str(error).partition(":")[0]
        raise ConfigError(
            f"not well-formed XML: {reason} (column {column + 1})", file=file, path=f"line {line}"
        ) from None
    except (ValueError, LookupError) as error:
        raise ConfigError(f"not readable XML: {error}", file=file) from None
    if root is None or root.tag != "system":
        found = "nothing" if root is None else f"<{root.tag}>"
        hint = "; this is a graph file (NCCL_GRAPH_DUMP_FILE), not a topology" if found == "<graphs>" else ""
        raise ConfigError(f"expected <system> as the outermost element, found {found}{hint}", file=file)
    return root


def _read_children(dump: _Dump, element: Element, parent: int | None) -> None:
    """Read the elements below one that became the vertex ``parent``."""
    for child in element:
        if child.tag == "cpu":
            _read_cpu(dump, child)
        elif child.tag == "pci":
            _read_pci(dump, child, parent)
        elif child.tag == "nic":
            _read_nic(dump, child, parent, None)


def _read_cpu(dump: _Dump, element: Element) -> None:
    vertex = dump.vertex(f"cpu{len(dump.cpus)}", "cpu")
    vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(
        element.get("vendor", ""), element.get("arch", "unknown")
    )
    model = _integer(dump, element, "modelid", 0)
    if vendor == "intel":
        bandwidth = 40 if model >= 0xCF else 22 if model >= 0x8F else 10 if model >= 0x55 else 6
    else:
        bandwidth = {"amd": 16, "ppc64": 32}.get(vendor, 6)
    dump.cpus.append((vertex, vendor, bandwidth * GBps))
    dump.hosts.append(element.get("host_hash", ""))
    _read_children(dump, element, vertex)


def _read_pci(dump: _Dump, element: Element, parent: int | None) -> None:
    busid = element.get("busid", "").lower()
    if parent is None:
        raise ConfigError(f"<pci busid={busid!r}> is not inside a <cpu>", file=dump.file)
    width = _integer(dump, element, "link_width", 16) or 16  # NCCL reads 0, which virtual bridges have, as 16
    speed = element.get("link_speed", "").split(" ")[0].removesuffix(".0")
    capacity = width * dict(_LANE).get(speed, 60) * GBps // 80
    if not 1 <= width <= 64:
        raise ConfigError(
            f"<pci busid={busid!r}>: link_width {width} is out of range; expected 0 to 64", file=dump.file
        )
    gpu, nic = element.find("gpu"), element.find("nic")
    if gpu is not None:
        vertex = dump.vertex(f"gpu-{busid}", "gpu")
        dump.links.add_pair(vertex, parent, capacity, (PCIE_FS, PCIE_FS), "pcie")
        _read_gpu(dump, gpu, vertex, busid)
    elif nic is not None:
        _read_nic(dump, nic, parent, capacity)
    elif len(element):
        vertex = dump.vertex(f"pcie-{busid}", "pcie")
        dump.links.add_pair(vertex, parent, capacity, (PCIE_FS, PCIE_FS), "pcie")
        _read_children(dump, element, vertex)
    elif element.get("class", "").startswith("0x03"):
        dump.gpu_devices.append(busid)


def _read_gpu(dump: _Dump, element: Element, vertex: int, busid: str) -> None:
    bundles = [
        (link.get("target", "").lower(), link.get("tclass", "").lower(), _integer(dump, link, "count", 1))
        for link in element
        if link.tag in {"nvlink", "xgmi"}
    ]
    for target, _, number in bundles:
        if not 1 <= number <= 1000:
            raise ConfigError(f"GPU {busid}: {number} links to {target!r}; expected 1 to 1000", file=dump.file)
    dump.gpus.append(
        _Gpu(
            vertex=vertex,
            rank=_integer(dump, element, "rank", _integer(dump, element, "dev", len(dump.gpus))),
            sm=_integer(dump, element, "sm", 0),
            gcn=element.get("gcn", ""),
            busid=busid,
            links=tuple(bundles),
        )
    )


def _read_nic(dump: _Dump, element: Element, parent: int | None, pcie: int | None) -> None:
    """A card counts with the sum of its ports; ports without a speed, as of a DPU's host side, do not count."""
    speeds = [_integer(dump, net, "speed", 0) for net in element if net.tag == "net"]
    usable = sum(speed for speed in speeds if speed > 0)
    home = parent if parent is not None else (dump.cpus[0][0] if dump.cpus else None)
    if usable and home is not None:
        dump.cards.append(_Card(home, pcie, usable))


def _scale_up(dump: _Dump, gpus: list[_Gpu]) -> tuple[Fraction, Fraction, str]:
    """Add NVLink or xGMI links; line rate and expected rate of one, and the generation."""
    sm, gcn = gpus[0].sm, gpus[0].gcn
    if gcn and gcn not in _XGMI and any(gpu.links for gpu in gpus):
        valid = ", ".join(_XGMI)
        raise ConfigError(
            f"the speed of xGMI links of AMD GPUs of kind gcn={gcn!r} is not known here; known: {valid}", file=dump.file
        )
    if gcn:
        raw, expected, generation = _XGMI.get(gcn, (Fraction(1), Fraction(1), gcn))
    else:
        raw, expected, generation = next(row[1:] for row in _NVLINK if sm >= row[0])
    by_busid = {gpu.busid: gpu.vertex for gpu in gpus}
    switch: int | None = None
    for gpu in gpus:
        to_switch = sum(number for _, tclass, number in gpu.links if tclass.startswith("0x068000"))
        if to_switch:
            if switch is None:
                switch = dump.vertex("nvswitch", "switch")
            capacity = int(to_switch * raw * GBps)
            dump.links.add_pair(gpu.vertex, switch, capacity, halves_fs(NVLINK_FS), "nvlink")
        direct: dict[int, int] = {}
        for target, tclass, number in gpu.links:
            # A GPU of the box that the dumped job did not use is not in the file; links to it carry nothing.
            if not tclass.startswith("0x068000") and target in by_busid:
                direct[by_busid[target]] = direct.get(by_busid[target], 0) + number
        for other, number in direct.items():
            dump.links.add(gpu.vertex, other, int(number * raw * GBps), NVLINK_FS, "nvlink")
    return raw, expected, generation


def _rails(dump: _Dump, gpus: list[_Gpu]) -> tuple[list[list[_Card]], list[int]]:
    """The cards of each rail and the rail of each GPU: the cards nearest by PCIe, shared out evenly among GPUs
    equally near.
    """
    if not dump.cards:
        return [], []
    steps = _pcie_steps(dump)
    nearest: list[tuple[int, ...]] = []
    for gpu in gpus:
        away = [steps(gpu.vertex, card.parent) for card in dump.cards]
        nearest.append(tuple(c for c, distance in enumerate(away) if distance == min(away)))
    rails: list[tuple[int, ...]] = []
    rail_of_gpu: list[int] = []
    for number, cards in enumerate(nearest):
        peers = [other for other, theirs in enumerate(nearest) if theirs == cards]
        place, n, m = peers.index(number), len(peers), len(cards)
        mine = cards[place * m // n : (place + 1) * m // n] if m >= n else (cards[place * m // n],)
        if mine not in rails:
            rails.append(mine)
        rail_of_gpu.append(rails.index(mine))
    return [[dump.cards[c] for c in cards] for cards in rails], rail_of_gpu


def _pcie_steps(dump: _Dump) -> Callable[[int, int], int]:
    """Distance in links over PCIe and CPUs; the sockets are joined, so that each tree hangs below one common point."""
    up = {row[0]: row[1] for row in dump.links.rows[::2] if dump.kinds[row[0]] != "cpu"}

    def ancestors(vertex: int) -> list[int]:
        chain = [vertex]
        while chain[-1] in up:
            chain.append(up[chain[-1]])
        return chain

    def steps(a: int, b: int) -> int:
        from_a, from_b = ancestors(a), ancestors(b)
        common = [vertex for vertex in from_a if vertex in from_b]
        if common:
            return from_a.index(common[0]) + from_b.index(common[0])
        return len(from_a) + len(from_b) - 1

    return steps


def _no_gpus(dump: _Dump) -> str:
    seen = (
        f"{len(dump.gpu_devices)} GPU devices (class 0x03) but no <gpu> elements"
        if dump.gpu_devices
        else "no <gpu> elements"
    )
    return (
        f"{seen}: GPUs, NVLinks and network ports are missing. Such files are input for NCCL_TOPO_FILE, which NCCL completes "
        "at run time; run any NCCL program on the machine with NCCL_TOPO_DUMP_FILE=dump.xml and give that file"
    )


def _integer(dump: _Dump, element: Element, attribute: str, default: int) -> int:
    text = element.get(attribute)
    if text is None:
        return default
    try:
        value = int(text[:20])
    except ValueError:
        raise ConfigError(f"<{element.tag}>: {attribute}={text[:40]!r} is not a whole number", file=dump.file) from None
    return value
