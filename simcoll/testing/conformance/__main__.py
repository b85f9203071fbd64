"""``python -m simcoll.testing.conformance``: the command line of the suite."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from functools import partial

from simcoll.errors import ConfigError, SimcollError
from simcoll.files.output import write_file
from simcoll.testing.conformance.mpi_backend import MpiBackend
from simcoll.testing.conformance.reports import html_report, junit_report, text_report
from simcoll.testing.conformance.suite import play_suite
from simcoll.testing.conformance.torch_backend import TorchBackend
from simcoll.testing.conformance.torch_session import checks
from simcoll.testing.rank_calls import Target
from simcoll.testing.rank_runners import ProcessRunner, ThreadRunner

__all__ = ["main"]

PROCESSES, THREADS = "processes", "threads"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simcoll.testing.conformance",
        description="Play the statements of torch.distributed's semantics on a backend.",
    )
    parser.add_argument(
        "--backend", required=True, help="torch:gloo, torch:NAME, mpi, or MODULE:CLASS"
    )
    parser.add_argument("--ranks", default="2,3,4", help="numbers of ranks (default: 2,3,4)")
    parser.add_argument(
        "--runner",
        help="processes, threads, mpiexec, torchrun, or a command with {n}; default: processes, "
        "for mpi mpiexec",
    )
    parser.add_argument("--report", help="write a page of HTML")
    parser.add_argument("--junit", help="write JUnit's XML")
    return parser


def _implementation(backend: str) -> tuple[Target, frozenset[str], str]:
    """The implementation, the rows that it checks itself, and its runner."""
    family, _, name = backend.partition(":")
    if backend == "mpi":
        return MpiBackend, frozenset(), "mpiexec"
    if not name:
        raise ConfigError(
            f"backend {backend!r}: expected torch:gloo, torch:NAME, mpi, or MODULE:CLASS"
        )
    if family == "torch":
        return partial(TorchBackend, name), frozenset(checks()), PROCESSES
    try:
        target: Target = getattr(importlib.import_module(family), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"backend {backend!r}: {error}") from None
    return target, frozenset(), PROCESSES


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise ConfigError(f"--ranks {text!r}: expected numbers of ranks, such as 2,3,4")
    return numbers


def _play(options: argparse.Namespace) -> int:
    ranks = _numbers(options.ranks)
    target, tasks, choice = _implementation(options.backend)
    choice = options.runner or choice
    title = f"{options.backend} on {options.ranks} ranks"
    if choice == THREADS:
        verdicts = play_suite(target, ranks, ThreadRunner(), tasks, _say)
    else:
        with ProcessRunner(None if choice == PROCESSES else choice, quiet=True) as runner:
            verdicts = play_suite(target, ranks, runner, tasks, _say)
    _print(text_report(title, verdicts))
    if options.report:
        write_file(options.report, html_report(title, verdicts).encode())
    if options.junit:
        write_file(options.junit, junit_report(title, verdicts))
    return int(any(verdict.status == "fail" for verdict in verdicts))


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the suite; the status is 1 if a statement fails, and 2 for wrong arguments."""
    options = _parser().parse_args(arguments)
    try:
        return _play(options)
    except SimcollError as error:
        _say(f"error: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
