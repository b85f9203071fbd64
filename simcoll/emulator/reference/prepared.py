"""A plan prepared for repeated runs."""

from __future__ import annotations

from simcoll.core.plan import Plan
from simcoll.emulator.data.dataplane import Storage
from simcoll.emulator.reference.fabric import Fabric
from simcoll.emulator.reference.messages import PreparedStep, prepared_steps
from simcoll.emulator.steps.plan_placement import Caps, Placement, placement_of
from simcoll.emulator.steps.step_columns import PlanSummary, summary
from simcoll.topology import Topology

__all__ = ["PreparedPlan", "add_caps"]


class PreparedPlan:
    """A plan prepared for repeated runs on one fabric, with the same buffers."""

    __slots__ = ("steps", "summary")

    def __init__(
        self, plan: Plan, topology: Topology, fabric: Fabric, storage: Storage | None
    ) -> None:
        self.summary: PlanSummary = summary(plan)
        self.steps: tuple[PreparedStep, ...] = tuple(
            prepared_steps(plan, topology, storage, add_caps(plan, fabric))
        )


def add_caps(plan: Plan, fabric: Fabric) -> Placement:
    """Add the links that cap the plan's rates to the fabric, if any."""
    caps = Caps(plan.protocol, plan.nranks, plan.nchannels)
    return placement_of(plan, fabric.add_links(caps.rates, caps.name) if caps.rates else 0)
