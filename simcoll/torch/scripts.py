"""Run a script on every rank, as torchrun does."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import os
import random
import statistics
import sys
import threading
import traceback
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.optim import optimizer

from simcoll.distributed.runtime.emulated import PEER_ENDED
from simcoll.distributed.start.results import machine_of, memory_of, table_of
from simcoll.errors import ConfigError
from simcoll.terminal import printable, printable_lines
from simcoll.torch.endings import (
    findings_of,
    is_of_rank,
    is_of_run,
    report_of,
    status_of,
    text_of,
)
from simcoll.torch.own_modules import OwnModules
from simcoll.torch.process_state import call_exit_functions
from simcoll.torch.rank_signals import signal_replacements
from simcoll.torch.rank_threads import current_thread, current_thread_or_none
from simcoll.torch.torch_spawning import spawn
from simcoll.units import counted, format_time

__all__ = ["RankScript", "run_script"]

MAX_FINDINGS = 64


class _NoInput(io.TextIOBase):
    """Standard input of ranks, which refuses to be read."""

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # noqa: ARG002
        raise RuntimeError(
            "the script reads standard input, which the ranks of a run share: give it a file or an "
            "argument"
        )

    read = readline

    def isatty(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class RankScript:
    """A script, or with ``module`` a module, and its arguments."""

    name: str
    arguments: Sequence[str] = ()
    module: bool = False

    def code(self) -> tuple[Any, str, ModuleSpec | None]:
        """Its code, its file and, for a module, its spec; a ConfigError if it does not exist or is
        not Python.
        """
        try:
            if self.module:
                spec = _find_spec(self.name)
                code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
                return code, str(spec.origin), spec
            source = Path(self.name).read_bytes()
            # dont_inherit: without the __future__ statements of this module.
            return compile(source, self.name, "exec", dont_inherit=True), self.name, None
        except SyntaxError as error:
            raise ConfigError("".join(traceback.format_exception_only(error)).rstrip()) from error
        except (OSError, ImportError, ValueError) as error:
            raise ConfigError(f"cannot be read: {error}", file=self.name) from error


def _find_spec(name: str) -> ModuleSpec:
    """The spec of a module, or of a package's ``__main__``. Parent packages are not imported: each
    rank imports its own.
    """
    spec: ModuleSpec | None = None
    path: Sequence[str] | None = None
    for part in name.split("."):
        full_name = part if spec is None else f"{spec.name}.{part}"
        spec = importlib._bootstrap._find_spec(full_name, path)  # type: ignore[attr-defined]
        if spec is None:
            raise ImportError(f"No module named {name}")
        path = spec.submodule_search_locations or ()
    if spec is None or not hasattr(spec.loader, "get_code"):
        raise ImportError(f"{name} has no Python code")
    return spec if spec.submodule_search_locations is None else _find_spec(f"{name}.__main__")


class _OptimizerStep(NamedTuple):
    optimizer: int
    end_fs: int


@dataclass(slots=True, eq=False)
class _Notes:
    """Observations for the final report: the ends of optimizer steps (with a time model, of their
    last kernels), and the files that ranks have written.

    An optimizer may step others: ``outermost`` holds, by rank, the one that started first.
    """

    steps: defaultdict[int, list[_OptimizerStep]] = field(default_factory=lambda: defaultdict(list))
    outermost: dict[int, int] = field(default_factory=dict)
    writers: defaultdict[str, dict[int, None]] = field(default_factory=lambda: defaultdict(dict))

    def begin_step(self, stepped: Any, *_: Any) -> None:
        thread = current_thread_or_none()
        if thread is not None:
            self.outermost.setdefault(thread.number, id(stepped))

    def end_step(self, stepped: Any, *_: Any) -> None:
        thread = current_thread_or_none()
        if thread is None or self.outermost.get(thread.number) != id(stepped):
            return
        del self.outermost[thread.number]
        steps, device = self.steps[thread.number], thread.process.device

        def note_end() -> None:
            steps.append(_OptimizerStep(id(stepped), thread.now_fs()))

        if device is None:
            note_end()
        else:  # when the stream has come to the last kernel, not when the host launched it
            device.current.tail.when_done(note_end)

    def wrote(self, path: str) -> None:
        thread = current_thread_or_none()
        if thread is not None and not path.startswith("/dev/"):
            self.writers[str(Path(path).absolute())][thread.number] = None


def run_script(
    script: RankScript,
    nprocs: int,
    *,
    shared: Sequence[str] = (),
    copies: Sequence[str] = (),
    **guides: Any,
) -> int:
    """Run a script on every rank, and print a report of its times.

    Parameters
    ----------
    shared
        Packages that all ranks share.
    copies
        Packages that each rank imports for itself, although they have several C extensions.
    guides
        Arguments of :func:`simcoll.torch.spawn`.

    Returns
    -------
    int
        The exit status, which is torchrun's: 0, or 1 if a rank fails, whatever its own status. The
        error is reported on standard error, with that status.

    Raises
    ------
    ConfigError
        For a script that does not exist or is not Python.
    """
    code, file, spec = script.code()
    package, place = None if spec is None else spec.parent, str(Path(file).absolute())
    notes, own_modules = _Notes(), OwnModules(shared=shared, copies=copies)

    def program(_rank: int, _world_size: int) -> None:
        module = types.ModuleType("__main__")
        vars(module).update(
            __file__=place, __builtins__=__builtins__, __spec__=spec, __package__=package
        )
        process = current_thread().process
        process.modules["__main__"] = sys.modules["__main__"] = module
        try:
            try:
                if package:  # imported by the program, so that it is the rank's own
                    exec(f"import {package}", dict(vars(module)))  # noqa: S102
                exec(code, vars(module))  # noqa: S102  # the user's own file
            finally:
                call_exit_functions(process.at_exit)
        except SystemExit as end:
            if status_of(end):
                raise
        except Exception as error:
            if not is_of_run(error):
                _call_hook(error, usual_hook)
            raise

    usual_hook = sys.excepthook
    with _as_script(script, file, notes):
        try:
            result = spawn(program, nprocs, own_modules=own_modules, **guides)
        except BaseException as error:
            if not is_of_rank(error):
                raise
            sys.stderr.write(report_of(error))
            _print_shared_modules(own_modules)
            _print_findings(findings_of(error))
            return 1
    played = (
        f"# {counted(nprocs, 'rank')} ({printable(machine_of(result))}): "
        f"{counted(result.operations, 'operation')}"
    )
    table = printable_lines(table_of(result))
    sys.stdout.write(
        f"{played}, {format_time(result.time_fs)}{memory_of(result)}{_steps(notes)}\n{table}"
    )
    if result.launches:
        sys.stdout.write(f"# {result.launches}\n")
    _print_shared_modules(own_modules)
    _print_findings(list(dict.fromkeys(result.findings)))
    for line in _same_files(notes, nprocs):
        sys.stderr.write(line)
    return 0


def _call_hook(error: Exception, usual_hook: Any) -> None:
    """Call the function that a script has set for errors that end it, as at the end of a process;
    it may report them elsewhere, or leave with another status.
    """
    hook: Any = sys.excepthook
    if hook is not usual_hook and not str(getattr(hook, "__module__", "")).startswith("torch."):
        hook(type(error), error, error.__traceback__)


def _print_shared_modules(own_modules: OwnModules) -> None:
    """Print the modules that all ranks share: their globals do not belong to a rank."""
    if not own_modules.shared:
        return
    reported = own_modules.shared | own_modules.following
    reasons = own_modules.shared | {
        name: f"imported by {importer}"
        for name, importer in own_modules.following.items()
        if importer in reported
    }
    shared_list = ", ".join(f"{name} ({reason})" for name, reason in sorted(reasons.items()))
    sys.stderr.write(f"simcoll.torch: modules that all ranks share: {shared_list}\n")


def _steps(notes: _Notes) -> str:
    """The time of the optimizer steps of rank 0."""
    rounds = list(_rounds(notes.steps[0]))
    if not rounds:
        return ""
    ends = [steps[-1].end_fs for steps in rounds]
    times = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    median = format_time(int(statistics.median(times[1:] or times)))
    optimizers = max(len(steps) for steps in rounds)
    steps_text = (
        counted(len(times), "optimizer step")
        if optimizers == 1
        else f"{counted(len(times), 'step')} of {optimizers} optimizers"
    )
    if not times[1:]:
        return f"; {steps_text} on rank 0, {median}"
    return (
        f"; {steps_text} on rank 0, the first {format_time(times[0])}, the others {median} (median)"
    )


def _rounds(steps: Sequence[_OptimizerStep]) -> Iterator[list[_OptimizerStep]]:
    """Steps of several optimizers, one after the other, are one step of the program: until one of
    them steps again.
    """
    current: dict[int, _OptimizerStep] = {}
    for step in steps:
        if step.optimizer in current:
            yield list(current.values())
            current = {}
        current[step.optimizer] = step
    if current:
        yield list(current.values())


def _print_findings(findings: Sequence[str]) -> None:
    for finding in findings[:MAX_FINDINGS]:
        sys.stderr.write(f"simcoll.torch: {printable(finding)}\n")
    if len(findings) > MAX_FINDINGS:
        sys.stderr.write(f"simcoll.torch: and {len(findings) - MAX_FINDINGS} more findings\n")


def _same_files(notes: _Notes, nprocs: int) -> Iterator[str]:
    for path, ranks in notes.writers.items():
        if len(ranks) > 1:
            who = (
                "all ranks"
                if len(ranks) == nprocs
                else f"ranks {', '.join(map(str, sorted(ranks)[:8]))}"
            )
            remedy = "each overwriting the previous; write on one rank, or a file per rank"
            yield f"simcoll.torch: {printable(path)} was written by {who}, {remedy}\n"


def _report_thread(args: threading.ExceptHookArgs) -> None:
    """Report an error that ended a thread of a rank, unless the run is ending anyway."""
    thread = current_thread_or_none()
    if thread is None:
        threading.__excepthook__(args)
    elif isinstance(args.exc_value, KeyboardInterrupt) or thread.process.interrupts.came:
        return  # the run is ending, and peers of this thread may have ended before it
    elif args.exc_value is not None and not str(args.exc_value).startswith(PEER_ENDED):
        name = "a thread" if args.thread is None else f"thread {args.thread.name!r}"
        sys.stderr.write(text_of(args.exc_value, f"[rank{thread.number}] {name}"))


def _open(standard: Callable[..., Any], notes: _Notes) -> Callable[..., Any]:
    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, (str, os.PathLike)) and set(mode) & set("wx"):
            notes.wrote(os.fspath(file))
        return standard(file, mode, *args, **kwargs)

    return open_file


def _save(standard: Callable[..., Any], notes: _Notes) -> Callable[..., Any]:
    def save(value: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            notes.wrote(os.fspath(f))
        return standard(value, f, *args, **kwargs)

    return save


@contextlib.contextmanager
def _as_script(script: RankScript, file: str, notes: _Notes) -> Iterator[None]:
    """Set up the process as torchrun would for the script."""
    folder = str(Path.cwd() if script.module else Path(script.name).resolve().parent)
    changes: list[tuple[Any, str, Any]] = [
        (sys, "argv", [file, *script.arguments]),
        (sys, "path", [folder, *sys.path]),
        (sys, "stdin", _NoInput()),
        *signal_replacements(),
        (threading, "excepthook", _report_thread),
        (builtins, "open", _open(builtins.open, notes)),
        (io, "open", _open(io.open, notes)),
        (torch, "save", _save(torch.save, notes)),
    ]
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    begin_hook = optimizer.register_optimizer_step_pre_hook(notes.begin_step)
    end_hook, main = (
        optimizer.register_optimizer_step_post_hook(notes.end_step),
        sys.modules["__main__"],
    )
    previous = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002  # what scripts use
        with warnings.catch_warnings():
            # Findings, which are told at the end.
            warnings.filterwarnings("ignore", module="simcoll")
            yield
    finally:
        for owner, name, value in previous:
            setattr(owner, name, value)
        begin_hook.remove()
        end_hook.remove()
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        sys.modules["__main__"] = main
