"""The request for a run of a plan: all that its result may depend on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from simcoll.core.plan import Plan
from simcoll.emulator.steps.step_columns import EVEN, PlanSummary, cache_key, summary
from simcoll.topology import Topology

if TYPE_CHECKING:
    from simcoll.emulator.data.dataplane import Storage
    from simcoll.emulator.events.timeline import Timeline
    from simcoll.emulator.reference.ledger import Observer

__all__ = ["Request"]


@dataclass(frozen=True, eq=False, repr=False)
class Request:
    """One run of a plan.

    Attributes
    ----------
    plan, topology
        The plan, and the machine that runs it.
    storage
        Buffers; ``None`` for timing only.
    observer
        Called for every transfer.
    timeline
        Events during the run; ``None`` if there are none.
    keep
        Whether the completion time of every message is needed.
    engine
        Name of the engine that the caller asks for, or ``auto``.
    quotient
        Whether classes of messages stand for all; ``None``: if that saves a lot.
    protocols
        Number of protocols under which every size of this schedule is going to run, as in a table;
        0 if this run may be the only one.
    """

    plan: Plan
    topology: Topology
    storage: Storage | None = None
    observer: Observer | None = None
    timeline: Timeline | None = None
    keep: bool = False
    engine: str = "auto"
    quotient: bool | None = None
    protocols: int = 0

    @cached_property
    def sizes(self) -> tuple[int, int] | None:
        """What facts about the plan's steps hold for
        (:func:`simcoll.emulator.steps.step_columns.cache_key`).
        """
        return cache_key(self.plan)[0]

    @property
    def even(self) -> bool:
        """Whether all chunks are equal, so that facts hold for all sizes."""
        return self.sizes == EVEN

    @cached_property
    def summary(self) -> PlanSummary:
        """Counts of the plan's steps and messages, from one pass over the plan."""
        return summary(self.plan)
