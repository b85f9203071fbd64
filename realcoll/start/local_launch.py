"""``realcoll launch``: start processes on this machine with torchrun's variables and a process
manager for MPICH.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

from realcoll.start.pmi import Board
from simcoll.distributed.server.secret import VARIABLE, job_secret, new_secret
from simcoll.distributed.start.processes import ProcessJob, Worker, run_workers, worker_environment
from simcoll.errors import ConfigError

__all__ = ["launch"]

MAX_PROCESSES = 4096
LAST_WORDS_S = 2.5
TERMINATE_S = 2.5
LAUNCHERS = ("PMI", "PMIX", "OMPI", "PRTE", "HYDRA")
"""Prefixes of variables of an enclosing launcher."""


def launch(processes: int, command: Sequence[str]) -> int:
    """Start a Python script in several processes, and wait for all.

    When one fails, the others have a few seconds to report, then get SIGTERM, and SIGKILL a few
    seconds later. A signal to this process ends them without the first delay. No process is left
    behind.

    Parameters
    ----------
    processes
        Number of processes.
    command
        Script with its arguments, or ``-m`` and a module.

    Returns
    -------
    int
        0, or the exit status of the first that failed (128 plus the signal for one that was
        killed).
    """
    if not 1 <= processes <= MAX_PROCESSES:
        raise ConfigError(f"-n {processes}: expected 1..{MAX_PROCESSES} processes")
    if not command:
        raise ConfigError("launch needs a script; for example: realcoll launch -n 4 script.py")
    with contextlib.closing(Board(processes)) as board:
        workers = _workers(ProcessJob(processes, master_port=0), board, command)
        return run_workers(
            workers, last_words_s=LAST_WORDS_S, terminate_s=TERMINATE_S, attend=board.serve
        )


def _workers(job: ProcessJob, board: Board, command: Sequence[str]) -> Iterator[Worker]:
    """Yield the workers, each with a socket of the board; our copy of the socket is closed once the
    worker has started.
    """
    shared = {
        name: value for name, value in os.environ.items() if name.partition("_")[0] not in LAUNCHERS
    }
    shared.setdefault(VARIABLE, job_secret(shared) or new_secret())
    for rank in range(job.nproc_per_node):
        seat, pmi = board.seat(rank)
        with seat:
            environment = shared | pmi | worker_environment(job, rank)
            yield Worker([sys.executable, *command], environment, (seat.fileno(),))
