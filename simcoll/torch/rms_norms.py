"""RMS norm of distributed tensors by the two operators of a GPU, whose rules DTensor has.

On the CPU PyTorch takes RMS norm apart, and DTensor then refuses rows that ranks share, or reduces
parts of gradients that one operator would reduce together.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch._decomp.decompositions import _fused_rms_norm_backward
from torch.distributed.tensor import DTensor

__all__ = ["add_kernel_of_rms_norm", "distributed_rms_norm"]


class _DistributedRmsNorm(torch.autograd.Function):
    """The operator of a GPU, and that of its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: DTensor, shape: list[int], weight: Any, eps: float | None) -> Any:
        ctx.shape = shape
        with torch._C._AutoDispatchBelowAutograd():  # there it is not yet taken apart
            result, deviation = torch.ops.aten._fused_rms_norm.default(x, shape, weight, eps)
        ctx.save_for_backward(x, deviation, weight)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, deviation, weight = ctx.saved_tensors
        of_tensors = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        of_x, of_weight = torch.ops.aten._fused_rms_norm_backward.default(
            gradient, x, ctx.shape, deviation, weight, of_tensors
        )
        return of_x, None, of_weight, None


def distributed_rms_norm(x: DTensor, shape: Any, weight: Any, eps: float | None) -> Any:
    """``torch.rms_norm`` of a tensor on a mesh of GPUs."""
    return _DistributedRmsNorm.apply(x, list(shape), weight, eps)


def add_kernel_of_rms_norm(undo: ExitStack) -> None:
    """Give PyTorch the backward pass on the CPU, by its own formula, until the end."""
    library = torch.library.Library("aten", "IMPL")
    undo.callback(library._destroy)
    library.impl("_fused_rms_norm_backward", _fused_rms_norm_backward, "CPU")
