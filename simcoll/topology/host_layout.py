"""The tree of PCIe devices of a node of the family ``boxes``, from facts about the whole node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from simcoll.core.vocabulary import Interconnect
from simcoll.topology.capability import compute_capability
from simcoll.topology.host_tree import (
    NVSWITCH,
    Device,
    GpuDevice,
    HostTree,
    NicDevice,
    NicPort,
    NvLinks,
    PcieSlot,
    PcieSwitch,
    Socket,
)
from simcoll.topology.readers.link_speeds import nvlink

__all__ = ["BoxFacts", "HostFacts", "host_of_box"]

GBps = 10**15
UBPS_PER_MBPS = 10**12 // 8
FS_PER_US = 10**9
_LANES = 16
_TRANSFERS = (8, 16, 32, 64)
_TRANSFERS_OF = {"volta": 8, "ampere": 16, "hopper": 32, "blackwell": 32}
"""GT/s of a PCIe lane by GPU generation (PCI-SIG)."""
_CPU_MODELS = {"intel": (6, 143), "amd": (175, 1)}
"""Family and model: Sapphire Rapids and Milan."""
_INTEL_MODELS = {6: 79, 10: 85, 22: 143, 40: 207}
"""Models of Intel by the rate between sockets that NCCL assumes, in GB/s: Broadwell, Skylake,
Sapphire Rapids and Emerald Rapids.
"""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about the PCIe devices of a node that a topology file may state in ``[host]``.

    Attributes
    ----------
    sockets
        Number of NUMA nodes.
    gpus_per_switch
        Number of GPUs, with their NICs, below one PCIe switch; 0 without switches. None: by GPU
        generation, as in NVIDIA's machines.
    cpu_family, cpu_model
        Numbers of an x86 processor, as in ``/proc/cpuinfo``.
    pcie_transfers, pcie_lanes
        Transfers per second of a lane in GT/s, and number of lanes; 0: by GPU generation.
    cpu_link_uBps
        Rate of NVLink-C2C between a GPU and its Arm CPU; 0 without it.
    ports_per_nic
        Number of network devices of one card.
    nics_per_device
        Number of NICs that the network plugin shows as one device.
    nic_latency_fs
        The latency that the network plugin reports.
    """

    sockets: int | None = None
    gpus_per_switch: int | None = None
    cpu_family: int = 0
    cpu_model: int = 0
    pcie_transfers: int = 0
    pcie_lanes: int = _LANES
    cpu_link_uBps: int = 0
    ports_per_nic: int = 1
    nics_per_device: int = 1
    nic_latency_fs: int = 0


@dataclass(frozen=True, slots=True)
class BoxFacts:
    """The arguments of :func:`~simcoll.topology.families.boxes` that describe one node."""

    gpus: int
    nics: int
    interconnect: Interconnect
    links: Sequence[tuple[int, int, int]]
    gpu_uBps: int
    nic_uBps: int
    pcie_uBps: int
    gpus_per_switch: int | None
    sockets: int | None
    cpu_uBps: int = 0


