"""The server: one thread with an asyncio loop, one service, and bounds on all that a client can
make it hold.

A client that sends nonsense, too much, or too slowly loses its connection; the others do not
notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from simcoll.distributed.server import frames

__all__ = ["LIGHT_BYTES", "Peer", "Server", "Service"]

_RECEIVE_BYTES, _SEND_BYTES = 1 << 16, 1 << 18
"""At a time, so that many large messages hold up no small one."""
LIGHT_BYTES = 1 << 14
"""A request that moves more than that waits for its client's turn."""
_SWEEP_S = 1.0
# Descriptors left to the program around the server when clients take all others.
_SPARE_DESCRIPTORS = 32


class Service(Protocol):
    """The application behind a server, called on the server's thread; an exception closes the
    client's connection.
    """

    name: str
    decoder: msgspec.msgpack.Decoder[Any]

    def handle(self, peer: Peer, message: Any) -> None:
        """Handle a message from an authenticated client."""
        ...

    def drop(self, peer: Peer) -> None:
        """Drop a client whose connection has ended."""
        ...


class Peer:
    """One connection. A service answers with `send`, or asks for patience with `park`."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self._server = server
        self._sock = sock
        self._descriptor = sock.fileno()  # for the loop: it is much slower with sockets
        self._nonce = secrets.token_bytes(32)
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._leaving = False  # to be closed when it has taken its last message
        self.in_line = False
        self.has_turn = False
        self._parked_bytes = 0
        self.known = False  # has introduced itself
        self.closed = False
        self.waiting = False
        self.held_bytes = 0
        self.since_s = time.monotonic()  # of the last complete request or reply

    # For services

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; a no-op on a closed connection."""
        if self.closed:
            return
        if self.known and not self._outbox:
            self.since_s = time.monotonic()
        frame = frames.encode(message)
        if self._outbox:
            self._outbox += frame
        elif (sent := self._send_some(frame)) < len(frame):
            # The client takes its reply slowly: do not listen to it until it is through.
            self._outbox = frame
            del frame[:sent]
            self._server.loop.remove_reader(self._descriptor)
            self._server.loop.add_writer(self._descriptor, self._guard, Peer._flush)
        self._account()

    def park(self, held_bytes: int | None) -> None:
        """Take no further message from this client, whose request holds that many bytes, until it
        is parked with None.
        """
        self.waiting, self._parked_bytes = held_bytes is not None, held_bytes or 0
        self._account()

    def has_room(self, size_bytes: int) -> bool:
        """Whether the server may buffer that many more bytes."""
        return self._server.buffered_bytes + size_bytes <= self._server.limits.max_buffered_bytes

    def soon(self, action: Callable[[Peer], None]) -> None:
        """Call an action for this client after the current event."""
        self._server.loop.call_soon(self._guard, action)

    def in_turn(self, action: Callable[[Peer], None]) -> None:
        """Call an action for this client, unless it is in line already: of all that are, one for
        each look at what has arrived.
        """
        if not self.in_line:
            self.in_line = True
            self._server.line_up(self, action)

    def take_turn(self, action: Callable[[Peer], None]) -> None:
        """Call the action that was in line."""
        self.in_line, self.has_turn = False, True
        self._guard(action)
        self.has_turn = False

    def later(self, delay_s: float, action: Callable[[Peer], None]) -> asyncio.TimerHandle:
        """Schedule an action for this client, unless cancelled or the client disconnects."""
        return self._server.loop.call_later(delay_s, self._guard, action)

    def close(self) -> None:
        """Close the connection at once."""
        if self.closed:
            return
        self.closed = True
        self._account()
        self._server.loop.remove_reader(self._descriptor)
        self._server.loop.remove_writer(self._descriptor)
        # Shutting down also ends it for copies of the socket that forked children may hold.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._server.forget(self)

    def refuse(self, why: str) -> None:
        """Report an error to the client and close: after malformed input the stream cannot be
        resynchronised.
        """
        self.send(frames.Refusal(why))
        self._leaving = True
        if not self._outbox:
            self.close()

    # For the server

    def greet(self) -> None:
        """Start the handshake."""
        self._server.loop.add_reader(self._descriptor, self._guard, Peer._receive)
        self.send(frames.Greeting(self._server.service.name, self._nonce))

    def is_late(self, now_s: float, limits: frames.Limits) -> bool:
        """Whether the client has exceeded a deadline: for its hello, a started request, or taking a
        reply.
        """
        busy = bool(self._outbox) or (bool(self._inbox) and not self.waiting)
        if not self.known:
            limit_s: float | None = limits.handshake_s
        elif busy:
            limit_s = limits.request_s
        else:
            limit_s = None if self.waiting else limits.idle_s
        return limit_s is not None and now_s - self.since_s > limit_s

    def _receive(self) -> None:
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if self.known and not self._inbox and not self.waiting:
            self.since_s = time.monotonic()
        self._inbox += data
        self._account()
        # A client waits for each reply, so at most one further request can lie here.
        if not data or len(self._inbox) > frames.HEAD_BYTES + self._most_bytes() + _RECEIVE_BYTES:
            self.close()

    def _flush(self) -> None:
        del self._outbox[: self._send_some(self._outbox)]
        self._account()
        if self.closed or self._outbox:
            return
        if self._leaving:
            self.close()
            return
        self._server.loop.remove_writer(self._descriptor)
        self._server.loop.add_reader(self._descriptor, self._guard, Peer._receive)

    def _send_some(self, data: bytearray) -> int:
        """The number of bytes accepted by the socket; all of them if the client has
        disconnected.
        """
        try:
            return self._sock.send(memoryview(data)[:_SEND_BYTES])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.soon(Peer.close)
            return len(data)

    def _most_bytes(self) -> int:
        return self._server.limits.max_message_bytes if self.known else frames.HELLO_BYTES

    def _account(self) -> None:
        held_bytes = 0 if self.closed else len(self._inbox) + len(self._outbox) + self._parked_bytes
        self._server.buffered_bytes += held_bytes - self.held_bytes
        self.held_bytes = held_bytes

    def _guard(self, action: Callable[[Peer], None]) -> None:
        """Run an action for a client; an error closes only its connection."""
        if self.closed:
            return
        try:
            action(self)
            self._advance()
        except frames.MalformedError as error:
            self.refuse(f"malformed message: {error}")
        # A bug here must not end the service for the other ranks.
        except Exception as error:  # noqa: BLE001
            self.refuse(f"internal error, please report: {error!r}")
        self._server.make_room()

    def _advance(self) -> None:
        """Serve a small request at once; what is large, or was sent ahead, waits for this client's
        turn.
        """
        if self.in_line:
            return
        if len(self._inbox) > LIGHT_BYTES:
            self.in_turn(Peer._serve)
        else:
            self._serve()

    def _serve(self) -> None:
        """Serve one request, if one has arrived."""
        if self.closed or self._outbox or self._leaving or self.waiting:
            return
        decoder = self._server.service.decoder if self.known else frames.HELLOS
        message = frames.take_message(self._inbox, self._most_bytes(), decoder)
        if message is None:
            return
        self._account()
        if self.known:
            self.since_s = time.monotonic()
            self._server.service.handle(self, message)
        else:
            self._introduce(message)
        if self._inbox and not self.waiting:
            self.in_turn(Peer._serve)

    def _introduce(self, hello: frames.Hello) -> None:
        service, secret = self._server.service.name, self._server.secret
        if hello.service != service:
            raise frames.MalformedError(f"this server offers {service}, not {hello.service}")
        if not secrets.compare_digest(
            hello.proof, frames.proof(secret, service, b"client", self._nonce, hello.nonce)
        ):
            self.refuse("the shared secret is missing or wrong")
            return
        self._server.trust(self)
        mine = frames.proof(secret, service, b"server", self._nonce, hello.nonce)
        self.send(frames.Welcome(self._server.limits.max_message_bytes, mine))


