"""The pytest plugin: a fixture ``emulator``. Loaded by pytest through its entry point."""

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

__all__ = ["emulator"]


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
