"""The control plane of a job: meetings, agreement, and failure detection.

All processes are clients of the server in :mod:`realcoll.meeting.host`, separate from the fabric
that carries data. There is one operation: each member of a meeting contributes a value and receives
the values of all. A broken connection means that its process has died, and all others are notified
at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from realcoll.meeting.meeting_messages import (
    DIED,
    LIMITS,
    MAX_WAIT_S,
    SERVICE,
    TOLD,
    Address,
    Alarm,
    Bye,
    Departed,
    Fail,
    Gone,
    Join,
    Meet,
    Met,
    format_address,
)
from realcoll.process_errors import FaultError
from simcoll.distributed.server.frames import (
    HEAD_BYTES,
    FrameChannel,
    MalformedError,
    Refusal,
    RefusedError,
    encode,
    introduce,
    is_ours,
)
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from realcoll.meeting.host import Host

__all__ = ["Control", "join", "within"]

Result = TypeVar("Result")
STUCK_GRACE_S = 1.0
PART_POLL_S = 0.01
CONNECT_PAUSE_S = 0.05
REPLY_GRACE_S = 5.0
MAX_REASON = 2000
# The values of all members come in one message.
MAX_TOLD_BYTES = 1 << 30


def _leave_to_parent(seat: weakref.ref[Control]) -> None:
    control = seat()
    if control is not None:
        control.leave_to_parent()


class Control:
    """The control connection of this process. Made by :func:`join`, or for one process alone.

    Parameters
    ----------
    process, size
        Number of this process, and number of processes. Messages call processes ranks, which they
        are with one rank a process.
    timeout_s
        Time limit for the other processes.
    channel
        Connection to the server; ``None`` for one process alone.
    host
        The server, where it is in this process.

    Attributes
    ----------
    gone
        Why a process is gone, by process; empty after a normal end.
    left
        Processes that have finished.
    alarm
        Name of a meeting called by stuck processes, or empty.
    broken
        Why this process gave up, or empty.
    """

    def __init__(
        self,
        process: int,
        size: int,
        timeout_s: float,
        channel: FrameChannel | None = None,
        host: Host | None = None,
    ) -> None:
        self.process = process
        self.size = size
        self.timeout_s = timeout_s
        self.broken = ""
        self.gone: dict[int, str] = {}
        self.left: set[int] = set()
        self.alarm = ""
        self._turns: dict[str, int] = {}
        self._channel = channel
        self._host = host
        self._meetings: dict[str, Met] = {}
        self._news = threading.Condition()
        self._over = False
        self._on_loss: Callable[[], None] | None = None
        os.register_at_fork(after_in_child=functools.partial(_leave_to_parent, weakref.ref(self)))
        if channel is not None:
            self._thread = threading.Thread(
                target=self._receive_news, args=(channel,), name="rendezvous-client", daemon=True
            )
            self._thread.start()

    # Meetings

    def meet(
        self, name: str, value: bytes, timeout_s: float, members: Sequence[int] | None = None
    ) -> Met:
        """Exchange values with all members of a meeting (default: every process).

        A name may be used once. Returns early if a member is gone.
        """
        everybody = tuple(range(self.size) if members is None else members)
        if everybody == (self.process,):
            return Met(name, {self.process: value})
        without_server = Met(name, {self.process: value}, (0,), gone={0: DIED})
        try:
            self._tell(Meet(name, everybody, value, min(timeout_s, MAX_WAIT_S)))
        except OSError:
            return without_server
        limit = time.monotonic() + timeout_s + REPLY_GRACE_S
        with self._news:
            while name not in self._meetings:
                remaining_s = limit - time.monotonic()
                if remaining_s <= 0 or self.gone.get(0):
                    return without_server
                self._news.wait(remaining_s)
            return self._meetings.pop(name)

    def gather(
        self, subject: str, value: bytes = b"", members: Sequence[int] | None = None
    ) -> dict[int, bytes]:
        """The values of all members, by process.

        Raises
        ------
        FaultError
            With the processes that did not arrive.
        """
        everybody = tuple(range(self.size) if members is None else members)
        if everybody != (self.process,):
            self.check_usable()
        key = f"{subject} {everybody}"
        turn = self._turns[key] = self._turns.get(key, 0) + 1
        meeting = self.meet(f"{key} {turn}", value, self.timeout_s, everybody)
        if meeting.late and DIED in meeting.gone.values():
            # The others gave up because of the death, and not because this process is slow.
            raise self._blame(subject, _culprits(meeting.gone))
        if meeting.late:
            raise FaultError(
                f"{subject}: this rank arrived after the others had given up waiting",
                (self.process,),
            )
        if meeting.missing:
            raise self._blame(subject, meeting.missing)
        return meeting.values

    def agree(self, offer: Mapping[str, str], members: Sequence[int]) -> None:
        """Wait until all members have made the same offer.

        Raises
        ------
        FaultError
            With the processes and the property that differ, or the processes that did not arrive.
        """
        offers = self.gather("start", msgspec.json.encode(offer), members)
        decoded = {
            process: msgspec.json.decode(value, type=dict[str, str])
            for process, value in offers.items()
        }
        for subject in offer:
            groups: dict[str, list[int]] = {}
            for process in sorted(decoded):
                groups.setdefault(decoded[process].get(subject, "nothing"), []).append(process)
            if len(groups) > 1:
                # The most common offer, or that of the lowest rank, is taken to be the right one.
                (common, _), *odd = sorted(
                    groups.items(), key=lambda entry: (-len(entry[1]), entry[1][0])
                )
                dissent = "; ".join(f"{_list_ranks(who)}: {_short(value)}" for value, who in odd)
                message = (
                    f"ranks disagree on the {subject}: {_list_ranks(groups[common])}: "
                    f"{_short(common)}; {dissent}"
                )
                raise FaultError(message, [process for _, who in odd for process in who])

    # Failures

    def trouble(self) -> bool:
        """Whether a process has died or is stuck; cheap enough to poll."""
        return bool(self.alarm) or any(self.gone.values())

    def stuck(self, waiting_for: Iterable[int]) -> FaultError:
        """Find the processes that block this one: those that do not report waiting themselves."""
        waited = sorted(set(waiting_for))
        if self._channel is None:
            return FaultError(f"nothing came from {_list_ranks(waited)}", waited)
        if any(self.gone.values()):
            return self._blame("in flight", _culprits(self.gone))
        meeting = self.meet(
            self.alarm or "stuck", msgspec.json.encode(waited), min(STUCK_GRACE_S, self.timeout_s)
        )
        if meeting.gone:
            return self._blame("in flight", _culprits(meeting.gone))
        suspects = set(waited)
        for value in meeting.values.values():
            suspects.update(msgspec.json.decode(value, type=list[int]))
        idle = (
            sorted(suspects & set(meeting.missing))
            or sorted(set(meeting.missing) - {self.process})
            or waited
        )
        return FaultError(
            f"{_list_ranks(idle)} did not take part within {self.timeout_s:g} s", idle
        )

    def _blame(self, subject: str, processes: Sequence[int]) -> FaultError:
        dead = sorted(process for process in processes if process in self.gone)
        if dead and all(self.gone[process] not in ("", DIED) for process in dead):
            # Those that gave up did so because of another, if one has died.
            dead = [process for process in sorted(self.gone) if self.gone[process] == DIED] or dead
        # A death ends a meeting early: processes that had not come yet are not to blame.
        absent = [] if dead else sorted(processes)
        parts = [f"rank {process} {self.gone[process] or 'has ended'}" for process in dead]
        if absent:
            parts.append(f"{_list_ranks(absent)} did not come within {self.timeout_s:g} s")
        return FaultError(f"{subject}: {'; '.join(parts)}", [*dead, *absent])

    def watch(self, on_loss: Callable[[], None]) -> None:
        """Call a function once, from another thread, when some process dies or gives up."""
        self._on_loss = on_loss
        if any(self.gone.values()):
            self._report_loss()

    def loss(self) -> str:
        """The processes that have died or given up, and why; empty if none has."""
        return "; ".join(f"rank {process} {self.gone[process]}" for process in _culprits(self.gone))

    def check_usable(self) -> None:
        """Refuse to continue after a failure."""
        if self.broken:
            raise FaultError(
                f"this transport is of no use after an earlier failure ({self.broken}); make a new "
                "one"
            )

    # The end

    def fail(self, reason: str) -> None:
        """Announce that this process gives up, with the reason; it stays connected."""
        if not self.broken:
            self.broken = reason or "closed"
            self._say(Fail(f"gave up: {reason}"[:MAX_REASON].encode(errors="replace").decode()))

    def part(self, patience_s: float) -> None:
        """Announce that this process has reported a failure, and give the others time to report
        theirs.
        """
        self._say(Bye())
        limit = time.monotonic() + patience_s
        while len(self.left - {self.process}) < self.size - 1 and time.monotonic() < limit:
            time.sleep(PART_POLL_S)

    def close(self) -> None:
        """Leave and release everything, in order unless something has failed; the host stays until
        all have left.
        """
        self.broken = self.broken or "closed"
        if self._channel is None:
            return
        self._say(Bye())
        with contextlib.suppress(OSError):
            self._channel.sock.shutdown(socket.SHUT_WR)
        self._thread.join(REPLY_GRACE_S)
        self._channel.sock.close()
        if self._host is not None:
            self._host.close()

    # The connection

    def leave_to_parent(self) -> None:
        """Be of no use: this process is a child of the one whose seat it is, and must not speak for
        it.
        """
        self.broken, self._channel, self._host = (
            "it belongs to the process that forked this one",
            None,
            None,
        )

    def _say(self, last: msgspec.Struct) -> None:
        self._over = True
        with contextlib.suppress(OSError):
            self._tell(last)

    def _tell(self, message: msgspec.Struct) -> None:
        frame = encode(message)
        if len(frame) - HEAD_BYTES > LIMITS.max_message_bytes:
            raise ConfigError(
                f"a message of {len(frame)} bytes is too long for the rendezvous (limit "
                f"{LIMITS.max_message_bytes})"
            )
        if self._channel is not None:
            self._channel.sock.sendall(frame)

    def _report_loss(self) -> None:
        action, self._on_loss = self._on_loss, None
        if action is not None and not self._over:
            action()

    def _receive_news(self, channel: FrameChannel) -> None:
        with contextlib.suppress(OSError, MalformedError):
            while True:
                self._notice(channel.receive(TOLD, MAX_TOLD_BYTES))
        with self._news:
            if not self._over:
                self.gone.setdefault(0, DIED)
            self._news.notify_all()
        if self.gone.get(0):
            self._report_loss()

    def _notice(self, notice: Gone | Departed | Alarm | Met | Refusal) -> None:
        with self._news:
            if isinstance(notice, Gone):
                self.gone[notice.process] = notice.reason
            elif isinstance(notice, Departed):
                self.left.add(notice.process)
            elif isinstance(notice, Alarm):
                self.alarm = notice.name
            elif isinstance(notice, Met):
                self._meetings[notice.name] = notice
            else:
                self.gone.setdefault(0, f"refused: {notice.why}")
            self._news.notify_all()
        if isinstance(notice, Gone) and notice.reason:
            self._report_loss()


def _list_ranks(processes: Iterable[int]) -> str:
    ranks = sorted(processes)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _culprits(gone: Mapping[int, str]) -> list[int]:
    """The processes that died; if none did, the first that gave up."""
    died = [process for process, reason in gone.items() if reason == DIED]
    return died or [process for process, reason in gone.items() if reason][:1]


def _short(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}..."


def within(timeout_s: float, call: Callable[[], Result]) -> Result:
    """Run a call that may block forever in a thread, with a time limit.

    Raises
    ------
    TimeoutError
        After ``timeout_s`` seconds (0: no limit).
    """
    outcome: list[Result | BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - raised below
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s or None)
    if not outcome:
        raise TimeoutError
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def join(
    address: Address,
    process: int,
    size: int,
    *,
    token: str = "",
    timeout_s: float = 60.0,
    host: Host | None = None,
) -> Control:
    """Connect to the server, and wait until it is up.

    Raises
    ------
    FaultError
        When there is no server within the timeout, or it refuses.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            sock = _connect(address, max(0.1, until_s - time.monotonic()))
            break
        except OSError as error:
            if time.monotonic() >= until_s:
                why = (
                    f"rank 0 does not answer at {format_address(address)} within {timeout_s:g} "
                    f"s: {error.strerror or error}"
                )
                raise FaultError(why, (0,)) from None
            time.sleep(CONNECT_PAUSE_S)
    channel = FrameChannel(sock)
    try:
        introduce(channel, SERVICE, token.encode(), max(0.1, until_s - time.monotonic()))
        sock.settimeout(None)
        sock.sendall(encode(Join(process)))
    except OSError as error:
        sock.close()
        prefix = "" if isinstance(error, RefusedError) else "the connection broke: "
        raise FaultError(f"rank 0 at {format_address(address)}: {prefix}{error}", (0,)) from None
    return Control(process, size, timeout_s, channel, host)


def _connect(address: Address, timeout_s: float) -> socket.socket:
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
