"""The collectives, in torch's names, argument order and defaults. Each call becomes a schedule that the ranks play.

All take ``group`` (None: the default group), ``async_op`` (return a Work instead of waiting) and ``algorithm`` (what to
run: a name or a schedule; None leaves it to the group and the world). Tensors are whatever
:func:`simcoll.distributed.arrays.as_array` takes. A rank outside of the group gets a warning and None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.distributed.arrays import as_array, as_arrays
from simcoll.distributed.groups import ProcessGroup, member_of, rank_in_group
from simcoll.distributed.operations import Call
from simcoll.distributed.play import play
from simcoll.distributed.reductions import ReduceOp, check_op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from simcoll.distributed.plans import Choice
    from simcoll.distributed.work import Work

    Array = NDArray[Any]

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "gather", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "root_of", "scatter",
]  # fmt: skip


def root_of(found: ProcessGroup, global_rank: int | None, group_rank: int | None, default: int | None = None) -> int:
    """The group rank of a root or peer given by its global rank or its group rank.

    Raises
    ------
    ValueError
        For both, for neither without a default, and for a rank that is not in the group.
    RuntimeError
        For a group rank that does not exist.
    """
    if global_rank is not None and group_rank is not None:
        raise ValueError("Can't specify both group_rank and global_rank")
    if group_rank is not None:
        if not 0 <= group_rank < found.size():
            raise RuntimeError(f"invalid root rank: {group_rank}; {found!r} has group ranks 0..{found.size() - 1}")
        return group_rank
    if global_rank is None:
        if default is None:
            raise ValueError("Must specify global_rank or group_rank")
        global_rank = default
    return rank_in_group(found, global_rank)


def _shapes(arrays: Sequence[Array]) -> str:
    shown = ", ".join(str(list(array.shape)) for array in arrays[:4])
    return f"{shown}, ... ({len(arrays)} tensors)" if len(arrays) > 4 else shown


def _one_dtype(arrays: Sequence[Array], function: str) -> np.dtype[Any]:
    dtype = arrays[0].dtype
    other = next((array for array in arrays if array.dtype != dtype), None)
    if other is not None:
        raise ValueError(
            f"Invalid usage of tensors with different dtypes in {function}: {dtype.name} and {other.dtype.name}"
        )
    return dtype


def _listed(tensors: Any, parameter: str, found: ProcessGroup) -> list[Array]:
    """A list with a tensor for every rank."""
    arrays = as_arrays(tensors, parameter)
    if len(arrays) != found.size():
        raise RuntimeError(
            f"{parameter}: tensor list size {len(arrays)} does not match world size {found.size()}; expected one tensor per rank"
        )
    return arrays


def _uneven(arrays: Sequence[Array]) -> int | tuple[int, ...]:
    sizes = tuple(array.size for array in arrays)
    return sizes[0] if len(set(sizes)) == 1 else sizes


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: Choice = None,
) -> Work | None:
    """Copy the tensor of one rank (``src`` global, or ``group_src`` in the group) into that of every other."""
    array = as_array(tensor)
    found = member_of(group, "broadcast")
    if found is None:
        return None
    root = root_of(found, src, group_src)
    call = Call("broadcast", "broadcast", array.size, array.dtype, _shapes([array]), root=root, algorithm=algorithm)
    sources = [array] if found.rank() == root else []
    targets = [] if found.rank() == root else [array]
    return play(found, call, sources, targets, [tensor], async_op=async_op)


def all_reduce(
    tensor: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False, *, algorithm: Choice = None
) -> Work | None:
    """Reduce the tensors of all ranks into every one of them, with the same bits."""
    array = as_array(tensor)
    reduce_op = check_op(op, array.dtype, "all_reduce")
    found = member_of(group, "all_reduce")
    if found is None:
        return None
    call = Call("all_reduce", "all_reduce", array.size, array.dtype, _shapes([array]), reduce_op, algorithm=algorithm)
    return play(found, call, [array], [array], [tensor], async_op=async_op)


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: Choice = None,
) -> Work | None:
    """Reduce the tensors of all ranks into that of one rank; the others keep theirs."""
    array = as_array(tensor)
    reduce_op = check_op(op, array.dtype, "reduce")
    found = member_of(group, "reduce")
    if found is None:
        return None
    root = root_of(found, dst, group_dst)
    call = Call("reduce", "reduce", array.size, array.dtype, _shapes([array]), reduce_op, root, algorithm=algorithm)
    return play(found, call, [array], [array] if found.rank() == root else [], [tensor], async_op=async_op)


def all_gather(
    tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False, *, algorithm: Choice = None
) -> Work | None:
    """Collect the tensors of all ranks, in group order, in the list of every rank. Sizes may differ between ranks."""
    outputs, array = as_arrays(tensor_list, "tensor_list"), as_array(tensor)
    found = member_of(group, "all_gather")
    if found is None:
        return None
    outputs = _listed(tensor_list, "tensor_list", found)
    dtype = _one_dtype([array, *outputs], "all_gather")
    own = outputs[found.rank()]
    if own.size != array.size:
        raise RuntimeError(
            f"invalid tensor size at index {found.rank()} (expected {array.shape}, got {own.shape}): rank {found.rank()} puts "
            "its own tensor there"
        )
    call = Call("all_gather", "all_gather", _uneven(outputs), dtype, _shapes(outputs), algorithm=algorithm)
    return play(found, call, [array], outputs, tensor_list, async_op=async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False, *, algorithm: Choice = None
) -> Work | None:
    """Collect the tensors of all ranks in one: concatenated along dimension 0, or stacked along a new one."""
    output, array = as_array(output_tensor, "output_tensor"), as_array(input_tensor, "input_tensor")
    found = member_of(group, "all_gather_into_tensor")
    if found is None:
        return None
    if output.dtype != array.dtype:
        raise RuntimeError(
            f"output tensor must have the same type as input tensor: {output.dtype.name}, {array.dtype.name}"
        )
    _check_whole(output, array, found.size(), "output", "input")
    call = Call("all_gather_into_tensor", "all_gather", array.size, array.dtype, _shapes([array]), algorithm=algorithm)
    return play(found, call, [array], [output], [output_tensor], async_op=async_op)


def _check_whole(whole: Array, part: Array, n: int, whole_name: str, part_name: str) -> None:
    if whole.size != n * part.size:
        raise RuntimeError(
            f"{whole_name} tensor size must be equal to world_size times {part_name} tensor size: {whole.size} elements "
            f"{list(whole.shape)} is not {n} x {part.size} {list(part.shape)}"
        )


def gather(
    tensor: Any,
    gather_list: Any = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: Choice = None,
) -> Work | None:
    """Collect the tensors of all ranks, in group order, in the list of one rank (default: global rank 0)."""
    array = as_array(tensor)
    found = member_of(group, "gather")
    if found is None:
        return None
    root = root_of(found, dst, group_dst, default=0)
    outputs: list[Array] = []
    if found.rank() == root:
        if not gather_list:
            raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
        outputs = _listed(gather_list, "gather_list", found)
        _one_dtype([array, *outputs], "gather")
        _check_equal(outputs, array, "gather_list")
    elif gather_list:
        raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
    call = Call("gather", "gather", array.size, array.dtype, _shapes([array]), root=root, algorithm=algorithm)
    return play(found, call, [array], outputs, list(gather_list or []), async_op=async_op)


def _check_equal(arrays: Sequence[Array], like: Array, parameter: str) -> None:
    for index, array in enumerate(arrays):
        if array.size != like.size:
            raise RuntimeError(
                f"invalid tensor size at index {index} of {parameter} (expected {like.shape}, got {array.shape}): all tensors "
                "must have the same size"
            )


def scatter(
    tensor: Any,
    scatter_list: Any = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: Choice = None,
) -> Work | None:
    """Give every rank its tensor of the list of one rank (default: global rank 0)."""
    array = as_array(tensor)
    found = member_of(group, "scatter")
    if found is None:
        return None
    root = root_of(found, src, group_src, default=0)
    inputs: list[Array] = []
    if found.rank() == root:
        if not scatter_list:
            raise ValueError("Argument ``scatter_list`` must be specified on source rank.")
        inputs = as_arrays(scatter_list, "scatter_list")
        if len(inputs) != found.size():
            raise RuntimeError(
                f"Incorrect input list size {len(inputs)}. Input list size should be {found.size()}, same as size of the process group."
            )
        _one_dtype([array, *inputs], "scatter")
        _check_equal(inputs, array, "scatter_list")
    elif scatter_list:
        raise ValueError("Argument ``scatter_list`` must NOT be specified on non-source ranks.")
    call = Call("scatter", "scatter", array.size, array.dtype, _shapes([array]), root=root, algorithm=algorithm)
    return play(found, call, inputs, [array], [tensor], async_op=async_op)


def reduce_scatter(
    output: Any,
    input_list: Any,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | None:
    """Rank i gets the reduction of entry i of the lists of all ranks. Entries may differ in size."""
    array, inputs = as_array(output, "output"), as_arrays(input_list, "input_list")
    reduce_op = check_op(op, array.dtype, "reduce_scatter")
    found = member_of(group, "reduce_scatter")
    if found is None:
        return None
    if len(inputs) != found.size():
        raise RuntimeError(
            f"invalid input tensor list size, must be world size: got {len(inputs)}, world size {found.size()}"
        )
    dtype = _one_dtype([array, *inputs], "reduce_scatter")
    own = inputs[found.rank()]
    if own.size != array.size:
        raise RuntimeError(
            f"output tensor has {list(array.shape)}, but entry {found.rank()} of the input list has {list(own.shape)}"
        )
    call = Call(
        "reduce_scatter", "reduce_scatter", _uneven(inputs), dtype, _shapes(inputs), reduce_op, algorithm=algorithm
    )
    return play(found, call, inputs, [array], [output], async_op=async_op)


def reduce_scatter_tensor(
    output: Any,
    input: Any,  # noqa: A002  # torch's name
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | None:
    """Rank i gets part i (along dimension 0, concatenated or stacked) of the reduction of the inputs of all ranks."""
    array, whole = as_array(output, "output"), as_array(input, "input")
    reduce_op = check_op(op, array.dtype, "reduce_scatter_tensor")
    found = member_of(group, "reduce_scatter_tensor")
    if found is None:
        return None
    if array.dtype != whole.dtype:
        raise RuntimeError(
            f"input tensor must be the same type as the output tensor: {whole.dtype.name}, {array.dtype.name}"
        )
    _check_whole(whole, array, found.size(), "input", "output")
    call = Call(
        "reduce_scatter_tensor",
        "reduce_scatter",
        array.size,
        array.dtype,
        _shapes([whole]),
        reduce_op,
        algorithm=algorithm,
    )
    return play(found, call, [whole], [array], [output], async_op=async_op)


all_gather_single = all_gather_into_tensor
reduce_scatter_single = reduce_scatter_tensor


def _splits(array: Array, splits: Sequence[int] | None, n: int) -> tuple[int, ...]:
    """Elements for every rank, from numbers of rows."""
    rows = array.shape[0] if array.ndim else array.size
    if not splits:
        if rows % n:
            raise RuntimeError(f"Tensor's dim 0 does not divide equally across group size: {rows} rows, {n} ranks")
        splits = [rows // n] * n
    if len(splits) != n:
        raise RuntimeError(f"Number of tensor splits not equal to group size: {len(splits)} splits, {n} ranks")
    if sum(splits) != rows or min(splits) < 0:
        raise RuntimeError(f"Split sizes doesn't match total dim 0 size: {list(splits)} and {rows} rows")
    each = array.size // rows if rows else 0
    return tuple(int(split) * each for split in splits)


def all_to_all_single(
    output: Any,
    input: Any,  # noqa: A002  # torch's name
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | None:
    """Cut the input along dimension 0, send part i to rank i, and join what comes from all ranks."""
    target, source = as_array(output, "output"), as_array(input, "input")
    found = member_of(group, "all_to_all_single")
    if found is None:
        return None
    dtype = _one_dtype([target, source], "all_to_all_single")
    if not (target.flags.c_contiguous and source.flags.c_contiguous):
        raise ValueError("Tensors must be contiguous")
    n = found.size()
    splits = (_splits(source, input_split_sizes, n), _splits(target, output_split_sizes, n))
    shown = f"{_shapes([source])} -> {_shapes([target])}"
    call = Call("all_to_all_single", "all_to_all", (), dtype, shown, splits=splits, algorithm=algorithm)
    return play(found, call, [source], [target], [output], async_op=async_op)


def all_to_all(
    output_tensor_list: Any,
    input_tensor_list: Any,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: Choice = None,
) -> Work | None:
    """Send entry i of the input list to rank i; entry i of the output list comes from rank i."""
    as_arrays(output_tensor_list, "output_tensor_list")
    as_arrays(input_tensor_list, "input_tensor_list")
    found = member_of(group, "all_to_all")
    if found is None:
        return None
    outputs = _listed(output_tensor_list, "output_tensor_list", found)
    inputs = _listed(input_tensor_list, "input_tensor_list", found)
    dtype = _one_dtype([*outputs, *inputs], "all_to_all")
    splits = (tuple(array.size for array in inputs), tuple(array.size for array in outputs))
    call = Call("all_to_all", "all_to_all", (), dtype, _shapes(inputs), splits=splits, algorithm=algorithm)
    return play(found, call, inputs, outputs, output_tensor_list, async_op=async_op)


def barrier(
    group: Any = None,
    async_op: bool = False,
    device_ids: Any = None,  # noqa: ARG001  # torch's signature
    timeout: Any = None,
    *,
    algorithm: Choice = None,
) -> Work | None:
    """Go on only when every rank of the group has called. ``device_ids`` has no meaning here."""
    found = member_of(group, "barrier")
    if found is None:
        return None
    call = Call("barrier", "barrier", 0, np.dtype(np.uint8), algorithm=algorithm)
    return play(found, call, [], [], [], async_op=async_op, timeout=timeout)
