"""Measured times of modules, which replace the times of the operators inside.

The operators of a backward pass belong to the module call whose forward pass created their graph
node. Nodes are numbered in order, so a call owns a range of numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.autograd import _get_sequence_nr
from torch.nn import Module
from torch.utils._pytree import tree_leaves

__all__ = ["ModuleTimes", "Times", "plain_name"]

Times = tuple[int, int | None]
"""Femtoseconds of a forward and of a backward pass; None: the time of the backward pass's
operators.
"""
FORWARD, BACKWARD = 0, 1
KEPT_CALLS = 1 << 16
_WRAPPERS = frozenset(("module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"))


@dataclass(slots=True, eq=False)
class _ModuleCall:
    """A call of a module with a measured time: its range of graph nodes, and the times still to be
    enqueued.
    """

    name: str
    pending: list[int | None]
    first_node: int
    stream: Any
    last_node: int = -1


class ModuleTimes:
    """The calls of modules of one rank, and of functions that are one kernel on a GPU.

    Parameters
    ----------
    measured
        Times by a module's name in its model (``*`` matches anything) or its class name, optionally
        followed by the shapes of its input tensors; entries with shapes take precedence.
    """

    def __init__(self, measured: Mapping[str, Times]) -> None:
        self.measured = measured
        self._patterns = [key for key in measured if "*" in key]
        self._names: WeakKeyDictionary[Module, str] = WeakKeyDictionary()
        self._open: _ModuleCall | None = None
        self._opened_by: object = None
        self._calls: list[_ModuleCall] = []

    def enter(self, module: Module, args: Any, stream: Any) -> None:
        """Record the call of a module on the current ``stream``."""
        if self._open is not None:
            return
        if module not in self._names:
            self._names.update(
                (submodule, plain_name(name)) for name, submodule in module.named_modules()
            )
        timed = self._time(module, args)
        if timed is not None:
            self.begin(module, *timed, stream)

    def begin(self, owner: object, name: str, times: Times, stream: Any) -> None:
        """Begin a call of known times on the current ``stream``, unless one is open."""
        if self._open is None:
            self._open = _ModuleCall(name, list(times), _get_sequence_nr(), stream)
            self._opened_by = owner

    def leave(self, owner: object) -> tuple[str, int] | None:
        """End a call; returns its time if no operator has started it."""
        call = self._open
        if call is None or owner is not self._opened_by:
            return None
        self._open = self._opened_by = None
        call.last_node = _get_sequence_nr()
        if call.last_node > call.first_node and call.pending[BACKWARD] is not None:
            del self._calls[: len(self._calls) - KEPT_CALLS]
            self._calls.append(call)
        return _take_time(call, FORWARD)

    def of_operator(self, stream: Any) -> tuple[str, int] | None:
        """The name and time that a call's first operator adds (later ones add nothing); None for an
        operator outside any call.
        """
        call = self._open
        if call is not None:
            return (_take_time(call, FORWARD) if stream is call.stream else None) or ("", 0)
        node = torch._C._current_autograd_node()
        if node is None:
            return None
        number = node._sequence_nr()
        place = bisect_right(self._calls, number, key=lambda candidate: candidate.first_node) - 1
        if place < 0 or number >= self._calls[place].last_node:
            return None
        return _take_time(self._calls[place], BACKWARD) or ("", 0)

    def _time(self, module: Module, args: Any) -> tuple[str, Times] | None:
        shapes = " ".join(
            str(list(leaf.shape)) for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)
        )
        name = self._names.get(module, "")
        for alias in (name, *(kind.__name__ for kind in type(module).__mro__[:-2])):
            for key in (f"{alias} {shapes}", alias):
                if key in self.measured:
                    return alias, self.measured[key]
        pattern = next((key for key in self._patterns if fnmatchcase(name, key)), None)
        return None if pattern is None else (name, self.measured[pattern])


def _take_time(call: _ModuleCall, direction: int) -> tuple[str, int] | None:
    """The time of a call in one direction, once."""
    time_fs, call.pending[direction] = call.pending[direction], None
    return (
        None if time_fs is None else ((call.name, f"backward of {call.name}")[direction], time_fs)
    )


def plain_name(name: str) -> str:
    """The name of a module without its wrappers' names.

    >>> plain_name("module.submodule._orig_mod.linear")
    'submodule.linear'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
