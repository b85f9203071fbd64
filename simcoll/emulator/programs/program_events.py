"""Events during a program: the changes in both engines, and the record of a run that cannot reach
its end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.emulator.events.capacities import CapacityTimeline
from simcoll.emulator.events.cut import Cut, CutMessage, cut_at
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.events.timeline import Timeline
from simcoll.emulator.interrupted import changes_of
from simcoll.emulator.programs.resources import Resources
from simcoll.emulator.reference.fabric import Fabric
from simcoll.emulator.reference.link_changes import LinkChanges
from simcoll.emulator.reference.messages import Message
from simcoll.emulator.reference.player import links_now
from simcoll.emulator.reference.player_cut import stranded_messages
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.emulator.fast.changing import Changes

__all__ = ["ProgramEvents", "changes_during"]


def changes_during(resources: Resources, timeline: Timeline) -> Changes:
    """The changes by events during a program on the compiled engine."""
    _check_ways(resources, timeline)
    ranks = np.arange(resources.program.nranks)
    return changes_of(timeline, resources.capacity, ranks, resources.stride, resources.companions())


def _check_ways(resources: Resources, timeline: Timeline) -> None:
    """Refuse detours if messages cross further links that stand for parts of their routes."""
    if timeline.detours and resources.shares:
        raise ConfigError(
            "policy re-route: the protocols of this program leave different shares of its links to "
            "data, so that its messages keep their "
            "routes; expected stall or abort"
        )


class ProgramEvents:
    """Events during a program under the SimPy clock.

    Attributes
    ----------
    detours
        Routes around links that are down; ``None``: messages keep their routes.
    """

    def __init__(self, resources: Resources, timeline: Timeline) -> None:
        _check_ways(resources, timeline)
        self.timeline, self._ground = timeline, resources
        self.detours = Detours(timeline.topology) if timeline.detours else None

    def begin(self, fabric: Fabric, is_over: Callable[[], bool]) -> None:
        """Schedule the changes of links."""
        course = CapacityTimeline(
            self.timeline, self._ground.capacity.tolist(), self._ground.companions()
        )
        ways: tuple[Any, ...] = (
            ()
            if self.detours is None
            else ([self.detours], functools.partial(links_now, self.detours))
        )
        LinkChanges(course, fabric, is_over, *ways).start()

    def at_rest(self, rank: int, now_fs: int) -> bool:
        """Whether a rank has stopped."""
        pace = self.timeline.pace
        return pace is not None and pace.at_rest(rank, now_fs)

    def end_fs(self, rank: int, now_fs: int, work_fs: int) -> int | None:
        """End of work that a rank begins now; ``None``: never."""
        pace = self.timeline.pace
        return now_fs + work_fs if pace is None else pace.end(rank, now_fs, work_fs)

    def early_end(
        self,
        fabric: Fabric,
        late: list[Any] | None,
        time_fs: int,
        name: Callable[[Message], int],
        waiting: Sequence[int],
        payload_bytes: tuple[int, int],
    ) -> Cut:
        """The record of a run that ended early.

        ``late`` are the messages that waited too long, ``name`` numbers messages.
        """
        messages = [
            CutMessage(name(message), message.sender.place, message.receiver.place, links)
            for message, links in stranded_messages(fabric, self.detours, late)
        ]
        when = time_fs if late is None else fabric.calendar.now
        return cut_at(
            self.timeline, when, messages, waiting, payload_bytes, aborted=late is not None
        )
