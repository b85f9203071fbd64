"""Start MPI once all processes have met, and clean up after failures."""

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realcoll.meeting.control import Control, join, within
from realcoll.process_errors import FaultError, MissingError
from realcoll.start.job_environment import listening_at, place_from
from realcoll.start.pmi import job_name
from realcoll.start.watcher import ends_in_time, starts_in_time
from simcoll.distributed.server.secret import job_secret
from simcoll.errors import ConfigError

__all__ = ["LAST_WORDS_S", "job_of", "join_mpi", "load_mpi"]

LEAST_START_S = 1.0
"""Minimum time to start MPI, however long the rendezvous took."""
LAST_WORDS_S = 3.0
"""Grace period for the other processes' reports before a failed process ends the job."""


def load_mpi() -> Any:
    """Import ``mpi4py.MPI``, which starts MPI.

    Raises
    ------
    MissingError
        With the packages to install.
    """
    try:
        module = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise MissingError(
            f"MPI needs mpi4py and an MPI library: pip install 'simcoll[mpi]' ({error})"
        ) from None
    _forget_names()
    return module


def _forget_names() -> None:
    """Unlink MPICH's shared memory, as MPICH does when it ends in order.

    MPICH 5 leaves the file behind if a process is killed or the job is aborted. Once MPI has
    started, all processes have it mapped and the name is no longer needed.
    """
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            path = Path(line[line.find("/") :])
            # Its name is compared, nothing is written there.
            if path.parent == Path("/dev/shm") and path.name.startswith("mpich_shm_"):  # noqa: S108
                path.unlink(missing_ok=True)


def join_mpi(comm: Any, timeout_s: float, start_timeout_s: float) -> tuple[Any, Any, Control]:
    """Start MPI; returns ``mpi4py.MPI``, a private communicator, and the control connection to its
    processes.

    Raises
    ------
    FaultError
        With the processes that do not arrive.
    """
    early = None
    until_s = time.monotonic() + start_timeout_s

    def left_s() -> float:
        return max(LEAST_START_S, until_s - time.monotonic())

    place = place_from(os.environ)
    if comm is None and "mpi4py.MPI" not in sys.modules:
        early = _meet_before_mpi(os.environ, start_timeout_s)
        mpi = _start_mpi(early, left_s()) if place.size > 1 else load_mpi()
    else:
        mpi = load_mpi()
    world = mpi.COMM_WORLD if comm is None else comm
    if comm is None and world.Get_size() == 1 < place.size:
        library = mpi.get_vendor()[0]
        raise ConfigError(
            f"{place.size} processes were started ({place.launcher}), but {library} knows of this "
            "one only: "
            f"start them with the mpiexec of {library} "
            "(realcoll launch can start MPICH, and torchrun --transport nccl)"
        )
    _outlive_notices()

    def copy_and_meet() -> tuple[Any, Control]:
        copy = world.Dup()
        return copy, early.control if early else _meet(copy, left_s())

    try:
        private_comm, control = within(left_s(), copy_and_meet)
    except TimeoutError:
        atexit.register(world.Abort, 1)
        reason = (
            f"not all {world.Get_size()} processes made an MpiTransport within "
            f"{start_timeout_s:g} s"
        )
        raise FaultError(reason) from None
    control.timeout_s = timeout_s
    if early:
        atexit.register(ends_in_time, timeout_s, early.pids)
    return mpi, private_comm, control


@dataclass(frozen=True, slots=True)
class _Before:
    """The processes of a job that met before MPI starts: their process IDs by rank, and the
    launcher's name of the job.
    """

    control: Control
    job: str
    pids: dict[int, int]


def _meet_before_mpi(environment: Mapping[str, str], timeout_s: float) -> _Before | None:
    """Meet before MPI starts, since MPI waits forever for missing processes; ``None`` without a
    known address.

    On one machine the address derives from the launcher's name of the job.
    """
    placement = job_of(environment) if sys.platform == "linux" else None
    if placement is None:
        return None
    job, process, size = placement
    address = f"\0realcoll {job}"
    secret = job_secret(environment)
    host = None
    if process == 0:
        from realcoll.meeting.host import Host  # its server is not loaded by the others

        host = Host(size, address, secret)
    control = join(address, process, size, token=secret, timeout_s=timeout_s, host=host)
    try:
        pids = control.gather("start of MPI", str(os.getpid()).encode())
    except FaultError as error:
        control.fail(error.message)
        atexit.register(_leave, control)
        raise
    return _Before(control, job, {rank: int(pid) for rank, pid in pids.items()})


def job_of(environment: Mapping[str, str]) -> tuple[str, int, int] | None:
    """The launcher's name of a job on this machine, this process's number, and the number of
    processes.
    """
    for prefix, local in (
        ("PMI", "MPI_LOCALNRANKS"),
        ("OMPI_COMM_WORLD", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ):
        process, size = environment.get(f"{prefix}_RANK", ""), environment.get(f"{prefix}_SIZE", "")
        if (
            process.isdecimal()
            and size.isdecimal()
            and int(process) < int(size) != 1
            and environment.get(local) == size
        ):
            with contextlib.suppress(KeyError, ValueError, OSError):
                return _name(environment, prefix), int(process), int(size)
    return None


def _name(environment: Mapping[str, str], prefix: str) -> str:
    if prefix != "PMI":
        return environment["PMIX_NAMESPACE"]
    with socket.socket(fileno=os.dup(int(environment["PMI_FD"]))) as launcher:
        return job_name(launcher)


def _start_mpi(early: _Before | None, limit_s: float) -> Any:
    """Start MPI within a time limit, or end this process; each process removes MPICH's shared
    memory, which any may have created.

    MPICH derives its name from the job's: 32-bit FNV-1a.
    """
    path = ""
    if early and "MPI_LOCALRANKID" in os.environ:
        number = 0x811C9DC5
        for byte in early.job.encode():
            number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
        path = f"/dev/shm/mpich_shm_{number:x}_0"  # noqa: S108 - its name, nothing is made
    with starts_in_time(limit_s, early.pids if early else {}, path):
        return load_mpi()


def _leave(control: Control) -> None:
    control.part(LAST_WORDS_S)
    control.close()


def _meet(comm: Any, timeout_s: float) -> Control:
    """Host the rendezvous in process 0, on the loopback interface if all processes run on one
    machine.
    """
    process, size = comm.Get_rank(), comm.Get_size()
    if size == 1:
        return Control(0, 1, timeout_s)
    host_name = socket.gethostname()
    one_machine = len(set(comm.allgather(host_name))) == 1
    host, offer = None, None
    if process == 0:
        from realcoll.meeting.host import Host

        token = secrets.token_hex(16)
        host = Host(size, (listening_at("127.0.0.1" if one_machine else host_name), 0), token)
        offer = ("127.0.0.1" if one_machine else host_name, host.address[1], token)
    address, port, token = comm.bcast(offer)
    return join((address, port), process, size, token=token, timeout_s=timeout_s, host=host)


def _outlive_notices() -> None:
    """Ignore SIGUSR1, by which MPICH's launcher ends surviving processes before they can report."""
    unused = signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    if unused and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
