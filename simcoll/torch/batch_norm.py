"""``torch.nn.SyncBatchNorm`` of scripts that find GPUs: its kernels, which PyTorch has for GPUs
only, on the CPU.

What ranks send each other, and when, is PyTorch's own.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import distributed
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


def batch_norm_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what refuses the CPU."""
    batch_norm, parallel, name = (
        batchnorm.SyncBatchNorm,
        torch.nn.parallel.DistributedDataParallel,
        "_passing_sync_batchnorm_handle",
    )
    return [
        (batch_norm, "forward", _forward(batch_norm.forward)),
        (parallel, name, in_ranks(getattr(parallel, name), lambda *_: None)),
    ]
