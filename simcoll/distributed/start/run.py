"""Run a file of rank programs on the emulator, or for real.

``python -m simcoll.distributed.run --nproc 8 --topology dgx-h100 program.py --its arguments`` emulates it;
``python -m simcoll.distributed.run --backend mpi --nproc 8 program.py --its arguments`` starts the same file on eight
processes, and ``mpiexec -n 8 python -m simcoll.distributed.run --backend mpi program.py`` takes those that mpiexec starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import runpy
import shutil
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from simcoll.distributed.linked.links import BACKEND_VARIABLE, EMULATOR, HOMES, world_size_of
from simcoll.distributed.runtime.objects import ObjectEncodingError, encode
from simcoll.distributed.start.command_line import complain, own_app, separated, status_of
from simcoll.distributed.start.results import collected
from simcoll.distributed.start.spawning import spawn
from simcoll.errors import ConfigError, nearest
from simcoll.units import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simcoll.distributed.start.results import RunResult

__all__ = ["main"]

RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Set by launchers of several processes."""


app = own_app("python -m simcoll.distributed.run", "Run a file of rank programs on the emulator, or for real.")


@dataclass(frozen=True, slots=True)
class _Given:
    """The parsed command line."""

    program: str
    arguments: tuple[str, ...]
    backend: str
    nproc: int | None
    topology: str | None
    protocol: str
    algorithm: str | None
    script: bool


def _start_processes(given: _Given) -> None:
    """Become mpiexec, which starts this command again in every process."""
    found = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise ConfigError("there is no mpiexec: pip install 'simcoll[mpi]', or install an MPI library")
    sys.stdout.flush()
    options = {"topology": given.topology, "protocol": given.protocol, "algorithm": given.algorithm}
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    words += [f"--backend={given.backend}", *(["--script"] if given.script else []), given.program, *given.arguments]
    command = [found, "-n", str(given.nproc), sys.executable, "-m", "simcoll.distributed.run", *words]
    os.execv(found, command)  # noqa: S606  # no shell


def _loaded(path: str) -> dict[str, Any]:
    """Run the file as a script; returns its names."""
    return runpy.run_path(path, run_name="__main__")


def _every_rank(path: str) -> Callable[[int, int], None]:
    """A rank program that is the whole file."""
    code = compile(Path(path).read_bytes(), path, "exec")

    def program(_rank: int, _world_size: int) -> None:
        exec(code, {"__name__": "__main__", "__file__": path})  # noqa: S102  # the user's own file

    return program


def _ranks(given: _Given) -> int:
    """The number of ranks requested, or present."""
    if given.nproc is not None:
        return given.nproc
    if given.backend != EMULATOR:
        return world_size_of(given.backend)
    if given.topology is None:
        raise ConfigError("how many ranks? Give --nproc, or a --topology to fill")
    from simcoll.topology import load_topology

    return load_topology(given.topology).nranks


@contextlib.contextmanager
def _as_script(given: _Given) -> Iterator[None]:
    """Give the file its arguments, the modules beside it, and the backend."""
    arguments, path, backend = sys.argv, sys.path, os.environ.get(BACKEND_VARIABLE)
    sys.argv = [given.program, *given.arguments]
    sys.path = [str(Path(given.program).resolve().parent), *path]
    os.environ[BACKEND_VARIABLE] = given.backend
    try:
        yield
    finally:
        sys.argv, sys.path = arguments, path
        if backend is None:
            del os.environ[BACKEND_VARIABLE]
        else:
            os.environ[BACKEND_VARIABLE] = backend


def _run(given: _Given) -> None:
    """Run the file; if it has not called spawn itself, spawn its function ``program``."""
    path = given.program
    with _as_script(given), collected() as results:
        program = _every_rank(path) if given.script else _loaded(path).get("program")
        if not results:
            if not callable(program):
                raise ConfigError(
                    "has no function program(rank, world_size) and has not called spawn; with --script every rank runs the file",
                    file=path,
                )
            spawn(
                program, _ranks(given), topology=given.topology, protocol=given.protocol, algorithm=given.algorithm
            )  # fmt: skip
        for result in results:
            _tell(result, given.backend)


def _tell(result: RunResult, backend: str) -> None:
    """One line about a run, on one rank. The digest is equal where the returned arrays are."""
    if backend != EMULATOR and 0 not in result.own_ranks:
        return
    try:
        digest = hashlib.sha256(encode(list(result.returns))).hexdigest()[:16]
    except ObjectEncodingError:
        digest = "-"
    where = result.topology if backend == EMULATOR else f"{len(result.returns)} processes"
    sys.stdout.write(
        f"# {len(result.returns)} ranks, {backend} ({where}): {result.operations} operations, "
        f"{format_time(result.time_fs)}, returns {digest}\n"
    )


def _say(message: str) -> None:
    """Print an error that all processes share on the first of them only."""
    if next((os.environ[key] for key in RANK_VARIABLES if key in os.environ), "0") == "0":
        complain(message)


@app.default
def _command(
    program: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    backend: str | None = None,
    nproc: Annotated[int | None, Parameter(name=["--nproc", "-n"])] = None,
    topology: Annotated[str | None, Parameter(name=["--topology", "-t"])] = None,
    protocol: Annotated[str, Parameter(name=["--protocol", "-p"])] = "ideal",
    algorithm: Annotated[str | None, Parameter(name=["--algorithm", "-a"])] = None,
    script: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Run a file of rank programs on the emulator, or for real.

    Parameters
    ----------
    program
        A Python file with a function program(rank, world_size), or one that calls spawn.
    arguments
        Its arguments.
    backend
        emulator or mpi; default: the environment variable SIMCOLL_BACKEND, else emulator.
    nproc
        Ranks; by default those of the topology, or of mpiexec.
    topology
        A shipped topology or a topology file.
    protocol
        ideal, LL, LL128 or Simple.
    algorithm
        The algorithm of collectives, where it serves.
    script
        Every rank runs the whole file, as under torchrun.
    """
    where = backend or os.environ.get(BACKEND_VARIABLE, EMULATOR)
    given = _Given(program, arguments, where, nproc, topology, protocol, algorithm, script)
    if where not in (EMULATOR, *HOMES):
        raise ConfigError(f"unknown backend {where!r}; {nearest(where, [EMULATOR, *HOMES])}")
    if not Path(program).is_file():
        raise ConfigError("there is no such file", file=program)
    started = any(key in os.environ for key in RANK_VARIABLES)
    if where != EMULATOR and not started and (nproc or 1) > 1:
        _start_processes(given)
    try:
        _run(given)
    except SyntaxError as error:
        if error.filename != program:  # of another file: the import that led there matters
            raise
        raise ConfigError("".join(traceback.format_exception_only(error)).rstrip()) from error


def main(words: Sequence[str] | None = None) -> int:
    """The command line; exit status 0, or 2 for bad input. Exceptions of the program pass through."""
    valued = ("--backend", "--nproc", "-n", "--topology", "-t", "--protocol", "-p", "--algorithm", "-a")
    return status_of(app, separated(sys.argv[1:] if words is None else words, valued), _say)
