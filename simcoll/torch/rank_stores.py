"""Stores in ranks, kept in the run's memory; while a rank waits for a key, the others run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from simcoll.distributed.stores import HashStore, PrefixStore
from simcoll.torch.rank_threads import RankThread, current_thread
from simcoll.torch.replacing import in_ranks

__all__ = ["RankStore", "prefix_store", "store_replacements"]


def _forward(name: str) -> Callable[..., Any]:
    """Make a method that calls the shared store's method in the rank's task."""

    def method(self: RankStore, *args: Any, **kwargs: Any) -> Any:
        return self.thread.call(getattr(self.shared, name), *args, **kwargs)

    return functools.update_wrapper(method, getattr(HashStore, name))


class RankStore(dist.Store):
    """One rank's handle of the store of a run, with torch's methods: while it waits for a key, the
    others run.
    """

    def __init__(self, thread: RankThread, shared: Any) -> None:
        super().__init__()
        self.thread = thread
        self.shared = shared
        thread.process.stores.append(self)  # PyTorch keeps only the C++ half alive

    set = _forward("set")
    get = _forward("get")
    add = _forward("add")
    append = _forward("append")
    compare_set = _forward("compare_set")
    check = _forward("check")
    wait = _forward("wait")
    barrier = _forward("barrier")
    delete_key = _forward("delete_key")
    num_keys = _forward("num_keys")
    multi_get = _forward("multi_get")
    multi_set = _forward("multi_set")
    list_keys = _forward("list_keys")
    set_timeout = _forward("set_timeout")
    queue_push = _forward("queue_push")
    queue_pop = _forward("queue_pop")
    queue_len = _forward("queue_len")

    def clone(self) -> RankStore:
        """Another handle of the same store."""
        return RankStore(self.thread, self.shared)

    @property
    def underlying_store(self) -> RankStore:
        """The store without the prefix."""
        return RankStore(self.thread, self.shared.underlying_store)

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set are supported: True."""
        return True


def prefix_store(prefix: str, store: Any) -> Any:
    """A store with a key prefix; PyTorch's, in C++, would not forward all methods of a rank's
    store.
    """
    if isinstance(store, RankStore):
        return RankStore(store.thread, PrefixStore(prefix, store.shared))
    return dist.PrefixStore(prefix, store)


class _PlacedStore(RankStore):
    """A store found by address or path, like PyTorch's TCPStore and FileStore."""

    host, port, path = "", 0, ""


def _open_at(stores: dict[Any, HashStore], place: Any, timeout: timedelta | None) -> _PlacedStore:
    store = _PlacedStore(current_thread(), stores.setdefault(place, HashStore()))
    if timeout is not None:
        store.set_timeout(timeout)
    return store


def store_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of stores whose waits in C++ would block all ranks."""
    stores: dict[Any, HashStore] = {}

    def tcp(
        host_name: str,
        port: int,
        world_size: Any = None,
        is_master: bool = False,
        timeout: Any = None,
        *_: Any,
        **__: Any,
    ) -> _PlacedStore:
        del world_size, is_master
        store = _open_at(stores, (host_name, port), timeout)
        store.host, store.port = host_name, port
        return store

    def file(file_name: str, world_size: int = -1) -> _PlacedStore:
        del world_size
        store = _open_at(stores, str(Path(file_name).absolute()), None)
        store.path = file_name
        return store

    return [
        (dist, "TCPStore", in_ranks(dist.TCPStore, tcp)),
        (dist, "FileStore", in_ranks(dist.FileStore, file)),
    ]
