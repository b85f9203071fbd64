"""Where processes meet, beside the fabric that carries data: one small server (:mod:`realcoll.meeting.host`), one client in every process.

There is one operation: every member of a meeting brings a value and gets everybody's. A process whose connection breaks has died, and
all others are told at once. Nothing is ever unpickled; frames, names and numbers of connections are limited.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from realcoll.errors import FaultError
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from realcoll.meeting.host import Host

__all__ = ["DIED", "REPLY_GRACE_S", "Address", "Meeting", "Rendezvous", "frame", "frames", "join", "shown", "welcome"]

MAX_FRAME = 2**20
CONNECT_PAUSE_S = 0.05
REPLY_GRACE_S = 5.0
DIED = "died"

Address: TypeAlias = tuple[str, int] | str
"""Host and port, or the name of a socket of this machine (Linux's abstract names, which leave no file)."""

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


def frame(content: list[Any]) -> bytes:
    """A message as it is sent."""
    payload = msgspec.msgpack.encode(content)
    if len(payload) > MAX_FRAME:
        raise ConfigError(f"a message of {len(payload)} bytes is too long for the rendezvous (limit {MAX_FRAME})")
    return _LENGTH.pack(len(payload)) + payload


def frames(buffer: bytearray) -> list[list[Any]]:
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


class Rendezvous:
    """One process's seat at the server. Made by :func:`join`.

    Attributes
    ----------
    process, size
        Number of this process, and of processes.
    gone
        Why each process that is not to be counted on is not: empty for a normal end.
    left
        Processes that have nothing more to say.
    alarm
        Name of a meeting of processes that are stuck and want to know who is not, or empty.
    """

    def __init__(self, connection: socket.socket, process: int, size: int, host: Host | None) -> None:
        self.process = process
        self.size = size
        self.gone: dict[int, str] = {}
        self.left: set[int] = set()
        self.alarm = ""
        self._socket = connection
        self._host = host
        self._meetings: dict[str, Meeting] = {}
        self._news = threading.Condition()
        self._over = False
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
            self._socket.sendall(frame(["meet", name, list(everybody), value, timeout_s]))
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
        if action is not None and not self._over:
            action()

    def fail(self, reason: str) -> None:
        """Tell the others that this process gives up, and why; it stays connected."""
        self._say(["fail", reason[:2000]])

    def leave(self) -> None:
        """Say goodbye; what the others say still arrives."""
        self._say(["bye"])

    def _say(self, last: list[Any]) -> None:
        self._over = True
        with contextlib.suppress(OSError):
            self._socket.sendall(frame(last))

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
                for frame in frames(arrived):
                    self._notice(frame)
        with self._news:
            if not self._over:
                self.gone.setdefault(0, DIED)
            self._news.notify_all()
        if self.gone.get(0):
            self._lost()

    def _notice(self, frame: list[Any]) -> None:
        with self._news:
            kind, *rest = frame
            if kind == "gone":
                self.gone[rest[0]] = rest[1]
            elif kind == "left":
                self.left.add(rest[0])
            elif kind == "alarm":
                self.alarm = rest[0]
            elif kind == "meeting":
                name, values, missing, late, gone = rest
                self._meetings[name] = Meeting(values, tuple(missing), late, gone)
            self._news.notify_all()
        if kind == "gone" and rest[1]:
            self._lost()


def join(
    address: Address,
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
            connection = _connected(address, max(0.1, limit - time.monotonic()))
            break
        except OSError as error:
            if time.monotonic() >= limit:
                why = f"rank 0 does not answer at {shown(address)} within {timeout_s:g} s: {error.strerror or error}"
                raise FaultError(why, (0,)) from None
            time.sleep(CONNECT_PAUSE_S)
    connection.settimeout(None)
    connection.sendall(frame(["hello", token, process]))
    return Rendezvous(connection, process, size, host)


def _connected(address: Address, timeout_s: float) -> socket.socket:
    if isinstance(address, tuple):
        connection = socket.create_connection(address, timeout=timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_s)
        connection.connect(address)
        if not welcome(connection):
            raise ConnectionRefusedError("it belongs to another user")
    except OSError:
        connection.close()
        raise
    return connection


def welcome(connection: socket.socket) -> bool:
    """Whether the other end may be one of us: one on this machine tells its user, others show the token."""
    if connection.family != socket.AF_UNIX:
        return True
    fields = struct.Struct("3i")  # process, user, group
    _, user, _ = fields.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, fields.size))
    return bool(user == os.getuid())


def shown(address: Address) -> str:
    """An address as a person reads it."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else repr(address.replace("\0", "@"))
