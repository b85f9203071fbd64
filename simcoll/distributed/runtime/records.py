"""The last operations of each rank, as PyTorch's Flight Recorder keeps them."""

from __future__ import annotations

import functools
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import greenlet  # type: ignore[import-untyped]
import msgspec
import numpy as np

from simcoll.arrays import Array
from simcoll.core.vocabulary import OperationState

Described = tuple[tuple[tuple[int, ...], str], ...]

__all__ = [
    "Entry",
    "Flight",
    "Site",
    "asked_from",
    "buffers_of",
    "calling_site",
    "document",
    "new_flight",
    "program_starts",
    "waiting_site",
]

KEPT = 2000
KEPT_SITES = 4096
"""Pairs of lines whose sites are kept."""
_HERE = str(Path(__file__).parents[1])
_PACKAGE = str(Path(__file__).parents[2])
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_TORCH_TYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int8": "Char",
    "uint8": "Byte",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}


@dataclass(frozen=True, slots=True)
class Site:
    """A line of a program; ``caller`` is the line that called its function, if it is one of the
    program.
    """

    function: str
    file: str
    line: int
    caller: Site | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        if self.caller is None:
            return place
        return f"{place}, called at {self.caller.file}:{self.caller.line}"

    def frames(self) -> list[dict[str, Any]]:
        """The frames, innermost first, in the fields of PyTorch's Flight Recorder."""
        sites = [self] if self.caller is None else [self, self.caller]
        return [{"name": site.function, "filename": site.file, "line": site.line} for site in sites]


# Each greenlet has its own context: no other rank sees this.
asked_from: ContextVar[Site | None] = ContextVar("simcoll_asked_from", default=None)
"""The source line to report for a call made on another thread's behalf; None: the caller's own."""


program_starts: set[CodeType] = set()
"""Functions that start programs: no line of the program is around them."""


@functools.lru_cache(maxsize=4096)
def _site(function: str, file: str, line: int) -> Site:
    return Site(function, file, line)


@functools.lru_cache(maxsize=4096)
def _site_with_caller(function: str, file: str, line: int, *caller: Any) -> Site:
    # By names and numbers: the hash of a Site is computed in Python.
    return Site(function, file, line, _site(*caller))


class _PlacedSite(NamedTuple):
    """The site of a line; the code of its function and of the caller's live as long as it is
    known, and their numbers are not given to others.
    """

    site: Site
    code: CodeType
    around: CodeType | None


class _PlacedSites:
    """Sites by the numbers of two functions' code, innermost first, and the places in it: to
    compute the number of a line and the hash of a code takes longer than all else in a call.
    """

    def __init__(self) -> None:
        self.by_places: dict[tuple[int, int, int, int], _PlacedSite] = {}

    def note(self, places: tuple[int, int, int, int], site: _PlacedSite) -> None:
        """Keep a site; when there are many, all others are forgotten."""
        if len(self.by_places) >= KEPT_SITES:
            self.by_places.clear()
        self.by_places[places] = site


_placed_sites = _PlacedSites()


def calling_site(*folders: str, above: int = 1) -> Site:
    """The innermost frame of the program, outside these folders (default: outside this package) and
    outside installed packages, and the frame of the program that called it.

    A program that is installed itself has the innermost frame outside these folders. The first
    ``above`` frames are inside.
    """
    site = asked_from.get()
    if site is not None:
        return site
    # inspect.stack() reads source files, and this is done on every call.
    frame = sys._getframe(above)  # noqa: SLF001
    outer = frame.f_back
    if outer is not None and not folders:
        # No line of this package has a place.
        places = id(frame.f_code), frame.f_lasti, id(outer.f_code), outer.f_lasti
        placed_site = _placed_sites.by_places.get(places)
        if placed_site is not None:
            return placed_site.site
    return _site_of(frame, folders or _HERE)


def waiting_site(task: greenlet.greenlet) -> Site:
    """The line of the program at which a task that is not running waits."""
    site: Site | None = task.site_of_call
    return site or _site_of(task.gr_frame, _HERE)


def running_site(thread: threading.Thread) -> Site:
    """The line of the program at which a thread is now."""
    frames = sys._current_frames()  # noqa: SLF001
    return _site_of(frames.get(thread.ident or 0), _HERE)


def _site_of(innermost: FrameType | None, internal_folders: str | tuple[str, ...]) -> Site:
    frame = innermost
    while frame is not None and frame.f_code.co_filename.startswith(internal_folders):
        frame = frame.f_back
    if frame is None:
        return Site("?", "?", 0)
    outer = frame.f_back
    code, around = frame.f_code, None if outer is None else outer.f_code
    places = id(code), frame.f_lasti, id(around), -1 if outer is None else outer.f_lasti
    site_here = _placed_sites.by_places.get(places)
    if site_here is not None:
        return site_here.site
    site = _site_from(frame)
    # Of frames that are further out, the places do not tell.
    if not _is_of_installation(code.co_filename) and (
        around is None or around in program_starts or not _is_of_installation(around.co_filename)
    ):
        _placed_sites.note(places, _PlacedSite(site, code, around))
    return site


