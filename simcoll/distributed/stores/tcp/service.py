"""The service behind TCPStore: one table, and the clients that wait for its keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from simcoll.distributed.server.frames import MalformedError
from simcoll.distributed.stores import wire
from simcoll.distributed.stores.errors import DistStoreError
from simcoll.distributed.stores.table import (
    ENTRY_BYTES,
    NOT_READY,
    Operation,
    Request,
    Result,
    Table,
    apply,
    changes,
    check_counts,
    first_missing,
)
from simcoll.distributed.stores.tcp.parking import Parking, Stay
from simcoll.distributed.stores.tcp.replies import reply_of

if TYPE_CHECKING:
    from simcoll.distributed.server.limits import Limits
    from simcoll.distributed.server.server import Peer

__all__ = ["StoreService"]


class StoreService:
    """Answers the requests of stores from one table."""

    name = wire.SERVICE
    decoder = wire.REQUESTS

    def __init__(self, limits: Limits, multi_tenant: bool) -> None:
        self.multi_tenant = multi_tenant
        self._limits = limits
        self._table = Table(max_keys=limits.max_keys, max_bytes=limits.max_bytes)
        self._parking: Parking[Peer] = Parking()

    def received(self, peer: Peer, message: wire.Message) -> None:
        """Answer a request, or let it wait."""
        try:
            request = Request(Operation(message.code), message.keys, message.values, message.number)
            check_counts(request)
        except ValueError as error:
            raise MalformedError(str(error)) from error
        longest = max((len(key.encode()) for key in request.keys), default=0)
        if longest > self._limits.max_key_bytes:
            peer.send(_failure(f"a key of {longest} bytes; this server takes {self._limits.max_key_bytes}", ValueError))
        elif not self._attempt(peer, request, last=message.wait_ms <= 0):
            at = first_missing(self._table, request) or 0
            self._parking.enter(peer, Stay(request, at, time.monotonic() + message.wait_ms / 1000))
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
            peer.soon(self._last_chance)

    def _attempt(self, peer: Peer, request: Request, last: bool = False) -> bool:
        """Try a request and reply if it succeeds or this was its last chance; False when it has to wait."""
        try:
            result = apply(self._table, request)
        except (ValueError, DistStoreError) as error:
            reply = _failure(str(error), type(error))
        else:
            if result is NOT_READY and not last:
                return False
            reply = self._reply(peer, request, result)
            if changes(request):
                for waiting in self._parking.waiting_for(request.keys):
                    waiting.soon(self._retry)
        if peer.waiting:
            self._parking.leave(peer)
            peer.unpark()
        peer.send(reply)
        return True

    def _reply(self, peer: Peer, request: Request, result: Result) -> wire.Message:
        reply = reply_of(result)
        size = reply.most_bytes
        if size > self._limits.max_message_bytes or max(len(reply.keys), len(reply.values)) > wire.MAX_ITEMS:
            return _failure(
                f"the answer has up to {size} bytes in {len(reply.keys) + len(reply.values)} items; this server sends at most "
                f"{self._limits.max_message_bytes} in {wire.MAX_ITEMS}"
            )
        # A change has been made already: its answer must not be refused for lack of room, or a popped value would be lost.
        if not changes(request) and not peer.has_room(size):
            return _failure("the server has too much to send; try again")
        return reply

    def _retry(self, peer: Peer) -> None:
        """Go on where a request got stuck."""
        stay = self._parking.stays.get(peer)
        if stay is None:
            return
        at = first_missing(self._table, stay.request, stay.at)
        if at is None:
            if self._attempt(peer, stay.request):
                return
            at = first_missing(self._table, stay.request) or 0  # deleted since
        self._parking.move(peer, at)

    def _last_chance(self, peer: Peer) -> None:
        stay = self._parking.stays.get(peer)
        if stay is not None:
            self._attempt(peer, stay.request, last=True)


def _failure(why: str, kind: type[Exception] = DistStoreError) -> wire.Message:
    """The reply that makes the client raise an error."""
    status = wire.Status.STORE_ERROR if issubclass(kind, DistStoreError) else wire.Status.VALUE_ERROR
    return wire.Message(status, values=(why.encode(),))
