"""Followers in an operation: they enter with their leaders, and a leader continues when its whole
class has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.distributed.runtime.plans_in_flight import Emulator, Playing
from simcoll.distributed.runtime.rank_classes import RankClasses

__all__ = ["Followers"]


@dataclass(slots=True, eq=False)
class _Class:
    """The ranks of a class still in an operation, which its leader waits for."""

    missing: int
    first_fs: int = -1
    values: Array | None = None


@dataclass(slots=True, eq=False)
class Followers:
    """One operation of a group, and the same operation of the corresponding groups of followers.

    Parameters
    ----------
    classes
        Group ranks that enter with each leader, by the leader's group rank.
    leave
        Called with the group rank of every leader whose class has left, and the leader's output.
    """

    rank_classes: RankClasses
    emulator: Emulator
    classes: Mapping[int, Sequence[int]]
    leave: Callable[[int, Array | None], None]
    elsewhere: list[Playing] = field(default_factory=list)
    _classes: dict[int, _Class] = field(default_factory=dict)
    _leader: dict[int, int] = field(default_factory=dict)

    def play(self, plans: Iterable[Plan], label: tuple[str, int, str]) -> None:
        """Start the operation in the corresponding groups of followers."""
        self.elsewhere = [
            Playing(self.emulator, plan, label, self.leave_follower, fake=True) for plan in plans
        ]
        for leader, ranks in self.classes.items():
            self._classes[leader] = _Class(len(ranks) * (1 + len(self.elsewhere)))
            self._leader.update(dict.fromkeys(ranks, leader))

    def enter(self, leader: int) -> None:
        """Let the followers of a leader enter, except in the leaders' own group."""
        for playing in self.elsewhere:
            for rank in self.classes[leader]:
                playing.enter(rank, ())

    def leave_group(self, rank: int, values: Array | None) -> None:
        """Record that a rank of the leaders' group has left."""
        if rank == self._leader[rank]:
            self._classes[rank].values = values
        self.leave_follower(rank, None)

    def leave_follower(self, rank: int, _values: Array | None) -> None:
        """Record that a follower has left; the last one of a class releases its leader."""
        leader, now = self._leader[rank], self.emulator.calendar.now
        entry = self._classes[leader]
        if entry.first_fs < 0:
            entry.first_fs = now
        entry.missing -= 1
        if not entry.missing:
            self.rank_classes.skew_fs = max(self.rank_classes.skew_fs, now - entry.first_fs)
            # Ranks leave as seen from their players; the leader goes on after these.
            self.emulator.calendar.at(now, partial(self._go_on, leader), None)

    def _go_on(self, leader: int, _nothing: None) -> None:
        self.leave(leader, self._classes[leader].values)