def _site_from(frame: FrameType) -> Site:
    """The line of the program from a frame outwards, and the line that called its function."""
    line = _line_of_program(frame)
    outer = None if line is None else line.f_back
    caller = None if outer is None else _line_of_program(outer)
    line = line or frame
    code = line.f_code
    if caller is None:
        return _site(code.co_name, code.co_filename, line.f_lineno)
    around = caller.f_code
    return _site_with_caller(
        code.co_name,
        code.co_filename,
        line.f_lineno,
        around.co_name,
        around.co_filename,
        caller.f_lineno,
    )


def _line_of_program(frame: FrameType | None) -> FrameType | None:
    """The innermost frame, from this one outwards, of code that is not installed."""
    while frame is not None and _is_of_installation(frame.f_code.co_filename):
        # Each step outwards makes a frame object, and those around a program are many.
        frame = None if frame.f_code in program_starts else frame.f_back
    return frame


@functools.lru_cache(maxsize=4096)
def _is_of_installation(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to this one."""
    if "site-packages" in file or "dist-packages" in file or file.startswith(("<frozen", _PACKAGE)):
        return True
    return file.startswith(_STANDARD_LIBRARY)


def buffers_of(arrays: Sequence[Array]) -> Described:
    """Describe arrays by shape and dtype."""
    if len(arrays) == 1:
        return _describe(arrays[0].shape, arrays[0].dtype)
    return tuple([_describe(array.shape, array.dtype)[0] for array in arrays])


@functools.lru_cache(maxsize=1024)
def _describe(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Described:
    return ((shape, dtype.name),)  # a name is composed every time


# Every call makes one: C makes it in half the time.
class Entry(msgspec.Struct, eq=False, gc=False):
    """One operation of one rank; inputs and outputs by shape and dtype, times -1 until known.

    ``scope`` is the place in the rank's program, if it is known.
    """

    group: tuple[str, str]
    name: str
    sequence: int
    p2p: bool
    inputs: Described
    outputs: Described
    timeout_fs: int
    created_fs: int
    site: Site
    started_fs: int = -1
    completed_fs: int = -1
    error: str | None = None
    number: int = -1
    scope: str = ""

    def fields(self) -> dict[str, Any]:
        """The entry in PyTorch's field names; times in nanoseconds of the emulated clock."""
        state: OperationState = (
            "completed"
            if self.completed_fs >= 0
            else "started"
            if self.started_fs >= 0
            else "scheduled"
        )
        fields = {
            "frames": self.site.frames(),
            "record_id": self.number,
            "pg_id": int(self.group[0]) if self.group[0].isdigit() else 0,
            "process_group": list(self.group),
            "collective_seq_id": 0 if self.p2p else self.sequence + 1,
            "p2p_seq_id": self.sequence + 1 if self.p2p else 0,
            "op_id": self.number + 1,
            "profiling_name": f"simcoll:{self.name}",
            "time_created_ns": _ns(self.created_fs),
            "input_sizes": [list(shape) for shape, _ in self.inputs],
            "input_dtypes": [_TORCH_TYPES.get(dtype, dtype) for _, dtype in self.inputs],
            "output_sizes": [list(shape) for shape, _ in self.outputs],
            "output_dtypes": [_TORCH_TYPES.get(dtype, dtype) for _, dtype in self.outputs],
            "state": state,
            "time_discovered_started_ns": _ns(self.started_fs),
            "time_discovered_completed_ns": _ns(self.completed_fs),
            "retired": state == "completed",
            "timeout_ms": self.timeout_fs // 10**12,
            "is_p2p": self.p2p,
        }
        if state == "completed" and self.started_fs >= 0:
            fields["duration_ms"] = (self.completed_fs - self.started_fs) / 1e12
        if self.error is not None:
            fields["error"] = self.error
        return fields


Flight = deque[Entry]
"""The last operations of a rank."""


def _ns(time_fs: int) -> int | None:
    return time_fs // 10**6 if time_fs >= 0 else None


def new_flight() -> Flight:
    """An empty flight record, which keeps the last ``KEPT`` operations."""
    return deque(maxlen=KEPT)


def document(flight: Flight, groups: list[tuple[str, str, tuple[int, ...]]]) -> dict[str, Any]:
    """The record of one rank as a JSON document (version 2.4 of the format)."""
    entries = list(flight)
    status = {}
    for name, _, _ in groups:
        group_entries = [entry for entry in entries if entry.group[0] == name and not entry.p2p]
        status[name] = {
            "last_enqueued_collective": max((e.sequence + 1 for e in group_entries), default=-1),
            "last_started_collective": max(
                (e.sequence + 1 for e in group_entries if e.started_fs >= 0), default=-1
            ),
            "last_completed_collective": max(
                (e.sequence + 1 for e in group_entries if e.completed_fs >= 0), default=-1
            ),
        }
    return {
        "version": "2.4",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
            for name, desc, ranks in groups
        },
        "pg_status": status,
        "entries": [entry.fields() for entry in entries],
    }
