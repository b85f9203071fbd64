"""Run a file of rank programs on the emulator, or for real.

``python -m simcoll.distributed.run --nproc 8 --topology dgx-h100 program.py --its arguments``
emulates it;
``python -m simcoll.distributed.run --backend mpi --nproc 8 program.py --its arguments`` starts the
same file on eight processes, and
``mpiexec -n 8 python -m simcoll.distributed.run --backend mpi program.py`` takes those that mpiexec
starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import runpy
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from simcoll.command_line import separate_program, status_of
from simcoll.distributed.linked.process_links import (
    BACKEND_VARIABLE,
    EMULATOR,
    HOMES,
    connect_processes,
)
from simcoll.distributed.runtime.objects import ObjectEncodingError, encode
from simcoll.distributed.start.results import (
    RunResult,
    collect_results,
    machine_of,
    memory_of,
    table_of,
)
from simcoll.distributed.start.run_options import (
    CollectiveOptions,
    EventOptions,
    option_values,
)
from simcoll.distributed.start.spawning import spawn
from simcoll.errors import ConfigError, RaceError, nearest
from simcoll.files.paths import is_file
from simcoll.help_text import PARAGRAPHS
from simcoll.stopping import leave_to_program, run_program
from simcoll.terminal import printable, printable_lines
from simcoll.topology import load_topology
from simcoll.units import counted, format_time

__all__ = ["main"]

RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Set by launchers of several processes."""


app = App(
    help_formatter=PARAGRAPHS,
    name="python -m simcoll.distributed.run",
    help="Run a file of rank programs on the emulator, or for real.",
    help_flags=["--help", "-h"],
    version_flags=[],
    suppress_keyboard_interrupt=False,  # status_of says so
)


@dataclass(frozen=True, slots=True)
class _RunOptions:
    """How to run the file.

    Attributes
    ----------
    backend
        emulator or mpi; default: the environment variable SIMCOLL_BACKEND, else emulator.
    nproc
        Ranks; by default those of the topology, or of mpiexec.
    topology
        A shipped topology or a topology file.
    data
        none: collectives and messages only take time, and leave tensors as they are.
    alike
        all: one rank's program runs, and all ranks make its calls.
    trace
        Write the timeline of the run there: t.json or t.json.gz, for Perfetto, or a folder with a
        file for each rank.
    script
        Every rank runs the whole file, as under torchrun.
    interleavings
        Play it in as many orders of turns, and fail where ranks then return something else: 200,
        "exhaustive 200", or one order, such as "seed 17".
    """

    backend: str | None = None
    nproc: Annotated[int | None, Parameter(name=["--nproc", "-n"])] = None
    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None
    collectives: CollectiveOptions = field(default_factory=CollectiveOptions)
    data: Literal["exact", "none"] = "exact"
    alike: Literal["all"] | None = None
    trace: str | None = None
    events: EventOptions = field(default_factory=EventOptions)
    script: Annotated[bool, Parameter(negative=())] = False
    interleavings: str | None = None

    @property
    def where(self) -> str:
        """The backend, named or by the environment."""
        return self.backend or os.environ.get(BACKEND_VARIABLE, EMULATOR)

    @property
    def guides(self) -> dict[str, Any]:
        """The given options that are arguments of spawn; ``fault`` is its ``events``."""
        return {
            name: value
            for name, value in option_values(self).items()
            if name not in _OWN and value != _DEFAULTS[name]
        }


_OWN = ("backend", "nproc", "script")
_DEFAULTS = option_values(_RunOptions())


