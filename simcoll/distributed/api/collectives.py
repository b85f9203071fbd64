"""The collectives, with torch's names, argument order and defaults. Each call plays a proved
schedule.

All take ``group`` (None: the default group), ``async_op`` (return a Work instead of waiting) and
``algorithm`` (a name or a schedule; None: the group's, else the run's).
:func:`simcoll.distributed.api.arguments.as_array` says what may be passed as a tensor. A rank
outside the group gets a warning and None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from simcoll.arrays import Array, MaybeNone
from simcoll.distributed.api.arguments import (
    as_array,
    as_arrays,
    call_on,
    check_alike,
    check_length,
    check_list_of_root,
    check_whole,
    contiguous,
    one_dtype,
    one_per_rank,
    reducing_call,
    root_of,
    shapes_of,
    sizes_of,
    split_sizes,
)
from simcoll.distributed.api.groups import member_of
from simcoll.distributed.api.reductions import ReduceOp, check_op
from simcoll.distributed.runtime.calls import CollectiveCall
from simcoll.distributed.runtime.collective_calls import play
from simcoll.distributed.runtime.work import Work
from simcoll.libraries.choices import Choice

__all__ = [
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
]


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Copy the tensor of one rank (global rank ``src``, or group rank ``group_src``) to all
    others.
    """
    array = as_array(tensor)
    if (process_group := member_of(group, "broadcast")) is None:
        return None
    root = root_of(process_group, src, group_src)
    call = call_on(array, "broadcast", "broadcast", algorithm, root=root)
    sources = [array] if process_group.rank() == root else []
    targets = [] if process_group.rank() == root else [array]
    return play(process_group, call, sources, targets, [tensor], async_op=async_op)


