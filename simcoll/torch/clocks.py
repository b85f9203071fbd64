"""Clocks of Python beside those of ``time``: they read simulated time in ranks, too."""

from __future__ import annotations

import copyreg
import datetime as dt
import functools
import time
import timeit
from collections.abc import Callable
from contextlib import ExitStack
from importlib.machinery import ExtensionFileLoader
from types import FunctionType
from typing import Any

from simcoll.torch.replacing import for_ranks

__all__ = ["clock_replacements"]

_Moment = dt.datetime
_timer = timeit.default_timer


class _KindOfMoments(type):
    """Every ``datetime.datetime`` is one of the run's, as many are made by C code."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Moment)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Moment)


class _RunMoment(_Moment, metaclass=_KindOfMoments):
    """``datetime.datetime`` by the clock of ``time``, which is that of the run."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        """The current time."""
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def today(cls) -> Any:
        """The current time."""
        return cls.now()

    @classmethod
    def utcnow(cls) -> Any:
        """The current time in UTC, without a time zone."""
        return cls.now(dt.UTC).replace(tzinfo=None)


_RunMoment.__name__ = _RunMoment.__qualname__ = _Moment.__name__
_RunMoment.__module__ = _Moment.__module__


def _reduce(moment: Any) -> tuple[Any, ...]:
    """How a moment is pickled: as one of the class that the module has now."""
    return dt.datetime, *_Moment.__reduce_ex__(moment, 4)[1:]


copyreg.pickle(_RunMoment, _reduce)


@for_ranks
def _read_clock(_thread: Any, standard: Callable[[int], Any], clk_id: int) -> Any:
    """``time.clock_gettime`` of the clocks that advance with the world's."""
    suffix = standard.__name__.removeprefix("clock_gettime")
    if clk_id == time.CLOCK_REALTIME:
        return getattr(time, f"time{suffix}")()
    if clk_id in _MONOTONIC:
        return getattr(time, f"monotonic{suffix}")()
    return standard(clk_id)


_MONOTONIC = {
    getattr(time, name)
    for name in ("CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME")
    if hasattr(time, name)
}


def _with_moments_of_c(standard: Callable[..., Any]) -> Callable[..., Any]:
    """A step of loading a module in C, whose classes may extend ``datetime.datetime``: laid out for
    the class of Python's own C code, they would not end to look for garbage in another one.
    """

    @functools.wraps(standard)
    def load(*args: Any) -> Any:
        names = vars(dt)
        kind, names["datetime"] = names["datetime"], _Moment
        try:
            return standard(*args)
        finally:
            names["datetime"] = kind

    return load


def _default_timer() -> float:
    """``timeit.default_timer``, which Python binds before the run."""
    return time.perf_counter()


def _with_timer(function: FunctionType) -> tuple[Any, ...]:
    """The defaults of a function of ``timeit``, with the run's timer."""
    return tuple(
        _default_timer if default is _timer else default for default in function.__defaults__ or ()
    )


def clock_replacements(undo: ExitStack) -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of these clocks; until ``undo``, moments that C code makes are
    pickled as those of a run.
    """
    copyreg.pickle(_Moment, _reduce)
    undo.callback(copyreg.dispatch_table.pop, _Moment, None)
    timed: tuple[Any, ...] = (timeit.timeit, timeit.repeat, timeit.Timer.__init__)
    return [
        (dt, "datetime", _RunMoment),
        *(
            (ExtensionFileLoader, step, _with_moments_of_c(getattr(ExtensionFileLoader, step)))
            for step in ("create_module", "exec_module")
        ),
        (timeit, "default_timer", _default_timer),
        *((function, "__defaults__", _with_timer(function)) for function in timed),
        *(
            (time, name, _read_clock(getattr(time, name)))
            for name in ("clock_gettime", "clock_gettime_ns")
            if hasattr(time, name)
        ),
    ]
