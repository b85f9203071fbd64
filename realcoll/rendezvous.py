"""Where processes meet, beside the fabric that carries data: one small TCP server, one client in every process.

There is one operation: every member of a meeting brings a value and gets everybody's. A process whose connection breaks has died, and
all others are told at once. Nothing is ever unpickled; frames, names and numbers of connections are limited.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from realcoll.errors import FaultError
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["DIED", "Host", "Meeting", "Rendezvous", "join"]

MAX_FRAME = 2**20
CONNECT_PAUSE_S = 0.05
REPLY_GRACE_S = 5.0
CLOSE_S = 5.0
DIED = "died"

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Meeting:
    """What came of a meeting.

    Attributes
    ----------
    values
        What each member brought, by process; incomplete when ``missing`` is not empty.
    missing
        Members that did not come in time.
    late
        The others had given up when this process came.
    gone
        Why processes had died or given up by then.
    """

    values: dict[int, bytes]
    missing: tuple[int, ...] = ()
    late: bool = False
    gone: Mapping[int, str] = field(default_factory=dict)


def _frame(content: list[Any]) -> bytes:
    payload = msgspec.msgpack.encode(content)
    if len(payload) > MAX_FRAME:
        raise ConfigError(f"a message of {len(payload)} bytes is too long for the rendezvous (limit {MAX_FRAME})")
    return _LENGTH.pack(len(payload)) + payload


def _frames(buffer: bytearray) -> list[list[Any]]:
    """Take the whole frames off the front of what has arrived."""
    found = []
    while len(buffer) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer)
        if length > MAX_FRAME:
            raise ValueError("frame too long")
        if len(buffer) < _LENGTH.size + length:
            break
        found.append(msgspec.msgpack.decode(bytes(buffer[_LENGTH.size : _LENGTH.size + length]), type=list))
        del buffer[: _LENGTH.size + length]
    return found


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


class Host:
    """The server: a thread of process 0.

    Parameters
    ----------
    size
        Number of processes.
    address
        Where to listen; port 0 picks a free one. Loopback by default.
    token
        What clients must know.
    """

    def __init__(self, size: int, address: tuple[str, int] = ("127.0.0.1", 0), token: str = "") -> None:
        self._size = size
        self._token = token
        self._tables: dict[str, _Table] = {}
        self._given_up: dict[str, tuple[int, ...]] = {}
        self._peers: dict[int, _Peer] = {}
        self._gone: dict[int, str] = {}
        self._open = 0
        try:
            self._listener = socket.create_server(address, backlog=min(size + 8, 4096))
        except OSError as error:
            raise ConfigError(f"cannot listen on {address[0]}:{address[1]}: {error.strerror or error}") from None
        self.port: int = self._listener.getsockname()[1]
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
            if self._open >= self._size + 64:
                connection.close()
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(REPLY_GRACE_S)
            self._open += 1
            self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(2**16)
            peer.arrived += data
            frames = _frames(peer.arrived) if data else []
            for frame in frames:
                self._handle(peer, frame)
            if not data:
                self._drop(peer, DIED)
        except (OSError, ValueError, TypeError, msgspec.DecodeError):  # not one of ours, or broken
            self._drop(peer, DIED)

    def _handle(self, peer: _Peer, frame: list[Any]) -> None:
        kind, *rest = frame
        if peer.process < 0:
            token, process = rest
            good = kind == "hello" and hmac.compare_digest(str(token), self._token)
            if not good or not 0 <= int(process) < self._size or process in self._peers:
                raise ValueError("not welcome")
            peer.process = process
            self._peers[process] = peer
            for other, reason in self._gone.items():
                self._tell(process, ["gone", other, reason])
        elif kind == "meet":
            self._meet(peer.process, *rest)
        elif kind == "bye":
            self._drop(peer, str(rest[0]))
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
        for process in table.values:
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
        self._gone[peer.process] = reason
        for other in list(self._peers):
            self._tell(other, ["gone", peer.process, reason])
        for name, table in list(self._tables.items()):
            if peer.process in table.members:
                self._give_up(name, table)

    def _tell(self, process: int, content: list[Any]) -> None:
        peer = self._peers.get(process)
        if peer is not None:
            with contextlib.suppress(OSError):  # it is dying: its end of the connection will say so
                peer.socket.sendall(_frame(content))


class Rendezvous:
    """One process's seat at the server. Made by :func:`join`.

    Attributes
    ----------
    process, size
        Number of this process, and of processes.
    gone
        Why each process that has left did so: empty for a normal end.
    alarm
        Name of a meeting of processes that are stuck and want to know who is not, or empty.
    """

    def __init__(self, connection: socket.socket, process: int, size: int, host: Host | None) -> None:
        self.process = process
        self.size = size
        self.gone: dict[int, str] = {}
        self.alarm = ""
        self._socket = connection
        self._host = host
        self._meetings: dict[str, Meeting] = {}
        self._news = threading.Condition()
        self._left = False
        self._on_loss: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._listen, name="rendezvous-client", daemon=True)
        self._thread.start()

    def meet(self, name: str, value: bytes, timeout_s: float, members: tuple[int, ...] | None = None) -> Meeting:
        """Bring a value and get those of all members (default: every process).

        A name may be used once. Ends early when a member is gone.
        """
        everybody = tuple(range(self.size)) if members is None else members
        if everybody == (self.process,):
            return Meeting({self.process: value})
        try:
            self._socket.sendall(_frame(["meet", name, list(everybody), value, timeout_s]))
        except OSError:
            return Meeting({self.process: value}, (0,), gone={0: DIED})
        limit = time.monotonic() + timeout_s + REPLY_GRACE_S
        with self._news:
            while name not in self._meetings:
                left = limit - time.monotonic()
                if left <= 0 or self.gone.get(0):
                    return Meeting({self.process: value}, (0,), gone={0: DIED})
                self._news.wait(left)
            return self._meetings.pop(name)

    def watch(self, on_loss: Callable[[], None]) -> None:
        """Have a function called once, in another thread, when some process dies or gives up."""
        self._on_loss = on_loss
        if any(self.gone.values()):
            self._lost()

    def _lost(self) -> None:
        action, self._on_loss = self._on_loss, None
        if action is not None and not self._left:
            action()

    def leave(self, reason: str = "") -> None:
        """Say goodbye. The reason, if there is one, is told to the others."""
        if not self._left:
            self._left = True
            with contextlib.suppress(OSError):
                self._socket.sendall(_frame(["bye", reason[:2000]]))

    def close(self) -> None:
        """Leave and give everything back; the host stays until all have left, a few seconds at most."""
        self.leave()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._thread.join(REPLY_GRACE_S)
        self._socket.close()
        if self._host is not None:
            self._host.close()

    def _listen(self) -> None:
        arrived = bytearray()
        with contextlib.suppress(OSError, ValueError):
            while data := self._socket.recv(2**16):
                arrived += data
                for frame in _frames(arrived):
                    self._notice(frame)
        with self._news:
            if not self._left:
                self.gone.setdefault(0, DIED)
            self._news.notify_all()
        if self.gone.get(0):
            self._lost()

    def _notice(self, frame: list[Any]) -> None:
        with self._news:
            kind, *rest = frame
            if kind == "gone":
                self.gone[rest[0]] = rest[1]
            elif kind == "alarm":
                self.alarm = rest[0]
            elif kind == "meeting":
                name, values, missing, late, gone = rest
                self._meetings[name] = Meeting(values, tuple(missing), late, gone)
            self._news.notify_all()
        if kind == "gone" and rest[1]:
            self._lost()


def join(
    address: tuple[str, int],
    process: int,
    size: int,
    *,
    token: str = "",
    timeout_s: float = 60.0,
    host: Host | None = None,
) -> Rendezvous:
    """Connect to the server, waiting until it is there.

    Raises
    ------
    FaultError
        When there is none within the timeout.
    """
    limit = time.monotonic() + timeout_s
    while True:
        try:
            connection = socket.create_connection(address, timeout=max(0.1, limit - time.monotonic()))
            break
        except OSError as error:
            if time.monotonic() >= limit:
                where = f"{address[0]}:{address[1]}"
                raise FaultError(
                    f"rank 0 does not answer at {where} within {timeout_s:g} s: {error.strerror or error}", (0,)
                ) from None
            time.sleep(CONNECT_PAUSE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(None)
    connection.sendall(_frame(["hello", token, process]))
    return Rendezvous(connection, process, size, host)
