"""A run whose steps are all loaded in advance, so the loops never return to Python; it can be
repeated.

Only costs and capacities are new in each run. Arrays that a run changes are restored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Array, Ints, Shorts
from simcoll.emulator.fast.compiled import announce_compiling
from simcoll.emulator.fast.filling import index_blocks, private_rates, wait_for
from simcoll.emulator.fast.loading import load
from simcoll.emulator.fast.loops import run
from simcoll.emulator.fast.refusing import check_clock, check_end, refuse
from simcoll.emulator.fast.room import (
    PER_BLOCK,
    PER_HOP,
    edges,
    extend_arrays,
    larger_calendar,
    new_state,
)
from simcoll.emulator.fast.state import BOTH, FULL, HASHED, IDLE, LAST, NOW, SWITCHED, State
from simcoll.emulator.steps.joint import partners

__all__ = ["Sheet", "SheetCosts", "Whole"]

CHANGED = (
    "reg",
    "sums",
    "needs",
    "phase",
    "rated",
    "key",
    "waiters",
    "edge_next",
    "block_left",
    "lane_left",
    "lane_pending",
    "lane_free",
    "lane_block",
    "lane_head",
    "lane_tail",
    "stack",
    "level",
    "used",
    "flows",
    "head",
    "queued",
    "marked",
)
"""Arrays that a run changes and the next one reads; at the end the calendar is empty, and no hop is
shared.
"""


class Sheet(NamedTuple):
    """All steps of a run without FIFOs: the distinct ones row by row, and their order.

    ``begins`` is the first row of each distinct step, plus the total; ``order`` lists step numbers.
    ``leader`` is as in :class:`simcoll.emulator.steps.timed.StepShape`, but a row number over all
    steps; message ``later[i]`` waits for message ``earlier[i]``.
    """

    begins: Ints
    order: Ints
    sender: Ints
    receiver: Ints
    src: Ints
    dst: Ints
    links: Shorts
    weight: Shorts
    leader: Ints | None
    later: Array
    earlier: Array


class SheetCosts(NamedTuple):
    """Costs of all distinct rows; see :class:`simcoll.emulator.steps.timed.Timed`."""

    delay_fs: Ints
    busy_fs: Ints
    wire: Ints
    post_fs: Ints
    size: Ints


class Whole:
    """The loaded steps of a sheet; ``lane_steps`` as for
    :class:`simcoll.emulator.fast.driver.StepMachine`.
    """

    def __init__(self, sheet: Sheet, links: int, lane_steps: Ints, *, hashed: bool) -> None:
        rows = np.diff(sheet.begins)[sheet.order]
        self.starts = np.append(0, np.cumsum(rows))
        self.slots = slice(links, links + int(self.starts[-1]))
        shift = np.repeat(sheet.begins[sheet.order] - self.starts[:-1], rows)
        self.row = shift + np.arange(len(shift))
        self.capacity = np.zeros(links, np.int64)
        # Any capacity, until it is known.
        state = new_state(np.ones(links, np.int64), lane_steps, 0, fifo=False, slots=len(self.row))
        self.state = state = self._fill(state, sheet, rows)
        state.reg[HASHED] = hashed
        load(state, np.arange(len(rows)))
        if len(sheet.later):
            self.state = state = edges(state, len(sheet.later))
            wait_for(state, np.int64(links) + sheet.earlier, np.int64(links) + sheet.later)
        self.pristine = {name: getattr(state, name).copy() for name in CHANGED}

    def _fill(self, state: State, sheet: Sheet, rows: Ints) -> State:
        s, slots, row = state, self.slots, self.row
        blocks, hops_of_row = len(rows), (sheet.links >= 0).sum(axis=1)[row]
        hops = np.append(0, np.cumsum(hops_of_row))
        s = extend_arrays(extend_arrays(s, PER_BLOCK, blocks), PER_HOP, int(hops[-1]))
        s.block_base[:], s.block_rows[:] = slots.start + self.starts[:-1], rows
        s.block[slots] = np.repeat(np.arange(blocks), rows)
        s.waiters[slots] = -1
        s.sender[slots], s.receiver[slots] = sheet.sender[row], sheet.receiver[row]
        s.src[slots], s.dst[slots] = sheet.src[row], sheet.dst[row]
        s.rule[slots] = BOTH
        if sheet.leader is not None:
            to_slot = np.arange(slots.start, slots.stop) - row  # offset from row to slot
            following = partners(sheet.leader)[row]
            s.partner[slots] = np.where(following >= 0, following + to_slot, -1)
            leader = sheet.leader[row]
            s.leader[slots] = np.where((leader >= 0) & (leader != row), leader + to_slot, -1)
            s.rule[slots][leader >= 0] = SWITCHED
        s.block_hop[:] = hops[self.starts[:-1]]
        width = sheet.links.shape[1]
        links, weight = (
            np.require(column.reshape(-1), np.int32, ["C", "W"])
            for column in (sheet.links, sheet.weight)
        )
        index_blocks(
            s,
            np.arange(blocks),
            sheet.begins[sheet.order] * width,
            np.full(blocks, width),
            links,
            weight,
            np.zeros(len(s.lane_left), np.int32),
        )
        return s

    def play(
        self, costs: SheetCosts, capacity: Ints, launch_fs: int, link_name: Callable[[int], str]
    ) -> State:
        """Run to the end; return the state, which is valid until the next run.

        Raises
        ------
        ConfigError
            When a link has no capacity left or time exceeds the range of the clock.
        InternalError
            When a lane is stuck or a check fails.
        """
        for name, array in self.pristine.items():
            getattr(self.state, name)[:] = array
        s, slots = larger_calendar(self.state), self.slots  # the calendar lasts for this run only
        for name, column in zip(SheetCosts._fields, costs, strict=True):
            getattr(s, name)[slots] = column[self.row]
        s.reg[NOW] = s.reg[LAST] = launch_fs
        if not np.array_equal(capacity, self.capacity):
            s.capacity[:] = self.capacity[:] = capacity
            private_rates(s)
        with announce_compiling(run):
            while (stop := run(s)) == FULL:
                s = larger_calendar(s)
        if stop != IDLE:
            refuse(s, stop, link_name)
        check_clock(s)
        check_end(s, int(s.wire[slots].sum()))
        return s
