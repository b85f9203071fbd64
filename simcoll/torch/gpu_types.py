"""Operators that take more types of numbers on a GPU than on a CPU, for scripts that find GPUs.

PyTorch's list of operators for its own tests (``op_db``) has the types of both. Mixtures of experts
count tokens by ``torch.histc`` of integers on GPUs, and by floating point on CPUs.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch._meta_registrations import meta_histc

from simcoll.torch.places import HOST, place_of
from simcoll.torch.rank_threads import current_thread_or_none

__all__ = ["add_kernels_of_types"]

_NARROW = {torch.float16, torch.bfloat16}
_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

# Computed in float32 and rounded at the end, as a GPU does: its sums are wider than its numbers.
_ROUNDED = (
    "avg_pool3d",
    "avg_pool3d_backward",
    "_upsample_bilinear2d_aa",
    "_upsample_bilinear2d_aa_backward",
    "multi_margin_loss",
    "multi_margin_loss_backward",
    "multilabel_margin_loss_forward",
    "multilabel_margin_loss_backward",
    "polygamma",
    "round.decimals",
)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _NARROW else value


def _is_on_host(tensor: torch.Tensor) -> bool:
    """Whether the script has put it there, where PyTorch refuses it on every computer."""
    thread = current_thread_or_none()
    return thread is not None and place_of(thread, tensor) == HOST


def _in_float32(standard: Any, *arguments: Any, **options: Any) -> Any:
    """An operator whose results have the type of its first narrow input."""
    tensors = (value for value in arguments if isinstance(value, torch.Tensor))
    narrow = next((tensor for tensor in tensors if tensor.dtype in _NARROW), None)
    if narrow is None or _is_on_host(narrow):
        return standard(*arguments, **options)
    results = standard(
        *map(_wide, arguments), **{name: _wide(value) for name, value in options.items()}
    )
    if isinstance(results, Sequence):
        return tuple(result.to(narrow.dtype) for result in results)
    return results.to(narrow.dtype)


def _count(
    standard: Any, x: torch.Tensor, bins: int = 100, lowest: float = 0, highest: float = 0
) -> torch.Tensor:
    """``torch.histc``; integers are put into bins by integer division, as on a GPU."""
    if x.dtype not in _INTEGERS or _is_on_host(x):
        result: torch.Tensor = standard(x, bins, lowest, highest)
        return result
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    values = x.flatten().long()
    low, high = int(lowest), int(highest)
    if low == high and values.numel():
        low, high = int(values.min()), int(values.max())
    if low == high:
        low, high = low - 1, high + 1
    if low > high:
        raise RuntimeError("max must be larger than min")
    values = values[(values >= low) & (values <= high)]
    places = ((values - low) * bins // (high - low)).clamp(max=bins - 1)
    return torch.bincount(places, minlength=bins).to(x.dtype)


def _count_shape(
    x: torch.Tensor, bins: int = 100, lowest: float = 0, highest: float = 0
) -> torch.Tensor:
    """The shape of counts, for fake tensors."""
    if x.dtype not in _INTEGERS:
        result: torch.Tensor = meta_histc(x, bins, lowest, highest)
        return result
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    return x.new_empty(bins)


def _standard(name: str) -> Any:
    """PyTorch's kernel for CPUs, to be called with the operator's arguments."""
    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return functools.partial(kernel.call_boxed, keys)


def add_kernels_of_types(undo: ExitStack) -> None:
    """Let PyTorch's kernels take the types that they take on GPUs, until the end."""
    library = torch.library.Library("aten", "IMPL")
    undo.callback(library._destroy)
    kernels = dict.fromkeys(_ROUNDED, _in_float32) | {"histc": _count}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the operators existed before
        for name, kernel in kernels.items():
            new = functools.partial(kernel, _standard(name))
            library.impl(name, new, "CPU", allow_override=True)
        library.impl("histc", _count_shape, "Meta", allow_override=True)
