"""Reader of NCCL and RCCL topology dumps (``NCCL_TOPO_DUMP_FILE``): one node as the library
detected it.

The rules for speeds are those of NCCL's ``src/graph/topo.cc`` and ``topo.h`` (2.30): a PCIe link
has its width times the rate of a lane; sockets are joined at the speed of their vendor's links;
NVLinks to several NVSwitches count as one bundle. Capacities of NVLink and xGMI are line rates; the
share that NCCL expects is the topology's efficiency. A dump contains no latencies: those here are
assumptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from xml.etree.ElementTree import Element

from simcoll.core.vocabulary import NodeKind
from simcoll.errors import ConfigError, blamed_on
from simcoll.files.reader_arguments import Content, content_of
from simcoll.files.xml import XmlLimits, parse_xml
from simcoll.topology.cluster import Box, Tier, cluster
from simcoll.topology.graph import Topology
from simcoll.topology.links import LinkTable
from simcoll.topology.readers.link_speeds import XGMI, nvlink, pcie_rate, rate_between_sockets
from simcoll.topology.readers.nccl_completed import Facts, complete
from simcoll.topology.readers.nccl_host import host_in
from simcoll.topology.values import halves_fs

__all__ = ["parse_nccl_xml"]

MAX_BYTES = 2**24
LIMITS = XmlLimits(depth=64, elements=100_000)
MAX_GPUS = MAX_CARDS = 1024
MAX_CPUS = 64

GBps = 10**15  # in micro-bytes per second
NVLINK_FS = 700_000_000
PCIE_FS = 400_000_000
CPU_FS = 500_000_000
NET_FS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _XmlGpu:
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
    used_names: set[str] = field(default_factory=set)
    kinds: list[NodeKind] = field(default_factory=list)
    links: LinkTable = field(default_factory=lambda: LinkTable([]))
    up: dict[int, int] = field(default_factory=dict)  # PCIe parent of a vertex
    gpus: list[_XmlGpu] = field(default_factory=list)
    cards: list[_Card] = field(default_factory=list)
    # Vertex, vendor, capacity between sockets.
    cpus: list[tuple[int, str, int]] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)  # of each CPU
    host_of_cpu: dict[int, int] = field(default_factory=dict)  # number of the host, by vertex

    def vertex(self, name: str, kind: NodeKind) -> int:
        if name in self.used_names:
            raise ConfigError(f"{name!r} occurs twice")
        self.used_names.add(name)
        self.names.append(name)
        self.kinds.append(kind)
        return len(self.names) - 1

    def label(self, busid: str) -> str:
        """An address that is unique in a dump of several hosts."""
        host = max(self.host_of_cpu.values(), default=0)
        return f"{busid}-host{host}" if host else busid

    def cpu_above(self, vertex: int) -> int:
        """The CPU at the root of a vertex's PCIe tree."""
        while vertex in self.up:
            vertex = self.up[vertex]
        return vertex

    def below(self, parent: int, name: str, kind: NodeKind, capacity: int) -> int:
        """Add a vertex with a PCIe link to its parent."""
        vertex = self.vertex(name, kind)
        self.links.add_pair(vertex, parent, capacity, (PCIE_FS, PCIE_FS), "pcie")
        self.up[vertex] = parent
        return vertex


def parse_nccl_xml(
    content: Content,
    *,
    file: str = "topology dump",
    nodes: int = 1,
    sm: int | None = None,
    nvlinks: int | None = None,
    links: Sequence[tuple[int, int, int]] | None = None,
    nic_bandwidth: int | None = None,
    nic_latency: int = 0,
) -> Topology:
    """Build a topology from an NCCL topology dump.

    ``nodes`` copies of the node are joined by a non-blocking network for each rail. The other
    arguments are facts that a file for ``NCCL_TOPO_FILE`` omits: see
    :class:`simcoll.topology.readers.nccl_completed.Facts`.

    Raises
    ------
    ConfigError
        When the file is malformed, too large, contains a DTD, is not a dump, or lacks GPUs.
    """
    content = content_of(content, "parse_nccl_xml")
    facts = Facts(sm, nvlinks, links, nic_bandwidth, nic_latency)
    title = file.replace("\\", "/").rpartition("/")[2].removesuffix(".xml")
    with blamed_on(file):
        return _topology(content, title, nodes, facts)


