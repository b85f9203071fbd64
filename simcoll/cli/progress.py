"""How far a command is: on standard error, in place on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from types import TracebackType
from typing import Self

__all__ = ["Progress", "each_minute", "on_terminal"]

BLINK_S, LINE_S = 0.1, 60.0
WIPE = "\r\x1b[2K"


def on_terminal() -> bool:
    """Whether standard error is a terminal; it may have been closed before we began."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def each_minute(say: Callable[[], object]) -> Iterator[None]:
    """Call a function every minute until the block ends, also while one thing takes longer than that."""
    over = Event()

    def wait() -> None:
        while not over.wait(LINE_S):
            say()

    thread = Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Progress:
    """Tells how much is done; a context, at whose end nothing of it is left on a terminal."""

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
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self.inside.close()
        self.clear()

    def __call__(self, done: int, total: int, next_up: str) -> None:
        """Tell it, on a terminal unless that was done a moment ago."""
        self.told = done, total, next_up
        now = time.monotonic()
        if self.terminal and now - self.last >= BLINK_S:
            self.last = now
            sys.stderr.write(f"{WIPE}{done}/{total} {self._took()} {next_up}")
            sys.stderr.flush()
            self.shown = True

    def _line(self) -> None:
        done, total, next_up = self.told
        if total and sys.stderr is not None:
            left = f", about {_clock((time.monotonic() - self.begun) * (total - done) / done)} left" if done else ""
            print(f"# {done:,} of {total:,} done in {self._took()}{left}, now {next_up}", file=sys.stderr, flush=True)

    def _took(self) -> str:
        return _clock(time.monotonic() - self.begun)

    def clear(self) -> None:
        """Wipe the line, before something else is printed."""
        if self.terminal and self.shown:
            sys.stderr.write(WIPE)
            sys.stderr.flush()
            self.shown = False


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
