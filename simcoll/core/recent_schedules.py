"""Schedules made again with the same arguments are the same object.

What is derived from a schedule (its proof, classes of messages, loaded runs) is found by its
identity. A program that makes the same schedule in a loop, as most do, would derive all of it each
time: a ring of 1,024 ranks costs 30 ms made anew, and 3 ms as the same object. So the schedules
that were bound last are kept, and a builder that is asked for one of them again returns it.

A schedule cannot be changed, so that nobody can tell the difference, and a proof is only ever used
for the very object that was proved. A plan that was bound without a proof stays unproved, whether
its schedule was proved for another plan or not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from simcoll.core.schedule import Schedule

__all__ = ["RecentSchedules", "recent_schedules"]

MOST_SCHEDULES = 8
MOST_TRANSFERS = 1 << 16
"""A schedule with more transfers is kept only if it is short to write down: if symmetry proved it,
or if its repeats, written once, have no more. Others, and what is derived from them, may take
hundreds of megabytes.
"""


class RecentSchedules:
    """The last schedules that were bound, by how they were asked for."""

    def __init__(self) -> None:
        self._requests: WeakKeyDictionary[Schedule, Hashable] = WeakKeyDictionary()
        self._recent: OrderedDict[Hashable, Schedule] = OrderedDict()
        self._lock = Lock()

    def find(self, request: Hashable) -> Schedule | None:
        """The schedule that was built for a request, if it is kept."""
        with self._lock:
            schedule = self._recent.get(request)
            if schedule is not None:
                self._recent.move_to_end(request)
        return schedule

    def note(self, request: Hashable, schedule: Schedule) -> None:
        """Note for which request a schedule was built; it is not kept yet."""
        with self._lock:
            self._requests[schedule] = request

    def keep(self, schedule: Schedule) -> None:
        """Keep a bound schedule as the latest, if it was built for a request and is small."""
        proof, transfers = schedule.known.proof, schedule.known.transfers
        if proof is not None:
            transfers = 0 if proof.kind == "by symmetry" else proof.transfers
        if transfers is None or transfers > MOST_TRANSFERS:
            return
        with self._lock:
            request = self._requests.get(schedule)
            if request is None:
                return
            self._recent[request] = schedule
            self._recent.move_to_end(request)
            if len(self._recent) > MOST_SCHEDULES:
                self._recent.popitem(last=False)


recent_schedules = RecentSchedules()
