"""The service behind TCPStore: one table, and the clients that wait for its keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simcoll.distributed.server.frames import Limits, MalformedError
from simcoll.distributed.server.server import LIGHT_BYTES, Peer
from simcoll.distributed.stores.store_errors import DistStoreError
from simcoll.distributed.stores.store_table import ENTRY_BYTES, StoreTable
from simcoll.distributed.stores.wire import (
    MAX_ITEMS,
    NOT_READY,
    REQUESTS,
    SERVICE,
    Answer,
    Reply,
    StoreRequest,
    Verb,
)

if TYPE_CHECKING:
    from asyncio import TimerHandle

__all__ = ["Parking", "Stay", "StoreService"]


@dataclass(slots=True)
class Stay:
    """A request that waits for its key number ``key_index`` until a timer makes it late; the keys
    before it were present.
    """

    request: StoreRequest
    key_index: int
    timer: TimerHandle
    late: bool = False

    @property
    def key(self) -> str:
        """The key that it waits for."""
        return self.request.keys[self.key_index]


@dataclass(slots=True)
class Parking:
    """Waiting clients, each for one key at a time, so that a new key wakes only those it may
    help.
    """

    stays: dict[Peer, Stay] = field(default_factory=dict)
    _by_key: dict[str, dict[Peer, None]] = field(default_factory=dict)

    def enter(self, who: Peer, stay: Stay) -> None:
        """Wait from now on."""
        self.stays[who] = stay
        self._by_key.setdefault(stay.key, {})[who] = None

    def move(self, who: Peer, index: int) -> None:
        """Wait for another key of the same request; for the same key a client keeps its place in
        the queue.
        """
        stay = self.stays[who]
        if stay.request.keys[index] != stay.key:
            self._forget(who, stay.key)
            self._by_key.setdefault(stay.request.keys[index], {})[who] = None
        stay.key_index = index

    def leave(self, who: Peer) -> None:
        """Wait no longer, if it did."""
        stay = self.stays.pop(who, None)
        if stay is not None:
            stay.timer.cancel()
            self._forget(who, stay.key)

    def waiting_for(self, keys: Iterable[str]) -> list[Peer]:
        """The clients that wait for one of these keys, key by key in order of arrival."""
        return [who for key in keys for who in self._by_key.get(key, ())]

    def _forget(self, who: Peer, key: str) -> None:
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
        self._table = StoreTable(max_keys=limits.max_keys, max_bytes=limits.max_bytes)
        self._parking: Parking = Parking()

    def handle(self, peer: Peer, request: StoreRequest) -> None:
        """Answer a request, at once if it moves little."""
        try:
            request.check()
        except ValueError as error:
            raise MalformedError(str(error)) from error
        longest = max((len(key.encode()) for key in request.keys), default=0)
        if longest > self._limits.max_key_bytes:
            why = f"a key of {longest} bytes; this server takes {self._limits.max_key_bytes}"
            peer.send(Reply.failure(ValueError(why)))
        elif request.code is Verb.LIST_KEYS and len(self._table.values) > MAX_ITEMS:
            # Sorting them would take seconds.
            why = f"there are {len(self._table.values)} keys; this server lists at most {MAX_ITEMS}"
            peer.send(Reply.failure(DistStoreError(why)))
        else:
            self._when_fair(peer, request, functools.partial(self._begin, request=request))

    def drop(self, peer: Peer) -> None:
        """End the wait of a client that has gone."""
        self._parking.leave(peer)

    def _when_fair(self, peer: Peer, request: StoreRequest, action: Callable[[Peer], None]) -> None:
        """Act at once for a request that moves little, for any other in its client's turn."""
        if peer.has_turn or self._table.moved_bytes(request) <= LIGHT_BYTES:
            action(peer)
        else:
            if not peer.waiting:
                peer.park(_held_bytes(request))
            peer.in_turn(action)

    def _begin(self, peer: Peer, request: StoreRequest) -> None:
        """Answer a request, or let it wait."""
        if not self._attempt(peer, request, last=request.wait_ms <= 0):
            index = self._table.first_missing(request) or 0
            timer = peer.later(request.wait_ms / 1000, self._expire)
            self._parking.enter(peer, Stay(request, index, timer))
            peer.park(_held_bytes(request))

    def _attempt(self, peer: Peer, request: StoreRequest, last: bool = False) -> bool:
        """Try a request and reply if it succeeds or this was its last chance; False when it has to
        wait.
        """
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
        if reply.most_bytes <= LIGHT_BYTES or peer.in_line:
            peer.send(reply)
        else:  # to read much and to send it are two turns
            peer.in_turn(functools.partial(Peer.send, message=reply))
        return True

    def _reply(self, peer: Peer, request: StoreRequest, answer: Answer) -> Reply:
        reply = Reply.of(answer)
        size = reply.most_bytes
        if (
            size > self._limits.max_message_bytes
            or max(len(reply.keys), len(reply.values)) > MAX_ITEMS
        ):
            why = (
                f"the answer has up to {size} bytes in {len(reply.keys) + len(reply.values)} "
                "items; this server sends at most "
                f"{self._limits.max_message_bytes} in {MAX_ITEMS}"
            )
            return Reply.failure(DistStoreError(why))
        # A change has been made already: its answer must not be refused for lack of room, or a
        # popped value would be lost.
        if not request.code.changes and not peer.has_room(size):
            return Reply.failure(DistStoreError("the server has too much to send; try again"))
        return reply

    def _expire(self, peer: Peer) -> None:
        self._parking.stays[peer].late = True
        self._retry(peer)

    def _retry(self, peer: Peer) -> None:
        stay = self._parking.stays.get(peer)
        if stay is not None:
            self._when_fair(peer, stay.request, self._go_on)

    def _go_on(self, peer: Peer) -> None:
        """Go on where a request got stuck."""
        stay = self._parking.stays.get(peer)
        if stay is None:
            return
        index = self._table.first_missing(stay.request, stay.key_index)
        if index is None or stay.late:
            if self._attempt(peer, stay.request, stay.late):
                return
            index = self._table.first_missing(stay.request) or 0  # deleted since
        self._parking.move(peer, index)


def _held_bytes(request: StoreRequest) -> int:
    return sum(len(key) + ENTRY_BYTES for key in request.keys)
