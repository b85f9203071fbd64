"""The place of a rank in its program: the phase of the step, and the modules whose call it is in.

The operators of a backward pass belong to the module call whose forward pass created their graph
node. Nodes are numbered in order, so a call owns a range of numbers, within that of the call around
it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.autograd import _get_sequence_nr
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from simcoll.distributed.runtime.world import Rank
from simcoll.torch.module_time import plain_name
from simcoll.torch.rank_threads import current_thread_or_none

__all__ = ["ModuleScopes", "watch_scopes"]

KEPT_CALLS = 1 << 17
ACCUMULATES = 2**64 - 1
"""Number of all nodes that add a gradient to a parameter's."""


@dataclass(slots=True, eq=False)
class _ScopedCall:
    """A call of a module.

    Attributes
    ----------
    turn
        Number of the call of the outermost module that it is in, from 1 on.
    levels
        The module's name below each module around it.
    recomputes
        Whether a backward pass makes it, to have its activations again.
    first_node, last_node
        Its range of graph nodes; the last is None while it lasts.
    """

    module: Module
    around: _ScopedCall | None
    turn: int
    levels: tuple[str, ...]
    recomputes: bool
    first_node: int
    last_node: int | None = None

    def scope(self, phase: str) -> str:
        """The place of the program as text."""
        return "/".join((f"{phase} {self.turn}", *self.levels))


class ModuleScopes:
    """Follows the calls of modules and optimizers of one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._open: _ScopedCall | None = None
        self._calls: list[_ScopedCall] = []
        self._optimizers: list[str] = []
        self._turns: Counter[Module] = Counter()
        self._names: WeakKeyDictionary[Module, str] = WeakKeyDictionary()
        self._levels: WeakKeyDictionary[Module, tuple[str, ...]] = WeakKeyDictionary()
        self._last_of_backward: _ScopedCall | None = None
        self._nodes = 0  # the number of the next graph node, when it was last read

    def note(self) -> None:
        """Make the current place that of the rank's next operation."""
        self._rank.scope = self._text()

    def enter(self, module: Module) -> None:
        """Begin the call of a module."""
        around, node = self._open, torch._C._current_autograd_node()
        recomputes = node is not None and (around is None or around.recomputes)
        if recomputes:
            original = around or self._call_of(node._sequence_nr())
            turn = 1 if original is None else original.turn
            levels = self._levels.get(module) or (_class_name(module),)
        elif around is None:
            self._learn_names(module)
            self._turns[module] += 1
            turn, levels = self._turns[module], (_class_name(module),)
        else:
            turn, levels = around.turn, self._levels_below(around, module)
        self._levels[module] = levels
        self._open = _ScopedCall(module, around, turn, levels, recomputes, _get_sequence_nr())
        self._calls.append(self._open)
        if len(self._calls) > 2 * KEPT_CALLS:
            del self._calls[:KEPT_CALLS]

    def leave(self, module: Module) -> None:
        """End the call of a module."""
        if self._open is not None and self._open.module is module:
            self._open.last_node = self._nodes = _get_sequence_nr()
            self._open = self._open.around

    def enter_optimizer(self, optimizer: Optimizer) -> None:
        """Begin a step of an optimizer."""
        self._optimizers.append(type(optimizer).__name__)

    def leave_optimizer(self) -> None:
        """End the step of an optimizer."""
        del self._optimizers[-1:]

    def _text(self) -> str:
        node, call = torch._C._current_autograd_node(), self._open
        if call is not None and (node is None or call.recomputes):
            return call.scope("recompute" if call.recomputes else "forward")
        if node is not None:
            number = node._sequence_nr()
            owner = self._call_of(number)
            self._last_of_backward = owner
            return self._outside("backward", number) if owner is None else owner.scope("backward")
        if self._optimizers:
            return f"optimizer/{self._optimizers[-1]}"
        # An operator outside of all modules, such as a loss, is one of the forward pass if it has
        # a node.
        number = _get_sequence_nr()
        has_node = number > self._nodes
        self._nodes = number
        return self._outside("forward", number) if has_node and self._calls else ""

    def _outside(self, phase: str, number: int) -> str:
        """The place outside of all modules: it has the turn of the last call before the node."""
        place = bisect_right(self._calls, number, key=lambda call: call.first_node) - 1
        return f"{phase} {self._calls[place].turn}" if place >= 0 else phase

    def _call_of(self, number: int) -> _ScopedCall | None:
        """The innermost call that created a graph node.

        A node that accumulates belongs to the call of the one before it, whose gradient it adds.
        """
        if number == ACCUMULATES:
            return self._last_of_backward
        place = bisect_right(self._calls, number, key=lambda call: call.first_node) - 1
        call = self._calls[place] if place >= 0 else None
        while call is not None and call.last_node is not None and call.last_node <= number:
            call = call.around
        return call

    def _learn_names(self, module: Module) -> None:
        if self._names.get(module):
            return  # it has a name in a larger model
        self._names.update((part, plain_name(name)) for name, part in module.named_modules())

    def _levels_below(self, around: _ScopedCall, module: Module) -> tuple[str, ...]:
        name, outer_name = self._names.get(module), self._names.get(around.module)
        if name is None or outer_name is None:
            return (*around.levels, _class_name(module))
        if name == outer_name:  # what a wrapper wraps
            return around.levels
        return (*around.levels, name.removeprefix(f"{outer_name}.").replace("/", "|"))


def _class_name(module: Module) -> str:
    """The class of a module, or of the module that it wraps; without that of fully_shard."""
    wrapped = [part for name, part in module.named_modules() if not plain_name(name)]
    names = [kind.__name__ for kind in type(wrapped[-1]).__mro__]
    sharded = len(names) > 2 and names[0] == f"FSDP{names[2]}"
    return names[2] if sharded else names[0]


def _scopes() -> ModuleScopes | None:
    thread = current_thread_or_none()
    scopes: ModuleScopes | None = None if thread is None else thread.process.scopes
    return scopes


@contextmanager
def watch_scopes() -> Iterator[None]:
    """Notify ranks of calls of modules and optimizers."""

    def enter(module: Module, _args: Any) -> None:
        if (scopes := _scopes()) is not None:
            scopes.enter(module)

    def leave(module: Module, _args: Any, _result: Any) -> None:
        if (scopes := _scopes()) is not None:
            scopes.leave(module)

    def begin_step(optimizer: Optimizer, _args: Any, _keywords: Any) -> None:
        if (scopes := _scopes()) is not None:
            scopes.enter_optimizer(optimizer)

    def end_step(_optimizer: Optimizer, _args: Any, _keywords: Any) -> None:
        if (scopes := _scopes()) is not None:
            scopes.leave_optimizer()

    hooks = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
        register_optimizer_step_pre_hook(begin_step),
        register_optimizer_step_post_hook(end_step),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
