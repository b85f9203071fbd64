"""Attributes of shared modules and classes that a rank's program assigns, as in processes of their
own.

Programs replace functions of Python and PyTorch: ``builtins.print`` by one that only the first rank
uses, ``dist.all_reduce`` by one that counts, ``sys.stdout`` by a file, ``nn.Linear.forward`` by one
that wraps it. Such an assignment is its rank's own: modules and classes hold the values of the rank
that runs. What PyTorch assigns stays shared, except for its tests, which are programs; so does what
a shared module assigns while it is loaded. A class counts if its module has it by its name.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pickle
import sys
import sysconfig
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from simcoll.torch.callers import TORCH
from simcoll.torch.class_assignments import set_class_attribute, watch_classes
from simcoll.torch.interrupts import Interrupts
from simcoll.torch.rank_threads import Process, current_thread_or_none

__all__ = ["OwnAssignments"]

_SHARED_AUTHORS = (
    str(Path(__file__).parents[1]),
    TORCH,
    "<frozen importlib",
)
_PROGRAMS = str(Path(torch.__file__).parent / "testing")
_PACKAGES = ("site-packages", "dist-packages")
_PYTHON = sysconfig.get_path("stdlib")
_NOTHING = object()
_Owner = ModuleType | type
_Values = dict[tuple[_Owner, str], Any]


def _saves_modules(frame: Any) -> bool:
    """Whether dill or cloudpickle, also a copy inside another package, pickles an object: they know
    modules by their exact class.
    """
    while frame.f_back is not None and frame.f_globals.get("__name__") == pickle.__name__:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__"))
    return not {"dill", "cloudpickle"}.isdisjoint(name.split("."))


class OwnAssignments:
    """The values of attributes that programs have assigned, of each rank and before.

    Parameters
    ----------
    undo
        Gives all modules their values and classes back at the end.
    interrupts
        Keeps Ctrl-C while classes are changed.
    """

    def __init__(self, undo: ExitStack, interrupts: Interrupts) -> None:
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

            def __reduce_ex__(self, _protocol: Any) -> Any:
                if _saves_modules(sys._getframe(1)):
                    return importlib.import_module, (self.__name__,)
                raise TypeError("cannot pickle 'module' object")

        WatchedModule.__name__ = ModuleType.__name__
        self._class = WatchedModule
        self._loading = 0
        undo.callback(self._release)
        for module in list(sys.modules.values()):
            self.watch(module)
        self._loaders = watch_classes(undo, self.note_class, interrupts.keep_until_end)

    def watch(self, module: Any) -> None:
        """Note what programs assign to a module, unless it has a class of its own."""
        if type(module) is ModuleType:
            _give_class(module, self._class)

    def replacements(self, is_own: Any) -> list[tuple[Any, str, Any]]:
        """Owner, name and replacement of functions that load modules; ``is_own`` tells whether a
        module is a rank's own by its name.
        """
        system: Any = importlib._bootstrap
        load = system._load_unlocked

        def load_and_watch(spec: Any) -> Any:
            if is_own(spec.name):
                return load(spec)
            self._loading += 1
            try:
                module = load(spec)
            finally:
                self._loading -= 1
            self.watch(module)
            return module

        return [(system, "_load_unlocked", load_and_watch), *self._loaders]

    def note(self, owner: _Owner, name: str, author: FrameType) -> None:
        """Note that an attribute is about to change."""
        if (owner, name) in self._before or self._loading or current_thread_or_none() is None:
            return
        if _is_program(author):
            self._before[owner, name] = vars(owner).get(name, _NOTHING)

    def make_own(self, owner: _Owner, name: str) -> bool:
        """Make an attribute the running rank's own, unless a shared module is being loaded; returns
        whether it is.
        """
        if not self._loading:
            self._before.setdefault((owner, name), vars(owner).get(name, _NOTHING))
        return not self._loading

    def note_class(self, cls: type, name: str, author: FrameType) -> None:
        """Note that an attribute of a class is about to change, if ranks share the class."""
        # PyTorch's fake tensors count on their class in every operator.
        if not _is_program(author) or current_thread_or_none() is None:
            return
        if not self._belongs_to_all(cls):
            return
        # Not __name__ or __bases__, which are the type's.
        if not hasattr(inspect.getattr_static(type(cls), name, None), "__set__"):
            self.note(cls, name, author)

    def _belongs_to_all(self, cls: type) -> bool:
        """Whether a class is a shared module's, by its name: none that is being made, nor one that
        a function makes.
        """
        module = sys.modules.get(str(vars(cls).get("__module__")))
        owner: Any = module if type(module) is self._class else None
        for part in cls.__qualname__.split("."):
            owner = None if owner is None else vars(owner).get(part)
            if not isinstance(owner, type):
                return False
        return owner is cls

    def switch(self, last: Process | None, process: Process | None) -> None:
        """Exchange the values of one rank for another's; None: those before the run."""
        if not self._before:
            return
        if last is not None:
            self._of_ranks[last] = {
                (owner, name): vars(owner).get(name, _NOTHING) for owner, name in self._before
            }
        values = {} if process is None else self._of_ranks.get(process, {})
        for key, initial in self._before.items():
            _assign(key, values.get(key, initial))

    def _release(self) -> None:
        for module in list(sys.modules.values()):
            if type(module) is self._class:
                _give_class(module, ModuleType)


def _is_program(author: FrameType) -> bool:
    """Whether a program assigns, perhaps by a function of Python's library such as a mock."""
    frame: FrameType | None = author
    while frame is not None:
        is_program = _is_file_of_program(frame.f_code.co_filename)
        if is_program is not None:
            return is_program
        frame = frame.f_back
    return True


@functools.lru_cache(maxsize=4096)
def _is_file_of_program(file: str) -> bool | None:
    """Whether what a file assigns is a program's; None for Python's library, which others call."""
    if not file.startswith(_PYTHON) or any(part in file for part in _PACKAGES):
        return file.startswith(_PROGRAMS) or not file.startswith(_SHARED_AUTHORS)
    return None


def _assign(key: tuple[_Owner, str], value: Any) -> None:
    owner, name = key
    old = vars(owner).get(name, _NOTHING)
    if old is value:
        return
    if isinstance(owner, type):
        set_class_attribute(owner, name, *(() if value is _NOTHING else (value,)))
    elif value is _NOTHING:
        vars(owner).pop(name, None)
    else:
        vars(owner)[name] = value


def _give_class(module: ModuleType, cls: type[ModuleType]) -> None:
    ModuleType.__setattr__(module, "__class__", cls)  # not the watched class's own, in Python
