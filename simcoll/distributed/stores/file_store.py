"""FileStore: a store in a file that processes share, of one machine or of a file system with POSIX locks.

The file is a list of the operations that changed the store, each with a checksum, after a first line that says what it is.
Whoever opens it plays them. Writers append under an exclusive lock of the file, which the kernel releases when a process
dies; what a process that died in the middle of writing has left is cut off by the next writer.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading
import weakref
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self, cast

from simcoll.distributed.stores import wire
from simcoll.distributed.stores.arguments import seconds
from simcoll.distributed.stores.errors import DistStoreError
from simcoll.distributed.stores.store import Store, call_and_wait
from simcoll.distributed.stores.table import NOT_READY, Operation, Request, Result, Table, apply, changes
from simcoll.distributed.stores.waiting import PollingWaiter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simcoll.distributed.stores.waiting import Waiter

__all__ = ["FileStore"]

FIRST_LINE = b"simcoll-file-store 1\n"
_RECORD = struct.Struct(">II")  # the length of the frame that follows, and its CRC-32
_QUEUES = frozenset({Operation.QUEUE_PUSH, Operation.QUEUE_POP, Operation.QUEUE_LEN})


class FileStore(Store):
    """A store in a file.

    Parameters
    ----------
    file_name
        The file; made when it does not exist, in a directory that does.
    world_size
        How many stores will use the file: the last of them to close removes it. Not positive: it stays.

    Raises
    ------
    DistStoreError
        The file cannot be opened, or is something else than a store.

    Notes
    -----
    Queues are not supported (NotImplementedError). `delete_key` is. The file grows with every change.
    """

    def __init__(self, file_name: str | os.PathLike[str], world_size: int = -1) -> None:
        super().__init__()
        if isinstance(world_size, bool) or not isinstance(world_size, int):
            raise TypeError(f"FileStore's world_size must be an int, got {world_size!r}")
        self._path = os.fspath(file_name)
        self._world_size = world_size
        self._log = _Log(Path(self._path))
        self._waiter = PollingWaiter()
        self._log.run(Request(Operation.COUNT, ("members",), amount=1), create=True)
        self._released = weakref.finalize(self, _release, self._log, world_size, os.getpid())

    @property
    def path(self) -> str:
        """The file's name as given."""
        return self._path

    @property
    def waiter(self) -> Waiter:
        """How this store waits: by looking at the file again and again, unless set."""
        return self._waiter or PollingWaiter()

    @waiter.setter
    def waiter(self, waiter: Waiter | None) -> None:
        self._waiter = waiter or PollingWaiter()

    def call(self, request: Request, timeout_s: float | None = None) -> Result:
        """Catch up with the file and carry out the operation; a change is in the file when this returns."""
        if request.operation in _QUEUES:
            raise NotImplementedError("queue support is not implemented by FileStore; use HashStore or TCPStore")
        if timeout_s is not None:
            return call_and_wait(self, self.waiter, request, timeout_s)
        result = self._log.run(request)
        if changes(request):
            self.waiter.notify()
        return result

    def clone(self) -> Self:
        """Another store on the same file."""
        other = type(self)(self._path, self._world_size)
        other.set_timeout(self.timeout)
        other.waiter = self.waiter
        return other

    def close(self) -> None:
        """Stop using the file; the last of ``world_size`` stores removes it."""
        self._released()
