"""Convert tensors to arrays on the same memory, and torch's reduction operators to simcoll's."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from simcoll.arrays import Array
from simcoll.distributed.api.reductions import ReduceOp, premul_sum
from simcoll.distributed.runtime.fake import fake_array

__all__ = ["array_of", "arrays_of", "reduce_op_of", "tensor_of"]

_NAMES = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
_EXTRA_NAMES = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
)
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(name) for name in _NAMES
} | {getattr(torch, name): np.dtype(getattr(ml_dtypes, name)) for name in _EXTRA_NAMES}
_OPERATORS: dict[int, ReduceOp] = {
    getattr(dist.ReduceOp.RedOpType, name).value: getattr(ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}
"""By PyTorch's number, which takes a tenth of the time that its object takes to be compared."""


class _TensorBytes(ctypes.Array[ctypes.c_char]):
    """Bytes of a tensor, which keep their storage; ``Tensor.numpy()`` would prevent the resizing
    that FSDP does.
    """

    _type_, _length_ = ctypes.c_char, 0
    storage: Any


@functools.lru_cache(maxsize=1024)
def _memory_of(size: int) -> type[_TensorBytes]:
    """The type of so many bytes of memory."""
    return type("_TensorBytes", (_TensorBytes,), {"_length_": size})


def _moved_as(tensor: torch.Tensor) -> np.dtype[Any] | None:
    """Unsigned integers of the size of a dtype that has no arithmetic: they only move."""
    size = tensor.dtype.itemsize
    return np.dtype(f"u{size}") if size in {1, 2, 4, 8} else None


def array_of(tensor: torch.Tensor, *, reduced: bool = False) -> Array:
    """View the memory of a tensor as an array, invisible to autograd.

    Dtypes that neither numpy nor ml_dtypes can add, such as scales in ``float8_e8m0fnu`` or packed
    ``float4_e2m1fn_x2``, are moved as bits, unless the elements are to be ``reduced``.

    Raises
    ------
    RuntimeError
        For a tensor that is not dense, not on the CPU, has no memory, or has a dtype that cannot be
        reduced.
    """
    fake = isinstance(tensor, FakeTensor)
    if not (tensor.is_cpu or fake) or tensor.layout is not torch.strided:
        raise RuntimeError(
            f"backend 'simcoll' moves dense tensors on the CPU; got one of layout {tensor.layout} "
            f"on {tensor.device}"
        )
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None and reduced:
        raise RuntimeError(
            f"tensors of {tensor.dtype} only move: they have no sum, and no other reduction"
        )
    if dtype is None:
        dtype = _moved_as(tensor)
    if dtype is not None and fake:
        return fake_array(tuple(tensor.shape), dtype)
    if dtype is None or tensor.is_conj() or tensor.is_neg():
        lazy = (
            " with a pending conjugation or negation; use resolve_conj() or resolve_neg()"
            if dtype is not None
            else ""
        )
        raise RuntimeError(f"backend 'simcoll' cannot move tensors of {tensor.dtype}{lazy}")
    address, count = tensor.data_ptr(), tensor.numel()
    if count == 0:
        return np.empty(tuple(tensor.shape), dtype)
    if address == 0:
        raise RuntimeError(
            f"a tensor of shape {list(tensor.shape)} has no memory: its storage was resized to 0"
        )
    strides = None if tensor.is_contiguous() else tensor.stride()
    if strides is not None:
        count = 1 + sum(
            (length - 1) * stride for length, stride in zip(tensor.shape, strides, strict=True)
        )
    memory: Any = _memory_of(count * dtype.itemsize).from_address(address)
    # Detaching a plain tensor would pass the dispatch mode of its rank.
    plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    memory.storage = tensor.untyped_storage() if plain else tensor.detach()
    if strides is not None:
        steps = tuple([stride * dtype.itemsize for stride in strides])
        return np.ndarray(tuple(tensor.shape), dtype, memory, strides=steps)
    array: Array = np.frombuffer(memory, dtype)
    return array if tensor.dim() == 1 else array.reshape(tuple(tensor.shape))


def arrays_of(tensors: Sequence[torch.Tensor], *, reduced: bool = False) -> list[Array]:
    """View the memory of each tensor as an array."""
    return [array_of(tensor, reduced=reduced) for tensor in tensors]


def tensor_of(array: Array) -> torch.Tensor:
    """View the memory of an array as a tensor."""
    name = array.dtype.name
    if name in _NAMES:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(getattr(torch, name))


def reduce_op_of(op: Any) -> ReduceOp:
    """The simcoll operator with the same name and factor."""
    if op == dist.ReduceOp.SUM:
        return ReduceOp.SUM
    kind = getattr(op, "op", op)
    operator = _OPERATORS.get(kind.value)
    if operator is not None:
        return operator
    if kind.name == "PREMUL_SUM":
        return premul_sum(op.__getstate__()[1])
    return ReduceOp(kind.name)
