"""Per-rank registrations with PyTorch, whose registry is per process.

Each rank's copy of a module defines the same operators. The first definition counts, and dispatches
(also for fake tensors and backward) to the functions that the running rank has registered. Kernels
that a rank has for CUDA alone also serve its simulated GPUs, whose tensors PyTorch dispatches to
the CPU. When the run ends, the registry forgets what ranks have registered, but not what PyTorch
and other shared modules have, which stay loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

import torch
from torch._library import custom_ops
from torch._library.opaque_object import _OPAQUE_TYPES_BY_NAME
from torch.utils import _pytree

from simcoll.torch.gpu_registers import (
    COMPOSITE,
    KEYS_OF_CPU,
    check_device,
    has_kernel,
    sees_gpus,
)
from simcoll.torch.own_modules import OwnModules
from simcoll.torch.rank_threads import current_thread, current_thread_or_none

__all__ = ["register_replacements"]

_REGISTRY = ("torch.library", "torch._library", "torch._custom_op", "torch.utils._pytree", __name__)


class _Operators:
    """The operators defined by ranks, with each rank's functions."""

    def __init__(self, modules: OwnModules) -> None:
        self.libraries: list[torch.library.Library] = []
        self.defined: set[str] = set()
        self.functions: dict[tuple[str, ...], dict[int, Callable[..., Any]]] = {}
        self.classes: set[type] = set()
        self.opaque: dict[str, set[int]] = {}
        self._modules = modules

    def rank(self) -> int:
        """The rank that registers something now; -1 outside of ranks, and while a shared module
        does.
        """
        thread = current_thread_or_none()
        return -1 if thread is None or self._modules.registering(_REGISTRY) else thread.number

    def of_rank(
        self, key: tuple[str, ...], rank: int, function: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        """Store a rank's function; the first time, returns a dispatcher to the running rank's
        function.
        """
        is_new = key not in self.functions
        functions = self.functions.setdefault(key, {})
        functions[rank] = function

        def call(*args: Any, **kwargs: Any) -> Any:
            thread = current_thread_or_none()
            if thread is None:
                return functions.get(-1, function)(*args, **kwargs)
            with thread.process.around():  # PyTorch calls operators without modes
                return functions.get(thread.number, function)(*args, **kwargs)

        return call if is_new else None

    def of_gpus(self, operator: str, key: str, key_of_cuda: str) -> Callable[..., Any]:
        """A dispatcher to the function that the running rank has for the CPU, registered later, or
        else for CUDA.
        """
        keys = [(*operator.split("::"), suitable) for suitable in (key, *COMPOSITE)]
        self.functions[keys[0]] = {}

        def call(*args: Any, **kwargs: Any) -> Any:
            thread = current_thread()
            kernels = [self.functions.get(entry, {}).get(thread.number) for entry in keys]
            kernel = next(filter(None, kernels), None)
            if kernel is None:
                if key == "CPU":
                    check_device(thread.process, operator, (*args, *kwargs.values()))
                kernel = self.functions[*operator.split("::"), key_of_cuda][thread.number]
            with thread.process.around():
                return kernel(*args, **kwargs)

        return call


def register_replacements(undo: ExitStack, modules: OwnModules) -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions that register operators and classes; ``undo``
    removes ranks' registrations.
    """
    operators, library = _Operators(modules), torch.library.Library
    start, define = library.__init__, library.define
    implement, fake = library.impl, library._register_fake
    one_library, add_class = custom_ops.get_library_allowing_overwrite, _pytree.register_pytree_node
    add_opaque = torch._C._register_opaque_type

    def initialize(self: Any, ns: str, kind: str, dispatch_key: str = "") -> None:
        ranks = operators.rank() >= 0
        start(self, ns, "FRAGMENT" if ranks and kind == "DEF" else kind, dispatch_key)
        if ranks:
            operators.libraries.append(self)

    def define_once(self: Any, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> Any:
        name = f"{self.ns}::{schema.partition('(')[0]}"
        if operators.rank() >= 0:
            if name in operators.defined:
                return schema.partition("(")[0]
            operators.defined.add(name)
        return define(self, schema, alias_analysis, tags=tags)

    def implement_for_rank(
        self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any
    ) -> None:
        name = self._resolve_op_name(op_name, "impl").rpartition("::")[2]
        key = (self.ns, name, dispatch_key or self.dispatch_key)
        rank = operators.rank()
        call = fn if rank < 0 else operators.of_rank(key, rank, fn)
        if call is not None:
            implement(self, op_name, call, dispatch_key, **options)
        operator, host_key = f"{self.ns}::{name}", KEYS_OF_CPU.get(key[-1])
        if rank < 0 or host_key is None or (self.ns, name, host_key) in operators.functions:
            return
        if sees_gpus() and not has_kernel(operator, host_key):
            implement(self, op_name, operators.of_gpus(operator, host_key, key[-1]), host_key)

    def fake_for_rank(
        self: Any, op_name: str, fn: Any, _stacklevel: int = 1, **options: Any
    ) -> None:
        rank = operators.rank()
        call = fn if rank < 0 else operators.of_rank((self.ns, op_name, "fake"), rank, fn)
        if call is not None:
            fake(self, op_name, call, _stacklevel + 1, **options)

    def library_of(namespace: str, name: str) -> Any:
        if operators.rank() >= 0 and f"{namespace}::{name}" in operators.defined:
            return torch.library.Library(namespace, "FRAGMENT")
        return one_library(namespace, name)

    def register_class(cls: Any, *args: Any, **kwargs: Any) -> None:
        rank = operators.rank()
        if rank >= 0 and cls not in standard_classes:
            if cls in operators.classes:
                return
            operators.classes.add(cls)
        add_class(cls, *args, **kwargs)

    def register_opaque(name: str) -> None:
        rank = operators.rank()
        if rank >= 0:
            ranks = operators.opaque.setdefault(name, set())
            if ranks and rank not in ranks:
                ranks.add(rank)
                return
        add_opaque(name)
        if rank >= 0:
            ranks.add(rank)

    standard_classes, names = (
        set(_pytree.SUPPORTED_NODES),
        set(_pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE),
    )
    undo.callback(_forget, operators, names)
    return [
        (library, "__init__", initialize),
        (library, "define", define_once),
        (library, "impl", implement_for_rank),
        (library, "_register_fake", fake_for_rank),
        (custom_ops, "get_library_allowing_overwrite", library_of),
        (_pytree, "register_pytree_node", register_class),
        (torch._C, "_register_opaque_type", register_opaque),
    ]


def _forget(operators: _Operators, names: Collection[str]) -> None:
    """Remove what ranks have registered; ``names`` are those of serialized types that were there
    before.
    """
    for name in operators.defined:
        custom_ops.OPDEF_TO_LIB.pop(name, None)
    for library in reversed(operators.libraries):
        library._destroy()
    for cls in operators.classes:
        _pytree.SUPPORTED_NODES.pop(cls, None)
        _pytree.SUPPORTED_SERIALIZED_TYPES.pop(cls, None)
    for name, ranks in operators.opaque.items():
        if ranks:
            torch._C._unregister_opaque_type(name)
            _OPAQUE_TYPES_BY_NAME.pop(name, None)
    serialized_types = _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    for name in [
        name
        for name, cls in serialized_types.items()
        if cls in operators.classes and name not in names
    ]:
        del serialized_types[name]
