"""Whose code makes a call: the program's, PyTorch's, or that of this package."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

import torch

__all__ = ["TORCH", "asks_for_program", "finds_gpus", "is_program", "is_pytorch"]

TORCH = str(Path(torch.__file__).parent) + os.sep
"""The folder of PyTorch, which torchvision's and torchtitan's names also begin with."""
_TESTS = TORCH + "testing" + os.sep
_SIMCOLL = str(Path(__file__).parents[1]) + os.sep
_FIRST_FSDP = tuple(
    str(Path(TORCH, "distributed", "fsdp", name))
    for name in (
        *("fully_sharded_data_parallel.py", "sharded_grad_scaler.py", "_common_utils.py"),
        *("_exec_order_utils.py", "_flat_param.py", "_fsdp_extensions.py", "_init_utils.py"),
        *("_optim_utils.py", "_runtime_utils.py", "_shard_utils.py", "_state_dict_utils.py"),
        "_unshard_param_utils.py",
    )
)
"""The first version of FSDP, which compares devices of tensors with that of its module, and has no
kernels to choose.
"""
_CHECKPOINT = str(Path(TORCH, "distributed", "checkpoint")) + os.sep
"""Checkpoints, which copy tensors from GPUs ahead of their files."""
_ASKING = tuple(
    str(Path(TORCH, *names))
    for names in (
        ("_tensor_str.py",),
        ("distributed", "_shard"),
        ("distributed", "_state_dict_utils.py"),
        ("distributed", "tensor", "_api.py"),
        ("nn", "parameter.py"),
    )
)
"""Files and folders of PyTorch that print tensors, or make or move them by their devices, for a
program.
"""
_PASSING = (
    str(Path(TORCH, "utils", "_device.py")),
    TORCH + "overrides.py",
    TORCH + "_ops.py",
)
"""Files with modes, and with operators, that pass calls on."""


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


def asks_for_program(frame: FrameType) -> bool:
    """Whether a frame that asks a tensor for its device is the program's, or PyTorch's on behalf of
    it.
    """
    while frame.f_code.co_filename in _PASSING and frame.f_back is not None:
        frame = frame.f_back
    file = frame.f_code.co_filename
    return is_program(file) or file.startswith((_CHECKPOINT, *_ASKING, *_FIRST_FSDP))


def finds_gpus(file: str) -> bool:
    """Whether a file is to find GPUs: a program's, or that of PyTorch's checkpoints or of its first
    version of FSDP.
    """
    return not is_pytorch(file) or file.startswith((_CHECKPOINT, *_FIRST_FSDP))
