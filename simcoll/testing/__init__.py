"""Tools for testing your own algorithms: Hypothesis strategies, :func:`assert_implements`, and a
pytest fixture ``emulator``.

Needs the extra ``test`` (``pip install simcoll[test]``); loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.testing.checks import assert_implements
    from simcoll.testing.strategies import collectives, groups, schedules, sizes, topologies

__all__ = ["assert_implements", "collectives", "groups", "schedules", "sizes", "topologies"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'simcoll.testing' has no attribute {name!r}")
    # pytest loads this package in every run, for its plugin, so Hypothesis is imported late.
    home = "checks" if name == "assert_implements" else "strategies"
    try:
        module = importlib.import_module(f"simcoll.testing.{home}")
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise ConfigError(
            f"simcoll.testing.{name} needs hypothesis: pip install simcoll[test]"
        ) from None
    return getattr(module, name)
