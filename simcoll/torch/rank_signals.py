"""Signals of ranks: their handlers, those that a rank sends itself, and its alarm.

Signals of the system reach the process of all ranks. So handlers are kept for each rank and called
here, in its main thread, as Python does; alarms ring at simulated times.
"""

from __future__ import annotations

import _thread
import errno
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

from simcoll.errors import ConfigError
from simcoll.torch.rank_threads import Process, RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["signal_replacements"]

_SIGNALLED = 128
"""What a shell adds to the number of a signal that ends a process."""
_IGNORED = frozenset((signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH))
"""Signals that end no process."""
_UNHANDLED = frozenset(
    getattr(signal, name) for name in ("SIGKILL", "SIGSTOP") if hasattr(signal, name)
)
_FS_PER_S = 10**15


@dataclass(slots=True)
class _PendingSignals:
    """What the main thread of a rank has yet to handle.

    Attributes
    ----------
    due_fs
        When the alarm rings next, if it is set.
    interval_fs
        The time between later rings; 0: there are none.
    sent
        Signals that other threads of the rank have sent.
    """

    due_fs: int | None = None
    interval_fs: int = 0
    sent: tuple[int, ...] = ()

    def handle(self, thread: RankThread) -> None:
        """Handle what has come; called in the main thread between two calls."""
        if self.due_fs is not None and self.due_fs <= thread.now_fs():
            self.due_fs = self.due_fs + self.interval_fs if self.interval_fs else None
            self.sent += (signal.SIGALRM,)
        sent, self.sent = self.sent, ()
        if self.due_fs is None:
            thread.process.pending_signals = None
        for number in sent:
            _deliver(thread, number)


def _pending(process: Process) -> _PendingSignals:
    if process.pending_signals is None:
        process.pending_signals = _PendingSignals()
    pending: _PendingSignals = process.pending_signals
    return pending


def _handler(thread: RankThread, number: int) -> Any:
    """What a rank's process does at a signal."""
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return thread.process.signal_handlers.get(number, default)


@for_ranks
def _set_handler(thread: RankThread, _: Any, signalnum: int, handler: Any) -> Any:
    """Keep a rank's handler of signals without installing it: those of the system belong to the
    process's main thread, where no rank runs.
    """
    if not thread.main:
        raise ValueError("signal only works in main thread of the main interpreter")
    if signalnum not in signal.valid_signals():
        raise ValueError("signal number out of range")
    if not callable(handler) and handler not in {signal.SIG_DFL, signal.SIG_IGN}:
        raise TypeError(
            "signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object"
        )
    if signalnum in _UNHANDLED:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    previous = _handler(thread, signalnum)
    thread.process.signal_handlers[signalnum] = handler
    return previous


@for_ranks
def _get_handler(thread: RankThread, _: Any, signalnum: int) -> Any:
    return _handler(thread, signalnum)


def _send(thread: RankThread, number: int) -> None:
    """Send a signal to the process of a rank, which ends if it has no handler."""
    if thread.main or not callable(_handler(thread, number)):
        _deliver(thread, number)
    else:
        _pending(thread.process).sent += (number,)


def _deliver(thread: RankThread, number: int) -> None:
    handler = _handler(thread, number)
    if callable(handler):
        if thread.process.wakeup_fd >= 0:
            os.write(thread.process.wakeup_fd, bytes([number]))
        handler(int(number), sys._getframe(1))
    elif handler != signal.SIG_IGN and number not in _IGNORED:
        thread.leave(_SIGNALLED + number)


@for_ranks
def _set_wakeup_fd(thread: RankThread, _: Any, fd: int, **_warning: bool) -> int:
    """Set the file to which the numbers of signals are written, which wakes asyncio's loops."""
    previous, thread.process.wakeup_fd = thread.process.wakeup_fd, fd
    return previous


@for_ranks
def _kill(thread: RankThread, standard: Any, pid: int, number: int) -> None:
    """Send a signal: to the rank, if it is for the process of all ranks or for its group, which
    torchrun makes for each rank.
    """
    if number and pid in {os.getpid(), 0, -os.getpgrp()}:
        _send(thread, number)
    else:
        standard(pid, number)


@for_ranks
def _kill_group(thread: RankThread, standard: Any, pgid: int, number: int) -> None:
    if number and pgid in {os.getpgrp(), 0}:
        _send(thread, number)
    else:
        standard(pgid, number)


@for_ranks
def _kill_thread(thread: RankThread, standard: Any, thread_id: int, signalnum: int) -> None:
    if signalnum and thread_id in {member.thread.ident for member in thread.process.threads}:
        _send(thread, signalnum)
    else:
        standard(thread_id, signalnum)


@for_ranks
def _raise_signal(thread: RankThread, _: Any, signalnum: int) -> None:
    _send(thread, signalnum)


@for_ranks
def _interrupt_main(thread: RankThread, _: Any, signum: int = signal.SIGINT) -> None:
    if callable(_handler(thread, signum)):  # Python does nothing else
        _send(thread, signum)


@for_ranks
def _get_timer(thread: RankThread, _: Any, timer: int) -> tuple[float, float]:
    """The seconds that are left of a rank's timer, and those between later rings."""
    if timer != signal.ITIMER_REAL:
        raise ConfigError(
            "ITIMER_VIRTUAL and ITIMER_PROF count the processor time of a process, and the ranks "
            "of a run are threads of one: use ITIMER_REAL, which counts simulated time"
        )
    pending = thread.process.pending_signals
    if pending is None or pending.due_fs is None:
        return 0.0, 0.0
    left_fs = max(pending.due_fs - thread.now_fs(), 1)
    return left_fs / _FS_PER_S, pending.interval_fs / _FS_PER_S


@for_ranks
def _set_timer(
    thread: RankThread, _: Any, timer: int, seconds: float, interval: float = 0.0
) -> tuple[float, float]:
    previous = signal.getitimer(timer)
    if seconds < 0 or interval < 0:
        raise signal.ItimerError(errno.EINVAL, os.strerror(errno.EINVAL))
    pending = _pending(thread.process)
    pending.due_fs = thread.now_fs() + round(seconds * _FS_PER_S) if seconds else None
    pending.interval_fs = round(interval * _FS_PER_S)
    return previous


@for_ranks
def _set_alarm(_thread: RankThread, _: Any, seconds: int) -> int:
    left_s, _interval_s = signal.setitimer(signal.ITIMER_REAL, int(seconds))
    return max(1, round(left_s)) if left_s else 0


def signal_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions of signals; Windows lacks some of them."""
    substitutes = (
        (signal, "signal", _set_handler),
        (signal, "getsignal", _get_handler),
        (signal, "raise_signal", _raise_signal),
        (signal, "set_wakeup_fd", _set_wakeup_fd),
        (signal, "alarm", _set_alarm),
        (signal, "setitimer", _set_timer),
        (signal, "getitimer", _get_timer),
        (signal, "pthread_kill", _kill_thread),
        (os, "kill", _kill),
        (os, "killpg", _kill_group),
        (_thread, "interrupt_main", _interrupt_main),
    )
    return [
        (owner, name, substitute(getattr(owner, name)))
        for owner, name, substitute in substitutes
        if hasattr(owner, name)
    ]
