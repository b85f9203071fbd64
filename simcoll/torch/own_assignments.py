"""Attributes of shared modules that a rank's program assigns, as in processes of their own.

Programs replace functions of Python and PyTorch: ``builtins.print`` by one that only the first rank
uses, ``dist.all_reduce`` by one that counts, ``sys.stdout`` by a file. Such an assignment is its
rank's own: the modules hold the values of the rank that runs. What PyTorch assigns to its modules
stays shared, and so do attributes of classes.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from simcoll.torch.rank_threads import Process, current_thread_or_none

__all__ = ["OwnAssignments"]

_SHARED_AUTHORS = (
    str(Path(__file__).parents[1]),
    str(Path(torch.__file__).parent),
    "<frozen importlib",
)
_NOTHING = object()
_Values = dict[tuple[ModuleType, str], Any]


class OwnAssignments:
    """The values of attributes that programs have assigned, of each rank and before.

    Parameters
    ----------
    undo
        Gives all modules their values and classes back at the end.
    """

    def __init__(self, undo: ExitStack) -> None:
        self._before: _Values = {}
        self._of_ranks: dict[Process, _Values] = {}
        assignments = self

        class WatchedModule(ModuleType):
            """A module whose attributes are assigned for a rank."""

            def __setattr__(self, name: str, value: Any) -> None:
                assignments.note(self, name, sys._getframe(1))
                super().__setattr__(name, value)

            def __delattr__(self, name: str) -> None:
                assignments.note(self, name, sys._getframe(1))
                super().__delattr__(name)

        self._class = WatchedModule
        undo.callback(self._release)
        for module in list(sys.modules.values()):
            self.watch(module)

    def watch(self, module: Any) -> None:
        """Note what programs assign to a module, unless it has a class of its own."""
        if type(module) is ModuleType:
            _give_class(module, self._class)

    def replacements(self, is_own: Any) -> list[tuple[Any, str, Any]]:
        """Owner, name and replacement of the function that loads modules; ``is_own`` tells whether
        a module is a rank's own by its name.
        """
        system: Any = importlib._bootstrap
        load = system._load_unlocked

        def load_and_watch(spec: Any) -> Any:
            module = load(spec)
            if not is_own(spec.name):
                self.watch(module)
            return module

        return [(system, "_load_unlocked", load_and_watch)]

    def note(self, module: ModuleType, name: str, author: FrameType) -> None:
        """Note that an attribute is about to change."""
        if (module, name) in self._before or current_thread_or_none() is None:
            return
        if not author.f_code.co_filename.startswith(_SHARED_AUTHORS):
            self._before[module, name] = vars(module).get(name, _NOTHING)

    def switch(self, last: Process | None, process: Process | None) -> None:
        """Exchange the values of one rank for another's; None: those before the run."""
        if not self._before:
            return
        if last is not None:
            self._of_ranks[last] = {
                (module, name): vars(module).get(name, _NOTHING) for module, name in self._before
            }
        values = {} if process is None else self._of_ranks.get(process, {})
        for key, initial in self._before.items():
            _assign(key, values.get(key, initial))

    def _release(self) -> None:
        for module in list(sys.modules.values()):
            if type(module) is self._class:
                _give_class(module, ModuleType)


def _assign(key: tuple[ModuleType, str], value: Any) -> None:
    module, name = key
    if value is _NOTHING:
        vars(module).pop(name, None)
    else:
        vars(module)[name] = value


def _give_class(module: Any, cls: type[ModuleType]) -> None:
    module.__class__ = cls
