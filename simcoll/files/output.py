"""Write files atomically and durably: neither readers nor crashes ever leave half a file.

A file is written under a random name, synced, and renamed over the old one. Files that a killed
process left unfinished are removed by the next writer of the same file.
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
"""Time limit for another process: a writer to the same folder, which takes microseconds, or the
reader of a pipe.
"""


def open_folder(path: Path, names: Iterable[str] = ()) -> None:
    """Create the output folder, and check that it is writable before a long computation.

    Raises
    ------
    ConfigError
        When it cannot be created or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write to the output folder: {error.strerror}", file=str(path)
        ) from None
    refuse_existing(path, names)


def refuse_places(
    outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None] = ()
) -> None:
    """Refuse unwritable output files before a long computation, by creating a temporary file beside
    each.

    Raises
    ------
    ConfigError
        For an unwritable file, for two outputs of one name, and for an output that is one of the
        ``inputs``.
    """
    targets: list[Path] = []
    for target in (Path(output) for output in outputs if output is not None):
        if any(
            target.absolute() == earlier.absolute() or _same(target, earlier) for earlier in targets
        ):
            raise ConfigError("cannot be written: it is named for two outputs", file=str(target))
        targets.append(target)
        try:
            refuse_existing(target.parent, [target.name])
            if _own_descriptor(target) is not None or _is_special(target):
                continue
            if any(_same(target, Path(source)) for source in inputs if source):
                raise ConfigError(
                    "cannot be written: it is also read; name another file", file=str(target)
                )
            with _alone_in(target.parent):
                _New.beside(target).discard()
        except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
            raise ConfigError(
                f"cannot be written: {getattr(error, 'strerror', error)}", file=str(target)
            ) from None


def _same(path: Path, second_path: Path) -> bool:
    try:
        return path.samefile(second_path)
    except (OSError, ValueError):
        return False


def refuse_existing(folder: Path, names: Iterable[str]) -> None:
    """Refuse to replace a folder (detected late, some files would be new and some old), or another
    user's pipe, which may block.
    """
    for target in (folder / name for name in names):
        if target.is_dir():
            raise ConfigError("cannot be written: there is a folder of this name", file=str(target))
        if (
            target.is_fifo()
            and _own_descriptor(target) is None
            and target.stat().st_uid != os.getuid()
        ):
            raise ConfigError("cannot be written: it is a pipe of another user", file=str(target))


@dataclass(slots=True)
class _New:
    """A file being written: locked while its writer lives, under an unpredictable name."""

    target: Path
    part: Path
    descriptor: int

    @classmethod
    def beside(cls, target: Path) -> _New:
        """Create an empty file beside its target, and remove what a killed process left there."""
        for old in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
            with contextlib.suppress(OSError):
                _remove_unless_in_use(old)
        part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        # Never follows a link.
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        _lock(descriptor)
        return cls(target, part, descriptor)

    def write(self, content: bytes) -> None:
        """Write everything, and sync."""
        write_whole(self.descriptor, content)
        os.fsync(self.descriptor)

    def publish(self) -> None:
        """Replace the old file; a link there is replaced, not followed."""
        self.part.replace(self.target)

    def discard(self) -> None:
        """Close it, and remove it unless it has replaced its target."""
        os.close(self.descriptor)
        with contextlib.suppress(OSError):
            self.part.unlink()


def write_whole(descriptor: int, content: bytes) -> None:
    """Write everything, in as many system calls as needed."""
    unwritten = memoryview(content)
    while unwritten:
        unwritten = unwritten[os.write(descriptor, unwritten) :]


def _remove_unless_in_use(part: Path) -> None:
    descriptor = os.open(
        part, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    )
    try:
        if _lock(descriptor):
            part.unlink()
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a file until it is closed; False if another process holds the lock, or locks are
    unsupported.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _own_descriptor(target: Path) -> int | None:
    """The descriptor of this process that a path denotes, such as /dev/stdout and /dev/fd/3,
    through links too.

    It may refer to a regular file, which keeps its name and what others have written.
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
    """Write into a descriptor of this process, after earlier output, or into a device or a pipe."""
    descriptor = _own_descriptor(target)
    if descriptor is None:
        with open(target, "wb", opener=_open_pipe) as place:
            place.write(content)
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    write_whole(descriptor, content)


def _open_pipe(target: str, flags: int) -> int:
    """Open a pipe that has a reader, or gets one within the time limit; a planted pipe would block
    forever.
    """
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            descriptor = os.open(
                target, flags & ~(os.O_CREAT | os.O_TRUNC) | getattr(os, "O_NONBLOCK", 0)
            )
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until_s:
                raise OSError(errno.ENXIO, "no process reads this pipe") from None
            time.sleep(0.01)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _is_special(target: Path) -> bool:
    """Whether a path is a device or a pipe, possibly through a link, which is written into instead
    of replaced.
    """
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files, then rename them into place; concurrent writers of one folder take turns.

    Raises
    ------
    ConfigError
        When one cannot be written; all old files are then kept, unless a rename fails: the error
        lists the files already replaced.
    """
    subject = str(folder / next(iter(files))) if len(files) == 1 else str(folder)
    new: list[_New] = []
    replaced: list[str] = []
    try:
        refuse_existing(folder, files)
        special = [
            name
            for name in files
            if _own_descriptor(folder / name) is not None or _is_special(folder / name)
        ]
        for name in special:
            _write_into(folder / name, files[name])
        if len(special) == len(files):
            return
        with _alone_in(folder):
            new.extend(_New.beside(folder / name) for name in files if name not in special)
        for file in new:
            file.write(files[file.target.name])
        with _alone_in(folder):
            for file in new:
                file.publish()
                replaced.append(file.target.name)
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        mixed = f"; new already: {', '.join(replaced)}" if replaced else ""
        raise ConfigError(
            f"cannot be written: {getattr(error, 'strerror', error)}{mixed}", file=subject
        ) from None
    finally:
        for file in new:
            file.discard()


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder while its names change, and sync it before releasing the lock.

    A process that holds the lock for seconds has been stopped, and is not waited for.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY) if os.name == "posix" else -1
    try:
        until_s = time.monotonic() + LOCK_S
        while descriptor >= 0 and not _lock(descriptor) and time.monotonic() < until_s:
            time.sleep(0.005)
        yield
        if descriptor >= 0:
            os.fsync(descriptor)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def csv_bytes(names: Iterable[str], rows: Iterable[Mapping[str, object]]) -> bytes:
    """Encode rows as CSV with a header; other keys are dropped."""
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
        When it cannot be written; an old file is then kept.
    """
    target = Path(path)
    write_files(target.parent, {target.name: content})
