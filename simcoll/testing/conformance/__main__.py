"""``python -m simcoll.testing.conformance``: the command line of the suite."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simcoll.errors import SimcollError
from simcoll.files.output import write_file
from simcoll.testing.conformance.reports import html_report, junit_report, text_report
from simcoll.testing.conformance.suite import play_suite
from simcoll.testing.conformance.suite_backends import find_backend, numbers_of_ranks

__all__ = ["main"]


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


def _play(options: argparse.Namespace) -> int:
    ranks = numbers_of_ranks("--ranks", options.ranks)
    backend = find_backend(options.backend, options.runner)
    title = f"{options.backend} on {options.ranks} ranks"
    with backend.runner() as runner:
        verdicts = play_suite(backend.target, ranks, runner, backend.checks, _say, backend.reasons)
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
