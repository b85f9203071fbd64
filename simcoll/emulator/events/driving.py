"""Changes of a fabric's links by events during a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from simcoll.emulator.events.detours import Detours
from simcoll.emulator.events.timeline import Timeline
from simcoll.emulator.fabric import Fabric

__all__ = ["CapacityTimeline", "LinkChanges"]


class CapacityTimeline:
    """The capacities of all links of a run, change by change.

    Parameters
    ----------
    timeline
        The events.
    whole_uBps
        Undisturbed capacity of every link of the run; the links of the topology come first.
    companions
        For links of the topology, further links that take the same share: a protocol's part of the link.
    """

    def __init__(
        self, timeline: Timeline, whole_uBps: Sequence[int], companions: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        self.timeline = timeline
        self._whole, self._companions = whole_uBps, companions or {}
        self._left: dict[int, Fraction] = {}
        self._next = 0

    @property
    def next_fs(self) -> int | None:
        """Time of the next change; ``None`` if there is none."""
        changes = self.timeline.changes
        return changes[self._next].time_fs if self._next < len(changes) else None

    def step(self) -> dict[int, int]:
        """Advance to the next change; return links and their new capacities."""
        change = self.timeline.changes[self._next]
        self._next += 1
        self._left |= change.left
        return {
            each: self.timeline.capacity(link, left, int(self._whole[each]))
            for link, left in change.left.items()
            for each in (link, *self._companions.get(link, ()))
        }

    def down(self) -> list[int]:
        """Links of the topology that are down now."""
        return [link for link, left in self._left.items() if not left]


class LinkChanges:
    """Changes the links of a fabric.

    Parameters
    ----------
    course
        The changes.
    fabric
        The fabric of the links.
    detours, links_of
        Routes around links that are down, and the links for a flow's item; without them flows keep their routes.
    over
        Whether everything is done, so that no more changes are needed.
    """

    def __init__(
        self,
        course: CapacityTimeline,
        fabric: Fabric,
        over: Callable[[], bool],
        detours: Sequence[Detours] = (),
        links_of: Callable[[Any], tuple[int, ...]] | None = None,
    ) -> None:
        self._course, self._fabric, self._over = course, fabric, over
        self._detours, self._links_of = detours, links_of

    def start(self) -> None:
        """Schedule the changes."""
        time = self._course.next_fs
        if time is not None:
            self._fabric.calendar.at(time, self._change, None)

    def _change(self, _nothing: None) -> None:
        if self._over():
            return
        self._fabric.change(self._course.step())
        if self._links_of is not None:
            for each in self._detours:
                each.lose(self._course.down())
            self._fabric.reroute(self._links_of)
        self.start()
