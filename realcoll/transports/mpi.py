"""Ranks in MPI processes (mpi4py), on numpy arrays."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import secrets
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from realcoll.control import Control
from realcoll.errors import FaultError, MissingError
from realcoll.rendezvous import Host, join
from realcoll.transports.local import aligned_bytes, array_finisher, array_reducer
from realcoll.vendor import mpi_collective

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from simcoll.plan import Plan

    Array = NDArray[Any]

__all__ = ["MpiTransport", "load_mpi"]

EAGER_TESTS = 64
"""Tests of completion before the processor is offered to others: most messages are done by then."""
CROWDED_REST_S = 1e-5
"""A rest between tests when there are more processes than cores: giving way alone lets those who wait run before those who work."""
LOOK_ROUND_S = 0.05
REST_AFTER_S = 1.0
REST_S = 0.0005
LAST_WORDS_S = 3.0


def load_mpi() -> Any:
    """The module ``mpi4py.MPI``, which starts MPI.

    Raises
    ------
    MissingError
        Saying what to install.
    """
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise MissingError(f"MPI needs mpi4py and an MPI library: pip install 'simcoll[mpi]' ({error})") from None


class MpiTransport:
    """One process of an MPI job.

    All processes of the communicator make theirs together.

    Parameters
    ----------
    comm
        An mpi4py communicator; default all processes.
    timeout_s
        How long other ranks may take for their part before they are named in a :class:`~realcoll.errors.FaultError`.

    Raises
    ------
    MissingError
        When mpi4py or the MPI library is not installed.
    """

    name = "mpi"

    def __init__(self, comm: Any = None, *, timeout_s: float = 60.0) -> None:
        self._mpi = load_mpi()
        self.comm = (self._mpi.COMM_WORLD if comm is None else comm).Dup()
        self.control = _meet(self.comm, timeout_s)
        self._requests: list[Any] = []
        self._peers: list[int] = []
        self._testall = self._mpi.Request.Testall
        self._bytes = self._mpi.BYTE
        self.control.watch(self._end_later)
        _outlive_notices()
        atexit.register(self._at_exit)
        self._crowded = self.control.size > (os.cpu_count() or 1)

    def alloc(self, size_bytes: int) -> Array:
        """New numpy bytes."""
        return aligned_bytes(size_bytes)

    def view(self, memory: Array, first_byte: int, elements: int, dtype: np.dtype[Any]) -> Array:
        """A typed numpy view."""
        return memory[first_byte : first_byte + elements * dtype.itemsize].view(dtype)

    def wire(self, memory: Array, first_byte: int, size_bytes: int) -> list[Any]:
        """A buffer as mpi4py takes it."""
        return [memory[first_byte : first_byte + size_bytes], self._bytes]

    def group_start(self) -> None:
        """Refuse to go on after a failure."""
        if self.control.broken:
            self.control.check_usable()

    def send(self, source: list[Any], process: int) -> None:
        """Start a send."""
        self._requests.append(self.comm.Isend(source, process))
        self._peers.append(process)

    def recv(self, target: list[Any], process: int) -> None:
        """Start a receive."""
        self._requests.append(self.comm.Irecv(target, process))
        self._peers.append(process)

    def group_end(self) -> None:
        """Wait until all of the group is done."""
        requests = self._requests
        testall = self._testall
        for _ in range(1 if self._crowded else EAGER_TESTS):
            if testall(requests):
                break
        else:
            self._wait()
        requests.clear()
        self._peers.clear()

    def _wait(self) -> None:
        """Test on, giving way to other processes; look from time to time whether it still makes sense."""
        begin = time.monotonic()
        look = begin + LOOK_ROUND_S
        while not self._testall(self._requests):
            if self._crowded:
                time.sleep(CROWDED_REST_S)
            else:
                os.sched_yield()
            now = time.monotonic()
            if now >= look:
                look = now + LOOK_ROUND_S
                late = now - begin > self.control.timeout_s
                if late or (self.control.loss() if self._peers == [-1] else self.control.trouble()):
                    self._blame()
                if now - begin > REST_AFTER_S:
                    time.sleep(REST_S)

    def _blame(self) -> None:
        """Give up on the group, unless it gets done while the others are asked."""
        waiting = [peer for peer, request in zip(self._peers, self._requests, strict=True) if not request.Test()]
        if waiting == [-1]:  # a barrier: who is not there is in somebody's way, or will be
            who = self.control.loss() or f"not all ranks came to the barrier within {self.control.timeout_s:g} s"
            raise FaultError(who)
        if waiting:
            raise self.control.stuck(waiting)

    def copy(self, target: Array, source: Array) -> None:
        """Copy elements."""
        target[...] = source

    def reducer(self, op: str, dtype: np.dtype[Any]) -> Callable[[Array, Array], object]:  # noqa: ARG002
        """A numpy function."""
        return array_reducer(op)

    def finisher(self, plan: Plan) -> Callable[[Array], None] | None:
        """A numpy function."""
        return array_finisher(plan)

    def load(self, target: Array, values: Array) -> None:
        """Copy elements."""
        target[...] = values

    def fetch(self, source: Array) -> Array:
        """The view itself."""
        return source

    def lanes(self, plan: Plan, processes: int) -> Sequence[MpiTransport]:  # noqa: ARG002
        """Itself for all channels: a process has one thread."""
        return (self,)

    def recorded(self, play: Callable[[], None]) -> Callable[[], None]:
        """The calls as they are."""
        return play

    def vendor(
        self, plan: Plan, inputs: Mapping[int, Array], outputs: Mapping[int, Array]
    ) -> Callable[[], object] | None:
        """MPI's own collective, when rank r of the plan is process r and they are all."""
        size, me = self.control.size, self.control.process
        if plan.nranks != size or plan.ranks.tolist() != list(range(size)):
            return None
        empty = np.zeros(1, plan.dtype)
        return mpi_collective(self._mpi, self.comm, plan, inputs.get(me, empty), outputs.get(me, empty))

    def synchronize(self) -> None:
        """Nothing is ever under way outside a group."""

    def barrier(self) -> None:
        """Wait for all processes."""
        self._requests.append(self.comm.Ibarrier())
        self._peers.append(-1)
        self.group_end()

    def abort(self, reason: str) -> None:
        """Tell the others. MPI cannot be ended in order any more, so the job is aborted when this process ends."""
        if self.control.broken:
            return
        self.control.fail(reason)
        atexit.register(self._abort_job, reason)

    def _abort_job(self, reason: str) -> None:
        limit = time.monotonic() + LAST_WORDS_S
        while not self.control.all_gone() and time.monotonic() < limit:
            time.sleep(0.01)  # let the others say what they saw
        with contextlib.suppress(OSError, ValueError):
            print(f"realcoll: rank {self.control.process} aborts the MPI job: {reason}", file=sys.stderr, flush=True)
            sys.stdout.flush()
        self.comm.Abort(1)

    def _at_exit(self) -> None:
        """A program that ends without :meth:`close` does so in order if the others do too."""
        try:
            self.close()
        except FaultError as error:
            self.control.fail(error.message)
            self._abort_job(f"it ended without closing its transport, and {error.message}")

    def _end_later(self) -> None:
        """Another process is lost, so this job will never end well: do not outlive it, whatever this process is busy with."""
        timer = threading.Timer(self.control.timeout_s + LAST_WORDS_S, self._end)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        if not self.control.broken:
            with contextlib.suppress(OSError, ValueError):
                print(f"realcoll: rank {self.control.process} ends: {self.control.loss()}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        """Leave together with all processes; not after a failure, when nobody may be there to leave with."""
        if not self.control.broken:
            self.barrier()
            self.comm.Free()
        self.control.close()
        atexit.unregister(self._at_exit)


def _outlive_notices() -> None:
    """MPICH's launcher sends SIGUSR1 to those who survive a failure, which would end them before they can say what happened."""
    unused = signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    if unused and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _meet(comm: Any, timeout_s: float) -> Control:
    """Let process 0 host the rendezvous: on the loopback interface when all processes run on one machine."""
    process, size = comm.Get_rank(), comm.Get_size()
    if size == 1:
        return Control(0, 1, None, timeout_s)
    here = socket.gethostname()
    one_machine = len(set(comm.allgather(here))) == 1
    host, offer = None, None
    if process == 0:
        token = secrets.token_hex(16)
        host = Host(size, ("127.0.0.1" if one_machine else "0.0.0.0", 0), token)  # noqa: S104
        offer = ("127.0.0.1" if one_machine else here, host.port, token)
    address, port, token = comm.bcast(offer)
    found = join((address, port), process, size, token=token, timeout_s=timeout_s, host=host)
    return Control(process, size, found, timeout_s)
