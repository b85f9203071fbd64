"""Reports of the errors that end ranks: their chain, by the lines of the program."""

from __future__ import annotations

import itertools
import threading
import traceback
import warnings
from pathlib import Path

import torch
import typing_extensions

from simcoll.distributed.start.results import FINDING
from simcoll.stopping import STOPPED
from simcoll.terminal import printable_lines
from simcoll.torch.callers import TORCH

__all__ = ["findings_of", "is_of_rank", "is_of_run", "report_of", "status_of", "text_of"]

_OURS = str(Path(__file__).parents[1])
_FOREIGN = (_OURS, TORCH, threading.__file__)
_DECORATORS = (typing_extensions.__file__, warnings.__file__)
_MARK = "[rank"
"""Start of the note by which an error tells its rank."""


def is_of_rank(error: BaseException) -> bool:
    """Whether an error has ended the program of a rank."""
    return bool(_notes_of(error, _MARK))


def is_of_run(error: BaseException) -> bool:
    """Whether an error was raised here, as at a hang, and not by the program or PyTorch."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _is_ours(frames[-1])


def _notes_of(error: BaseException, mark: str) -> list[str]:
    notes: list[str] = getattr(error, "__notes__", [])
    return [note for note in notes if note.startswith(mark)]


def findings_of(error: BaseException) -> list[str]:
    """What a run had found before an error ended it."""
    return [note.removeprefix(FINDING) for note in _notes_of(error, FINDING)]


def status_of(error: BaseException) -> int:
    """The exit status of a process that ends with an error: the lowest byte of its code."""
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return (error.code or 0) % 256
    return STOPPED if isinstance(error, KeyboardInterrupt) else 1


def report_of(error: BaseException) -> str:
    """The error that ended a rank, and how the run ended."""
    rank, _, end = next(iter(_notes_of(error, _MARK)), "").partition(": ")
    return (
        text_of(error, rank or "[rank?]")
        + f"simcoll.torch: {end or 'failed'}, with status {status_of(error)}\n"
    )


def text_of(error: BaseException, prefix: str) -> str:
    """The traceback of an error and of those that led to it, each line with a prefix.

    It has the lines of the program and, where PyTorch raised, the last one of PyTorch.
    """
    summary = traceback.TracebackException.from_exception(error)
    _drop_foreign(summary)
    text = "".join(summary.format())
    return "".join(f"{prefix}: {printable_lines(line)}\n" for line in text.splitlines())


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def _only_passes_on(frame: traceback.FrameSummary) -> bool:
    """Whether a frame imports a module, hands a call to a mode of a run or an operator and back, or
    is a wrapper of what PyTorch calls deprecated.
    """
    return (
        frame.filename.startswith("<frozen")
        or frame.name in {"__torch_function__", "handle_torch_function"}
        or (frame.name == "__call__" and frame.filename == torch._ops.__file__)
        or frame.filename in _DECORATORS
    )


def _drop_foreign(summary: traceback.TracebackException) -> bool:
    """Drop foreign frames and errors of one error, and of those below it; False if nothing of the
    program is left.
    """
    frames = [frame for frame in summary.stack if not _only_passes_on(frame)]
    lines = [frame for frame in frames if not frame.filename.startswith(_FOREIGN)]
    last = frames.index(lines[-1]) if lines else -1
    inner = frames[last + 1 :]
    if inner and not _is_ours(summary.stack[-1]):
        # Where PyTorch raises: below a call of the program, and below what replaces a function of
        # PyTorch and calls it.
        above = list(itertools.takewhile(lambda frame: not _is_ours(frame), inner))
        ends = [inner[-1]] if len(above) == len(inner) else [*above[-1:], inner[-1]]
        lines += [frame for frame in ends if frame.filename.startswith(TORCH)]
    summary.stack[:] = lines
    notes = getattr(summary, "__notes__", None)
    if notes is not None:  # the report tells these apart
        summary.__notes__ = [note for note in notes if not str(note).startswith((_MARK, FINDING))]
    if summary.__cause__ is not None and not _drop_foreign(summary.__cause__):
        summary.__cause__ = None
    if summary.__context__ is not None and not _drop_foreign(summary.__context__):
        summary.__context__ = None
    for part in summary.exceptions or ():
        _drop_foreign(part)
    return bool(summary.stack)
