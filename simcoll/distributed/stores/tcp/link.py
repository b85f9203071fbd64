"""A client's connection to the server of a TCPStore."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcoll.distributed.stores import wire
from simcoll.distributed.stores.errors import DistNetworkError, DistStoreError
from simcoll.distributed.stores.waiting import PollingWaiter

if TYPE_CHECKING:
    from simcoll.distributed.stores.waiting import Waiter

__all__ = ["Link", "connect"]

# A client whose master comes later knocks again after pauses that grow to this.
_KNOCK_S = 0.5
# Room for the greeting and the answer to the hello; a stranger's first bytes could announce gigabytes.
_HELLO_BYTES = 512


@dataclass(slots=True, weakref_slot=True)
class Link:
    """A connection: one question and its answer at a time. ``max_message_bytes`` is what the server said it takes."""

    sock: socket.socket
    lock: threading.Lock
    pid: int
    where: str
    max_message_bytes: int = _HELLO_BYTES

    def ask(self, message: wire.Message, patience_s: float) -> wire.Message:
        """Send a message and receive its reply; a connection on which that went wrong is closed for good."""
        if self.pid != os.getpid():
            raise DistNetworkError(
                f"the connection to {self.where} belongs to the process that forked this one; use clone()"
            )
        if self.sock.fileno() < 0:
            raise DistNetworkError(f"the connection to {self.where} is closed")
        frame = wire.encode(message)
        if len(frame) - 4 > self.max_message_bytes:
            raise DistStoreError(
                f"a request of {len(frame) - 4} bytes; the server at {self.where} takes {self.max_message_bytes}"
            )
        if message.items > wire.MAX_ITEMS:
            raise DistStoreError(f"a request has at most {wire.MAX_ITEMS} keys and values, got {message.items}")
        with self.lock:
            try:
                self.sock.settimeout(min(patience_s, threading.TIMEOUT_MAX / 2))
                self.sock.sendall(frame)
                reply = self.receive()
            except (OSError, wire.MalformedError) as error:
                self.sock.close()
                raise DistNetworkError(f"the connection to the store at {self.where} broke: {error}") from error
            except BaseException:
                # The reply to this question would be taken for that to the next.
                self.sock.close()
                raise
        if reply.code == wire.Status.REFUSED:
            self.sock.close()
        return reply

    def receive(self) -> wire.Message:
        """The next message."""
        length = wire.frame_length(self._exactly(4)) or 0
        if length > self.max_message_bytes:
            raise wire.MalformedError(f"an answer of {length} bytes, more than the {self.max_message_bytes} agreed on")
        return wire.decode(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.sock.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the other side")
            parts += part
        return bytes(parts)


def connect(host: str, port: int, patience_s: float, secret: bytes, waiter: Waiter | None) -> Link:
    """Knock until a server opens, then introduce ourselves.

    Raises
    ------
    DistNetworkError
        Nobody opened within ``patience_s``, or somebody else did, or the secrets differ.
    """
    deadline_s = time.monotonic() + patience_s
    sock = _knock(host, port, patience_s, waiter or PollingWaiter(_KNOCK_S))
    link = Link(sock, threading.Lock(), os.getpid(), f"{host}:{port}")
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _introduce(link, secret, max(deadline_s - time.monotonic(), 1.0))
    except BaseException:
        sock.close()
        raise
    return link


def _knock(host: str, port: int, patience_s: float, waiter: Waiter) -> socket.socket:
    deadline_s = time.monotonic() + patience_s
    opened: socket.socket | None = None
    last: Exception | None = None

    def ready() -> bool:
        nonlocal opened, last
        try:
            sock = socket.create_connection((host, port), max(deadline_s - time.monotonic(), 0.001))
        except (OSError, UnicodeError) as error:
            last = error
            return False
        if sock.getsockname() == sock.getpeername():
            # Knocking at a free port of this machine can, once in many times, end in a connection to oneself.
            sock.close()
            return False
        opened = sock
        return True

    waiter.wait(ready, patience_s)
    if opened is None:
        raise DistNetworkError(
            f"The client socket has timed out after {round(patience_s * 1000)}ms while trying to connect to "
            f"({host}, {port}). The last attempt ended with: {last}"
        ) from last
    return opened


def _introduce(link: Link, secret: bytes, patience_s: float) -> None:
    link.sock.settimeout(patience_s)
    try:
        greeting = link.receive()
    except (OSError, wire.MalformedError) as error:
        raise DistNetworkError(f"what answers at {link.where} is not the server of a TCPStore: {error}") from error
    if greeting.code != wire.GREETING or len(greeting.values) != 2 or greeting.values[0] != wire.MAGIC:
        raise DistNetworkError(f"what answers at {link.where} is not the server of a TCPStore of this version")
    nonce, mine = greeting.values[1], secrets.token_bytes(32)
    hello = wire.Message(wire.HELLO, values=(wire.MAGIC, mine, wire.proof(secret, b"client", nonce, mine)))
    answer = link.ask(hello, patience_s)
    theirs = answer.values[0] if answer.values else b""
    if answer.code != wire.Status.OK:
        raise DistNetworkError(f"the store at {link.where} refused: {theirs.decode(errors='replace')}")
    if not secrets.compare_digest(theirs, wire.proof(secret, b"server", nonce, mine)):
        raise DistNetworkError(f"the store at {link.where} does not know the shared secret")
    link.max_message_bytes = answer.number
