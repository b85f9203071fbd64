"""The server: one thread with an asyncio loop, one service, and bounds on everything a client can make it hold.

A client that sends nonsense, too much, or too slowly loses its connection; the others do not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, cast

from simcoll.distributed.server.frames import HEAD_BYTES, MalformedError, body_length, decode, encode
from simcoll.distributed.server.greeting import HELLO_BYTES, HELLOS, Greeting, Hello, Refusal, Welcome, is_ours, proof
from simcoll.distributed.server.limits import BACKLOG

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from simcoll.distributed.server.limits import Limits

__all__ = ["Peer", "Server", "Service"]

_RECEIVE_BYTES = 1 << 18
# Descriptors left to the program around the server when clients take all others.
_SPARE_DESCRIPTORS = 32


class Service(Protocol):
    """What a server offers. All calls come from the server's thread; what they raise costs the client its connection."""

    name: str
    decoder: msgspec.msgpack.Decoder[Any]

    def received(self, peer: Peer, message: Any) -> None:
        """Take a message of a client that has introduced itself."""
        ...

    def lost(self, peer: Peer) -> None:
        """Forget a client whose connection has ended."""
        ...

    def due_s(self) -> float:
        """When `expire` has work next, as of ``time.monotonic()``; infinite for never."""
        ...

    def expire(self, now_s: float) -> None:
        """Do what is due."""
        ...


