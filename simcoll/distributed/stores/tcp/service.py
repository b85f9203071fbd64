"""The service behind TCPStore: one table, and the clients that wait for its keys."""

from __future__ import annotations

import functools
import heapq
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simcoll.distributed.server.frames import MalformedError
from simcoll.distributed.stores.errors import DistStoreError
from simcoll.distributed.stores.table import ENTRY_BYTES, Table
from simcoll.distributed.stores.wire import MAX_ITEMS, NOT_READY, REQUESTS, SERVICE, Answer, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simcoll.distributed.server.frames import Limits
    from simcoll.distributed.server.server import Peer

__all__ = ["Parking", "Stay", "StoreService"]


@dataclass(slots=True)
class Stay:
    """A request that waits for its key number ``at``; the keys before it were present."""

    request: Request
    at: int
    until_s: float


@dataclass(slots=True)
class Parking:
    """Waiting clients, each for one key at a time, so that a new key wakes only those it may help."""

    stays: dict[Peer, Stay] = field(default_factory=dict)
    _by_key: dict[str, dict[Peer, None]] = field(default_factory=dict)
    _deadlines: list[tuple[float, int, Peer]] = field(default_factory=list)
    _serial: int = 0

    def enter(self, who: Peer, stay: Stay) -> None:
        """Wait from now on."""
        self.stays[who] = stay
        self._by_key.setdefault(stay.request.keys[stay.at], {})[who] = None
        self._serial += 1
        heapq.heappush(self._deadlines, (stay.until_s, self._serial, who))
        if len(self._deadlines) > 64 + 2 * len(self.stays):
            # Most entries are of waits that ended early.
            self._deadlines = [entry for entry in self._deadlines if self._stands(entry[2], entry[0])]
            heapq.heapify(self._deadlines)

    def move(self, who: Peer, at: int) -> None:
        """Wait for another key of the same request; for the same key a client keeps its place in the queue."""
        stay = self.stays[who]
        if stay.request.keys[at] != stay.request.keys[stay.at]:
            self._forget(who, stay)
            self._by_key.setdefault(stay.request.keys[at], {})[who] = None
        stay.at = at

    def leave(self, who: Peer) -> None:
        """Wait no longer, if it did."""
        stay = self.stays.pop(who, None)
        if stay is not None:
            self._forget(who, stay)

    def waiting_for(self, keys: Iterable[str]) -> list[Peer]:
        """The clients that wait for one of these keys, key by key in order of arrival."""
        return [who for key in keys for who in self._by_key.get(key, ())]

    def next_s(self) -> float:
        """Time at which the next wait may end; infinite when there is none."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def due(self, now_s: float) -> list[Peer]:
        """The clients whose time is up, each once."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            until_s, _, who = heapq.heappop(self._deadlines)
            if self._stands(who, until_s):
                found.append(who)
        return found

    def _stands(self, who: Peer, until_s: float) -> bool:
        """Whether a deadline still counts: it outlives its wait, and its client may wait for another key by now."""
        stay = self.stays.get(who)
        return stay is not None and stay.until_s == until_s

    def _forget(self, who: Peer, stay: Stay) -> None:
        key = stay.request.keys[stay.at]
        self._by_key[key].pop(who)
        if not self._by_key[key]:
            del self._by_key[key]


class StoreService:
    """Answers the requests of stores from one table."""

    name = SERVICE
    decoder = REQUESTS

    def __init__(self, limits: Limits, multi_tenant: bool) -> None:
        self.multi_tenant = multi_tenant
        self._limits = limits
        self._table = Table(max_keys=limits.max_keys, max_bytes=limits.max_bytes)
        self._parking: Parking = Parking()

    def received(self, peer: Peer, request: Request) -> None:
        """Answer a request, or let it wait."""
        try:
            request.check()
        except ValueError as error:
            raise MalformedError(str(error)) from error
        longest = max((len(key.encode()) for key in request.keys), default=0)
        if longest > self._limits.max_key_bytes:
            why = f"a key of {longest} bytes; this server takes {self._limits.max_key_bytes}"
            peer.send(Reply.failure(ValueError(why)))
        elif not self._attempt(peer, request, last=request.wait_ms <= 0):
            at = self._table.first_missing(request) or 0
            self._parking.enter(peer, Stay(request, at, time.monotonic() + request.wait_ms / 1000))
            peer.park(sum(len(key) + ENTRY_BYTES for key in request.keys))

    def lost(self, peer: Peer) -> None:
        """End the wait of a client that has gone."""
        self._parking.leave(peer)

    def due_s(self) -> float:
        """Time at which the next wait may end."""
        return self._parking.next_s()

    def expire(self, now_s: float) -> None:
        """End the waits whose time is up."""
        for peer in self._parking.due(now_s):
            peer.soon(functools.partial(self._retry, last=True))

    def _attempt(self, peer: Peer, request: Request, last: bool = False) -> bool:
        """Try a request and reply if it succeeds or this was its last chance; False when it has to wait."""
        try:
            answer = self._table.apply(request)
        except (ValueError, DistStoreError) as error:
            reply = Reply.failure(error)
        else:
            if answer is NOT_READY and not last:
                return False
            reply = self._reply(peer, request, answer)
            if request.code.changes:
                for waiting in self._parking.waiting_for(request.keys):
                    waiting.soon(self._retry)
        if peer.waiting:
            self._parking.leave(peer)
            peer.park(None)
        peer.send(reply)
        return True

    def _reply(self, peer: Peer, request: Request, answer: Answer) -> Reply:
        reply = Reply.of(answer)
        size = reply.most_bytes
        if size > self._limits.max_message_bytes or max(len(reply.keys), len(reply.values)) > MAX_ITEMS:
            why = (
                f"the answer has up to {size} bytes in {len(reply.keys) + len(reply.values)} items; this server sends at most "
                f"{self._limits.max_message_bytes} in {MAX_ITEMS}"
            )
            return Reply.failure(DistStoreError(why))
        # A change has been made already: its answer must not be refused for lack of room, or a popped value would be lost.
        if not request.code.changes and not peer.has_room(size):
            return Reply.failure(DistStoreError("the server has too much to send; try again"))
        return reply

    def _retry(self, peer: Peer, last: bool = False) -> None:
        """Go on where a request got stuck."""
        stay = self._parking.stays.get(peer)
        if stay is None:
            return
        at = self._table.first_missing(stay.request, stay.at)
        if at is None or last:
            if self._attempt(peer, stay.request, last):
                return
            at = self._table.first_missing(stay.request) or 0  # deleted since
        self._parking.move(peer, at)
