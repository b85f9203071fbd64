"""Provable lower bounds: the times that no schedule can beat on a topology, with the cuts that prove them.

``flows`` has maximum flows, ``cuts`` the exact cut of all-gather and scatter, ``programs`` the all-to-all program with its checked
dual, ``lower`` the bound of every collective. The other modules say what can be reached: ``packing`` has trees that fill all
links, made from the rates that ``pairs`` of ranks can have at once by ``growing`` them, where ``rates`` are better than fair shares;
``roots`` the best all-reduce along trees.
Nothing here knows of schedules or of the emulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.later import loaded_later

if TYPE_CHECKING:
    from simcoll.bounds.cuts import Cut, all_gather_cut
    from simcoll.bounds.lower import Bottleneck, Bound, bottleneck, lower_bound

__all__ = ["Bottleneck", "Bound", "Cut", "all_gather_cut", "bottleneck", "lower_bound"]

__getattr__, __dir__ = loaded_later(
    "simcoll.bounds",
    {
        "simcoll.bounds.cuts": ["Cut", "all_gather_cut"],
        "simcoll.bounds.lower": ["Bottleneck", "Bound", "bottleneck", "lower_bound"],
    },
)
