"""Keys of PyTorch's cache of fake operators, in a sixth of the time.

Under ``FakeTensorMode`` PyTorch answers an operator from a cache, whose key says all of its
arguments. Where they are tensors and numbers, composing it takes a third of the time of the
operator, most of it for walking through the fields of a record for every tensor. The key here holds
the same values, so operators share an answer exactly if they would there. It also tells which calls
take the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from simcoll.torch.rank_threads import rank_thread_of

__all__ = ["UNSEEN", "key_replacements"]

UNSEEN = object()
"""Stands for the key of an operator that has yet to reach the cache."""

_HASHED = frozenset(
    (
        *(int, float, bool, str, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    )
)
"""Types of arguments that stand for themselves, beside their type: 1 and 1.0 are equal."""


def key_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the functions that make a key and add arguments to it."""
    standard, standard_key = FakeTensorMode._prep_args_for_hash, FakeTensorMode._cache_key

    def add_arguments(mode: FakeTensorMode, result: list[Any], args: Any, *records: Any) -> None:
        begin = len(result)
        if not _add(mode, result, args):
            del result[begin:]
            standard(mode, result, args, *records)

    def make_key(*args: Any) -> Any:
        thread = rank_thread_of()
        watch = None if thread is None else thread.process.watched
        if watch is None or watch.key is not UNSEEN:  # one inside the operator that is watched
            return standard_key(*args)
        watch.key = None
        watch.key = key = standard_key(*args)
        return key

    return [
        (FakeTensorMode, "_prep_args_for_hash", add_arguments),
        (FakeTensorMode, "_cache_key", make_key),
    ]


def _add(mode: FakeTensorMode, result: list[Any], args: Any) -> bool:
    """Add arguments; False for those that take more than tensors and numbers."""
    kind = type(args)
    if kind is dict:
        result += kind, len(args), *args
        args = args.values()
    else:
        result += kind, len(args)
    add: Callable[[Any], None] = result.append
    for arg in args:
        kind = type(arg)
        if kind is FakeTensor:
            if arg.fake_mode is not mode or arg.constant is not None:
                return False
            fields = _fields_of(arg)
            if fields is None:
                return False
            add(fields)
        elif kind in _HASHED:
            add(kind)
            add(arg)
        elif (kind is not list and kind is not tuple) or not _add(mode, result, arg):
            return False
    return True


def _fields_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """All that PyTorch tells fake tensors apart by; None for sparse tensors and symbolic sizes."""
    if tensor.layout is not torch.strided or tensor._has_symbolic_sizes_strides:
        return None
    offset, storage_bytes = tensor.storage_offset(), tensor.untyped_storage().nbytes()
    if type(offset) is not int or type(storage_bytes) is not int:  # a part of a symbolic tensor
        return None
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),  # these two say the memory format
        tensor.device,
        offset,
        storage_bytes,
        tensor.requires_grad,
        tensor.is_quantized,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    )
