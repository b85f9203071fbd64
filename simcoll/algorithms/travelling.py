"""A combinator: the same schedule with its messages on another path, or in a wire format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from simcoll.core.schedule import Repeat, Schedule, Step
from simcoll.core.step import SYNC, concurrent, moving_part
from simcoll.core.transit import PLAIN, Transit, Transits
from simcoll.errors import ConfigError, expect

__all__ = ["in_transit"]


def in_transit(schedule: Schedule, *, via: str = "", wire: str = "") -> Schedule:
    """The same schedule, in which messages between ranks take a path and have a wire format.

    ``via`` and ``wire`` are as in :func:`simcoll.transfers`; transfers that have chosen one keep
    it. Side by side with the schedule itself (:func:`in_fractions`), it uses two networks at once.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
    >>> print(simcoll.verify(in_transit(ring, via="net", wire="bfloat16")))
    proved (full, exact): 16 transfers in 4 steps, up to conversion to bfloat16

    Raises
    ------
    ConfigError
        For a wire format that does not exist, and for switch operations, which have neither.
    """
    expect(schedule, Schedule, "in_transit takes a schedule")
    chosen = Transit(via, wire)

    def on_its_way(step: Step) -> Step:
        if (step.op > SYNC).any():
            raise ConfigError(
                f"in_transit: {schedule} has switch operations, which have no path or wire format"
            )
        transits = step.transits or Transits(np.zeros(len(step), np.int64), (PLAIN,))
        table = transits.table
        every = (*table, *_with_choice(table, chosen), *_with_choice(table, Transit(chosen.via)))
        kind = np.where(step.op == SYNC, 2, 1)  # a message without data has no format
        kind[step.src_rank == step.dst_rank] = 0  # what stays on its rank stays as it is
        return replace(step, transits=Transits(transits.number + kind * len(table), every))

    def steps() -> Iterator[Step | Repeat]:
        for block in map(concurrent, schedule.source()):
            moving = moving_part(block)
            if isinstance(moving, Repeat):
                yield replace(moving, steps=tuple(map(on_its_way, moving.steps)))
            elif moving is not None:
                yield on_its_way(moving)

    params = dict(schedule.params)
    params |= {key: text for key, text in (("via", chosen.via), ("wire", chosen.wire)) if text}
    return replace(schedule, source=steps, params=tuple(params.items()))


def _with_choice(table: Sequence[Transit], chosen: Transit) -> list[Transit]:
    """Transits in which what is open is chosen."""
    return [Transit(entry.via or chosen.via, entry.wire or chosen.wire) for entry in table]
