"""Collective algorithms, one family per file; :data:`ALGORITHMS` lists the collectives that each
one serves. Combinators make schedules of schedules.

An algorithm depends on its collective and rank count, never on sizes or protocols; a few are built
for one given topology.
"""

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
