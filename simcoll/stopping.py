"""Ctrl-C in a program of ours: it ends with status 130 and without a traceback, also while it is
still being imported.

Python's own start, before the first module of ours, is out of reach: there Ctrl-C kills the process
or prints a traceback. So this module and those that it needs are small, and imported first.
"""

from __future__ import annotations

# The module signal takes 15 ms to import, in which Ctrl-C would print a traceback.
import _signal as signal  # type: ignore[import-not-found]
import _thread
import atexit
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

__all__ = [
    "STOPPED",
    "end_again",
    "end_at_once",
    "leave_to_program",
    "raise_again",
    "receive",
    "run_program",
    "started_as",
]

STOPPED = 130
"""Exit status of a program that Ctrl-C has ended: 128 + SIGINT, as shells say it."""


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(STOPPED)


class _Raised(KeyboardInterrupt):
    """A Ctrl-C on its way to the main program; freed before it is received, it was lost."""

    def __init__(self, interrupt: _Interrupt) -> None:
        super().__init__()
        self.interrupt = interrupt

    def __del__(self) -> None:
        interrupt = self.interrupt
        if interrupt.resends and not interrupt.received and os.getpid() == interrupt.process:
            interrupt.come_again()


class _Interrupt:
    """Raises KeyboardInterrupt; at the second Ctrl-C, ends the process at once.

    Python drops an exception in the callback of a weak reference and in ``__del__``, and only
    reports it to ``sys.unraisablehook``; C code that calls back may drop one without a word (the
    import of a package, a look-up of an attribute). There a KeyboardInterrupt is raised again a
    moment later, when the main thread has left the callback; otherwise the Ctrl-C would be lost.
    """

    def __init__(self) -> None:
        self.resends = True
        """Whether one that nobody has received comes again; until a program of the user's runs."""
        self.came = False
        self.comes_again = False
        self.received = False
        self.process = os.getpid()
        self.main_thread = _thread.get_ident()  # handlers can be set by no other
        self.next_hook = sys.unraisablehook

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self.comes_again:
            self.comes_again = False
            if self.received:
                return
        elif self.came:
            os._exit(STOPPED)
        self.came = True
        raise _Raised(self)

    def come_again(self) -> None:
        if signal.getsignal(signal.SIGINT) is self:
            self.comes_again = True
            _thread.start_new_thread(_interrupt_soon, (self.main_thread,))

    def when_unraisable(self, report: sys.UnraisableHookArgs) -> None:
        if not issubclass(report.exc_type, KeyboardInterrupt):
            self.next_hook(report)
        elif not self.resends:  # else its end brings it again
            self.come_again()


def _interrupt_soon(main_thread: int) -> None:
    time.sleep(0.005)
    # A signal also ends a wait, which _thread.interrupt_main() would let pass first.
    signal.pthread_kill(main_thread, signal.SIGINT)


def end_at_once() -> None:
    """Let Ctrl-C end this process without any clean-up: nothing has begun yet, or everything is
    done.

    Where SIGINT is ignored or has another handler than Python's, that stays.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> bool:
    """Let Ctrl-C raise KeyboardInterrupt, and whether it would have ended the process at once:
    whether this is a program of ours.

    One that is dropped on its way is raised again, until :func:`leave_to_program`. Whoever catches
    one for good calls :func:`receive`.
    """
    ours = signal.getsignal(signal.SIGINT) is _end
    if ours:
        interrupt = _Interrupt()
        signal.signal(signal.SIGINT, interrupt)
        sys.unraisablehook = interrupt.when_unraisable
    return ours


def receive() -> bool:
    """Note that the exception of a Ctrl-C has arrived where it is handled, and whether one had come
    that nobody had received.

    It need not arrive as a KeyboardInterrupt: a library that is being imported may have made an
    ImportError of it.
    """
    interrupt = signal.getsignal(signal.SIGINT)
    if not isinstance(interrupt, _Interrupt):
        return False
    arrives = interrupt.came and not interrupt.received
    interrupt.received = True
    return arrives


def leave_to_program() -> None:
    """From here on a program of the user's runs, which may catch a Ctrl-C and go on: one that is
    dropped does not come again.
    """
    interrupt = signal.getsignal(signal.SIGINT)
    if isinstance(interrupt, _Interrupt):
        interrupt.resends = False


def end_again() -> None:
    """Undo :func:`raise_again`, when all is done."""
    interrupt = signal.getsignal(signal.SIGINT)
    if isinstance(interrupt, _Interrupt):
        signal.signal(signal.SIGINT, _end)
        sys.unraisablehook = interrupt.next_hook


def run_program(main: Callable[[], int]) -> NoReturn:
    """Run a command line as this process, and exit with its status."""
    end_at_once()
    status = 0

    def leave() -> None:
        # Python kills itself with SIGINT at its end if the exception has passed through an exec()
        # of text, caught or not.
        if status == STOPPED:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (AttributeError, OSError, ValueError):
                    # There is none, or its reader or file is gone.
                    continue
            os._exit(STOPPED)

    atexit.register(leave)  # first, so that it is called last
    status = main()
    end_again()
    sys.exit(status)


def started_as(*packages: str) -> bool:
    """Whether ``python -m`` is just importing a program of these packages: before it runs, it
    imports the packages around it.
    """
    if getattr(sys, "argv", [""])[:1] != ["-m"]:
        return False
    return any(word.removeprefix("-m").partition(".")[0] in packages for word in sys.orig_argv[1:])
