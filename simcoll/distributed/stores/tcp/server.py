"""The server behind TCPStore: one thread, one selector, one table, and bounds on everything a client can make it hold.

A client that sends what is no message, too much, or too slowly loses its connection; the others do not notice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    from simcoll.distributed.stores.tcp.limits import Limits

__all__ = ["StoreServer", "running_server"]


# Before it has introduced itself a client is given no more room than its hello needs.
_HELLO_BYTES = 512
_RECEIVE_BYTES = 1 << 18


@dataclass(slots=True, eq=False)
class _Peer:
    """One connection."""

    sock: socket.socket
    nonce: bytes
    since_s: float  # of the last complete request or reply
    known: bool = False  # has introduced itself
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    parked_bytes: int = 0
    leaving: bool = False  # to be closed when its outbox is empty
    closed: bool = False
    held_bytes: int = 0


class StoreServer(threading.Thread):
    """Serves one table to the connections of one listening socket, until its last holder has released it."""

    def __init__(self, listener: socket.socket, limits: Limits, secret: bytes, multi_tenant: bool) -> None:
        super().__init__(name=f"simcoll-store-{listener.getsockname()[1]}", daemon=True)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self.multi_tenant = multi_tenant
        self._holders = 1
        self._holders_lock = threading.Lock()
        self._pid = os.getpid()
        self._limits = limits
        self._secret = secret
        self._table = Table(max_keys=limits.max_keys, max_bytes=limits.max_bytes)
        self._listener = listener
        self._listening = True
        self._bell, self._bell_far = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._peers: dict[_Peer, None] = {}
        self._parking: Parking[_Peer] = Parking()
        self._woken: deque[_Peer] = deque()
        self._buffered_bytes = 0
        self._sweep_s = min(1.0, limits.handshake_s / 4, limits.request_s / 4)
        listener.setblocking(False)
        self._bell.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._bell, selectors.EVENT_READ)

    def retain(self) -> bool:
        """One more holder; False when it is too late and the server is stopping."""
        with self._holders_lock:
            if self._holders == 0:
                return False
            self._holders += 1
            return True

    def release(self) -> None:
        """One holder less; the last one stops the server and waits until its thread and sockets are gone."""
        if os.getpid() != self._pid:
            return  # a forked child: the thread and the duty to stop it stayed with the parent
        with self._holders_lock:
            self._holders -= 1
            if self._holders > 0:
                return
        with contextlib.suppress(OSError):
            self._bell_far.send(b"x")
        if threading.current_thread() is not self:
            self.join(10)

    def run(self) -> None:
        """The loop: what is readable or writable, who was woken, whose time is up."""
        next_sweep_s = 0.0
        try:
            while self._holders > 0:
                now_s = time.monotonic()
                until_s = min(next_sweep_s, self._parking.next_s())
                for key, events in self._selector.select(max(0.0, until_s - now_s)):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data is not None:
                        self._serve(key.data, events)
                for peer in self._parking.due(time.monotonic()):
                    self._attempt(peer, self._parking.stays[peer].request, last=True)
                    self._woken.append(peer)
                if time.monotonic() >= next_sweep_s:
                    self._sweep(time.monotonic())
                    next_sweep_s = time.monotonic() + self._sweep_s
                while self._woken:
                    self._guarded(self._woken.popleft())
        finally:
            for peer in list(self._peers):
                self._close(peer)
            self._selector.close()
            # Shutting down also ends the listening of copies that forked children may hold.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            for sock in (self._listener, self._bell, self._bell_far):
                sock.close()

    # Connections

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                # Asking again at once would spin; the next sweep listens again.
                self._listen(False)
            return
        if len(self._peers) >= self._limits.max_connections:
            sock.close()
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(sock, secrets.token_bytes(32), time.monotonic())
        try:
            self._selector.register(sock, selectors.EVENT_READ, peer)
        except OSError:
            sock.close()
            return
        self._peers[peer] = None
        self._reply(peer, wire.Message(wire.GREETING, values=(wire.MAGIC, peer.nonce)))

    def _listen(self, wanted: bool) -> None:
        if wanted and not self._listening:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._listening and not wanted:
            self._selector.unregister(self._listener)
        self._listening = wanted

    def _close(self, peer: _Peer) -> None:
        if peer.closed:
            return
        self._unpark(peer)
        peer.closed = True
        self._account(peer)
        self._selector.unregister(peer.sock)
        with contextlib.suppress(OSError):
            peer.sock.shutdown(socket.SHUT_RDWR)
        peer.sock.close()
        del self._peers[peer]

    def _sweep(self, now_s: float) -> None:
        """Close who is too slow: in introducing itself, in finishing a request, in taking a reply."""
        self._listen(True)
        for peer in list(self._peers):
            silent_s = now_s - peer.since_s
            parked = peer in self._parking.stays
            busy = bool(peer.outbox) or (bool(peer.inbox) and not parked)
            if not peer.known:
                limit_s: float | None = self._limits.handshake_s
            elif busy:
                limit_s = self._limits.request_s
            else:
                limit_s = None if parked else self._limits.idle_s
            if limit_s is not None and silent_s > limit_s:
                self._close(peer)

    # Bytes

    def _serve(self, peer: _Peer, events: int) -> None:
        if peer.closed:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ and not peer.closed:
                self._receive(peer)
        except OSError:
            self._close(peer)
            return
        self._guarded(peer)

    def _receive(self, peer: _Peer) -> None:
        try:
            data = peer.sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            self._close(peer)
            return
        if peer.known and not peer.inbox and peer not in self._parking.stays:
            peer.since_s = time.monotonic()
        peer.inbox += data
        self._account(peer)
        # A client waits for each reply, so what comes meanwhile is at most one request too many.
        if len(peer.inbox) > 4 + self._most_bytes(peer) + _RECEIVE_BYTES:
            self._close(peer)
        self._make_room()

    def _flush(self, peer: _Peer) -> None:
        try:
            sent = peer.sock.send(peer.outbox)
        except (BlockingIOError, InterruptedError):
            sent = 0
        del peer.outbox[:sent]
        self._account(peer)
        if not peer.outbox and peer.leaving:
            self._close(peer)
            return
        # Until it has taken its reply a client is not listened to.
        self._selector.modify(peer.sock, selectors.EVENT_WRITE if peer.outbox else selectors.EVENT_READ, peer)

    def _most_bytes(self, peer: _Peer) -> int:
        return self._limits.max_message_bytes if peer.known else _HELLO_BYTES

    def _account(self, peer: _Peer) -> None:
        held = 0 if peer.closed else len(peer.inbox) + len(peer.outbox) + peer.parked_bytes
        self._buffered_bytes += held - peer.held_bytes
        peer.held_bytes = held

    def _make_room(self) -> None:
        """Close whoever holds most until the rest fits: small requests get through however greedy others are."""
        while self._buffered_bytes > self._limits.max_buffered_bytes:
            self._close(max(self._peers, key=lambda peer: peer.held_bytes))

    def _reply(self, peer: _Peer, message: wire.Message) -> None:
        peer.outbox += wire.encode(message)
        if peer.known:
            peer.since_s = time.monotonic()
        try:
            self._flush(peer)
        except OSError:
            self._close(peer)

    def _refuse(self, peer: _Peer, why: str) -> None:
        """Tell a client what it did wrong, then let it go: after nonsense nothing it sends can be understood."""
        peer.leaving = True
        self._reply(peer, wire.Message(wire.Status.REFUSED, values=(why.encode(),)))

    # Requests

    def _guarded(self, peer: _Peer) -> None:
        """Serve what a client has asked; whatever it made go wrong costs its connection and no other's."""
        try:
            self._advance(peer)
        except wire.MalformedError as error:
            self._refuse(peer, f"malformed message: {error}")
        except Exception as error:  # noqa: BLE001  not even a fault of ours may take the store from the other ranks
            self._refuse(peer, f"internal error, please report: {error!r}")

    def _advance(self, peer: _Peer) -> None:
        while not (peer.closed or peer.outbox or peer.leaving):
            stay = self._parking.stays.get(peer)
            if stay is not None:
                if not self._retry(peer, stay):
                    return
                continue
            length = wire.frame_length(peer.inbox)
            if length is None:
                return
            if length > self._most_bytes(peer):
                raise wire.MalformedError(f"it has {length} bytes and may have {self._most_bytes(peer)}")
            if len(peer.inbox) < 4 + length:
                return
            message = wire.decode(bytes(memoryview(peer.inbox)[4 : 4 + length]))
            del peer.inbox[: 4 + length]
            self._account(peer)
            if peer.known:
                peer.since_s = time.monotonic()
                self._request(peer, message)
            else:
                self._introduce(peer, message)

    def _introduce(self, peer: _Peer, hello: wire.Message) -> None:
        if hello.code != wire.HELLO or len(hello.values) != 3 or hello.values[0] != wire.MAGIC:
            raise wire.MalformedError("a connection begins with a hello")
        _, nonce, shown = hello.values
        if not secrets.compare_digest(shown, wire.proof(self._secret, b"client", peer.nonce, nonce)):
            self._refuse(peer, "the shared secret is missing or wrong")
            return
        peer.known = True
        mine = wire.proof(self._secret, b"server", peer.nonce, nonce)
        self._reply(peer, wire.Message(wire.Status.OK, number=self._limits.max_message_bytes, values=(mine,)))

    def _request(self, peer: _Peer, message: wire.Message) -> None:
        try:
            request = Request(Operation(message.code), message.keys, message.values, message.number)
            check_counts(request)
        except ValueError as error:
            raise wire.MalformedError(str(error)) from error
        long = max((len(key.encode()) for key in request.keys), default=0)
        if long > self._limits.max_key_bytes:
            why = f"a key of {long} bytes; this server takes {self._limits.max_key_bytes}"
            self._reply(peer, wire.Message(wire.Status.VALUE_ERROR, values=(why.encode(),)))
            return
        if not self._attempt(peer, request, last=message.wait_ms <= 0):
            self._park(peer, request, message.wait_ms)

    def _attempt(self, peer: _Peer, request: Request, last: bool = False) -> bool:
        """Try a request and reply if it could be done, or if this was its last chance; False when it has to wait."""
        try:
            result = apply(self._table, request)
        except ValueError as error:
            reply = wire.Message(wire.Status.VALUE_ERROR, values=(str(error).encode(),))
        except DistStoreError as error:
            reply = wire.Message(wire.Status.STORE_ERROR, values=(str(error).encode(),))
        else:
            if result is NOT_READY and not last:
                return False
            reply = self._result(result, changed=changes(request))
            if changes(request):
                self._woken.extend(self._parking.waiting_for(request.keys))
        self._unpark(peer)
        self._reply(peer, reply)
        return True

    def _result(self, result: Result, changed: bool) -> wire.Message:
        reply = reply_of(result)
        if reply.size_bytes > self._limits.max_message_bytes or reply.items > wire.MAX_ITEMS:
            why = f"the answer has {reply.size_bytes} bytes in {reply.items} items; this server sends at most "
            why += f"{self._limits.max_message_bytes} in {wire.MAX_ITEMS}"
            return wire.Message(wire.Status.STORE_ERROR, values=(why.encode(),))
        # What a change answers was given with it or leaves the table with it; refusing it now would lose it.
        if not changed and reply.size_bytes + self._buffered_bytes > self._limits.max_buffered_bytes:
            return wire.Message(wire.Status.STORE_ERROR, values=(b"the server has too much to send; try again",))
        return reply

    # Waiting

    def _park(self, peer: _Peer, request: Request, wait_ms: int) -> None:
        at = first_missing(self._table, request) or 0
        self._parking.enter(peer, Stay(request, at, time.monotonic() + wait_ms / 1000))
        peer.parked_bytes = sum(len(key) + ENTRY_BYTES for key in request.keys)
        self._account(peer)
        self._make_room()

    def _unpark(self, peer: _Peer) -> None:
        self._parking.leave(peer)
        peer.parked_bytes = 0
        self._account(peer)

    def _retry(self, peer: _Peer, stay: Stay) -> bool:
        """Go on where the request got stuck; False when it is stuck again."""
        at = first_missing(self._table, stay.request, stay.at)
        if at is None:
            if self._attempt(peer, stay.request):
                return True
            at = first_missing(self._table, stay.request) or 0  # deleted since
        self._parking.move(peer, at)
        return False


def running_server(address: tuple[str, int]) -> StoreServer | None:
    """The server of this process that shares this address, held once more; None when there is none.

    The interpreter's list of threads is the only registry: nothing to keep in step, nothing global of ours.
    """
    for thread in threading.enumerate():
        if isinstance(thread, StoreServer) and thread.multi_tenant and thread.address == address and thread.retain():
            return thread
    return None
