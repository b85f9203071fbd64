"""The operations of switches in a step."""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.plan import PlanStep
from simcoll.core.step import MULTICAST, SWITCH_REDUCE, Step, first_alike

__all__ = ["switch_groups", "switch_leaders"]


def switch_leaders(step: Step | PlanStep) -> Ints:
    """For each transfer, the row of the first transfer in the same switch operation; -1 if no
    switch is involved.

    A multicast has one source chunk, a switch reduction one destination chunk; each has one
    channel.
    """
    leaders = np.full(len(step), -1)
    for op, rank, chunk in (
        (MULTICAST, step.src_rank, step.src_chunk),
        (SWITCH_REDUCE, step.dst_rank, step.dst_chunk),
    ):
        rows = np.flatnonzero(step.op == op)
        if len(rows) == len(step):
            return first_alike(chunk, rank, step.channel)
        leaders[rows] = rows[first_alike(chunk[rows], rank[rows], step.channel[rows])]
    return leaders


def switch_groups(step: Step | PlanStep) -> list[list[int]]:
    """The transfers of a step, grouped by switch operation, as lists of rows."""
    leaders = switch_leaders(step)
    groups: dict[int, list[int]] = {}
    for row in np.flatnonzero(leaders >= 0).tolist():
        groups.setdefault(int(leaders[row]), []).append(row)
    return list(groups.values())
