"""Files of a Chakra trace: one for each rank, whose number is the last one in its name."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from simcoll.errors import ConfigError
from simcoll.files.paths import is_file, is_folder
from simcoll.terminal import printable
from simcoll.units import counted

__all__ = ["MAX_RANKS", "trace_files"]

MAX_RANKS = 1 << 16
_NUMBERED = re.compile(r"(.*?)(\d{1,7})(|\.\D*)")
_BEFORE_RANK = re.compile(r"(?:.*(?:[._-]|rank|npu|gpu|node|trace))?", re.IGNORECASE)
"""What stands before a number that is certainly one of a rank, and not of a model or a size."""
_ENDING = ".et"
_OTHER_FORMATS = frozenset((".toml", ".txt", ".json", ".csv"))
"""Endings of files that are not the traces of ranks: nobody means ``step.toml.0.et``."""


def trace_files(path: Path) -> tuple[str, list[Path]]:
    """The title of a trace, and its files in the order of ranks.

    Parameters
    ----------
    path
        The file of one rank (``trace.0.et``, ``rank_0.et``, ``et.0``), a folder of them, the common
        beginning of their names (``trace``), or the only file of one rank.

    Raises
    ------
    ConfigError
        If there are no such files, those of several traces, none of some rank, or two of one.
    """
    if is_folder(path):
        names = _names_in(path)
        first_files: dict[str, Path] = {}
        for (head, _, tail), entry in names.items():
            if tail == _ENDING:
                first_files.setdefault(head, entry)
        if len(first_files) != 1:
            traces = ", ".join(printable(entry.name) for entry in first_files.values())[:200]
            raise ConfigError(
                f"a folder of {len(first_files)} traces: {traces}; name a file of one"
                if first_files
                else "a folder without files such as trace.0.et",
                file=str(path),
            )
        return _in_order(next(iter(first_files)), _ENDING, names, path)
    if is_file(path):
        match = _NUMBERED.fullmatch(path.name)
        if match is None:
            return path.stem, [path]
        names = _names_in(path.parent)
        count = sum((head, tail) == (match[1], match[3]) for head, _, tail in names)
        if count == 1 and _BEFORE_RANK.fullmatch(match[1]) is None:
            return path.stem, [path]
        return _in_order(match[1], match[3], names, path)
    prefix = path.name.removesuffix(_ENDING)
    names = _names_in(path.parent)
    for separator in (".", "", "_", "-"):
        if any((head, tail) == (prefix + separator, _ENDING) for head, _, tail in names):
            return _in_order(prefix + separator, _ENDING, names, path)
    name = printable(prefix)
    traces = "" if path.suffix in _OTHER_FORMATS else f", nor {name}.0.et, {name}.1.et and so on"
    raise ConfigError(f"there is no such file{traces}{_similar_file(path)}", file=str(path))


def _similar_file(path: Path) -> str:
    """A question whether a file of nearly the same name is meant; empty without one."""
    files = [entry for entry in _entries(path.parent) if is_file(entry)]
    stems = get_close_matches(path.stem, {entry.stem for entry in files}, n=1, cutoff=0.7)
    names = [entry.name for entry in files if entry.stem in stems]
    similar = get_close_matches(path.name, names, n=1)
    return f"; did you mean {printable(similar[0])!r}?" if similar else ""


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, by name."""
    try:
        return sorted(folder.iterdir())
    except (OSError, ValueError):  # no folder, or none that may be read
        return []


def _names_in(folder: Path) -> dict[tuple[str, str, str], Path]:
    """The numbered files of a folder: what is before the last number, it, and what is behind."""
    entries = _entries(folder)
    matches = ((_NUMBERED.fullmatch(entry.name), entry) for entry in entries)
    return {(match[1], match[2], match[3]): entry for match, entry in matches if match}


def _in_order(
    head: str, tail: str, names: dict[tuple[str, str, str], Path], path: Path
) -> tuple[str, list[Path]]:
    paths: dict[int, Path] = {}
    for (prefix, number, suffix), entry in names.items():
        if (prefix, suffix) != (head, tail):
            continue
        earlier = paths.setdefault(int(number), entry)
        if earlier != entry:
            raise ConfigError(
                f"two files of rank {int(number)}: {printable(earlier.name)} and "
                f"{printable(entry.name)}",
                file=str(path),
            )
        if len(paths) > MAX_RANKS:
            raise ConfigError(f"more than {MAX_RANKS} ranks", file=str(path))
    missing = [rank for rank in range(max(paths) + 1) if rank not in paths]
    if missing:
        raise ConfigError(
            f"the file of rank {missing[0]} is missing; there are those of "
            f"{counted(len(paths), 'rank')}",
            file=str(path),
        )
    return head.rstrip("._-"), [paths[rank] for rank in range(len(paths))]
