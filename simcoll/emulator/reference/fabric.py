"""The clock and the links: flows that share link capacity max-min fairly, driven by SimPy.

A fabric is independent of collectives. The player of a plan, background traffic and user processes
may share one fabric and one SimPy environment if the environment's clock counts integer
femtoseconds from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import Any

import simpy
from simpy.events import EventPriority

from simcoll.emulator.model import (
    UNLIMITED,
    checked_time,
    flow_delay_fs,
    remaining_bytes,
    water_level,
)
from simcoll.errors import ConfigError, InternalError
from simcoll.units import MAX_TIME_FS

__all__ = ["Calendar", "Fabric", "OverdueError"]

LAST = EventPriority(10)
"""SimPy orders events by time, then priority, then insertion: an event of this priority follows all
others of its timestamp.
"""

KEPT_LEVELS = 1 << 20
"""Levels of links kept for sets of flows that come again; at the most, all are forgotten."""
LEAST_DIRTY = 8
"""Links from which levels spread to others, from which on they are looked up: to describe the flows
takes as long as to visit a link for every 50 of them."""

NEVER = 2**200
"""Later than the end of any flow, including refused ones."""


class Calendar:
    """Actions by time, with one SimPy event for each distinct time.

    Actions of one time run in insertion order, and may add more at the same time; nothing in the
    model depends on that order.
    """

    __slots__ = ("_buckets", "env")

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self._buckets: dict[int, list[tuple[Callable[[Any], None], Any]]] = {}

    @property
    def now(self) -> int:
        """The current time, in femtoseconds."""
        # An integer, since all delays are. The property `now` costs a call on a hot path.
        return self.env._now  # type: ignore[return-value]  # noqa: SLF001

    def at(self, time_fs: int, action: Callable[[Any], None], argument: Any) -> None:
        """Call ``action(argument)`` at a time, which must not be in the past.

        Raises
        ------
        ConfigError
            For a time beyond the range of the clock.
        """
        bucket = self._buckets.get(time_fs)
        if bucket is not None:
            bucket.append((action, argument))
            return
        self._buckets[checked_time(time_fs)] = [(action, argument)]
        wake = simpy.Timeout(self.env, time_fs - self.now)
        wake.callbacks.append(self._ring)

    def at_end(self, action: Callable[[simpy.Event], None]) -> None:
        """Call an action at the end of the current timestamp."""
        _Settle(self.env, action)

    def again(
        self, begin_fs: int, happened: Iterable[tuple[int, Callable[[Any], None], Any]]
    ) -> None:
        """Replay the time from ``begin_fs`` until now, with only the actions given, by time, which
        were left out before.

        Their consequences before now happen during this call; the rest are scheduled.
        """
        env, buckets, now_fs = self.env, self._buckets, self.now
        self.env, self._buckets = simpy.Environment(begin_fs), {}
        try:
            for time_fs, action, argument in happened:
                self.at(time_fs, action, argument)
            while self.env.peek() < now_fs:
                self.env.step()
        finally:
            later = self._buckets
            self.env, self._buckets = env, buckets
        for time_fs in sorted(later):
            for action, argument in later[time_fs]:
                self.at(time_fs, action, argument)

    def _ring(self, _event: simpy.Event) -> None:
        now_fs = self.now
        for action, argument in self._buckets[now_fs]:  # grows during the loop
            action(argument)
        del self._buckets[now_fs]


class _Settle(simpy.Event):
    """An event at the end of the current timestamp."""

    def __init__(self, env: simpy.Environment, action: Callable[[simpy.Event], None]) -> None:
        super().__init__(env)
        self.callbacks.append(action)
        self._ok = True
        self._value = None
        env.schedule(self, priority=LAST)


class OverdueError(Exception):
    """Flows have waited too long for links that are down; ``items`` identifies them as
    :meth:`Fabric.transfer` does.
    """

    def __init__(self, items: list[Any]) -> None:
        super().__init__(f"{len(items)} flows")
        self.items = items


class _Flow:
    """Bytes in flight."""

    __slots__ = (
        "arrived",
        "finish_fs",
        "left",
        "links",
        "owner",
        "rate",
        "since_fs",
        "size",
        "wake_fs",
    )

    def __init__(
        self, links: tuple[int, ...], size: int, arrived: Callable[[Any], None], owner: Any
    ) -> None:
        self.links = links
        self.size = size
        self.left = float(size)
        self.arrived = arrived
        self.owner = owner
        self.rate = 0
        self.since_fs = 0
        self.finish_fs = self.wake_fs = NEVER  # wake_fs: its entry in the calendar


class Fabric:
    """Links and the flows on them, which share capacity max-min fairly.

    Parameters
    ----------
    calendar
        Clock; may be shared.
    capacities_uBps
        Capacity of each link.
    link_name
        Name of a link, for messages.
    patience_fs
        How long a flow may wait for a link that is down; 0: not at all; ``None``: no link is ever
        down.

    Attributes
    ----------
    delivered_bytes
        Wire bytes of completed flows.
    """

    __slots__ = (
        "_asked",
        "_capacity",
        "_dirty",
        "_flows",
        "_late",
        "_level",
        "_levels_of",
        "_links_of",
        "_names",
        "_nlevels",
        "_patience",
        "_routes",
        "_started",
        "_used",
        "_waiting",
        "calendar",
        "delivered_bytes",
    )

    def __init__(
        self,
        calendar: Calendar,
        capacities_uBps: Sequence[int],
        link_name: Callable[[int], str],
        *,
        patience_fs: int | None = None,
    ) -> None:
        self.calendar = calendar
        self.delivered_bytes = 0
        self._asked = False
        self._capacity: list[int] = []
        self._flows: list[dict[_Flow, None]] = []  # ordered sets
        self._level: list[int] = []
        self._used: list[int] = []
        self._names: list[tuple[int, Callable[[int], str]]] = []
        self._dirty: dict[int, None] = {}
        self._started: list[_Flow] = []
        self._patience = patience_fs
        self._waiting: dict[_Flow, int] = {}  # start of the wait for links that are down
        self._late = False
        self._links_of: Callable[[Any], tuple[int, ...]] | None = None
        self._routes: dict[tuple[int, ...], int] = {}  # the number of flows on them
        self._levels_of: dict[frozenset[tuple[tuple[int, ...], int]], dict[int, int]] | None = {}
        self._nlevels = 0
        self.add_links(capacities_uBps, link_name)

    @property
    def env(self) -> simpy.Environment:
        """The SimPy environment of the calendar."""
        return self.calendar.env

    def add_links(self, capacities_uBps: Sequence[int], link_name: Callable[[int], str]) -> int:
        """Add links; return the index of the first. ``link_name`` is called with the position
        within this call.
        """
        base, count = len(self._capacity), len(capacities_uBps)
        self._names.append((base, link_name))
        self._capacity.extend(capacities_uBps)
        self._flows.extend({} for _ in range(count))
        self._level.extend([UNLIMITED] * count)
        self._used.extend([0] * count)
        return base

    def link_name(self, link: int) -> str:
        """The name of a link."""
        base, name = next(entry for entry in reversed(self._names) if entry[0] <= link)
        return name(link - base)

    def transfer(
        self, links: tuple[int, ...], size_bytes: int, arrived: Callable[[Any], None], owner: Any
    ) -> None:
        """Start a flow; call ``arrived(owner)`` when its last byte has left, at once if it has no
        bytes or links.
        """
        if not size_bytes or not links:
            self.calendar.at(self.calendar.now, arrived, owner)
            return
        flow = _Flow(links, size_bytes, arrived, owner)
        self._put_on(flow)
        self._started.append(flow)
        if not self._asked:
            self._ask()

    def change(self, capacities_uBps: Mapping[int, int]) -> None:
        """Change link capacities from now on. Flows on a link of capacity 0 wait."""
        if self._levels_of:
            self._levels_of.clear()
            self._nlevels = 0
        for link, capacity in capacities_uBps.items():
            self._capacity[link] = capacity
            self._dirty[link] = None
        if not self._asked:
            self._ask()

    def reroute(self, links_of: Callable[[Any], tuple[int, ...]]) -> None:
        """Move the remaining bytes of flows to other links at the end of the timestamp;
        ``links_of`` maps a flow's owner to its links.
        """
        self._links_of = links_of
        if not self._asked:
            self._ask()

    def _move(self, links_of: Callable[[Any], tuple[int, ...]]) -> None:
        now_fs, self._links_of = self.calendar.now, None
        for flow in dict.fromkeys(flow for on_link in self._flows for flow in on_link):
            links = links_of(flow.owner)
            if links == flow.links:
                continue
            self._take_off(flow)
            # Otherwise it has only just started.
            if flow.rate or self._waiting.pop(flow, None) is not None:
                self._started.append(flow)
            if flow.rate:
                flow.left = remaining_bytes(flow.left, flow.rate, now_fs - flow.since_fs)
                flow.rate = 0
            flow.links = links
            self._put_on(flow)

    def waiting(self) -> list[Any]:
        """The owners of the flows that wait for a link that is down."""
        return [flow.owner for flow in self._waiting]

    def down(self, links: tuple[int, ...]) -> list[int]:
        """The links among these that are down."""
        return [link for link in links if not self._capacity[link]]

    @contextmanager
    def between_settlements(self) -> Iterator[None]:
        """Leave the flows of this timestamp aside inside the block, which plays earlier times on
        links that they do not use.
        """
        pending = self._asked, self._started, self._dirty
        self._asked, self._started, self._dirty = False, [], {}
        # Those of flows that are left aside are not at the fixpoint.
        levels_of, self._levels_of = self._levels_of, None
        try:
            yield
        finally:
            self._asked, self._started, self._dirty = pending
            self._levels_of = levels_of

    def _ask(self) -> None:
        self._asked = True
        self.calendar.at_end(self._settle)

    def _settle(self, _event: simpy.Event) -> None:
        """Assign every flow its rate, after everything else at the timestamp."""
        # Invariant: afterwards the rate of every flow is the least level of its links, and the
        # level of a link is the water level of its flows when each is limited by the levels of its
        # other links. That fixpoint is the max-min fair allocation, and there is only one.
        #
        # Once per timestamp, not once per start or end: in between no time passes, so those rates
        # would move no byte, and a step of N ranks would cost N passes over the same links.
        #
        # Only flows on links whose level changed are visited. A new flow that is alone on all its
        # links cannot change another flow, so without contention _spread has nothing to do.
        self._asked = False
        if self._links_of is not None:
            self._move(self._links_of)
        now_fs = self.calendar.now
        flows, level = self._flows, self._level
        capacity, dirty = self._capacity, self._dirty
        started, self._started = self._started, []
        shared: dict[_Flow, None] = {}
        for flow in started:
            if max([len(flows[link]) for link in flow.links]) > 1:
                shared[flow] = None
                dirty.update(dict.fromkeys(flow.links))
                continue
            # A flow alone on all its links: the general rule below would yield the same levels.
            rate = min([capacity[link] for link in flow.links])
            for link in flow.links:
                level[link] = rate if capacity[link] == rate else UNLIMITED
            self._set_rate(flow, rate, now_fs)
        if dirty:
            for link in self._level_changes(dirty):
                shared.update(dict.fromkeys(flows[link]))
            self._dirty = {}
        touched: dict[int, None] = {}
        for flow in shared:
            rate = min([level[link] for link in flow.links])
            if rate != flow.rate or not rate:
                self._set_rate(flow, rate, now_fs)
                touched.update(dict.fromkeys(flow.links))
        for link in touched:
            if self._used[link] > capacity[link]:
                raise InternalError(
                    f"link {self.link_name(link)} carries {self._used[link]} uBps of "
                    f"{capacity[link]} at {now_fs} fs"
                )
        if self._late:
            self._late = False
            late = [
                flow.owner
                for flow, since in self._waiting.items()
                if now_fs - since >= (self._patience or 0)
            ]
            if late:
                raise OverdueError(late)

    def _level_changes(self, dirty: Iterable[int]) -> dict[int, None]:
        """Bring all levels to the fixpoint from the links that may differ from it; return those
        that change.
        """
        # Layers and micro-batches repeat the same flows hundreds of times, if not the same times,
        # and the fixpoint is a function of the flows.
        levels_of = self._levels_of
        if levels_of is None or len(self._dirty) < LEAST_DIRTY:
            return self._spread(dirty)
        level, flows = self._level, frozenset(self._routes.items())
        levels = levels_of.get(flows)
        if levels is not None:
            changed = {link: None for link, value in levels.items() if level[link] != value}
            for link in changed:
                level[link] = levels[link]
            return changed
        changed = self._spread(dirty)
        levels = {link: level[link] for links in self._routes for link in links}
        if self._nlevels + len(levels) > KEPT_LEVELS:
            levels_of.clear()
            self._nlevels = 0
        levels_of[flows] = levels
        self._nlevels += len(levels)
        return changed

    def _spread(self, links: Iterable[int]) -> dict[int, None]:
        """Propagate levels from links to the fixpoint; return the links whose level changed."""
        # It ends because a changed level wakes only links with higher levels: after the lowest
        # level is right it never changes again, then the next lowest, and so on. The heap may
        # bring a link before those below it are right; it comes back to it then. With the lowest
        # first, all pairs of 25 ranks on a torus visit a quarter of the links that they visit in
        # turn. Where many flows meet, the compiled engine fills level by level
        # (emulator/fast/progressive.py), which visits every flow of a component once.
        flows, level, capacity = self._flows, self._level, self._capacity
        level_of = level.__getitem__
        changed: dict[int, None] = {}
        queued = set(links)
        # No level is lower than an equal share; the levels of before may be of other flows.
        heap = [(capacity[link] // max(1, len(flows[link])), link) for link in queued]
        heapify(heap)
        while heap:
            _, link = heappop(heap)
            queued.discard(link)
            on_link = flows[link]
            old, level[link] = level[link], UNLIMITED  # a flow is limited by its other links
            limits = [min(map(level_of, flow.links)) for flow in on_link]
            new = level[link] = water_level(capacity[link], limits)
            if new == old:
                continue
            changed[link] = None
            lower = min(old, new)
            for flow in on_link:
                for neighbour in flow.links:
                    # A link depends only on levels below its own.
                    if lower < level[neighbour] and neighbour != link and neighbour not in queued:
                        queued.add(neighbour)
                        heappush(heap, (level[neighbour], neighbour))
        return changed

    def _set_rate(self, flow: _Flow, rate: int, now_fs: int) -> None:
        if rate <= 0:
            if self._patience is not None and self.down(flow.links):
                self._wait(flow, now_fs)
                return
            link = min(flow.links, key=self._level.__getitem__)
            raise ConfigError(
                f"link {self.link_name(link)}: {len(self._flows[link])} flows share "
                f"{self._capacity[link]} micro-bytes "
                "per second, which leaves nothing for each; expected a larger capacity"
            )
        if self._waiting:
            self._waiting.pop(flow, None)
        used, gain = self._used, rate - flow.rate
        for link in flow.links:
            used[link] += gain
        if flow.rate:
            flow.left = remaining_bytes(flow.left, flow.rate, now_fs - flow.since_fs)
        flow.rate = rate
        flow.since_fs = now_fs
        finish = flow.finish_fs = now_fs + flow_delay_fs(flow.left, rate)
        if finish < flow.wake_fs:  # if later, the old entry moves it when it fires
            flow.wake_fs = finish
            self.calendar.at(finish, self._wake, flow)

    def _wait(self, flow: _Flow, now_fs: int) -> None:
        """Make a flow wait for a link that is down."""
        if flow in self._waiting:
            return
        if flow.rate:
            for link in flow.links:
                self._used[link] -= flow.rate
            flow.left = remaining_bytes(flow.left, flow.rate, now_fs - flow.since_fs)
        flow.rate = 0
        flow.finish_fs = NEVER
        self._waiting[flow] = now_fs
        if not self._patience:
            self._late = True
        elif self._patience < MAX_TIME_FS - now_fs:
            self.calendar.at(now_fs + self._patience, self._look, None)

    def _look(self, _nothing: None) -> None:
        """Check at the end of the timestamp for flows that have waited too long."""
        self._late = True
        if not self._asked:
            self._ask()

    def _wake(self, flow: _Flow) -> None:
        now_fs = self.calendar.now
        if flow.wake_fs != now_fs:
            return
        if flow.finish_fs > now_fs:
            flow.wake_fs = flow.finish_fs
            if flow.finish_fs < NEVER:
                self.calendar.at(flow.finish_fs, self._wake, flow)
            return
        flow.wake_fs = -1
        self.delivered_bytes += flow.size
        self._take_off(flow)
        if self._dirty and not self._asked:
            self._ask()
        flow.arrived(flow.owner)

    def _put_on(self, flow: _Flow) -> None:
        """Add a flow to its links."""
        links, routes = flow.links, self._routes
        for link in links:
            self._flows[link][flow] = None
        routes[links] = routes.get(links, 0) + 1

    def _take_off(self, flow: _Flow) -> None:
        """Remove a flow from its links."""
        routes = self._routes
        if routes[flow.links] > 1:
            routes[flow.links] -= 1
        else:
            del routes[flow.links]
        for link in flow.links:
            on_link = self._flows[link]
            del on_link[flow]
            self._used[link] -= flow.rate
            if on_link:
                self._dirty[link] = None
            else:
                self._level[link] = UNLIMITED
