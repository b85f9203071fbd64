"""Who this process is, as its launcher says: mpirun, srun, torchrun or ``realcoll launch``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from realcoll.control import Control
from realcoll.rendezvous import Host, join
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Job", "control_of", "job_from"]

PORT = 29533
# (launcher, rank, world size, rank on this machine), most specific first.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


@dataclass(frozen=True, slots=True)
class Job:
    """A process in a job.

    Attributes
    ----------
    launcher
        Whose variables were found; empty for a process alone.
    process, size
        Its number, and how many there are.
    local
        Its number on this machine: which GPU it takes.
    address
        Host and port where process 0 listens.
    token
        What processes of this job know and others do not.
    """

    launcher: str
    process: int
    size: int
    local: int
    address: tuple[str, int]
    token: str = ""


def job_from(environment: Mapping[str, str]) -> Job:
    """Read the variables of the launcher.

    Raises
    ------
    ConfigError
        For values that are no numbers or do not fit, or when several machines are used and ``MASTER_ADDR`` is not set.

    Examples
    --------
    >>> job_from({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node7"}).address
    ('node7', 29533)
    """
    launcher, process, size, local = "", 0, 1, 0
    for name, rank_key, size_key, local_key in _LAUNCHERS:
        if rank_key in environment and size_key in environment:
            launcher = name
            process, size = _number(environment, rank_key), _number(environment, size_key)
            local = _number(environment, local_key) if local_key in environment else process
            break
    if not 0 <= process < size:
        raise ConfigError(f"{launcher} says that this is rank {process} of {size}; expected 0..{size - 1}")
    host = environment.get("MASTER_ADDR", "")
    nodes = environment.get("SLURM_NNODES", "1")
    if not host and size > 1 and launcher == "Slurm" and nodes != "1":
        raise ConfigError(f"the job runs on {nodes} machines: set MASTER_ADDR to the name of the one with rank 0")
    port = _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else PORT
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # the agent of torchrun listens on the port itself
    token = environment.get("REALCOLL_TOKEN") or environment.get("TORCHELASTIC_RUN_ID", "") + environment.get(
        "SLURM_JOB_ID", ""
    )
    return Job(launcher, process, size, local, (host or "127.0.0.1", port), token)


def _number(environment: Mapping[str, str], key: str) -> int:
    text = environment[key]
    if not text.strip().isdecimal():
        raise ConfigError(f"environment variable {key}={text!r}: expected a whole number")
    return int(text)


def control_of(job: Job, timeout_s: float) -> Control:
    """Join the other processes of a job; process 0 hosts the rendezvous.

    Raises
    ------
    FaultError
        When process 0 does not answer.
    ConfigError
        When the port is taken.
    """
    if job.size == 1:
        return Control(0, 1, None, timeout_s)
    loopback = job.address[0] in ("127.0.0.1", "localhost")
    host = None
    if job.process == 0:
        host = Host(job.size, ("127.0.0.1" if loopback else "0.0.0.0", job.address[1]), job.token)  # noqa: S104
    seat = join(job.address, job.process, job.size, token=job.token, timeout_s=timeout_s, host=host)
    return Control(job.process, job.size, seat, timeout_s)
