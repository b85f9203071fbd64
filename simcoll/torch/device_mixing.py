"""Operators on tensors of several devices, which PyTorch refuses on GPUs.

All tensors are on the CPU here, so that an operator takes those that a script has placed on the
host and those on a GPU. Whether PyTorch would take them is its own answer: the call is played on
fake tensors, which have devices and no elements.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from simcoll.torch.callers import TORCH, is_pytorch
from simcoll.torch.places import HOST, Places
from simcoll.torch.rank_threads import RankThread

__all__ = ["DeviceMixing"]

_PASSING = tuple(
    str(Path(TORCH, name))
    for name in ("overrides.py", "functional.py", "_tensor.py", "_VF.py", "nn/functional.py")
)
"""Files that pass a call of a program, or of a module, on to an operator."""
_MODULES = str(Path(TORCH, "nn", "modules"))
_LOSSES = str(Path(_MODULES, "loss.py"))
_REFUSAL = "Expected all tensors to be on the same device"


class DeviceMixing:
    """Notes a finding for each line of a rank's program that mixes devices.

    Parameters
    ----------
    places
        The places of the rank's tensors.
    """

    def __init__(self, thread: RankThread, places: Places) -> None:
        self._thread = thread
        self._places = places
        self._lines: set[tuple[Any, str, int]] = set()

    def check(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Note a call with tensors of several places, unless PyTorch would take it."""
        frame = _calling_frame()
        line = func, frame.f_code.co_filename, frame.f_lineno
        if line in self._lines or not self._is_of_program(frame, args):
            return
        self._lines.add(line)
        if not self._refuses(func, args, kwargs):
            return
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        listed = ", ".join(
            f"{self._name_of_place(tensor)} (shape {list(tensor.shape)})" for tensor in tensors
        )
        name = getattr(func, "__name__", str(func))
        reason = f"{_REFUSAL}, and these are on {listed}: PyTorch refuses it on GPUs"
        self._thread.tell(f"devices: {name}", reason)

    def _name_of_place(self, tensor: torch.Tensor) -> str:
        """The place in words that are those of all ranks; an unknown one is the rank's GPU."""
        place, current = self._places.get(tensor), torch.cuda.current_device()
        return "the host" if place == HOST else "a GPU" if place in {None, current} else "another"

    def _is_of_program(self, frame: FrameType, args: Sequence[Any]) -> bool:
        """Whether the tensors on the host are the program's.

        Parameters and buffers that a script makes on the host may be moved by PyTorch, as
        ``fully_shard`` does, so that of a module's call only what it is given counts.
        """
        file = frame.f_code.co_filename
        if not is_pytorch(file) or file == _LOSSES:
            return True
        return file.startswith(_MODULES) and bool(args) and self._places.get(args[0]) == HOST

    def _refuses(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bool:
        def fake(tensor: torch.Tensor) -> torch.Tensor:
            device = _device_of(self._places.get(tensor))
            size, stride = tensor.shape, tensor.stride()
            return torch.empty_strided(size, stride, dtype=tensor.dtype, device=device)

        with _disable_current_modes(), torch.no_grad(), FakeTensorMode():
            try:
                operands = tree_map_only(torch.Tensor, fake, (tuple(args), dict(kwargs)))
                func(*operands[0], **operands[1])
            except Exception as error:  # noqa: BLE001  # the real call raises what is the program's
                return _REFUSAL in str(error) or "have the same device type" in str(error)
        return False


def _device_of(place: int | None) -> str:
    """A tensor of unknown place is a GPU's, the current one."""
    if place == HOST:
        return "cpu"
    return f"cuda:{torch.cuda.current_device() if place is None else place}"


def _calling_frame() -> FrameType:
    """The frame that calls the function that a mode sees."""
    frame = sys._getframe(3)
    while frame.f_back is not None and frame.f_code.co_filename in _PASSING:
        frame = frame.f_back
    return frame
