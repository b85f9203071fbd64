"""Specify a collective once, prove it, see how fast it will be on any cluster, run it unchanged on GPUs.

What most programs need is here; types and rarer names are in :mod:`simcoll.types`. The emulator, topologies and file formats are
loaded when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from simcoll.binding import bind, verify
from simcoll.core.collective import Collective
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.tuning import schedule

if TYPE_CHECKING:
    from simcoll.emulator import emulate
    from simcoll.formats.schedule_json import load_schedule
    from simcoll.libraries.prediction import predict
    from simcoll.topology import load_topology

__all__ = [
    "COPY",
    "REDUCE",
    "Collective",
    "ConfigError",
    "Layout",
    "Schedule",
    "ScheduleError",
    "bind",
    "emulate",
    "load_schedule",
    "load_topology",
    "predict",
    "schedule",
    "transfers",
    "verify",
]
__version__ = "0.1.0"

_LATER = {
    "emulate": "simcoll.emulator",
    "load_schedule": "simcoll.formats.schedule_json",
    "load_topology": "simcoll.topology",
    "predict": "simcoll.libraries.prediction",
}


def __getattr__(name: str) -> Any:
    if name == "types":
        return importlib.import_module("simcoll.types")
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'simcoll' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
