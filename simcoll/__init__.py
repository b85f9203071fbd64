"""Specify a collective once, prove it, see how fast it will be on any cluster, run it unchanged on GPUs."""

from simcoll.algorithms import schedule
from simcoll.collective import Collective
from simcoll.errors import ConfigError, InternalError, ScheduleError, SimcollError
from simcoll.plan import Plan, bind
from simcoll.protocol import Protocol, protocol
from simcoll.schedule import COPY, REDUCE, SYNC, Layout, Repeat, Schedule, Step, transfers
from simcoll.verify import Proof, verify

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
    "Repeat",
    "Schedule",
    "ScheduleError",
    "SimcollError",
    "Step",
    "bind",
    "protocol",
    "schedule",
    "transfers",
    "verify",
]
__version__ = "0.1.0"
