"""Transport over MPI (mpi4py), on numpy arrays."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from realcoll.process_errors import FaultError
from realcoll.start.mpi_start import LAST_WORDS_S, join_mpi
from realcoll.transports.interface import Message
from realcoll.transports.local import HostMemory
from realcoll.transports.vendor import mpi_collective
from simcoll.arrays import Array
from simcoll.core.plan import Plan

# Requests, and the process at the other end of each.
_Group: TypeAlias = tuple[list[Any], list[int]]

__all__ = ["MpiTransport"]

EAGER_TESTS = 64
"""Completion tests before the first look at the clock; most messages are done by then."""
PATIENCE_S = 5e-5
"""Busy-wait time before yielding the processor, which the scheduler gives away for far longer than
a message takes.
"""
CROWDED_REST_S = 1e-5
"""Sleep between tests with more processes than cores: yielding alone would let waiting processes
run before working ones.
"""
LOOK_ROUND_S = 0.05
REST_AFTER_S = 1.0
"""Waiting time after which a process rests ``REST_S`` between tests: something has gone wrong, or
others compute.
"""
REST_S = 0.0005
NEWS_S = 1.0


class _Repeated:
    """A repeatedly started group of messages. The first start may be the only one, so it makes no
    persistent requests.
    """

    __slots__ = ("begun", "group", "recvs", "sends", "transport")

    def __init__(
        self, transport: MpiTransport, recvs: Sequence[Message], sends: Sequence[Message]
    ) -> None:
        self.transport, self.recvs, self.sends = transport, recvs, sends
        self.begun = False
        self.group: _Group | None = None

    def begin(self) -> _Group:
        """Start the group."""
        if self.group is None:
            if not self.begun:
                self.begun = True
                return self.transport.requests(self.recvs, self.sends, persistent=False)
            self.group = self.transport.requests(self.recvs, self.sends, persistent=True)
        self.transport.start(self.group)
        return self.group

    def __del__(self) -> None:
        """Free the requests."""
        if self.group is not None:
            self.transport.free(self.group)


class MpiTransport(HostMemory):
    """One process of an MPI job.

    Collective over the communicator.

    Parameters
    ----------
    comm
        An mpi4py communicator; default all processes.
    timeout_s
        Time limit for other ranks, which are then named in a
        :class:`~realcoll.process_errors.FaultError`.
    start_timeout_s
        Time limit for the other processes to create their transports.

    Raises
    ------
    MissingError
        When mpi4py or the MPI library is not installed.
    FaultError
        When other processes do not create theirs.
    ConfigError
        When the launcher that started this process does not belong to the MPI library.
    """

    name = "mpi"

    def __repr__(self) -> str:
        return f"<MpiTransport: process {self.control.process} of {self.control.size}>"

    def __init__(
        self, comm: Any = None, *, timeout_s: float = 60.0, start_timeout_s: float = 60.0
    ) -> None:
        self._mpi, self.comm, self.control = join_mpi(comm, timeout_s, start_timeout_s)
        self._testall = self._mpi.Request.Testall
        self._startall = self._mpi.Prequest.Startall
        self._bytes = self._mpi.BYTE
        self.control.watch(self._end_later)
        atexit.register(self._at_exit)
        self._crowded = self.control.size > (os.cpu_count() or 1)

    def wire(self, memory: Array, first_byte: int, size_bytes: int) -> list[Any]:
        """A buffer in mpi4py's form."""
        return [memory[first_byte : first_byte + size_bytes], self._bytes]

    def group(self, recvs: Sequence[Message], sends: Sequence[Message]) -> Callable[[], _Group]:
        """A function that uses persistent requests from its second call on."""
        return _Repeated(self, recvs, sends).begin

    def requests(
        self, recvs: Sequence[Message], sends: Sequence[Message], *, persistent: bool
    ) -> _Group:
        """Started messages, or ``persistent`` requests for repeated starts; the channel is the
        tag.
        """
        if self.control.broken:
            self.control.check_usable()
        comm = self.comm
        receive, send = (comm.Recv_init, comm.Send_init) if persistent else (comm.Irecv, comm.Isend)
        calls = [(receive, incoming) for incoming in recvs] + [
            (send, outgoing) for outgoing in sends
        ]
        try:
            return [request(*message) for request, message in calls], [
                process for _, (_, process, _) in calls
            ]
        except self._mpi.Exception as error:
            raise self._fault(error) from None

    def start(self, group: _Group) -> None:
        """Start all requests of a persistent group."""
        if self.control.broken:
            self.control.check_usable()
        try:
            self._startall(group[0])
        except self._mpi.Exception as error:
            raise self._fault(error) from None

    def free(self, group: _Group) -> None:
        """Free persistent requests, none of which is active except after a failure."""
        if not self.control.broken and not self._mpi.Is_finalized():
            for request in group[0]:
                request.Free()

    def is_over(self, group: _Group) -> bool:
        """Whether all of a group is done."""
        try:
            return bool(self._testall(group[0]))
        except self._mpi.Exception as error:
            raise self._fault(error) from None

    def wait(self, groups: Sequence[_Group]) -> None:
        """Wait until all of one group is done."""
        try:
            requests, test = groups[0][0], self._testall
            for _ in range(1 if self._crowded or len(groups) > 1 else EAGER_TESTS):
                if test(requests):
                    return
            self._wait(groups)
        except self._mpi.Exception as error:
            raise self._fault(error) from None

    def _fault(self, error: Exception) -> FaultError:
        """The error for a failure that MPI reports; if a process has ended, the rendezvous is about
        to name it.
        """
        limit = time.monotonic() + NEWS_S
        while not self.control.loss() and time.monotonic() < limit:
            time.sleep(REST_S)
        return self.control.stuck(()) if self.control.loss() else FaultError(f"MPI: {error}")

    def _wait(self, groups: Sequence[_Group]) -> None:
        """Test until done, yielding to other processes and checking periodically that all are
        alive.
        """
        begin = time.monotonic()
        look = begin + LOOK_ROUND_S
        peers = [peer for _, members in groups for peer in members]
        while not any(self._testall(requests) for requests, _ in groups):
            time_s = time.monotonic()
            if time_s - begin > REST_AFTER_S:
                time.sleep(REST_S)
            elif self._crowded:
                time.sleep(CROWDED_REST_S)
            elif time_s - begin > PATIENCE_S:
                os.sched_yield()
            if time_s >= look:
                look = time_s + LOOK_ROUND_S
                late = time_s - begin > self.control.timeout_s
                if late or (self.control.loss() if peers == [-1] else self.control.trouble()):
                    self._blame(groups)

    def _blame(self, groups: Sequence[_Group]) -> None:
        """Give up on groups, unless one completes while the other processes are queried."""
        pending = [
            [peer for peer, request in zip(peers, requests, strict=True) if not request.Test()]
            for requests, peers in groups
        ]
        if pending == [[-1]]:  # in a barrier, which all have come to
            raise self.control.stuck(set(range(self.control.size)) - {self.control.process})
        if all(pending):
            raise self.control.stuck(peer for waiting in pending for peer in waiting)

    def vendor(
        self, plan: Plan, inputs: Mapping[int, Array], outputs: Mapping[int, Array]
    ) -> Callable[[], object] | None:
        """MPI's own collective, when all processes take part and rank r is process r."""
        size, me = self.control.size, self.control.process
        if plan.nranks != size or plan.ranks.tolist() != list(range(size)):
            return None
        empty = np.zeros(1, plan.dtype)
        call = mpi_collective(
            self._mpi, self.comm, plan, inputs.get(me, empty), outputs.get(me, empty)
        )
        if call is None:
            return None

        def run() -> None:
            try:
                call()
            except self._mpi.Exception as error:
                raise self._fault(error) from None

        return run

    def synchronize(self) -> None:
        """Do nothing: no operation is pending outside a group."""

    def barrier(self) -> None:
        """Wait for all processes; missing ones are named in the error."""
        self.control.gather("barrier")
        self.wait([([self.comm.Ibarrier()], [-1])])

    def abort(self, reason: str) -> None:
        """Notify the others; the job is aborted when this process ends, as MPI can no longer
        finalise.
        """
        if self.control.broken:
            return
        self.control.fail(reason)
        atexit.register(self._abort_job, reason)

    def _abort_job(self, reason: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(
                f"realcoll: rank {self.control.process} aborts the MPI job: {reason}\n"
            )
            sys.stderr.flush()
            sys.stdout.flush()
        self.control.part(LAST_WORDS_S)
        self.comm.Abort(1)

    def _at_exit(self) -> None:
        """Close at exit for a program that did not, in order if the others do the same."""
        try:
            self.close()
        except FaultError as error:
            self.control.fail(error.message)
            self._abort_job(f"it ended without closing its transport, and {error.message}")

    def _end_later(self) -> None:
        """End this process after a grace period: with another process lost, the job cannot
        succeed.
        """
        timer = threading.Timer(self.control.timeout_s + LAST_WORDS_S, self._end)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        if not self.control.broken:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(
                    f"realcoll: rank {self.control.process} ends: {self.control.loss()}\n"
                )
                sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        """Leave together with all processes; after a failure without waiting, since others may be
        gone.
        """
        if not self.control.broken:
            self.barrier()
            self.comm.Free()
        self.control.close()
        atexit.unregister(self._at_exit)