class Peer(asyncio.Protocol):
    """One connection. A service answers with `send`, or asks for patience with `park`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._nonce = secrets.token_bytes(32)
        self._transport: asyncio.Transport
        self._inbox = bytearray()
        self._full = False  # has not yet taken all that was sent to it
        self._leaving = False
        self._parked_bytes = 0
        self.known = False  # has introduced itself
        self.closed = False
        self.waiting = False
        self.held_bytes = 0
        self.since_s = time.monotonic()  # of the last complete request or reply

    # For services

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; nothing happens on a connection that has ended."""
        if self.closed:
            return
        if self.known and not self._full:
            self.since_s = time.monotonic()
        self._transport.write(encode(message))
        self._account()

    def park(self, held_bytes: int) -> None:
        """Take no further message from this client until `unpark`; its request holds that many bytes."""
        self.waiting, self._parked_bytes = True, held_bytes
        self._account()

    def unpark(self) -> None:
        """Take messages again."""
        self.waiting, self._parked_bytes = False, 0
        self._account()

    def has_room(self, size_bytes: int) -> bool:
        """Whether the server may hold that much more."""
        return self._server.buffered_bytes + size_bytes <= self._server.limits.max_buffered_bytes

    def soon(self, action: Callable[[Peer], None]) -> None:
        """Do something for this client after what is being done now."""
        self._server.loop.call_soon(self._guarded, action)

    def close(self) -> None:
        """End the connection at once."""
        if not self.closed:
            # Shutting down also ends it for copies of the socket that forked children may hold.
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            self._transport.abort()
            self._end()

    def refuse(self, why: str) -> None:
        """Tell a client what it did wrong, then let it go: nothing it sends after nonsense can be understood."""
        self.send(Refusal(why))
        self._leaving = True
        if not self._full:
            self.close()

    # For asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet a new client, if there is room for it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(0)
        if self._server.admit(self, transport.get_extra_info("socket")):
            self.send(Greeting(self._server.service.name, self._nonce))
        else:
            self._transport.abort()
            self.closed = True

    def data_received(self, data: bytes) -> None:
        """Keep what has arrived and serve the whole messages in it."""
        if self.known and not self._inbox and not self.waiting:
            self.since_s = time.monotonic()
        self._inbox += data
        self._account()
        # A client waits for each reply, so at most one further request can lie here.
        if len(self._inbox) > HEAD_BYTES + self._most_bytes() + _RECEIVE_BYTES:
            self.close()
        self._guarded(None)

    def pause_writing(self) -> None:
        """The client takes its reply slowly: do not listen to it until it is through."""
        self._full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has taken everything."""
        self._full = False
        self._account()
        if self._leaving:
            self.close()
        elif not self.closed:
            self._transport.resume_reading()
            self._guarded(None)

    def eof_received(self) -> bool:
        """The client has hung up."""
        self.close()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection broke."""
        del error
        if not self.closed:
            self._end()
        self._server.schedule()

    # For the server

    def is_late(self, now_s: float, limits: Limits) -> bool:
        """Whether the client has used up its time: for its hello, for finishing a request, for taking a reply."""
        busy = self._full or (bool(self._inbox) and not self.waiting)
        if not self.known:
            limit_s: float | None = limits.handshake_s
        elif busy:
            limit_s = limits.request_s
        else:
            limit_s = None if self.waiting else limits.idle_s
        return limit_s is not None and now_s - self.since_s > limit_s

    def _end(self) -> None:
        self.closed = True
        self._account()
        self._server.forget(self)

    def _most_bytes(self) -> int:
        return self._server.limits.max_message_bytes if self.known else HELLO_BYTES

    def _account(self) -> None:
        held = len(self._inbox) + self._transport.get_write_buffer_size() + self._parked_bytes
        held = 0 if self.closed else held
        self._server.hold(held - self.held_bytes)
        self.held_bytes = held

    def _guarded(self, action: Callable[[Peer], None] | None) -> None:
        """Serve the client; whatever it makes go wrong costs its connection and no other's."""
        if self.closed:
            return
        try:
            if action is not None:
                action(self)
            self._advance()
        except MalformedError as error:
            self.refuse(f"malformed message: {error}")
        except Exception as error:  # noqa: BLE001  a fault of ours must not take the service from the other ranks
            self.refuse(f"internal error, please report: {error!r}")
        self._server.make_room()
        self._server.schedule()

    def _advance(self) -> None:
        while not (self.closed or self._full or self._leaving or self.waiting):
            length = body_length(self._inbox)
            if length is None:
                return
            if length > self._most_bytes():
                raise MalformedError(f"it has {length} bytes and may have {self._most_bytes()}")
            if len(self._inbox) < HEAD_BYTES + length:
                return
            body = bytes(memoryview(self._inbox)[HEAD_BYTES : HEAD_BYTES + length])
            del self._inbox[: HEAD_BYTES + length]
            self._account()
            if self.known:
                self.since_s = time.monotonic()
                self._server.service.received(self, decode(body, self._server.service.decoder))
            else:
                self._introduce(decode(body, HELLOS))

    def _introduce(self, hello: Hello) -> None:
        service, secret = self._server.service.name, self._server.secret
        if hello.service != service:
            raise MalformedError(f"this server offers {service}, not {hello.service}")
        if not secrets.compare_digest(hello.proof, proof(secret, service, b"client", self._nonce, hello.nonce)):
            self.refuse("the shared secret is missing or wrong")
            return
        self._server.trust(self)
        mine = proof(secret, service, b"server", self._nonce, hello.nonce)
        self.send(Welcome(self._server.limits.max_message_bytes, mine))


