"""How far a command is: on standard error, in place on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

__all__ = ["Progress"]

BLINK_S, LINE_S = 0.1, 60.0
WIPE = "\r\x1b[2K"


class Progress:
    """Tells how much is done; a context, at whose end nothing of it is left on a terminal."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.begun = time.monotonic()
        self.last = self.begun - (BLINK_S if self.terminal else 0)
        self.shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self.clear()

    def __call__(self, done: int, total: int, next_up: str) -> None:
        """Tell it, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self.last < (BLINK_S if self.terminal else LINE_S):
            return
        self.last = now
        took = f"{int(now - self.begun) // 60}:{int(now - self.begun) % 60:02}"
        if self.terminal:
            sys.stderr.write(f"{WIPE}{done}/{total} {took} {next_up}")
        else:
            sys.stderr.write(f"# {done:,} of {total:,} done in {took}, now {next_up}\n")
        sys.stderr.flush()
        self.shown = True

    def clear(self) -> None:
        """Wipe the line, before something else is printed."""
        if self.terminal and self.shown:
            sys.stderr.write(WIPE)
            sys.stderr.flush()
            self.shown = False
