"""Start worker processes with torchrun's environment, which end together.

Each worker runs in its own session, so that its descendants can be ended with it, and does not
outlive a killed launcher.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from simcoll.errors import ConfigError

_Started = Sequence[tuple["Worker", subprocess.Popen[bytes]]]

__all__ = ["ProcessJob", "Worker", "run_workers", "worker_environment"]

_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ProcessJob:
    """The processes to start, on all machines together.

    Attributes
    ----------
    nproc_per_node
        Processes on each machine.
    nnodes
        Machines.
    node_rank
        Number of this machine.
    master_addr
        The address of machine 0.
    master_port
        Port of rank 0; 0 chooses a free one (one machine only).
    run_id
        A name for this job.
    """

    nproc_per_node: int = 1
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29_500
    run_id: str = "none"

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("nproc_per_node", "nnodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigError(
                f"node_rank must be 0 to {self.nnodes - 1} (nnodes is {self.nnodes}), got "
                f"{self.node_rank}"
            )
        if not 0 <= self.master_port < 65_536:
            raise ConfigError(
                f"master_port must be 1 to 65535, or 0 for a free one, got {self.master_port}"
            )
        if self.master_port == 0:
            if self.nnodes != 1:
                raise ConfigError(
                    "master_port 0 is for one machine: the others could not know the port"
                )
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                object.__setattr__(self, "master_port", probe.getsockname()[1])


def worker_environment(job: ProcessJob, local_rank: int) -> dict[str, str]:
    """The environment variables of one worker.

    >>> job = ProcessJob(nproc_per_node=4, nnodes=2, node_rank=1)
    >>> variables = worker_environment(job, local_rank=3)
    >>> variables["RANK"], variables["LOCAL_RANK"], variables["WORLD_SIZE"]
    ('7', '3', '8')
    """
    world_size = job.nproc_per_node * job.nnodes
    rank = job.node_rank * job.nproc_per_node + local_rank
    variables = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": job.nproc_per_node,
        "GROUP_RANK": job.node_rank,
        "GROUP_WORLD_SIZE": job.nnodes,
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": job.master_addr,
        "MASTER_PORT": job.master_port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": job.run_id,
        # Rank 0 holds the store, not this launcher.
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }
    return {name: str(value) for name, value in variables.items()}


@dataclass(frozen=True, slots=True)
class Worker:
    """A process to start: its command, its whole environment, and the descriptors it inherits."""

    words: Sequence[str]
    environment: Mapping[str, str]
    inherits: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """The name of the worker in messages."""
        return f"rank {self.environment['RANK']} (local rank {self.environment['LOCAL_RANK']}"


def run_workers(
    workers: Iterable[Worker],
    *,
    last_words_s: float = 0.0,
    terminate_s: float = 10.0,
    attend: Callable[[float], object] = time.sleep,
) -> int:
    """Start workers and wait for them; the first failure, or a signal to this process, ends all.

    Parameters
    ----------
    workers
        Each is started before the next is requested.
    last_words_s
        After a failure, time for the other workers to report before they get SIGTERM.
    terminate_s
        Time between SIGTERM and SIGKILL. A second signal to this process cuts it short.
    attend
        Called repeatedly with the number of seconds that it may block.

    Returns
    -------
    0 if all workers succeed; else the exit status of the first that fails (128 + signal if it was
    killed), or 128 + the signal that this process received.
    """
    started: list[tuple[Worker, subprocess.Popen[bytes]]] = []
    with _noting_signals() as signals:
        try:
            for worker in workers:
                started.append((worker, _start(worker)))
                if signals:
                    break
            status = _first_failure(started, signals, attend)
            _end(started, signals, 0.0 if signals else last_words_s, terminate_s, attend)
        except BaseException:
            _end(started, signals, 0.0, terminate_s, attend)
            raise
    return status


def _start(worker: Worker) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603  the user's own program
            list(worker.words),
            env=dict(worker.environment),
            pass_fds=worker.inherits,
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()),  # noqa: PLW1509  one call of the kernel's
        )
    except OSError as error:
        raise ConfigError(f"cannot start {worker.words[0]!r}: {error.strerror}") from error


def _end_with(launcher: int) -> Callable[[], None] | None:
    """Make the kernel end this new process with its launcher."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it was killed before
            os._exit(1)

    return ask


def _first_failure(
    started: _Started, signals: Sequence[int], attend: Callable[[float], object]
) -> int:
    running = list(started)
    while running:
        if signals:
            return 128 + signals[0]
        for child in list(running):
            worker, process = child
            status = _status(process)
            if status is None:
                continue
            if status != 0:
                fate = (
                    f"was killed by {signal.Signals(-status).name}"
                    if status < 0
                    else f"exited with status {status}"
                )
                full = " (is /dev/shm full?)" if status == -getattr(signal, "SIGBUS", 0) else ""
                sys.stderr.write(
                    f"{worker.title}, process {process.pid}) {fate}{full}; ending the others\n"
                )
                return 128 - status if status < 0 else status
            process.wait()
            running.remove(child)
        attend(_POLL_S)
    return 0


def _status(process: subprocess.Popen[bytes]) -> int | None:
    """Exit status of a worker that has ended, as Popen gives it.

    Does not reap the worker, so that its process ID cannot be reused yet.
    """
    if process.returncode is not None:
        return process.returncode
    status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _end(
    started: _Started,
    signals: Sequence[int],
    last_words_s: float,
    terminate_s: float,
    attend: Callable[[float], object],
) -> None:
    """End the remaining workers and all their descendants."""
    survivors = [process for _, process in started if process.returncode is None]
    noted = len(signals)

    def pause(seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (
            time.monotonic() < until_s
            and len(signals) == noted
            and any(_status(process) is None for process in survivors)
        ):
            attend(_POLL_S)

    pause(last_words_s)
    _signal_all(survivors, signal.SIGTERM)
    pause(terminate_s)
    _signal_all(survivors, signal.SIGKILL)
    for process in survivors:
        process.wait()


def _signal_all(processes: Iterable[subprocess.Popen[bytes]], how: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, how)


@contextlib.contextmanager
def _noting_signals() -> Iterator[list[int]]:
    """Record signals that would end this process, since its workers must end first.

    The handler must not raise (KeyboardInterrupt included): an exception inside Popen leaves a lock
    held, and the next wait never returns.
    """
    noted: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        noted.append(number)

    handlers = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # nohup
        # Only the main thread may; in other threads the program's own handlers stay.
        with contextlib.suppress(ValueError):
            handlers.append((number, signal.signal(number, note)))
    try:
        yield noted
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
