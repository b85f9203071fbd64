"""The types behind the functions of :mod:`simcoll`, and operations and errors that few programs
name.
"""

from __future__ import annotations

from simcoll.bounds import Bound
from simcoll.core.definition import Definition
from simcoll.core.plan import Plan
from simcoll.core.proof import Proof
from simcoll.core.protocol import Protocol
from simcoll.core.reduction import Reduction, premul_sum
from simcoll.core.step import COPY, MULTICAST, REDUCE, SWITCH_REDUCE, SYNC, Repeat, Step, joined
from simcoll.core.transit import Transit
from simcoll.emulator import Observer, Result
from simcoll.emulator.events import Background, Cut, LinkShare, Policy, Slow, Stop
from simcoll.errors import InternalError
from simcoll.topology import Topology

__all__ = [
    "COPY",
    "MULTICAST",
    "REDUCE",
    "SWITCH_REDUCE",
    "SYNC",
    "Background",
    "Bound",
    "Cut",
    "Definition",
    "InternalError",
    "LinkShare",
    "Observer",
    "Plan",
    "Policy",
    "Proof",
    "Protocol",
    "Reduction",
    "Repeat",
    "Result",
    "Slow",
    "Step",
    "Stop",
    "Topology",
    "Transit",
    "joined",
    "premul_sum",
]
