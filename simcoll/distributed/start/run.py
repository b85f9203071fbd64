"""Run a file of rank programs on the emulator, or for real.

``python -m simcoll.distributed.run --nproc 8 --topology dgx-h100 program.py --its arguments`` emulates it;
``python -m simcoll.distributed.run --backend mpi --nproc 8 program.py --its arguments`` starts the same file on eight
processes, and ``mpiexec -n 8 python -m simcoll.distributed.run --backend mpi program.py`` takes those that mpiexec starts.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import runpy
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcoll.distributed.linked.links import BACKEND_VARIABLE, EMULATOR, HOMES, world_size_of
from simcoll.distributed.runtime.objects import ObjectEncodingError, encode
from simcoll.distributed.start.results import collected
from simcoll.distributed.start.spawning import spawn
from simcoll.errors import ConfigError, SimcollError, nearest
from simcoll.units import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simcoll.distributed.start.results import Result

__all__ = ["main"]

RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Set by whoever has started this process as one of several."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simcoll.distributed.run",
        description="Run a file of rank programs on the emulator, or for real.",
        allow_abbrev=False,
    )
    backend = os.environ.get(BACKEND_VARIABLE, EMULATOR)
    parser.add_argument("--backend", default=backend, help=f"{EMULATOR} or {', '.join(HOMES)}; default: {backend}")
    parser.add_argument("-n", "--nproc", type=int, help="ranks; by default those of the topology, or of mpiexec")
    parser.add_argument("-t", "--topology", help="a shipped topology or a topology file")
    parser.add_argument("-p", "--protocol", default="ideal", help="ideal (default), LL, LL128 or Simple")
    parser.add_argument("-a", "--algorithm", help="what collectives run, where it serves")
    parser.add_argument("--script", action="store_true", help="every rank runs the whole file, as under torchrun")
    parser.add_argument(
        "program", help="a Python file with a function program(rank, world_size), or one that calls spawn"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _start_processes(count: int, words: Sequence[str]) -> None:
    """Become mpiexec, which starts this command again as many times."""
    found = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise ConfigError("there is no mpiexec: pip install 'simcoll[mpi]', or install an MPI library")
    sys.stdout.flush()
    command = [found, "-n", str(count), sys.executable, "-m", "simcoll.distributed.run", *words]
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


def _ranks(given: argparse.Namespace) -> int:
    """How many ranks were asked for, or are there."""
    if given.nproc is not None:
        return int(given.nproc)
    if given.backend != EMULATOR:
        return world_size_of(given.backend)
    if given.topology is None:
        raise ConfigError("how many ranks? Give --nproc, or a --topology to fill")
    from simcoll.topology import load_topology

    return load_topology(given.topology).nranks


@contextlib.contextmanager
def _as_script(given: argparse.Namespace) -> Iterator[None]:
    """What the file finds: its arguments, the modules beside it, and where ranks run."""
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


def _run(given: argparse.Namespace) -> None:
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


def _tell(result: Result, backend: str) -> None:
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
    """Say what all processes find wrong alike on the first of them."""
    if next((os.environ[key] for key in RANK_VARIABLES if key in os.environ), "0") == "0":
        sys.stderr.write(f"simcoll: {message}\n")


def main(words: Sequence[str] | None = None) -> int:
    """The command line; exit status 0, or 2 for what cannot be. What a program raises is raised."""
    given_words = list(sys.argv[1:] if words is None else words)
    given = _parser().parse_args(given_words)
    try:
        if given.backend not in (EMULATOR, *HOMES):
            raise ConfigError(f"unknown backend {given.backend!r}; {nearest(given.backend, [EMULATOR, *HOMES])}")
        if not Path(given.program).is_file():
            raise ConfigError("there is no such file", file=given.program)
        started = any(key in os.environ for key in RANK_VARIABLES)
        if given.backend != EMULATOR and not started and (given.nproc or 1) > 1:
            _start_processes(given.nproc, given_words)
        _run(given)
    except SimcollError as error:
        _say(str(error))
        return 2
    except SyntaxError as error:
        if error.filename != given.program:  # of another file: who imports it is of interest
            raise
        _say("".join(traceback.format_exception_only(error)).rstrip())
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
