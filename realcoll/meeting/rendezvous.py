"""The rendezvous, apart from the fabric that carries data: all processes are clients of the server in :mod:`realcoll.meeting.host`.

There is one operation: every member of a meeting brings a value and gets the values of all. A process whose connection breaks has died,
and all others are told at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

from realcoll.errors import FaultError
from realcoll.meeting.messages import (
    DIED,
    LIMITS,
    MAX_WAIT_S,
    SERVICE,
    TOLD,
    Address,
    Alarm,
    Bye,
    Fail,
    Gone,
    Join,
    Left,
    Meet,
    Met,
    shown,
)
from simcoll.distributed.server.frames import (
    HEAD_BYTES,
    Channel,
    MalformedError,
    Refusal,
    RefusedError,
    decode,
    encode,
    introduce,
    is_ours,
)
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from realcoll.meeting.host import Host

__all__ = ["REPLY_GRACE_S", "Rendezvous", "join"]

CONNECT_PAUSE_S = 0.05
REPLY_GRACE_S = 5.0
MAX_REASON = 2000
# The values of all members come in one message.
MAX_TOLD_BYTES = 1 << 30


class Rendezvous:
    """A process's seat at the server. Made by :func:`join`.

    Attributes
    ----------
    process, size
        Number of this process, and of processes.
    gone
        Reason why a process is gone, by process; empty for a normal end.
    left
        Processes that have nothing more to say.
    alarm
        Name of a meeting called by stuck processes, or empty.
    """

    def __init__(self, channel: Channel, process: int, size: int, host: Host | None) -> None:
        self.process = process
        self.size = size
        self.gone: dict[int, str] = {}
        self.left: set[int] = set()
        self.alarm = ""
        self._channel = channel
        self._host = host
        self._meetings: dict[str, Met] = {}
        self._news = threading.Condition()
        self._over = False
        self._on_loss: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._listen, name="rendezvous-client", daemon=True)
        self._thread.start()

    def meet(self, name: str, value: bytes, timeout_s: float, members: tuple[int, ...] | None = None) -> Met:
        """Bring a value and get those of all members (default: every process).

        A name may be used once. Ends early when a member is gone.
        """
        everybody = tuple(range(self.size)) if members is None else members
        if everybody == (self.process,):
            return Met(name, {self.process: value})
        try:
            self._tell(Meet(name, everybody, value, min(timeout_s, MAX_WAIT_S)))
        except OSError:
            return Met(name, {self.process: value}, (0,), gone={0: DIED})
        limit = time.monotonic() + timeout_s + REPLY_GRACE_S
        with self._news:
            while name not in self._meetings:
                left = limit - time.monotonic()
                if left <= 0 or self.gone.get(0):
                    return Met(name, {self.process: value}, (0,), gone={0: DIED})
                self._news.wait(left)
            return self._meetings.pop(name)

    def watch(self, on_loss: Callable[[], None]) -> None:
        """Call a function once, from another thread, when some process dies or gives up."""
        self._on_loss = on_loss
        if any(self.gone.values()):
            self._lost()

    def _lost(self) -> None:
        action, self._on_loss = self._on_loss, None
        if action is not None and not self._over:
            action()

    def fail(self, reason: str) -> None:
        """Announce that this process gives up, and why; it stays connected."""
        self._say(Fail(reason[:MAX_REASON].encode(errors="replace").decode() or "no reason"))

    def leave(self) -> None:
        """Say goodbye; news of the others still arrives."""
        self._say(Bye())

    def _say(self, last: msgspec.Struct) -> None:
        self._over = True
        with contextlib.suppress(OSError):
            self._tell(last)

    def _tell(self, message: msgspec.Struct) -> None:
        frame = encode(message)
        if len(frame) - HEAD_BYTES > LIMITS.max_message_bytes:
            raise ConfigError(
                f"a message of {len(frame)} bytes is too long for the rendezvous (limit {LIMITS.max_message_bytes})"
            )
        self._channel.sock.sendall(frame)

    def close(self) -> None:
        """Leave and release everything; the host stays until all have left, a few seconds at most."""
        self.leave()
        with contextlib.suppress(OSError):
            self._channel.sock.shutdown(socket.SHUT_WR)
        self._thread.join(REPLY_GRACE_S)
        self._channel.sock.close()
        if self._host is not None:
            self._host.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, MalformedError):
            while True:
                self._notice(decode(self._channel.receive(MAX_TOLD_BYTES), TOLD))
        with self._news:
            if not self._over:
                self.gone.setdefault(0, DIED)
            self._news.notify_all()
        if self.gone.get(0):
            self._lost()

    def _notice(self, told: Gone | Left | Alarm | Met | Refusal) -> None:
        with self._news:
            if isinstance(told, Gone):
                self.gone[told.process] = told.reason
            elif isinstance(told, Left):
                self.left.add(told.process)
            elif isinstance(told, Alarm):
                self.alarm = told.name
            elif isinstance(told, Met):
                self._meetings[told.name] = told
            else:
                self.gone.setdefault(0, f"refused: {told.why}")
            self._news.notify_all()
        if isinstance(told, Gone) and told.reason:
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
        There is none within the timeout, or it refuses.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            sock = _connected(address, max(0.1, until_s - time.monotonic()))
            break
        except OSError as error:
            if time.monotonic() >= until_s:
                why = f"rank 0 does not answer at {shown(address)} within {timeout_s:g} s: {error.strerror or error}"
                raise FaultError(why, (0,)) from None
            time.sleep(CONNECT_PAUSE_S)
    channel = Channel(sock)
    try:
        introduce(channel, SERVICE, token.encode(), max(0.1, until_s - time.monotonic()))
        sock.settimeout(None)
        sock.sendall(encode(Join(process)))
    except OSError as error:
        sock.close()
        what = "" if isinstance(error, RefusedError) else "the connection broke: "
        raise FaultError(f"rank 0 at {shown(address)}: {what}{error}", (0,)) from None
    return Rendezvous(channel, process, size, host)


def _connected(address: Address, timeout_s: float) -> socket.socket:
    if isinstance(address, tuple):
        sock = socket.create_connection(address, timeout=timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout_s)
        sock.connect(address)
        if not is_ours(sock):
            raise ConnectionRefusedError("it belongs to another user")
    except OSError:
        sock.close()
        raise
    return sock
