"""``torch.compile`` in ranks: functions and modules are left uncompiled, and the run reports it;
``torch.cond`` runs one branch.

Compiled kernels for this machine's CPU would say nothing about a GPU; and the compiler's state and
locks are per process, so a rank could hold a lock while the other ranks wait for it.

With a time model, operators of a compiled call and of its backward pass are launched in the time of
a compiled program's kernels, or in none where it asks for CUDA graphs. They are not fused.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import _get_sequence_nr
from torch.utils._pytree import tree_map

from simcoll.distributed.runtime.world import current_rank
from simcoll.torch.rank_threads import RankThread, current_thread_or_none
from simcoll.torch.replacing import for_ranks

__all__ = ["CompiledCalls", "compile_replacements"]

_UNCOMPILED = (
    "torch.compile has no effect: the ranks' operators run one by one, as the program writes them"
)
_UNFUSED = (
    "torch.compile: operators are launched as fast as a compiled program's kernels, but timed one "
    "by one, as the program writes them"
)
_KEPT_CALLS = 1 << 16
_WITH_GRAPHS = {"max-autotune", "reduce-overhead"}
"""Modes of the compiler that use CUDA graphs."""


class CompiledCalls:
    """The calls of compiled functions of a rank, by the autograd nodes that they have made."""

    def __init__(self) -> None:
        self._open: list[tuple[int, int]] = []
        self._calls: list[tuple[int, int, int]] = []

    def begin(self, launch_fs: int) -> None:
        """Begin a call whose kernels are launched in ``launch_fs`` each."""
        self._open.append((launch_fs, _get_sequence_nr()))

    def end(self) -> None:
        """End the call that began last."""
        launch_fs, first_node = self._open.pop()
        last_node = _get_sequence_nr()
        if not self._open and last_node > first_node:
            del self._calls[: len(self._calls) - _KEPT_CALLS]
            self._calls.append((first_node, last_node, launch_fs))

    def launch_fs(self, eager_fs: int) -> int:
        """The time to launch an operator now; ``eager_fs`` outside compiled calls."""
        if self._open:
            return self._open[0][0]
        node = torch._C._current_autograd_node() if self._calls else None
        if node is None:
            return eager_fs
        number = node._sequence_nr()
        place = bisect_right(self._calls, number, key=lambda call: call[0]) - 1
        if place < 0 or number >= self._calls[place][1]:
            return eager_fs
        return self._calls[place][2]


def _note_finding(finding: str) -> None:
    findings = current_rank().world.history.findings
    if finding not in findings:
        findings.append(finding)


def _launch_fs(thread: RankThread, options: dict[str, Any]) -> int | None:
    """The time to launch a kernel of a compiled call; None without a time model, and for the
    backend that only runs the operators, as FlexAttention has it where nobody compiles it.
    """
    backend = options.get("backend")
    if backend == "eager" or getattr(backend, "__name__", "").startswith("eager"):
        return None
    costs = None if thread.process.watched is None else thread.process.watched.costs
    thread.call(_note_finding, _UNCOMPILED if costs is None else _UNFUSED)
    if costs is None:
        return None
    graphs = (options.get("options") or {}).get("triton.cudagraphs", False)
    return 0 if graphs or options.get("mode") in _WITH_GRAPHS else int(costs.compiled_launch_fs)


def _calls() -> CompiledCalls | None:
    """The compiled calls of the running rank."""
    thread = current_thread_or_none()
    watched = None if thread is None else thread.process.watched
    calls: CompiledCalls | None = None if watched is None else watched.root.compiled
    return calls


def _mark_function(function: Callable[..., Any], launch_fs: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls = _calls()
        if calls is None:
            return function(*args, **kwargs)
        calls.begin(launch_fs)
        try:
            return function(*args, **kwargs)
        finally:
            calls.end()

    return call


def _mark_module(module: torch.nn.Module, launch_fs: int) -> None:
    def begin(_module: Any, _args: Any) -> None:
        calls = _calls()
        if calls is not None:
            calls.begin(launch_fs)

    def end(_module: Any, _args: Any, _result: Any) -> None:
        calls = _calls()
        if calls is not None:
            calls.end()

    module.register_forward_pre_hook(begin, prepend=True)
    module.register_forward_hook(end, always_call=True)


@functools.cache
def _wrapper() -> type[torch.nn.Module]:
    """The class of compiled modules, which is defined where a program compiles one: PyTorch's
    compiler takes a second and 100 MiB.
    """
    from torch._dynamo.eval_frame import OptimizedModule

    class UncompiledModule(OptimizedModule):
        """A module as PyTorch wraps those that it compiles, with ``_orig_mod``."""

        # PyTorch's own warns of hooks on all modules, which a time model has.
        __call__ = torch.nn.Module.__call__

        def __reduce__(self) -> Any:
            return _wrap, (self._orig_mod,)

    return UncompiledModule


def _wrap(module: torch.nn.Module) -> torch.nn.Module:
    """A compiled module, which runs as it is."""

    def compile_nothing(function: Any) -> Any:
        return function

    kind: Any = _wrapper()
    wrapped: torch.nn.Module = module if isinstance(module, kind) else kind(module, compile_nothing)
    return wrapped


@for_ranks
def _compile(thread: RankThread, _: Any, model: Any = None, **options: Any) -> Any:
    launch_fs = _launch_fs(thread, options)

    def compile_one(target: Any) -> Any:
        if isinstance(target, torch.nn.Module):
            if launch_fs is not None:
                _mark_module(target, launch_fs)
            return _wrap(target)
        return target if launch_fs is None else _mark_function(target, launch_fs)

    return compile_one if model is None else compile_one(model)


@for_ranks
def _compile_module(
    thread: RankThread, _: Any, module: torch.nn.Module, *_args: Any, **options: Any
) -> None:
    launch_fs = _launch_fs(thread, options)
    if launch_fs is not None:
        _mark_module(module, launch_fs)


_NO_VALUE = "its predicate is a fake tensor, which has no value: the first branch is run and timed"


@for_ranks
def _cond(
    thread: RankThread,
    standard: Any,
    pred: Any,
    true_fn: Any,
    false_fn: Any,
    operands: Any = (),
) -> Any:
    """``torch.cond``, which runs the branch that its tensor chooses; PyTorch compiles both."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    if not isinstance(pred, torch.Tensor) or get_proxy_mode() is not None:
        return standard(pred, true_fn, false_fn, operands)
    if _is_batch(pred):  # as PyTorch's rule for vmap has it
        results = true_fn(*operands), false_fn(*operands)
        return tree_map(lambda yes, no: torch.where(pred, yes, no), *results)
    if _has_no_value(pred):
        thread.tell("torch.cond", _NO_VALUE)
        pred = True
    elif pred.numel() == 1:
        pred = bool(pred)
    return standard(pred, true_fn, false_fn, operands)


def _is_batch(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for several in ``vmap``, also inside other transformations."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def _has_no_value(tensor: torch.Tensor) -> bool:
    """Whether a tensor is only a shape."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    return isinstance(tensor, FakeTensor) or tensor.is_meta


def compile_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the compiler's entry points."""
    return [
        (torch, "compile", _compile(torch.compile)),
        (torch, "cond", _cond(torch.cond)),
        (torch.nn.Module, "compile", _compile_module(torch.nn.Module.compile)),
    ]
