"""Several tensors as one operation on their concatenated elements, with the checks and errors of the collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.distributed.api.arguments import contiguous
from simcoll.distributed.api.reductions import ReduceOp, check_op
from simcoll.distributed.runtime.calls import Call
from simcoll.distributed.runtime.operations import play

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simcoll.core.memory import Array
    from simcoll.distributed.runtime.work import Work
    from simcoll.distributed.runtime.world import ProcessGroup

__all__ = ["all_gather_coalesced", "all_reduce_coalesced", "by_rank", "reduce_scatter_coalesced"]


def _shapes(arrays: Sequence[Array]) -> str:
    return f"{sum(array.size for array in arrays)} elements in {len(arrays)} tensors"


def by_rank(array: Array, size: int) -> list[Array]:
    """The equal parts of a tensor, one for each rank of a group.

    Raises
    ------
    RuntimeError
        When it cannot be divided equally, or is not contiguous.
    """
    if not contiguous(array) or array.size % size:
        raise RuntimeError(
            f"a tensor of {list(array.shape)} elements has to be contiguous and divide into {size} equal parts, one for each rank"
        )
    return list(array.reshape(size, -1))


def all_reduce_coalesced(arrays: list[Array], op: ReduceOp, group: ProcessGroup, *, async_op: bool) -> Work | None:
    """Reduce tensors of one dtype in place, as one tensor."""
    reduction = check_op(op, arrays[0].dtype, "all_reduce")
    size = sum(array.size for array in arrays)
    call = Call("all_reduce_coalesced", "all_reduce", size, arrays[0].dtype, _shapes(arrays), reduction)
    return play(group, call, arrays, arrays, arrays, async_op=async_op)


def all_gather_coalesced(
    outputs: list[list[Array]], inputs: list[Array], group: ProcessGroup, *, async_op: bool
) -> Work | None:
    """Collect tensors of one dtype; ``outputs[r]`` receive those of rank r."""
    size = sum(array.size for array in inputs)
    if len(outputs) != group.size() or any(sum(array.size for array in each) != size for each in outputs):
        raise RuntimeError(
            f"all_gather_coalesced: expected room for {size} elements of each of {group.size()} ranks, got "
            f"{[sum(array.size for array in each) for each in outputs]}"
        )
    call = Call("all_gather_coalesced", "all_gather", size, inputs[0].dtype, _shapes(inputs))
    targets = [array for each in outputs for array in each]
    return play(group, call, inputs, targets, targets, async_op=async_op)


def reduce_scatter_coalesced(
    outputs: list[Array], inputs: list[list[Array]], op: ReduceOp, group: ProcessGroup, *, async_op: bool
) -> Work | None:
    """Reduce tensors of one dtype; rank r gets the reduction of all ranks' ``inputs[r]``."""
    reduction = check_op(op, outputs[0].dtype, "reduce_scatter")
    size = sum(array.size for array in outputs)
    if any(sum(array.size for array in each) != size for each in inputs):
        raise RuntimeError(
            f"reduce_scatter_coalesced: expected {size} elements for each of {group.size()} ranks, got "
            f"{[sum(array.size for array in each) for each in inputs]}"
        )
    sources = [array for each in inputs for array in each]
    call = Call("reduce_scatter_coalesced", "reduce_scatter", size, outputs[0].dtype, _shapes(sources), reduction)
    return play(group, call, sources, outputs, outputs, async_op=async_op)
