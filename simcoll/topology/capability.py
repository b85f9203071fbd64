"""Compute capability of GPUs: NVIDIA's number of a chip's features, by which NCCL chooses its
constants.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["GENERATIONS_OF_NVIDIA", "compute_capability"]

_BY_GPU = {
    "V100": 70,
    "T4": 75,
    "RTX 2080 Ti": 75,
    "A100": 80,
    "A800": 80,
    "A30": 80,
    "A10": 86,
    "A40": 86,
    "RTX A6000": 86,
    "RTX 3090": 86,
    "L4": 89,
    "L40": 89,
    "L40S": 89,
    "RTX 4090": 89,
    "RTX 6000 Ada": 89,
    "H100": 90,
    "H200": 90,
    "H800": 90,
    "H20": 90,
    "GH200": 90,
    "B200": 100,
    "GB200": 100,
    "B300": 103,
    "GB300": 103,
    "RTX 5090": 120,
    "RTX PRO 6000": 120,
    "GB10": 121,
}
"""By model: developer.nvidia.com/cuda-gpus."""
GENERATIONS_OF_NVIDIA = {"pascal": 60, "volta": 70, "ampere": 80, "hopper": 90, "blackwell": 100}
"""Generations, with the compute capability of the first GPU of data centres: that of models which
are not listed.
"""


def compute_capability(traits: Mapping[str, str]) -> int:
    """The compute capability of a topology's GPUs, such as 90; 0 for others than NVIDIA's.

    By the trait ``gpu``, a model or, of a dump, a chip such as ``sm89``; else by ``generation``.

    >>> compute_capability({"gpu": "RTX 2080 Ti", "generation": "volta"})
    75
    >>> compute_capability({"gpu": "sm89"}), compute_capability({"gpu": "MI300X"})
    (89, 0)
    """
    gpu = traits.get("gpu", "")
    if gpu.startswith("sm") and gpu[2:].isdecimal():
        return int(gpu[2:])
    by_generation = GENERATIONS_OF_NVIDIA.get(traits.get("generation", ""), 0)
    return _BY_GPU.get(gpu, by_generation)
