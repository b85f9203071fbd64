"""Clusters as frozen graphs: the links, who sits where, which way the data goes, where the numbers come from.

``graph`` holds the record, ``routing`` the vectorised routers, ``families`` and ``cluster`` the generators, ``files``
the TOML format and ``nccl_xml`` the dumps of real machines. Nothing here knows of schedules or time.
"""

from simcoll.topology.cluster import Tier
from simcoll.topology.families import boxes, crossbar, fat_tree, torus
from simcoll.topology.files import load_topology, shipped_topologies
from simcoll.topology.graph import LINK_KINDS, NODE_KINDS, Routes, Topology
from simcoll.topology.networkx_graph import from_networkx

__all__ = [
    "LINK_KINDS",
    "NODE_KINDS",
    "Routes",
    "Tier",
    "Topology",
    "boxes",
    "crossbar",
    "fat_tree",
    "from_networkx",
    "load_topology",
    "shipped_topologies",
    "torus",
]
