"""How long collectives would take alone, without running them: for PyTorch's time estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.distributed.runtime.emulated import EmulatedWorld
from simcoll.distributed.runtime.plans import Plans
from simcoll.distributed.runtime.records import Trace
from simcoll.distributed.runtime.world import Communicator, ProcessGroup
from simcoll.emulator import emulate

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from simcoll.core.plan import Plan
    from simcoll.distributed.runtime.world import World

__all__ = ["Estimator", "estimating"]


class Estimator:
    """An executor that plays each plan alone on the run's topology, one after the other, and moves no tensor.

    Attributes
    ----------
    time_fs
        Of the plans so far.
    equal_splits
        The next plan is how the ranks of an all_to_all tell each other what they will send: assume that all send alike.
    """

    def __init__(self, world: World) -> None:
        self.time_fs = 0
        self.equal_splits = False
        self._world = world

    def execute(self, plan: Plan, rank: int, data: NDArray[Any]) -> NDArray[Any] | None:
        """Add the time of a plan."""
        del rank
        if self.equal_splits:
            self.equal_splits = False
            return np.tile(data, plan.nranks)
        self.time_fs += emulate(plan, self._world.topology, data="none", bound=False).time_fs
        return None


def estimating(handle: ProcessGroup) -> tuple[ProcessGroup, Estimator]:
    """A handle of the same ranks in a world of its own, on which calls leave no trace in the run."""
    group = handle.communicator
    run = group.world
    plans = Plans(run.topology, run.plans.protocol, run.plans.algorithm)
    world = EmulatedWorld(len(run.ranks), plans, debug=False, trace=Trace(0))
    apart = Communicator(
        world, group.name, group.key, group.desc, group.members, group.timeout_fs, group.explicit, group.backend,
        group.algorithm,
    )  # fmt: skip
    estimator = Estimator(world)
    return ProcessGroup(apart, handle.global_rank, handle.timeout, estimator), estimator
