"""The capacities of links as events change them during a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from simcoll.emulator.events.timeline import Timeline

__all__ = ["CapacityTimeline"]


class CapacityTimeline:
    """The capacities of all links of a run, change by change.

    Parameters
    ----------
    timeline
        The events.
    whole_uBps
        Undisturbed capacity of every link of the run; the links of the topology come first.
    companions
        For links of the topology, further links that take the same share: a protocol's part of the
        link.
    """

    def __init__(
        self,
        timeline: Timeline,
        whole_uBps: Sequence[int],
        companions: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self.timeline = timeline
        self._whole, self._companions = whole_uBps, companions or {}
        self._shares: dict[int, Fraction] = {}
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
        self._shares |= change.shares
        return {
            member: self.timeline.capacity(link, share, int(self._whole[member]))
            for link, share in change.shares.items()
            for member in (link, *self._companions.get(link, ()))
        }

    def down(self) -> list[int]:
        """Links of the topology that are down now."""
        return [link for link, share in self._shares.items() if not share]
