"""Collectives on several tensors of one dtype, which take one operation."""

from __future__ import annotations

from typing import Any

from simcoll.arrays import Array, MaybeNone
from simcoll.distributed.api import coalesced
from simcoll.distributed.api.arguments import as_arrays, one_dtype
from simcoll.distributed.api.groups import member_of
from simcoll.distributed.api.reductions import ReduceOp
from simcoll.distributed.runtime.work import Future, Work

__all__ = ["all_gather_coalesced", "all_reduce_coalesced"]


def _tensors(values: Any, parameter: str, function: str) -> list[Array]:
    """The memory of a list with at least one tensor, all of one dtype."""
    arrays = as_arrays(values, parameter)
    if not arrays:
        raise ValueError(f"{function}: {parameter} is empty; expected at least one tensor")
    one_dtype(arrays, function)
    return arrays


def _end(work: Work | None, results: Any) -> Future | MaybeNone:
    """The future of an operation, whose value is the caller's own tensors; None where a block of
    coalesced calls starts it later.
    """
    if work is None:
        return None
    work.results = results
    return work.get_future()


def all_reduce_coalesced(
    tensors: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Future | MaybeNone:
    """Reduce each tensor of a list over all ranks, in one operation.

    Parameters
    ----------
    tensors
        A list of tensors of one dtype, or one tensor; they receive the results.

    Returns
    -------
    Future
        With ``async_op``, of the list; otherwise None.

    Raises
    ------
    ValueError
        For an empty list, or tensors of several dtypes.
    RuntimeError
        When other ranks call with another number of elements.

    Examples
    --------
    >>> import numpy as np
    >>> import simcoll.distributed as dist
    >>> def program(rank, world_size):
    ...     weights, bias = np.ones(3), np.full(1, 2.0)
    ...     dist.all_reduce_coalesced([weights, bias])
    ...     return weights.tolist(), bias.tolist()
    >>> dist.spawn(program, 4).returns[0]
    ([4.0, 4.0, 4.0], [8.0])
    """
    listed = tensors if isinstance(tensors, list) else [tensors]
    if isinstance(tensors, tuple):
        as_arrays(tensors, "tensors")
    arrays = _tensors(listed, "tensors", "all_reduce_coalesced")
    if (process_group := member_of(group, "all_reduce_coalesced")) is None:
        return None
    work = coalesced.all_reduce_coalesced(arrays, op, process_group, async_op=async_op)
    return _end(work, listed)


def all_gather_coalesced(
    output_tensor_lists: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Future | MaybeNone:
    """Collect the lists of tensors of all ranks on every rank, in one operation.

    Parameters
    ----------
    output_tensor_lists
        One list for each rank, with tensors of the sizes of its inputs.
    input_tensor_list
        This rank's tensors, of one dtype.

    Returns
    -------
    Future
        With ``async_op``, of the lists of outputs; otherwise None.

    Raises
    ------
    ValueError
        For an empty list, or tensors of several dtypes.
    RuntimeError
        When there is not one list for each rank, or the sizes differ.

    Examples
    --------
    >>> import numpy as np
    >>> import simcoll.distributed as dist
    >>> def program(rank, world_size):
    ...     outputs = [[np.zeros(2), np.zeros(1)] for _ in range(world_size)]
    ...     dist.all_gather_coalesced(outputs, [np.full(2, float(rank)), np.ones(1)])
    ...     return [[tensor.tolist() for tensor in tensors] for tensors in outputs]
    >>> dist.spawn(program, 2).returns[0]
    [[[0.0, 0.0], [1.0]], [[1.0, 1.0], [1.0]]]
    """
    name = "all_gather_coalesced"
    inputs = _tensors(input_tensor_list, "input_tensor_list", name)
    if not isinstance(output_tensor_lists, list):
        raise TypeError(
            "Invalid function argument: output_tensor_lists should be a list, got "
            f"{type(output_tensor_lists)}"
        )
    outputs = [_tensors(tensors, "output_tensor_lists", name) for tensors in output_tensor_lists]
    if (process_group := member_of(group, name)) is None:
        return None
    sizes = [array.size for array in inputs]
    for rank, arrays in enumerate(outputs):
        one_dtype([*inputs, *arrays], name)
        if [array.size for array in arrays] != sizes:
            raise RuntimeError(
                f"{name}: the outputs for rank {rank} have "
                f"{[array.size for array in arrays]} elements; expected {sizes}, as the inputs"
            )
    work = coalesced.all_gather_coalesced(outputs, inputs, process_group, async_op=async_op)
    return _end(work, output_tensor_lists)
