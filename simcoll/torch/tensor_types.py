"""The types of tensors of PyTorch's first versions, such as ``torch.cuda.FloatTensor``, which name
a device and a dtype.
"""

from __future__ import annotations

from typing import Any

import torch

from simcoll.torch.places import HOST
from simcoll.torch.rank_threads import Process, RankThread, current_thread_or_none
from simcoll.torch.replacing import for_ranks

__all__ = ["place_and_dtype", "tensor_type_replacements"]

_NAMES = (
    "Float",
    "Double",
    "Half",
    "BFloat16",
    "Byte",
    "Char",
    "Short",
    "Int",
    "Long",
    "Bool",
)
_HOST_TYPE = type(torch.FloatTensor)
_ON_GPUS = "torch.cuda."


class _GpuTensorType(type):
    """The type of ``torch.cuda.FloatTensor`` and its kind: calls make tensors on the current GPU of
    a rank.
    """

    on_host: Any
    on_gpu: Any
    dtype: torch.dtype
    is_cuda = True

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        thread = current_thread_or_none()
        if thread is None:
            return cls.on_gpu(*args, **kwargs)
        tensor = cls.on_host(*args, **kwargs)
        thread.process.places.note(tensor, thread.process.cuda_device)
        return tensor

    def __instancecheck__(cls, value: object) -> bool:
        if not isinstance(value, torch.Tensor) or value.dtype != cls.dtype:
            return False
        thread = current_thread_or_none()
        return isinstance(value, cls.on_gpu) or (
            thread is not None and thread.process.places.is_on_gpu(value)
        )


def _gpu_type(name: str) -> _GpuTensorType:
    on_host, on_gpu = getattr(torch, name), getattr(torch.cuda, name)
    fields = {"on_host": on_host, "on_gpu": on_gpu, "dtype": on_host.dtype}
    return _GpuTensorType(name, (), {**fields, "__module__": "torch.cuda"})


def place_and_dtype(process: Process, type_or_dtype: Any) -> tuple[int | None, Any]:
    """The place that a type of tensors names, and what ``Tensor.type`` takes for its dtype; the
    place is None for a dtype.

    Parameters
    ----------
    type_or_dtype
        A type, its name, or a dtype.
    """
    if isinstance(type_or_dtype, _GpuTensorType):
        return process.cuda_device, type_or_dtype.dtype
    if isinstance(type_or_dtype, _HOST_TYPE):
        return HOST, type_or_dtype.dtype
    if not isinstance(type_or_dtype, str) or not type_or_dtype.startswith("torch."):
        return None, type_or_dtype
    if type_or_dtype.startswith(_ON_GPUS):
        return process.cuda_device, "torch." + type_or_dtype.removeprefix(_ON_GPUS)
    return HOST, type_or_dtype


@for_ranks
def _set_default_tensor_type(thread: RankThread, standard: Any, t: Any) -> None:
    """``torch.set_default_tensor_type``: the device and the dtype of what is made without them."""
    place, type_or_dtype = place_and_dtype(thread.process, t)
    standard(
        t.on_host if isinstance(t, _GpuTensorType) else type_or_dtype if isinstance(t, str) else t
    )
    if place is not None and thread.process.places is not None:
        thread.process.places.of_default_type = place
        torch.set_default_device("cpu" if place == HOST else "cuda")


def tensor_type_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the types on GPUs, and of what takes a type."""
    return [
        *((torch.cuda, f"{name}Tensor", _gpu_type(f"{name}Tensor")) for name in _NAMES),
        (
            torch,
            "set_default_tensor_type",
            _set_default_tensor_type(torch.set_default_tensor_type),
        ),
    ]
