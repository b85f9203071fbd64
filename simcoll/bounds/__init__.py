"""Provable lower bounds: times that no schedule can beat on a topology, with the cuts that prove
them.

``flows`` computes maximum flows, ``cuts`` the exact cut of all-gather and scatter,
``linear_programs`` the all-to-all program with its checked dual, ``lower_bounds`` the bound of
every collective of the table, ``custom_cuts`` that of a custom one. The other modules show what can
be reached. ``packing`` builds trees that fill all links: from the rates that pairs of ranks can
have simultaneously (fair shares in ``pair_routes``, or better ones from ``pair_rates``), by
``growing`` or ``composing`` trees. ``roots`` computes the best all-reduce along trees. Nothing here
depends on schedules or the emulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.lazy import lazy_attributes

if TYPE_CHECKING:
    from simcoll.bounds.custom_cuts import custom_bound
    from simcoll.bounds.cuts import NetworkCut, all_gather_cut
    from simcoll.bounds.lower_bounds import Bottleneck, Bound, bottleneck, lower_bound

__all__ = [
    "Bottleneck",
    "Bound",
    "NetworkCut",
    "all_gather_cut",
    "bottleneck",
    "custom_bound",
    "lower_bound",
]

__getattr__, __dir__ = lazy_attributes(
    "simcoll.bounds",
    {
        "simcoll.bounds.custom_cuts": ["custom_bound"],
        "simcoll.bounds.cuts": ["NetworkCut", "all_gather_cut"],
        "simcoll.bounds.lower_bounds": ["Bottleneck", "Bound", "bottleneck", "lower_bound"],
    },
)
