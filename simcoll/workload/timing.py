"""Times of a workload's collectives and sends in isolation: all groups at once, emulated once
each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from simcoll.arrays import Ints
from simcoll.emulator import programs
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.programs import ProgramResult
from simcoll.emulator.programs.program_request import ProgramRequest
from simcoll.emulator.programs.run import play_request
from simcoll.libraries.prediction_cache import key_of, recall, remember, topology_digest
from simcoll.topology import Topology
from simcoll.workload.lower import WorkloadPlans
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Inside,
    SendOperation,
    Workload,
    call_inside,
)

__all__ = ["IsolatedTime", "IsolatedTimes", "WorkloadTimes"]


@dataclass(frozen=True, slots=True)
class IsolatedTime:
    """An operation played alone: its time, and whether all of its ranks finished at that time."""

    time_fs: int
    together: bool


ENGINE = "fast" if COMPILED else "auto"
"""From a thousand messages on, the compiled engine is about 20 times faster; few operations have
fewer.
"""
_FORM = {"time_fs": int, "together": bool}


@dataclass(eq=False)
class IsolatedTimes:
    """Times of isolated operations on a topology; cached for all workloads on it, and on disk for
    other processes.

    Groups with the same placement on a cluster's nodes take the same time if all nodes are alike.

    Attributes
    ----------
    plans
        Their plans and protocols.
    """

    plans: WorkloadPlans
    _times: dict[tuple[object, ...], IsolatedTime] = field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        """The topology."""
        return self.plans.topology

    def collective(self, call: CallOperation, groups: Ints) -> IsolatedTime:
        """Time a collective in all groups at once."""
        if not call.moves or groups.shape[1] < 2:
            return IsolatedTime(0, together=True)
        key = (*call.plan_key, groups.shape, self.plans.placement(groups))
        return self._look_up(key, lambda: programs.Call(self.plans.plan(call, groups[0]), groups))

    def messages(self, pairs: Ints, size_bytes: int) -> IsolatedTime:
        """Time messages of all pairs at once."""
        if not size_bytes:
            return IsolatedTime(0, together=True)
        key = ("send", pairs.shape, self.plans.placement(pairs), size_bytes)
        return self._look_up(key, lambda: self.plans.message(pairs, size_bytes, "comm", ()))

    def _look_up(
        self, key: tuple[object, ...], make: Callable[[], programs.Operation]
    ) -> IsolatedTime:
        if key in self._times:
            return self._times[key]
        plans = self.plans
        calibration = (plans.calibration.hash,) if plans.calibration else ()
        place = key_of(
            "alone",
            topology_digest(self.topology),
            plans.uniform,
            repr(plans.rules),
            *calibration,
            *key,
        )
        stored = recall(place, _FORM)
        if stored is None:
            measured = self._times[key] = self._play(make())
            remember(place, {"time_fs": measured.time_fs, "together": measured.together})
        else:
            measured = self._times[key] = IsolatedTime(**stored)  # type: ignore[arg-type]
        return measured

    def _play(self, operation: programs.Operation) -> IsolatedTime:
        # Only the ends are needed. A ring of 32 channels among 1,024 ranks has 33 million messages,
        # whose times would take half a GiB, and their hash most of the time.
        program = programs.Program(self.topology.nranks, [operation])
        result: ProgramResult = play_request(
            ProgramRequest(program, self.topology, keep="operations", hashed=False, engine=ENGINE)
        )
        ends = result.end_fs(0)
        return IsolatedTime(result.time_fs, bool((ends == ends[0]).all()))


@dataclass(frozen=True, eq=False)
class WorkloadTimes:
    """The times of a workload's operations, implementing
    :class:`~simcoll.workload.class_clock.OperationDurations`.
    """

    workload: Workload
    alone: IsolatedTimes
    _memo: dict[object, int] = field(default_factory=dict)

    def call(self, call: CallOperation) -> int:
        """Femtoseconds of all groups of a call at once."""
        if not call.moves:
            return call.service_fs or 0
        key = (call.group, call.on, *call.plan_key)
        if key not in self._memo:
            self._memo[key] = self.alone.collective(call, self.workload.groups_of(call)).time_fs
        return self._memo[key]

    def inside(self, operation: ComputeOperation, inner: Inside) -> int:
        """Femtoseconds of one collective that a computation waits for."""
        return self.call(call_inside(operation, inner))

    def together(self, operation: ComputeOperation, inner: Inside) -> bool:
        """Whether all ranks finish a collective at the same time."""
        call = call_inside(operation, inner)
        return self.alone.collective(call, self.workload.groups_of(call)).together

    def send(self, send: SendOperation) -> int:
        """Femtoseconds of all messages of a send at once."""
        key = (send.source, send.target, send.size_bytes)
        if key not in self._memo:
            classes = self.workload.classes
            pairs = np.stack([classes[send.source], classes[send.target]], axis=1)
            self._memo[key] = self.alone.messages(pairs, send.size_bytes).time_fs
        return self._memo[key]
