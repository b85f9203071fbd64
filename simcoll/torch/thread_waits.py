"""Threads that a rank's program starts, which take turns under the simulated clock.

While a run is active, ``threading``, ``queue`` and ``time`` behave as follows in the threads of
ranks, and elsewhere as usual. A thread that a rank starts belongs to that rank, and runs when its
starter waits. Waits for a condition (the basis of events, semaphores, barriers, queues and
executors), for a lock and for the end of a thread let other threads and ranks run. Timeouts,
``time.sleep`` and the clocks of ``time`` use simulated time. Threads of ``multiprocessing`` and of
event loops wait for other processes and for sockets, so they take no turns, and calls of
``torch.distributed`` are refused there.
"""

from __future__ import annotations

import importlib
import itertools
import math
import multiprocessing
import os
import queue
import select
import selectors
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import thread as executors
from typing import Any

from simcoll import distributed as ours
from simcoll.distributed.runtime.tasks import Waitable, wait_until
from simcoll.distributed.runtime.world import current_rank
from simcoll.torch.rank_threads import Process, RankThread, current_thread_or_none, rank_thread_of
from simcoll.torch.replacing import for_ranks

if sys.platform != "win32":
    import fcntl

__all__ = ["OUTSIDE_MARK", "end_threads", "replacements"]

_OUTSIDE = (
    "asyncio.",
    "multiprocessing.",
    "multiprocess.",  # as datasets and pathos use it
    "billiard.",
    "loky.",
    "joblib.externals.loky.",
    "torch.multiprocessing.",
    "torch.utils.data.",
    "concurrent.futures.process",
)
"""Modules whose threads communicate with other processes."""
_TICK_S = 1e-3
OUTSIDE_MARK = "simcoll_refusal"
"""Attribute of a thread that takes no turns: the error of its calls."""


class _Signal(Waitable):
    """A wait for another thread; ``release`` is what :class:`threading.Condition` calls on its
    waiters.
    """

    def release(self) -> None:
        self.finish()


def _wait_in_task(signal: Waitable, timeout_fs: int | None, *, explicit: bool) -> bool:
    """Wait in the rank's task; False after the timeout."""
    world, begin_fs = current_rank().world, current_rank().world.now
    try:
        wait_until(signal, timeout_fs, explicit=explicit)
    except RuntimeError:
        if timeout_fs is not None and world.now - begin_fs >= timeout_fs:
            return False
        raise
    return True


def _wait(thread: RankThread, signal: Waitable, timeout: float | None) -> bool:
    limit = None if timeout is None else round(max(0.0, timeout) * 1e15)
    while (ring_fs := _until_alarm(thread)) is not None and (limit is None or ring_fs < limit):
        if thread.call(_wait_in_task, signal, ring_fs, explicit=True):
            return True
        limit = None if limit is None else limit - ring_fs
    return bool(thread.call(_wait_in_task, signal, limit, explicit=limit is not None))


def _until_alarm(thread: RankThread) -> int | None:
    """The time until an alarm rings for the main thread of a rank, which interrupts its waits."""
    pending = thread.process.pending_signals
    if pending is None or pending.due_fs is None or not thread.main:
        return None
    return max(0, int(pending.due_fs) - thread.now_fs())


def _alone(thread: RankThread) -> bool:
    """Whether only threads that take no turns can end a wait of this thread."""
    process = thread.process
    process.outsiders = [outsider for outsider in process.outsiders if outsider.is_alive()]
    return bool(process.outsiders) and len(process.threads) == 1


class _TurnLock:
    """A lock whose owner may wait in simulated time, so that contenders wait in simulated time
    too.
    """

    def __init__(self) -> None:
        self._lock = _standard_lock()
        self._owner: RankThread | None = None
        self._waiting: list[_Signal] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        thread = current_thread_or_none()
        if thread is None or not blocking:
            acquired = self._lock.acquire(blocking, timeout)
        else:
            acquired = self._lock.acquire(blocking=False) or self._acquire(thread, timeout)
        if acquired:
            self._owner = thread
        return acquired

    def _acquire(self, thread: RankThread, timeout: float) -> bool:
        """Acquire a lock held by another thread."""
        while True:
            if self._owner is None:  # a thread that takes no turns: it will go on meanwhile
                return self._lock.acquire(timeout=timeout)
            signal = _Signal(
                f"a lock that thread {self._owner.thread.name!r} has", idle=not thread.main
            )
            self._waiting.append(signal)
            if not _wait(thread, signal, None if timeout < 0 else timeout):
                return False
            if self._lock.acquire(blocking=False):
                return True

    def release(self) -> None:
        self._owner = None
        self._lock.release()
        if self._waiting and current_thread_or_none() is not None:
            self._waiting.pop(0).finish()

    def locked(self) -> bool:
        return self._lock.locked()

    def _at_fork_reinit(self) -> None:
        self._lock, self._owner, self._waiting = _standard_lock(), None, []

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


_standard_lock = threading.Lock


