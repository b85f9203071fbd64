"""Rank programs in threads, one of which runs at a time.

PyTorch keeps much state per thread (gradient mode, the state of a backward pass, its C++ registry
of groups), and calls back into Python from C++ frames. So a rank cannot be a greenlet here; it is a
thread. One thread at a time has a baton: the clock's, or that of a rank, which runs the program and
carries out its calls (a collective, a wait). Where a call waits for the simulated clock, the thread
gives the baton to the rank whose turn is next, and the last of them to the clock, whose thread
handles events, and runs the task of a rank when its thread begins or ends. Who is next stays with
:mod:`simcoll.distributed.runtime.tasks`, so a run is a function of its program alone.

Threads that the program starts belong to its rank, and take turns likewise
(:mod:`simcoll.torch.thread_waits`).
"""

from __future__ import annotations

import _thread
import contextvars
import functools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

import greenlet  # type: ignore[import-untyped]
import msgspec
import torch
from torch._C._distributed_c10d import _register_process_group, _unregister_all_process_groups

from simcoll.distributed.runtime.device import SimulatedDevice
from simcoll.distributed.runtime.records import (
    Site,
    asked_from,
    calling_site,
    program_starts,
)
from simcoll.distributed.runtime.tasks import Task, Waitable, current_task, wait_until
from simcoll.distributed.runtime.world import Rank, current_rank
from simcoll.distributed.start.spawning import note_failure
from simcoll.distributed.stores.store import TURN_HERE, WAITER_HERE, use_waiter
from simcoll.distributed.stores.store_errors import DistError
from simcoll.errors import InternalError
from simcoll.torch.buffer_races import Flights
from simcoll.torch.callers import TORCH
from simcoll.torch.interrupts import Interrupts

__all__ = [
    "Groups",
    "Process",
    "RankJob",
    "RankThread",
    "current_thread",
    "current_thread_or_none",
    "rank_thread_of",
]

_NOT_THE_PROGRAM = (
    str(Path(__file__).parents[1]),
    TORCH,
    threading.__file__,
)
_active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
_MARK = "simcoll_rank_thread"
"""Attribute of a :class:`threading.Thread`: the RankThread that runs in it."""


@dataclass(slots=True, eq=False)
class _ThisProcess:
    """The process that runs this code; ``pid`` takes a tenth of the time of ``os.getpid``, which
    asks the kernel.
    """

    pid: int = field(default_factory=os.getpid)

    def note_fork(self) -> None:
        """Note, in a forked process, that it is another one."""
        self.pid = os.getpid()


_this_process = _ThisProcess()
if hasattr(os, "register_at_fork"):  # where processes can fork
    os.register_at_fork(after_in_child=_this_process.note_fork)


class _StoppedError(BaseException):
    """Unwinds a program whose run has ended."""


class RankJob(Waitable, kw_only=True):
    """A function that a rank's thread runs: its program, or a callback of a future.

    Attributes
    ----------
    task
        The task for which it runs.
    context
        Context variables of that task, for the calls that the thread carries out for it.
    has_returned
        Whether it has returned; it is done when its task has taken note of that.
    hang
        The error to raise where its thread goes on.
    """

    label: str = "a callback of a future of the same rank"
    function: Callable[[], Any]
    task: Task
    context: contextvars.Context = msgspec.field(default_factory=contextvars.copy_context)
    has_returned: bool = False
    hang: RuntimeError | None = None
    value: Any = None
    failure: BaseException | None = None

    def run(self) -> None:
        """Run it, and store its exception if it raises one."""
        try:
            self.value = self.function()
        except BaseException as error:  # noqa: BLE001  # raised again by the task
            self.failure = error


program_starts.add(RankJob.run.__code__)


