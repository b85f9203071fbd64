"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["open_folder", "write_file", "write_files"]


def open_folder(path: Path, names: Iterable[str] = ()) -> None:
    """Make the output folder and check that it is writable before anything long runs.

    Raises
    ------
    ConfigError
        When it cannot be made or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write to the output folder: {error.strerror}", file=str(path)) from None
    refuse_folders(path, names)


def refuse_folders(folder: Path, names: Iterable[str]) -> None:
    """Refuse to write a file where a folder is; found late, only some files would be replaced."""
    for name in names:
        if (folder / name).is_dir():
            raise ConfigError("cannot be written: there is a folder of this name", file=str(folder / name))


def _written_first(target: Path) -> Path:
    """Name under which a file is written first: its own for devices, pipes and links, which a renamed file would replace."""
    special = target.is_symlink() or (target.exists() and not target.is_file())
    return target if special else target.with_name(f".{target.name}.part")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files under other names first, then put them in place.

    Raises
    ------
    ConfigError
        When one cannot be written; then none is left half-written, and all are the old ones, unless the system refuses to rename one of
        them: the error says which are new.
    """
    shown = str(folder / next(iter(files))) if len(files) == 1 else str(folder)
    parts: dict[Path, Path] = {}
    done: list[str] = []
    try:
        refuse_folders(folder, files)
        parts.update((_written_first(folder / name), folder / name) for name in files)
        for part, content in zip(parts, files.values(), strict=True):
            part.write_bytes(content)
        for part, target in parts.items():
            part.replace(target)
            done.append(target.name)
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        for part, target in parts.items():
            # The folder itself may be what is missing or a file.
            if part != target and part.is_file():
                part.unlink()
        mixed = f"; new already: {', '.join(done)}" if done else ""
        raise ConfigError(f"cannot be written: {getattr(error, 'strerror', error)}{mixed}", file=shown) from None


def write_file(path: str | Path, content: bytes) -> None:
    """Write one file as :func:`write_files` does.

    Raises
    ------
    ConfigError
        When it cannot be written; then there is none, or the old one.
    """
    target = Path(path)
    write_files(target.parent, {target.name: content})
