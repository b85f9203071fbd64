"""FileStore: a store in a file that the processes of one machine share.

The data is the log (`log`): every change is appended to the file, and every store replays the changes of others.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Self

from simcoll.distributed.stores.errors import DistStoreError
from simcoll.distributed.stores.log import Log
from simcoll.distributed.stores.store import Store, call_and_wait
from simcoll.distributed.stores.table import Operation, Request, Result, changes
from simcoll.distributed.stores.waiting import PollingWaiter

__all__ = ["FileStore"]

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
        self._log = Log(self._path)
        self._log.run(Request(Operation.COUNT, ("members",), amount=1), create=True)
        self._released = weakref.finalize(self, _leave, self._log, world_size, os.getpid())

    @property
    def path(self) -> str:
        """The file's name as given."""
        return self._path

    def call(self, request: Request, timeout_s: float | None = None) -> Result:
        """Catch up with the file and carry out the operation; a change is in the file when this returns."""
        if request.operation in _QUEUES:
            raise NotImplementedError("queue support is not implemented by FileStore; use HashStore or TCPStore")
        if timeout_s is not None:
            return call_and_wait(self, self.waiter or PollingWaiter(), request, timeout_s)
        result = self._log.run(request)
        if changes(request):
            self._tell()
        return result

    def clone(self) -> Self:
        """Another store on the same file."""
        other = type(self)(self._path, self._world_size)
        other.set_timeout(self.timeout)
        other.waiter = self._waiter
        return other

    def close(self) -> None:
        """Stop using the file; the last of ``world_size`` stores removes it."""
        self._released()


def _leave(log: Log, world_size: int, pid: int) -> None:
    """Count one user less; a forked child does not count, and a missing file needs no leaving."""
    if os.getpid() == pid:
        with contextlib.suppress(DistStoreError):
            log.leave(world_size)
