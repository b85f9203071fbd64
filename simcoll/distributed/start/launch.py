"""Start a program as several processes on this machine, with the environment torchrun gives.

``python -m simcoll.distributed.launch --nproc-per-node 4 program.py --its arguments`` starts ``program.py`` four times.
Several machines need the same call on each, with ``--nnodes``, ``--node-rank``, ``--master-addr`` and ``--master-port``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

__all__ = ["Job", "launch", "main", "worker_environment"]

_TERMINATE_S = 10.0  # between asking a worker to end and making it
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Job:
    """The processes to start, all machines' together.

    ``nproc_per_node`` on each of ``nnodes`` machines, of which this is number ``node_rank``. Ranks meet at ``master_addr``
    and ``master_port``, where rank 0 will listen.
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
                f"node_rank must be 0 to {self.nnodes - 1} (nnodes is {self.nnodes}), got {self.node_rank}"
            )
        if not 0 < self.master_port < 65_536:
            raise ConfigError(f"master_port must be 1 to 65535, got {self.master_port}")


def worker_environment(job: Job, local_rank: int) -> dict[str, str]:
    """The variables of one worker.

    >>> variables = worker_environment(Job(nproc_per_node=4, nnodes=2, node_rank=1), local_rank=3)
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


def launch(
    program: Sequence[str],
    arguments: Sequence[str],
    job: Job,
    *,
    environment: Mapping[str, str] | None = None,
    local_rank_argument: bool = False,
) -> int:
    """Start the workers of this machine and wait for them.

    Parameters
    ----------
    program
        The words that start the program, such as ``[sys.executable, "train.py"]``.
    arguments
        Its arguments.
    job
        How many, and where they meet.
    environment
        What the workers' variables are added to; this process's by default.
    local_rank_argument
        Give each worker ``--local-rank=<r>`` before its arguments.

    Returns
    -------
    0 when all ended well; else the exit status of the first that did not (128 + the signal, for one that was killed), or
    128 + the signal that ended the launcher. The others are then asked to end (SIGTERM) and made to (SIGKILL) after ten
    seconds.

    Raises
    ------
    ConfigError
        The program cannot be started.
    """
    shared = dict(os.environ if environment is None else environment)
    if job.nproc_per_node > 1:
        # Else each worker would start as many threads as there are cores.
        shared.setdefault("OMP_NUM_THREADS", "1")
    if job.nnodes == 1:
        # Nobody but these workers has business with their store.
        shared.setdefault("SIMCOLL_STORE_SECRET", secrets.token_hex(16))
    workers: list[subprocess.Popen[bytes]] = []
    try:
        with _noting_signals() as signals:
            for local_rank in range(job.nproc_per_node):
                rank_words = [f"--local-rank={local_rank}"] if local_rank_argument else []
                variables = shared | worker_environment(job, local_rank)
                words = [*program, *rank_words, *arguments]
                # A session of its own, so that whatever a worker starts can be ended with it.
                workers.append(subprocess.Popen(words, env=variables, start_new_session=True))  # noqa: S603
            return _first_failure(workers, job, signals)
    except OSError as error:
        raise ConfigError(f"cannot start {program[0]!r}: {error.strerror}") from error
    finally:
        _end(workers)


def _first_failure(workers: Sequence[subprocess.Popen[bytes]], job: Job, signals: Sequence[int]) -> int:
    running = dict(enumerate(workers))
    while running:
        if signals:
            return 128 + signals[0]
        for local_rank, worker in list(running.items()):
            status = _status(worker)
            if status is None:
                continue
            if status != 0:
                rank = job.node_rank * job.nproc_per_node + local_rank
                how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
                sys.stderr.write(
                    f"rank {rank} (local rank {local_rank}, process {worker.pid}) {how}; ending the others\n"
                )
                return 128 - status if status < 0 else status
            worker.wait()
            del running[local_rank]
        time.sleep(_POLL_S)
    return 0


def _status(worker: subprocess.Popen[bytes]) -> int | None:
    """How a worker ended, if it did, as Popen says it. Does not collect it: until then nobody else can get its number."""
    found = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the workers that have not ended well, and what they started."""
    left = [worker for worker in workers if worker.returncode is None]
    for worker in left:
        _signal_all(worker.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + _TERMINATE_S
    while time.monotonic() < deadline_s and any(_status(worker) is None for worker in left):
        time.sleep(_POLL_S)
    for worker in left:
        _signal_all(worker.pid, signal.SIGKILL)
        worker.wait()


def _signal_all(group: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, how)


@contextlib.contextmanager
def _noting_signals() -> Iterator[list[int]]:
    """Note signals that would end the launcher instead of dying of them: its workers must end first."""
    noted: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        noted.append(number)

    before = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only the main thread may; elsewhere whoever runs us decides.
        with contextlib.suppress(ValueError):
            before.append((number, signal.signal(number, note)))
    try:
        yield noted
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simcoll.distributed.launch",
        description="Start a program as several processes, with the environment torchrun gives.",
        allow_abbrev=False,
    )

    def option(name: str, default: object, text: str) -> None:
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", type=type(default), default=default, help=text)

    option("nproc-per-node", 1, "processes on each machine")
    option("nnodes", 1, "machines")
    option("node-rank", 0, "which of the machines this is")
    option("master-addr", "127.0.0.1", "the address of machine 0")
    option("master-port", 29_500, "where rank 0 listens; 0 chooses a free port (one machine only)")
    option("run-id", "none", "a name for this job")
    parser.add_argument("--standalone", action="store_true", help="one machine, any free port")
    parser.add_argument(
        "--use-env", "--use_env", action="store_true", help="do not pass --local-rank: the program reads LOCAL_RANK"
    )
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module, as in python -m")
    parser.add_argument(
        "--no-python", "--no_python", action="store_true", help="the program is no Python file: run it as it is"
    )
    parser.add_argument("program", help="what to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """The command line; the exit status is that of `launch`, or 2 for arguments that cannot be."""
    parser = _parser()
    given = parser.parse_args(words)
    if given.no_python and given.module:
        parser.error("--no-python and --module exclude each other")
    if given.standalone and given.nnodes != 1:
        parser.error("--standalone is for one machine")
    if given.master_port == 0 and given.nnodes != 1:
        parser.error("--master-port 0 is for one machine: the others could not know the port")
    port = _free_port() if given.standalone or given.master_port == 0 else given.master_port
    python = [] if given.no_python else [sys.executable, "-u", *(["-m"] if given.module else [])]
    try:
        job = Job(given.nproc_per_node, given.nnodes, given.node_rank, given.master_addr, port, given.run_id)
        return launch(
            [*python, given.program],
            given.arguments,
            job,
            local_rank_argument=not (given.use_env or given.no_python),
        )
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
