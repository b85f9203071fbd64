"""Compile a function where numba is installed; elsewhere run it as plain Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["COMPILED", "SOURCES", "announced", "entry", "loaded", "part"]

COMPILED = find_spec("numba") is not None
"""Whether the loops are machine code."""


SOURCES = crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
"""Default of a last parameter of every entry, made of all files of this room, which holds all compiled code.

Numba drops a cached function when its own file changes, but not when that of a piece of it does, so that the cache has to see all of
them in the function's signature. One value for all: of functions whose defaults differ, numba calls all but the first at a
hundred times the cost.
"""


def _jit(function: Function, **options: Any) -> Function:
    if not COMPILED:
        return function
    import numba

    import simcoll.emulator.fast.columns  # noqa: F401  (numba learns of the state)

    # Without reference counts (_nrt) a helper may take arrays at no cost; nothing compiled here allocates.
    settings: Any = {"error_model": "numpy", "_nrt": False, **options}
    ready: Function = numba.njit(**settings)(function)
    return ready


def part(function: Function) -> Function:
    """A piece of a loop or a function of a few numbers, which only compiled code calls."""
    return _jit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def entry(function: Function) -> Function:
    """A loop that Python calls, and beside which other threads go on: it may take minutes.

    Its compiled code is kept on disk where numba finds a writable place: next to the module, or in the user's cache.
    """
    try:
        return _jit(function, nogil=True, cache=True)
    except RuntimeError:  # numba: no place for the cache
        return _jit(function, nogil=True)


def loaded() -> bool:
    """Whether this process has loaded compiled loops, so that more of them come at little cost."""
    return COMPILED and "simcoll.emulator.fast.hashing" in sys.modules


@contextmanager
def announced(function: Callable[..., Any]) -> Iterator[None]:
    """Say so on stderr when a function has to be compiled in here."""
    if not COMPILED:
        yield
        return
    from numba.core import event

    def tell(_listener: Any, begun: Any) -> None:
        if begun.data["dispatcher"] is function:
            sys.stderr.write("simcoll: compiling the fast engine, which takes some seconds the first time\n")
            sys.stderr.flush()

    listener = type("Announcement", (event.Listener,), {"on_start": tell, "on_end": lambda _listener, _done: None})
    with event.install_listener("numba:compile", listener()):
        yield
