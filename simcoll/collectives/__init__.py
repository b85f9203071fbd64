"""Collectives beyond the ten, defined as data, each with an algorithm; and an all_reduce that
converts on the way.

A function of the number of ranks returns the :class:`~simcoll.core.collective.Collective`, another
makes a schedule for it. They are examples to copy as much as parts to use: nothing here is known to
the verifier, the emulator or an executor, which read the definition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.lazy import lazy_attributes

if TYPE_CHECKING:
    from simcoll.collectives.averaging import gossip, neighbour_rounds
    from simcoll.collectives.experts import (
        Routing,
        combine,
        combine_by_node,
        dispatch,
        dispatch_by_node,
    )
    from simcoll.collectives.neighbours import (
        halo_exchange,
        torus_exchange,
        two_phases,
        with_neighbours,
    )
    from simcoll.collectives.prefix import chain, doubling, exclusive_scan, scan
    from simcoll.collectives.quantised import quantised_two_step
    from simcoll.collectives.resharding import reshard, shard_to_shard
    from simcoll.collectives.several_roots import (
        broadcast_from_roots,
        reduce_to_roots,
        tree_and_fan,
        trees_side_by_side,
    )

__all__ = [
    "Routing",
    "broadcast_from_roots",
    "chain",
    "combine",
    "combine_by_node",
    "dispatch",
    "dispatch_by_node",
    "doubling",
    "exclusive_scan",
    "gossip",
    "halo_exchange",
    "neighbour_rounds",
    "quantised_two_step",
    "reduce_to_roots",
    "reshard",
    "scan",
    "shard_to_shard",
    "torus_exchange",
    "tree_and_fan",
    "trees_side_by_side",
    "two_phases",
    "with_neighbours",
]

__getattr__, __dir__ = lazy_attributes(
    "simcoll.collectives",
    {
        "simcoll.collectives.experts": [
            "Routing",
            "combine",
            "combine_by_node",
            "dispatch",
            "dispatch_by_node",
        ],
        "simcoll.collectives.averaging": ["gossip", "neighbour_rounds"],
        "simcoll.collectives.neighbours": [
            "halo_exchange",
            "torus_exchange",
            "two_phases",
            "with_neighbours",
        ],
        "simcoll.collectives.prefix": ["chain", "doubling", "exclusive_scan", "scan"],
        "simcoll.collectives.quantised": ["quantised_two_step"],
        "simcoll.collectives.resharding": ["reshard", "shard_to_shard"],
        "simcoll.collectives.several_roots": [
            "broadcast_from_roots",
            "reduce_to_roots",
            "tree_and_fan",
            "trees_side_by_side",
        ],
    },
)
