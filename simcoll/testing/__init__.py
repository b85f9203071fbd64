"""Tools for testing your own algorithms and implementations: Hypothesis strategies,
:func:`assert_implements`, :func:`assert_collective`, and a pytest fixture ``emulator``.

Needs the extra ``test`` (``pip install simcoll[test]``); loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.core.reference import exact_inputs, expected_outputs
    from simcoll.testing.case_strategies import cases, programs
    from simcoll.testing.checks import assert_implements
    from simcoll.testing.collective_cases import Case, CaseOperation
    from simcoll.testing.implementation_checks import assert_collective
    from simcoll.testing.rank_calls import RankCall, RankWorld
    from simcoll.testing.rank_runners import ProcessRunner, ThreadRunner
    from simcoll.testing.strategies import collectives, groups, schedules, sizes, topologies

__all__ = [
    "Case",
    "CaseOperation",
    "ProcessRunner",
    "RankCall",
    "RankWorld",
    "ThreadRunner",
    "assert_collective",
    "assert_implements",
    "cases",
    "collectives",
    "exact_inputs",
    "expected_outputs",
    "groups",
    "programs",
    "schedules",
    "sizes",
    "topologies",
]

_HOMES = {
    "Case": "collective_cases",
    "CaseOperation": "collective_cases",
    "ProcessRunner": "rank_runners",
    "RankCall": "rank_calls",
    "RankWorld": "rank_calls",
    "ThreadRunner": "rank_runners",
    "assert_collective": "implementation_checks",
    "assert_implements": "checks",
    "cases": "case_strategies",
    "exact_inputs": "collective_cases",
    "expected_outputs": "collective_cases",
    "programs": "case_strategies",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'simcoll.testing' has no attribute {name!r}")
    # pytest loads this package in every run, for its plugin, so Hypothesis is imported late.
    home = _HOMES.get(name, "strategies")
    try:
        module = importlib.import_module(f"simcoll.testing.{home}")
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise ConfigError(
            f"simcoll.testing.{name} needs hypothesis: pip install simcoll[test]"
        ) from None
    return getattr(module, name)
