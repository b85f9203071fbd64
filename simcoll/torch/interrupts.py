"""Ctrl-C while ranks run: it ends the run, wherever it comes."""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import main_thread  # of the process: a rank has its own
from types import FrameType
from typing import Any

from simcoll.distributed.runtime.records import running_site
from simcoll.stopping import leave_to_program

__all__ = ["Interrupts"]

PATIENCE_S = 0.1
"""Time that a rank may take to hand the baton back, before it gets another KeyboardInterrupt."""
CALLS_BEFORE_CHILDREN, CALLS_BEFORE_LEAVING = 3, 6
"""Times that a rank may stay in one call, after Ctrl-C, before its processes get it too, and before
the run ends without it."""
SILENCE_S = 5.0
"""Real time that a rank may wait before it is told."""
_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
Handler = Callable[[int, FrameType | None], Any]


class Interrupts:
    """Notes Ctrl-C during a run.

    The interpreter raises KeyboardInterrupt in the main thread, at any line. While that thread
    hands over the baton to a rank and waits for it, an exception would lose who has it; so then it
    is raised in the rank's thread, again and again until the baton is back, and in the main thread
    afterwards. It is also raised again if it came where exceptions are lost: in a destructor, or in
    a callback from C++.

    While PyTorch is changed for a run, restored after it, or given the state of another rank, they
    are kept: half of such a change would stay, and some leave freed memory behind.

    No exception reaches a thread in a system call, or in C++. If a rank stays in one, as in
    ``subprocess.run``, the processes that it has started get SIGINT, as from a terminal; if it
    stays still, the run ends without it.

    Attributes
    ----------
    came
        Whether Ctrl-C has come.
    left
        The thread that the run has ended without, if any.
    """

    def __init__(self) -> None:
        self.came = False
        self.left: threading.Thread | None = None
        self._rank: threading.Thread | None = None
        self._holds = 0
        self._has_kept_one = False
        self._clock_turn = _thread.allocate_lock()
        self._clock_turn.acquire()
        self._usual: Handler | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note them within this context, if it is in the main thread and SIGINT has a handler in
        Python.
        """
        usual = signal.getsignal(signal.SIGINT)
        if not callable(usual) or threading.current_thread() is not main_thread():
            yield
            return
        leave_to_program()
        self._usual = usual
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)
        if self._has_kept_one:
            raise KeyboardInterrupt

    def hold(self) -> None:
        """Keep them, until :meth:`release` is called as often."""
        self._holds += 1

    def release(self) -> None:
        """End a :meth:`hold`; what was kept reaches a rank when it is next looked at."""
        self._holds -= 1
        if not self._holds:
            self._has_kept_one = False

    @contextmanager
    def keep_until_end(self) -> Iterator[None]:
        """Keep them within this context.

        Raises
        ------
        KeyboardInterrupt
            At its end, in the main thread, when Ctrl-C has come.
        """
        self.hold()
        try:
            yield
        finally:
            self.release()
        if threading.current_thread() is main_thread():
            self._check()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._usual is None:
            return
        try:
            self._usual(number, frame)
        except KeyboardInterrupt:
            self.came = True
            if self._holds and not self._has_kept_one:  # a second one says that it takes too long
                self._has_kept_one = True
                return
            if self._rank is None:
                raise
            _interrupt(self._rank)

    def hand_over(self, rank: threading.Thread, turn: _thread.LockType) -> None:
        """Hand the baton to the thread of a rank, which waits for its turn, and wait until it is
        back.

        Raises
        ------
        KeyboardInterrupt
            When Ctrl-C has come, now or earlier.
        """
        self._check()
        self._rank = rank
        turn.release()
        watch: _RealTimeWatch | None = None
        call, looks = None, 0
        while not self._clock_turn.acquire(timeout=PATIENCE_S):
            rank = self._holder() or rank
            if watch is None or watch.thread is not rank:
                watch = _RealTimeWatch(rank)
            watch.look()
            if self.came:
                if not rank.is_alive():  # it came in the thread's own last lines
                    break
                call, previous = _call_of(rank), call
                looks = looks + 1 if call == previous else 0
                if looks == CALLS_BEFORE_CHILDREN:
                    _interrupt_processes(rank)
                if looks == CALLS_BEFORE_LEAVING:
                    self.left = rank
                    break
                if not self._holds:
                    _interrupt(rank)
        self._rank = None
        self._check()

    def _holder(self) -> threading.Thread | None:
        """The thread that has the baton: ranks pass it on while the main thread waits."""
        return self._rank

    def pass_on(self, rank: threading.Thread, turn: _thread.LockType) -> None:
        """Hand the baton from the thread of a rank to that of another; after Ctrl-C it goes back to
        the main thread.
        """
        if self.came:
            self.give_back()
            return
        self._rank = rank
        turn.release()

    def give_back(self) -> None:
        """Hand the baton from the thread of a rank to the main thread."""
        self._clock_turn.release()

    def _check(self) -> None:
        if self.came:
            raise KeyboardInterrupt


class _RealTimeWatch:
    """Tells where a thread waits in real time, while no other rank can run: for a lock that another
    rank holds, for example, or for a process.

    A thread that computes uses the processor; one that waits does not.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self._looks = 0
        self._ticks = -1

    def look(self) -> None:
        """Note the processor time used; after five seconds without any, say it once."""
        ticks = _processor_ticks(self.thread)
        if ticks is None:
            return
        self._looks = self._looks + 1 if ticks == self._ticks else 0
        self._ticks = ticks
        if self._looks == round(SILENCE_S / PATIENCE_S):
            sys.stderr.write(
                f"simcoll.torch: {self.thread.name} has waited {SILENCE_S:.0f} s of real time, "
                f"while no other rank can run, at {running_site(self.thread)}\n"
            )
            sys.stderr.flush()


def _processor_ticks(thread: threading.Thread) -> int | None:
    """The processor time of a thread so far; None where the system does not tell."""
    try:
        text = Path(f"/proc/self/task/{thread.native_id}/stat").read_text(encoding="ascii")
    except OSError:
        return None
    values = text.rpartition(")")[2].split()
    return int(values[11]) + int(values[12])


def _interrupt(thread: threading.Thread) -> None:
    _raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt))


def _call_of(thread: threading.Thread) -> tuple[int, int]:
    """The call that a thread is in: equal while no line of Python runs."""
    frame = sys._current_frames().get(thread.ident or 0)
    return (0, 0) if frame is None else (id(frame), frame.f_lasti)


def _interrupt_processes(thread: threading.Thread) -> None:
    """Send SIGINT to the processes that a thread has started, and to those that these have."""
    waiting = [Path(f"/proc/self/task/{thread.native_id}/children")]
    while waiting:
        try:
            numbers = waiting.pop().read_text(encoding="ascii").split()
            for number in numbers:
                waiting += Path(f"/proc/{number}/task").glob("*/children")
                os.kill(int(number), signal.SIGINT)
        except OSError:  # it has ended, or the system does not tell
            continue
