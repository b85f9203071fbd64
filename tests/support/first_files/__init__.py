"""First files: what people give to each reader first, in the dialects that tools write.

Each module has the files of some readers, written by hand or by small functions in the layout of
the tools. ``EVERY`` maps a reader to its kinds of files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FirstFile", "Reader", "Refusal"]


@dataclass(frozen=True)
class Refusal:
    """Words of the message of a file that is named for what it is, and not read."""

    words: str


@dataclass(frozen=True)
class FirstFile:
    """A file.

    Attributes
    ----------
    kind
        The kind of file in words.
    content
        Its bytes, or those of several by name.
    expected
        What the reader says of it, or its refusal.
    """

    kind: str
    content: bytes | Mapping[str, bytes]
    expected: object


@dataclass(frozen=True)
class Reader:
    """A reader with its first files.

    Attributes
    ----------
    title
        What it reads.
    read
        Reads a path, and says in short what it has understood.
    files
        The kinds.
    """

    title: str
    read: Callable[[Any], object]
    files: tuple[FirstFile, ...]
