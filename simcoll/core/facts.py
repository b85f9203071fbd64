"""Derived facts about records, stored by whoever derives them.

A record of the core is frozen, and knows only what the core derives. What other packages derive
from it (classes of messages, counts, loaded runs) they keep themselves, in a :class:`FactStore`: it
is found by the record's identity, lives no longer than the record, and travels with no copy and no
pickle of it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["FactStore"]

Record = TypeVar("Record")
Fact = TypeVar("Fact")


class FactStore(Generic[Record, Fact]):
    """One fact about each record, derived when it is asked for first.

    The fact must not refer to its record, or neither would ever be freed.

    >>> import simcoll
    >>> steps = FactStore(lambda schedule: sum(1 for _ in schedule.steps()))
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=4)
    >>> steps(ring), len(steps)
    (4, 1)
    >>> del ring
    >>> len(steps)
    0
    """

    def __init__(self, derive: Callable[[Record], Fact]) -> None:
        self._derive = derive
        self._facts: WeakKeyDictionary[Record, Fact] = WeakKeyDictionary()
        self._lock = Lock()

    def __call__(self, record: Record) -> Fact:
        """The fact about a record; of threads that derive it at the same time, the first decides
        for all.
        """
        with self._lock:
            fact = self._facts.get(record)
        if fact is None:
            # Without the lock: this may take long, or ask for other facts.
            derived = self._derive(record)
            with self._lock:
                fact = self._facts.setdefault(record, derived)
        return fact

    def __len__(self) -> int:
        return len(self._facts)
