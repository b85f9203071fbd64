"""Rank and job of this process, from the variables of mpirun, srun, torchrun or
``realcoll launch``.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from realcoll.meeting.control import Control, join
from realcoll.process_errors import FaultError
from simcoll.distributed.server.secret import is_own_file, job_secret
from simcoll.distributed.stores.file_store import FileStore
from simcoll.distributed.stores.store_errors import DistStoreError
from simcoll.errors import ConfigError, shown

if TYPE_CHECKING:
    from realcoll.meeting.host import Host

__all__ = ["LaunchedJob", "ProcessPlace", "control_of", "job_from", "listening_at", "place_from"]

PORT = 29533


class _LauncherKeys(NamedTuple):
    """A launcher's variables for a process's number, the number of processes, and the number on its
    machine.
    """

    launcher: str
    process: str
    size: str
    local: str


# Most specific first.
_LAUNCHERS = (
    _LauncherKeys("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    _LauncherKeys(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"
    ),
    _LauncherKeys("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    _LauncherKeys("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


# Of each launcher the variable with the number of processes on this machine; of Slurm that of
# machines, and what it is for one.
_LOCAL_SIZES = {
    "torchrun": ("LOCAL_WORLD_SIZE", ""),
    "Open MPI": ("OMPI_COMM_WORLD_LOCAL_SIZE", ""),
    "MPICH": ("MPI_LOCALNRANKS", ""),
    "Slurm": ("SLURM_NNODES", "1"),
}


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """A process in a job.

    Attributes
    ----------
    launcher
        The launcher whose variables were found; empty for a single process.
    process, size
        Its number, and the number of processes.
    local
        Its number on this machine, which selects its GPU.
    address
        Host and port of process 0; or ``file://`` and a file on a shared file system through which
        process 0 publishes them.
    token
        Secret of the job.
    """

    launcher: str
    process: int
    size: int
    local: int
    address: tuple[str, int]
    token: str = ""


class ProcessPlace(NamedTuple):
    """A launcher's name, a process's number, the number of processes, and the process's number on
    its machine.
    """

    launcher: str
    process: int
    size: int
    local: int


def place_from(environment: Mapping[str, str]) -> ProcessPlace:
    """Launcher, number of this process, number of processes, and number of this process on its
    machine.

    Raises
    ------
    ConfigError
        For values that are not numbers or out of range.

    Examples
    --------
    >>> place_from({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"})
    ProcessPlace(launcher='MPICH', process=3, size=4, local=1)
    """
    keys = next(
        (keys for keys in _LAUNCHERS if keys.process in environment and keys.size in environment),
        None,
    )
    if keys is None:
        return ProcessPlace("", 0, 1, 0)
    process, size = _number(environment, keys.process), _number(environment, keys.size)
    local = _number(environment, keys.local) if keys.local in environment else process
    if not 0 <= process < size:
        raise ConfigError(
            f"{keys.launcher} says that this is rank {process} of {size}; expected 0..{size - 1}"
        )
    return ProcessPlace(keys.launcher, process, size, local)


def job_from(environment: Mapping[str, str]) -> LaunchedJob:
    """Read the variables of the launcher.

    Raises
    ------
    ConfigError
        For values that are not numbers or out of range, or if several machines are used without
        ``MASTER_ADDR``.

    Examples
    --------
    >>> place = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    >>> job_from({**place, "MASTER_ADDR": "node7"}).address
    ('node7', 29533)
    """
    place = place_from(environment)
    host = environment.get("MASTER_ADDR", "")
    nodes = environment.get("SLURM_NNODES", "1")
    if not host and place.size > 1 and place.launcher == "Slurm" and nodes != "1":
        raise ConfigError(
            f"the job runs on {nodes} machines: set MASTER_ADDR to the host name of rank 0's "
            "machine"
        )
    port = _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else PORT
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # the agent of torchrun listens on the port itself
    if not host.startswith("file://") and _on_one_machine(environment, place.launcher, place.size):
        host = "127.0.0.1"  # whatever its name is, others need not reach it
    return LaunchedJob(*place, (host or "127.0.0.1", port), job_secret(environment))


def _on_one_machine(environment: Mapping[str, str], launcher: str, size: int) -> bool:
    """Whether all processes run on this machine, according to the launcher."""
    key, expected = _LOCAL_SIZES.get(launcher, ("", ""))
    return environment.get(key) == (expected or str(size))


def _number(environment: Mapping[str, str], key: str) -> int:
    text = environment[key]
    if not (text.isascii() and text.strip().isdecimal() and len(text) < 20):
        raise ConfigError(f"environment variable {key}={shown(text)}: expected a whole number")
    return int(text)


def listening_at(name: str) -> str:
    """The address to listen on so that other processes reach it under a name: the name's own, where
    it is this machine's.

    Listens on all addresses for a name that is not this machine's, such as a service's, or that
    only this machine resolves to loopback.

    >>> listening_at("localhost"), listening_at("127.0.0.5"), listening_at("192.0.2.1")
    ('127.0.0.1', '127.0.0.5', '0.0.0.0')
    """
    try:
        address = socket.gethostbyname(name)
        with socket.socket() as probe:
            probe.bind((address, 0))
    except (OSError, UnicodeError):
        return "0.0.0.0"  # noqa: S104
    hidden = address.startswith("127.") and not name.startswith(("127.", "localhost"))
    return "0.0.0.0" if hidden else address  # noqa: S104


def control_of(job: LaunchedJob, timeout_s: float) -> Control:
    """Join the other processes of a job; process 0 hosts the rendezvous.

    Raises
    ------
    FaultError
        When process 0 does not answer.
    ConfigError
        When the port is taken.
    """
    if job.size == 1:
        return Control(0, 1, timeout_s)
    address, token, host = job.address, job.token, None
    if address[0].startswith("file://"):
        address, token, host = _through_file(address[0].removeprefix("file://"), job, timeout_s)
    elif job.process == 0:
        from realcoll.meeting.host import Host

        host = Host(job.size, (listening_at(address[0]), address[1]), token)
    return join(address, job.process, job.size, token=token, timeout_s=timeout_s, host=host)


def _check_own(path: str) -> None:
    """Refuse a file of another user, who could redirect the processes."""
    with open(path, "rb") as stream:  # noqa: PTH123 - as the store opens it
        if not is_own_file(stream.fileno()):
            raise ConfigError(
                "others may read or replace it; expected a file of your own with mode 0600",
                file=path,
            )


def _through_file(
    path: str, job: LaunchedJob, timeout_s: float
) -> tuple[tuple[str, int], str, Host | None]:
    """Address, token and, in process 0, the server.

    Process 0 writes its address to the file, the others read it, the last removes the file.
    """
    host = None
    try:
        store = FileStore(path, job.size)
        _check_own(path)
        store.set_timeout(timedelta(seconds=timeout_s))
        if job.process == 0:
            from realcoll.meeting.host import Host

            host = Host(job.size, (listening_at(socket.gethostname()), 0), secrets.token_hex(16))
            store.set("realcoll", f"{socket.gethostname()} {host.address[1]} {host.token}")
        name, port, token = store.get("realcoll").decode().split()
        store.close()
    except DistStoreError as error:
        raise FaultError(f"rank 0 has not written its address to {path}: {error}", (0,)) from None
    return (name, int(port)), token, host
