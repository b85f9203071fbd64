"""Events in runs of the compiled loops, and the records of those that they end early, equal to
those of the reference engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from simcoll.arrays import Ints
from simcoll.emulator.events.capacities import CapacityTimeline
from simcoll.emulator.events.cut import Cut, CutMessage, cut_at
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.events.timeline import Timeline
from simcoll.errors import InternalError

if TYPE_CHECKING:
    from simcoll.emulator.fast.changing import Changes
    from simcoll.emulator.fast.cutting import Remains
    from simcoll.emulator.fast.driver import StepMachine


__all__ = ["changes_of", "cut_of_machine"]


def changes_of(
    timeline: Timeline,
    capacity: Ints,
    endpoints: Ints,
    stride: int,
    companions: Mapping[int, Sequence[int]] | None = None,
) -> Changes:
    """The changes by events during a run of the compiled loops, with ``stride`` lanes per rank.

    ``companions`` as in a CapacityTimeline.
    """
    from simcoll.emulator.fast.changing import BlockRoutes, Changes

    ways = BlockRoutes(Detours(timeline.topology), endpoints) if timeline.detours else None
    return Changes(
        CapacityTimeline(timeline, capacity.tolist(), companions), len(endpoints), stride, ways
    )


def cut_of_machine(
    timeline: Timeline,
    machine: StepMachine,
    link_name: Callable[[int], str],
    stride: int,
    planned_bytes: int,
) -> tuple[Remains, Cut]:
    """The record of a compiled run that ended early.

    Raises
    ------
    InternalError
        When the bytes moved and the bytes dropped do not add up to the plan.
    """
    from simcoll.emulator.fast.cutting import remains

    record, s = remains(machine), machine.state
    payload = record.delivered_bytes, record.dropped_bytes
    if sum(payload) != planned_bytes:
        raise InternalError(
            f"delivered {payload[0]} bytes and dropped {payload[1]}; the plan has {planned_bytes}"
        )
    waiting = np.unique(np.flatnonzero((s.lane_left > 0) | (s.lane_pending > 0)) // stride).tolist()
    messages = [
        CutMessage(
            message.number, message.src, message.dst, tuple(sorted(map(link_name, message.links)))
        )
        for message in record.waiting
    ]
    return record, cut_at(
        timeline, record.time_fs, messages, waiting, payload, aborted=record.aborted
    )
