"""Writing files so that a reader never sees half of one, nor does whoever comes after a crash.

A file is written under a random name, flushed to the disk, and then renamed to take the place of the old one. So it is whole or not there.
What a killed process was writing is removed by the next that writes the same file.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import glob
import io
import os
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from simcoll.errors import ConfigError

__all__ = ["csv_bytes", "open_folder", "refuse_places", "write_file", "write_files", "write_whole"]


MOST_LINKS = 40
LOCK_S = 5.0
"""Longest wait for another process: for one that puts files into the same folder, which takes microseconds, or that is to read a pipe."""


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
    refuse_taken(path, names)


def refuse_places(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse files that cannot be written, before anything long runs: each is begun beside its place.

    Raises
    ------
    ConfigError
        For such a file, for two outputs of one name, and for an output that is one of the ``inputs``.
    """
    taken: list[Path] = []
    for target in (Path(each) for each in outputs if each is not None):
        if any(target.absolute() == other.absolute() or _same(target, other) for other in taken):
            raise ConfigError("cannot be written: it is named for two outputs", file=str(target))
        taken.append(target)
        try:
            refuse_taken(target.parent, [target.name])
            if _own_descriptor(target) is not None or _is_special(target):
                continue
            if any(_same(target, Path(each)) for each in inputs if each):
                raise ConfigError("cannot be written: it is also read; name another file", file=str(target))
            with _alone_in(target.parent):
                _New.beside(target).discard()
        except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
            raise ConfigError(f"cannot be written: {getattr(error, 'strerror', error)}", file=str(target)) from None


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def refuse_taken(folder: Path, names: Iterable[str]) -> None:
    """Refuse to write where a folder is (found late, only some files would be replaced), or another user's pipe, who need never read it."""
    for target in (folder / name for name in names):
        if target.is_dir():
            raise ConfigError("cannot be written: there is a folder of this name", file=str(target))
        if target.is_fifo() and _own_descriptor(target) is None and target.stat().st_uid != os.getuid():
            raise ConfigError("cannot be written: it is a pipe of another user", file=str(target))


@dataclass(slots=True)
class _New:
    """A file on its way to a place: locked while its writer lives, under a name that nobody can foresee."""

    target: Path
    part: Path
    descriptor: int

    @classmethod
    def beside(cls, target: Path) -> _New:
        """An empty one; what a killed process left for the same place is removed."""
        for old in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
            with contextlib.suppress(OSError):
                _remove_unless_locked(old)
        part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)  # never follows a link
        _locked(descriptor)
        return cls(target, part, descriptor)

    def write(self, content: bytes) -> None:
        """Write everything, and wait until the disk has it."""
        write_whole(self.descriptor, content)
        os.fsync(self.descriptor)

    def put(self) -> None:
        """Take the place of the old file; a link there is replaced, not followed."""
        self.part.replace(self.target)

    def discard(self) -> None:
        """Close it, and remove it unless it has its place."""
        os.close(self.descriptor)
        with contextlib.suppress(OSError):
            self.part.unlink()


def write_whole(descriptor: int, content: bytes) -> None:
    """Write everything, in as many turns as the system takes."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _remove_unless_locked(part: Path) -> None:
    descriptor = os.open(part, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        if _locked(descriptor):
            part.unlink()
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Lock a file until it is closed; False where another process has it, and where there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _own_descriptor(target: Path) -> int | None:
    """The descriptor of this process that a name stands for, such as /dev/stdout and /dev/fd/3, also over links.

    What it stands for may be a file like any other, which keeps its name and what others have written.
    """
    for _ in range(MOST_LINKS):
        if os.path.realpath(target.parent) == f"/proc/{os.getpid()}/fd" and target.name.isdecimal():
            return int(target.name)
        try:
            target = target.parent / target.readlink()
        except OSError:  # it is no link
            return None
    return None


def _write_into(target: Path, content: bytes) -> None:
    """Write into a descriptor of ours, after what is printed already, or into a device or a pipe."""
    descriptor = _own_descriptor(target)
    if descriptor is None:
        with open(target, "wb", opener=_open_read) as place:
            place.write(content)
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    write_whole(descriptor, content)


def _open_read(target: str, flags: int) -> int:
    """Open a pipe that somebody reads, or will in a moment; whoever planted one would be waited for without end."""
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            descriptor = os.open(target, flags & ~(os.O_CREAT | os.O_TRUNC) | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until_s:
                raise OSError(errno.ENXIO, "nobody reads this pipe") from None
            time.sleep(0.01)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _is_special(target: Path) -> bool:
    """Whether it is a device or a pipe, which gets the content itself; a link to one is one."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files, then put them in place; of two processes that do so in one folder, one comes after the other.

    Raises
    ------
    ConfigError
        When one cannot be written; then none is left half-written, and all are the old ones, unless the system refuses to rename one of
        them: the error says which are new.
    """
    shown = str(folder / next(iter(files))) if len(files) == 1 else str(folder)
    new: list[_New] = []
    done: list[str] = []
    try:
        refuse_taken(folder, files)
        special = [name for name in files if _own_descriptor(folder / name) is not None or _is_special(folder / name)]
        for name in special:
            _write_into(folder / name, files[name])
        if len(special) == len(files):
            return
        with _alone_in(folder):
            new.extend(_New.beside(folder / name) for name in files if name not in special)
        for each in new:
            each.write(files[each.target.name])
        with _alone_in(folder):
            for each in new:
                each.put()
                done.append(each.target.name)
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        mixed = f"; new already: {', '.join(done)}" if done else ""
        raise ConfigError(f"cannot be written: {getattr(error, 'strerror', error)}{mixed}", file=shown) from None
    finally:
        for each in new:
            each.discard()


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep others out of a folder while its names change, and have the disk take the change before they may come.

    Whoever keeps it for seconds is stopped, and waited for no longer.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY) if os.name == "posix" else -1
    try:
        until_s = time.monotonic() + LOCK_S
        while descriptor >= 0 and not _locked(descriptor) and time.monotonic() < until_s:
            time.sleep(0.005)
        yield
        if descriptor >= 0:
            os.fsync(descriptor)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def csv_bytes(names: Iterable[str], rows: Iterable[Mapping[str, object]]) -> bytes:
    """Rows as CSV, with a head; what no name asks for is left out."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(names), lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def write_file(path: str | Path, content: bytes) -> None:
    """Write one file as :func:`write_files` does.

    Raises
    ------
    ConfigError
        When it cannot be written; then there is none, or the old one.
    """
    target = Path(path)
    write_files(target.parent, {target.name: content})
