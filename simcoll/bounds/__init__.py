"""Provable lower bounds: what no schedule can beat on a topology, and the cut that proves it.

``flows`` has maximum flows, ``cuts`` the exact cut of all-gather and scatter, ``lower`` the bound of every
collective. Nothing here knows of schedules or of the emulator.
"""

from simcoll.bounds.cuts import Cut, all_gather_cut
from simcoll.bounds.lower import Bottleneck, Bound, bottleneck, lower_bound

__all__ = ["Bottleneck", "Bound", "Cut", "all_gather_cut", "bottleneck", "lower_bound"]
