"""Text for a terminal: names of files and in files must not move its cursor, change its colours or
title, or reorder its lines.
"""

from __future__ import annotations

import sys

__all__ = ["printable", "printable_lines", "say", "say_text"]


def printable(text: str) -> str:
    r"""One line of text that is safe for a terminal or a picture.

    Characters that control a terminal or the direction of text, line breaks and undecodable bytes
    of a name become ``?``.

    >>> printable("ring\x1b[2J\n")
    'ring?[2J?'
    """
    return (
        text
        if text.isprintable()
        else "".join(letter if letter.isprintable() else "?" for letter in text)
    )


def printable_lines(text: str) -> str:
    r"""Several lines of text, each made :func:`printable`; tabs stay.

    >>> printable_lines("a\x07\nb\tc")
    'a?\nb\tc'
    """
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def say(line: object = "", *, error: bool = False, flush: bool = False) -> None:
    """Print one line that may hold names, on stdout or as an ``error`` on stderr."""
    _write(printable(str(line)), error=error, flush=flush)


def say_text(text: object, *, error: bool = False, flush: bool = False) -> None:
    """Print lines, in which names are :func:`printable` already."""
    _write(printable_lines(str(text)), error=error, flush=flush)


def _write(text: str, *, error: bool, flush: bool) -> None:
    stream = sys.stderr if error else sys.stdout
    if stream is not None:  # None if it was closed before the program started
        print(text, file=stream, flush=flush)
