"""The links of a run: those of the topology, and those that cap the rates of its protocol."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.plan import Plan
from simcoll.emulator.model import effective_capacities
from simcoll.emulator.steps.plan_placement import Placement, placement_of
from simcoll.errors import ConfigError
from simcoll.topology import Topology

__all__ = ["all_links", "check_switches"]


def all_links(plan: Plan, topology: Topology) -> tuple[Ints, Placement, Callable[[int], str]]:
    """Capacities of all links, including those that cap rates; the placement of ranks; and link
    names.
    """
    capacity = np.array(effective_capacities(topology, plan.protocol), np.int64)
    links = topology.nlinks
    placement = placement_of(plan, links)
    caps = placement.caps
    if caps is None:
        return capacity, placement, topology.link_name

    def name(link: int) -> str:
        return topology.link_name(link) if link < links else caps.name(link - links)

    return np.concatenate([capacity, np.array(caps.rates, np.int64)]), placement, name


def check_switches(plan: Plan, topology: Topology) -> None:
    """Refuse a plan with switch operations on a topology without switches that reduce.

    Raises
    ------
    ConfigError
        When the topology has no trait ``switch_reduce``.
    """
    if "switch_reduce" not in topology.traits:
        raise ConfigError(
            f"{plan.schedule.title} needs switches that reduce and multicast, which topology "
            f"{topology.name!r} does "
            "not have (trait switch_reduce)"
        )