def _start_processes(program: str, arguments: Sequence[str], options: _RunOptions) -> None:
    """Become mpiexec, which starts this command again in every process."""
    mpiexec = shutil.which(
        "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if mpiexec is None:
        raise ConfigError(
            "there is no mpiexec: pip install 'simcoll[mpi]', or install an MPI library"
        )
    sys.stdout.flush()
    words = [f"--{name}={value}" for name, value in options.guides.items() if name != "fault"]
    words += [f"--fault={event}" for event in options.events.fault]
    words += [
        f"--backend={options.where}",
        *(["--script"] if options.script else []),
        program,
        *arguments,
    ]
    command = [
        mpiexec,
        "-n",
        str(options.nproc),
        sys.executable,
        "-m",
        "simcoll.distributed.run",
        *words,
    ]
    os.execv(mpiexec, command)  # noqa: S606  # no shell


def _every_rank(path: str) -> Callable[[int, int], None]:
    """A rank program that is the whole file."""
    code = compile(Path(path).read_bytes(), path, "exec")

    def program(_rank: int, _world_size: int) -> None:
        exec(code, {"__name__": "__main__", "__file__": path})  # noqa: S102  # the user's own file

    return program


def _ranks(options: _RunOptions) -> int:
    """The number of ranks requested, or present."""
    if options.nproc is not None:
        return options.nproc
    if options.where != EMULATOR:
        return connect_processes(options.where).link.world_size
    if options.topology is None:
        raise ConfigError("how many ranks? Give --nproc, or a --topology to fill")
    return load_topology(options.topology).nranks


@contextlib.contextmanager
def _as_script(program: str, arguments: Sequence[str], backend: str) -> Iterator[None]:
    """Set ``sys.argv``, ``sys.path`` and the backend as for a script."""
    leave_to_program()
    argv, path, chosen = sys.argv, sys.path, os.environ.get(BACKEND_VARIABLE)
    sys.argv = [program, *arguments]
    sys.path = [str(Path(program).resolve().parent), *path]
    os.environ[BACKEND_VARIABLE] = backend
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path
        if chosen is None:
            del os.environ[BACKEND_VARIABLE]
        else:
            os.environ[BACKEND_VARIABLE] = chosen


def _run(path: str, arguments: Sequence[str], options: _RunOptions) -> None:
    """Run the file as a script; if it has not called spawn itself, spawn its function
    ``program``.
    """
    backend = options.where
    with _as_script(path, arguments, backend), collect_results() as results:
        program = (
            _every_rank(path)
            if options.script
            else runpy.run_path(path, run_name="__main__").get("program")
        )
        if not results:
            if not callable(program):
                raise ConfigError(
                    "has no function program(rank, world_size) and has not called spawn; with "
                    "--script every rank runs the file",
                    file=path,
                )
            guides = {
                "events" if name == "fault" else name: value
                for name, value in options.guides.items()
            }
            spawn(program, _ranks(options), **guides)
        elif options.guides:
            _say(
                f"simcoll: {printable(path)} calls spawn itself, without "
                f"--{', --'.join(options.guides)}\n"
            )
        for result in results:
            _tell(result, backend)


def _tell(result: RunResult, backend: str) -> None:
    """Print a summary of a run on one rank, with a table if it has a timeline. Equal returned
    arrays have equal digests.
    """
    if backend != EMULATOR and 0 not in result.own_ranks:
        return
    try:
        digest = hashlib.sha256(encode(list(result.returns))).hexdigest()[:16]
    except ObjectEncodingError:
        digest = "-"
    platform = machine_of(result) if backend == EMULATOR else f"{len(result.returns)} processes"
    orders = f", {counted(result.orders, 'order')} of turns" if result.orders > 1 else ""
    sys.stdout.write(
        f"# {counted(len(result.returns), 'rank')}, {backend} ({printable(platform)}): "
        f"{counted(result.operations, 'operation')}, "
        f"{format_time(result.time_fs)}{memory_of(result)}{orders}, "
        f"returns {digest}\n"
        f"{printable_lines(table_of(result))}"
    )


def _say(message: str) -> None:
    """Print an error common to all processes on the first one only."""
    if next((os.environ[key] for key in RANK_VARIABLES if key in os.environ), "0") == "0":
        sys.stderr.write(message)


@app.default
def _command(
    program: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    options: Annotated[_RunOptions, Parameter(name="*")] = _RunOptions(),  # it cannot change
) -> int:
    """Run a file of rank programs on the emulator, or for real.

    Parameters
    ----------
    program
        A Python file with a function program(rank, world_size), or one that calls spawn.
    arguments
        Its arguments.
    """
    if options.where not in (EMULATOR, *HOMES):
        raise ConfigError(
            f"unknown backend {options.where!r}; {nearest(options.where, [EMULATOR, *HOMES])}"
        )
    if not is_file(program):
        raise ConfigError("there is no such file", file=program)
    started = any(key in os.environ for key in RANK_VARIABLES)
    if options.where != EMULATOR and not started and (options.nproc or 1) > 1:
        _start_processes(program, arguments, options)
    try:
        _run(program, arguments, options)
    except SyntaxError as error:
        if error.filename != program:  # of another file: the import that led there matters
            raise
        raise ConfigError("".join(traceback.format_exception_only(error)).rstrip()) from error
    except RaceError as error:
        _say(f"simcoll: {printable(program)}: {error}\n")
        return 1
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """The command line; exit status 0, 1 for a race, or 2 for bad input. Exceptions of the program
    pass through.
    """
    valued = {
        "-n",
        "-t",
        "-p",
        "-a",
        *(f"--{name}" for name in _DEFAULTS if name != "script"),
    }
    return status_of(app, separate_program(sys.argv[1:] if words is None else words, valued), _say)


if __name__ == "__main__":
    run_program(main)
