"""Hosts that nobody built, as topology files for NCCL: drawn at random, or described by a row.

Each host is described by the fields of :class:`RandomHost`, from which :func:`topology_file` writes
what ``NCCL_TOPO_FILE`` may name.
"""

import random
from dataclasses import dataclass
from typing import Literal

CPUS = {
    "intel-broadwell": 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79"',
    "intel-skylake": 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"',
    "intel-icelake": 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106"',
    "intel-sapphire": 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"',
    "intel-emerald": 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207"',
    "amd-rome": 'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"',
    "amd-turin": 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="2"',
    "arm": 'arch="arm64" vendor="ARM" familyid="0" modelid="0"',
}
NvlinkKind = Literal["switch", "none", "pairs", "all", "ring"]
LINKS_OF_GPU = {70: 6, 75: 2, 80: 12, 86: 4, 89: 0, 90: 18, 100: 18, 103: 18, 120: 0}
"""NVLinks of a GPU by compute capability."""


@dataclass(frozen=True)
class RandomHost:
    """A host for NCCL.

    Attributes
    ----------
    cpu
        A key of :data:`CPUS`.
    sockets
        Number of CPUs, over which the groups are spread.
    capability
        Compute capability of all GPUs.
    nvlinks
        To a switch, none, between pairs, all or neighbours in a ring.
    gpus, nics
        Number of GPUs and NICs of each group of devices.
    switches
        Number of PCIe switches above the devices of a group: 0, 1, or 2 in a line.
    pcie, nic_pcie
        GT/s and lanes of GPUs and NICs, such as ``"32.0x16"``.
    nic_mbps, nic_latency_us, ports
        Of a port of a NIC, and the number of ports.
    """

    cpu: str
    sockets: int
    capability: int
    nvlinks: NvlinkKind
    gpus: tuple[int, ...]
    nics: tuple[int, ...]
    switches: int
    pcie: str
    nic_pcie: str
    nic_mbps: int
    nic_latency_us: float = 0.0
    ports: int = 1


def random_host(seed: int) -> RandomHost:
    """A host drawn at random."""
    draw = random.Random(seed)
    capability = draw.choice(sorted(LINKS_OF_GPU))
    links = LINKS_OF_GPU[capability]
    sockets = draw.choice([1, 2, 2, 4])
    groups = draw.choice([1, sockets, 2 * sockets, 8])
    gpus = [0] * groups
    count = draw.choice([1, 2, 3, 4, 4, 6, 8, 8, 8])
    for number in range(count):
        gpus[number * groups // count if draw.random() < 0.9 else draw.randrange(groups)] += 1
    nics = [0] * groups
    nic_count = draw.choice([0, 1, 2, count, count, 2 * count])
    spread = draw.choice(["even", "even", "first", "random"])
    for number in range(nic_count):
        place = {"even": number * groups // nic_count, "first": 0}.get(spread)
        nics[draw.randrange(groups) if place is None else place] += 1
    kinds: list[NvlinkKind] = ["switch", "none", "pairs", "ring"]
    if count <= 4:
        kinds.append("all")
    nvlinks: NvlinkKind = draw.choice(kinds if links and count > 1 else ["none"])
    if nvlinks == "switch" and capability in {75, 86}:
        nvlinks = "pairs"
    speeds = ["8.0", "16.0", "32.0", "64.0"]
    return RandomHost(
        cpu=draw.choice(sorted(CPUS)),
        sockets=sockets,
        capability=capability,
        nvlinks=nvlinks,
        gpus=tuple(gpus),
        nics=tuple(nics),
        switches=draw.choice([0, 1, 1, 2]),
        pcie=f"{draw.choice(speeds)}x{draw.choice([8, 16, 16])}",
        nic_pcie=f"{draw.choice(speeds)}x{draw.choice([8, 16, 16])}",
        nic_mbps=draw.choice([25_000, 100_000, 200_000, 400_000, 800_000]),
        nic_latency_us=draw.choice([0.0, 0.0, 75.0]),
        ports=draw.choice([1, 1, 1, 2]),
    )


def topology_file(host: RandomHost) -> bytes:
    """The XML file that NCCL reads of a host."""
    groups, lines = len(host.gpus), ['<system version="1">']
    gpu = nic = bridge = 0
    for socket in range(host.sockets):
        lines.append(f'<cpu numaid="{socket}" affinity="{0xFF << 8 * socket:x}" {CPUS[host.cpu]}>')
        for group in range(groups):
            if group * host.sockets // groups != socket:
                continue
            for _ in range(host.switches):
                bridge += 1
                lines.append(
                    f'<pci busid="0002:{bridge:02x}:00.0" class="0x060400" vendor="0x1000" '
                    f'device="0xc030" subsystem_vendor="0x1000" subsystem_device="0x{bridge:x}" '
                    f"{_pcie(host.pcie)}>"
                )
            for _ in range(host.gpus[group]):
                lines.append(_gpu(host, gpu))
                gpu += 1
            for _ in range(host.nics[group]):
                lines.append(_nic(host, nic))
                nic += 1
            lines.append("</pci>" * host.switches)
        lines.append("</cpu>")
    return "\n".join([*lines, "</system>"]).encode()


def _pcie(text: str) -> str:
    speed, _, lanes = text.partition("x")
    return f'link_speed="{speed} GT/s PCIe" link_width="{lanes}"'


def _bus(gpu: int) -> str:
    return f"0000:{16 + 4 * gpu:02x}:00.0"


def _gpu(host: RandomHost, number: int) -> str:
    links = "".join(
        f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>'
        for target, count, kind in _nvlinks(host, number)
    )
    return (
        f'<pci busid="{_bus(number)}" class="0x030200" vendor="0x10de" device="0x2330" '
        f'subsystem_vendor="0x10de" subsystem_device="0x16c1" {_pcie(host.pcie)}><gpu '
        f'dev="{number}" sm="{host.capability}" rank="{number}" gdr="1">{links}</gpu></pci>'
    )


def _nvlinks(host: RandomHost, number: int) -> list[tuple[str, int, str]]:
    """Target, number and PCI class of the NVLinks of a GPU."""
    count, links = sum(host.gpus), LINKS_OF_GPU[host.capability]
    if host.nvlinks == "switch":
        return [("fffffff:ff:ff.0", links, "0x068000")]
    if host.nvlinks == "pairs":
        peers = {number ^ 1: links}
    elif host.nvlinks == "ring":
        peers = {(number + 1) % count: max(links // 2, 1), (number - 1) % count: max(links // 2, 1)}
    elif host.nvlinks == "all":
        peers = {peer: max(links // (count - 1), 1) for peer in range(count)}
    else:
        peers = {}
    return [
        (_bus(peer), links_to_peer, "0x030200")
        for peer, links_to_peer in sorted(peers.items())
        if peer < count and peer != number
    ]


def _nic(host: RandomHost, number: int) -> str:
    ports = "".join(
        f'<net name="mlx5_{device}" dev="{device}" speed="{host.nic_mbps}" port="{port + 1}" '
        f'latency="{host.nic_latency_us:g}" guid="0x{0x1000 + number:x}" maxconn="131072" gdr="1"/>'
        for port in range(host.ports)
        for device in [number * host.ports + port]
    )
    return (
        f'<pci busid="0001:{16 + number:02x}:00.0" class="0x020700" vendor="0x15b3" '
        f'device="0x1021" subsystem_vendor="0x15b3" subsystem_device="0x41" '
        f"{_pcie(host.nic_pcie)}><nic>{ports}</nic></pci>"
    )
