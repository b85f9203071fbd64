"""NCCL's types of paths between devices."""

from __future__ import annotations

from typing import Literal

__all__ = ["PATH_TYPES", "PathType"]

PathType = Literal["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET"]
PATH_TYPES: tuple[PathType, ...] = (
    "LOC",
    "NVL",
    "NVB",
    "C2C",
    "PIX",
    "PXB",
    "P2C",
    "PXN",
    "PHB",
    "SYS",
    "NET",
)
"""NCCL's types of paths, from the best to the worst: the GPU itself, NVLink, NVLink through another
GPU, NVLink to the CPU, one PCIe switch, several, a PCIe switch behind NVLink to the CPU, a GPU
beside the NIC, a PCIe host bridge, the link between CPUs, the network.
"""
