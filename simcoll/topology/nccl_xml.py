"""Reader of NCCL topology dumps (``NCCL_TOPO_DUMP_FILE``), also RCCL's: one node as the machine itself saw it.

The rules for speeds are those of NCCL's ``src/graph/topo.cc`` and ``topo.h`` (2.30): a PCIe link has its width times
the rate of a lane; sockets are joined at the speed of their vendor's links; NVLinks to several NVSwitches count as one bundle.
Capacities of NVLink and xGMI are line rates; the share that NCCL expects is the topology's efficiency. A dump has
no latencies: those here are assumptions.
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
from simcoll.topology.cluster import Box, Tier, cluster
from simcoll.topology.link_speeds import XGMI, nvlink, pcie_rate, rate_between_sockets
from simcoll.topology.links import LinkTable
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
    """The contents of the file, in order."""

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    links: LinkTable = field(default_factory=lambda: LinkTable([]))
    up: dict[int, int] = field(default_factory=dict)  # PCIe parent of a vertex
    gpus: list[_Gpu] = field(default_factory=list)
    cards: list[_Card] = field(default_factory=list)
    cpus: list[tuple[int, str, int]] = field(default_factory=list)  # vertex, vendor, capacity between sockets
    hosts: list[str] = field(default_factory=list)
    gpu_devices: list[str] = field(default_factory=list)  # PCI devices of a GPU's class without <gpu>

    def vertex(self, name: str, kind: str) -> int:
        if name in self.names:
            raise ConfigError(f"{name!r} occurs twice")
        self.names.append(name)
        self.kinds.append(kind)
        return len(self.names) - 1

    def below(self, parent: int, name: str, kind: str, capacity: int) -> int:
        """A vertex and its PCIe link to a parent."""
        vertex = self.vertex(name, kind)
        self.links.add_pair(vertex, parent, capacity, (PCIE_FS, PCIE_FS), "pcie")
        self.up[vertex] = parent
        return vertex


def parse_nccl_xml(content: bytes, *, file: str = "topology dump", nodes: int = 1) -> Topology:
    """Make a topology of an NCCL topology dump.

    ``nodes`` copies of the node are joined by a non-blocking network for each rail.

    Raises
    ------
    ConfigError
        When the file is malformed, too large, contains a DTD, is not a dump, or lacks GPUs.
    """
    title = file.replace("\\", "/").rpartition("/")[2].removesuffix(".xml")
    try:
        return _topology(content, title, nodes)
    except ConfigError as error:
        raise ConfigError(error.message, file=file, path=error.path) from None


def _topology(content: bytes, title: str, nodes: int) -> Topology:
    dump = _Dump()
    _read_children(dump, _parse(content), None)
    if not dump.gpus:
        raise ConfigError(_no_gpus(dump))
    if len(set(dump.hosts)) > 1:
        raise ConfigError(f"the dump spans {len(set(dump.hosts))} hosts; expected the dump of one node")
    gpus = sorted(dump.gpus, key=lambda gpu: (gpu.rank, gpu.vertex))
    if len({gpu.rank for gpu in gpus}) != len(gpus):
        raise ConfigError("two GPUs have the same rank")
    raw, expected, generation = _scale_up(dump, gpus)
    box = _box(dump, gpus)
    topology = cluster(title, box, nodes, (Tier("leaf", rail_only=True, latency=NET_FS), Tier("spine")))
    description = f"NCCL dump: {len(gpus)} GPUs, {len(box.nics)} rail(s) of {len(dump.cards)} network card(s)"
    if nodes > 1:
        description += f"; {nodes} copies joined by a non-blocking switch per rail and a spine, not in the dump"
    return replace(
        topology,
        description=description,
        efficiency={"nvlink": expected / raw},
        traits={"gpu": gpus[0].gcn or f"sm{gpus[0].sm}", "generation": generation, "cpu": dump.cpus[0][1]},
        sources={"$": "NCCL topology dump; link speeds by NCCL 2.30 src/graph/topo.h; latencies unverified"},
    )


def _box(dump: _Dump, gpus: list[_Gpu]) -> Box:
    """The node, with the sockets joined and a vertex for each rail of NICs."""
    for i, (a, _, capacity) in enumerate(dump.cpus):
        for b, _, other in dump.cpus[i + 1 :]:
            dump.links.add_pair(a, b, min(capacity, other), (CPU_FS, CPU_FS), "cpu")
    rails, rail_of_gpu = _rails(dump, gpus)
    for number, gpu in enumerate(gpus):
        dump.names[gpu.vertex] = f"gpu{number}"
    nics, capacities = [], []
    for number, cards in enumerate(rails):
        speeds = [card.speed_mbps * GBps // 8000 for card in cards]
        pcie = [speed if card.pcie is None else card.pcie for card, speed in zip(cards, speeds, strict=True)]
        nics.append(dump.below(cards[0].parent, f"nic{number}", "nic", sum(pcie)))
        capacities.append(sum(speeds))
    return Box(
        names=tuple(dump.names),
        kinds=tuple(dump.kinds),
        links=dump.links,
        gpus=tuple(gpu.vertex for gpu in gpus),
        nics=tuple(nics),
        nic_capacity=tuple(capacities),
        nic_of_gpu=tuple(rail_of_gpu),
    )


def _parse(content: bytes) -> Element:
    """The root element, within limits of size, depth and number of elements."""
    if len(content) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB; is this a topology dump?")
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
                raise ConfigError(f"{what}; is this a topology dump?")
    except DefusedXmlException:
        raise ConfigError("contains a DTD or entities, which a topology dump never does; refused") from None
    except ParseError as error:
        line, column = error.position
        reason = str(error).partition(":")[0]
        raise ConfigError(f"not well-formed XML: {reason} (column {column + 1})", path=f"line {line}") from None
    except (ValueError, LookupError) as error:
        raise ConfigError(f"not readable XML: {error}") from None
    if root is None or root.tag != "system":
        found = "nothing" if root is None else f"<{root.tag}>"
        hint = "; this is a graph file (NCCL_GRAPH_DUMP_FILE), not a topology" if found == "<graphs>" else ""
        raise ConfigError(f"expected <system> as the outermost element, found {found}{hint}")
    return root


def _read_children(dump: _Dump, element: Element, parent: int | None) -> None:
    """Read the elements below the one that became the vertex ``parent``."""
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
    dump.cpus.append((vertex, vendor, rate_between_sockets(vendor, _integer(element, "modelid", 0)) * GBps))
    dump.hosts.append(element.get("host_hash", ""))
    _read_children(dump, element, vertex)


def _read_pci(dump: _Dump, element: Element, parent: int | None) -> None:
    busid = element.get("busid", "").lower()
    if parent is None:
        raise ConfigError(f"<pci busid={busid!r}> is not inside a <cpu>")
    width = _integer(element, "link_width", 16) or 16  # NCCL reads 0, which virtual bridges have, as 16
    capacity = int(pcie_rate(width, element.get("link_speed", "")) * GBps)
    if not 1 <= width <= 64:
        raise ConfigError(f"<pci busid={busid!r}>: link_width {width} is out of range; expected 0 to 64")
    gpu, nic = element.find("gpu"), element.find("nic")
    if gpu is not None:
        _read_gpu(dump, gpu, dump.below(parent, f"gpu-{busid}", "gpu", capacity), busid)
    elif nic is not None:
        _read_nic(dump, nic, parent, capacity)
    elif len(element):
        _read_children(dump, element, dump.below(parent, f"pcie-{busid}", "pcie", capacity))
    elif element.get("class", "").startswith("0x03"):
        dump.gpu_devices.append(busid)


def _read_gpu(dump: _Dump, element: Element, vertex: int, busid: str) -> None:
    bundles = [
        (link.get("target", "").lower(), link.get("tclass", "").lower(), _integer(link, "count", 1))
        for link in element
        if link.tag in {"nvlink", "xgmi"}
    ]
    for target, _, number in bundles:
        if target == busid:
            raise ConfigError(
                f"GPU {busid}: a link to itself, which leaves open which GPUs are joined; expected another busid as target"
            )
        if not 1 <= number <= 1000:
            raise ConfigError(f"GPU {busid}: {number} links to {target!r}; expected 1 to 1000")
    dump.gpus.append(
        _Gpu(
            vertex=vertex,
            rank=_integer(element, "rank", _integer(element, "dev", len(dump.gpus))),
            sm=_compute_capability(element, busid),
            gcn=element.get("gcn", ""),
            busid=busid,
            links=tuple(bundles),
        )
    )


def _compute_capability(element: Element, busid: str) -> int:
    """The compute capability, which determines NVLink's speed; AMD GPUs have ``gcn`` for that."""
    expected = "expected the compute capability, such as sm='90'"
    sm = _integer(element, "sm", 0)
    if element.get("gcn"):
        return sm
    if "sm" not in element.attrib:
        raise ConfigError(f"<gpu> of <pci busid={busid!r}> has no sm; {expected}")
    if not 10 <= sm <= 999:
        raise ConfigError(f"<gpu> of <pci busid={busid!r}>: sm='{sm}' is no GPU; {expected}")
    return sm


