"""MPI backend for programs of :mod:`simcoll.distributed`: one rank per process.

``SIMCOLL_BACKEND=mpi`` or ``spawn(backend="mpi")`` imports it; programs need not.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from realcoll.executor import Prepared, prepare
from realcoll.transports.interface import Message
from realcoll.transports.local import LocalTransport
from realcoll.transports.mpi import MpiTransport
from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.distributed.api.backends import Backend

__all__ = ["MpiLink", "connect"]

KEPT_BYTES = 1 << 26
"""Limit on memory kept for reuse by earlier plans."""


class _TaggedTransport(LocalTransport):
    """A transport for one plan at a time, whose messages carry a tag; other operations progress
    while it waits.
    """

    name = "mpi"

    def __init__(self, parent: MpiTransport, comm: Any, mpi: Any) -> None:
        super().__init__()
        self.control = parent.control
        self.size_bytes = 1024
        self.tag = 0
        self.poll: Callable[[], None] = lambda: None
        self._whole = parent
        self._comm = comm
        self._byte = mpi.BYTE
        self._testall = mpi.Request.Testall

    def alloc(self, size_bytes: int) -> Array:
        """New numpy bytes."""
        self.size_bytes += size_bytes
        return super().alloc(size_bytes)

    def lanes(self, plan: Plan, processes: int) -> Sequence[Self]:  # noqa: ARG002
        """Itself for all channels together, since the tag identifies the plan of a message."""
        return (self,)

    def group(self, recvs: Sequence[Message], sends: Sequence[Message]) -> Callable[[], None]:
        """A function that exchanges the messages, while other operations progress."""

        def begin() -> None:
            requests = [
                self._comm.Irecv([target, self._byte], process, self.tag)
                for target, process, _ in recvs
            ]
            requests += [
                self._comm.Isend([source, self._byte], process, self.tag)
                for source, process, _ in sends
            ]
            try:
                while not self._testall(requests):
                    self.poll()
            except BaseException:
                self._whole.abort("a collective was abandoned half way")
                raise

        return begin

    def abort(self, reason: str) -> None:
        """End the job."""
        self._whole.abort(reason)


class _Shelf:
    """Idle memory and compiled programs of earlier plans."""

    def __init__(self) -> None:
        self._free: dict[int, list[tuple[Prepared, _TaggedTransport]]] = {}
        self._bytes = 0

    def take(self, plan: Plan) -> tuple[Prepared, _TaggedTransport] | None:
        """Remove and return those of this very plan, if any."""
        waiting = self._free.get(id(plan))
        if not waiting:
            return None
        entry = waiting.pop()
        self._bytes -= entry[1].size_bytes
        return entry

    def shelve(self, prepared: Prepared, transport: _TaggedTransport) -> None:
        """Keep them for reuse; if that exceeds the limit, drop all others first."""
        if self._bytes + transport.size_bytes > KEPT_BYTES:
            self._free.clear()
            self._bytes = 0
        self._bytes += transport.size_bytes
        self._free.setdefault(id(prepared.plan), []).append((prepared, transport))


class MpiLink:
    """A process of an MPI job, as a :class:`simcoll.distributed.linked.process_links.Link`.

    Parameters
    ----------
    timeout_s
        Time limit for the processes to find each other.
    """

    name = "mpi"

    def __init__(self, timeout_s: float = 60.0) -> None:
        self._whole = MpiTransport(timeout_s=timeout_s)
        self._mpi = importlib.import_module("mpi4py.MPI")
        self.rank = self._whole.control.process
        self.world_size = self._whole.control.size
        self._data = self._whole.comm
        self._control = self._whole.comm.Dup()
        self._tags = int(self._data.Get_attr(self._mpi.TAG_UB) or 32767)
        self._sending: deque[tuple[Any, bytes]] = deque()
        self._shelf = _Shelf()

    def send_control(self, rank: int, message: bytes) -> None:
        """Start to send a control message."""
        while self._sending and self._sending[0][0].Test():
            self._sending.popleft()
        self._sending.append((self._control.Isend([message, self._mpi.BYTE], rank), message))

    def receive_control(self) -> list[tuple[int, bytes]]:
        """The control messages received."""
        messages = []
        status = self._mpi.Status()
        while (arrived := self._control.Improbe(status=status)) is not None:
            message = bytearray(status.Get_count(self._mpi.BYTE))
            arrived.Recv([message, self._mpi.BYTE])
            messages.append((status.Get_source(), bytes(message)))
        return messages

    def death_notice(self) -> str:
        """A sentence that names a process that died; empty if none has."""
        control = self._whole.control
        return control.loss() if control.trouble() else ""

    def execute(
        self, plan: Plan, rank: int, data: Array, stream: int, poll: Callable[[], None]
    ) -> Array | None:
        """Play one rank's part of a plan with the other processes."""
        prepared, transport = self._shelf.take(plan) or self._prepare_plan(plan)
        transport.tag, transport.poll = stream % self._tags, poll
        prepared.load({rank: data} if rank in prepared.inputs else {})
        prepared.run()
        output = prepared.fetch().get(rank)
        result = None if output is None else np.array(output)
        self._shelf.shelve(prepared, transport)
        return result

    def _prepare_plan(self, plan: Plan) -> tuple[Prepared, _TaggedTransport]:
        transport = _TaggedTransport(self._whole, self._data, self._mpi)
        return prepare(plan, transport, check=False), transport

    def give_up(self, reason: str) -> None:
        """Make the end of this process end the job."""
        self._whole.abort(reason)


def connect() -> MpiLink:
    """Join the processes that ``mpiexec`` has started, and register the backend ``mpi``.

    Raises
    ------
    MissingError
        When mpi4py or an MPI library is not installed.
    FaultError
        When the processes do not find each other.
    """
    link = MpiLink()
    Backend.register_backend(link.name, _by_link, extended_api=True, devices="cpu")
    return link


def _by_link(_options: Any, _pg_options: Any) -> None:
    """None: between processes, groups use the link; on the emulator the name selects the
    emulator.
    """
