"""A node as its operating system shows it: sockets, PCIe switches, GPUs and NICs.

The links of a :class:`~simcoll.topology.graph.Topology` say how fast data can move; communication
libraries decide by this tree instead, such as which NIC belongs to which GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "NVSWITCH",
    "Device",
    "GpuDevice",
    "HostTree",
    "NicDevice",
    "NicPort",
    "NvLinks",
    "PcieSlot",
    "PcieSwitch",
    "Socket",
    "gpus_of",
    "nics_of",
]

NVSWITCH = "NVSwitch"


@dataclass(frozen=True, slots=True)
class PcieSlot:
    """Address of a PCIe device, the generation and width of its link upwards.

    Attributes
    ----------
    address
        ``"0000:0f:00.0"``.
    speed
        Transfers per second of a lane as Linux shows it, such as ``"32.0 GT/s PCIe"``; empty if
        unknown.
    lanes
        Width of the link; 0 if unknown, as on virtual machines.
    """

    address: str
    speed: str
    lanes: int


@dataclass(frozen=True, slots=True)
class NvLinks:
    """NVLinks of one GPU to another end.

    Attributes
    ----------
    target
        PCIe address of another GPU, or :data:`NVSWITCH`.
    links
        Number of links.
    """

    target: str
    links: int


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU.

    Attributes
    ----------
    rank
        Its rank among the GPUs of the node.
    number
        Its number in the driver; other than the rank where a job uses a part of the node.
    capability
        Compute capability, such as 90.
    nvlinks
        Its NVLinks, in the order of the file.
    cpu_link_GBps
        Rate of the coherent link to its CPU (NVLink-C2C), 0 without one.
    gpu_direct
        Whether NICs may read and write its memory.
    """

    slot: PcieSlot
    rank: int
    number: int
    capability: int
    nvlinks: tuple[NvLinks, ...] = ()
    cpu_link_GBps: float = 0.0
    gpu_direct: bool = True


@dataclass(frozen=True, slots=True)
class NicPort:
    """One network device of a NIC, as the network plugin reports it.

    Attributes
    ----------
    number
        Number of the device in the plugin.
    speed_mbps
        Rate in megabits per second.
    latency_us
        Latency in microseconds that the plugin reports.
    card
        Identity of the card, which ports of one card share.
    port
        Number of the port on the card.
    gpu_direct
        Whether it can read and write the memory of GPUs.
    """

    number: int
    speed_mbps: int
    latency_us: float = 0.0
    card: str = ""
    port: int = 1
    gpu_direct: bool = True


@dataclass(frozen=True, slots=True)
class NicDevice:
    """A NIC with its ports; without a slot where the file attaches it to a socket directly."""

    slot: PcieSlot | None
    ports: tuple[NicPort, ...]


@dataclass(frozen=True, slots=True)
class PcieSwitch:
    """A PCIe switch or bridge, and the devices below it.

    ``model`` holds vendor, device, vendor and device of the subsystem.
    """

    slot: PcieSlot
    devices: tuple[Device, ...]
    model: tuple[int, int, int, int] = (0, 0, 0, 0)


Device = GpuDevice | NicDevice | PcieSwitch


@dataclass(frozen=True, slots=True)
class Socket:
    """A CPU socket or NUMA node, and the devices attached to it.

    Attributes
    ----------
    number
        Number of the NUMA node.
    vendor
        ``"intel"``, ``"amd"``, ``"zhaoxin"``, else the architecture, such as ``"arm64"``.
    family, model
        Family and model number of an x86 processor.
    devices
        Devices in the order of the file.
    affinity
        Its CPUs as Linux shows them, hexadecimal masks of 32 such as ``"0000ffff,ffff0000"``; empty
        if unknown.
    """

    number: int
    vendor: str
    devices: tuple[Device, ...]
    family: int = 6
    model: int = 0
    affinity: str = ""


@dataclass(frozen=True, slots=True)
class HostTree:
    """One node."""

    sockets: tuple[Socket, ...]


def devices_below(devices: tuple[Device, ...]) -> Iterator[Device]:
    """All devices of a part of the tree, in the order of the file."""
    for device in devices:
        yield device
        if isinstance(device, PcieSwitch):
            yield from devices_below(device.devices)


def gpus_of(host: HostTree) -> list[GpuDevice]:
    """The GPUs by rank."""
    devices = (device for socket in host.sockets for device in devices_below(socket.devices))
    return sorted(
        (device for device in devices if isinstance(device, GpuDevice)),
        key=lambda gpu: gpu.rank,
    )


def nics_of(host: HostTree) -> list[NicDevice]:
    """The NICs in the order of the file."""
    devices = (device for socket in host.sockets for device in devices_below(socket.devices))
    return [device for device in devices if isinstance(device, NicDevice)]