def all_reduce(
    tensor: Any,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Reduce the tensors of all ranks; every rank gets the same bits."""
    array = tensor if type(tensor) is np.ndarray else as_array(tensor)
    call = reducing_call(array, op, "all_reduce", "all_reduce", algorithm)
    if (process_group := member_of(group, "all_reduce")) is None:
        return None
    buffers = [array]
    return play(process_group, call, buffers, buffers, [tensor], async_op=async_op)


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Reduce the tensors of all ranks on one rank; the others keep theirs."""
    array = as_array(tensor)
    reduction = check_op(op, array.dtype, "reduce")
    if (process_group := member_of(group, "reduce")) is None:
        return None
    root = root_of(process_group, dst, group_dst)
    call = call_on(array, "reduce", "reduce", algorithm, reduction, root)
    return play(
        process_group,
        call,
        [array],
        [array] if process_group.rank() == root else [],
        [tensor],
        async_op=async_op,
    )


def all_gather(
    tensor_list: Any,
    tensor: Any,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Collect the tensors of all ranks, in group order, in a list on every rank. Sizes may differ
    between ranks.
    """
    outputs, array = as_arrays(tensor_list, "tensor_list"), as_array(tensor)
    if (process_group := member_of(group, "all_gather")) is None:
        return None
    outputs = one_per_rank(tensor_list, "tensor_list", process_group)
    dtype = one_dtype([array, *outputs], "all_gather")
    own_output = outputs[process_group.rank()]
    if own_output.size != array.size:
        raise RuntimeError(
            f"invalid tensor size at index {process_group.rank()} (expected {array.shape}, got "
            f"{own_output.shape}): "
            f"rank {process_group.rank()} puts its own tensor there"
        )
    call = CollectiveCall(
        "all_gather",
        "all_gather",
        sizes_of(outputs),
        dtype,
        shapes_of(outputs),
        algorithm=algorithm,
    )
    return play(process_group, call, [array], outputs, tensor_list, async_op=async_op)


def all_gather_into_tensor(
    output_tensor: Any,
    input_tensor: Any,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Collect the tensors of all ranks in one, concatenated along dimension 0 or stacked along a
    new dimension.
    """
    output, array = as_array(output_tensor, "output_tensor"), as_array(input_tensor, "input_tensor")
    if (process_group := member_of(group, "all_gather_into_tensor")) is None:
        return None
    if output.dtype != array.dtype:
        raise RuntimeError(
            f"output tensor must have the same type as input tensor: {output.dtype.name}, "
            f"{array.dtype.name}"
        )
    check_whole(output, array, process_group.size(), "output", "input")
    call = call_on(array, "all_gather_into_tensor", "all_gather", algorithm)
    return play(process_group, call, [array], [output], [output_tensor], async_op=async_op)


def gather(
    tensor: Any,
    gather_list: Any = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Collect the tensors of all ranks, in group order, in a list on one rank (default: global rank
    0).
    """
    array = as_array(tensor)
    if (process_group := member_of(group, "gather")) is None:
        return None
    root = root_of(process_group, dst, group_dst, default=0)
    outputs: list[Array] = []
    if check_list_of_root(
        gather_list, "gather_list", "destination", mine=process_group.rank() == root
    ):
        outputs = one_per_rank(gather_list, "gather_list", process_group)
        check_alike(outputs, array, "gather_list", "gather")
    call = call_on(array, "gather", "gather", algorithm, root=root)
    return play(process_group, call, [array], outputs, list(gather_list or []), async_op=async_op)


def scatter(
    tensor: Any,
    scatter_list: Any = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Give every rank one tensor of the list of one rank (default: global rank 0)."""
    array = as_array(tensor)
    if (process_group := member_of(group, "scatter")) is None:
        return None
    root = root_of(process_group, src, group_src, default=0)
    inputs: list[Array] = []
    if check_list_of_root(
        scatter_list, "scatter_list", "source", mine=process_group.rank() == root
    ):
        inputs = as_arrays(scatter_list, "scatter_list")
        check_length(inputs, process_group)
        check_alike(inputs, array, "scatter_list", "scatter")
    call = call_on(array, "scatter", "scatter", algorithm, root=root)
    return play(process_group, call, inputs, [array], [tensor], async_op=async_op)


def reduce_scatter(
    output: Any,
    input_list: Any,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Reduce entry i of the lists of all ranks on rank i. Entries may differ in size."""
    array, inputs = as_array(output, "output"), as_arrays(input_list, "input_list")
    reduction = check_op(op, array.dtype, "reduce_scatter")
    if (process_group := member_of(group, "reduce_scatter")) is None:
        return None
    if len(inputs) != process_group.size():
        raise RuntimeError(
            f"invalid input tensor list size, must be world size: got {len(inputs)}, world size "
            f"{process_group.size()}"
        )
    dtype = one_dtype([array, *inputs], "reduce_scatter")
    own_input = inputs[process_group.rank()]
    if own_input.size != array.size:
        raise RuntimeError(
            f"output tensor has {list(array.shape)}, but entry {process_group.rank()} of the input "
            f"list has {list(own_input.shape)}"
        )
    call = CollectiveCall(
        "reduce_scatter",
        "reduce_scatter",
        sizes_of(inputs),
        dtype,
        shapes_of(inputs),
        reduction,
        algorithm=algorithm,
    )
    return play(process_group, call, inputs, [array], [output], async_op=async_op)


def reduce_scatter_tensor(
    output: Any,
    input: Any,  # noqa: A002  # torch's name
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Reduce part i of the inputs of all ranks on rank i; parts are concatenated or stacked along
    dimension 0.
    """
    array, source = as_array(output, "output"), as_array(input, "input")
    reduction = check_op(op, array.dtype, "reduce_scatter_tensor")
    if (process_group := member_of(group, "reduce_scatter_tensor")) is None:
        return None
    if array.dtype != source.dtype:
        raise RuntimeError(
            f"input tensor must be the same type as the output tensor: {source.dtype.name}, "
            f"{array.dtype.name}"
        )
    check_whole(source, array, process_group.size(), "input", "output")
    call = call_on(
        source, "reduce_scatter_tensor", "reduce_scatter", algorithm, reduction, size=array.size
    )
    return play(process_group, call, [source], [array], [output], async_op=async_op)


all_gather_single = all_gather_into_tensor
reduce_scatter_single = reduce_scatter_tensor


def all_to_all_single(
    output: Any,
    input: Any,  # noqa: A002  # torch's name
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Split the input along dimension 0, send part i to rank i, and concatenate the parts
    received.
    """
    target, source = as_array(output, "output"), as_array(input, "input")
    if (process_group := member_of(group, "all_to_all_single")) is None:
        return None
    dtype = one_dtype([target, source], "all_to_all_single")
    if not (contiguous(target) and contiguous(source)):
        raise ValueError("Tensors must be contiguous")
    n = process_group.size()
    splits = (split_sizes(source, input_split_sizes, n), split_sizes(target, output_split_sizes, n))
    shapes = f"{shapes_of([source])} -> {shapes_of([target])}"
    call = CollectiveCall(
        "all_to_all_single", "all_to_all", (), dtype, shapes, splits=splits, algorithm=algorithm
    )
    return play(process_group, call, [source], [target], [output], async_op=async_op)


def all_to_all(
    output_tensor_list: Any,
    input_tensor_list: Any,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Send entry i of the input list to rank i; entry i of the output list comes from rank i."""
    as_arrays(output_tensor_list, "output_tensor_list")
    as_arrays(input_tensor_list, "input_tensor_list")
    if (process_group := member_of(group, "all_to_all")) is None:
        return None
    outputs = one_per_rank(output_tensor_list, "output_tensor_list", process_group)
    inputs = one_per_rank(input_tensor_list, "input_tensor_list", process_group)
    dtype = one_dtype([*outputs, *inputs], "all_to_all")
    splits = (tuple(array.size for array in inputs), tuple(array.size for array in outputs))
    call = CollectiveCall(
        "all_to_all", "all_to_all", (), dtype, shapes_of(inputs), splits=splits, algorithm=algorithm
    )
    return play(process_group, call, inputs, outputs, output_tensor_list, async_op=async_op)


def barrier(
    group: Any = None,
    async_op: bool = False,
    device_ids: Any = None,  # noqa: ARG001  # torch's signature
    timeout: Any = None,
    *,
    algorithm: Choice = None,
) -> Work | MaybeNone:
    """Wait until every rank of the group has called. ``device_ids`` is ignored."""
    if (process_group := member_of(group, "barrier")) is None:
        return None
    call = _BARRIER if algorithm is None else replace(_BARRIER, algorithm=algorithm)
    return play(process_group, call, [], [], [], async_op=async_op, timeout=timeout)


_BARRIER = CollectiveCall("barrier", "barrier", 0, np.dtype(np.uint8))
