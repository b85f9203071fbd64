"""Collective algorithms, one family per file; :data:`ALGORITHMS` lists the collectives that each
one serves. Combinators make schedules of schedules.

An algorithm depends on its collective and rank count, never on sizes or protocols; a few are built
for one given topology.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.lazy import lazy_attributes

if TYPE_CHECKING:
    from simcoll.algorithms.compose import (
        channels,
        in_channels,
        in_pieces,
        in_shares,
        in_stages,
        pieces,
        pipelined,
        relabelled,
        staggered,
        together,
    )
    from simcoll.algorithms.ranges import single_messages
    from simcoll.algorithms.registry import ALGORITHMS, Algorithm, find_algorithm, schedule
    from simcoll.algorithms.travelling import in_transit
    from simcoll.algorithms.unequal_shares import in_fractions

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "channels",
    "find_algorithm",
    "in_channels",
    "in_fractions",
    "in_pieces",
    "in_shares",
    "in_stages",
    "in_transit",
    "pieces",
    "pipelined",
    "relabelled",
    "schedule",
    "single_messages",
    "staggered",
    "together",
]

__getattr__, __dir__ = lazy_attributes(
    "simcoll.algorithms",
    {
        "simcoll.algorithms.compose": [
            "channels",
            "in_channels",
            "in_pieces",
            "in_shares",
            "in_stages",
            "pieces",
            "pipelined",
            "relabelled",
            "staggered",
            "together",
        ],
        "simcoll.algorithms.ranges": ["single_messages"],
        "simcoll.algorithms.registry": ["ALGORITHMS", "Algorithm", "find_algorithm", "schedule"],
        "simcoll.algorithms.travelling": ["in_transit"],
        "simcoll.algorithms.unequal_shares": ["in_fractions"],
    },
)
