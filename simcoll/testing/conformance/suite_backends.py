"""Backends by the names that the suite's command line and pytest's option give them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simcoll.errors import ConfigError
from simcoll.testing.conformance.mpi_backend import MpiBackend
from simcoll.testing.conformance.mpi_checks import MPI_REASONS, mpi_checks
from simcoll.testing.conformance.torch_backend import TorchBackend
from simcoll.testing.conformance.torch_session import checks
from simcoll.testing.rank_calls import Target
from simcoll.testing.rank_runners import ProcessRunner, ThreadRunner

__all__ = ["TestedBackend", "find_backend", "numbers_of_ranks"]

PROCESSES, THREADS = "processes", "threads"


@dataclass(frozen=True)
class TestedBackend:
    """An implementation, the statements that it checks itself, where its ranks live, and why it
    does not play a statement, by its row.
    """

    target: Target
    checks: frozenset[str]
    place: str
    reasons: Mapping[str, str] = field(default_factory=dict)

    def runner(self) -> AbstractContextManager[Any]:
        """A runner of its ranks."""
        if self.place == THREADS:
            return nullcontext(ThreadRunner())
        return ProcessRunner(None if self.place == PROCESSES else self.place, quiet=True)


def find_backend(name: str, place: str | None = None) -> TestedBackend:
    """The backend of a name: ``torch:gloo``, ``torch:NAME``, ``mpi``, or ``MODULE:CLASS``.

    Parameters
    ----------
    place
        ``processes``, ``threads``, or a launcher; default: ``mpiexec`` for MPI, else processes.

    Raises
    ------
    ConfigError
        For other names, and modules that cannot be imported.
    """
    family, _, part = name.partition(":")
    if name == "mpi":
        rows = frozenset(mpi_checks())
        return TestedBackend(MpiBackend, rows, place or "mpiexec", MPI_REASONS)
    if not part:
        raise ConfigError(
            f"backend {name!r}: expected torch:gloo, torch:NAME, mpi, or MODULE:CLASS"
        )
    if family == "torch":
        return TestedBackend(partial(TorchBackend, part), frozenset(checks()), place or PROCESSES)
    try:
        target: Target = getattr(importlib.import_module(family), part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"backend {name!r}: {error}") from None
    return TestedBackend(target, frozenset(), place or PROCESSES)


def numbers_of_ranks(option: str, text: str) -> list[int]:
    """The numbers of an option such as ``--ranks 2,3,4``; a ConfigError for others."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 2:
        raise ConfigError(
            f"{option} {text!r}: expected numbers of ranks, at least 2, such as 2,3,4; the "
            "statements are on what ranks do together"
        )
    return numbers
