"""Takes: recorded executions of plans, replayed when their ranks enter at the same relative times
again.

A plan that shares its links with nothing else takes exactly the same course, to the femtosecond,
whenever its ranks enter at the same offsets from the first entry. So a recorded take is replayed
instead of simulating the plan again. If an entry deviates, or other traffic reaches the links, the
time since the first entry is simulated after all, which is sound because no rank has yet seen a
later event.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from simcoll.core.plan import Plan
from simcoll.emulator.moved_hash import MovedHash
from simcoll.emulator.reference.ledger import Ledger

Event = tuple[int, int, bool]
Log = tuple[Event, ...]

__all__ = ["Links", "Take", "Takes", "take_of"]

KEPT = 4
"""Takes kept per plan; 0 disables replay."""
KEPT_MESSAGES = 1 << 18
"""Messages kept over all takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """A recorded execution of a plan.

    Attributes
    ----------
    log
        Entries and departures in order: femtoseconds after the first entry, rank, whether it left.
    end_fs
        Completion of the last message, after the first entry.
    hash
        Hash of its messages, with times relative to the first entry; that of the engine for a
        rehearsal.
    together
        Whether all ranks enter at once, before any leaves.
    """

    plan: Plan
    log: Log
    end_fs: int
    messages: int
    hash: MovedHash | str
    together: bool = False


def take_of(plan: Plan, log: Iterable[Event], begin_fs: int, ledger: Ledger) -> Take:
    """Make a take from a finished execution, whose ledger kept its columns."""
    columns = (
        np.concatenate(ledger.columns, axis=1) if ledger.columns else np.zeros((7, 0), np.int64)
    )
    columns[4:] -= begin_fs
    events = tuple(log)
    return Take(
        plan,
        events,
        max(0, ledger.time_fs - begin_fs),
        ledger.messages,
        MovedHash(list(columns)),
        all(not leaves and not after_fs for after_fs, _, leaves in events[: plan.nranks]),
    )


@dataclass(slots=True)
class Takes:
    """The takes of a run by the identity of their plans, newest last."""

    takes: dict[int, list[Take]] = field(default_factory=dict)
    messages: int = 0

    def of(self, plan: Plan) -> list[Take]:
        """The takes of a plan."""
        return self.takes.get(id(plan), [])

    def add(self, take: Take) -> None:
        """Keep a take; evict the oldest of its plan, and those of plans least recently played."""
        takes = self.takes.pop(id(take.plan), [])
        self.takes[id(take.plan)] = takes
        takes.append(take)
        self.messages += take.messages
        while len(takes) > KEPT:
            self.messages -= takes.pop(0).messages
        while self.messages > KEPT_MESSAGES:
            self.messages -= sum(
                discarded.messages for discarded in self.takes.pop(next(iter(self.takes)))
            )


@dataclass(slots=True)
class Links:
    """Links in use, and the users that share none of theirs."""

    users: dict[int, Hashable] = field(default_factory=dict)
    crowd: dict[Hashable, None] = field(default_factory=dict)

    def take(self, user: Hashable, links: Iterable[int]) -> bool:
        """Register a user of some links; returns whether it shares none of them."""
        sharers = (
            dict.fromkeys(self.users[link] for link in links if link in self.users)
            if self.users
            else {}
        )
        if sharers or self.crowd:
            self.crowd.update(sharers)
            self.crowd[user] = None
        self.users.update(dict.fromkeys(links, user))
        return not sharers

    def crowd_all(self, user: Hashable) -> None:
        """Register a user that may use any link, so that until it leaves every user shares its
        links.
        """
        self.crowd.update(dict.fromkeys(self.users.values()))
        self.crowd[user] = None

    def give_back(self, user: Hashable, links: Collection[int]) -> bool:
        """Release the links of a user; returns whether it never shared any of them."""
        if len(self.users) == len(links) and user not in self.crowd:  # there is no other user
            self.users.clear()
        else:
            for link in links:
                if self.users.get(link) == user:
                    del self.users[link]
        return self.crowd.pop(user, user) is not None
