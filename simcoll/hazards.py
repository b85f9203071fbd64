"""Order between transfers of different channels that touch the same chunk.

Within a channel the order of the steps covers every hazard. Where two channels meet in a chunk, the later transfer has to wait:
a read for the last write (read after write), a write for the last write and for every read since (write after write, write after
read). Inside a step all reads come first, so there a write waits for the reads of other channels.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from simcoll.errors import ScheduleError
from simcoll.schedule import REDUCE, SYNC

if TYPE_CHECKING:
    from simcoll.plan import Plan, PlanStep
    from simcoll.schedule import Schedule

__all__ = ["check_orderable", "derive_waits"]

Cell = tuple[int, int]
Access = tuple[int, int]  # (running number of the transfer, channel)


def _cells(rank: int, chunk: int, count: int) -> list[Cell]:
    return [(rank, chunk + offset) for offset in range(count)]


class _Tracker:
    """Last write and reads since, of every chunk touched so far."""

    def __init__(self) -> None:
        self.written: dict[Cell, Access] = {}
        self.read: dict[Cell, list[Access]] = {}
        self.waits: dict[int, dict[int, None]] = {}

    def _wait(self, later: Access, earlier: Access) -> None:
        if later[1] != earlier[1] and later[0] != earlier[0]:
            self.waits.setdefault(later[0], {})[earlier[0]] = None

    def step(self, first: int, step: PlanStep) -> None:
        """Add the hazards of one step whose transfers are numbered from ``first``."""
        columns = (step.src_rank, step.src_chunk, step.dst_rank, step.dst_chunk, step.count, step.op, step.channel)
        rows = list(enumerate(zip(*(column.tolist() for column in columns), strict=True), start=first))
        for number, (src, src_chunk, dst, dst_chunk, count, op, channel) in rows:
            if op == SYNC:
                continue
            reads = _cells(src, src_chunk, count) + (_cells(dst, dst_chunk, count) if op == REDUCE else [])
            for cell in reads:
                if cell in self.written:
                    self._wait((number, channel), self.written[cell])
                self.read.setdefault(cell, []).append((number, channel))
        overwriters: list[tuple[int, int]] = []
        for number, (_, _, dst, dst_chunk, count, op, channel) in rows:
            if op == SYNC:
                continue
            for cell in _cells(dst, dst_chunk, count):
                if cell in self.written:
                    self._wait((number, channel), self.written[cell])
                readers = self.read.pop(cell, [])
                for reader in readers:
                    self._wait((number, channel), reader)
                    if reader[0] >= first and reader[0] != number and reader[1] == channel:
                        overwriters.append((reader[0], number))
                self.written[cell] = (number, channel)
        self._spread(overwriters)

    def _spread(self, overwriters: list[tuple[int, int]]) -> None:
        """A transfer that overwrites what another of its step and channel reads also waits for whatever that one waits for.

        The reader sets its source aside when its waits are over, so only then may the source change.
        """
        changed = True
        while changed:
            changed = False
            for reader, writer in overwriters:
                known = self.waits.get(writer, {})
                missing = [wait for wait in self.waits.get(reader, ()) if wait not in known and wait != writer]
                if missing:
                    self.waits.setdefault(writer, {}).update(dict.fromkeys(missing))
                    changed = True


def derive_waits(plan: Plan) -> dict[int, tuple[int, ...]]:
    """For each transfer of a plan the transfers of other channels that it must wait for.

    Returns
    -------
    dict
        Running number over ``plan.steps()`` to running numbers; transfers without such waits are absent.
    """
    tracker, first = _Tracker(), 0
    for step in plan.steps():
        tracker.step(first, step)
        first += len(step)
    return {number: tuple(sorted(waits)) for number, waits in sorted(tracker.waits.items())}


def check_orderable(schedule: Schedule) -> None:
    """Refuse a schedule in which channels exchange chunks in a circle inside one step: no order in time does that.

    Raises
    ------
    ScheduleError
        Naming the step.
    """
    from simcoll.plan import bind, lowered, overwritten

    # Only a transfer that overwrites what another of its step reads waits inside the step; most schedules have none.
    exchanging = (
        overwritten(schedule.layout, step).any() and (step.channel != step.channel[0]).any()
        for _, step in lowered(schedule)
    )
    if not any(exchanging):
        return
    plan = bind(schedule, schedule.layout.chunks)
    waits, first = derive_waits(plan), 0
    for step in plan.steps():
        inside = {n: [w for w in waits.get(n, ()) if w >= first] for n in range(first, first + len(step))}
        try:
            TopologicalSorter(inside).prepare()
        except CycleError as error:
            rows = sorted({number - first for number in error.args[1]})
            ends = ", ".join(
                f"rank {step.src_rank[r]} -> {step.dst_rank[r]} (channel {step.channel[r]})" for r in rows[:4]
            )
            raise ScheduleError(
                f"{schedule}: step {step.step}: transfers of different channels overwrite what each other read: {ends}. "
                "Use one channel or two steps.",
                step=step.step,
            ) from None
        first += len(step)
