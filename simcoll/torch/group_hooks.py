"""Hooks of process groups, from PyTorch 2.14 on: called before and after each operation is issued.

PyTorch calls them from C++, past a group written in Python; here the group calls them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from simcoll.errors import ConfigError
from simcoll.torch.rank_threads import current_thread_or_none
from simcoll.torch.replacing import in_ranks

__all__ = ["GroupHooks", "hook_replacements"]

_IN_PLACE = ("all_reduce", "broadcast", "reduce")
_NAMES = {
    "all_reduce": "ALLREDUCE",
    "broadcast": "BROADCAST",
    "reduce": "REDUCE",
    "all_gather": "ALLGATHER",
    "all_gather_into_tensor": "ALLGATHER",
    "gather": "GATHER",
    "scatter": "SCATTER",
    "reduce_scatter": "REDUCE_SCATTER",
    "reduce_scatter_tensor": "REDUCE_SCATTER",
    "all_to_all": "ALLTOALL",
    "all_to_all_single": "ALLTOALL",
    "barrier": "BARRIER",
    "isend": "SEND",
    "irecv": "RECV",
}


@dataclass(frozen=True)
class _PreHookArguments:
    """What a pre-hook is called with, as ``PreHookArgs`` of PyTorch."""

    name: Any
    op_id: int
    async_op: bool
    input_tensors: list[torch.Tensor]
    output_tensors: list[torch.Tensor]
    root: int


@dataclass(frozen=True)
class _PostHookArguments:
    """What a post-hook is called with, as ``PostHookArgs`` of PyTorch."""

    name: Any
    op_id: int
    async_op: bool
    work: Any


@dataclass
class GroupHooks:
    """The hooks of one rank's handle of a group, by the numbers that the program gave them."""

    pre_hooks: dict[int, Callable[[Any], None]] = field(default_factory=dict)
    post_hooks: dict[int, Callable[[Any], None]] = field(default_factory=dict)
    operations: int = 0

    def begin(
        self,
        function: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        opts: Any = None,
        *,
        async_op: bool = False,
        root: int = -1,
    ) -> Callable[[Any], None] | None:
        """Call the pre-hooks of an operation; returns what calls its post-hooks with its Work,
        None without hooks. ``async_op`` and ``root`` are those of the options, if it has some.
        """
        number, self.operations = self.operations, self.operations + 1
        if not self.pre_hooks and not self.post_hooks:
            return None
        if opts is not None:
            async_op, root = opts.asyncOp, getattr(opts, "rootRank", -1)
        word = _NAMES.get(function, "UNKNOWN")
        # PyTorch 2.13 has no such names.
        name = getattr(c10d.HookOpName, word) if hasattr(c10d, "HookOpName") else word
        if function in _IN_PLACE:
            inputs, outputs = inputs or outputs, ()
        arguments = _PreHookArguments(name, number, async_op, list(inputs), list(outputs), root)
        for hook in [*self.pre_hooks.values()]:
            hook(arguments)

        def end(work: Any) -> None:
            for hook in [*self.post_hooks.values()]:
                hook(_PostHookArguments(name, number, async_op, work))

        return end


class _NanCheck:
    """A hook that refuses NaN in what a rank sends."""

    def __init__(self, group: Any) -> None:
        self.hooks: GroupHooks = group.hooks
        self.number = min([0, *self.hooks.pre_hooks]) - 1  # a program numbers its hooks from 0 on
        self.hooks.pre_hooks[self.number] = self.check

    def check(self, arguments: _PreHookArguments) -> None:
        for tensor in arguments.input_tensors:
            if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
                raise RuntimeError(f"{arguments.name}: an input tensor has NaN values")

    def remove(self) -> None:
        """Stop checking."""
        self.hooks.pre_hooks.pop(self.number, None)


def _do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing: the run records its operations itself."""


def hook_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of PyTorch's own hooks, which attach to groups in C++."""
    if not hasattr(c10d, "NanCheckHook"):
        return []
    check, record = c10d.NanCheckHook.attach, c10d.FlightRecorderHook.attach

    def attach_check(pg: Any) -> Any:
        return check(pg) if current_thread_or_none() is None else _NanCheck(pg)

    def attach_record(pg: Any, *global_ranks: Any, **keywords: Any) -> Any:
        if current_thread_or_none() is None:
            return record(pg, *global_ranks, **keywords)
        raise ConfigError(
            "FlightRecorderHook.attach records in memory of PyTorch's that other processes read; "
            "a simulated run is recorded by spawn(..., record=) or --record"
        )

    # From PyTorch 2.15 on, which attaches one to every new group.
    attached = getattr(distributed_c10d, "_maybe_attach_flight_recorder", None)
    by_default = (
        []
        if attached is None
        else [(distributed_c10d, "_maybe_attach_flight_recorder", in_ranks(attached, _do_nothing))]
    )
    return [
        *by_default,
        (c10d.NanCheckHook, "attach", staticmethod(attach_check)),
        (c10d.FlightRecorderHook, "attach", staticmethod(attach_record)),
    ]