def _read_nic(dump: _Dump, element: Element, parent: int | None, pcie: int | None) -> None:
    """Add a NIC with the sum of its ports; ports of speed 0 or -1, as on a DPU's host side, do not count."""
    ports = [net for net in element if net.tag == "net"]
    for net in ports:
        if "speed" not in net.attrib:
            raise ConfigError(
                f"<net name={net.get('name', '')!r}> has no speed; expected Mbit/s, such as speed='200000'"
            )
    speeds = [_integer(net, "speed", 0) for net in ports]
    usable = sum(speed for speed in speeds if speed > 0)
    home = parent if parent is not None else (dump.cpus[0][0] if dump.cpus else None)
    if usable and home is not None:
        dump.cards.append(_Card(home, pcie, usable))


def _scale_up(dump: _Dump, gpus: list[_Gpu]) -> tuple[Fraction, Fraction, str]:
    """Add NVLink or xGMI links; line rate and expected rate of one, and the generation."""
    sm, gcn = gpus[0].sm, gpus[0].gcn
    for gpu in gpus:
        if (gpu.sm, gpu.gcn) != (sm, gcn):
            kinds = ", ".join(f"{each.busid} has {_kind(each)}" for each in (gpus[0], gpu))
            raise ConfigError(f"GPUs of two kinds: {kinds}; expected one kind, since link speeds follow from it")
    if gcn and gcn not in XGMI and any(gpu.links for gpu in gpus):
        valid = ", ".join(XGMI)
        raise ConfigError(f"the speed of xGMI links of AMD GPUs of kind gcn={gcn!r} is not known here; known: {valid}")
    raw, expected, generation = XGMI.get(gcn, (Fraction(1), Fraction(1), gcn)) if gcn else nvlink(sm)
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
            # A GPU of the node that the dumped job did not use is not in the file; links to it carry nothing.
            if not tclass.startswith("0x068000") and target in by_busid:
                direct[by_busid[target]] = direct.get(by_busid[target], 0) + number
        for other, number in direct.items():
            dump.links.add(gpu.vertex, other, int(number * raw * GBps), NVLINK_FS, "nvlink")
    return raw, expected, generation


def _kind(gpu: _Gpu) -> str:
    return f"gcn={gpu.gcn!r}" if gpu.gcn else f"sm='{gpu.sm}'"


def _rails(dump: _Dump, gpus: list[_Gpu]) -> tuple[list[list[_Card]], list[int]]:
    """NICs of each rail and rail of each GPU: those nearest by PCIe, shared evenly among GPUs at equal distance."""
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
    """Distance in links over PCIe and CPUs; the sockets are joined, so all trees have a common root."""

    def ancestors(vertex: int) -> list[int]:
        chain = [vertex]
        while chain[-1] in dump.up:
            chain.append(dump.up[chain[-1]])
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
        f"{seen}: GPUs, NVLinks and network ports are missing. Such files are input for NCCL_TOPO_FILE, which NCCL "
        "completes at run time; run any NCCL program on the machine with NCCL_TOPO_DUMP_FILE=dump.xml, and give that"
    )


def _integer(element: Element, attribute: str, default: int) -> int:
    text = element.get(attribute)
    if text is None:
        return default
    try:
        value = int(text[:20])
    except ValueError:
        raise ConfigError(f"<{element.tag}>: {attribute}={text[:40]!r} is not a whole number") from None
    return value
