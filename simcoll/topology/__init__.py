"""Clusters as frozen graphs: links, placement of ranks, routes, and the source of every number.

``graph`` holds the record, ``routing`` the vectorised routers, ``detours`` the routes around lost
links, ``families``, ``direct_networks``, ``ecmp`` and ``cluster`` the generators, ``placement`` the
positions of ranks, ``orbits`` the symmetries of ranks, ``files`` and ``file_layers`` the TOML
format, ``readers`` the descriptions that other tools have of machines, and ``machine`` the facts
that library models need. Nothing here depends on schedules or time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.lazy import lazy_attributes

if TYPE_CHECKING:
    from simcoll.topology.cluster import Tier
    from simcoll.topology.direct_networks import (
        DragonflyParameters,
        dragonfly,
        hybrid_cube_mesh,
        hypercube,
        hyperx,
    )
    from simcoll.topology.ecmp import ClosParameters, clos
    from simcoll.topology.families import BoxesParameters, boxes, crossbar, fat_tree, torus
    from simcoll.topology.files import load_topology, shipped_topologies, topology_of_job
    from simcoll.topology.graph import LINK_KINDS, NODE_KINDS, Routes, Topology
    from simcoll.topology.networkx_graph import from_networkx
    from simcoll.topology.orbits import rank_orbits
    from simcoll.topology.placement import place

__all__ = [
    "LINK_KINDS",
    "NODE_KINDS",
    "BoxesParameters",
    "ClosParameters",
    "DragonflyParameters",
    "Routes",
    "Tier",
    "Topology",
    "boxes",
    "clos",
    "crossbar",
    "dragonfly",
    "fat_tree",
    "from_networkx",
    "hybrid_cube_mesh",
    "hypercube",
    "hyperx",
    "load_topology",
    "place",
    "rank_orbits",
    "shipped_topologies",
    "topology_of_job",
    "torus",
]

__getattr__, __dir__ = lazy_attributes(
    "simcoll.topology",
    {
        "simcoll.topology.cluster": ["Tier"],
        "simcoll.topology.direct_networks": [
            "DragonflyParameters",
            "dragonfly",
            "hybrid_cube_mesh",
            "hypercube",
            "hyperx",
        ],
        "simcoll.topology.ecmp": ["ClosParameters", "clos"],
        "simcoll.topology.families": ["BoxesParameters", "boxes", "crossbar", "fat_tree", "torus"],
        "simcoll.topology.files": ["load_topology", "shipped_topologies", "topology_of_job"],
        "simcoll.topology.graph": ["LINK_KINDS", "NODE_KINDS", "Routes", "Topology"],
        "simcoll.topology.networkx_graph": ["from_networkx"],
        "simcoll.topology.orbits": ["rank_orbits"],
        "simcoll.topology.placement": ["place"],
    },
)
