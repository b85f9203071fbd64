"""Rehearsals: takes of large plans without data, made by the compiled engine instead of a run.

The ranks of a large plan whose program is one rank's enter together, and it goes on when the last
of them leaves. What happens in between is then of no consequence, unless something else comes to
the links; the plan is simulated after all if it does, as with any take
(:mod:`simcoll.distributed.runtime.takes`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.plan import Plan
from simcoll.distributed.runtime.takes import Take
from simcoll.emulator.model import shared_capacities
from simcoll.emulator.run import emulate
from simcoll.topology import Topology

__all__ = ["KEPT_REHEARSALS", "Rehearsals", "hash_at"]

KEPT_REHEARSALS = 256
"""Rehearsals kept by a run, each with an entry and a departure of every rank."""


@dataclass(slots=True, eq=False)
class Rehearsals:
    """The rehearsals of a run by the identity of their plans.

    Attributes
    ----------
    topology, open_uBps
        The machine, and the capacity of every link that the run leaves to data.
    """

    topology: Topology
    open_uBps: Ints
    _takes: dict[int, Take | None] = field(default_factory=dict)
    _plans: dict[int, Plan] = field(default_factory=dict)

    def of(self, plan: Plan) -> Take | None:
        """The take of a plan whose ranks enter together, and leave together when the last transfer
        is done; None where the run leaves less of a link than the plan's protocol takes.
        """
        key = id(plan)
        if key not in self._takes:
            if len(self._takes) >= KEPT_REHEARSALS:
                oldest = next(iter(self._takes))
                del self._takes[oldest], self._plans[oldest]
            self._takes[key], self._plans[key] = self._rehearse(plan), plan
        return self._takes[key]

    def _rehearse(self, plan: Plan) -> Take | None:
        if plan.protocol.jitter_fs or np.any(
            shared_capacities(self.topology, plan.protocol) > self.open_uBps
        ):
            return None
        result = emulate(plan, self.topology, data="none", bound=False)
        end_fs, ranks = result.time_fs, range(plan.nranks)
        log = [
            *((0, rank, False) for rank in ranks),
            *((end_fs, rank, True) for rank in ranks),
        ]
        return Take(plan, tuple(log), end_fs, result.messages, result.trace_hash, together=True)


def hash_at(take: Take, begin_fs: int) -> str:
    """The trace hash of a rehearsal that began at some time."""
    text = f"{take.hash} {take.plan.total_bytes} {take.messages} {begin_fs} {take.end_fs}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
