"""A rule that DTensor lacks: attention on the CPU, where CUDA devices are mapped to it.

A GPU would take the flash or the efficient kernel, for which DTensor has rules; on the CPU PyTorch takes another one.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

__all__ = ["add_sharding_rules"]

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _attention(*given: Any, attn_mask: Any = None, scale: Any = None) -> list[tuple[list[Any], list[Any]]]:  # noqa: ARG001
    """Batches and heads may be sharded, by all tensors alike, unless a mask differs between them.

    DTensor moves no tensors that are given by name, so a mask stays as it is: whole.
    Tensors are what is given before the probability of dropout; those of the forward pass give two results, of the backward pass three.
    """
    tensors = [each for each in given if hasattr(each, "shape")]
    results = 2 if len(tensors) == 3 else 3
    rest = [None] * (len(given) - len(tensors))
    rules = []
    for place in (Replicate(), Shard(0), Shard(1)):
        inputs: list[Any] = [place] * len(tensors) + rest
        if attn_mask is not None:
            dimension = len(attn_mask.shape) - 4 + place.dim if isinstance(place, Shard) else -1
            if dimension >= 0 and attn_mask.shape[dimension] > 1:
                continue
            inputs.append(Replicate())
        rules.append(([place] * results, inputs))
    return rules


def add_sharding_rules(undo: contextlib.ExitStack) -> None:
    """Give DTensor the rule until the end, unless it has one."""
    known = DTensor._op_dispatcher.sharding_propagator
    for operator in (_ATTENTION, _BACKWARD):
        if operator not in known.op_strategy_funcs:
            register_sharding(operator)(_attention)
            undo.callback(known.op_strategy_funcs.pop, operator, None)
            undo.callback(known.op_to_schema_info.pop, operator, None)
