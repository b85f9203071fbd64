"""Batch norms of scripts that find GPUs: the kernels of ``torch.nn.SyncBatchNorm``, which PyTorch
has for GPUs only, and the mixtures of types that only GPUs take, on the CPU.

What ranks send each other, and when, is PyTorch's own.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import batchnorm

from simcoll.torch.replacing import for_ranks, in_ranks

__all__ = ["add_kernels", "batch_norm_replacements"]


def _sums(x: torch.Tensor) -> torch.Tensor:
    """The sum of each channel."""
    return x.sum([0, *range(2, x.dim())])


def _along(channels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A number for each channel, in the shape of ``x``."""
    return channels.view(1, -1, *[1] * (x.dim() - 2))


def _wide(x: torch.Tensor) -> torch.Tensor:
    """The type that means are computed in."""
    return x if x.dtype is torch.float64 else x.float()


def _stats(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    x = _wide(x)
    count = x.numel() // x.shape[1]
    mean = _sums(x) / count
    return mean, (_sums((x - _along(mean, x)).square()) / count + eps).rsqrt()


def _gather_statistics(
    _x: torch.Tensor,
    means: torch.Tensor,
    inverses: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_variance: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    weights, total = counts.to(means.dtype)[:, None], counts.sum()
    mean = (weights * means).sum(0) / total
    squares = weights * (inverses.square().reciprocal() - eps + (means - mean).square())
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_variance is not None:
        running_variance.lerp_((squares.sum(0) / (total - 1)).to(running_variance.dtype), momentum)
    return mean, (squares.sum(0) / total + eps).rsqrt()


def _normalize(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    inverse: torch.Tensor,
    _eps: float,
) -> torch.Tensor:
    y = (_wide(x) - _along(mean, x)) * _along(inverse, x)
    y = y if weight is None else y * _along(weight, x)
    return (y if bias is None else y + _along(bias, x)).to(x.dtype)


def _backward_sums(
    gradient: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    inverse: torch.Tensor,
    weight: torch.Tensor | None,
    *_: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    wide = _wide(gradient)
    total, product = _sums(wide), _sums(wide * (_wide(x) - _along(mean, x)))
    like = total if weight is None else weight
    return total, product, (product * inverse).to(like.dtype), total.to(like.dtype)


def _backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    inverse: torch.Tensor,
    weight: torch.Tensor | None,
    total: torch.Tensor,
    product: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    count = counts.sum()
    slope = (_wide(x) - _along(mean, x)) * _along(inverse.square() * product / count, x)
    factor = inverse if weight is None else inverse * weight
    return ((_wide(gradient) - _along(total / count, x) - slope) * _along(factor, x)).to(
        gradient.dtype
    )


_KERNELS = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats_with_counts": _gather_statistics,
    "batch_norm_elemt": _normalize,
    "batch_norm_backward_reduce": _backward_sums,
    "batch_norm_backward_elemt": _backward,
}


def add_kernels(undo: ExitStack) -> None:
    """Give PyTorch the kernels until the end."""
    library = torch.library.Library("aten", "IMPL")
    undo.callback(library._destroy)
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, "CPU")


@for_ranks
def _forward(_thread: Any, _standard: Any, self: Any, x: torch.Tensor) -> Any:
    """``SyncBatchNorm.forward``, which refuses tensors of the CPU."""
    group = (
        (self.process_group or distributed.group.WORLD) if distributed.is_initialized() else None
    )
    size = 1 if group is None else distributed.get_world_size(group)
    if not self.training or size == 1:
        return batchnorm._BatchNorm.forward(self, x)
    self._check_input_dim(x)
    self._check_non_zero_input_channels(x)
    momentum = 0.0 if self.momentum is None else self.momentum
    if self.track_running_stats:
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / self.num_batches_tracked.item() if self.momentum is None else momentum
    means, variances = (
        (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
    )
    return batchnorm.sync_batch_norm.apply(
        x, self.weight, self.bias, means, variances, self.eps, momentum, group, size
    )


_NARROW = {torch.bfloat16: "BFloat16", torch.float16: "Half"}
_NAMES = {**_NARROW, torch.float32: "Float", torch.float64: "Double"}


@for_ranks
def _mixture(
    _thread: Any,
    standard: Any,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    means: torch.Tensor | None,
    variances: torch.Tensor | None,
    training: bool,
    *numbers: Any,
) -> torch.Tensor:
    """``torch.batch_norm`` of 16 bits whose running statistics have another type than its weights,
    as ``fully_shard`` leaves them: a GPU converts them, and the CPU refuses.
    """
    inputs = x, weight, bias, means, variances
    types = [tensor.dtype for tensor in inputs[1:] if tensor is not None]
    expected = x.dtype if x.dtype in types[:1] else torch.float32
    if (
        x.dtype not in _NARROW
        or means is None
        or variances is None
        or means.dtype == expected
        or any(tensor.dtype != expected for tensor in (weight, bias) if tensor is not None)
        or isinstance(x, FakeTensor)
    ):
        result: torch.Tensor = standard(*inputs, training, *numbers)
        return result
    statistics = means.float(), variances.float()
    wide = (None if tensor is None else tensor.float() for tensor in (weight, bias))
    result = standard(x, *wide, *statistics, training, *numbers)
    for running, new in zip((means, variances), statistics, strict=True):
        if training and new is not running:
            running.copy_(new)
    if x.requires_grad and result.requires_grad and not _has_channels_last(x):
        message = (
            f"Expected running_mean to have type {_NAMES[expected]} but got "
            f"{_NAMES.get(means.dtype, means.dtype)}"
        )

        def refuse(_gradient: torch.Tensor) -> None:
            raise RuntimeError(message)

        result.register_hook(refuse)
    return result


def _has_channels_last(x: torch.Tensor) -> bool:
    """Whether a GPU takes its kernels for channels that are next to each other; only the backward
    pass of its others checks types.
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return (x.is_contiguous() and x.stride(1) == 1) or (
        x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()])
    )


def batch_norm_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what refuses the CPU."""
    batch_norm, parallel, name = (
        batchnorm.SyncBatchNorm,
        torch.nn.parallel.DistributedDataParallel,
        "_passing_sync_batchnorm_handle",
    )
    return [
        (torch, "batch_norm", _mixture(torch.batch_norm)),
        (batch_norm, "forward", _forward(batch_norm.forward)),
        (parallel, name, in_ranks(getattr(parallel, name), lambda *_: None)),
    ]
