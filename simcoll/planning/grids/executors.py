"""Executors for grids: this process, local processes, a dask cluster, or the ranks of an MPI
job.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pkgutil import resolve_name
from threading import Thread, local
from traceback import format_exception_only
from typing import Any, TypeVar, cast

from simcoll import __version__
from simcoll.errors import ConfigError, InternalError, nearest

__all__ = ["GridPool", "open_pool"]

Answer = TypeVar("Answer")

HOLD_S = 0.1
"""Time that a worker batches rows: little to lose, yet enough to amortise the hand-over of
millisecond rows.
"""
NEAR_HOLD_S = 0.5
"""Batching time of workers that save rows to a file and lose none: longer, so that each continues
with its cached schedule.
"""
KINDS = ("processes", "dask://host:port", "mpi")


@dataclass(frozen=True, slots=True)
class GridPool:
    """An executor for a grid.

    Attributes
    ----------
    executor
        Any :class:`concurrent.futures.Executor` whose workers can import simcoll.
    workers
        Current number of workers.
    ahead
        Outstanding requests per worker: with two, no worker idles.
    hold_s
        Seconds that a worker may batch rows before it hands them over.
    shares_folder
        Whether its workers share the results folder, where they save rows not handed over yet.
    lost
        Exceptions of its futures when a worker dies and cannot be replaced.
    gone
        Exceptions when the scheduler cannot be reached any more.
    """

    executor: Executor
    workers: Callable[[], int]
    ahead: int = 2
    hold_s: float = HOLD_S
    shares_folder: bool = False
    lost: tuple[type[BaseException], ...] = (BrokenExecutor,)
    gone: tuple[type[BaseException], ...] = ()


class _Here(Executor):
    """Runs submitted calls at once, in this process."""

    def submit(self, fn: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        future: Future[Answer] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        # It is raised where the result is requested; Ctrl-C propagates.
        except Exception as error:  # noqa: BLE001
            future.set_exception(error)
        return future


@contextmanager
def open_pool(kind: str = "processes", jobs: int | None = None) -> Iterator[GridPool | None]:
    """Open an executor for the duration of the block.

    Parameters
    ----------
    kind
        ``"processes"``; ``"dask://host:port"``, the address of a scheduler; or ``"mpi"``: the other
        ranks of an MPI job.
    jobs
        Number of processes. Default: one per available core. With one, this process does the work.

    Yields
    ------
    GridPool | None
        ``None`` on ranks of an MPI job other than 0, whose work is done when the block begins.

    Raises
    ------
    ConfigError
        For an unknown kind, a number of jobs below 1 or given for a kind that has its own, a
        missing package, or a scheduler that does not answer.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: expected 1 or more")
    if kind == "processes":
        with _processes(jobs) as pool:
            yield pool
        return
    opener = _dask if kind.startswith("dask://") else _mpi if kind == "mpi" else None
    if opener is None:
        raise ConfigError(f"unknown executor {kind!r}; {nearest(kind, KINDS)}")
    if jobs is not None:
        raise ConfigError(
            f"--jobs is for processes; the number of workers of {kind} is set where it is started"
        )
    with opener(kind) as remote_pool:
        yield remote_pool


