"""Convert tensors to arrays on the same memory, and torch's reduction operators to simcoll's."""

from __future__ import annotations

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
_TYPE_STRINGS = {
    dtype: dtype.str if dtype.isbuiltin == 1 else f"|V{dtype.itemsize}"
    for dtype in _DTYPES.values()
}
"""As the array interface has them; those of ml_dtypes are bytes without a meaning."""
_OPERATORS: dict[Any, ReduceOp] = {
    getattr(dist.ReduceOp.RedOpType, name): getattr(ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


class _TensorArray:
    """Array interface of a tensor's memory, which it keeps; ``Tensor.numpy()`` would prevent the
    resizing that FSDP does.
    """

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, tensor: torch.Tensor, dtype: np.dtype[Any], address: int) -> None:
        # Detaching a plain tensor would pass the dispatch mode of its rank.
        plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
        self.memory = tensor.untyped_storage() if plain else tensor.detach()
        size = dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": tuple(tensor.shape),
            "strides": None
            if tensor.is_contiguous()
            else tuple([stride * size for stride in tensor.stride()]),
            "typestr": _TYPE_STRINGS[dtype],
        }


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
    address = tensor.data_ptr()
    if address == 0:
        if tensor.numel() == 0:
            return np.empty(tuple(tensor.shape), dtype)
        raise RuntimeError(
            f"a tensor of shape {list(tensor.shape)} has no memory: its storage was resized to 0"
        )
    array = np.asarray(_TensorArray(tensor, dtype, address))
    return array.view(dtype) if array.dtype.kind == "V" else array


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
    kind = getattr(op, "op", op)
    operator = _OPERATORS.get(kind)
    if operator is not None:
        return operator
    if kind.name == "PREMUL_SUM":
        return premul_sum(op.__getstate__()[1])
    return ReduceOp(kind.name)
