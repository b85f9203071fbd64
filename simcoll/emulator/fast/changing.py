"""Events in the fast engine: the loops stop at event times and continue in a changed state."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from simcoll.arrays import Ints, Links
from simcoll.emulator.events.capacities import CapacityTimeline
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.events.pace import Pace
from simcoll.emulator.fast.changes import change, move
from simcoll.emulator.fast.room import more_hops, more_slots, replace_arrays
from simcoll.emulator.fast.state import (
    CHANGE,
    EVENT,
    MAX,
    MOVES_FLOWS,
    MOVING,
    NOW,
    PACED,
    PATIENCE,
    TICK,
    State,
)
from simcoll.emulator.steps.timed import StepShape, Timed

__all__ = ["BlockRoutes", "Changes"]


class DisturbedMachine(Protocol):
    """The parts of :class:`simcoll.emulator.fast.driver.StepMachine` that events change."""

    state: State
    slots_used: int
    hops_used: int
    room: list[int]
    contents: list[Timed | None]

    @property
    def through(self) -> bool:
        """Whether all lanes have finished."""
        ...


class Changes:
    """The changes by events during a run of the fast engine.

    Parameters
    ----------
    course
        The link capacities over time.
    ranks, stride
        Number of ranks, and of lanes per rank.
    routes
        Routes around links that are down.
    """

    def __init__(
        self, course: CapacityTimeline, ranks: int, stride: int, routes: BlockRoutes | None = None
    ) -> None:
        self._course = course
        self._ranks, self._stride = ranks, stride
        self._routes = routes
        pace = course.timeline.pace
        self._stops = (
            sorted((at_fs, rank) for rank, at_fs in pace.stops()) if pace is not None else []
        )
        self._tick = 0

    def begin(self, machine: DisturbedMachine) -> None:
        """Prepare the state of a machine, and apply all events before its launch."""
        self._tick = machine.slots_used
        machine.slots_used += 1
        machine.state = more_slots(machine.state, machine.slots_used)
        timeline = self._course.timeline
        machine.state.reg[PATIENCE] = timeline.policy.limit_fs
        if timeline.pace is not None:
            machine.state = replace_arrays(machine.state, _stretches(timeline.pace, self._ranks))
            machine.state.reg[PACED] = 1
        s = machine.state
        s.phase[self._tick] = TICK
        self._due(machine)
        if s.reg[EVENT]:
            s.moving[s.reg[MOVING]] = self._tick
            s.reg[MOVING] += 1

    def apply(self, machine: DisturbedMachine, stop: int) -> None:
        """Handle a stop of the loops so that they can continue."""
        if stop == CHANGE:
            self._due(machine)
        elif self._routes is not None:
            self._routes.change(machine, self._course.down())

    def note_block(self, machine: DisturbedMachine, block: int) -> None:
        """Note a block with new links."""
        if self._routes is not None:
            self._routes.note_block(machine, block)

    def _due(self, machine: DisturbedMachine) -> None:
        """Apply all events up to now, and set the time of the next stop."""
        s = machine.state
        now_fs, capacities = int(s.reg[NOW]), dict[int, int]()
        while (time := self._course.next_fs) is not None and time <= now_fs:
            capacities |= self._course.step()
        if capacities:
            change(
                s,
                np.array(list(capacities), np.int64),
                np.array(list(capacities.values()), np.int64),
            )
            s.reg[MOVES_FLOWS] = self._routes is not None
        while self._stops and self._stops[0][0] <= now_fs:
            lane = self._stops.pop(0)[1] * self._stride
            s.lane_free[lane : lane + self._stride] = MAX
            s.lane_block[lane : lane + self._stride] = -1
        times = [time] if time is not None else []
        following = min([*times, *(at_fs for at_fs, _ in self._stops[:1])], default=0)
        if machine.through:
            following = 0
        s.reg[EVENT] = following
        s.delay_fs[self._tick] = following - now_fs if following else 0


def _stretches(pace: Pace, ranks: int) -> dict[str, Ints]:
    """The paces of ranks as arrays."""
    by_rank = [pace.stretches.get(rank, ()) for rank in range(ranks)]
    columns = (
        np.array([stretch for stretches in by_rank for stretch in stretches], np.int64)
        .reshape(-1, 3)
        .T
    )
    begins = np.cumsum([0, *map(len, by_rank)])
    names = ("pace_first", "pace_from", "pace_up", "pace_down")
    return {
        name: np.ascontiguousarray(column)
        for name, column in zip(names, (begins, *columns), strict=True)
    }


class BlockRoutes:
    """The links of all blocks while some links are down.

    A block keeps the hops of its planned routes; detours have separate hops.

    Parameters
    ----------
    detours
        Routes around links that are down.
    endpoints
        Endpoint of each rank.
    """

    def __init__(self, detours: Detours, endpoints: Ints) -> None:
        self._detours, self._endpoints = detours, endpoints
        self._down: list[int] = []
        self._links_now: dict[StepShape, Links] = {}
        self._planned: dict[int, Ints] = {}  # first hops of a block's slots
        self._current: dict[int, Links] = {}
        self._detour_hops: dict[
            tuple[int, int], int
        ] = {}  # first hop of a block's detours, by width

    def note_block(self, machine: DisturbedMachine, block: int) -> None:
        """Note the planned routes of a block, and apply detours at once."""
        step = machine.contents[block]
        if step is not None:
            base = int(machine.state.block_base[block])
            self._planned[block] = machine.state.entry[base : base + len(step)].astype(np.int64)
            self._current[block] = step.shape.links
            self._set(machine, block, step.shape)

    def change(self, machine: DisturbedMachine, down: list[int]) -> None:
        """Set the links that are down from now on."""
        self._down, self._links_now = down, {}
        self._detours.lose(down)
        for block, step in enumerate(machine.contents):
            if step is not None:
                self._set(machine, block, step.shape)

    def _links(self, shape: StepShape) -> Links:
        """The current links of a step."""
        if not self._down:
            return shape.links
        if shape not in self._links_now:
            self._links_now[shape] = self._around(shape)
        return self._links_now[shape]

    def _around(self, shape: StepShape) -> Links:
        links = shape.links
        broken = np.isin(links, self._down).any(axis=1)
        if shape.leader is not None:
            broken &= shape.leader < 0
        rows = np.flatnonzero(broken)
        ends = (self._endpoints[ranks[rows]].tolist() for ranks in (shape.src, shape.dst))
        planned = (tuple(link for link in row if link >= 0) for row in links[rows].tolist())
        detours = [
            self._detours.links(src, dst, row) for src, dst, row in zip(*ends, planned, strict=True)
        ]
        width = max([links.shape[1], *map(len, detours)])
        table = np.pad(links, ((0, 0), (0, width - links.shape[1])), constant_values=-1)
        for row, detour in zip(rows.tolist(), detours, strict=True):
            table[row] = -1
            table[row, : len(detour)] = detour
        return table

    def _set(self, machine: DisturbedMachine, block: int, shape: StepShape) -> None:
        """Give the rows of a block their current links."""
        old_links, links = self._current[block], self._links(shape)
        if links is old_links:
            return
        self._current[block] = links
        width = max(table.shape[1] for table in (old_links, links, shape.links))
        old, new, planned = (
            np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-1)
            for table in (old_links, links, shape.links)
        )
        rows = np.flatnonzero((old != new).any(axis=1))
        if not len(rows):
            return
        entries = self._planned[block][rows]
        aside = (new[rows] != planned[rows]).any(axis=1)
        if aside.any():
            entries = np.where(aside, self._room(machine, block, width) + rows * width, entries)
        slots = int(machine.state.block_base[block]) + rows
        move(machine.state, slots, entries, np.ascontiguousarray(new[rows], np.int64))

    def _room(self, machine: DisturbedMachine, block: int, width: int) -> int:
        """First of the detour hops of a block, ``width`` per slot."""
        if (block, width) not in self._detour_hops:
            self._detour_hops[block, width] = machine.hops_used
            machine.hops_used += machine.room[block] * width
            if machine.hops_used > len(machine.state.link):
                machine.state = more_hops(machine.state, machine.hops_used + machine.hops_used // 2)
        return self._detour_hops[block, width]