def _topology(content: bytes, title: str, nodes: int, facts: Facts) -> Topology:
    dump, root = _Dump(), _parse(content)
    complete(root, facts)
    _read_children(dump, root, None)
    nhosts = len(set(dump.hosts))
    if nhosts > 1 and not all(_switch_links(gpu) for gpu in dump.gpus):
        raise ConfigError(
            f"the dump spans {nhosts} hosts, which no NVSwitch joins; expected the dump of one "
            "node, or of a rack with NVLinks between nodes"
        )
    if not dump.gpus:
        raise ConfigError("no GPU: expected <gpu> elements, each in a <pci> of its own")
    gpus = sorted(dump.gpus, key=lambda gpu: (gpu.rank, gpu.vertex))
    if len({gpu.rank for gpu in gpus}) != len(gpus):
        raise ConfigError("two GPUs have the same rank")
    raw, expected, generation = _scale_up(dump, gpus)
    box = _box(dump, gpus)
    topology = cluster(
        title, box, nodes, (Tier("leaf", rail_only=True, latency=NET_FS), Tier("spine"))
    )
    description = (
        f"NCCL dump: {len(gpus)} GPUs, {len(box.nics)} rail(s) of {len(dump.cards)} network card(s)"
    )
    if nodes > 1:
        description += (
            f"; {nodes} copies joined by a non-blocking switch per rail and a spine, not in the "
            "dump"
        )
    return replace(
        topology,
        description=description,
        host=None if gpus[0].gcn else host_in(root),
        efficiency={"nvlink": expected / raw},
        traits={
            "gpu": gpus[0].gcn or f"sm{gpus[0].sm}",
            "generation": generation,
            "cpu": {"arm64": "arm"}.get(dump.cpus[0][1], dump.cpus[0][1]),
            **({"switch_reduce": "nvlink-sharp"} if _has_sharp(gpus) else {}),
        },
        sources={
            "$": "NCCL topology dump; link speeds by NCCL 2.30 src/graph/topo.h; latencies "
            "unverified"
        },
    )


def _has_sharp(gpus: list[_XmlGpu]) -> bool:
    """Whether NVSwitches multicast and reduce: they do from Hopper on."""
    return all(
        gpu.sm >= 90 and any(tclass.startswith("0x068000") for _, tclass, _ in gpu.links)
        for gpu in gpus
    )


