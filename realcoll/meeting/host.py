"""The server where processes meet: see :mod:`realcoll.meeting.rendezvous`."""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from realcoll.meeting.rendezvous import DIED, REPLY_GRACE_S, frame, frames, shown, welcome
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from realcoll.meeting.rendezvous import Address

__all__ = ["Host"]

CLOSE_S = 5.0


@dataclass(slots=True)
class _Table:
    """A meeting that is not over: who is expected, what was brought, when each who came gives up."""

    members: tuple[int, ...]
    values: dict[int, bytes] = field(default_factory=dict)
    deadlines: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Peer:
    """A connection, as the server sees it."""

    socket: socket.socket
    process: int = -1
    arrived: bytearray = field(default_factory=bytearray)


def _listening(address: Address, backlog: int) -> socket.socket:
    if isinstance(address, tuple):
        return socket.create_server(address, backlog=backlog)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


class Host:
    """The server: a thread of process 0.

    Parameters
    ----------
    size
        Number of processes.
    address
        Where to listen: host and port (0 picks a free one; loopback by default), or the name of a local socket.
    token
        What clients must know.
    """

    def __init__(self, size: int, address: Address = ("127.0.0.1", 0), token: str = "") -> None:
        self._size = size
        self.token = token
        self._tables: dict[str, _Table] = {}
        self._given_up: dict[str, tuple[int, ...]] = {}
        self._peers: dict[int, _Peer] = {}
        self._gone: dict[int, str] = {}
        self._open = 0
        try:
            self._listener = _listening(address, min(size + 8, 4096))
        except OSError as error:
            raise ConfigError(f"cannot listen on {shown(address)}: {error.strerror or error}") from None
        self.address: Address = self._listener.getsockname() if isinstance(address, tuple) else address
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_out, self._wake_in = socket.socketpair()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop once all have left, or after a few seconds."""
        limit = time.monotonic() + CLOSE_S
        while self._peers and time.monotonic() < limit:
            time.sleep(0.01)
        self._wake_in.close()
        self._thread.join(CLOSE_S)

    def _serve(self) -> None:
        running = True
        while running:
            for key, _ in self._selector.select(self._patience()):
                if key.fileobj is self._wake_out:
                    running = False
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.data)
            self._expire()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _patience(self) -> float | None:
        ends = [end for table in self._tables.values() for end in table.deadlines.values()]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if self._open >= self._size + 64 or not welcome(connection):
                connection.close()
                return
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(REPLY_GRACE_S)
            self._open += 1
            self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(2**16)
            peer.arrived += data
            for message in frames(peer.arrived) if data else ():
                self._handle(peer, message)
            if not data:
                self._drop(peer, DIED)
        except (OSError, ValueError, TypeError, msgspec.DecodeError):  # not one of ours, or broken
            self._drop(peer, DIED)

    def _handle(self, peer: _Peer, message: list[Any]) -> None:
        kind, *rest = message
        if peer.process < 0:
            token, process = rest
            good = kind == "hello" and hmac.compare_digest(str(token), self.token)
            if not good or not 0 <= int(process) < self._size or process in self._peers:
                raise ValueError("not welcome")
            peer.process = process
            self._peers[process] = peer
            for other, reason in self._gone.items():
                self._tell(process, ["gone", other, reason])
        elif kind == "meet":
            self._meet(peer.process, *rest)
        elif kind == "fail":
            self._lose(peer.process, str(rest[0]))
        elif kind == "bye":
            self._leave(peer.process, "")
        else:
            raise ValueError(kind)

    def _meet(self, process: int, name: str, members: list[int], value: bytes, timeout_s: float) -> None:
        if name in self._given_up:
            self._tell(process, ["meeting", name, {}, self._given_up[name], True, self._lost()])
            return
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = _Table(tuple(members))
            if name.startswith("stuck"):
                for member in members:
                    self._tell(member, ["alarm", name])
        table.values[process] = value
        table.deadlines[process] = time.monotonic() + timeout_s
        if len(table.values) == len(table.members):
            self._end(name, table)
        elif any(member in self._gone for member in table.members):
            self._give_up(name, table)

    def _end(self, name: str, table: _Table) -> None:
        missing = [member for member in table.members if member not in table.values]
        # Our own process last: what it does next may hold the interpreter, and with it this thread, until the others have come. Starting
        # MPI does.
        for process in sorted(table.values, reverse=True):
            self._tell(process, ["meeting", name, table.values, missing, False, self._lost()])
        del self._tables[name]

    def _give_up(self, name: str, table: _Table) -> None:
        self._given_up[name] = tuple(member for member in table.members if member not in table.values)
        self._end(name, table)

    def _lost(self) -> dict[int, str]:
        return {process: reason for process, reason in self._gone.items() if reason}

    def _expire(self) -> None:
        now = time.monotonic()
        for name, table in list(self._tables.items()):
            if any(end <= now for end in table.deadlines.values()):
                self._give_up(name, table)

    def _drop(self, peer: _Peer, reason: str) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.socket)
            self._open -= 1
        peer.socket.close()
        if self._peers.pop(peer.process, None) is None:
            return
        self._leave(peer.process, reason)

    def _leave(self, process: int, reason: str) -> None:
        self._lose(process, reason)
        for other in list(self._peers):
            self._tell(other, ["left", process])

    def _lose(self, process: int, reason: str) -> None:
        """Tell everybody that a process is not to be counted on any more; the first reason stays."""
        if process in self._gone:
            return
        self._gone[process] = reason
        for other in list(self._peers):
            self._tell(other, ["gone", process, reason])
        for name, table in list(self._tables.items()):
            if process in table.members:
                self._give_up(name, table)

    def _tell(self, process: int, content: list[Any]) -> None:
        peer = self._peers.get(process)
        if peer is not None:
            with contextlib.suppress(OSError):  # it is dying: its end of the connection will say so
                peer.socket.sendall(frame(content))
