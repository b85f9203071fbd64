"""What one process does for a plan: its part of every step, as spans of bytes. Knows no transport.

Inside a step all reads see the memory before it. So, in this order: sources that the step overwrites are set aside; one group of sends
and receives moves the bytes (a copy lands in its place, an operand of a reduction in staging memory); then copies inside a rank and
reductions follow in the order of the plan's rows, which fixes every result to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from simcoll.core.schedule import REDUCE, SWITCH_REDUCE, SYNC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simcoll.core.plan import Plan, PlanStep

__all__ = ["STAGING", "Program", "Span", "Turn", "program"]

STAGING = -1
"""In place of a rank: memory of the process for what is on its way."""
ALIGN = 64

Span: TypeAlias = tuple[int, int, int, int]
"""Rank (or ``STAGING``), buffer, first byte, bytes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step as one process does it.

    Attributes
    ----------
    step
        Number of the step in the schedule.
    aside
        ``(target, source)``: copies before anything moves.
    recvs, sends
        ``(span, process)``: the group.
    after
        ``(reduce, target, source)``: what is combined or copied when the group is done, in this order.
    """

    step: int
    aside: tuple[tuple[Span, Span], ...]
    recvs: tuple[tuple[Span, int], ...]
    sends: tuple[tuple[Span, int], ...]
    after: tuple[tuple[bool, Span, Span], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The turns of a process, and how much staging memory they need. Turns take turns in using it."""

    turns: tuple[Turn, ...]
    staging_bytes: int


class _Staging:
    """Hands out staging memory for one turn."""

    def __init__(self) -> None:
        self.used = 0

    def __call__(self, size_bytes: int) -> Span:
        first = self.used
        self.used += -(-max(size_bytes, 1) // ALIGN) * ALIGN
        return STAGING, 0, first, size_bytes


def program(plan: Plan, hosts: Sequence[int], process: int, channel: int | None = None) -> Program:
    """The part of one process in a plan.

    Parameters
    ----------
    plan
        What to do.
    hosts
        Process that hosts each rank of the plan.
    process
        Whose part.
    channel
        Only this channel; default all.
    """
    host = np.asarray(hosts, np.int64)
    turns, most = [], 0
    for step in plan.steps():
        mine = (host[step.src_rank] == process) | (host[step.dst_rank] == process)
        if channel is not None:
            mine &= step.channel == channel
        if mine.any():
            staging = _Staging()
            turn = _turn(step, np.flatnonzero(mine), hosts, process, plan.dtype.itemsize, staging)
            turns.append(turn)
            most = max(most, staging.used)
    return Program(tuple(turns), most)


def _rows(step: PlanStep, rows: np.ndarray) -> Iterator[tuple[int, ...]]:
    columns = (
        step.src_rank, step.src_buffer, step.src_offset, step.dst_rank, step.dst_buffer, step.dst_offset,
        step.size_bytes, step.op, step.staged, step.dst_chunk, step.channel,
    )  # fmt: skip
    return zip(*(column[rows].tolist() for column in columns), strict=True)


def _turn(step: PlanStep, rows: np.ndarray, hosts: Sequence[int], process: int, item: int, staging: _Staging) -> Turn:
    aside: list[tuple[Span, Span]] = []
    recvs: list[tuple[Span, int]] = []
    sends: list[tuple[Span, int]] = []
    after: list[tuple[bool, Span, Span]] = []
    begun: set[tuple[int, int, int]] = set()  # destinations of switch reductions that hold their first operand
    for src, src_buffer, src_at, dst, dst_buffer, dst_at, size, op, staged, chunk, channel in _rows(step, rows):
        source: Span = (src, src_buffer, src_at * item, size)
        target: Span = (dst, dst_buffer, dst_at * item, size)
        reduces = op == REDUCE  # a multicast is a copy to each destination
        if op == SWITCH_REDUCE:
            reduces = (channel, dst, chunk) in begun
            begun.add((channel, dst, chunk))
        if op == SYNC:
            source, target = staging(1), staging(1)
        elif staged and hosts[src] == process:
            aside.append((staging(size), source))
            source = aside[-1][0]
        if src == dst:
            if op != SYNC:
                after.append((reduces, target, source))
            continue
        if hosts[src] == process:
            sends.append((source, hosts[dst]))
        if hosts[dst] == process:
            landing = staging(size) if reduces else target
            recvs.append((landing, hosts[src]))
            if reduces:
                after.append((True, target, landing))
    return Turn(step.step, tuple(aside), tuple(recvs), tuple(sends), tuple(after))
