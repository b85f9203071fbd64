"""PrefixStore: a corner of another store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from simcoll.distributed.stores.arguments import key_text
from simcoll.distributed.stores.store import Store

if TYPE_CHECKING:
    from datetime import timedelta

    from simcoll.distributed.stores.table import Request, Result
    from simcoll.distributed.stores.waiting import Waiter

__all__ = ["PrefixStore"]


class PrefixStore(Store):
    """A store whose key ``k`` is ``prefix/k`` in another, with that one's timeout and way of waiting.

    Raises
    ------
    TypeError
        The prefix is not a str, or the store no Store.

    Examples
    --------
    >>> from simcoll.distributed.stores.hash_store import HashStore
    >>> whole = HashStore()
    >>> PrefixStore("outer", PrefixStore("inner", whole)).set("k", "v")
    >>> whole.list_keys()
    ['inner/outer/k']
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__()
        if not isinstance(store, Store):
            raise TypeError(f"PrefixStore needs a Store, got {store!r} of type {type(store).__name__}")
        self._prefix = key_text(prefix)
        self._store = store

    @property
    def underlying_store(self) -> Store:
        """The store this one is a corner of."""
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

    def call(self, request: Request, timeout_s: float | None = None) -> Result:
        """Hand the operation on with the prefix before every key."""
        prefixed = replace(request, keys=tuple(f"{self._prefix}/{key}" for key in request.keys))
        return self._store.call(prefixed, timeout_s)

    def list_keys(self) -> list[str]:
        """The keys of this corner, without the prefix, sorted. (`num_keys` counts the underlying store's.)"""
        start = f"{self._prefix}/"
        return sorted(key.removeprefix(start) for key in self._store.list_keys() if key.startswith(start))

    def has_extended_api(self) -> bool:
        """As of the underlying store."""
        return self._store.has_extended_api()

    def clone(self) -> Self:
        """A corner of a clone of the underlying store."""
        return type(self)(self._prefix, self._store.clone())
