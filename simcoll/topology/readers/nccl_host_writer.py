"""Writer of the tree of sockets, PCIe devices and NICs of an NCCL topology file."""

from __future__ import annotations

from collections.abc import Iterator

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
from simcoll.topology.readers.nccl_host import ANY_CPU

__all__ = ["host_lines"]

_NO_ADDRESS = "fffffff:ff:ff.0"
"""NCCL's entry for NVSwitches without addresses."""
_C2C_MBps = 44_712
"""Rate of one link of NVLink-C2C as the driver reports it."""
_VENDORS = {"intel": "GenuineIntel", "amd": "AuthenticAMD", "zhaoxin": "  Shanghai  "}
_CLASSES = {"bridge": "0x060400", "gpu": "0x030200", "ib": "0x020700", "ethernet": "0x020000"}
_MODEL = ("vendor", "device", "subsystem_vendor", "subsystem_device")


def host_lines(host: HostTree, fabric: str) -> Iterator[str]:
    """The lines of a file inside its ``<system>``; ``fabric`` is the topology's trait."""
    card = _CLASSES["ib" if fabric == "ib" else "ethernet"]
    for socket in host.sockets:
        affinity = socket.affinity or ANY_CPU
        yield f'  <cpu numaid="{socket.number}" affinity="{affinity}" {_processor(socket)}>'
        for device in socket.devices:
            yield from _device(device, "    ", card)
        yield "  </cpu>"


def _processor(socket: Socket) -> str:
    if socket.vendor not in _VENDORS:
        return f'arch="{socket.vendor}"'
    return (
        f'arch="x86_64" vendor="{_VENDORS[socket.vendor]}" familyid="{socket.family}" '
        f'modelid="{socket.model}"'
    )


def _device(device: Device, space: str, card: str) -> Iterator[str]:
    if isinstance(device, GpuDevice):
        yield f'{space}<pci {_slot(device.slot, _CLASSES["gpu"])} vendor="0x10de">'
        yield from _gpu(device, space + "  ")
    elif isinstance(device, NicDevice):
        inner = space
        if device.slot is not None:
            yield f"{space}<pci {_slot(device.slot, card)}>"
            inner += "  "
        yield f"{inner}<nic>"
        for port in device.ports:
            yield f"{inner}  {_port(port)}"
        yield f"{inner}</nic>"
        if device.slot is None:
            return
    else:
        model = "".join(
            f' {name}="0x{number:04x}"'
            for name, number in zip(_MODEL, device.model, strict=True)
            if any(device.model)
        )
        yield f"{space}<pci {_slot(device.slot, _CLASSES['bridge'])}{model}>"
        for below in device.devices:
            yield from _device(below, space + "  ", card)
    yield f"{space}</pci>"


def _slot(slot: PcieSlot, kind: str) -> str:
    return (
        f'busid="{slot.address}" class="{kind}" link_speed="{slot.speed}" link_width="{slot.lanes}"'
    )


def _gpu(gpu: GpuDevice, space: str) -> Iterator[str]:
    yield (
        f'{space}<gpu dev="{gpu.number}" sm="{gpu.capability}" rank="{gpu.rank}" '
        f'gdr="{int(gpu.gpu_direct)}">'
    )
    for bundle in gpu.nvlinks:
        switched = bundle.target == NVSWITCH
        target = _NO_ADDRESS if switched else bundle.target
        kind = "0x068000" if switched else _CLASSES["gpu"]
        yield f'{space}  <nvlink target="{target}" count="{bundle.links}" tclass="{kind}"/>'
    if gpu.cpu_link_GBps:
        rate = round(1000 * gpu.cpu_link_GBps)
        link_rate = _C2C_MBps if rate % _C2C_MBps == 0 else rate
        yield f'{space}  <c2c bw="{link_rate}" count="{rate // link_rate}"/>'
    yield f"{space}</gpu>"


def _port(port: NicPort) -> str:
    return (
        f'<net name="mlx5_{port.number}" dev="{port.number}" speed="{port.speed_mbps}" '
        f'port="{port.port}" latency="{port.latency_us:g}" guid="{_number_of(port)}" '
        f'maxconn="131072" gdr="{int(port.gpu_direct)}"/>'
    )


def _number_of(port: NicPort) -> str:
    """The identity of the card as NCCL reads it: hexadecimal."""
    return port.card if port.card.startswith("0x") else f"0x{0x1000 + port.number:x}"
