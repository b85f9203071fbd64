"""Specify a collective once, prove it, see how fast it will be on any cluster, run it unchanged on GPUs.

The emulator, topologies and file formats are loaded when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from simcoll.algorithms import schedule
from simcoll.binding import bind, verify
from simcoll.core.collective import Collective
from simcoll.core.plan import Plan
from simcoll.core.proof import Proof
from simcoll.core.protocol import Protocol, protocol
from simcoll.core.reduction import Reduction, premul_sum
from simcoll.core.schedule import COPY, REDUCE, SYNC, Layout, Repeat, Schedule, Step, transfers
from simcoll.errors import ConfigError, InternalError, ScheduleError, SimcollError

if TYPE_CHECKING:
    from simcoll.emulator import Result, emulate
    from simcoll.formats.schedule_json import dump_schedule, load_schedule
    from simcoll.topology import Topology, load_topology

__all__ = [
    "COPY",
    "REDUCE",
    "SYNC",
    "Collective",
    "ConfigError",
    "InternalError",
    "Layout",
    "Plan",
    "Proof",
    "Protocol",
    "Reduction",
    "Repeat",
    "Result",
    "Schedule",
    "ScheduleError",
    "SimcollError",
    "Step",
    "Topology",
    "bind",
    "dump_schedule",
    "emulate",
    "load_schedule",
    "load_topology",
    "premul_sum",
    "protocol",
    "schedule",
    "transfers",
    "verify",
]
__version__ = "0.1.0"

_LATER = {
    "Result": "simcoll.emulator",
    "emulate": "simcoll.emulator",
    "dump_schedule": "simcoll.formats.schedule_json",
    "load_schedule": "simcoll.formats.schedule_json",
    "Topology": "simcoll.topology",
    "load_topology": "simcoll.topology",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'simcoll' has no attribute {name!r}")
