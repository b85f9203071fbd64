"""Names of files from outside, which may be no names at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["exists", "is_file"]


def is_file(path: str | Path) -> bool:
    r"""Whether there is a file of this name; there is none of a name that is too long or has a zero byte.

    >>> is_file("a" * 10_000), is_file("a\0b")
    (False, False)
    """
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for such names


def exists(path: str | Path) -> bool:
    """Whether there is a file or folder of this name.

    >>> exists("a" * 10_000), exists(".")
    (False, True)
    """
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises, too
