"""A client's connection to the server of a TCPStore."""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcoll.distributed.server.frames import (
    HEAD_BYTES,
    Channel,
    MalformedError,
    Refusal,
    RefusedError,
    decode,
    encode,
    introduce,
)
from simcoll.distributed.stores.errors import DistNetworkError, DistStoreError
from simcoll.distributed.stores.waiting import PollingWaiter
from simcoll.distributed.stores.wire import ANSWERS, MAX_ITEMS, SERVICE

if TYPE_CHECKING:
    from simcoll.distributed.stores.waiting import Waiter
    from simcoll.distributed.stores.wire import Reply, Request

__all__ = ["Link", "connect"]

# A client whose master comes later knocks again after pauses that grow to this.
_KNOCK_S = 0.5


@dataclass(slots=True, weakref_slot=True)
class Link:
    """A connection: one question and its answer at a time. The server takes messages of ``max_message_bytes``."""

    channel: Channel
    lock: threading.Lock
    pid: int
    where: str
    max_message_bytes: int

    def ask(self, request: Request, patience_s: float) -> Reply:
        """Send a request and receive its reply; a connection on which that failed is closed for good."""
        sock = self.channel.sock
        if self.pid != os.getpid():
            raise DistNetworkError(
                f"the connection to {self.where} belongs to the process that forked this one; use clone()"
            )
        if sock.fileno() < 0:
            raise DistNetworkError(f"the connection to {self.where} is closed")
        if max(len(request.keys), len(request.values)) > MAX_ITEMS:
            raise DistStoreError(f"a request has at most {MAX_ITEMS} keys and as many values")
        frame = encode(request)
        if len(frame) - HEAD_BYTES > self.max_message_bytes:
            raise DistStoreError(
                f"a request of {len(frame) - HEAD_BYTES} bytes; the server at {self.where} takes {self.max_message_bytes}"
            )
        with self.lock:
            try:
                patience_s = min(patience_s, threading.TIMEOUT_MAX / 2)
                until_s = time.monotonic() + patience_s
                sock.settimeout(patience_s)
                sock.sendall(frame)
                reply = decode(self.channel.receive(self.max_message_bytes, until_s), ANSWERS)
            except BaseException as error:
                # The reply to this question would be taken for that to the next.
                sock.close()
                if isinstance(error, (OSError, MalformedError)):
                    raise DistNetworkError(f"the connection to the store at {self.where} broke: {error}") from error
                raise
        if isinstance(reply, Refusal):
            sock.close()
            raise DistNetworkError(f"the store's server refused: {reply.why}")
        return reply


def connect(host: str, port: int, patience_s: float, secret: bytes, waiter: Waiter | None) -> Link:
    """Knock until a server opens, then introduce ourselves; a DistNetworkError unless that is done within ``patience_s``."""
    deadline_s = time.monotonic() + patience_s
    sock = _knock(host, port, patience_s, waiter or PollingWaiter(_KNOCK_S))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        channel = Channel(sock)
        most_bytes = introduce(channel, SERVICE, secret, max(deadline_s - time.monotonic(), 1.0))
    except BaseException as error:
        sock.close()
        if isinstance(error, RefusedError):
            raise DistNetworkError(f"cannot use the store at {host}:{port}: {error}") from error
        raise
    return Link(channel, threading.Lock(), os.getpid(), f"{host}:{port}", most_bytes)


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
