"""HashStore: a store in the memory of this process, for its threads and its emulated ranks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Self

from simcoll.distributed.stores.store import Store, call_and_wait
from simcoll.distributed.stores.table import Request, Result, Table, apply, changes
from simcoll.distributed.stores.waiting import ThreadWaiter

__all__ = ["HashStore"]


@dataclass(slots=True)
class _Shared:
    """State shared by a store and its clones."""

    table: Table = field(default_factory=Table)
    lock: threading.Lock = field(default_factory=threading.Lock)
    threads: ThreadWaiter = field(default_factory=ThreadWaiter)


class HashStore(Store):
    """A store that threads of this process share.

    >>> store = HashStore()
    >>> store.set("first_key", "first_value")
    >>> store.get("first_key")
    b'first_value'
    >>> store.add("counter", 2)
    2
    """

    def __init__(self) -> None:
        super().__init__()
        self._shared = _Shared()

    def call(self, request: Request, timeout_s: float | None = None) -> Result:
        """Apply the operation under the lock; a change wakes the waiting threads."""
        if timeout_s is not None:
            return call_and_wait(self, self.waiter or self._shared.threads, request, timeout_s)
        with self._shared.lock:
            result = apply(self._shared.table, request)
        if changes(request):
            self._shared.threads.notify()
            self._tell()
        return result

    def has_extended_api(self) -> bool:
        """True."""
        return True

    def clone(self) -> Self:
        """Another object for the same data."""
        other = type(self)()
        other._shared = self._shared  # noqa: SLF001  the same class
        other.set_timeout(self.timeout)
        other.waiter = self._waiter
        return other
