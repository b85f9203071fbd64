"""Kernels that a GPU has and the CPU lacks.

PyTorch chooses kernels by the device, and all tensors of a run are on the CPU. There it takes apart
what is one kernel on a GPU: RMS norm, dropout, attention with dropout or with values of another
width. Optimizers update parameters one by one, where on a GPU one operator updates all. Under a
time model and FakeTensorMode they are one kernel; RMS norm of a distributed tensor is one operator
in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.optim import optimizer
from torch.utils import _foreach_utils

from simcoll.torch.attention_work import attention_work
from simcoll.torch.operator_work import element_bytes
from simcoll.torch.rank_threads import RankThread, current_thread_or_none
from simcoll.torch.replacing import for_ranks
from simcoll.torch.rms_norms import distributed_rms_norm
from simcoll.torch.roofline import OperatorCosts
from simcoll.torch.tensor_devices import of_gpu_mesh
from simcoll.units import FS_PER_SECOND

__all__ = ["allow_fake_lists", "kernel_replacements"]

_DEVICES = "_get_foreach_kernels_supported_devices"


def kernel_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions whose kernels depend on the device."""
    return [
        (torch, "rms_norm", _rms_norm(torch.rms_norm)),
        (torch, "dropout", _dropout(torch.dropout)),
        (torch._VF, "dropout", _dropout(torch._VF.dropout)),
        (
            functional,
            "scaled_dot_product_attention",
            _attention(functional.scaled_dot_product_attention),
        ),
        (optimizer, _DEVICES, _many_at_once(getattr(optimizer, _DEVICES))),
    ]


def allow_fake_lists(undo: ExitStack) -> None:
    """Let operators that change many tensors at once take fake ones, where the device has them."""
    for types in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        if FakeTensor not in types:
            types.append(FakeTensor)
            undo.callback(types.remove, FakeTensor)


def _local(tensor: Any) -> Any:
    """The part of a distributed tensor that is on this rank."""
    return getattr(tensor, "_local_tensor", tensor)


def _costs_of(thread: RankThread, tensor: Any) -> OperatorCosts | None:
    """The rank's time model, if a tensor is fake and the model is a roofline."""
    watched = thread.process.watched
    local = getattr(_local(tensor), "elem", _local(tensor))
    if watched is None or watched.costs is None or not isinstance(local, FakeTensor):
        return None
    costs: OperatorCosts = watched.costs
    return costs


def _memory_fs(costs: OperatorCosts, nbytes: float) -> int:
    seconds = costs.roofline("fp32").elementwise(nbytes)
    return max(costs.floor_fs, round(seconds * FS_PER_SECOND))


@for_ranks
def _rms_norm(
    thread: RankThread,
    standard: Callable[..., Any],
    input: Any,  # noqa: A002  # as PyTorch names it
    normalized_shape: Any,
    weight: Any = None,
    eps: Any = None,
) -> Any:
    compute = distributed_rms_norm if of_gpu_mesh(input) else standard

    def call() -> Any:
        return compute(input, normalized_shape, weight, eps)

    costs = _costs_of(thread, input)
    if costs is None:
        return call()
    row, scale = (
        element_bytes(_local(input)),
        0 if weight is None else element_bytes(_local(weight)),
    )
    times = _memory_fs(costs, 2 * row + scale), _memory_fs(costs, 3 * row + 2 * scale)
    return thread.process.watched.one_kernel("aten::_fused_rms_norm", times, call)


@for_ranks
def _dropout(
    thread: RankThread,
    standard: Callable[..., Any],
    input: Any,  # noqa: A002  # as PyTorch names it
    p: float,
    train: bool,
) -> Any:
    def call() -> Any:
        return standard(input, p, train)

    costs = _costs_of(thread, input)
    if costs is None or not train or p == 0:
        return call()
    nbytes = 2 * element_bytes(_local(input)) + _local(input).numel()  # with a byte of mask
    times = _memory_fs(costs, nbytes), _memory_fs(costs, nbytes)
    return thread.process.watched.one_kernel("aten::native_dropout", times, call)


@for_ranks
def _attention(
    thread: RankThread,
    standard: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention as the fused kernels of a GPU compute it, which dropout takes no memory in."""
    costs = _costs_of(thread, query)
    fused = (
        torch.backends.cuda.flash_sdp_enabled() or torch.backends.cuda.mem_efficient_sdp_enabled()
    )
    taken_apart = costs is None or not fused
    rate = dropout_p if taken_apart else 0.0

    def call() -> Any:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return standard(query, key, value, attn_mask, rate, is_causal, **options)

    widths_differ = query.shape[-1] != value.shape[-1]
    if costs is None or not fused or query.dim() != 4 or not widths_differ:
        return call()
    arguments = {"query": _local(query), "key": _local(key), "value": _local(value)}
    arguments["is_causal"] = is_causal
    times = [
        costs.attention(attention_work(name, arguments), _local(query).dtype)
        for name in ("_scaled_dot_product", "_scaled_dot_product_backward")
    ]
    forward, backward = (max(costs.floor_fs, round(time * FS_PER_SECOND)) for time in times)
    watched = thread.process.watched
    return watched.one_kernel("aten::_scaled_dot_product_attention", (forward, backward), call)


@for_ranks
def _many_at_once(_thread: RankThread, standard: Callable[..., list[str]]) -> list[str]:
    """Devices on which an operator may change many tensors: fake ones count as a GPU's."""
    devices = standard()
    thread = current_thread_or_none()
    fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    timed = thread is not None and thread.process.device is not None
    return [*devices, "cpu"] if fake and timed else devices
