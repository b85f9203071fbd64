"""Waiting clients of a server: for which key, and until when."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simcoll.distributed.stores.table import Request

__all__ = ["Parking", "Stay"]

Who = TypeVar("Who")


@dataclass(slots=True)
class Stay:
    """A request that waits for its key number ``at``; the keys before it were present."""

    request: Request
    at: int
    until_s: float


@dataclass(slots=True)
class Parking(Generic[Who]):
    """Waiting clients, each for one key at a time, so that a new key wakes only those it may help."""

    stays: dict[Who, Stay] = field(default_factory=dict)
    _by_key: dict[str, dict[Who, None]] = field(default_factory=dict)
    _deadlines: list[tuple[float, int, Who]] = field(default_factory=list)
    _serial: int = 0

    def enter(self, who: Who, stay: Stay) -> None:
        """Wait from now on."""
        self.stays[who] = stay
        self._by_key.setdefault(stay.request.keys[stay.at], {})[who] = None
        self._serial += 1
        heapq.heappush(self._deadlines, (stay.until_s, self._serial, who))
        if len(self._deadlines) > 64 + 2 * len(self.stays):
            # Most entries are of waits that ended early.
            self._deadlines = [entry for entry in self._deadlines if self._stands(entry[2], entry[0])]
            heapq.heapify(self._deadlines)

    def move(self, who: Who, at: int) -> None:
        """Wait for another key of the same request; for the same key a client keeps its place in the queue."""
        stay = self.stays[who]
        if stay.request.keys[at] != stay.request.keys[stay.at]:
            self._forget(who, stay)
            self._by_key.setdefault(stay.request.keys[at], {})[who] = None
        stay.at = at

    def leave(self, who: Who) -> None:
        """Wait no longer, if it did."""
        stay = self.stays.pop(who, None)
        if stay is not None:
            self._forget(who, stay)

    def waiting_for(self, keys: Iterable[str]) -> list[Who]:
        """The clients that wait for one of these keys, key by key in order of arrival."""
        return [who for key in keys for who in self._by_key.get(key, ())]

    def next_s(self) -> float:
        """Time at which the next wait may end; infinite when there is none."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def due(self, now_s: float) -> list[Who]:
        """The clients whose time is up, each once."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            until_s, _, who = heapq.heappop(self._deadlines)
            if self._stands(who, until_s):
                found.append(who)
        return found

    def _stands(self, who: Who, until_s: float) -> bool:
        """Whether a deadline still counts: it outlives its wait, and its client may wait for another key by now."""
        stay = self.stays.get(who)
        return stay is not None and stay.until_s == until_s

    def _forget(self, who: Who, stay: Stay) -> None:
        key = stay.request.keys[stay.at]
        self._by_key[key].pop(who)
        if not self._by_key[key]:
            del self._by_key[key]
