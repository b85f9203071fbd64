"""FileStore: a store in a file that the processes of one machine share.

The file is a log of the operations that changed the store, which each process replays. After a
header line, each record is the length and CRC-32 of a request (`wire`) and the request. Writers
append under an exclusive file lock, which the kernel releases when a process dies; the next writer
truncates a record that a dying process left unfinished.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self, cast

import msgspec

from simcoll.distributed.server.frames import decode
from simcoll.distributed.stores.store import PollingWaiter, Store, call_and_wait
from simcoll.distributed.stores.store_errors import DistStoreError
from simcoll.distributed.stores.store_table import StoreTable
from simcoll.distributed.stores.wire import REQUESTS, Answer, StoreRequest, Verb

__all__ = ["FileStore"]

_QUEUES = frozenset({Verb.QUEUE_PUSH, Verb.QUEUE_POP, Verb.QUEUE_LEN})
LEAVE_S = 5.0
"""Longest wait for the file's lock when a store is closed."""
FIRST_LINE = b"simcoll-file-store 2\n"
_RECORD = struct.Struct(">II")


@dataclass(slots=True)
class _StoreLog:
    """A store's view of the file: the replayed position, and the resulting table."""

    path: str
    table: StoreTable = field(default_factory=StoreTable)
    position: int = 0
    inode: tuple[int, int] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, request: StoreRequest, patience_s: float, *, create: bool = False) -> Answer:
        """Catch up with the file, apply one operation, and append it if it is a change;
        ``patience_s`` bounds the wait for the lock.
        """
        writing = request.code.changes
        with self.lock:
            if not writing and self._is_current():
                return self.table.apply(request)
            with _lock_file(self.path, patience_s, exclusive=writing, create=create) as file:
                self._catch_up(file, writing)
                result = self.table.apply(request)
                if writing:
                    self._append(file, request)
                return result

    def leave(self, world_size: int, pid: int) -> None:
        """Deregister a user (not a forked child), and remove the file with the last of
        ``world_size``.
        """
        if os.getpid() != pid:
            return
        # A missing file needs no leaving.
        with (
            contextlib.suppress(DistStoreError),
            self.lock,
            _lock_file(self.path, LEAVE_S, exclusive=True, create=False) as file,
        ):
            self._catch_up(file, True)
            users = self._count(file, "members", -1)
            gone = self._count(file, "gone", 1)
            if users == 0 and 0 < world_size <= gone:
                os.unlink(self.path)  # noqa: PTH108

    def _count(self, file: int, name: str, amount: int) -> int:
        request = StoreRequest(Verb.COUNT, amount, keys=(name,))
        self._append(file, request)
        return cast("int", self.table.apply(request))

    def _is_current(self) -> bool:
        """Whether the file's length is unchanged since the last replay, the common case of
        reads.
        """
        try:
            status = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.inode and status.st_size == self.position

    def _catch_up(self, file: int, writing: bool) -> None:
        status = os.fstat(file)
        if (status.st_dev, status.st_ino) != self.inode or status.st_size < self.position:
            # Another file under this name: the old content is void.
            self.table, self.position, self.inode = StoreTable(), 0, (status.st_dev, status.st_ino)
        with open(file, "rb", closefd=False) as reader:
            reader.seek(self.position)
            data = reader.read()
        start, offset = self.position, 0
        if start == 0:
            if data and not FIRST_LINE.startswith(data[: len(FIRST_LINE)]):
                raise DistStoreError(
                    f"{self.path} is not the file of a FileStore: it begins with {data[:20]!r}"
                )
            self.position = offset = len(FIRST_LINE) if len(data) >= len(FIRST_LINE) else 0
        while (end := self._record_end(data, offset)) is not None:
            self._play(data[offset + _RECORD.size : end])
            offset = end
            self.position = start + offset
        if writing and offset < len(data):
            os.ftruncate(file, self.position)

    def _record_end(self, data: bytes, offset: int) -> int | None:
        """The end of the record at a position; None at the end of the file, or where a writer
        died.
        """
        if self.position == 0 or len(data) - offset < _RECORD.size:
            return None
        length, checksum = cast("tuple[int, int]", _RECORD.unpack_from(data, offset))
        end = offset + _RECORD.size + length
        if end > len(data):
            return None
        if zlib.crc32(data[offset + _RECORD.size : end]) != checksum:
            if end == len(data):
                return None
            raise DistStoreError(f"{self.path}: the record at byte {self.position} is damaged")
        return end

    def _play(self, body: bytes) -> None:
        try:
            request = decode(body, REQUESTS)
            request.check()
            self.table.apply(request)
        except ValueError as error:
            raise DistStoreError(
                f"{self.path}: the record at byte {self.position} makes no sense: {error}"
            ) from error

    def _append(self, file: int, request: StoreRequest) -> None:
        body = msgspec.msgpack.encode(request)
        record = (
            (FIRST_LINE if self.position == 0 else b"")
            + _RECORD.pack(len(body), zlib.crc32(body))
            + body
        )
        try:
            written_bytes = 0
            while written_bytes < len(record):
                written_bytes += os.pwrite(
                    file, record[written_bytes:], self.position + written_bytes
                )
        except OSError as error:
            # The table is ahead of the file: forget it, and play the file again next time.
            self.inode = None
            raise DistStoreError(f"cannot write to {self.path}: {error.strerror}") from error
        self.position += len(record)