def _box(dump: _Dump, gpus: list[_XmlGpu]) -> Box:
    """The node, with its sockets joined and a vertex for each rail of NICs."""
    for i, (a, _, capacity) in enumerate(dump.cpus):
        for b, _, second_capacity in dump.cpus[i + 1 :]:
            if dump.host_of_cpu[a] != dump.host_of_cpu[b]:
                continue
            dump.links.add_pair(a, b, min(capacity, second_capacity), (CPU_FS, CPU_FS), "cpu")
    rails, rail_of_gpu = _rails(dump, gpus)
    for number, gpu in enumerate(gpus):
        dump.names[gpu.vertex] = f"gpu{number}"
    nics, capacities = [], []
    for number, cards in enumerate(rails):
        speeds = [card.speed_mbps * GBps // 8000 for card in cards]
        pcie = [
            speed if card.pcie is None else card.pcie
            for card, speed in zip(cards, speeds, strict=True)
        ]
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
    """The root element."""
    if len(content) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB; is this a topology dump?")
    root = parse_xml(content, LIMITS)
    if root.tag != "system":
        element = f"<{root.tag[:40]}>"
        hint = (
            "; this is a graph file (NCCL_GRAPH_DUMP_FILE), not a topology"
            if element == "<graphs>"
            else ""
        )
        raise ConfigError(f"expected <system> as the outermost element, found {element}{hint}")
    return root


def _read_children(dump: _Dump, element: Element, parent: int | None) -> None:
    """Read the children of the element that became the vertex ``parent``."""
    for child in element:
        if child.tag == "cpu":
            _read_cpu(dump, child)
        elif child.tag == "pci":
            _read_pci(dump, child, parent)
        elif child.tag == "nic":
            _read_nic(dump, child, parent, None)


def _read_cpu(dump: _Dump, element: Element) -> None:
    if len(dump.cpus) == MAX_CPUS:
        raise ConfigError(f"more than {MAX_CPUS} CPUs; is this the dump of one node?")
    vertex = dump.vertex(f"cpu{len(dump.cpus)}", "cpu")
    vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(
        element.get("vendor", ""), element.get("arch", "unknown")
    )
    dump.cpus.append(
        (vertex, vendor, rate_between_sockets(vendor, _integer(element, "modelid", 0)) * GBps)
    )
    dump.hosts.append(element.get("host_hash", ""))
    dump.host_of_cpu[vertex] = list(dict.fromkeys(dump.hosts)).index(dump.hosts[-1])
    _read_children(dump, element, vertex)


def _read_pci(dump: _Dump, element: Element, parent: int | None) -> None:
    busid = element.get("busid", "").lower()
    if parent is None:
        raise ConfigError(f"<pci busid={busid!r}> is not inside a <cpu>")
    # NCCL treats 0, as on virtual bridges, as 16; 255 is what Linux reports for an unknown width.
    width = _integer(element, "link_width", 16)
    width = 16 if width in {0, 255} else width
    capacity = int(pcie_rate(width, element.get("link_speed", "")) * GBps)
    if not 1 <= width <= 64:
        raise ConfigError(
            f"<pci busid={busid!r}>: link_width {width} is out of range; expected 0 to 64"
        )
    gpu, nic = element.find("gpu"), element.find("nic")
    if gpu is not None:
        label = f"gpu-{dump.label(busid)}"
        chip_to_chip = _chip_to_chip(gpu, busid)
        # A GPU on the chip of its CPU reaches it by C2C; its PCIe link only configures it.
        if parent not in dump.up:
            capacity = max(capacity, chip_to_chip)
        vertex = dump.below(parent, label, "gpu", capacity)
        if chip_to_chip and parent in dump.up:
            cpu = dump.cpu_above(parent)
            dump.links.add_pair(vertex, cpu, chip_to_chip, (PCIE_FS, PCIE_FS), "pcie")
        _read_gpu(dump, gpu, vertex, busid)
    elif nic is not None:
        _read_nic(dump, nic, parent, capacity)
    elif len(element):
        _read_children(
            dump, element, dump.below(parent, f"pcie-{dump.label(busid)}", "pcie", capacity)
        )


def _read_gpu(dump: _Dump, element: Element, vertex: int, busid: str) -> None:
    bundles = [
        (link.get("target", "").lower(), link.get("tclass", "").lower(), _integer(link, "count", 1))
        for link in element
        if link.tag in {"nvlink", "xgmi"}
    ]
    for target, _, number in bundles:
        if target == busid:
            raise ConfigError(
                f"GPU {busid}: a link to itself, which leaves open which GPUs are joined; say it, "
                "such as gpu.links=[[0, 1, 12]], or gpu.links=[] for none, as NCCL takes it"
            )
        if not 1 <= number <= 1000:
            raise ConfigError(f"GPU {busid}: {number} links to {target!r}; expected 1 to 1000")
    rank = _integer(element, "rank", _integer(element, "dev", len(dump.gpus)))
    if rank < 0 or len(dump.gpus) == MAX_GPUS:
        wrong = (
            f"rank='{rank}' is not a rank"
            if rank < 0
            else f"more than {MAX_GPUS} GPUs; is this the dump of one node?"
        )
        raise ConfigError(f"<gpu> of <pci busid={busid!r}>: {wrong}")
    dump.gpus.append(
        _XmlGpu(
            vertex=vertex,
            rank=rank,
            sm=_compute_capability(element, busid),
            gcn=element.get("gcn", ""),
            busid=busid,
            links=tuple(bundles),
        )
    )


def _chip_to_chip(element: Element, busid: str) -> int:
    """Capacity of the C2C links between a GPU and its CPU: the links times Mbyte/s of one."""
    capacity = 0
    for link in element:
        if link.tag == "c2c":
            rate, count = _integer(link, "bw", 0), _integer(link, "count", 1)
            if not 0 < rate <= 10**6 or not 1 <= count <= 100:
                raise ConfigError(
                    f"GPU {busid}: <c2c bw='{rate}' count='{count}'>; expected Mbyte/s of a link, "
                    "such as 43125, and 1 to 100 links"
                )
            capacity += rate * count * GBps // 1000
    return capacity


def _switch_links(gpu: _XmlGpu) -> int:
    """Number of NVLinks of a GPU to switches."""
    return sum(number for _, tclass, number in gpu.links if tclass.startswith("0x068000"))


def _compute_capability(element: Element, busid: str) -> int:
    """The compute capability, which determines NVLink's speed; AMD GPUs have ``gcn`` instead."""
    expected = "expected the compute capability, such as sm='90'"
    sm = _integer(element, "sm", 0)
    if element.get("gcn"):
        return sm
    if "sm" not in element.attrib:
        raise ConfigError(f"<gpu> of <pci busid={busid!r}> has no sm; {expected}")
    if not 10 <= sm <= 999:
        raise ConfigError(f"<gpu> of <pci busid={busid!r}>: sm='{sm}' is not a GPU; {expected}")
    return sm


def _read_nic(dump: _Dump, element: Element, parent: int | None, pcie: int | None) -> None:
    """Add a NIC with the total rate of its ports, except those of speed 0 or -1, as on a DPU's host
    side.
    """
    ports = [net for net in element if net.tag == "net"]
    for net in ports:
        if "speed" not in net.attrib:
            raise ConfigError(
                f"<net name={net.get('name', '')!r}> has no speed; expected Mbit/s, such as "
                "speed='200000'"
            )
    speeds = [_integer(net, "speed", 0) for net in ports]
    usable = sum(speed for speed in speeds if speed > 0)
    home = parent if parent is not None else (dump.cpus[0][0] if dump.cpus else None)
    if usable and home is not None:
        if len(dump.cards) == MAX_CARDS:
            raise ConfigError(f"more than {MAX_CARDS} network cards; is this the dump of one node?")
        dump.cards.append(_Card(home, pcie, usable))


def _scale_up(dump: _Dump, gpus: list[_XmlGpu]) -> tuple[Fraction, Fraction, str]:
    """Add NVLink or xGMI links; return line rate and expected rate of one, and the generation."""
    sm, gcn = gpus[0].sm, gpus[0].gcn
    for gpu in gpus:
        if (gpu.sm, gpu.gcn) != (sm, gcn):
            kinds = ", ".join(f"{member.busid} has {_kind(member)}" for member in (gpus[0], gpu))
            raise ConfigError(
                f"GPUs of two kinds: {kinds}; expected one kind, since link speeds follow from it"
            )
    if gcn and gcn not in XGMI and any(gpu.links for gpu in gpus):
        valid = ", ".join(XGMI)
        raise ConfigError(
            f"the speed of xGMI links of AMD GPUs of kind gcn={gcn!r} is not known here; known: "
            f"{valid}"
        )
    raw, expected, generation = (
        XGMI.get(gcn, (Fraction(1), Fraction(1), gcn)) if gcn else nvlink(sm)
    )
    by_busid = {gpu.busid: gpu.vertex for gpu in gpus}
    switch: int | None = None
    for gpu in gpus:
        to_switch = _switch_links(gpu)
        if to_switch:
            if switch is None:
                switch = dump.vertex("nvswitch", "switch")
            capacity = int(to_switch * raw * GBps)
            dump.links.add_pair(gpu.vertex, switch, capacity, halves_fs(NVLINK_FS), "nvlink")
        direct: dict[int, int] = {}
        for target, tclass, number in gpu.links:
            # A GPU of the node that the dumped job did not use is absent from the file; links to it
            # carry nothing.
            if not tclass.startswith("0x068000") and target in by_busid:
                direct[by_busid[target]] = direct.get(by_busid[target], 0) + number
        for peer, number in direct.items():
            dump.links.add(gpu.vertex, peer, int(number * raw * GBps), NVLINK_FS, "nvlink")
    return raw, expected, generation


def _kind(gpu: _XmlGpu) -> str:
    return f"gcn={gpu.gcn!r}" if gpu.gcn else f"sm='{gpu.sm}'"


def _rails(dump: _Dump, gpus: list[_XmlGpu]) -> tuple[list[list[_Card]], list[int]]:
    """NICs of each rail and rail of each GPU: the nearest by PCIe, shared evenly among GPUs at
    equal distance.
    """
    if not dump.cards:
        return [], []
    reach = _reach(dump)
    nearest = [_nearest_cards(dump, reach, gpu.vertex) for gpu in gpus]
    peers: dict[tuple[int, ...], list[int]] = {}
    for number, cards in enumerate(nearest):
        peers.setdefault(cards, []).append(number)
    places = {number: place for group in peers.values() for place, number in enumerate(group)}
    rails: dict[tuple[int, ...], int] = {}
    rail_of_gpu: list[int] = []
    for number, cards in enumerate(nearest):
        place, n, m = places[number], len(peers[cards]), len(cards)
        mine = cards[place * m // n : (place + 1) * m // n] if m >= n else (cards[place * m // n],)
        rail_of_gpu.append(rails.setdefault(mine, len(rails)))
    return [[dump.cards[c] for c in cards] for cards in rails], rail_of_gpu


_JOINED = -1
"""Stands for all sockets of the first host together, with one link between any two; those of
further hosts have lower numbers.
"""


def _above(dump: _Dump, vertex: int) -> list[int]:
    """The vertex, its ancestors in the PCIe tree, and the sockets of its host together."""
    chain = [vertex]
    while chain[-1] in dump.up:
        chain.append(dump.up[chain[-1]])
    return [*chain, _JOINED - dump.host_of_cpu.get(chain[-1], 0)]


def _reach(dump: _Dump) -> dict[int, tuple[int, list[int]]]:
    """For each ancestor of a card, the number of links down to the nearest cards, and these
    cards.
    """
    reach: dict[int, tuple[int, list[int]]] = {}
    for number, card in enumerate(dump.cards):
        chain = _above(dump, card.parent)
        for away, vertex in enumerate(chain):
            # From one socket to another there is one link, not two.
            down = away - (vertex <= _JOINED)
            distance, cards = reach.get(vertex, (down, []))
            if down <= distance:
                reach[vertex] = (down, [*(cards if down == distance else []), number])
    return reach


def _nearest_cards(
    dump: _Dump, reach: dict[int, tuple[int, list[int]]], gpu: int
) -> tuple[int, ...]:
    """Cards with the fewest links from a GPU.

    A card reached through too high an ancestor only seems farther than it is, so it is never
    mistaken for a nearest one.
    """
    ways = [
        (up + reach[vertex][0], reach[vertex][1])
        for up, vertex in enumerate(_above(dump, gpu))
        if vertex in reach
    ]
    shortest = min(away for away, _ in ways)
    return tuple(sorted({card for away, cards in ways if away == shortest for card in cards}))


def _integer(element: Element, attribute: str, default: int) -> int:
    text = element.get(attribute)
    if text is None:
        return default
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ConfigError(f"<{element.tag}>: {attribute}={text[:40]!r} is not a whole number")
    return int(text)