@dataclass(slots=True, eq=False)
class Groups:
    """The groups of a process: the fields of ``distributed_c10d._World``."""

    default_pg: Any = None
    pg_map: dict[Any, Any] = field(default_factory=dict)
    pg_names: dict[Any, str] = field(default_factory=dict)
    pg_group_ranks: dict[Any, dict[int, int]] = field(default_factory=dict)
    pg_backend_config: dict[Any, str] = field(default_factory=dict)
    group_count: int = 0
    tags_to_pg: dict[str, list[Any]] = field(default_factory=dict)
    pg_to_tag: dict[Any, str] = field(default_factory=dict)
    pg_coalesce_state: dict[Any, list[Any]] = field(default_factory=dict)
    pg_flight_recorder_hooks: dict[Any, Any] = field(default_factory=dict)
    comms: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Process:
    """The simulated process of a rank.

    Attributes
    ----------
    environment
        Variables of the rank in ``os.environ``.
    rng_state
        State of the default random generator while another rank runs.
    state, generators, signal_handlers, at_exit
        Other process state (:mod:`simcoll.torch.process_state`): the snapshot while another rank
        runs, the generators of ``random`` and ``numpy.random``, and the functions registered with
        ``atexit``.
    pending_signals
        What the main thread has yet to handle (:mod:`simcoll.torch.rank_signals`), if anything.
    wakeup_fd
        The file to which the numbers of its signals are written, or -1.
    take_turn
        Called by the clock's thread before it hands the baton to one of the rank's threads.
    device, watched
        The rank's streams (with a time model), and the mode that enqueues operators' times on them
        and counts memory.
    scopes
        Follows its place in the program, if the run is traced or recorded.
    functional
        Functional collectives of fake tensors in flight, by the storage of their outputs.
    cuda_device
        The number of its current CUDA device, if there are such devices.
    selected_device
        Whether the program has selected it.
    cuda_streams
        Its CUDA streams, by number.
    places
        Where its script has placed tensors, if there are CUDA devices.
    modules
        Its own modules, by name.
    own_backends
        The names of backends that its program has registered.
    around
        A context manager around each of its threads.
    mates
        The processes of its node, itself among them.
    threads
        The live threads of the program.
    last_thread
        The one that has run last, whose current device and streams are those above.
    outsiders
        Names of started threads that take no turns.
    interrupts
        Ctrl-C during the run.
    rpc
        Its worker of RPC, if any.
    waiters
        By what stores wait in its tasks, and what they call before each operation.
    pid
        The ID of the run's process, which tells it from forked ones.
    backend
        The backend whose errors the group being created raises: ``nccl`` or ``emulator``.
    owners
        Its groups, by the C++ groups that stand for them in the dispatcher.
    nccl_only
        Whether all devices of that group use nccl, so that its limits hold.
    flights
        The operations that the program has not waited for.
    stream_races
        The order of its streams, and the accesses to tensors on them.
    tagged
        Whether that group has a tag of functional collectives.
    """

    number: int
    environment: dict[str, str]
    rng_state: torch.Tensor
    take_turn: Callable[[Process], None]
    state: Any
    interrupts: Interrupts
    groups: Groups = field(default_factory=Groups)
    backend: str = "emulator"
    nccl_only: bool = False
    tagged: bool = False
    flights: Any = None
    stream_races: Any = None
    owners: dict[Any, Any] = field(default_factory=dict)
    stores: list[Any] = field(default_factory=list)
    functional: dict[int, Any] = field(default_factory=dict)
    device: SimulatedDevice | None = None
    watched: Any = None
    scopes: Any = None
    cuda_device: int = 0
    selected_device: bool = False
    cuda_streams: Any = None
    places: Any = None
    generators: dict[str, Any] = field(default_factory=dict)
    signal_handlers: dict[int, Any] = field(default_factory=dict)
    pending_signals: Any = None
    wakeup_fd: int = -1
    at_exit: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = field(
        default_factory=list
    )
    modules: dict[str, Any] = field(default_factory=dict)
    own_backends: set[str] = field(default_factory=set)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    mates: list[Process] = field(default_factory=list)
    threads: list[RankThread] = field(default_factory=list)
    last_thread: RankThread | None = None
    outsiders: list[threading.Thread] = field(default_factory=list)
    rpc: Any = None
    waiters: tuple[Any, Any] = (None, None)
    pid: int = field(default_factory=os.getpid)

    def uses_gpu(self) -> bool:
        """Whether the program has selected a GPU, or placed tensors on one."""
        return self.selected_device or bool(self.places is not None and self.places.gpus)


