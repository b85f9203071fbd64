"""The duration of work on ranks that slow down or stop meanwhile."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter

from simcoll.emulator.events.kinds import Slow, Stop
from simcoll.emulator.events.windows import windows

__all__ = ["Pace", "Stretch", "paces"]

Stretch = tuple[int, int, int]
"""Start time, and the ratio ``up / down`` by which work takes longer from then on; 0 for ``up``: it
never ends.
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """The paces of ranks over time; ranks that are absent are undisturbed.

    >>> paces([Slow(3, 2, at_fs=100, for_fs=50)]).end(3, 90, 60)
    175
    """

    stretches: Mapping[int, tuple[Stretch, ...]]

    def end(self, rank: int, now_fs: int, work_fs: int) -> int | None:
        """End of work that a rank begins now; ``None``: never.

        In each stretch the work takes ``up / down`` times as long, rounded up; the work done before
        the next stretch is rounded down.
        """
        stretches = self.stretches.get(rank)
        if stretches is None:
            return now_fs + work_fs
        place = bisect_right(stretches, now_fs, key=itemgetter(0)) - 1
        while True:
            _, up, down = stretches[place]
            if not up:
                return None
            end = now_fs - (-work_fs * up // down)
            place += 1
            if place == len(stretches) or end <= stretches[place][0]:
                return end
            work_fs -= (stretches[place][0] - now_fs) * down // up
            now_fs = stretches[place][0]

    def at_rest(self, rank: int, now_fs: int) -> bool:
        """Whether a rank has stopped."""
        stretches = self.stretches.get(rank)
        return stretches is not None and not stretches[-1][1] and now_fs >= stretches[-1][0]

    def stops(self) -> list[tuple[int, int]]:
        """Ranks that stop, with the times."""
        return [
            (rank, course[-1][0])
            for rank, course in sorted(self.stretches.items())
            if not course[-1][1]
        ]

    def of(self, ranks: Sequence[int]) -> Pace:
        """The paces of some ranks, renumbered."""
        return Pace(
            {new: self.stretches[old] for new, old in enumerate(ranks) if old in self.stretches}
        )


def paces(events: Iterable[Slow | Stop]) -> Pace:
    """The paces that result from events: of several at a time the slowest applies."""
    by_rank: dict[int, list[Slow | Stop]] = {}
    for event in events:
        by_rank.setdefault(event.rank, []).append(event)
    return Pace({rank: tuple(_stretches(mine)) for rank, mine in by_rank.items()})


def _stretches(events: list[Slow | Stop]) -> list[Stretch]:
    stop = min((event.at_fs for event in events if isinstance(event, Stop)), default=None)
    stretches: list[Stretch] = [(0, 1, 1)]
    for time, active in windows([event for event in events if isinstance(event, Slow)]):
        up, down = max([event.factor for event in active], default=Fraction(1)).as_integer_ratio()
        if (stop is None or time < stop) and stretches[-1][1:] != (up, down):
            stretches.append((time, up, down))
    return stretches if stop is None else [*stretches, (stop, 0, 1)]
