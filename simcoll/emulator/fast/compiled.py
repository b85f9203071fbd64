"""Compile functions where numba is installed and its compiler is not turned off; elsewhere run them
as plain Python.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pickle import UnpicklingError
from types import FrameType
from typing import Any, TypeVar, cast

from simcoll.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "COMPILED",
    "REMEDY",
    "UNCOMPILED",
    "announce_compiling",
    "entry",
    "inline",
    "interrupts_wait",
    "part",
]

SWITCH = "NUMBA_DISABLE_JIT"


def _disables_compiling() -> bool:
    import numba

    settings: Any = numba.config
    return bool(settings.DISABLE_JIT)


def _turned_off() -> bool:
    """Whether numba's own switch for debugging is set, read as numba reads it, without the half
    second that loading numba takes.
    """
    configured = os.path.exists(".numba_config.yaml")  # noqa: PTH110 - Path takes 2 ms to load
    if "numba" in sys.modules or configured:
        return _disables_compiling()
    try:
        return int(os.environ.get(SWITCH, "0")) != 0
    except ValueError:  # numba warns, and compiles
        return False


def _compiler_absence() -> tuple[str, str]:
    if find_spec("numba") is None:
        remedy = "pip install 'simcoll[fast]'"
        return f"numba is not installed; {remedy} makes this faster", remedy
    if _turned_off():
        return (
            f"{SWITCH} turns numba's compiler off",
            f"unset {SWITCH}, which turns its compiler off",
        )
    return "", ""


UNCOMPILED, REMEDY = _compiler_absence()
"""Why the loops are not machine code, and what changes it; empty if they are."""
COMPILED = not UNCOMPILED
"""Whether the loops are machine code."""


def _jit(function: Function, **options: Any) -> Function:
    if not COMPILED:
        return function
    import numba

    import simcoll.emulator.fast.state_type  # noqa: F401  (numba learns of the state)

    # Without reference counts (_nrt), passing arrays to a helper is free; nothing compiled here
    # allocates.
    if _disables_compiling():
        raise ConfigError(
            f"{SWITCH} was set after simcoll had found numba's compiler on; set it before, or "
            "leave it"
        )
    settings: Any = {"error_model": "numpy", "_nrt": False, **options}
    ready: Any = numba.njit(**settings)(function)
    compiled = ready.compile

    def compile_to_end(signature: Any) -> Any:
        with interrupts_wait():
            return compiled(signature)

    ready.compile = compile_to_end
    return cast("Function", ready)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C wait: LLVM loses an exception that comes in one of its calls, and numba then fails
    in another way.
    """
    import signal

    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _number, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        handler(signal.SIGINT, came[0])


def part(function: Function) -> Function:
    """Mark a function that only compiled code calls."""
    return _jit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inline(function: Function) -> Function:
    """Mark a part that is called in a single place, or is short: records of many arrays take as
    long to pass as 20 flows to visit.
    """
    return _jit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)


def entry(function: Function) -> Function:
    """Mark a loop that Python calls; it releases the GIL, since it may run for minutes.

    The compiled code is cached on disk where numba finds a writable place: next to the module, or
    in the user's cache.
    """
    try:
        ready: Any = _jit(function, nogil=True, cache=True)
    except RuntimeError:  # numba found no place for the cache
        return _jit(function, nogil=True)
    cache_of: Any = getattr(ready, "_cache", None)
    if hasattr(cache_of, "_load_overload"):  # absent: slower, and as correct
        cache_of.load_overload = _tolerant_load(cache_of)
    return cast("Function", ready)


def _tolerant_load(cache_of: Any) -> Callable[[Any, Any], Any]:
    """Load a function from numba's cache, or nothing if another version of simcoll left what this
    one cannot read.

    An index names the modules of the types in its signatures, and a later version may have moved
    them. Numba would end in an ImportError at every start; emptied, the index is written anew by
    the compilation that follows.
    """

    def load(signature: Any, context: Any) -> Any:
        try:
            # As numba does it, but without all that it prepares for compiling (0.3 s), which a
            # compilation prepares itself.
            return cache_of._load_overload(signature, context)  # noqa: SLF001
        except (ImportError, AttributeError, EOFError, TypeError, ValueError, UnpicklingError):
            cache_of.flush()
            return None

    return load


@contextmanager
def announce_compiling(function: Callable[..., Any]) -> Iterator[None]:
    """Print a note on stderr, once in a process, if a function has to be compiled within this
    context.
    """
    if not COMPILED:
        yield
        return
    from numba.core import event

    def tell(_listener: Any, begun: Any) -> None:
        if begun.data["dispatcher"] is function:
            _tell()

    listener = type(
        "Announcement",
        (event.Listener,),
        {"on_start": tell, "on_end": lambda _listener, _event: None},
    )
    with event.install_listener("numba:compile", listener()):
        yield


@cache
def _tell() -> None:
    sys.stderr.write(
        "simcoll: compiling the fast engine, which takes some seconds the first time\n"
    )
    sys.stderr.flush()
