"""The rendezvous server: a service of :mod:`simcoll.distributed.server`."""

from __future__ import annotations

import functools
import socket
import time
from asyncio import TimerHandle
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from realcoll.meeting.meeting_messages import (
    DIED,
    LIMITS,
    SAID,
    SERVICE,
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
from simcoll.distributed.server.frames import BACKLOG, Limits, MalformedError
from simcoll.distributed.server.secret import check_reach
from simcoll.distributed.server.server import Peer, Server
from simcoll.errors import ConfigError

__all__ = ["Host"]

CLOSE_S = 5.0
MAX_HELD_BYTES = 1 << 26
"""Limit on a process's values in open meetings, and on remembered names."""
MEETING_BYTES = 512
"""Bookkeeping of a process in a meeting."""


@dataclass(slots=True)
class _MeetingTable:
    """An open meeting: its members, and for each that has arrived its value and timeout timer."""

    members: tuple[int, ...]
    values: dict[int, bytes] = field(default_factory=dict)
    timers: dict[int, TimerHandle] = field(default_factory=dict)
    held_bytes: dict[int, int] = field(default_factory=dict)


class _Meetings:
    """The rendezvous service: processes join, meet, and are notified of losses."""

    name = SERVICE
    decoder = SAID

    def __init__(self, size: int) -> None:
        self._size = size
        self._tables: dict[str, _MeetingTable] = {}
        self._given_up: dict[str, tuple[int, ...]] = {}
        self._seats: dict[int, Peer] = {}
        self._processes: dict[Peer, int] = {}
        self._gone: dict[int, str] = {}
        self._held_bytes: Counter[int] = Counter()

    def is_used(self) -> bool:
        """Whether processes are connected."""
        return bool(self._seats)

    def handle(self, peer: Peer, message: Join | Meet | Fail | Bye) -> None:
        """Handle a message of a process."""
        process = self._processes.get(peer)
        if isinstance(message, Join):
            self._join(peer, process, message.process)
        elif process is None:
            raise MalformedError("a process must take its seat first")
        elif isinstance(message, Meet):
            self._meet(process, message)
        elif isinstance(message, Fail):
            self._lose(process, message.reason)
        else:
            self._leave(process, "")

    def drop(self, peer: Peer) -> None:
        """Report a lost process to the others; a process that ends in order announces it first."""
        process = self._processes.pop(peer, None)
        if process is not None:
            del self._seats[process]
            self._leave(process, DIED)

    def _join(self, peer: Peer, seat: int | None, process: int) -> None:
        if seat is not None or process >= self._size or process in self._seats:
            raise MalformedError(f"the seat of process {process} of {self._size} is not free")
        self._seats[process], self._processes[peer] = peer, process
        for gone_process, reason in self._gone.items():
            self._tell(process, Gone(gone_process, reason))

    def _meet(self, process: int, request: Meet) -> None:
        if request.name in self._given_up:
            self._tell(
                process, Met(request.name, {}, self._given_up[request.name], True, self._losses())
            )
            return
        table = self._tables.get(request.name)
        if table is None:
            table = _MeetingTable(request.members)
        members = request.members if len(request.members) <= self._size else ()
        if process not in members or members != table.members or max(members) >= self._size:
            raise MalformedError(
                f"process {process} cannot join {request.name[:60]!r}, which is not for it"
            )
        if process in table.values:
            raise MalformedError(
                f"process {process} comes to {request.name[:60]!r} for the second time"
            )
        self._hold(process, request, table)
        if request.name not in self._tables:
            self._tables[request.name] = table
            if request.name.startswith("stuck"):
                for member in request.members:
                    self._tell(member, Alarm(request.name))
        table.values[process] = request.value
        late = functools.partial(self._expire, request.name, table)
        table.timers[process] = self._seats[process].later(request.timeout_s, late)
        if len(table.values) == len(table.members):
            self._end(request.name, table)
        elif any(member in self._gone for member in table.members):
            self._give_up(request.name, table)

    def _hold(self, process: int, request: Meet, table: _MeetingTable) -> None:
        """Account for the memory that the server holds for a process, up to a limit."""
        size_bytes = MEETING_BYTES + len(request.name.encode()) + len(request.value)
        if self._held_bytes[process] + size_bytes > MAX_HELD_BYTES:
            raise MalformedError(
                f"process {process} holds more than {MAX_HELD_BYTES} bytes in meetings"
            )
        self._held_bytes[process] += size_bytes
        table.held_bytes[process] = size_bytes

    def _end(self, name: str, table: _MeetingTable) -> None:
        missing = tuple(member for member in table.members if member not in table.values)
        self._tables.pop(name, None)
        for timer in table.timers.values():
            timer.cancel()
        self._held_bytes.subtract(table.held_bytes)
        # Our own process last: what it does next may hold the interpreter, and with it this thread,
        # until the others have come. Starting MPI does.
        for process in sorted(table.values, reverse=True):
            self._tell(process, Met(name, table.values, missing, False, self._losses()))

    def _expire(self, name: str, table: _MeetingTable, _: Peer) -> None:
        """End a meeting whose first waiting member has timed out."""
        if self._tables.get(name) is table:
            self._give_up(name, table)

    def _give_up(self, name: str, table: _MeetingTable) -> None:
        self._given_up[name] = tuple(
            member for member in table.members if member not in table.values
        )
        first_member = next(iter(table.held_bytes))
        self._end(name, table)
        self._held_bytes[first_member] += MEETING_BYTES + len(name.encode())

    def _losses(self) -> dict[int, str]:
        return {process: reason for process, reason in self._gone.items() if reason}

    def _leave(self, process: int, reason: str) -> None:
        self._lose(process, reason)
        for recipient in list(self._seats):
            self._tell(recipient, Departed(process))

    def _lose(self, process: int, reason: str) -> None:
        """Announce that a process is lost; the first reason is kept."""
        if process in self._gone:
            return
        self._gone[process] = reason
        for recipient in list(self._seats):
            self._tell(recipient, Gone(process, reason))
        for name, table in list(self._tables.items()):
            if process in table.members and name in self._tables:
                self._give_up(name, table)

    def _tell(self, process: int, message: msgspec.Struct) -> None:
        peer = self._seats.get(process)
        if peer is not None:
            peer.send(message)


def _listening(address: Address) -> socket.socket:
    if isinstance(address, tuple):
        return socket.create_server(address, backlog=BACKLOG)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class Host:
    """The server of a job: a thread of process 0.

    Parameters
    ----------
    size
        Number of processes.
    address
        Address to listen on: host and port (0 picks a free one; loopback by default), or the name
        of a local socket.
    token
        Secret of the job, which is never sent.
    limits
        Bounds on clients.

    Raises
    ------
    ConfigError
        The address is taken, belongs to another machine, or is open to others without a token.
    """

    def __init__(
        self,
        size: int,
        address: Address = ("127.0.0.1", 0),
        token: str = "",
        limits: Limits = LIMITS,
    ) -> None:
        self.token = token
        if isinstance(address, tuple):
            check_reach(address[0], token)
        try:
            listener = _listening(address)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {format_address(address)}: {error.strerror or error}"
            ) from None
        self.address: Address = listener.getsockname() if isinstance(address, tuple) else address
        self._meetings = _Meetings(size)
        self._server = Server(listener, self._meetings, limits, token.encode())
        self._server.start()

    def close(self) -> None:
        """Stop when all processes have left, or after a few seconds."""
        limit_s = time.monotonic() + CLOSE_S
        while self._meetings.is_used() and time.monotonic() < limit_s:
            time.sleep(0.01)
        self.stop()

    def stop(self) -> None:
        """Stop at once."""
        self._server.release()
