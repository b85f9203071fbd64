"""The file of a FileStore: the sequence of operations that changed the store.

After a first line that says what the file is, each record is the length and CRC-32 of a message (`wire`) and the message,
whose code is the operation. A store that opens the file replays the records. Writers append under an exclusive lock of the file, which
the kernel releases when a process dies; a record left unfinished by a dying process is cut off by the next writer.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
import threading
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import msgspec

from simcoll.distributed.server.frames import decode
from simcoll.distributed.stores import wire
from simcoll.distributed.stores.errors import DistStoreError
from simcoll.distributed.stores.table import Operation, Request, Result, Table, apply, changes, check_counts

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Log"]

FIRST_LINE = b"simcoll-file-store 2\n"
_RECORD = struct.Struct(">II")


@dataclass(slots=True)
class Log:
    """A store's view of the file: how far it has replayed it, and the resulting table."""

    path: str
    table: Table = field(default_factory=Table)
    position: int = 0
    inode: tuple[int, int] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, request: Request, *, create: bool = False) -> Result:
        """Catch up with the file, apply one operation, and append it if it is a change.

        Raises
        ------
        DistStoreError
            The file is gone, cannot be used, or is no store.
        """
        writing = changes(request)
        with self.lock:
            if not writing and self._is_current():
                return apply(self.table, request)
            with _locked(self.path, exclusive=writing, create=create) as file:
                self._catch_up(file, writing)
                result = apply(self.table, request)
                if writing:
                    self._append(file, request)
                return result

    def leave(self, world_size: int) -> None:
        """Count one user less, and remove the file with the last of ``world_size``."""
        with self.lock, _locked(self.path, exclusive=True, create=False) as file:
            self._catch_up(file, True)
            users = self._count(file, "members", -1)
            gone = self._count(file, "gone", 1)
            if users == 0 and 0 < world_size <= gone:
                os.unlink(self.path)  # noqa: PTH108

    def _count(self, file: int, name: str, amount: int) -> int:
        request = Request(Operation.COUNT, (name,), amount=amount)
        result = apply(self.table, request)
        self._append(file, request)
        return cast("int", result)

    def _is_current(self) -> bool:
        """Whether the file has kept its length since it was last replayed, as most reads find."""
        try:
            found = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.inode and found.st_size == self.position

    def _catch_up(self, file: int, writing: bool) -> None:
        found = os.fstat(file)
        if (found.st_dev, found.st_ino) != self.inode or found.st_size < self.position:
            # Another file under this name: the old content is void.
            self.table, self.position, self.inode = Table(), 0, (found.st_dev, found.st_ino)
        data = _read(file, self.position, found.st_size)
        start, at = self.position, 0
        if start == 0:
            if data and not FIRST_LINE.startswith(data[: len(FIRST_LINE)]):
                raise DistStoreError(f"{self.path} is not the file of a FileStore: it begins with {data[:20]!r}")
            self.position = at = len(FIRST_LINE) if len(data) >= len(FIRST_LINE) else 0
        while (end := self._record_end(data, at)) is not None:
            self._play(data[at + _RECORD.size : end])
            at = end
            self.position = start + at
        if writing and at < len(data):
            os.ftruncate(file, self.position)

    def _record_end(self, data: bytes, at: int) -> int | None:
        """End of the record that begins here; None at the end of the file, or where a writer died."""
        if self.position == 0 or len(data) - at < _RECORD.size:
            return None
        length, checksum = cast("tuple[int, int]", _RECORD.unpack_from(data, at))
        end = at + _RECORD.size + length
        if end > len(data):
            return None
        if zlib.crc32(data[at + _RECORD.size : end]) != checksum:
            if end == len(data):
                return None
            raise DistStoreError(f"{self.path}: the record at byte {self.position} is damaged")
        return end

    def _play(self, body: bytes) -> None:
        try:
            message = decode(body, wire.REQUESTS)
            request = Request(Operation(message.code), message.keys, message.values, message.number)
            check_counts(request)
            apply(self.table, request)
        except ValueError as error:
            raise DistStoreError(f"{self.path}: the record at byte {self.position} makes no sense: {error}") from error

    def _append(self, file: int, request: Request) -> None:
        message = wire.Message(request.operation, request.amount, 0, request.keys, request.values)
        body = msgspec.msgpack.encode(message)
        record = (FIRST_LINE if self.position == 0 else b"") + _RECORD.pack(len(body), zlib.crc32(body)) + body
        try:
            _write(file, self.position, record)
        except OSError as error:
            # The table is ahead of the file: forget it, and play the file again next time.
            self.inode = None
            raise DistStoreError(f"cannot write to {self.path}: {error.strerror}") from error
        self.position += len(record)


def _read(file: int, start: int, end: int) -> bytes:
    parts = bytearray()
    while start + len(parts) < end:
        part = os.pread(file, end - start - len(parts), start + len(parts))
        if not part:
            break
        parts += part
    return bytes(parts)


def _write(file: int, start: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], start + done)


@contextlib.contextmanager
def _locked(path: str, *, exclusive: bool, create: bool) -> Iterator[int]:
    """The file, open and locked; opened anew each time, so that threads and forked processes exclude each other, too."""
    if sys.platform == "win32":
        raise DistStoreError("FileStore needs the file locks of a POSIX system; use a TCPStore")
    import fcntl

    file = -1
    try:
        while True:
            file = _open(path, create)
            fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            # The last user may have removed the file between opening and locking.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.stat(path)):  # noqa: PTH116
                    break
            os.close(file)
            file = -1
        yield file
    finally:
        if file >= 0:
            os.close(file)


def _open(path: str, create: bool) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError as error:
        why = "its directory does not exist" if create else "it was removed while the store was in use"
        raise DistStoreError(f"cannot use {path} as a store: {why}") from error
    except OSError as error:
        raise DistStoreError(f"cannot use {path} as a store: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise DistStoreError(f"cannot use {path} as a store: it is not a regular file")
    return file