@contextlib.contextmanager
def _lock_file(path: str, patience_s: float, *, exclusive: bool, create: bool) -> Iterator[int]:
    """Open and lock the file; a new open each time also excludes other threads and forked
    processes.
    """
    if sys.platform == "win32":
        raise DistStoreError("FileStore needs the file locks of a POSIX system; use a TCPStore")
    import fcntl

    how = fcntl.LOCK_NB | (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    until_s = time.monotonic() + patience_s
    while True:
        file = _open(path, create)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, how)
                    break
                if time.monotonic() > until_s:
                    raise DistStoreError(
                        f"cannot use {path} as a store: another process, perhaps a stopped one, "
                        f"has kept it locked for {patience_s:g} s"
                    )
                time.sleep(0.001)
            # The last user may have removed the file between opening and locking.
            current = False
            with contextlib.suppress(FileNotFoundError):
                current = os.path.samestat(os.fstat(file), os.stat(path))  # noqa: PTH116
            if current:
                yield file
                return
        finally:
            os.close(file)


def _open(path: str, create: bool) -> int:
    try:
        how = (
            os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        )
        file = os.open(path, how, 0o600)
    except FileNotFoundError as error:
        why = (
            "its directory does not exist"
            if create
            else "it was removed while the store was in use"
        )
        raise DistStoreError(f"cannot use {path} as a store: {why}") from error
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise DistStoreError(f"cannot use {path} as a store: {reason}") from error
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
        os.close(file)
        why = "belongs to another user" if stat.S_ISREG(status.st_mode) else "is not a regular file"
        raise DistStoreError(f"cannot use {path} as a store: it {why}")
    return file


class FileStore(Store):
    """A store in a file.

    Parameters
    ----------
    file_name
        The file; created if it does not exist, in an existing directory.
    world_size
        Number of stores that use the file: the last one to close removes it. Zero or less: the file
        is kept.

    Raises
    ------
    DistStoreError
        The file cannot be opened, or is not a store.

    Notes
    -----
    `delete_key` is supported, queues are not (NotImplementedError). The file grows with every
    change.
    """

    def __init__(self, file_name: str | os.PathLike[str], world_size: int = -1) -> None:
        super().__init__()
        if isinstance(world_size, bool) or not isinstance(world_size, int):
            raise TypeError(f"FileStore's world_size must be an int, got {world_size!r}")
        self._path = os.fspath(file_name)
        self._world_size = world_size
        self._log = _StoreLog(self._path)
        self._log.run(
            StoreRequest(Verb.COUNT, 1, keys=("members",)),
            self.timeout.total_seconds(),
            create=True,
        )
        self._released = weakref.finalize(self, self._log.leave, world_size, os.getpid())

    def __repr__(self) -> str:
        return f"<FileStore: {self._path!r}>"

    @property
    def path(self) -> str:
        """The file's name as given."""
        return self._path

    def call(self, request: StoreRequest, timeout_s: float | None = None) -> Answer:
        """Catch up with the file and carry out the operation; a change is in the file when this
        returns.
        """
        if request.code in _QUEUES:
            raise NotImplementedError(
                "queue support is not implemented by FileStore; use HashStore or TCPStore"
            )
        if timeout_s is not None:
            return call_and_wait(self, self.waiter or PollingWaiter(), request, timeout_s)
        result = self._log.run(request, self.timeout.total_seconds())
        if request.code.changes:
            self._tell()
        return result

    def clone(self) -> Self:
        """Another store on the same file."""
        return self._like(type(self)(self._path, self._world_size))

    def close(self) -> None:
        """Stop using the file; the last of ``world_size`` stores removes it."""
        self._released()
