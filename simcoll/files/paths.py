"""File names: external ones, which may be invalid, and those of files shipped with simcoll."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["data_folder", "exists", "is_file", "is_folder", "shipped_files"]


def is_file(path: str | Path) -> bool:
    r"""Whether a file of this name exists.

    False for a name that is too long or has a zero byte.

    >>> is_file("a" * 10_000), is_file("a\0b")
    (False, False)
    """
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for such names


def is_folder(path: str | Path) -> bool:
    """Whether a folder of this name exists.

    >>> is_folder("a" * 10_000), is_folder(".")
    (False, True)
    """
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises, too


def exists(path: str | Path) -> bool:
    """Whether a file or folder of this name exists.

    >>> exists("a" * 10_000), exists(".")
    (False, True)
    """
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises, too


def data_folder(name: str) -> Path:
    """A folder of data shipped with simcoll: package data in a wheel, beside the package in a
    source checkout.

    >>> sorted(path.stem for path in data_folder("libraries").iterdir())
    ['mpi', 'nccl-2.27', 'nccl-2.28', 'nccl-2.29', 'nccl-2.30', 'nccl-graphs', 'rccl-2.22']
    """
    from pathlib import Path

    package = Path(__file__).resolve().parents[1]
    packaged = package / "data" / name
    return packaged if packaged.is_dir() else package.parent / name


@cache
def shipped_files(folder: str) -> Mapping[str, Path]:
    """The TOML files of a data folder by name.

    >>> list(shipped_files("libraries"))
    ['nccl-2.27', 'nccl-2.28', 'nccl-2.29', 'nccl-2.30', 'rccl-2.22']
    """
    return MappingProxyType(
        {path.stem: path for path in sorted(data_folder(folder).glob("*.toml"))}
    )
