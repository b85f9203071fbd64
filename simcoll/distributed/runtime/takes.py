"""Takes: plans as they were played, kept to be followed when their ranks come at the same times again.

A plan that nothing shares its links with goes the same way whenever its ranks enter at the same times after the first one, to the
femtosecond. So it need not be played again, as long as they do. If one of them does not, or something else comes onto the links, the
time since the first entry is played after all: until then, nothing could depend on what was to come.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from simcoll.core.plan import Plan
from simcoll.emulator.digest import MovedHash
from simcoll.emulator.ledger import Ledger

Event = tuple[int, int, bool]
Log = tuple[Event, ...]

__all__ = ["Links", "Take", "Takes", "take_of"]

KEPT = 4
"""So many takes of a plan are kept; 0: everything is played."""
KEPT_MESSAGES = 1 << 18
"""So many messages of all takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """A plan as it was played.

    Attributes
    ----------
    log
        What happened to its ranks, in order: femtoseconds after the first entry, rank, whether it left.
    end_fs
        When its last message was done, after the first entry.
    hash
        Of its messages, from the first entry on.
    """

    plan: Plan
    log: Log
    end_fs: int
    messages: int
    hash: MovedHash


def take_of(plan: Plan, log: Iterable[Event], begin_fs: int, ledger: Ledger) -> Take:
    """The take of a plan that has been played, with a ledger that kept its columns."""
    columns = np.concatenate(ledger.columns, axis=1) if ledger.columns else np.zeros((7, 0), np.int64)
    columns[4:] -= begin_fs
    return Take(plan, tuple(log), max(0, ledger.time_fs - begin_fs), ledger.messages, MovedHash(list(columns)))


@dataclass(slots=True)
class Takes:
    """The takes of a run, by the identity of their plans, the newest last."""

    kept: dict[int, list[Take]] = field(default_factory=dict)
    messages: int = 0

    def of(self, plan: Plan) -> list[Take]:
        """The takes of a plan."""
        return self.kept.get(id(plan), [])

    def add(self, take: Take) -> None:
        """Keep a take; the oldest of its plan gives way, and all of plans that have not been played for long."""
        takes = self.kept.pop(id(take.plan), [])
        self.kept[id(take.plan)] = takes
        takes.append(take)
        self.messages += take.messages
        while len(takes) > KEPT:
            self.messages -= takes.pop(0).messages
        while self.messages > KEPT_MESSAGES:
            self.messages -= sum(each.messages for each in self.kept.pop(next(iter(self.kept))))


@dataclass(slots=True)
class Links:
    """The links that are in use, and whose use of them is theirs alone."""

    users: dict[int, Hashable] = field(default_factory=dict)
    crowd: dict[Hashable, None] = field(default_factory=dict)

    def take(self, user: Hashable, links: Iterable[int]) -> bool:
        """Note a user of some links; whether it is alone on them."""
        others = dict.fromkeys(self.users[link] for link in links if link in self.users)
        if others or self.crowd:
            self.crowd.update(others)
            self.crowd[user] = None
        self.users.update(dict.fromkeys(links, user))
        return not others

    def crowd_all(self, user: Hashable) -> None:
        """Note a user that may use any link: until it gives them back, nobody is alone."""
        self.crowd.update(dict.fromkeys(self.users.values()))
        self.crowd[user] = None

    def give_back(self, user: Hashable, links: Iterable[int]) -> bool:
        """Free the links of a user; whether it was alone on them all the time."""
        for link in links:
            if self.users.get(link) == user:
                del self.users[link]
        return self.crowd.pop(user, user) is not None
