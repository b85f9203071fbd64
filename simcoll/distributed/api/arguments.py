"""Checks of the arguments of collectives, with torch's errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from simcoll.arrays import Array
from simcoll.core.array_views import array_on
from simcoll.core.reduction import Reduction
from simcoll.core.vocabulary import CollectiveKind, ReductionName
from simcoll.distributed.api.groups import rank_in_group
from simcoll.distributed.api.reductions import ReduceOp, check_op
from simcoll.distributed.runtime.calls import CollectiveCall
from simcoll.distributed.runtime.fake import FakeArray
from simcoll.distributed.runtime.world import GroupHandle
from simcoll.libraries.choices import Choice

__all__ = [
    "as_array",
    "as_arrays",
    "call_on",
    "check_alike",
    "check_length",
    "check_list_of_root",
    "check_whole",
    "contiguous",
    "one_dtype",
    "one_per_rank",
    "reducing_call",
    "root_of",
    "shapes_of",
    "sizes_of",
    "split_sizes",
]


def as_array(value: Any, parameter: str = "tensor") -> Array:
    """View the memory of a tensor as an array.

    Accepted are an ndarray, a buffer (``bytearray``, ``array.array``), and an object with
    ``__array__`` or DLPack that shares its memory, such as a torch CPU tensor; anything else is a
    TypeError.
    """
    if isinstance(value, np.ndarray):
        return value
    plain = isinstance(value, (list, tuple, str, int, float, complex, bool, type(None), dict))
    array = None if plain else array_on(value)
    if array is None:
        raise TypeError(
            f"Invalid function argument. Expected parameter `{parameter}` of type torch.Tensor but "
            f"got {type(value)} instead."
            " Pass a numpy array, or an object that shares its memory (buffer protocol, DLPack)."
        )
    return array


def as_arrays(values: Any, parameter: str) -> list[Array]:
    """View the memory of each tensor of a list as an array; a TypeError for anything else."""
    if not isinstance(values, list):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{parameter}` of type "
            f"List[torch.Tensor] but got {type(values)} "
            "instead."
        )
    return [as_array(value, parameter) for value in values]


def contiguous(array: Array) -> bool:
    """Whether an array is C-contiguous; a fake array, which has no memory, counts as contiguous."""
    return array.flags.c_contiguous or isinstance(array, FakeArray)


def root_of(
    group: GroupHandle, global_rank: int | None, group_rank: int | None, default: int | None = None
) -> int:
    """The group rank of a root or peer, given by either its global rank or its group rank."""
    if global_rank is not None and group_rank is not None:
        raise ValueError("Can't specify both group_rank and global_rank")
    if group_rank is not None:
        if not 0 <= group_rank < group.size():
            raise RuntimeError(
                f"invalid root rank: {group_rank}; {group!r} has group ranks 0..{group.size() - 1}"
            )
        return group_rank
    if global_rank is None:
        if default is None:
            raise ValueError("Must specify global_rank or group_rank")
        global_rank = default
    return rank_in_group(group, global_rank)


def shapes_of(arrays: Sequence[Array]) -> str:
    """Shapes, as messages show them."""
    return _list_shapes(tuple([array.shape for array in arrays[:4]]), len(arrays))


@functools.lru_cache(maxsize=1024)
def _list_shapes(shapes: tuple[tuple[int, ...], ...], count: int) -> str:
    text = ", ".join(str(list(shape)) for shape in shapes)
    return f"{text}, ... ({count} tensors)" if count > 4 else text


def reducing_call(
    array: Array, op: Any, name: str, kind: CollectiveKind, algorithm: Choice
) -> CollectiveCall:
    """The call of a reduction of one tensor per rank, whose operator is checked."""
    if algorithm is None and type(op) is ReduceOp and op.factor is None:
        return _reducing_call(op.name, name, kind, array.shape, array.dtype)
    return call_on(array, name, kind, algorithm, check_op(op, array.dtype, name))


@functools.lru_cache(maxsize=1024)
def _reducing_call(
    op: str, name: str, kind: CollectiveKind, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> CollectiveCall:
    """The same call for all ranks, checked once."""
    reduction = check_op(ReduceOp(op), dtype, name)
    return _call_on(name, kind, shape, dtype, reduction.name, None, None)


def call_on(
    array: Array,
    name: str,
    kind: CollectiveKind,
    algorithm: Choice,
    op: Reduction | None = None,
    root: int | None = None,
    size: int | None = None,
) -> CollectiveCall:
    """The call of a collective on one tensor per rank, with blocks of ``size`` elements (default:
    the whole tensor).
    """
    if algorithm is None and (op is None or op.factor is None):
        return _call_on(
            name, kind, array.shape, array.dtype, None if op is None else op.name, root, size
        )
    blocks = array.size if size is None else size
    return CollectiveCall(
        name, kind, blocks, array.dtype, shapes_of([array]), op, root, algorithm=algorithm
    )


@functools.lru_cache(maxsize=1024)
def _call_on(
    name: str,
    kind: CollectiveKind,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    op: ReductionName | None,
    root: int | None,
    size: int | None,
) -> CollectiveCall:
    """The same call for all ranks, which need not be compared then."""
    blocks = math.prod(shape) if size is None else size
    return CollectiveCall(
        name,
        kind,
        blocks,
        dtype,
        _list_shapes((shape,), 1),
        None if op is None else Reduction(op),
        root,
    )


def one_dtype(arrays: Sequence[Array], function: str) -> np.dtype[Any]:
    """The common dtype of some arrays; a ValueError when they differ."""
    dtype = arrays[0].dtype
    mismatch = next((array for array in arrays if array.dtype != dtype), None)
    if mismatch is not None:
        raise ValueError(
            f"Invalid usage of tensors with different dtypes in {function}: {dtype.name} and "
            f"{mismatch.dtype.name}"
        )
    return dtype


def one_per_rank(tensors: Any, parameter: str, group: GroupHandle) -> list[Array]:
    """A list with one tensor for every rank."""
    arrays = as_arrays(tensors, parameter)
    if len(arrays) != group.size():
        raise RuntimeError(
            f"{parameter}: tensor list size {len(arrays)} does not match world size "
            f"{group.size()}; expected one tensor per rank"
        )
    return arrays


def sizes_of(arrays: Sequence[Array]) -> int | tuple[int, ...]:
    """The number of elements of each array; one number when all are equal."""
    sizes = tuple(array.size for array in arrays)
    return sizes[0] if len(set(sizes)) == 1 else sizes


def check_list_of_root(tensors: Any, parameter: str, side: str, *, mine: bool) -> bool:
    """Refuse a list that is missing on the ``side`` (source or destination) rank, or given on any
    other.
    """
    if mine and not tensors:
        raise ValueError(f"Argument ``{parameter}`` must be specified on {side} rank.")
    if tensors and not mine:
        raise ValueError(f"Argument ``{parameter}`` must NOT be specified on non-{side} ranks.")
    return mine


def check_alike(arrays: Sequence[Array], like: Array, parameter: str, function: str) -> None:
    """Refuse a list whose tensors differ from another tensor in size or dtype."""
    one_dtype([like, *arrays], function)
    for index, array in enumerate(arrays):
        if array.size != like.size:
            raise RuntimeError(
                f"invalid tensor size at index {index} of {parameter} (expected {like.shape}, got "
                f"{array.shape}): all tensors "
                "must have the same size"
            )


def check_whole(combined: Array, part: Array, n: int, combined_name: str, part_name: str) -> None:
    """Refuse a concatenated tensor whose size is not ``n`` times one rank's part."""
    if combined.size != n * part.size:
        raise RuntimeError(
            f"{combined_name} tensor size must be equal to world_size times {part_name} tensor "
            f"size: {combined.size} elements "
            f"{list(combined.shape)} is not {n} x {part.size} {list(part.shape)}"
        )


def split_sizes(array: Array, splits: Sequence[int] | None, n: int) -> tuple[int, ...]:
    """The number of elements for each rank, from its number of rows (an equal share without
    ``splits``).
    """
    rows = array.shape[0] if array.ndim else array.size
    if splits is None or not len(splits):  # also of an array
        if rows % n:
            raise RuntimeError(
                f"Tensor's dim 0 does not divide equally across group size: {rows} rows, {n} ranks"
            )
        splits = [rows // n] * n
    if len(splits) != n:
        raise RuntimeError(
            f"Number of tensor splits not equal to group size: {len(splits)} splits, {n} ranks"
        )
    if sum(splits) != rows or min(splits) < 0:
        raise RuntimeError(
            f"Split sizes doesn't match total dim 0 size: {list(splits)} and {rows} rows"
        )
    row_size = array.size // rows if rows else 0
    return tuple(int(split) * row_size for split in splits)


def check_length(inputs: Sequence[Any], group: GroupHandle) -> None:
    """Refuse an input list without exactly one entry per rank."""
    if len(inputs) != group.size():
        raise RuntimeError(
            f"Incorrect input list size {len(inputs)}. Input list size should be {group.size()}, "
            "same as size of the process group."
        )