def host_of_box(box: BoxFacts, facts: HostFacts, traits: Mapping[str, str]) -> HostTree | None:
    """The devices of a node; None for GPUs other than NVIDIA's.

    NIC k is beside GPU ``k * gpus // nics``: below the same PCIe switch, else at the same socket.
    """
    capability = compute_capability(traits)
    if not capability:
        return None
    generation, vendor = traits.get("generation", ""), traits.get("cpu", "intel")
    if vendor != "arm":
        facts = replace(facts, cpu_link_uBps=0)
    family, model = _CPU_MODELS.get(vendor, (6, 0))
    if vendor == "intel":
        model = _INTEL_MODELS.get(box.cpu_uBps // GBps, model if capability >= 89 else 85)
    family, model = facts.cpu_family or family, facts.cpu_model or model
    slots = _Slots(facts, box, generation)
    gpus = [
        GpuDevice(
            slot=slots.of_gpu(gpu),
            rank=gpu,
            number=gpu,
            capability=capability,
            nvlinks=_nvlinks(box, gpu, nvlink(capability)[0]),
            cpu_link_GBps=facts.cpu_link_uBps / GBps,
        )
        for gpu in range(box.gpus)
    ]
    nics_of_gpu = _nics(box, facts, slots)
    sockets = facts.sockets or box.sockets or min(2, box.gpus)
    per_switch = facts.gpus_per_switch
    if per_switch is None:
        per_switch = _gpus_per_switch(box, facts, generation)
    per_socket = -(-box.gpus // sockets)
    return HostTree(
        tuple(
            Socket(
                number=socket,
                vendor={"arm": "arm64"}.get(vendor, vendor),
                devices=tuple(
                    _devices(
                        range(socket * per_socket, min((socket + 1) * per_socket, box.gpus)),
                        gpus,
                        nics_of_gpu,
                        per_switch,
                        slots,
                    )
                ),
                family=family,
                model=model,
            )
            for socket in range(sockets)
            if socket * per_socket < box.gpus
        )
    )


class _Slots:
    """Addresses and links of PCIe devices."""

    def __init__(self, facts: HostFacts, box: BoxFacts, generation: str) -> None:
        transfers, lanes = facts.pcie_transfers, facts.pcie_lanes
        if not transfers and box.pcie_uBps and box.gpus_per_switch is not None:
            transfers, lanes = _link_of(box.pcie_uBps)
        transfers = transfers or _TRANSFERS_OF.get(generation, 32)
        self.speed, self.lanes = f"{transfers}.0 GT/s PCIe", lanes
        # A GPU with a coherent link to its CPU has no PCIe link that would show its speed.
        self.coherent = bool(facts.cpu_link_uBps) and not facts.gpus_per_switch

    def of_gpu(self, gpu: int) -> PcieSlot:
        address = f"0000:{16 + 2 * gpu:02x}:00.0"
        return PcieSlot(address, "", 0) if self.coherent else self._slot(address)

    def of_nic(self, nic: int) -> PcieSlot:
        return self._slot(f"0001:{16 + nic:02x}:00.0")

    def of_switch(self, first_gpu: int) -> PcieSlot:
        return self._slot(f"0002:{16 + first_gpu:02x}:00.0")

    def _slot(self, address: str) -> PcieSlot:
        return PcieSlot(address, self.speed, self.lanes)


def _link_of(rate_uBps: int) -> tuple[int, int]:
    """Transfers and lanes of the PCIe link nearest to a rate."""
    links = [(transfers, lanes) for lanes in (16, 8, 4) for transfers in _TRANSFERS]
    return min(links, key=lambda link: abs(link[0] * link[1] * GBps // 8 - rate_uBps))


def _gpus_per_switch(box: BoxFacts, facts: HostFacts, generation: str) -> int:
    if box.gpus_per_switch is not None:
        return box.gpus_per_switch if box.gpus_per_switch > 1 else 0
    if facts.cpu_link_uBps or box.interconnect != "switch":
        return 0
    return 2 if generation in {"volta", "ampere"} else 1


def _nvlinks(box: BoxFacts, gpu: int, link_rate: Fraction) -> tuple[NvLinks, ...]:
    links_of = max(round(Fraction(box.gpu_uBps, GBps) / link_rate), 1)
    if box.interconnect == "switch":
        return (NvLinks(NVSWITCH, links_of),)
    counts: dict[int, int] = {}
    if box.interconnect == "mesh":
        counts = {peer: links_of for peer in range(box.gpus) if peer != gpu}
    for a, b, number in box.links if box.interconnect == "links" else ():
        if gpu in {a, b}:
            peer = b if gpu == a else a
            counts[peer] = counts.get(peer, 0) + number * links_of
    return tuple(NvLinks(f"0000:{16 + 2 * peer:02x}:00.0", counts[peer]) for peer in sorted(counts))


def _nics(box: BoxFacts, facts: HostFacts, slots: _Slots) -> dict[int, list[NicDevice]]:
    """The NICs beside each GPU."""
    joined, ports = facts.nics_per_device, facts.ports_per_nic
    # Where some NICs are missing, the last device and the last card have fewer.
    members = [min(joined, box.nics - start) for start in range(0, box.nics, joined)]
    cards = [members[start : start + ports] for start in range(0, len(members), ports)]
    nics_of_gpu: dict[int, list[NicDevice]] = {}
    for card, members_of_ports in enumerate(cards):
        devices = tuple(
            NicPort(
                number=card * ports + port,
                speed_mbps=count * box.nic_uBps // UBPS_PER_MBPS,
                latency_us=facts.nic_latency_fs / FS_PER_US,
                card=f"0x{0x1000 + card:x}",
                port=port + 1,
            )
            for port, count in enumerate(members_of_ports)
        )
        nic = NicDevice(slots.of_nic(card), devices)
        nics_of_gpu.setdefault(card * box.gpus // len(cards), []).append(nic)
    return nics_of_gpu


def _devices(
    numbers: range,
    gpus: Sequence[GpuDevice],
    nics_of_gpu: Mapping[int, Sequence[NicDevice]],
    per_switch: int,
    slots: _Slots,
) -> list[Device]:
    """The devices of a socket: GPUs, then their NICs, below switches or not."""
    devices: list[Device] = []
    step = per_switch or 1
    for start in range(numbers.start, numbers.stop, step):
        group = range(start, min(start + step, numbers.stop))
        members: list[Device] = [gpus[gpu] for gpu in group]
        members += [nic for gpu in group for nic in nics_of_gpu.get(gpu, ())]
        devices += [PcieSwitch(slots.of_switch(start), tuple(members))] if per_switch else members
    return devices
