"""Read the lines of a log of any size: decoded, without colour codes and container wrappers, of
bounded length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simcoll.errors import ConfigError
from simcoll.files.paths import is_file

__all__ = ["MAX_LINE", "Skipped", "log_lines"]

MAX_LINE = 2**14
"""Characters kept of a line: enough for a command line, and far more than a row of a table has."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,16}[ -/]?[@-~]|[@-Z\\^_])")
_BOMS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
_DOCKER = '{"log":"'


class Skipped:
    """Notes on skipped content by line: the first few, and a count of the others."""

    __slots__ = ("_count", "_kept")
    LIMIT = 20

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._count = 0

    def add(self, number: int, reason: str) -> None:
        """Note a line, counted from 1; 0 means the file as a whole."""
        self._count += 1
        if len(self._kept) < self.LIMIT:
            self._kept.append(f"line {number}: {reason}" if number else reason)

    def texts(self) -> tuple[str, ...]:
        """The notes, and how many more there were."""
        unlisted = self._count - len(self._kept)
        return (*self._kept, f"and {unlisted:,} more lines") if unlisted else tuple(self._kept)


def _encoding(path: Path) -> str:
    """The encoding of a file: UTF-8, or as its byte order mark says; undecodable bytes are
    replaced.
    """
    if not is_file(path):
        return "utf-8"  # a pipe can be read once only
    with path.open("rb") as stream:
        start = stream.read(4)
    return next((name for mark, name in _BOMS if start.startswith(mark)), "utf-8")


def _unwrap(text: str) -> str:
    """The text inside a line of Docker's log files."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    inner = document.get("log") if isinstance(document, dict) else None
    return inner if isinstance(inner, str) else text


def log_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of every line, in constant memory.

    Raises
    ------
    ConfigError
        When the file cannot be read.
    """
    file = Path(path)
    try:
        with file.open(encoding=_encoding(file), errors="replace") as stream:
            number = 0
            while text := stream.readline(MAX_LINE):
                number += 1
                continuation = text
                while len(continuation) == MAX_LINE and not continuation.endswith("\n"):
                    continuation = stream.readline(MAX_LINE)
                if "\x1b" in text:
                    text = _ANSI.sub("", text)
                if text.startswith(_DOCKER):
                    text = _unwrap(text)
                yield number, text.rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot be read: {getattr(error, 'strerror', error)}", file=str(path)
        ) from None
