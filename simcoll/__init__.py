"""Specify a collective once, prove it, time it on any cluster, run it unchanged on GPUs.

This module holds the names that most programs need; types and rarer names are in
:mod:`simcoll.types`. Every name is loaded on first use, so that the command line starts quickly.
"""

from __future__ import annotations

import sys

from simcoll.stopping import end_at_once, started_as

if started_as("simcoll", "realcoll"):
    end_at_once()  # until its command line takes over

# Each import before that is time in which Ctrl-C prints a traceback.
from simcoll.lazy import lazy_attributes
from simcoll.moved import MovedModules

TYPE_CHECKING = False  # so that type checkers see what follows, and typing need not be imported
if TYPE_CHECKING:
    from simcoll.binding import bind
    from simcoll.core.collective import Collective
    from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, transfers
    from simcoll.emulator import emulate
    from simcoll.errors import ConfigError, ScheduleError, SimcollError
    from simcoll.formats.schedules.certificate import verify
    from simcoll.formats.schedules.schedule_json import load_schedule
    from simcoll.libraries.prediction import predict
    from simcoll.topology import load_topology
    from simcoll.tuning import schedule

__all__ = [
    "COPY",
    "REDUCE",
    "Collective",
    "ConfigError",
    "Layout",
    "Schedule",
    "ScheduleError",
    "SimcollError",
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

__getattr__, __dir__ = lazy_attributes(
    "simcoll",
    {
        "": ["types"],
        "simcoll.binding": ["bind"],
        "simcoll.core.collective": ["Collective"],
        "simcoll.core.schedule": ["COPY", "REDUCE", "Layout", "Schedule", "transfers"],
        "simcoll.emulator": ["emulate"],
        "simcoll.errors": ["ConfigError", "ScheduleError", "SimcollError"],
        "simcoll.formats.schedules.certificate": ["verify"],
        "simcoll.formats.schedules.schedule_json": ["load_schedule"],
        "simcoll.libraries.prediction": ["predict"],
        "simcoll.topology": ["load_topology"],
        "simcoll.tuning": ["schedule"],
    },
)

if MovedModules not in sys.meta_path:
    sys.meta_path.append(MovedModules)
