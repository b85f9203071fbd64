"""Assignments to attributes of classes, such as ``torch.nn.Linear.forward = mine``, in CPython.

Python has no hook for them but a metaclass of one's own, which no existing class can be given
beside others. So ``type.__setattr__`` itself becomes a Python function while they are watched: the
slot of ``type``, and of the metaclasses that have it from there, is the one of classes that define
``__setattr__`` in Python, which looks the function up and passes its errors on.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from types import FrameType
from typing import Any

__all__ = ["set_class_attribute", "watch_classes"]

_METHODS = ("__setattr__", "__delattr__")
_SLOT = 19 * ctypes.sizeof(ctypes.c_void_p)
"""Where a class has ``tp_setattro``: after three words of its head and sixteen other slots."""


_Note = Callable[[type, str, FrameType], None]
"""It is called with the class, the name, and the frame that assigns."""


class _UsualClass:
    """A class with the slots of most."""


class _PythonClass:
    """A class with the slot of those that define ``__setattr__`` in Python."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)


def _slot(cls: type) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(id(cls) + _SLOT)


def _is_known_layout() -> bool:
    """Whether slots are where this module expects them: not without CPython's lock, for example."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    plain, python, of_type = (_slot(cls).value for cls in (_UsualClass, _PythonClass, type))
    inherits = plain == _slot(object).value and of_type == _slot(ABCMeta).value
    return inherits and len({None, plain, python, of_type}) == 4


_is_known = _is_known_layout()
_standard = _slot(type).value if _is_known else None
_function = _slot(_PythonClass).value if _is_known else None
_WORD = ctypes.py_object
_set: Any = ctypes.PYFUNCTYPE(ctypes.c_int, _WORD, _WORD, _WORD)(_standard or 0)
_delete: Any = ctypes.PYFUNCTYPE(ctypes.c_int, _WORD, _WORD, ctypes.c_void_p)(_standard or 0)


def set_class_attribute(cls: type, name: str, *values: Any) -> None:
    """Assign an attribute of a class, or without a value delete it, unwatched."""
    if values:
        _set(cls, name, *values)
    else:
        _delete(cls, name, None)


def _metaclasses(cls: type[type] = type) -> Iterator[type[type]]:
    yield cls
    for metaclass in type.__subclasses__(cls):
        yield from _metaclasses(metaclass)


class _Watch:
    """The watch, which can be interrupted."""

    def __init__(self, note: _Note) -> None:
        self._note = note
        self._slots: list[type] = []
        self._functions: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def begin(self) -> None:
        """Change ``type`` and its metaclasses."""
        note = self._note

        def __setattr__(cls: type, name: str, value: Any) -> None:  # noqa: N807
            note(cls, name, sys._getframe(1))
            _set(cls, name, value)

        def __delattr__(cls: type, name: str) -> None:  # noqa: N807
            note(cls, name, sys._getframe(1))
            _delete(cls, name, None)

        functions = {"__setattr__": __setattr__, "__delattr__": __delattr__}
        for metaclass in dict.fromkeys(_metaclasses()):
            written_in_c = [
                name
                for name in _METHODS
                if type(vars(metaclass).get(name)) is type(vars(object)["__setattr__"])
            ]
            if written_in_c:
                # A metaclass in C with a slot of its own ends in that of ``type``, which would call
                # it again.
                (attributes,) = gc.get_referents(vars(metaclass))
                self._functions.append(
                    (attributes, {name: attributes[name] for name in written_in_c})
                )
                attributes.update({name: functions[name] for name in written_in_c})
                ctypes.pythonapi.PyType_Modified(ctypes.py_object(metaclass))
            if _slot(metaclass).value == _standard:
                self._slots.append(metaclass)
        for metaclass in self._slots:
            _slot(metaclass).value = _function

    def end(self) -> None:
        """Change them back."""
        for metaclass in self._slots:
            _slot(metaclass).value = _standard
        for attributes, standard in self._functions:
            attributes.update(standard)
        self._slots, self._functions = [], []
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(type))  # and of all that inherit from it


def watch_classes(
    undo: ExitStack, note: _Note, uninterrupted: Callable[[], AbstractContextManager[None]]
) -> list[tuple[Any, str, Any]]:
    """Call ``note`` before a program assigns or deletes an attribute of a class.

    Parameters
    ----------
    undo
        Ends the watch.
    uninterrupted
        A context in which no KeyboardInterrupt comes. A watch that has begun or ended in part would
        leave ``type`` with functions that are freed, so the caller of this function, and of
        ``undo``, must be in such a context too.

    Returns
    -------
    Owner, name and replacement of functions that load C extensions: those make metaclasses, and
    their classes are not watched before they are complete.
    """
    if not _is_known:
        return []
    watch = _Watch(note)
    watch.begin()
    undo.callback(watch.end)

    def without_watch(standard: Callable[..., Any]) -> Callable[..., Any]:
        def load(*args: Any) -> Any:
            with uninterrupted():
                watch.end()
            try:
                return standard(*args)
            finally:
                with uninterrupted():
                    watch.begin()

        return load

    imports: Any = sys.modules["_imp"]
    return [
        (imports, name, without_watch(getattr(imports, name)))
        for name in ("create_dynamic", "exec_dynamic")
    ]
