"""Plays a plan on a topology: how long it takes, link by link, and what data it leaves.

``model`` holds the rules of time and nothing else does; ``fabric`` the clock and the links; ``engine`` the SimPy
player of plans, with ``messages`` (plan steps to messages), ``dataplane`` (buffers) and ``digest`` (the trace hash);
``floor`` the latency floor; ``trace`` the timeline file; ``run`` the one call. Nothing here knows of protocols by
name, of algorithms, or of files of topologies.
"""

from simcoll.emulator.engine import Observer, Player
from simcoll.emulator.fabric import Calendar, Fabric
from simcoll.emulator.result import Result, bus_factor
from simcoll.emulator.run import emulate
from simcoll.emulator.trace import Trace

__all__ = ["Calendar", "Fabric", "Observer", "Player", "Result", "Trace", "bus_factor", "emulate"]
