"""Collectives as PyTorch's profiler records them: kinds, sizes and groups, in the dialects of its
versions.

Metadata is in the arguments of kernels, or of the host's ``record_param_comms`` around the launch.
Before PyTorch 2.2 there are only the dimensions of the input, if shapes were recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, TypeAlias

from simcoll.core.vocabulary import CallKind

if TYPE_CHECKING:
    from simcoll.jobs.trace_stream import Arguments

__all__ = [
    "CUSTOM_KERNEL",
    "LIBRARY_KERNEL",
    "CommRecord",
    "GroupRecord",
    "kind_of",
    "kind_of_kernel",
    "record_of",
]

LIBRARY_KERNEL = re.compile(r"(?:nccl|rccl|msccl)\w{0,16}Kernel", re.IGNORECASE)
"""Kernels of NCCL, RCCL and MSCCL."""
CUSTOM_KERNEL = re.compile(
    r"deep_?ep\b|deep_ep::|nvshmem|cross_device_reduce|multimem_|one_shot_all_?reduce"
    r"|two_shot_all_?reduce|symm_mem|quick_?reduce|oneccl|trtllm::.*allreduce|mscclpp"
    r"|rocshmem|mori::|flashinfer::.*allreduce",
    re.IGNORECASE,
)
"""Kernels that communicate without a library that is known here."""

_ITEM_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "unsigned char": 1, "signed char": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "half": 2, "bfloat16": 2, "short": 2, "uint16": 2, "c10::half": 2, "c10::bfloat16": 2,
    "short int": 2,
    "int": 4, "float": 4, "uint32": 4, "complexhalf": 4,
    "long": 8, "double": 8, "long int": 8, "uint64": 8, "complexfloat": 8,
    "c10::complex<float>": 8,
    "complexdouble": 16, "c10::complex<double>": 16,
}  # fmt: skip
RecordKind: TypeAlias = CallKind | Literal["send", "recv", "messages", "wait", ""]
"""What an event records; empty if it does not say."""

_KINDS: tuple[tuple[str, RecordKind], ...] = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("wait", "wait"),
    ("sendrecv", "messages"),
    ("send", "send"),
    ("recv", "recv"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
)
"""The start of a name without underscores and prefixes, and the kind; in this order."""
LARGEST_ELEMENTS = 1 << 50


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group as an event names it.

    Attributes
    ----------
    name, description
        As PyTorch calls it; empty if absent.
    ranks
        Its global ranks, if they are stated in full.
    size
        Number of its ranks; 0 if absent.
    """

    name: str = ""
    description: str = ""
    ranks: tuple[int, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class CommRecord:
    """What one event says of a collective or message.

    Attributes
    ----------
    kind
        As in a workload, ``"send"``, ``"recv"``, ``"messages"`` for several of both, ``"wait"``, or
        empty if it does not say.
    size_bytes
        As nccl-tests counts it; -1 if it does not say.
    stated
        Whether the event states it as metadata; otherwise it is that of the recorded input, which
        for an all_gather is only the rank's part.
    dtype
        As the event spells it.
    group
        The group.
    sequence
        Number of the call in its group; -1 if absent.
    peers
        Source and target of a message, as group ranks; -1 if absent.
    """

    kind: RecordKind = ""
    size_bytes: int = -1
    stated: bool = False
    dtype: str = ""
    group: GroupRecord = GroupRecord()
    sequence: int = -1
    peers: tuple[int, int] = (-1, -1)


def kind_of(name: str) -> RecordKind:
    """The kind of a collective by PyTorch's name; empty for an unknown one.

    >>> kind_of("_allgather_base"), kind_of("nccl:_reduce_scatter_base"), kind_of("all_to_allv")
    ('all_gather', 'reduce_scatter', 'all_to_all')
    """
    bare = name.rpartition(":")[2].replace("_", "").lower()
    return next((kind for start, kind in _KINDS if bare.startswith(start)), "")


def kind_of_kernel(name: str) -> RecordKind:
    """The kind that the name of a library's kernel states; empty for RCCL's generic kernels.

    >>> kind_of_kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)")
    'reduce_scatter'
    """
    match = re.search(r"Kernel_([A-Za-z]+)", name)
    return kind_of(match[1]) if match else ""


def item_bytes(dtype: object) -> int:
    """Bytes of an element; 0 for an unknown type."""
    return _ITEM_BYTES.get(dtype.lower(), 0) if isinstance(dtype, str) else 0


def record_of(arguments: Arguments, name: str, groups: Mapping[str, GroupRecord]) -> CommRecord:
    """Read an event's record of a collective; ``groups`` are those of the file, by name."""
    title = arguments.collective if isinstance(arguments.collective, str) else name
    kind = kind_of(title)
    size_bytes = _stated_bytes(arguments)
    stated = size_bytes >= 0
    dtype = arguments.dtype if isinstance(arguments.dtype, str) else ""
    if not stated:
        size_bytes = _bytes_of_dimensions(arguments)
        types = arguments.types
        if not dtype and isinstance(types, list) and types and isinstance(types[0], str):
            dtype = types[0]
    return CommRecord(
        kind,
        size_bytes,
        stated,
        dtype,
        _group(arguments, groups),
        _whole(arguments.sequence, -1),
        (_whole(arguments.source_rank, -1), _whole(arguments.target_rank, -1)),
    )


def _whole(value: object, otherwise: int) -> int:
    """A whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        return otherwise
    return value


def _stated_bytes(arguments: Arguments) -> int:
    elements = [_whole(arguments.elements_in, -1), _whole(arguments.elements_out, -1)]
    width = item_bytes(arguments.dtype)
    if max(elements) < 0 or not width or max(elements) > LARGEST_ELEMENTS:
        return -1
    return max(elements) * width


def _bytes_of_dimensions(arguments: Arguments) -> int:
    """Bytes of the first input, a tensor or a list of tensors; -1 if they are not recorded."""
    dimensions, types = arguments.dimensions, arguments.types
    if not (isinstance(dimensions, list) and isinstance(types, list) and dimensions and types):
        return -1
    shape = dimensions[0]
    if not isinstance(shape, list):
        return -1
    tensors = shape if shape and isinstance(shape[0], list) else [shape]
    width = item_bytes(types[0])
    sizes = [size for tensor in tensors if isinstance(tensor, list) for size in tensor]
    if not width or any(_whole(size, -1) < 0 for size in sizes):
        return -1
    total = sum(prod(tensor) for tensor in tensors if isinstance(tensor, list)) * width
    return total if total < LARGEST_ELEMENTS else -1


def _group(arguments: Arguments, groups: Mapping[str, GroupRecord]) -> GroupRecord:
    name = arguments.group_name if isinstance(arguments.group_name, str) else ""
    description = arguments.group_description
    size = _whole(arguments.group_size, 0)
    listed = groups.get(name, GroupRecord())
    ranks = _ranks(arguments, size) or listed.ranks
    return GroupRecord(
        name,
        description if isinstance(description, str) else listed.description,
        ranks,
        size or len(ranks),
    )


def _ranks(arguments: Arguments, size: int) -> tuple[int, ...]:
    """The ranks of a group, if they are stated in full: the text is cut after 30 of them."""
    text = arguments.group_ranks
    if isinstance(text, str) and "..." not in text:
        ranks = tuple(int(number) for number in re.findall(r"[0-9]{1,9}", text))
        if ranks and len(ranks) == (size or len(ranks)):
            return ranks
    start, stride = _whole(arguments.first_rank, -1), _whole(arguments.rank_stride, 0)
    if 0 < size < 2**24 and 0 <= start < 2**24 and 0 < stride < 2**24:
        return tuple(range(start, start + size * stride, stride))
    return ()
