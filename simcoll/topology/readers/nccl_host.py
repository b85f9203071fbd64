"""Reader of the tree of sockets, PCIe devices and NICs in an NCCL topology file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from simcoll.errors import ConfigError
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

__all__ = ["ANY_CPU", "host_in", "whole_number_of"]

_VENDORS = {
    "GenuineIntel": "intel",
    "AuthenticAMD": "amd",
    "CentaurHauls": "zhaoxin",
    "  Shanghai  ": "zhaoxin",
}
ANY_CPU = ",".join(16 * ["ffffffff"])
"""Affinity that is written for a socket whose CPUs are not known: 512 CPUs, so that NCCL binds no
thread.

Without one, each rank of NCCL adds that of its own socket (``ncclTopoGetXmlFromCpu``) and no other,
and NCCL, which joins the files of all ranks by equal attributes, sees each socket twice.
"""
_MASKS = re.compile("[0-9a-f,]{1,255}")
"""CPUs as Linux shows them, as long as NCCL takes a value."""
_MODEL = ("vendor", "device", "subsystem_vendor", "subsystem_device")


def host_in(root: Element) -> HostTree:
    """The host that a file describes.

    Raises
    ------
    ConfigError
        When a number is not one.
    """
    counts = {"gpu": 0, "port": 0}
    return HostTree(tuple(_socket(element, counts) for element in root if element.tag == "cpu"))


def _socket(element: Element, counts: dict[str, int]) -> Socket:
    vendor = _VENDORS.get(element.get("vendor", ""), element.get("arch", "unknown"))
    affinity = element.get("affinity", "")
    return Socket(
        number=whole_number_of(element, "numaid", 0),
        vendor=vendor,
        devices=tuple(_devices(element, counts)),
        family=whole_number_of(element, "familyid", 6),
        model=whole_number_of(element, "modelid", 0),
        affinity=affinity if _MASKS.fullmatch(affinity) and affinity != ANY_CPU else "",
    )


def _devices(element: Element, counts: dict[str, int]) -> Iterator[Device]:
    for child in element:
        if child.tag == "nic":
            yield NicDevice(None, tuple(_ports(child, counts)))
        elif child.tag == "pci":
            slot = PcieSlot(
                child.get("busid", "").lower(),
                child.get("link_speed", ""),
                whole_number_of(child, "link_width", 16),
            )
            gpu, nic = child.find("gpu"), child.find("nic")
            if gpu is not None:
                yield _gpu(gpu, slot, counts)
            elif nic is not None:
                yield NicDevice(slot, tuple(_ports(nic, counts)))
            elif len(child):
                model = tuple(_hexadecimal(child.get(name, "0")) for name in _MODEL)
                yield PcieSwitch(slot, tuple(_devices(child, counts)), model)  # type: ignore[arg-type]


def _gpu(element: Element, slot: PcieSlot, counts: dict[str, int]) -> GpuDevice:
    place = counts["gpu"]
    counts["gpu"] += 1
    number = whole_number_of(element, "dev", place)
    bundles: dict[str, int] = {}
    for link in element:
        if link.tag == "nvlink":
            switch = link.get("tclass", "").startswith("0x068000")
            target = NVSWITCH if switch else link.get("target", "").lower()
            bundles[target] = bundles.get(target, 0) + whole_number_of(link, "count", 1)
    coherent = (link for link in element if link.tag == "c2c")
    return GpuDevice(
        slot=slot,
        rank=whole_number_of(element, "rank", number),
        number=number,
        capability=whole_number_of(element, "sm", 0),
        nvlinks=tuple(NvLinks(target, links) for target, links in bundles.items()),
        cpu_link_GBps=sum(
            whole_number_of(link, "count", 0) * whole_number_of(link, "bw", 0) for link in coherent
        )
        / 1000,
        gpu_direct=whole_number_of(element, "gdr", 1) != 0,
    )


def _ports(nic: Element, counts: dict[str, int]) -> Iterator[NicPort]:
    for net in nic:
        if net.tag == "net":
            number = whole_number_of(net, "dev", counts["port"])
            counts["port"] += 1
            yield NicPort(
                number=number,
                speed_mbps=whole_number_of(net, "speed", 0),
                latency_us=_decimal(net, "latency"),
                card=net.get("guid", f"device {number}"),
                port=whole_number_of(net, "port", 0),
                gpu_direct=whole_number_of(net, "gdr", 0) != 0,
            )


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _decimal(element: Element, attribute: str) -> float:
    text = element.get(attribute, "0")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ConfigError(f"<{element.tag}>: {attribute}={text[:40]!r} is not a number from 0 on")
    return value


def whole_number_of(element: Element, attribute: str, default: int) -> int:
    """A whole number in an attribute, or the default without it.

    Raises
    ------
    ConfigError
        When the attribute is something else.
    """
    text = element.get(attribute)
    if text is None:
        return default
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ConfigError(f"<{element.tag}>: {attribute}={text[:40]!r} is not a whole number")
    return int(text)
