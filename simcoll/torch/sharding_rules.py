"""Sharding rules that DTensor lacks: attention on the CPU, to which CUDA devices are mapped.

On a GPU, PyTorch uses the flash or the memory-efficient kernel, for which DTensor has rules, and
``context_parallel`` a ring of ranks; on the CPU it uses another kernel.

For an operator on a list of tensors, such as those of optimizers, DTensor looks through all of them
once for each of them, and works out the placements of equal tensors again; here it does so once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, _sharding_prop
from torch.distributed.tensor._ops import single_dim_strategy
from torch.distributed.tensor._ops import utils as placement_utils
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.experimental._context_parallel import _attention as context_parallel
from torch.distributed.tensor.placement_types import _StridedShard

__all__ = ["add_sharding_rules"]

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _attention(
    *arguments: Any,
    attn_mask: Any = None,
    scale: Any = None,  # noqa: ARG001
) -> list[tuple[list[Any], list[Any]]]:
    """Shard batches and heads of all tensors alike, unless a mask differs between them.

    DTensor does not redistribute keyword tensors, so a mask has to stay whole. The tensors are the
    arguments before the dropout probability; the forward pass has two results, the backward pass
    three.
    """
    tensors = [argument for argument in arguments if hasattr(argument, "shape")]
    results = 2 if len(tensors) == 3 else 3
    unsharded = [None] * (len(arguments) - len(tensors))
    rules = []
    for place in (Replicate(), Shard(0), Shard(1)):
        inputs: list[Any] = [place] * len(tensors) + unsharded
        if attn_mask is not None:
            dimension = len(attn_mask.shape) - 4 + place.dim if isinstance(place, Shard) else -1
            if dimension >= 0 and attn_mask.shape[dimension] > 1:
                continue
            inputs.append(Replicate())
        rules.append(([place] * results, inputs))
    return rules


def _in_ring(operator: Any, args: Any, kwargs: Any) -> list[DTensor]:
    """Ring attention over a sequence sharded on a mesh: keys and values rotate in PyTorch's own
    order.
    """
    if kwargs.get("attn_mask") is not None:
        raise NotImplementedError("context_parallel takes no attention masks but is_causal=True")
    mesh, sequence, scale = args[0].device_mesh, 2, kwargs.get("scale")
    tensors = [part.to_local() for part in args if isinstance(part, DTensor)]
    dropout, causal = (*args[len(tensors) :], 0.0, False)[:2]
    if operator is _ATTENTION:
        results = context_parallel._templated_ring_attention(
            mesh.get_group(),
            sequence,
            operator,
            *tensors,
            is_causal=causal,
            dropout_p=dropout,
            scale=scale,
        )
    else:
        gradient, *tensors = tensors
        results = context_parallel._templated_ring_attention_backward(
            mesh.get_group(),
            sequence,
            operator,
            gradient,
            "grad_out",
            *tensors,
            is_causal=causal,
            dropout_p=dropout,
            scale=scale,
        )
    return [DTensor.from_local(part, mesh, [Shard(sequence)], run_check=False) for part in results]


@dataclass(frozen=True, slots=True)
class _StridedSpecs:
    """What DTensor's correction of strided shards reads of a schema."""

    args_spec: tuple[Any, ...]


def _look_once(standard: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """DTensor's correction of strided shards, which looks for those of all arguments: once for an
    operator that it corrects tensor by tensor.

    It asks whether their flags agree, so one of several with the same flag is enough.
    """
    latest: list[tuple[Any, _StridedSpecs]] = []

    def correct(strategy: Any, schema: Any) -> None:
        if not latest or latest[0][0] is not schema:
            strided = [
                spec
                for spec in schema.args_spec
                if any(isinstance(part, _StridedShard) for part in spec.placements)
            ]
            by_flag = {spec.use_strided_shard_as_shard_order: spec for spec in strided}
            latest[:] = [(schema, _StridedSpecs(tuple(by_flag.values())))]
        if latest[0][1].args_spec:
            standard(strategy, latest[0][1])

    return correct


def _work_out_once(standard: Callable[..., Any], place: int) -> Callable[..., Any]:
    """A function that works out placements from a schema, its argument at ``place``: remembered
    with the schema, which DTensor keeps for equal tensors of one list.
    """
    name = f"_simcoll_{standard.__name__}"

    @functools.wraps(standard, updated=())
    def work_out(*args: Any, **options: Any) -> Any:
        schema = args[place]
        inputs = (*args[:place], *args[place + 1 :], options)
        earlier, result = vars(schema).get(name, (None, None))
        if earlier is None or earlier != inputs:
            result = standard(*args, **options)
            setattr(schema, name, (inputs, result))
        return result

    return work_out


def _quicken_lists(undo: contextlib.ExitStack) -> None:
    """Let DTensor work out placements once for equal tensors of a list."""
    for module, name, change in (
        (_sharding_prop, "_propagate_use_strided_shard_flag", _look_once),
        (single_dim_strategy, "_PreparedSingleDimStrategy", lambda make: _work_out_once(make, 1)),
        (placement_utils, "expand_to_full_mesh_op_strategy", lambda find: _work_out_once(find, 1)),
        (single_dim_strategy, "_resolve_foreach_elementwise_overload", functools.cache),
    ):
        standard = getattr(module, name, None)
        if standard is not None:
            undo.callback(setattr, module, name, standard)
            setattr(module, name, change(standard))


def add_sharding_rules(undo: contextlib.ExitStack) -> None:
    """Register the rules for the duration of the run, unless DTensor has them."""
    _quicken_lists(undo)
    propagator = DTensor._op_dispatcher.sharding_propagator
    for operator in (_ATTENTION, _BACKWARD):
        if operator not in context_parallel.custom_ops:
            context_parallel.custom_ops[operator] = _in_ring
            undo.callback(context_parallel.custom_ops.pop, operator, None)
        if operator not in propagator.op_strategy_funcs:
            register_sharding(operator)(_attention)
            undo.callback(propagator.op_strategy_funcs.pop, operator, None)
            undo.callback(propagator.op_to_schema_info.pop, operator, None)
