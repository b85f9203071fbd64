"""Completion of a topology file as NCCL does at run time, from given facts: GPUs, NVLinks, network
ports.

The files that clouds publish for ``NCCL_TOPO_FILE`` list only PCIe devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement

from simcoll.errors import ConfigError

__all__ = ["Facts", "complete"]

UBPS_PER_MBPS = 10**12 // 8
FS_PER_US = 10**9
_SWITCHES = {"target": "fffffff:ffff:ff", "tclass": "0x068000"}
"""NCCL's entry for the NVSwitches of a virtual machine, which have no addresses."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that a file omits.

    Attributes
    ----------
    sm
        Compute capability of the GPUs, such as 80.
    nvlinks
        Number of NVLinks from each GPU to NVSwitches.
    links
        GPU, GPU, and the number of NVLinks that join the two directly.
    nic_uBps
        Rate of each network device.
    nic_latency_fs
        The latency that NCCL's network plugin reports.
    """

    sm: int | None = None
    nvlinks: int | None = None
    links: Sequence[tuple[int, int, int]] | None = None
    nic_uBps: int | None = None
    nic_latency_fs: int = 0


def complete(root: Element, facts: Facts) -> None:
    """Add missing GPUs, given NVLinks, and missing ports of network devices.

    Raises
    ------
    ConfigError
        For a missing fact, and links of GPUs that do not exist.
    """
    devices = [
        device
        for device in root.iter("pci")
        if device.find("gpu") is None and device.find("nic") is None and not len(device)
    ]
    gpus = [device for device in root.iter("pci") if device.find("gpu") is not None]
    if not gpus:
        displays = _of_class(devices, "0x03")
        if facts.sm is None or not displays:
            raise ConfigError(_missing(displays))
        if facts.nvlinks is None and facts.links is None:
            raise ConfigError(
                "missing: how many NVLinks each GPU has to NVSwitches, 0 for none; or gpu.links, "
                "such as [[0, 1, 12]]",
                path="$.nvlink.count",
            )
        for number, device in enumerate(displays):
            SubElement(
                device, "gpu", {"dev": str(number), "sm": str(facts.sm), "rank": str(number)}
            )
        gpus = displays
        _add_ports(_of_class(devices, "0x02"), facts)
    else:
        stated = {
            "gpu.sm": facts.sm is not None,
            "nic.bandwidth": facts.nic_uBps is not None,
            "nic.latency": facts.nic_latency_fs > 0,
        }
        for key in (key for key, is_stated in stated.items() if is_stated):
            raise ConfigError(
                "a full dump states this; only files without <gpu> elements omit it",
                path=f"$.{key}",
            )
    if facts.nvlinks is not None or facts.links is not None:
        _replace_links(gpus, facts)


def _of_class(devices: Sequence[Element], prefix: str) -> list[Element]:
    """The devices of a class by PCI address, as drivers number them."""
    members = [device for device in devices if device.get("class", "").lower().startswith(prefix)]
    return sorted(members, key=lambda device: device.get("busid", "").lower())


def _add_ports(devices: Sequence[Element], facts: Facts) -> None:
    if devices and facts.nic_uBps is None:
        raise ConfigError(
            f"missing: the file has {len(devices)} network devices but not their speed, such as "
            "'25 GB/s'",
            path="$.nic.bandwidth",
        )
    for number, device in enumerate(devices):
        speed = str((facts.nic_uBps or 0) // UBPS_PER_MBPS)
        SubElement(
            SubElement(device, "nic"),
            "net",
            {
                "name": f"net{number}",
                "dev": str(number),
                "speed": speed,
                "latency": f"{facts.nic_latency_fs / FS_PER_US:g}",
                "gdr": "1",  # as on the machines that such files describe
            },
        )


def _replace_links(gpus: Sequence[Element], facts: Facts) -> None:
    """Replace the file's NVLinks by the given ones; GPUs are identified by their ranks there."""
    elements = [gpu for device in gpus for gpu in device.iter("gpu")]
    by_rank = {
        gpu.get("rank", str(place)): (gpu, device)
        for place, (gpu, device) in enumerate(zip(elements, gpus, strict=True))
    }
    for gpu in elements:
        for link in [child for child in gpu if child.tag in {"nvlink", "xgmi"}]:
            gpu.remove(link)
        if facts.nvlinks:
            SubElement(gpu, "nvlink", {**_SWITCHES, "count": str(facts.nvlinks)})
    for a, b, count in facts.links or ():
        if a == b or not {str(a), str(b)} <= by_rank.keys() or count < 1:
            raise ConfigError(
                f"[{a}, {b}, {count}]: expected two GPUs of 0 to {len(elements) - 1}, and how many "
                "NVLinks join them",
                path="$.gpu.links",
            )
        for gpu_rank, peer_rank in ((a, b), (b, a)):
            target = by_rank[str(peer_rank)][1].get("busid", "")
            SubElement(
                by_rank[str(gpu_rank)][0],
                "nvlink",
                {"target": target, "count": str(count), "tclass": "0x030200"},
            )


def _missing(displays: Sequence[Element]) -> str:
    content = (
        f"{len(displays)} GPU devices (class 0x03) but no <gpu> elements"
        if displays
        else "no <gpu> elements, nor devices of class 0x03"
    )
    advice = (
        "say what it leaves out: gpu.sm, such as 80, nvlink.count (of each GPU to NVSwitches), "
        "nic.bandwidth; or "
        if displays
        else ""
    )
    return (
        f"{content}: GPUs, NVLinks and network ports are missing. "
        "Such files are input for NCCL_TOPO_FILE, which NCCL completes at run time; "
        f"{advice}run any NCCL program on the machine with NCCL_TOPO_DUMP_FILE=dump.xml, and give "
        "that"
    )
