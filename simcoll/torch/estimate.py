"""PyTorch's time estimator: predict collectives without running them."""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.distributed.runtime.emulated import EmulatedWorld
from simcoll.distributed.runtime.history import History
from simcoll.distributed.runtime.world import Communicator, GroupHandle, World
from simcoll.emulator import emulate
from simcoll.libraries.choices import Plans

__all__ = ["Estimator", "estimating"]


class Estimator:
    """An executor that times each plan alone on the run's topology and moves no data.

    Attributes
    ----------
    time_fs
        The time of all plans so far.
    equal_splits
        Whether the next plan exchanges the splits of an all_to_all; all ranks are then assumed to
        send equal splits.
    """

    def __init__(self, world: World) -> None:
        self.time_fs = 0
        self.equal_splits = False
        self._world = world

    def execute(self, plan: Plan, rank: int, data: Array) -> Array | None:
        """Add the time of a plan."""
        del rank
        if self.equal_splits:
            self.equal_splits = False
            return np.tile(data, plan.nranks)
        self.time_fs += emulate(plan, self._world.plans.topology, data="none", bound=False).time_fs
        return None


def estimating(handle: GroupHandle) -> tuple[GroupHandle, Estimator]:
    """A handle of the same group in a separate world, and its estimator; calls on it do not affect
    the run.
    """
    group = handle.communicator
    run = group.world
    plans = Plans(run.plans.topology, run.plans.protocol, run.plans.algorithm, run.plans.library)
    world = EmulatedWorld(len(run.ranks), plans, debug=False, history=History(0))
    twin = Communicator(
        world,
        group.name,
        group.key,
        group.desc,
        group.members,
        group.timeout_fs,
        group.explicit,
        group.backend,
        group.algorithm,
    )
    estimator = Estimator(world)
    return GroupHandle(twin, handle.global_rank, handle.timeout, estimator), estimator
