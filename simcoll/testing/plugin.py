"""The pytest plugin: a fixture ``emulator``, and the option ``--simcoll-backend``, which adds the
statements of torch.distributed's semantics to the tests. Loaded by pytest through its entry point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from simcoll.binding import bind
from simcoll.core.reduction import Reduction
from simcoll.core.schedule import Schedule

if TYPE_CHECKING:
    from simcoll.emulator import Result
    from simcoll.topology import Topology

__all__ = ["emulator", "pytest_addoption", "pytest_collection_modifyitems"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the conformance suite."""
    group = parser.getgroup("simcoll", "statements of torch.distributed on a backend (simcoll)")
    group.addoption(
        "--simcoll-backend",
        metavar="NAME",
        help="test a backend too: torch:gloo, torch:NAME, mpi, or MODULE:CLASS",
    )
    group.addoption("--simcoll-ranks", default="2,3", help="numbers of ranks (default: 2,3)")
    group.addoption(
        "--simcoll-runner", help="processes, threads, mpiexec, torchrun, or a command with {n}"
    )


@pytest.hookimpl(tryfirst=True)  # -k and -m choose among the statements, too
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add a test for each statement, if a backend is given."""
    if config.getoption("--simcoll-backend") is not None:
        from simcoll.testing.conformance.pytest_items import statement_items

        items += statement_items(session)


@pytest.fixture
def emulator() -> Callable[..., Result]:
    """A function that proves a schedule, emulates it on exact data, and returns the checked result.

    ``emulator(schedule, count, dtype=, op=, topology=, ranks=, protocol=, seed=)``; the default
    topology is a crossbar.
    """
    return _emulate


def _emulate(
    schedule: Schedule,
    count: int | Sequence[int] | Sequence[Sequence[int]],
    *,
    dtype: Any = "float32",
    op: str | Reduction = "sum",
    topology: Topology | None = None,
    ranks: Sequence[int] | None = None,
    protocol: Any = "ideal",
    seed: int = 0,
) -> Result:
    # Every pytest run loads the plugin, but few need the emulator.
    from simcoll.testing.checks import checked_run

    return checked_run(
        bind(schedule, count, dtype, op, ranks=ranks, protocol=protocol), topology, seed
    )