class Server(threading.Thread):
    """Serves the connections of one listening socket until its last holder has released it.

    Parameters
    ----------
    listener
        A bound stream socket; the server closes it.
    service
        What to do with messages.
    limits
        What clients may do.
    secret
        What clients must know.
    """

    def __init__(self, listener: socket.socket, service: Service, limits: Limits, secret: bytes) -> None:
        super().__init__(name=f"{service.name.partition('/')[0]}-server", daemon=True)
        self.address: Any = listener.getsockname()
        self.service = service
        self.limits = limits
        self.secret = secret
        self.buffered_bytes = 0
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._unusual)
        self._listener = listener
        self._over: asyncio.Future[None] = self.loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._peers: dict[Peer, None] = {}
        self._strangers: dict[Peer, None] = {}  # of the peers, those that have not introduced themselves
        self._most_peers = min(limits.max_connections, _descriptors() - _SPARE_DESCRIPTORS)
        self._holders = 1
        self._holders_lock = threading.Lock()
        self._pid = os.getpid()

    def retain(self) -> bool:
        """Add a holder; False when the server is already stopping."""
        with self._holders_lock:
            if self._holders == 0:
                return False
            self._holders += 1
            return True

    def release(self) -> None:
        """Drop a holder; the last one stops the server and waits until its thread and sockets are gone."""
        if os.getpid() != self._pid:
            return  # a forked child: the thread, and the duty to stop it, stayed with the parent
        with self._holders_lock:
            self._holders -= 1
            if self._holders != 0:
                return
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self.loop.call_soon_threadsafe(self._stop)
        if threading.current_thread() is not self:
            self.join(10)

    def run(self) -> None:
        """Serve until stopped."""
        try:
            self.loop.run_until_complete(self._serve())
        finally:
            self.loop.close()
            self._listener.close()

    @property
    def peer_count(self) -> int:
        """Connections that are open now."""
        return len(self._peers)

    # For peers

    def admit(self, peer: Peer, sock: socket.socket) -> bool:
        """Take in a new connection; where there is no room, in place of the oldest that has not introduced itself."""
        if not is_ours(sock):
            return False
        if len(self._peers) >= self._most_peers:
            if not self._strangers:
                return False
            next(iter(self._strangers)).close()
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._peers[peer] = self._strangers[peer] = None
        return True

    def trust(self, peer: Peer) -> None:
        """A client has shown that it knows the secret."""
        peer.known = True
        del self._strangers[peer]

    def forget(self, peer: Peer) -> None:
        """A connection has ended."""
        self._strangers.pop(peer, None)
        if peer in self._peers:
            del self._peers[peer]
            self.service.lost(peer)

    def hold(self, added_bytes: int) -> None:
        """Account for bytes that clients make the server keep."""
        self.buffered_bytes += added_bytes

    def make_room(self) -> None:
        """Close the connections that hold most until the rest fits: small requests get through however greedy others are."""
        while self.buffered_bytes > self.limits.max_buffered_bytes:
            max(self._peers, key=lambda peer: peer.held_bytes).close()

    def schedule(self) -> None:
        """See to it that the service is called when something is due."""
        due_s = self.service.due_s()
        if due_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(due_s, self._expire)
            self._timer_s = due_s

    # The loop

    async def _serve(self) -> None:
        acceptor = await self.loop.create_server(lambda: Peer(self), sock=self._listener, backlog=BACKLOG)
        self._sweep()
        await self._over
        # Shutting down also ends the listening of copies that forked children may hold.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        acceptor.close()
        if accepting := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(accepting)
        for peer in list(self._peers):
            peer.close()
        await asyncio.sleep(0)  # transports close their sockets in a step of their own

    def _stop(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _expire(self) -> None:
        due_s, self._timer, self._timer_s = self._timer_s, None, math.inf
        try:
            # The loop may call a moment early.
            self.service.expire(max(due_s, time.monotonic()))
        finally:
            self.schedule()

    def _sweep(self) -> None:
        """Close the connections that are too slow."""
        now_s = time.monotonic()
        for peer in [peer for peer in self._peers if peer.is_late(now_s, self.limits)]:
            peer.close()
        self.loop.call_later(min(1.0, self.limits.handshake_s / 4, self.limits.request_s / 4), self._sweep)

    def _unusual(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Out of descriptors: asyncio tries again in a second, and strangers make room. Anything else is reported."""
        if isinstance(context.get("exception"), OSError):
            for peer in list(self._strangers):
                peer.close()
        else:
            loop.default_exception_handler(context)


def _descriptors() -> int:
    """How many files this process may have open."""
    return os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 1 << 16
