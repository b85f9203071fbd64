"""``realcoll launch``: several processes on this machine, with torchrun's environment variables, and a process manager for MPICH."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from realcoll.start.pmi import Board
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["launch"]

MAX_PROCESSES = 4096
GRACE_S = 5.0
POLL_S = 0.02
PR_SET_PDEATHSIG = 1


def launch(processes: int, command: Sequence[str]) -> int:
    """Start a Python script that many times and wait for all.

    When one fails, or this process is told to stop, the others get SIGTERM, and SIGKILL a few seconds later: nothing is left behind.

    Parameters
    ----------
    processes
        How many.
    command
        Script with its arguments, or ``-m`` and a module.

    Returns
    -------
    int
        0, or the exit status of the first that failed (128 plus the signal for one that was killed).
    """
    if not 1 <= processes <= MAX_PROCESSES:
        raise ConfigError(f"-n {processes}: expected 1..{MAX_PROCESSES} processes")
    if not command:
        raise ConfigError("launch needs a script; for example: realcoll launch -n 4 script.py")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    others = ("PMI", "PMIX", "OMPI", "PRTE", "HYDRA")  # of a launcher around this one
    shared = {name: value for name, value in os.environ.items() if name.partition("_")[0] not in others} | {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "REALCOLL_TOKEN": secrets.token_hex(16),
    }
    running: dict[int, subprocess.Popen[bytes]] = {}
    board = Board(processes)
    with _stoppable():
        try:
            for rank in range(processes):
                seat, pmi = board.seat(rank)
                own = shared | pmi | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                with seat:
                    running[rank] = subprocess.Popen(  # noqa: S603 - the user's own script
                        [sys.executable, *command],
                        env=own,
                        pass_fds=[seat.fileno()],
                        preexec_fn=_end_with(os.getpid()),  # noqa: PLW1509 - there are no threads here
                    )
            return _wait(running, board)
        finally:
            _stop(running, board)
            board.close()


def _end_with(launcher: int) -> Callable[[], None] | None:
    """What a new process does first, so that it does not outlive a launcher that is killed."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it was killed before
            os._exit(1)

    return ask


def _wait(running: dict[int, subprocess.Popen[bytes]], board: Board) -> int:
    while running:
        for rank, process in list(running.items()):
            status = process.poll()
            if status is None:
                continue
            del running[rank]
            if status:
                how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
                print(f"realcoll: rank {rank} {how}", file=sys.stderr)
                return status if status > 0 else 128 - status
        board.serve(POLL_S)
    return 0


def _stop(running: dict[int, subprocess.Popen[bytes]], board: Board) -> None:
    """End what still runs, giving it time to say what it saw."""
    limit = time.monotonic() + GRACE_S
    while running and time.monotonic() < limit:
        for rank, process in list(running.items()):
            if process.poll() is not None:
                del running[rank]
        if time.monotonic() > limit - GRACE_S / 2:
            for process in running.values():
                process.terminate()
        board.serve(POLL_S)
    for process in running.values():
        process.kill()
        process.wait()


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that children are ended before this process is."""

    def stop(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