class _Processes(ThreadPoolExecutor):
    """Every thread has a process and a pipe to it.

    The processes of the standard pool share semaphores, whose names stay in the system when all of
    them are killed.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.thread_state = local()
        self.workers: list[tuple[BaseProcess, Connection]] = []

    def submit(self, fn: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        return super().submit(self._ask, fn, args, kwargs)

    def _ask(self, *call: Any) -> Any:
        if not hasattr(self.thread_state, "pipe"):
            self.thread_state.pipe = self._start()
        try:
            self.thread_state.pipe.send(call)
            returned, answer = self.thread_state.pipe.recv()
        except (EOFError, OSError):
            raise BrokenExecutor("a process has ended") from None
        if returned:
            return answer
        raise answer

    def _start(self) -> Connection:
        context = get_context("spawn")  # a fork would copy the threads' locks of compiled code
        parent_end, child_end = context.Pipe()
        process = context.Process(target=_serve, args=(child_end,), daemon=True)
        process.start()
        child_end.close()  # so that its end is heard
        self.workers.append((process, parent_end))
        return parent_end

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        for process, pipe in self.workers:
            if wait:
                pipe.close()
            else:
                process.terminate()
            process.join()


def _serve(pipe: Connection) -> None:
    """Answer calls until the pipe is closed; leave Ctrl-C to the parent, and end with it, even when
    it is killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def end() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    Thread(target=end, daemon=True).start()
    while True:
        try:
            call = pipe.recv_bytes()
        except EOFError:
            return
        try:
            function, arguments, options = pickle.loads(call)  # noqa: S301 - of our parent
            answer = pickle.dumps((True, function(*arguments, **options)))
        except Exception as error:  # noqa: BLE001 - raised where the result is requested
            answer = _failure(error)
        pipe.send_bytes(answer)


def _failure(error: Exception) -> bytes:
    """The answer with an error, or with its words where that cannot be sent."""
    try:
        answer = pickle.dumps((False, error))
        pickle.loads(answer)  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - its class may do anything then
        description = "".join(format_exception_only(error)).strip()
        return pickle.dumps((False, InternalError(f"a process that plays points: {description}")))
    return answer


@contextmanager
def _processes(jobs: int | None) -> Iterator[GridPool]:
    count = jobs or len(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    if count == 1:
        yield GridPool(_Here(), lambda: 1, ahead=1, hold_s=0)
        return
    executor = _Processes(count)
    try:
        yield GridPool(executor, lambda: count, hold_s=NEAR_HOLD_S, shares_folder=True)
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown()


@contextmanager
def _dask(kind: str) -> Iterator[GridPool]:
    try:
        from distributed import Client, KilledWorker
        from distributed.comm import CommClosedError
    except ImportError:
        raise ConfigError(
            f"--executor {kind} needs dask.distributed: pip install 'simcoll[cluster]'"
        ) from None
    address = kind.replace("dask://", "tcp://", 1)
    try:
        client = Client(address, timeout=20)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--executor {kind}: no dask scheduler answers there ({error})") from None
    # The error below says it in one line.
    for talker in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(talker).setLevel(logging.CRITICAL)
    with client:
        # A worker that cannot import what it gets dies, and its request goes to the next one.
        for worker, version in client.run(
            resolve_name, "simcoll:__version__", on_error="return"
        ).items():
            if version != __version__:
                raise ConfigError(
                    f"--executor {kind}: worker {worker} has {_or_why(version)}, and simcoll "
                    f"{__version__} is needed"
                )
        # Not even the scheduler may take two requests for one: a point that is played again shall
        # be played.
        yield GridPool(
            client.get_executor(pure=False),
            _worker_counter(lambda: sum(client.nthreads().values())),
            lost=(KilledWorker,),
            gone=(CommClosedError, CancelledError),
        )


def _worker_counter(count: Callable[[], int]) -> Callable[[], int]:
    """The number of workers, at least one; says once when there are none, for which dask waits in
    silence.
    """
    waiting = False

    def workers() -> int:
        nonlocal waiting
        available = count()
        if not available and not waiting:
            sys.stderr.write("# no dask worker is there; waiting for one\n")
        waiting = not available
        return max(1, available)

    return workers


def _or_why(version: object) -> str:
    return f"no simcoll ({version})" if isinstance(version, Exception) else f"simcoll {version}"


@contextmanager
def _mpi(_kind: str) -> Iterator[GridPool | None]:
    try:
        from mpi4py import MPI
        from mpi4py.futures import MPICommExecutor
    except ImportError:
        raise ConfigError("--executor mpi needs mpi4py: pip install 'simcoll[mpi]'") from None
    workers = MPI.COMM_WORLD.size - 1
    if workers < 1:
        raise ConfigError(
            "--executor mpi: there is one rank; start it as mpiexec -n 4 simcoll ..., and 3 of "
            "them play"
        )
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        yield None if executor is None else GridPool(cast("Executor", executor), lambda: workers)
