"""Link speeds by generation, from ``src/graph/topo.h`` and ``topo.cc`` of NCCL and RCCL, with the
line rates.
"""

from __future__ import annotations

from fractions import Fraction

__all__ = ["SLOTS", "XGMI", "nvlink", "pcie_rate", "rate_between_sockets"]

# Units of 100 Mbit/s per lane, by the start of link_speed; an unknown speed counts as Gen3.
_LANE = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
# Least compute capability -> line rate of one NVLink and the rate that NCCL expects, in GB/s, and
# the generation.
_NVLINK = (
    (100, Fraction(50), Fraction("40.1"), "blackwell"),
    (90, Fraction(25), Fraction("20.6"), "hopper"),
    (86, Fraction("14.0625"), Fraction(12), "ampere"),
    (80, Fraction(25), Fraction(20), "ampere"),
    (70, Fraction(25), Fraction(20), "volta"),
    (60, Fraction(20), Fraction(18), "pascal"),
    (0, Fraction(20), Fraction(18), "before pascal"),
)
XGMI = {
    "906": (Fraction(25), Fraction(24), "gcn5"),
    "908": (Fraction(25), Fraction(24), "cdna"),
    "910": (Fraction(50), Fraction(36), "cdna2"),
    "gfx90a": (Fraction(50), Fraction(36), "cdna2"),
    "gfx940": (Fraction(64), Fraction(48), "mi300"),
    "gfx941": (Fraction(64), Fraction(48), "mi300"),
    "gfx942": (Fraction(64), Fraction(48), "mi300"),
    "gfx950": (Fraction("76.8"), Fraction(48), "mi355"),
}
"""gcn attribute of AMD GPUs -> line rate of one xGMI link and the rate that RCCL expects, in GB/s,
and the generation.
"""

SLOTS = {
    "volta": "15.75 GB/s",
    "turing": "15.75 GB/s",
    "ampere": "31.5 GB/s",
    "hopper": "63 GB/s",
    "mi300": "63 GB/s",
}
"""PCIe bandwidth with 16 lanes by GPU generation: 3.0, 4.0 and 5.0 (PCI-SIG: 8, 16 and 32 GT/s,
128b/130b). Blackwell has 5.0, and 6.0 behind NICs of 800 Gb/s.
"""


def nvlink(compute_capability: int) -> tuple[Fraction, Fraction, str]:
    """Line rate of one NVLink and the rate that NCCL expects, in GB/s, and the generation of the
    GPU.

    >>> nvlink(75)[2]
    'volta'
    """
    return next(row[1:] for row in _NVLINK if compute_capability >= row[0])


def pcie_rate(lanes: int, link_speed: str) -> Fraction:
    """The rate that NCCL expects of a PCIe link, in GB/s.

    >>> float(pcie_rate(16, "32.0 GT/s PCIe"))
    48.0
    """
    return Fraction(
        lanes * _LANE.get(link_speed.split(" ", maxsplit=1)[0].removesuffix(".0"), 60), 80
    )


def rate_between_sockets(vendor: str, model: int) -> int:
    """The rate that NCCL expects between two sockets, in GB/s, by the vendor of the CPU and Intel's
    model number.

    >>> rate_between_sockets("intel", 143), rate_between_sockets("amd", 1)
    (22, 16)
    """
    if vendor != "intel":
        return {"amd": 16, "ppc64": 32}.get(vendor, 6)
    if model >= 0xCF:
        return 40
    if model >= 0x8F:
        return 22
    return 10 if model >= 0x55 else 6
