"""Per-rank copies of modules, as in separate processes.

Frameworks keep per-process state in their modules: their groups, the current device. So each rank
imports its own copies of pure-Python packages; ``sys.modules`` holds those of the running rank. A
module is shared by all ranks if it

* belongs to Python, PyTorch, numpy or simcoll, or to what those require,
* was loaded before the run,
* is a C extension, which Python can load only once, or has several in its package: these refer to
  classes of the copy that loaded them first,
* registers a backend or a compiled library with PyTorch, or a type with another C extension,
* is imported by a module that is shared.

Operators that modules define with ``torch.library`` are each rank's own
(:mod:`simcoll.torch.own_registers`).
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from simcoll.torch.rank_threads import Process, current_thread_or_none

__all__ = ["OwnModules"]

_FOUNDATION = ("torch", "numpy", "simcoll", "ml_dtypes")
_REGISTERS = re.compile(
    rb"torch\.ops\.load_library|rename_privateuse1_backend|"
    rb"Backend\.register_backend|register_extension_type"
)
_IMPORTING = ("importlib", "_frozen_importlib", "runpy", "pkgutil", "pickle", "_pickle", __name__)


class _NoLock:
    """Replaces the lock of a module's import: only one rank runs, and each imports its own copy."""

    def acquire(self) -> None: ...

    def release(self) -> None: ...


class _LoadedOnce:
    """Loads a C extension for the first rank, and gives the same module to the others."""

    def __init__(self, loader: Any, modules: dict[str, Any]) -> None:
        self._loader = loader
        self._modules = modules

    def create_module(self, spec: Any) -> Any:
        """The module, loaded or known."""
        if spec.name not in self._modules:
            module = self._loader.create_module(spec)
            self._loader.exec_module(module)
            self._modules[spec.name] = module
        return self._modules[spec.name]

    def exec_module(self, module: Any) -> None:
        """Do nothing: it has been executed once."""


class OwnModules:
    """Decides which modules are per rank, and swaps them when another rank runs.

    Parameters
    ----------
    names
        Packages to copy per rank; None: all that can be.
    shared
        Packages to share.
    copies
        Packages to copy, although they have several C extensions.

    Attributes
    ----------
    shared
        Why each imported package is shared.
    following
        For packages shared because a shared package imported them first: that package.
    """

    def __init__(
        self,
        names: Sequence[str] | None = None,
        shared: Sequence[str] = (),
        copies: Sequence[str] = (),
    ) -> None:
        self.shared: dict[str, str] = dict.fromkeys(shared, "as asked for")
        self.following: dict[str, str] = {}
        self._chosen = None if names is None else set(names)
        self._own: set[str] = {*(names or ()), *copies}
        self._extensions: dict[str, Any] = {}
        self._imported: set[str] = set()
        self._count = len(sys.modules)
        self._known = {name.partition(".")[0] for name in sys.modules} - self._own
        self._required = set(_FOUNDATION) | {
            package for name in _FOUNDATION for package in _requirements(name)
        }

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """Owner, name and replacement of functions of the import system."""
        system: Any = importlib._bootstrap
        standard: Callable[[str], Any] = system._get_module_lock

        def module_lock(name: str) -> Any:
            return _NoLock() if self.copies(name) else standard(name)

        return [
            (system, "_get_module_lock", module_lock),
            (sys, "meta_path", [self, *sys.meta_path]),
        ]

    def hide(self) -> dict[str, Any]:
        """Hide chosen packages that are already loaded from ``sys.modules`` during the run."""
        names = [
            name for name in sys.modules if self._chosen and name.partition(".")[0] in self._chosen
        ]
        return {name: sys.modules.pop(name) for name in names}

    # The signature is that of a meta path finder.
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002
        """Record that a rank imports a module, which the next finder finds."""
        thread = current_thread_or_none()
        self._imported.add(name)
        if thread is not None and self._is_own(name.partition(".")[0]):
            thread.process.modules.setdefault(name, None)

    def switch(self, last: Process | None, process: Process) -> None:
        """Replace the modules of one rank in ``sys.modules`` by another's."""
        if last is not None:
            self.note_additions(last)
            last.modules = {name: sys.modules.pop(name, None) for name in last.modules}
        sys.modules.update(
            {name: module for name, module in process.modules.items() if module is not None}
        )
        self._count = len(sys.modules)

    def note_additions(self, process: Process) -> None:
        """Note the modules that a rank has put into ``sys.modules`` without an import."""
        if len(sys.modules) == self._count or self._chosen is not None:
            return
        for name in sys.modules:
            package = name.partition(".")[0]
            by_import = name in self._imported or package in self._known
            if not by_import and package not in {*self.shared, *self.following}:
                process.modules.setdefault(name, None)

    def copies(self, name: str) -> bool:
        """Whether a module is a rank's own copy."""
        return current_thread_or_none() is not None and self._is_own(name.partition(".")[0])

    def registering(self, registry: tuple[str, ...]) -> bool:
        """Whether a shared module registers something: PyTorch itself, or one that is being
        imported.

        ``registry`` are the modules of the registry, whose callers count.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _name_of(frame).startswith(registry):
            frame = frame.f_back
        if frame is not None and _name_of(frame).partition(".")[0] == "torch":
            return True
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        return frame is not None and _name_of(frame).partition(".")[0] not in {
            "__main__",
            *self._own,
        }

    def _is_own(self, package: str) -> bool:
        if package in self._own:
            return True
        if (
            self._chosen is not None
            or package in self._known
            or package in self.shared
            or package in self.following
        ):
            return False
        if package in sys.stdlib_module_names or package in self._required:
            return False
        importer = _importer()
        if any(
            importer in packages
            for packages in (self.shared, self.following, self._required, sys.stdlib_module_names)
        ):
            # Else only looked for.
            if importlib.machinery.PathFinder.find_spec(package) is not None:
                self.following[package] = importer
            return False
        reason = _obstacle(package)
        if reason == "":
            self._own.add(package)
        elif reason is not None:
            self.shared[package] = reason
        return reason == ""


def _name_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _obstacle(package: str) -> str | None:
    """Why a package cannot be copied per rank; empty if it can; None if there is no such
    package.
    """
    spec = importlib.machinery.PathFinder.find_spec(package)
    if spec is None:
        return None
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    if str(spec.origin).endswith(suffixes):
        return "C extension"
    files = [file for place in places for file in place.rglob("*.*")] or [Path(str(spec.origin))]
    if sum(file.name.endswith(suffixes) for file in files) > 1:
        return "C extensions"
    sources = (file for file in files if file.suffix == ".py" and file.is_file())
    return (
        "registers with a C extension"
        if any(_REGISTERS.search(file.read_bytes()) for file in sources)
        else ""
    )


def _importer() -> str:
    """The package of the importing line."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_IMPORTING):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "?")).partition(".")[0]


def _requirements(name: str) -> list[str]:
    """The packages that a distribution requires, by their usual module names."""
    try:
        specifiers = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    matches = [re.match(r"[A-Za-z0-9_.-]+", text) for text in specifiers if "extra ==" not in text]
    return [match.group().lower().replace("-", "_") for match in matches if match]
