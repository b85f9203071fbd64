"""Whose code makes a call: the program's, PyTorch's, or that of this package."""

from __future__ import annotations

import os
from pathlib import Path

import torch

__all__ = ["TORCH", "is_program", "is_pytorch"]

TORCH = str(Path(torch.__file__).parent) + os.sep
"""The folder of PyTorch, which torchvision's and torchtitan's names also begin with."""
_TESTS = TORCH + "testing" + os.sep
_SIMCOLL = str(Path(__file__).parents[1]) + os.sep


def is_pytorch(file: str) -> bool:
    """Whether a file is PyTorch's; its tests, and its tools for them, are programs.

    Examples
    --------
    >>> is_pytorch(torch.__file__), is_pytorch("/site-packages/torchvision/ops.py")
    (True, False)
    """
    return file.startswith(TORCH) and not file.startswith(_TESTS)


def is_program(file: str) -> bool:
    """Whether a file is the program's.

    Examples
    --------
    >>> is_program(torch.__file__), is_program("/home/ada/train.py")
    (False, True)
    """
    return not (file.startswith(_SIMCOLL) or is_pytorch(file))
