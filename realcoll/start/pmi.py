"""The launcher's side of PMI-1, the protocol of MPICH and its relatives, on one machine.

Each process inherits a socket, whose descriptor is in ``PMI_FD``. A request is a line such as
``cmd=put kvsname=job key=a value=b``; the answer is a line too. Processes put values, meet at a
barrier, and get each other's values.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import selectors
import socket
import time
from dataclasses import dataclass, field

__all__ = ["Board", "job_name"]

MAX_LINE = 2**16
MAX_BOARD_BYTES = 2**26
"""Limit on the values of all processes; a process needs a few hundred bytes."""
KEY_BYTES, VALUE_BYTES, NAME_S = 64, 1024, 10.0
LIMITS = f"kvsname_max=256 keylen_max={KEY_BYTES} vallen_max={VALUE_BYTES}"


def job_name(launcher: socket.socket) -> str:
    """Ask the launcher for its name of the job.

    Raises
    ------
    ValueError
        For an unexpected answer.
    OSError
        When there is no answer within ten seconds.
    """
    limit_s = time.monotonic() + NAME_S
    for question in ("init pmi_version=1 pmi_subversion=1", "get_my_kvsname"):
        launcher.sendall(f"cmd={question}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            # No timeout of the socket's own: it would change the launcher's descriptor, which MPI
            # expects to block.
            if not select.select([launcher], [], [], max(0.0, limit_s - time.monotonic()))[0]:
                raise TimeoutError("the launcher does not answer")
            data = launcher.recv(MAX_LINE)
            if not data:
                raise ValueError("the launcher has ended")
            answer += data
            if len(answer) > MAX_LINE:
                raise ValueError("the launcher's answer has no end")
    name = re.search(rb"kvsname=(\S+)", answer)
    if name is None:
        raise ValueError(answer)
    return name[1].decode()


@dataclass(slots=True, eq=False)
class _Seat:
    """The launcher's end of a process's socket, and the bytes that have arrived."""

    socket: socket.socket
    arrived: bytearray = field(default_factory=bytearray)


class Board:
    """Serves PMI-1 to the processes of a job over inherited sockets, which no other process can
    reach.

    A process that sends too much, enters a barrier twice or does not read its answers is
    disconnected; it never blocks the others.

    Parameters
    ----------
    size
        Number of processes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._name = f"realcoll_{os.getpid()}_{secrets.token_hex(8)}"
        # Which processes share memory: size of them on 1 machine, from number 0 on.
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{size}))"}
        self._held_bytes = 0
        self._waiting: list[_Seat] = []
        self._selector = selectors.DefaultSelector()

    def seat(self, process: int) -> tuple[socket.socket, dict[str, str]]:
        """The socket that a new process inherits, and its variables; the caller closes its copy."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # a process that takes no answers must not hold up the others
        self._selector.register(ours, selectors.EVENT_READ, _Seat(ours))
        local_variables = {"MPI_LOCALRANKID": str(process), "MPI_LOCALNRANKS": str(self._size)}
        job = {
            "PMI_RANK": str(process),
            "PMI_SIZE": str(self._size),
            "PMI_FD": str(theirs.fileno()),
        }
        return theirs, local_variables | job

    def serve(self, seconds: float) -> None:
        """Answer requests for that long."""
        for key, _ in self._selector.select(seconds):
            seat: _Seat = key.data
            try:
                data = seat.socket.recv(2**16)
                seat.arrived += data
                if not data or len(seat.arrived) > MAX_LINE:
                    self._drop(seat)
                while b"\n" in seat.arrived and seat.socket.fileno() >= 0:
                    line, _, seat.arrived = seat.arrived.partition(b"\n")
                    self._answer(seat, line.decode(errors="replace"))
            except OSError:
                self._drop(seat)

    def close(self) -> None:
        """Close all sockets."""
        for key in list(self._selector.get_map().values()):
            self._drop(key.data)
        self._selector.close()

    def _drop(self, seat: _Seat) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(seat.socket)
        seat.socket.close()

    def _store(self, key: str, value: str) -> bool:
        """Store a value; False if it is too long, or the board is full."""
        sizes = len(key.encode()), len(value.encode())
        if (
            sizes[0] > KEY_BYTES
            or sizes[1] > VALUE_BYTES
            or self._held_bytes + sum(sizes) > MAX_BOARD_BYTES
        ):
            return False
        self._held_bytes += sum(sizes)
        self._values[key] = value
        return True

    def _answer(self, seat: _Seat, line: str) -> None:
        # A value comes last and may hold spaces and equals signs.
        head, _, value = line.partition(" value=")
        words = dict(word.partition("=")[::2] for word in head.split())
        command = words.get("cmd", "")
        if command == "put":
            fits = self._store(words.get("key", ""), value)
            reply = f"put_result rc={0 if fits else -1} msg={'success' if fits else 'too_long'}"
        elif command == "get":
            stored = self._values.get(words.get("key", ""))
            reply = (
                f"get_result rc={-1 if stored is None else 0} msg={stored is not None} "
                f"value={stored or ''}"
            )
        elif command == "barrier_in":
            if seat in self._waiting:
                self._drop(seat)
                return
            self._waiting.append(seat)
            if len(self._waiting) == self._size:
                for waiting_seat in self._waiting:
                    with contextlib.suppress(OSError):
                        waiting_seat.socket.sendall(b"cmd=barrier_out rc=0\n")
                self._waiting.clear()
            return
        else:
            replies = {
                "init": "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
                "get_maxes": f"maxes rc=0 {LIMITS}",
                "get_appnum": "appnum rc=0 appnum=0",
                "get_my_kvsname": f"my_kvsname rc=0 kvsname={self._name}",
                "get_universe_size": f"universe_size rc=0 size={self._size}",
                "finalize": "finalize_ack rc=0",
            }
            if command == "abort":  # the process ends by itself, and the launcher sees that
                return
            reply = replies.get(command, f"{command[:KEY_BYTES]}_result rc=-1 msg=unknown_command")
        seat.socket.sendall(f"cmd={reply}\n".encode())