class Server(threading.Thread):
    """Serves the connections of one listening socket until its last holder releases it.

    Parameters
    ----------
    listener
        A bound stream socket; the server closes it.
    service
        Handles the messages.
    limits
        Bounds on clients.
    secret
        Shared with all clients.
    """

    def __init__(
        self, listener: socket.socket, service: Service, limits: frames.Limits, secret: bytes
    ) -> None:
        super().__init__(name=f"{service.name.partition('/')[0]}-server", daemon=True)
        self.address: Any = listener.getsockname()
        self.service = service
        self.limits = limits
        self.secret = secret
        self.buffered_bytes = 0
        self.loop = asyncio.SelectorEventLoop()
        self._listener = listener
        self._peers: dict[Peer, None] = {}
        self._line: deque[tuple[Peer, Callable[[Peer], None]]] = deque()
        self._strangers: dict[
            Peer, None
        ] = {}  # of the peers, those that have not introduced themselves
        files = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else -1
        free = max(files - _SPARE_DESCRIPTORS, files // 2) if files >= 0 else 1 << 16
        self._most_peers = min(limits.max_connections, free)
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
        """Drop a holder; the last one stops the server and waits for its thread and sockets to
        end.
        """
        if os.getpid() != self._pid:
            return  # a forked child: the thread, and the duty to stop it, stayed with the parent
        with self._holders_lock:
            self._holders -= 1
            if self._holders != 0:
                return
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self:
            self.join(10)

    def run(self) -> None:
        """Serve until stopped."""
        self._listener.setblocking(False)
        self._watch_listener()
        self._sweep()
        try:
            self.loop.run_forever()
        finally:
            for peer in list(self._peers):
                peer.close()
            self.loop.close()
            # Shutting down also ends the listening of copies that forked children may hold.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    # For peers

    def line_up(self, peer: Peer, action: Callable[[Peer], None]) -> None:
        """Have a client wait for its turn."""
        self._line.append((peer, action))
        if len(self._line) == 1:
            self.loop.call_soon(self._next_in_line)

    def _next_in_line(self) -> None:
        began_s = time.monotonic()
        peer, action = self._line[0]
        peer.take_turn(action)
        self._line.popleft()
        if self._line:  # small requests have the server for as long as that took
            self.loop.call_later(time.monotonic() - began_s, self._next_in_line)

    def trust(self, peer: Peer) -> None:
        """Record that a client has authenticated."""
        peer.known = True
        del self._strangers[peer]

    def forget(self, peer: Peer) -> None:
        """Record that a connection has ended."""
        self._strangers.pop(peer, None)
        del self._peers[peer]
        self.service.drop(peer)

    def make_room(self) -> None:
        """Close the connections with the largest buffers until the rest fits, so that small
        requests always get through.
        """
        while self.buffered_bytes > self.limits.max_buffered_bytes:
            max(self._peers, key=lambda peer: peer.held_bytes).close()

    # The loop

    def _watch_listener(self) -> None:
        self.loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:
            # Out of descriptors or memory: strangers make room. Trying again at once would spin.
            self.loop.remove_reader(self._listener)
            self.loop.call_later(_SWEEP_S, self._watch_listener)
            for peer in list(self._strangers):
                peer.close()
            return
        self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        """Accept a connection; without room, in place of the oldest unauthenticated one."""
        full = len(self._peers) >= self._most_peers
        if not frames.is_ours(sock) or (full and not self._strangers):
            sock.close()
            return
        if full:
            next(iter(self._strangers)).close()
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(self, sock)
        self._peers[peer] = self._strangers[peer] = None
        peer.greet()

    def _sweep(self) -> None:
        """Close the connections that are too slow."""
        now_s = time.monotonic()
        for peer in [peer for peer in self._peers if peer.is_late(now_s, self.limits)]:
            peer.close()
        self.loop.call_later(
            min(_SWEEP_S, self.limits.handshake_s / 4, self.limits.request_s / 4), self._sweep
        )
