"""Coalesced collectives: several tensors in one operation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from simcoll.arrays import Array
from simcoll.core.reduction import Reduction
from simcoll.distributed.api.arguments import contiguous
from simcoll.distributed.api.groups import default_group
from simcoll.distributed.api.reductions import ReduceOp, check_op
from simcoll.distributed.runtime.calls import CollectiveCall
from simcoll.distributed.runtime.collective_calls import play
from simcoll.distributed.runtime.work import Work
from simcoll.distributed.runtime.world import GroupHandle, current_rank

__all__ = [
    "Coalesced",
    "all_gather_coalesced",
    "all_reduce_coalesced",
    "by_rank",
    "coalescing",
    "reduce_scatter_coalesced",
]


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
            f"a tensor of {list(array.shape)} elements has to be contiguous and divide into {size} "
            "equal parts, one for each rank"
        )
    return list(array.reshape(size, -1))


def all_reduce_coalesced(
    arrays: list[Array], op: ReduceOp | Reduction, group: GroupHandle, *, async_op: bool
) -> Work | None:
    """Reduce tensors of one dtype in place, as one tensor."""
    reduction = op if isinstance(op, Reduction) else check_op(op, arrays[0].dtype, "all_reduce")
    size = sum(array.size for array in arrays)
    call = CollectiveCall(
        "all_reduce_coalesced", "all_reduce", size, arrays[0].dtype, _shapes(arrays), reduction
    )
    return play(group, call, arrays, arrays, arrays, async_op=async_op)


def all_gather_coalesced(
    outputs: list[list[Array]], inputs: list[Array], group: GroupHandle, *, async_op: bool
) -> Work | None:
    """Collect tensors of one dtype; ``outputs[r]`` receive those of rank r."""
    size = sum(array.size for array in inputs)
    if len(outputs) != group.size() or any(
        sum(array.size for array in rank_outputs) != size for rank_outputs in outputs
    ):
        raise RuntimeError(
            f"all_gather_coalesced: expected room for {size} elements of each of {group.size()} "
            "ranks, got "
            f"{[sum(array.size for array in rank_outputs) for rank_outputs in outputs]}"
        )
    call = CollectiveCall(
        "all_gather_coalesced", "all_gather", size, inputs[0].dtype, _shapes(inputs)
    )
    targets = [array for rank_outputs in outputs for array in rank_outputs]
    return play(group, call, inputs, targets, targets, async_op=async_op)


def reduce_scatter_coalesced(
    outputs: list[Array],
    inputs: list[list[Array]],
    op: ReduceOp | Reduction,
    group: GroupHandle,
    *,
    async_op: bool,
) -> Work | None:
    """Reduce tensors of one dtype; rank r gets the reduction of all ranks' ``inputs[r]``."""
    reduction = (
        op if isinstance(op, Reduction) else check_op(op, outputs[0].dtype, "reduce_scatter")
    )
    size = sum(array.size for array in outputs)
    if any(sum(array.size for array in rank_inputs) != size for rank_inputs in inputs):
        raise RuntimeError(
            f"reduce_scatter_coalesced: expected {size} elements for each of {group.size()} ranks, "
            "got "
            f"{[sum(array.size for array in rank_inputs) for rank_inputs in inputs]}"
        )
    sources = [array for rank_inputs in inputs for array in rank_inputs]
    call = CollectiveCall(
        "reduce_scatter_coalesced",
        "reduce_scatter",
        size,
        outputs[0].dtype,
        _shapes(sources),
        reduction,
    )
    return play(group, call, sources, outputs, outputs, async_op=async_op)


@dataclass(slots=True, eq=False)
class Coalesced:
    """The operations of a :func:`coalescing` block."""

    works: list[Work] = field(default_factory=list)

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self.works:
            work.wait()


@contextlib.contextmanager
def coalescing(
    group: Any = None,
    device: Any = None,  # noqa: ARG001 - in the signature of torch
    async_ops: bool = False,
) -> Iterator[Coalesced]:
    """Defer the collectives of a block to its end, and merge like ones into one operation.

    All-reduces, all-gathers of single tensors and reduce-scatters of single tensors are merged by
    dtype and operator. All others start in order, without waiting for each other.

    Parameters
    ----------
    async_ops
        Do not wait at the end of the block: the program waits on the object that the block yields.

    Raises
    ------
    ValueError
        Inside another such block of the same group.
    """
    process_group = group or default_group()
    me = current_rank()
    if process_group.communicator in me.coalescing:
        raise ValueError(
            "ProcessGroup has non-empty op list at the start of coalescing: blocks cannot be nested"
        )
    calls = me.coalescing[process_group.communicator] = []
    together = Coalesced()
    try:
        yield together
    finally:
        del me.coalescing[process_group.communicator]
    batches: dict[Any, list[tuple[CollectiveCall, list[Array], list[Array]]]] = {}
    for entry in calls:
        call = entry[0]
        single = call.kind == "all_reduce" or call.name in (
            "all_gather_into_tensor",
            "reduce_scatter_tensor",
        )
        batches.setdefault((call.kind, call.dtype, call.op) if single else id(entry), []).append(
            entry
        )
    for batch in batches.values():
        work = _start(process_group, batch)
        if work is not None:
            together.works.append(work)
    if not async_ops:
        together.wait()


def _start(
    group: GroupHandle, batch: list[tuple[CollectiveCall, list[Array], list[Array]]]
) -> Work | None:
    """Start one call, or several like calls as one."""
    call, sources, targets = batch[0]
    if len(batch) == 1:
        return play(group, call, sources, targets, targets, async_op=True)
    inputs = [array for _, arrays, _ in batch for array in arrays]
    outputs = [array for _, _, arrays in batch for array in arrays]
    if call.kind == "all_reduce" and call.op is not None:
        return all_reduce_coalesced(outputs, call.op, group, async_op=True)
    combined = outputs if call.kind == "all_gather" else inputs
    rows = list(map(list, zip(*(by_rank(array, group.size()) for array in combined), strict=True)))
    if call.op is None:
        return all_gather_coalesced(rows, inputs, group, async_op=True)
    return reduce_scatter_coalesced(outputs, rows, call.op, group, async_op=True)
