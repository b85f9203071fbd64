"""Rank programs in threads, of which one runs at a time.

PyTorch keeps much state per thread (whether gradients are recorded, the state of a backward pass, its C++ registry of groups), and
calls back into Python from the middle of C++. So a rank cannot be a greenlet here; it is a thread. The thread and the rank's task
under the simulated clock pass a baton. The task hands it over and waits; the thread runs the program until that needs the clock (a
collective, a wait), hands the baton back, and receives it again with the answer. Scheduling (which rank is next, what time it is)
stays with :mod:`simcoll.distributed.runtime.emulated`, so that a run depends on its program only.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import _unregister_all_process_groups

from simcoll.distributed.runtime.records import Site, asked_from, calling_site
from simcoll.distributed.runtime.tasks import Task, Waitable, wait_until
from simcoll.distributed.runtime.world import Rank, current_rank

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Job", "RankThread", "current_thread", "current_thread_or_none"]

_NOT_THE_PROGRAM = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))


class _StoppedError(BaseException):
    """Unwinds a program whose run has ended."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A call that a rank asks the clock's thread to make, and the line that asks."""

    function: Callable[[], Any]
    site: Site

    def answer(self) -> _Answer:
        asked_from.set(self.site)
        try:
            return _Answer(self.function())
        except Exception as error:  # noqa: BLE001  # the program's own; it is raised there
            return _Answer(failure=error)


@dataclass(frozen=True, slots=True)
class _Answer:
    value: Any = None
    failure: BaseException | None = None


class Job(Waitable):
    """A function that a rank's thread runs: its program, or a callback of a future."""

    __slots__ = ("failure", "function", "value")

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__("a callback of a future of the same rank")
        self.function = function
        self.value: Any = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Run it and keep its exception, if it raises one."""
        try:
            self.value = self.function()
        except BaseException as error:  # noqa: BLE001  # raised again by the task
            self.failure = error


class RankThread(threading.Thread):
    """The thread of a rank.

    Parameters
    ----------
    number
        The rank.
    environment
        Variables of the rank in ``os.environ``.
    rng_state
        State of the default random generator while it is not the rank's turn.
    take_turn
        Called by the clock's thread before it hands a rank the baton.
    """

    def __init__(
        self,
        number: int,
        environment: dict[str, str],
        rng_state: torch.Tensor,
        take_turn: Callable[[RankThread], None],
    ) -> None:
        super().__init__(name=f"rank {number}", daemon=True)
        self.number = number
        self.environment = environment
        self.rng_state = rng_state
        self.store: Any = None
        self._take_turn = take_turn
        self._rank: Rank | None = None
        self._jobs: list[Job] = []
        self._message: Any = None
        self._rank_turn = threading.Lock()
        self._clock_turn = threading.Lock()
        self._rank_turn.acquire()
        self._clock_turn.acquire()
        self._stopping = threading.Event()

    # In the rank's thread

    def run(self) -> None:
        """Run jobs until the run ends."""
        with torch.autograd.set_multithreading_enabled(False):  # backward passes call us in this thread
            self._receive()
        _unregister_all_process_groups()  # the next thread with this thread's number would find them

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Let the clock's thread call a function in the rank's task, and return its result.

        Raises
        ------
        RuntimeError
            In another thread.
        Exception
            What the function raised.
        """
        if threading.current_thread() is not self:
            raise RuntimeError(
                f"thread {threading.current_thread().name!r} uses a process group of rank {self.number}; "
                "only the thread that runs the rank's program may"
            )
        if self._stopping.is_set():
            raise _StoppedError
        self._send(_Request(functools.partial(function, *args, **kwargs), calling_site(*_NOT_THE_PROGRAM)))
        answer = self._receive()
        if answer.failure is not None:
            raise answer.failure
        return answer.value

    def wait_for(self, future: torch.futures.Future[Any]) -> None:
        """Wait in simulated time until a future of this rank is done."""
        work = getattr(future, "work", None)
        if work is not None:
            work.wait()
        over = Waitable("a torch.futures.Future whose value no rank has set")
        future.add_done_callback(lambda _: over.finish())
        self.call(wait_until, over)

    def _send(self, message: Any) -> None:
        self._message = message
        self._clock_turn.release()

    def _receive(self) -> _Answer:
        """Wait for an answer; run the jobs that arrive before it."""
        while not self._stopping.is_set():
            self._rank_turn.acquire()
            message, self._message = self._message, None
            if self._stopping.is_set():
                break
            if isinstance(message, _Answer):
                return message
            message.run()
            self._send(message)
        return _Answer(failure=_StoppedError())

    # In the clock's thread

    def serve(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread; the calling task carries out the calls it requests.

        Several tasks of the rank may do so: the thread runs the latest first, and the others continue when it has ended.
        """
        self._rank = current_rank()
        job = Job(function)
        self._jobs.append(job)
        message = self._hand_over(job)
        while message is not job:
            answer = message.answer()
            while self._jobs[-1] is not job:
                try:
                    wait_until(self._jobs[-1])
                except RuntimeError as error:  # a hang: reported to every task that waits
                    answer = _Answer(failure=error)
            message = self._hand_over(answer)
        self._jobs.pop()
        job.finish()
        if job.failure is not None:
            raise job.failure
        return job.value

    def launch(self, function: Callable[[], Any]) -> None:
        """Run a function in the thread, at the present time, as soon as the thread waits."""
        rank = self._rank
        if rank is None:
            return

        def over(task: Task) -> None:
            if task.failure is not None:
                rank.world.history.failures.append(task.failure)

        rank.world.tasks.launch(rank, functools.partial(self.serve, function), over)

    def _hand_over(self, message: Any) -> Any:
        self._take_turn(self)
        self._message = message
        self._rank_turn.release()
        self._clock_turn.acquire()
        return self._message

    def stop(self) -> None:
        """Unwind the program if it still runs, and end the thread."""
        self._stopping.set()
        self._rank_turn.release()
        self.join()


def current_thread_or_none() -> RankThread | None:
    """The current thread, if it is that of a rank."""
    thread = threading.current_thread()
    return thread if isinstance(thread, RankThread) else None


def current_thread() -> RankThread:
    """The current thread, which is that of a rank.

    Raises
    ------
    RuntimeError
        Outside rank programs.
    """
    thread = current_thread_or_none()
    if thread is None:
        raise RuntimeError(
            "backend 'simcoll' works in the programs that simcoll.torch.spawn(program, nprocs) starts: its ranks share a "
            f"simulated clock in one process; this is thread {threading.current_thread().name!r}"
        )
    return thread
