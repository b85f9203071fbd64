"""Work of PyTorch's operators on a GPU: the bytes that they move, and their matrix products.

Most operators read their inputs and write their outputs. Those that read or write a part only, such
as a lookup, are listed by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

__all__ = [
    "UNKNOWN_GROUPS",
    "OperatorTraits",
    "Product",
    "element_bytes",
    "multiplies",
    "named_arguments",
    "product_of",
    "sparse_flops",
    "tensors_of",
    "traffic_bytes",
    "traits_of",
]

UNKNOWN_GROUPS = "the sizes of groups are unknown on fake tensors; they count as equal"
_FREE = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "lift_fresh",
    "is_same_size",
    "_unsafe_view",
    "_reshape_alias",
    "resize_",
    "set_",
}
"""Operators that launch no kernel, besides views and queries."""
_WRITE = {
    "_foreach_zero_",
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "fill_",
    "full_like",
    "geometric_",
    "log_normal_",
    "new_full",
    "new_ones",
    "new_zeros",
    "normal_",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "random_",
    "uniform_",
    "zero_",
    "zeros_like",
}
"""They write, and read no tensor."""
_COPY = {"_foreach_copy_", "copy_"}
"""They write their factor argument, and read the matrix."""
_LOOK_UP = {
    "_embedding_bag",
    "embedding",
    "gather",
    "index",
    "index_select",
    "nll_loss2d_forward",
    "nll_loss_forward",
    "take",
}
"""They read the elements that indices select."""
_SPREAD_IN = {
    "index_add_",
    "index_copy_",
    "index_fill_",
    "index_put_",
    "scatter_",
    "scatter_add_",
    "scatter_reduce_",
}
"""They change the elements that indices select, in place."""
_SPREAD = {
    "embedding_dense_backward",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "nll_loss2d_backward",
    "nll_loss_backward",
    "scatter",
    "scatter_add",
    "scatter_reduce",
}
"""They write a new tensor, and change the elements of it that indices select."""
_MADE_ANEW = {"embedding_dense_backward", "nll_loss2d_backward", "nll_loss_backward"}
"""Those of them that begin with zeros; the operands with a copy."""
_GATHERED_IN = "all_gather_copy_in"
"""FSDP's copy into its part of a buffer for all ranks."""

