"""Changes of a fabric's links by events during a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simcoll.emulator.events.capacities import CapacityTimeline
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.reference.fabric import Fabric

__all__ = ["LinkChanges"]


class LinkChanges:
    """Changes the links of a fabric.

    Parameters
    ----------
    course
        The changes.
    fabric
        The fabric of the links.
    detours, links_of
        Routes around links that are down, and the links for a flow's owner; without them flows keep
        their routes.
    is_over
        Whether everything is done, so that no more changes are needed.
    """

    def __init__(
        self,
        course: CapacityTimeline,
        fabric: Fabric,
        is_over: Callable[[], bool],
        detours: Sequence[Detours] = (),
        links_of: Callable[[Any], tuple[int, ...]] | None = None,
    ) -> None:
        self._course, self._fabric, self._is_over = course, fabric, is_over
        self._detours, self._links_of = detours, links_of

    def start(self) -> None:
        """Schedule the changes."""
        time = self._course.next_fs
        if time is not None:
            self._fabric.calendar.at(time, self._change, None)

    def _change(self, _nothing: None) -> None:
        if self._is_over():
            return
        self._fabric.change(self._course.step())
        if self._links_of is not None:
            for detours in self._detours:
                detours.lose(self._course.down())
            self._fabric.reroute(self._links_of)
        self.start()
