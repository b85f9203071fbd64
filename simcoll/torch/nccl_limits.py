"""Calls that NCCL would refuse, or answer differently, in groups of the backend named nccl.

The emulator accepts them, and notes a finding for each kind and line. The rules are those of
PyTorch's ``ProcessGroupNCCL``: its checks of tensors, its tables of data types and of reductions,
and its point-to-point messages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from simcoll.torch.callers import TORCH, is_pytorch
from simcoll.torch.places import HOST, place_of
from simcoll.torch.rank_threads import RankThread

__all__ = ["NcclLimits"]

_DTYPES = frozenset(
    getattr(torch, name)
    for name in (
        *("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
)
_SCALED = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
_BITWISE = ("BAND", "BOR", "BXOR")
_CALLS = (
    str(Path(__file__).parents[1]),
    *(
        str(Path(TORCH, "distributed", f"{name}.py"))
        for name in ("distributed_c10d", "c10d_logger")
    ),
    TORCH + "overrides.py",
)
_LISTS = ("all_gather outputs", "reduce_scatter inputs")
"""Lists of tensors that PyTorch copies from or to one buffer, so they need not be contiguous."""


class NcclLimits:
    """The limits of NCCL, for one rank's handle of a group.

    Parameters
    ----------
    users
        By device of a node, the rank of the group that uses it: shared by its ranks.
    """

    def __init__(self, thread: RankThread, users: dict[tuple[str, str], int]) -> None:
        self._thread = thread
        self._users = users
        self._bound: int | None = None

    def connect(self, device: torch.device) -> None:
        """Note the device that the group is bound to, on which NCCL connects the ranks at once."""
        self._bound = device.index
        self._note_sharing("device_id", self._bound)

    def check(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        op: Any = None,
    ) -> None:
        """Note what NCCL would do differently in a collective, or in a message."""
        tensors = [*inputs, *outputs]
        self._note(name, _of_dtypes(tensors))
        self._note(name, self._of_places(inputs, outputs))
        self._note(name, self._of_devices(name, tensors))
        sides = (("inputs", inputs), ("outputs", outputs))
        direct = [part for side, part in sides if f"{name} {side}" not in _LISTS]
        if not all(_is_contiguous(tensor) for part in direct for tensor in part):
            if name in {"send", "recv"}:
                self._note(name, ["a tensor is not contiguous: NCCL moves its memory as it lies"])
            else:
                self._note(name, ["Tensors must be contiguous, and one is not"])
        if op is not None:
            self._note(name, _of_reduction(op, inputs))

    def check_message(self, name: str, tensor: torch.Tensor, tag: int, *, any_source: bool) -> None:
        """Note what NCCL would do differently in a send or receive."""
        self.check(name, [tensor], [])
        if any_source:
            self._note(name, ["NCCL does not receive from any rank: name the source"])
        if tag:
            self._note(
                name,
                ["NCCL ignores tags: it matches sends and receives in their order"],
            )

    def refuse(self, name: str, reason: str) -> None:
        """Note a function that NCCL does not have."""
        self._note(name, [reason])

    def _of_places(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Iterator[str]:
        for side, tensors in (("input", inputs), ("output", outputs)):
            for position, tensor in enumerate(tensors, 1):
                argument = side if len(tensors) == 1 else f"{side} {position} of {len(tensors)}"
                if tensor.layout is not torch.strided:
                    yield f"Tensors must be CUDA and dense, and the {argument} is sparse"
                    return
                if place_of(self._thread, tensor) == HOST and _called_by_program():
                    yield f"Tensors must be CUDA and dense, and the {argument} is on the host"
                    return

    def _of_devices(self, name: str, tensors: Sequence[torch.Tensor]) -> Iterator[str]:
        places = [place_of(self._thread, tensor) for tensor in tensors]
        for place in dict.fromkeys(places):
            if place is None or place == HOST:
                continue
            if self._bound is None:
                self._note_sharing(name, place)
            elif place != self._bound:
                yield (
                    f"Attempt to perform collective on tensor not on device passed to "
                    f"init_process_group: it is on cuda:{place}, and device_id was "
                    f"cuda:{self._bound}"
                )

    def _note_sharing(self, name: str, number: int) -> None:
        """Note, once for the run, a device that another rank uses too."""
        environment = self._thread.process.environment
        visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        device = visible[number] if number < len(visible) and visible[number] else str(number)
        key = environment["GROUP_RANK"], device
        rank = self._users.setdefault(key, self._thread.number)
        if rank != self._thread.number:
            lower, higher = sorted((rank, self._thread.number))
            reason = (
                f"ranks {lower} and {higher} both use device {device} of their "
                "node, which NCCL refuses: call torch.cuda.set_device(LOCAL_RANK) first"
            )
            self._thread.tell(f"nccl: {name}", reason, of_run=True)

    def _note(self, name: str, reasons: Sequence[str] | Iterator[str]) -> None:
        for reason in reasons:
            self._thread.tell(f"nccl: {name}", reason)


def _called_by_program() -> bool:
    """Whether the program itself calls a function of torch.distributed; PyTorch places the tensors
    of its own calls by devices that are the CPU here.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_CALLS):
        if "object" in frame.f_code.co_name:  # which it moves itself
            return False
        frame = frame.f_back
    return frame is not None and not is_pytorch(frame.f_code.co_filename)


def _is_contiguous(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout)


def _of_dtypes(tensors: Sequence[torch.Tensor]) -> Iterator[str]:
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        if dtype not in _DTYPES:
            yield f"data type {dtype} is not supported by NCCL"
    for tensor in tensors:
        base = tensor._base
        as_pairs = base is not None and base.is_complex() and not tensor.is_complex()
        if as_pairs and _called_by_program():  # PyTorch's own calls are those that take pairs
            yield (
                f"data type {base.dtype} is not supported by NCCL: PyTorch passes pairs of real "
                "numbers here, and refuses it in reduce, gather and reduce_scatter"
            )
            break


def _of_reduction(op: Any, inputs: Sequence[torch.Tensor]) -> Iterator[str]:
    kind = getattr(op, "op", op).name
    dtypes = {tensor.dtype for tensor in inputs}
    if kind in _BITWISE:
        yield f"Cannot use ReduceOp.{kind} with NCCL"
    if kind == "AVG" and torch.bool in dtypes:
        yield "Cannot use ReduceOp.AVG with Boolean inputs"
    if kind == "PREMUL_SUM" and not dtypes <= _SCALED:
        yield "PREMUL_SUM is for float16, bfloat16, float32 and float64"
    if kind in {"MIN", "MAX"} and any(_has_nan(tensor) for tensor in inputs):
        yield f"ReduceOp.{kind} of NaN: NCCL may drop it, and the emulator returns it"


def _has_nan(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, FakeTensor) or tensor.dtype not in _SCALED:
        return False
    with torch._C._DisableTorchDispatch():
        return bool(tensor.detach().isnan().any())