_FACTORS = {
    "_addmm_activation": ("mat1", "mat2"),
    "_grouped_mm": ("self", "mat2"),
    "_int_mm": ("self", "mat2"),
    "_scaled_grouped_mm": ("self", "mat2"),
    "_scaled_grouped_mm_v2": ("self", "mat2"),
    "_scaled_mm": ("self", "mat2"),
    "_scaled_mm_v2": ("self", "mat2"),
    "_sparse_addmm": ("mat1", "mat2"),
    "addbmm": ("batch1", "batch2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "bmm": ("self", "mat2"),
    "mm": ("self", "mat2"),
}
"""The arguments of matrix products that are multiplied."""
_SPARSE_FACTORS = {
    "_cslt_sparse_mm": ("compressed_A", "dense_B"),
    "_sparse_semi_structured_addmm": ("mat1", "mat2"),
    "_sparse_semi_structured_mm": ("mat1", "mat2"),
}
"""The same for 2:4 sparsity, whose factor factor has half of its elements, and which tensor cores
multiply at twice the rate."""


_SPARSE_LINEAR = "_sparse_semi_structured_linear"
_SCALARS = {type(None), bool, int, float, str, torch.dtype, torch.device}
"""Types of most arguments that are no tensors."""


@dataclass(frozen=True, slots=True)
class OperatorTraits:
    """What is the same for all calls of an operator.

    Attributes
    ----------
    name
        Without its namespace.
    launches
        Whether it launches a kernel, if it returns or changes a tensor.
    mutable
        Whether it changes tensors.
    writes
        Names of the arguments that it changes.
    outputs
        Those of them that it does not read: ``out``.
    """

    name: str
    launches: bool
    mutable: bool
    writes: tuple[str, ...]
    outputs: tuple[str, ...]


class Product(NamedTuple):
    """A batch of matrix products, [rows, depth] x [depth, columns], and what is assumed of it."""

    rows: float
    columns: int
    depth: float
    batch: int = 1
    assumption: str = ""


@cache
def traits_of(func: Any) -> OperatorTraits:
    """The traits of an operator."""
    if isinstance(func, HigherOrderOperator):
        return OperatorTraits(func.name(), True, False, (), ())
    name = func.overloadpacket.__name__
    outputs = [argument for argument in func._schema.arguments if _is_output(argument)]
    return OperatorTraits(
        name,
        not (func.is_view or name in _FREE),
        func._schema.is_mutable,
        tuple(argument.name for argument in outputs),
        tuple(argument.name for argument in outputs if argument.kwarg_only),
    )


def _is_output(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def named_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    return {**dict(zip(_argument_names(func), args, strict=False)), **kwargs}


@cache
def _argument_names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, or in lists of it."""
    if isinstance(value, torch.Tensor):
        return [value]
    if type(value) in _SCALARS:
        return []
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def element_bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements: an expanded dimension has one, a sparse tensor those that
    are not zero, with their indices.
    """
    if tensor.layout is not torch.strided:
        return sum(part.numel() * part.element_size() for part in _parts(tensor))
    count: int = tensor.numel()
    if count and not tensor.is_nested and 0 in tensor.stride():
        lengths = zip(tensor.shape, tensor.stride(), strict=True)
        count = prod(int(length) for length, stride in lengths if stride)
    size: int = tensor.element_size()
    return count * size


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The indices and values of a sparse tensor."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def _total(tensors: Iterable[torch.Tensor]) -> int:
    return sum(map(element_bytes, tensors))


def traffic_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """The bytes that a call reads and writes."""
    traits, results = traits_of(func), tensors_of(result)
    if isinstance(func, HigherOrderOperator):
        return _total([*tensors_of((args, kwargs)), *results])
    arguments = named_arguments(func, args, kwargs)
    outputs = _results(traits, arguments, results)
    name = traits.name
    if name in _WRITE:
        return _total(outputs)
    if name in _COPY:
        return _total([*tensors_of(args[1:]), *outputs])
    if name == _GATHERED_IN:
        return 2 * _total(tensors_of(args[0]))
    if name in _LOOK_UP:
        return _lookup_bytes(args, kwargs, results)
    if name in _SPREAD_IN:
        return _scatter_bytes(args[1:], kwargs)
    if name in _SPREAD:
        copied = 0 if name in _MADE_ANEW else _total(results)
        source = args if name == "embedding_dense_backward" else args[1:]
        sparse = 0 if name.startswith("nll_loss") else _scatter_bytes(source, kwargs)
        return _total(results) + copied + sparse
    inputs = [
        tensor
        for argument, value in arguments.items()
        if argument not in traits.outputs
        for tensor in tensors_of(value)
    ]
    return _total([*inputs, *outputs])


def _results(
    traits: OperatorTraits, arguments: Mapping[str, Any], results: list[torch.Tensor]
) -> list[torch.Tensor]:
    """The tensors that a call returns or changes, each once."""
    if not traits.writes:
        return results
    changed = [tensor for name in traits.writes for tensor in tensors_of(arguments.get(name))]
    identities = set(map(id, changed))  # in-place operators return what they change
    return [*changed, *(tensor for tensor in results if id(tensor) not in identities)]


def _is_index(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _lookup_bytes(
    args: Sequence[Any], kwargs: Mapping[str, Any], results: list[torch.Tensor]
) -> int:
    """Bytes of a lookup: indices, the elements that they select, and the outputs."""
    table, *operands = tensors_of((args, kwargs))
    indices = [tensor for tensor in operands if _is_index(tensor)]
    selected = sum(tensor.numel() for tensor in indices) * table.element_size()
    outputs = _total(results)
    return _total(indices) + max(outputs, int(selected)) + outputs


def _scatter_bytes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Bytes of elements that indices select: read, changed and stored, with the indices."""
    tensors = tensors_of((args, kwargs))
    indices = _total(tensor for tensor in tensors if _is_index(tensor))
    return indices + 3 * _total(tensor for tensor in tensors if not _is_index(tensor))


def multiplies(func: Any) -> bool:
    """Whether an operator is a matrix product, of dense or sparse factors."""
    name = traits_of(func).name
    return name in _FACTORS or name in _SPARSE_FACTORS or name == _SPARSE_LINEAR


def product_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Product | None:
    """The matrix product of a call; None if it is none."""
    name = traits_of(func).name
    if name in _SPARSE_FACTORS:
        arguments = named_arguments(func, args, kwargs)
        factor, matrix = (arguments[part] for part in _SPARSE_FACTORS[name])
        return Product(int(factor.shape[0]), int(matrix.shape[1]), int(matrix.shape[0]) // 2)
    if name == _SPARSE_LINEAR:
        rows, weight = args[0], args[1]
        return Product(rows.numel() // rows.shape[-1], int(weight.shape[0]), int(weight.shape[1]))
    if name not in _FACTORS:
        return None
    arguments = named_arguments(func, args, kwargs)
    factor, matrix = (arguments[part] for part in _FACTORS[name])
    if arguments.get("offs") is not None:
        return _product_of_groups(factor, matrix, arguments["offs"])
    if factor.layout is not torch.strided or matrix.layout is not torch.strided:
        return None  # a sparse factor: see sparse_flops
    batch = int(factor.shape[0]) if factor.dim() == 3 else 1
    return Product(int(factor.shape[-2]), int(matrix.shape[-1]), int(factor.shape[-1]), batch)


def _product_of_groups(
    factor: torch.Tensor, matrix: torch.Tensor, offsets: torch.Tensor
) -> Product:
    """The mean product of a group: ``offsets`` end the groups in the rows of the factor, in the
    columns of the matrix, or where both have two dimensions in the depth.

    Groups without elements cost nothing, where the offsets are not fake.
    """
    rows, depth, columns = int(factor.shape[-2]), int(factor.shape[-1]), int(matrix.shape[-1])
    groups, total = _groups(offsets)
    assumption = UNKNOWN_GROUPS if total is None else ""
    if factor.dim() == 2 and matrix.dim() == 3:
        mean = (rows if total is None else total) / groups
        return Product(mean, columns, depth, groups, assumption)
    if factor.dim() == 3:
        mean = (columns if total is None else total) / groups
        return Product(rows, round(mean), depth, groups, assumption)
    mean = (depth if total is None else total) / groups
    return Product(rows, columns, mean, groups, assumption)


def _groups(offsets: torch.Tensor) -> tuple[int, int | None]:
    """The number of groups with elements, and of their elements; None if it is unknown."""
    if isinstance(offsets, FakeTensor):
        return max(1, offsets.numel()), None
    ends = offsets.tolist()
    filled = sum(end > begin for begin, end in zip([0, *ends], ends, strict=False))
    return max(1, filled), int(ends[-1]) if ends else 0


def sparse_flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Operations of a product with a sparse factor: two for each element that is not zero, and each
    column; 0 for other operators.
    """
    name = traits_of(func).name
    if name not in _FACTORS:
        return 0.0
    arguments = named_arguments(func, args, kwargs)
    factor, matrix = (arguments[part] for part in _FACTORS[name])
    if factor.layout is torch.strided:
        factor, matrix = matrix, factor
        columns = int(matrix.shape[-2])
    else:
        columns = int(matrix.shape[-1])
    elements = _parts(factor)
    return 2.0 * (elements[-1].numel() if elements else 0) * columns
