"""HashStore, a store in this process's memory, and PrefixStore, a namespace of another store."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Self

import msgspec

from simcoll.distributed.stores.store import Store, ThreadWaiter, Waiter, call_and_wait, key_text
from simcoll.distributed.stores.store_table import StoreTable
from simcoll.distributed.stores.wire import NOT_READY, Answer, StoreRequest

__all__ = ["HashStore", "PrefixStore"]


class HashStore(Store):
    """A store in memory, shared by the threads and emulated ranks of this process.

    >>> store = HashStore()
    >>> store.set("first_key", "first_value")
    >>> store.get("first_key")
    b'first_value'
    >>> store.add("counter", 2)
    2
    """

    def __init__(self) -> None:
        super().__init__()
        # Shared with the clones.
        self._shared = (StoreTable(), threading.Lock(), ThreadWaiter())

    def call(self, request: StoreRequest, timeout_s: float | None = None) -> Answer:
        """Apply the operation under the lock; a change wakes the waiting threads."""
        table, lock, threads = self._shared
        if timeout_s is not None:
            return call_and_wait(self, self.waiter or threads, request, timeout_s)
        with lock:
            answer = table.apply(request)
        # A queue without a value has not changed: two ranks that wait for queues would wake each
        # other forever.
        if request.code.changes and answer is not NOT_READY:
            threads.notify()
            self._tell()
        return answer

    def has_extended_api(self) -> bool:
        """True."""
        return True

    def clone(self) -> Self:
        """Another object for the same data."""
        copy = type(self)()
        copy._shared = self._shared  # noqa: SLF001  the same class
        return self._like(copy)


class PrefixStore(Store):
    """A namespace of another store: key ``k`` is ``prefix/k`` there. Timeout and waiter are the
    underlying store's.

    A TypeError if the prefix is not a str, or the store no Store.

    >>> whole = HashStore()
    >>> PrefixStore("outer", PrefixStore("inner", whole)).set("k", "v")
    >>> whole.list_keys()
    ['inner/outer/k']
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__()
        if not isinstance(store, Store):
            raise TypeError(
                f"PrefixStore needs a Store, got {store!r} of type {type(store).__name__}"
            )
        self._prefix = key_text(prefix)
        self._store = store

    def __repr__(self) -> str:
        return f"<PrefixStore: {self._prefix!r} in {self._store!r}>"

    @property
    def underlying_store(self) -> Store:
        """The store that holds this one's keys."""
        return self._store

    @property
    def waiter(self) -> Waiter | None:
        """The underlying store's waiter."""
        return self._store.waiter

    @waiter.setter
    def waiter(self, waiter: Waiter | None) -> None:
        self._store.waiter = waiter

    @property
    def timeout(self) -> timedelta:
        """The underlying store's timeout."""
        return self._store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the underlying store's timeout."""
        self._store.set_timeout(timeout)

    def call(self, request: StoreRequest, timeout_s: float | None = None) -> Answer:
        """Forward the operation with the prefix before each key."""
        keys = tuple(f"{self._prefix}/{key}" for key in request.keys)
        return self._store.call(msgspec.structs.replace(request, keys=keys), timeout_s)

    def list_keys(self) -> list[str]:
        """The keys with this prefix, without it, sorted. (`num_keys` counts the underlying
        store's.)
        """
        start = f"{self._prefix}/"
        return sorted(
            key.removeprefix(start) for key in self._store.list_keys() if key.startswith(start)
        )

    def has_extended_api(self) -> bool:
        """As of the underlying store."""
        return self._store.has_extended_api()

    def clone(self) -> Self:
        """The same namespace of a clone of the underlying store."""
        return type(self)(self._prefix, self._store.clone())