class RankThread:
    """A thread of a rank: the program's main thread, or one that the program started.

    Parameters
    ----------
    process
        The rank's process.
    thread
        The program's thread; None: a new one.

    Attributes
    ----------
    over
        The end of the thread.
    task
        The task whose call the thread carries out; for PyTorch and Python, it is none of the rank's
        meanwhile.
    starting
        Whether it is starting another thread.
    awake
        Called when the thread continues after a request to the clock; must not make requests.
    profile
        The open profile of the thread, if any.
    """

    def __init__(self, process: Process, thread: threading.Thread | None = None) -> None:
        self.process = process
        self.main = thread is None
        self.thread = thread or threading.Thread(
            target=self.run, name=f"rank {process.number}", daemon=True
        )
        setattr(self.thread, _MARK, self)
        self.over = Waitable(f"the end of thread {self.thread.name!r}")
        self.starting = False
        self._stopping: Any = False  # set by another thread, which a narrower type would rule out
        self.awake: Callable[[], None] | None = None
        self.profile: Any = None
        self.task: Task | None = None
        self._rank: Rank | None = None
        self._task: Task | None = None
        self._jobs: list[RankJob] = []
        self._message: RankJob | None = None
        self._outside = contextvars.copy_context()
        self._turn = _thread.allocate_lock()  # threading.Lock() would take turns
        self._turn.acquire()
        self._known: tuple[Any, ...] = ()
        # As in a new thread on a computer with GPUs: the first one, and its default stream.
        self._gpu, self._streams = 0, dict[int, int]()
        self._stream: Any = None
        if process.flights is None:
            process.flights = Flights(self.tell)
        process.threads.append(self)

    @property
    def number(self) -> int:
        """The rank."""
        return self.process.number

    # In the rank's thread

    def run(self) -> None:
        """Run jobs until the run ends."""
        greenlet.getcurrent().outpost = self
        _let_others_start_late()
        with (
            suppress(KeyboardInterrupt),  # between two jobs, or while the run ends
            torch.autograd.set_multithreading_enabled(
                False
            ),  # backward passes call us in this thread
            self.process.around(),
        ):
            self._receive(None)
        # The next thread with this thread's number would find them.
        _unregister_all_process_groups()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function for the rank's task, and return its result.

        Raises
        ------
        RuntimeError
            In a thread of another rank, or in a process that was forked.
        Exception
            What the function raised.
        """
        return self.carry(3, function, args, kwargs)

    def carry(
        self, above: int, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """:meth:`call`, where the first ``above`` frames, with this one and one that it calls, are
        inside the program's line.
        """
        if self.task is not None or _active.get(_thread.get_ident()) is not self.thread:
            return self._thread_of_caller().carry(above + 1, function, args, kwargs)
        process = self.process
        if _this_process.pid != process.pid:
            raise RuntimeError(
                f"process {_this_process.pid}, forked from rank {self.number}, calls "
                "torch.distributed; ranks of a simulated run are "
                "threads of one process, and a forked process has no simulated clock"
            )
        if self._stopping:
            raise _StoppedError
        if process.scopes is not None:
            process.scopes.note()
        job = self._jobs[-1]
        site = job.task.site_of_call = calling_site(*_NOT_THE_PROGRAM, above=above)
        self._outside, self.task = contextvars.copy_context(), job.task
        try:
            value = job.context.run(self._carry_out, site, function, args, kwargs)
        except DistError as error:
            raise getattr(torch.distributed, type(error).__name__)(str(error)) from None
        finally:
            self.task = None
            if self.awake is not None:
                self.awake()
        if process.pending_signals is not None and self.main:
            process.pending_signals.handle(self)
        return value

    def _thread_of_caller(self) -> RankThread:
        """The calling thread, if it is another one of the rank."""
        caller = rank_thread_of()
        if caller is None or caller.process is not self.process:
            raise RuntimeError(
                f"thread {threading.current_thread().name!r} uses a process group of rank "
                f"{self.number}; only the "
                "threads of that rank may: the one that runs its program, and those that it starts "
                "and that take turns"
            )
        return caller

    def _carry_out(
        self, site: Site, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if asked_from.get() is not site:  # a loop calls from one line
            asked_from.set(site)
        device = self.process.device
        if device is not None and device.lead_fs:  # what the program has launched takes its time
            device.pass_time()
        return function(*args, **kwargs)

    def site(self) -> Site:
        """The line of the program that calls."""
        return calling_site(*_NOT_THE_PROGRAM)

    def tell(self, text: str, reason: str = "", *, of_run: bool = False) -> None:
        """Note a finding of the run, once for a line; with a ``reason``, the line is the caller's
        and stands in between. ``of_run``: once for a reason, with its first line.
        """
        if self._rank is None:
            return
        findings = self._rank.world.history.findings
        if of_run and any(finding.endswith(reason) for finding in findings):
            return
        text = f"{text} at {self.site()}: {reason}" if reason else text
        if text not in findings:
            findings.append(text)

    def leave(self, status: int) -> NoReturn:
        """End the rank's process at once, as ``os._exit`` does: its program does not go on."""
        job, failure = self._jobs[-1], _exit_of(status, sys._getframe(1))
        job.failure = failure
        if failure is not None and not self.main and self._rank is not None:
            note_failure(self._rank, failure)
        self._give_back(job)
        self._receive(None)
        raise _StoppedError

    def now_fs(self) -> int:
        """Simulated time of the rank's program, which may be ahead of the clock."""
        device = self.process.device
        lead_fs = 0 if device is None else device.lead_fs
        return lead_fs if self._rank is None else self._rank.world.now + lead_fs

    def wait_for(self, future: torch.futures.Future[Any]) -> None:
        """Wait in simulated time until a future of this rank is done."""
        work = getattr(future, "work", None)
        if work is not None:
            work.wait()
        label = getattr(future, "waits_for", "a torch.futures.Future whose value no rank has set")
        settled = Waitable(label)
        future.add_done_callback(lambda _: settled.finish())
        self.call(wait_until, settled)

    def pause(self) -> None:
        """Give the baton to the rank whose turn is next, or to the clock, until the call that the
        thread carries out is to go on.
        """
        job, task = self._jobs[-1], self.task
        if task is None or self._rank is None:
            raise InternalError(f"rank {self.number} pauses outside of a call")
        task.outpost_of_call = self
        place = self._rank.world.tasks.next_outpost()
        if isinstance(place, RankThread):
            place._take_turn()
            self.process.interrupts.pass_on(place.thread, place._turn)
        else:
            self.process.interrupts.give_back()
        self._receive(job)
        self.task, task.outpost_of_call = task, None
        hang, job.hang = job.hang, None
        if hang is not None:
            raise hang

    def goes_on(self, task: Task) -> bool:
        """Whether the task's call is the latest in this thread, and goes on next."""
        return self._jobs[-1].task is task

    def _receive(self, paused: RankJob | None) -> None:
        """Wait for the baton until a paused job is to go on, or the run ends; run the jobs that
        come before.
        """
        while not self._stopping:
            self._turn.acquire()
            job, self._message = self._message, None
            if self._stopping:
                break
            if len(self.process.threads) > 1 or not self.main:
                self._learn_groups()
            if job is None:
                return
            self.task = None
            if paused is None:
                job.run()
            else:  # not in the context of the paused call
                self._outside.run(job.run)
            if _this_process.pid != self.process.pid:
                _end_fork(job)
            if not self._stopping:  # else it has been unwound
                self._give_back(job)
        if paused is not None:
            raise _StoppedError

    def _give_back(self, job: RankJob) -> None:
        """Give the baton to the clock, at the end of a job."""
        job.has_returned = True
        if self._rank is not None:
            self._rank.world.tasks.caller = job.task
        self.process.interrupts.give_back()

    def _learn_groups(self) -> None:
        """Register groups created by other threads of the rank, as PyTorch's C++ registry is per
        thread.
        """
        groups = tuple(self.process.groups.pg_names.items())
        if groups != self._known:
            self._known = groups
            _unregister_all_process_groups()
            for group, name in groups:
                _register_process_group(name, group)

    # In the clock's thread

    def serve(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread, which carries out its calls for the calling task.

        Several tasks of the rank may do so: the thread runs the latest function first, and
        continues the others when it ends.
        """
        self._rank, task = current_rank(), current_task()
        if task is None:
            raise InternalError(f"rank {self.number} runs a function outside of a task")
        self._task = self._task or task
        if WAITER_HERE.get() is None:  # the task of a thread that the program started
            use_waiter(*self.process.waiters)
        self.process.waiters = WAITER_HERE.get(), TURN_HERE.get()
        job = RankJob(function=function, task=task)
        self._jobs.append(job)
        self._message = job
        self._hand_over(task)
        while not job.has_returned:
            self._wait_for_later_jobs(job)
            self._hand_over(task)
        self._jobs.pop()
        job.finish()
        if job.failure is not None:
            raise job.failure
        return job.value

    def _wait_for_later_jobs(self, job: RankJob) -> None:
        """Wait until the thread has run the jobs that came after one that could go on."""
        task = job.task
        while self._jobs[-1] is not job:
            interrupt, task.interrupt = task.interrupt, None
            try:
                wait_until(self._jobs[-1])
            except RuntimeError as error:  # a hang: reported to every task that waits
                job.hang = error
            task.interrupt = interrupt

    def launch(self, function: Callable[[], Any]) -> None:
        """Run a function in the thread, at the current simulated time, as soon as the thread
        waits.
        """
        if (rank := self._rank) is None:
            return

        def over(task: Task) -> None:
            if task.failure is not None:
                rank.world.history.failures.append(task.failure)

        rank.world.tasks.launch(rank, functools.partial(self.serve, function), over)

    def begin(self, function: Callable[[], Any], rank: Rank | None = None) -> None:
        """Run a function in the thread, which the rank (default: the running one) has started, and
        end the thread afterwards.
        """
        rank = current_rank() if rank is None else rank
        rank.world.tasks.launch(rank, functools.partial(self.serve, function), lambda _: self.end())

    def _hand_over(self, task: Task) -> None:
        """Give the baton to the thread, and continue when the task is to go on or its job has
        ended.
        """
        tasks = task.owner.world.tasks
        self._take_turn()
        self.process.interrupts.hand_over(self.thread, self._turn)
        if tasks.caller is task:
            tasks.caller = None
        else:
            task.pause()

    def _take_turn(self) -> None:
        """Make the state of its rank, and its own, that of the process."""
        self.process.take_turn(self.process)
        if self.process.last_thread is not self:
            self._take_gpu()

    def _take_gpu(self) -> None:
        """Make its current device and streams those of the process: CUDA has them per thread."""
        process, last = self.process, self.process.last_thread
        device, streams = process.device, process.cuda_streams
        if last is not None:
            last._gpu = process.cuda_device
            last._streams = {} if streams is None else streams.current
            last._stream = None if device is None else device.current
            process.cuda_device = self._gpu
        if streams is not None:
            streams.current = self._streams
        if device is not None:
            device.current = self._stream or device.default
        process.last_thread = self

    def end(self) -> None:
        """Unwind a running function, and end the thread."""
        if self in self.process.threads:
            self.process.threads.remove(self)
        if not self._stopping:
            self._stopping = True
            self._turn.release()
            if self.process.interrupts.left is not self.thread:
                self.thread.join()
        self.over.finish()

    def abandon(self) -> None:
        """Unwind a thread that still waits when its rank's program has ended."""
        task = self._task
        if task is not None and not task.dead:
            task.parent = greenlet.getcurrent()  # where it goes when it ends
            task.throw()
            task.close()
        self.end()


def _let_others_start_late() -> None:
    """Go on for a moment when this thread wakes another, which has to wait for the interpreter's
    lock: to be interrupted for that would double the time that a turn takes.
    """
    # Linux has it; processes and threads that the program starts do not inherit it.
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # a sandbox may refuse
            policy = os.SCHED_BATCH | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(0, policy, os.sched_param(0))


def _end_fork(job: RankJob) -> None:
    """End a forked process that has reached the end of the rank's program."""
    failure = job.failure
    status = failure.code if isinstance(failure, SystemExit) else failure is not None
    if failure is not None and not isinstance(failure, SystemExit):
        sys.stderr.write(
            f"simcoll.torch: a forked process ended with {type(failure).__name__}: {failure}\n"
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)  # of a forked process


def _exit_of(status: int, frame: FrameType | None) -> SystemExit | None:
    """The end of a process with a status, as if it were raised in a frame; None if it is 0."""
    if not status % 256:
        return None
    lines: TracebackType | None = None
    while frame is not None:
        lines = TracebackType(lines, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return SystemExit(status).with_traceback(lines)


def rank_thread_of(thread: threading.Thread | None = None) -> RankThread | None:
    """The RankThread of a thread (default: the current one, unless it carries out a call); None for
    other threads.
    """
    # Threading.current_thread() would make an object for a thread that is just starting.
    if thread is None:
        rank_thread: RankThread | None = getattr(_active.get(_thread.get_ident()), _MARK, None)
        return None if rank_thread is not None and rank_thread.task is not None else rank_thread
    return getattr(thread, _MARK, None)


def current_thread_or_none() -> RankThread | None:
    """The current rank thread, in the run's process; else None."""
    thread = rank_thread_of()
    return thread if thread is None or _this_process.pid == thread.process.pid else None


def current_thread() -> RankThread:
    """The current rank thread.

    Raises
    ------
    RuntimeError
        Outside rank programs.
    """
    thread = rank_thread_of()
    if thread is None:
        raise RuntimeError(
            "backend 'simcoll' works in the programs that simcoll.torch.spawn(program, nprocs) "
            "starts: its ranks share a "
            f"simulated clock in one process; this is thread {threading.current_thread().name!r}"
        )
    return thread
