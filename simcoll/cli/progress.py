"""Progress on standard error: in place on a terminal, elsewhere a line a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from types import TracebackType
from typing import Self

from simcoll.terminal import printable, say

__all__ = ["Progress", "each_minute", "on_terminal"]

BLINK_S, LINE_S = 0.1, 60.0
WIPE = "\r\x1b[2K"


def on_terminal() -> bool:
    """Whether standard error is a terminal; it may have been closed before the process started."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def each_minute(say: Callable[[], object]) -> Iterator[None]:
    """Call a function every minute until the block ends, during long computations too."""
    ended = Event()

    def wait() -> None:
        while not ended.wait(LINE_S):
            say()

    thread = Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Progress:
    """A context manager that shows progress, and clears it from a terminal at the end."""

    def __init__(self) -> None:
        self.terminal = on_terminal()
        self.begun = time.monotonic()
        self.last = self.begun - BLINK_S
        self.shown = False
        self.told = (0, 0, "")
        self.inside = ExitStack()

    def __enter__(self) -> Self:
        if not self.terminal:
            self.inside.enter_context(each_minute(self._line))
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.inside.close()
        self.clear()

    def __call__(self, finished: int, total: int, next_up: str) -> None:
        """Show progress; on a terminal, not more often than it can be read."""
        self.told = finished, total, next_up
        time_s = time.monotonic()
        if self.terminal and time_s - self.last >= BLINK_S:
            self.last = time_s
            sys.stderr.write(f"{WIPE}{finished}/{total} {self._took()} {printable(next_up)}")
            sys.stderr.flush()
            self.shown = True

    def _line(self) -> None:
        finished, total, next_up = self.told
        elapsed_s = time.monotonic() - self.begun
        if total and sys.stderr is not None:
            remaining = (
                f", about {_clock(elapsed_s * (total - finished) / finished)} left"
                if finished
                else ""
            )
            say(
                f"# {finished:,} of {total:,} done in {self._took()}{remaining}, now {next_up}",
                error=True,
                flush=True,
            )

    def _took(self) -> str:
        return _clock(time.monotonic() - self.begun)

    def clear(self) -> None:
        """Clear the line before other output."""
        if self.terminal and self.shown:
            sys.stderr.write(WIPE)
            sys.stderr.flush()
            self.shown = False


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