def _lock() -> Any:
    return _standard_lock() if current_thread_or_none() is None else _TurnLock()


@for_ranks
def _recursive_lock(*_: Any) -> Any:
    # The one that is written in Python, on a lock of ours.
    lock = threading._PyRLock()  # type: ignore[attr-defined]
    lock._block = _TurnLock()
    return lock


@for_ranks
def _condition_wait(
    thread: RankThread, standard: Callable[..., bool], self: Any, timeout: float | None = None
) -> bool:
    if thread.starting or _alone(thread):
        return standard(self, timeout)
    if not self._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    if timeout is not None and timeout <= 0:
        return False
    signal = _Signal("another thread, in threading.Condition.wait", idle=not thread.main)
    self._waiters.append(signal)
    saved = self._release_save()
    woken = False
    try:
        woken = _wait(thread, signal, timeout)
        return woken
    finally:
        self._acquire_restore(saved)
        if not woken and signal in self._waiters:
            self._waiters.remove(signal)


@for_ranks
def _thread_start(
    parent: RankThread, standard: Callable[[threading.Thread], None], self: threading.Thread
) -> None:
    if _is_outside(self):
        parent.process.outsiders.append(self)
        refusal = (
            f"thread {self.name!r}, which rank {parent.number} has started, calls "
            "torch.distributed; threads of multiprocessing "
            "and of event loops cannot: use threading.Thread or "
            "concurrent.futures.ThreadPoolExecutor"
        )
        setattr(self, OUTSIDE_MARK, refusal)
        _start(parent, self, standard)
        return
    program = self.run
    child = RankThread(parent.process, self)

    def body() -> None:
        try:
            program()
        except Exception:  # noqa: BLE001  # every thread reports it
            self._invoke_excepthook(self)  # type: ignore[attr-defined]
        except SystemExit:
            pass

    self.run = child.run  # type: ignore[method-assign]
    _start(parent, self, standard)
    parent.call(child.begin, body)


def _start(
    parent: RankThread, thread: threading.Thread, standard: Callable[[threading.Thread], None]
) -> None:
    parent.starting = True  # waits for the thread's first steps, which need no turn
    try:
        standard(thread)
    finally:
        parent.starting = False


def _is_outside(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, str(getattr(target, "__module__", "")))
    return any(module.startswith(_OUTSIDE) for module in modules) or thread.name.startswith(
        "asyncio_"
    )


def _thread_join(standard: Callable[..., None]) -> Callable[..., None]:
    def join(self: threading.Thread, timeout: float | None = None) -> None:
        caller, target = current_thread_or_none(), rank_thread_of(self)
        if caller is not None and target is not None and caller is not target and not target.main:
            _wait(caller, target.over, timeout)
            if not target.over.done:
                return
        standard(self, timeout)

    return join


@for_ranks
def _main_thread(thread: RankThread, _: Any) -> threading.Thread:
    """The main thread of a rank: asyncio, for example, handles signals and makes its loop there."""
    return next(member.thread for member in thread.process.threads if member.main)


def _simple_queue(standard: type) -> Callable[[], Any]:
    def simple_queue() -> Any:
        if current_thread_or_none() is None:
            return standard()
        return queue._PySimpleQueue()  # type: ignore[attr-defined]

    return simple_queue


def _module_lock(standard: Callable[[str], Any]) -> Callable[[str], Any]:
    """Import locks that take turns: a module may call collectives during its import, while other
    ranks import it too.
    """
    locks: dict[str, Any] = {}

    def module_lock(name: str) -> Any:
        if current_thread_or_none() is None:
            return standard(name)
        if name not in locks:
            locks[name] = threading.RLock()
        return locks[name]

    return module_lock


@for_ranks
def _sleep(thread: RankThread, _: Any, seconds: float) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    _pass(thread, seconds)


def _pass(thread: RankThread, seconds: float) -> None:
    """Let simulated time pass."""
    if thread.main:
        left_fs = round(seconds * 1e15)
        while (ring_fs := _until_alarm(thread)) is not None and ring_fs < left_fs:
            thread.call(ours.compute, ring_fs / 1e15)
            left_fs -= ring_fs
        thread.call(ours.compute, left_fs / 1e15)
    else:  # the rank's program may end meanwhile, and the run with it
        _wait(thread, _Signal("the end of time.sleep", idle=True), float(seconds))


