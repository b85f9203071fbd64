"""Buffers of operations in flight, and accesses to them before ``wait()``.

As CUDA's stream sanitizer does, every operator's arguments are compared with the buffers that a
collective or a message still reads or writes: a program may read its inputs and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from simcoll.distributed.runtime.records import Site
from simcoll.distributed.runtime.work import Work

__all__ = ["IN_PLACE", "SHAPES_ONLY", "Flights", "has_no_gaps", "overlap", "overlaps", "span"]

SHAPES_ONLY = frozenset(
    (
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
        *("randint_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
        *("record_stream", "is_pinned", "resize_", "set_", "is_same_size", "_unsafe_view"),
        *("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "_pin_memory"),
    )
)
"""Operators that look at the shape of a tensor, not at its elements."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """The buffers of an operation in flight, by name."""

    work: Work
    group: Any
    queue: Any
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    on_gpu: bool


class Flights:
    """The operations of a rank for which its program has not waited, in order of issue.

    Parameters
    ----------
    tell
        Notes a finding.

    Attributes
    ----------
    open
        Their buffers.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.open: dict[Work, _Flight] = {}

    def begin(
        self,
        work: Work,
        group: Any,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        queue: Any,
        on_gpu: bool,
    ) -> None:
        """Note an operation, of streams of a GPU or not; fake tensors have no contents to
        protect. Operations of one ``queue`` that is not None run in the order of their calls.
        """
        if not any(isinstance(tensor, FakeTensor) for tensor in (*inputs, *outputs)):
            self.open[work] = _Flight(work, group, queue, tuple(inputs), tuple(outputs), on_gpu)

    def land(self, works: Sequence[Work]) -> None:
        """End operations whose ends the program knows, and the collectives before them in their
        groups, which run in order.
        """
        for work in works:
            landed = self.open.get(work)
            if landed is None:
                continue
            for earlier in list(self.open.values()):
                if earlier.work is work:
                    break
                if earlier.group is landed.group and not (earlier.work.entry.p2p or work.entry.p2p):
                    del self.open[earlier.work]
            del self.open[work]

    def on_gpu(self) -> list[Work]:
        """The operations on streams of the GPU, which end when a program waits for it."""
        return [flight.work for flight in self.open.values() if flight.on_gpu]

    def check_operator(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], site: Callable[[], Site]
    ) -> None:
        """Compare the arguments of an operator with the buffers in flight.

        Raises
        ------
        RuntimeError
            If it reads an output, or writes an input or output, before the operation has ended.
        """
        if isinstance(func, HigherOrderOperator):  # such as FlexAttention, which has no schema
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, torch.Tensor):
                    self.check_access(func.name(), value, site, writes=False)
            return
        name = func._schema.name.partition("::")[2]
        for position, argument in enumerate(func._schema.arguments):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if name == "set_" or (not writes and (name in SHAPES_ONLY or func.is_view)):
                continue  # set_ exchanges the memory of a tensor, and writes none
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor):
                    self.check_access(name, tensor, site, writes=writes)

    def check_access(
        self, name: str, tensor: torch.Tensor, site: Callable[[], Site], *, writes: bool
    ) -> None:
        """Compare one access with the buffers in flight; errors as of :meth:`check_operator`."""
        for flight in self.open.values():
            for side, buffers in (("output", flight.outputs), ("input", flight.inputs)):
                if (side == "input" and not writes) or not any(
                    overlap(tensor, buffer) for buffer in buffers
                ):
                    continue
                verb = "writes" if writes else "reads"
                access = (
                    f"{name} at {site()} {verb} the {side} buffer of {flight.work.name} (issued at "
                    f"{flight.work.entry.site}) "
                )
                if not flight.work.done:
                    raise RuntimeError(
                        f"{access}while the operation is in flight; call wait() before touching it"
                    )
                self._tell(f"{access}without wait() before: here it had ended, by chance")

    def check_call(
        self,
        name: str,
        queue: Any,
        buffers: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
        site: Callable[[], Site],
    ) -> None:
        """Compare the inputs and outputs of a call with the buffers in flight of calls that are
        not before it in its ``queue``; errors as of :meth:`check_operator`.
        """
        every = self.open
        self.open = {
            work: flight for work, flight in every.items() if queue is None or flight.queue != queue
        }
        try:
            for writes, tensors in zip((False, True), buffers, strict=True):
                for tensor in tensors:
                    self.check_access(name, tensor, site, writes=writes)
        finally:
            self.open = every

    def writers(
        self, group: Any, buffers: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]
    ) -> list[Work]:
        """The collectives of a group in flight that write a buffer of a call, or read one that it
        writes.
        """
        inputs, outputs = buffers
        return [
            flight.work
            for flight in self.open.values()
            if flight.group is group
            and not (flight.work.done or flight.work.entry.p2p)
            and (
                any(overlap(a, b) for a in flight.outputs for b in (*inputs, *outputs))
                or any(overlap(a, b) for a in flight.inputs for b in outputs)
            )
        ]


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor lies in: from the first to after the last element."""
    size = tensor.element_size()
    begin = tensor.storage_offset() * size
    reach = sum(
        (length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return begin, begin + (reach + 1) * size


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors share memory."""
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return False
    if not a.numel() or not b.numel():
        return False
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    (begin_a, end_a), (begin_b, end_b) = span(a), span(b)
    if begin_a >= end_b or begin_b >= end_a:
        return False
    return has_no_gaps(a) or has_no_gaps(b) or _share_element(a, b)


def has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill its :func:`span`."""
    begin, end = span(tensor)
    return bool(end - begin == tensor.numel() * tensor.element_size())


def _share_element(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors with gaps share an element: by marking those of one."""
    if a.dtype is not b.dtype:
        return True
    marks = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.bool)
    marks.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(marks.as_strided(b.shape, b.stride(), b.storage_offset()).any())


IN_PLACE = ("all_reduce", "all_reduce_coalesced", "broadcast", "reduce")
"""Calls whose outputs are their inputs."""


def overlaps(
    name: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    rank: int,
    size: int,
) -> Iterator[str]:
    """Overlaps within the buffers of one call, as sentences.

    Outputs may not share memory with each other, nor with inputs. Allowed are calls in place: where
    input and output are one tensor, or one is the part of the group ``rank`` of ``size`` in the
    other.
    """
    if any(
        overlap(output, earlier)
        for position, output in enumerate(outputs)
        for earlier in outputs[:position]
    ):
        yield "outputs share memory with each other, and overwrite one another"
    if name in IN_PLACE:
        return
    for i, source in enumerate(inputs):
        for j, target in enumerate(outputs):
            in_list = (len(inputs) == size and i == rank) or (len(outputs) == size and j == rank)
            if overlap(source, target) and not _in_place(source, target, rank, size, in_list):
                yield "an input shares memory with an output, which may overwrite it too early"
                return


def _in_place(
    source: torch.Tensor, target: torch.Tensor, rank: int, size: int, in_list: bool
) -> bool:
    """Whether two tensors are one, for an entry ``in_list``, or one is its part in the other."""
    (begin, end), (target_begin, target_end) = span(source), span(target)
    if (begin, end) == (target_begin, target_end):
        return in_list or size == 1
    length, longer = sorted((end - begin, target_end - target_begin))
    return (longer, abs(begin - target_begin)) == (length * size, rank * length)