def _select(
    positional: int, *, processes: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Waits for files and sockets, in real time; when nothing comes, their timeout has passed in
    simulated time too.

    Otherwise a loop that waits until a simulated time, such as asyncio's, would never end. If the
    rank has threads that take turns, the wait is polled. ``positional`` is the number of arguments
    before the timeout; ``processes``: while processes of multiprocessing run, no simulated time
    passes, so that times do not depend on the speed of data loaders.
    """

    @for_ranks
    def select_of_rank(
        thread: RankThread, standard: Callable[..., Any], *args: Any, timeout: float | None = None
    ) -> Any:
        if len(args) > positional:
            *args, timeout = args  # type: ignore[assignment]
        remaining_s = math.inf if timeout is None else timeout
        while True:
            has_others = len(thread.process.threads) > 1
            ready = standard(*args, 0 if has_others else timeout)
            if remaining_s <= 0 or (any(ready) if isinstance(ready, tuple) else ready):
                return ready
            if has_others or (
                timeout is not None and not (processes and multiprocessing.active_children())
            ):
                _pass(thread, min(remaining_s, _TICK_S) if has_others else remaining_s)
            if not has_others:
                return ready
            remaining_s -= _TICK_S

    return select_of_rank


@for_ranks
def _remove(thread: RankThread, standard: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Remove a file after the other ranks of this time have gone on: they may have yet to read
    it.
    """
    _wait(thread, _Signal("its turn to remove a file", idle=not thread.main), 0)
    standard(*args, **kwargs)


def _lock_file(standard: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """``fcntl.flock``, which waits in simulated time where a rank may have the lock: closing the
    file ends it too, so that the wait looks again and again.
    """
    locked: set[tuple[int, int]] = set()

    @for_ranks
    def lock(thread: RankThread, standard: Callable[..., None], fd: Any, operation: int) -> None:
        status = os.fstat(fd if isinstance(fd, int) else fd.fileno())
        file = status.st_dev, status.st_ino
        waits = not operation & (fcntl.LOCK_NB | fcntl.LOCK_UN)
        while waits and file in locked:
            try:
                return standard(fd, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                _wait(thread, _Signal("the lock of a file, which a rank has", idle=True), _TICK_S)
        standard(fd, operation)
        if not operation & fcntl.LOCK_UN:
            locked.add(file)
        return None

    return lock(standard)


def _clock(standard: Callable[[], Any], ticks_per_s: int | None = None) -> Callable[[], Any]:
    """A clock that shows simulated time in ranks, starting from the real time at the start of the
    run.

    Each reading takes a nanosecond, so that no rate is divided by zero.
    """
    begin, looks = standard(), itertools.count(1)

    def clock() -> Any:
        thread = current_thread_or_none()
        if thread is None:
            return standard()
        if ticks_per_s is not None:
            return begin + thread.now_fs() * ticks_per_s // 10**15 + next(looks)
        return begin + (thread.now_fs() / 1e15 + next(looks) / 1e9)

    return clock


def replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions that wait."""
    imports: Any = importlib._bootstrap
    return [
        (threading.Thread, "start", _thread_start(threading.Thread.start)),
        (threading.Thread, "join", _thread_join(threading.Thread.join)),
        (threading.Condition, "wait", _condition_wait(threading.Condition.wait)),
        (threading, "main_thread", _main_thread(threading.main_thread)),
        (threading, "Lock", _lock),
        (threading, "RLock", _recursive_lock(threading.RLock)),
        (queue, "SimpleQueue", _simple_queue(queue.SimpleQueue)),
        # Timeouts are counted with this one.
        (threading, "_time", _clock(threading._time)),  # type: ignore[attr-defined]
        (queue, "time", _clock(queue.time)),  # type: ignore[attr-defined]
        (time, "sleep", _sleep(time.sleep)),
        (select, "select", _select(3)(select.select)),
        (
            selectors._PollLikeSelector,
            "select",
            _select(1, processes=True)(selectors._PollLikeSelector.select),
        ),
        *(
            (kind, "select", _select(1)(kind.select))
            for kind in (selectors.SelectSelector, selectors.EpollSelector)
        ),
        (
            subprocess,
            "time",
            types.SimpleNamespace(sleep=time.sleep),
        ),  # between looks at a process, in real time
        *((os, name, _remove(getattr(os, name))) for name in ("remove", "unlink")),
        *([] if sys.platform == "win32" else [(fcntl, "flock", _lock_file(fcntl.flock))]),
        *(
            (time, name, _clock(getattr(time, name)))
            for name in ("time", "monotonic", "perf_counter")
        ),
        *(
            (time, f"{name}_ns", _clock(getattr(time, f"{name}_ns"), 10**9))
            for name in ("time", "monotonic", "perf_counter")
        ),
        (imports, "_get_module_lock", _module_lock(imports._get_module_lock)),
    ]


def end_threads(process: Process, *, failed: bool) -> None:
    """End the threads of a rank whose program has ended, as Python does at exit.

    Work submitted to executors is finished, non-daemon threads are joined, and daemon threads are
    stopped; after a failure, all are stopped. Runs in the rank's task.
    """
    helpers = [thread for thread in process.threads if not thread.main]
    for thread in helpers:
        work = executors._threads_queues.get(thread.thread)
        executor = None if work is None else thread.thread._args[0]()  # type: ignore[attr-defined]
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=failed)
        elif work is not None:
            work.put(None)  # its executor is gone
    for thread in helpers:
        if not failed and not thread.thread.daemon:
            wait_until(thread.over)
        else:
            # Those that have been told to end do so now.
            _wait_in_task(thread.over, 0, explicit=True)
    for thread in helpers:
        thread.abandon()
