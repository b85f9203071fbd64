"""Stores in ranks, kept in the run's memory; while a rank waits for a key, the others run."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from os import unlink as _unlink_at_once
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from simcoll import distributed as ours
from simcoll.distributed.stores import HashStore, PrefixStore
from simcoll.torch.rank_threads import RankThread, current_thread, current_thread_or_none
from simcoll.torch.replacing import in_ranks

__all__ = ["RankStore", "store_of_run", "store_replacements"]

_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "")  # noqa: S104  # nothing listens
_FIRST_PORT = 49152
"""The first of the ports that a system gives to those that ask for any."""
_JOINED = "init/"
"""The key of a TCPStore under which its processes count themselves."""


_POLL_S = 1e-4
"""The time between two requests that look for a change, about that of one over a network."""


def _forward(name: str, *, polls: bool = False) -> Callable[..., Any]:
    """Make a method that calls the shared store's method in the task of the thread that calls.
    After a second request with the same answer the others go on, if it ``polls``.
    """

    def method(self: RankStore, *args: Any, **kwargs: Any) -> Any:
        thread = current_thread_or_none() or self.thread
        answer = thread.call(getattr(self.shared, name), *args, **kwargs)
        if polls:
            request = name, str(args), answer
            if request == self.last_request:
                thread.call(ours.compute, _POLL_S, "poll of a store")
            self.last_request = request
        return answer

    return functools.update_wrapper(method, getattr(HashStore, name))


class RankStore(dist.Store):
    """One rank's handle of the store of a run, with torch's methods: while it waits for a key, the
    others run.

    Attributes
    ----------
    base
        The store of which it is a namespace, if it is one.
    last_request
        The last one that looked for a change, with its answer.
    """

    base: Any = None
    last_request: Any = None

    def __init__(self, thread: RankThread, shared: Any, *, keep: bool = True) -> None:
        super().__init__()
        self.thread = thread
        self.shared = shared
        if keep:
            thread.process.stores.append(self)  # PyTorch keeps only the C++ half alive

    set = _forward("set")
    get = _forward("get")
    add = _forward("add", polls=True)
    append = _forward("append")
    compare_set = _forward("compare_set", polls=True)
    check = _forward("check", polls=True)
    wait = _forward("wait")
    barrier = _forward("barrier")
    delete_key = _forward("delete_key")
    multi_get = _forward("multi_get")
    multi_set = _forward("multi_set")
    list_keys = _forward("list_keys", polls=True)
    set_timeout = _forward("set_timeout")
    queue_push = _forward("queue_push")
    queue_pop = _forward("queue_pop")
    queue_len = _forward("queue_len", polls=True)
    _count_keys = _forward("num_keys", polls=True)

    def num_keys(self) -> int:
        """Number of keys of the whole store."""
        return int(self._count_keys() if self.base is None else self.base.num_keys())

    def clone(self) -> RankStore:
        """Another handle of the same store."""
        copy = type(self)(self.thread, self.shared.clone())
        copy.base = self.base
        return copy

    @property
    def underlying_store(self) -> Any:
        """The store without the prefix."""
        return self.base

    @property
    def _underlying_non_prefix_store(self) -> Any:
        return self if self.base is None else self.base._underlying_non_prefix_store

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set are supported: True."""
        return True


def _prefix_store(prefix: str, store: Any) -> Any:
    """A store with a key prefix; PyTorch's, in C++, would not forward all methods of a rank's
    store.
    """
    if store is None:
        raise ValueError("store argument cannot be None")
    if not isinstance(store, RankStore):
        return _STANDARD_PREFIX(prefix, store)
    namespace = _PrefixHandle(store.thread, PrefixStore(prefix, store.shared))
    namespace.base = store
    return namespace


class _PrefixHandle(RankStore):
    """A namespace of another store."""


class _HashHandle(RankStore):
    """A store of one process, like PyTorch's HashStore."""


_STANDARD_PREFIX = dist.PrefixStore


class _TcpHandle(RankStore):
    """A store found by address, like PyTorch's TCPStore."""

    host, port, is_server, libuvBackend = "", 0, False, True  # PyTorch's name

    def __repr__(self) -> str:
        """As PyTorch shows it; there is no socket."""
        address = f"addr=[{self.host}]:{self.port}, remote=[{self.host}]:{self.port}"
        server = f"TCPServer(port={self.port})" if self.is_server else "<nullptr>"
        return f"TCPStore(client=TCPClient(SocketImpl(fd=0, {address})), server={server})"


def store_of_run(thread: RankThread, store: HashStore) -> RankStore:
    """A rank's handle of the store by which ranks meet: torchrun's server."""
    handle = _TcpHandle(thread, store.clone())
    handle.host = os.environ.get("MASTER_ADDR", "localhost")
    handle.port = int(os.environ.get("MASTER_PORT", "0"))
    handle.libuvBackend = os.environ.get("USE_LIBUV", "1") == "1"
    return handle


class _FileHandle(RankStore):
    """A store found by path, like PyTorch's FileStore."""

    path = ""

    def num_keys(self) -> int:
        """Number of keys, with the one that counts the store's users."""
        return super().num_keys() + 1


@dataclass(slots=True)
class _Place:
    """A store at an address or path.

    Attributes
    ----------
    users, ends
        The number of its objects that live, and of those that have ended.
    servers
        Those of its objects that are servers.
    events
        A store of what has happened to it.
    """

    store: HashStore = field(default_factory=HashStore)
    events: HashStore = field(default_factory=HashStore)
    users: int = 0
    ends: int = 0
    servers: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)


class _StorePlaces:
    """The stores of a run by their places."""

    def __init__(self) -> None:
        self._of_ports: dict[tuple[str, int], _Place] = {}
        self._of_files: dict[str, _Place] = {}

    def _unused_port(self) -> int:
        return _FIRST_PORT + len(self._of_ports)

    def open_tcp(  # the signature is that of torch
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = distributed_c10d.default_pg_timeout,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> _TcpHandle:
        """A server at an address, or a client that waits until there is one."""
        if world_size == 0:
            raise ValueError("TCPStore world size cannot be 0")
        thread = current_thread()
        if is_master and port == 0:
            port = self._unused_port()
        host = "localhost" if host_name in {*_HERE, socket.gethostname()} else host_name
        place = self._of_ports.setdefault((host, port), _Place())
        # The launcher has a server there.
        of_launcher = str(port) == thread.process.environment.get("MASTER_PORT")
        of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") in {"1", "True"}
        may_share = multi_tenant or of_launcher or of_agent or master_listen_fd is not None
        if is_master and not may_share and len(place.servers):
            raise dist.DistNetworkError(
                "The server socket has failed to listen on any local network address. port: "
                f"{port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in "
                "use"
            )
        store = _TcpHandle(thread, place.store.clone(), keep=False)
        store.set_timeout(timeout)
        store.host, store.port, store.libuvBackend = host_name, port, use_libuv
        store.is_server = is_master and not of_agent
        if is_master or of_launcher:
            thread.call(place.events.set, "server", "")
        if is_master:
            place.servers.add(store)
        self._connect(thread, place, store, timeout)
        if wait_for_workers and world_size is not None:
            _join(thread, place, world_size, timeout, waits=is_master)
        return store

    def _connect(
        self, thread: RankThread, place: _Place, store: _TcpHandle, timeout: timedelta
    ) -> None:
        try:
            thread.call(place.events.wait, ["server"], timeout)
        except dist.DistStoreError:
            raise dist.DistNetworkError(
                f"The client socket has timed out after {_milliseconds(timeout)}ms while trying to "
                f"connect to ({store.host}, {store.port})."
            ) from None

    def open_file(self, file_name: str, world_size: int = -1) -> _FileHandle:
        """The store of a file, which the last of its users removes."""
        path = Path(file_name).absolute()
        place = self._of_files.setdefault(str(path), _Place())
        with contextlib.suppress(OSError):
            path.touch()
        store = _FileHandle(current_thread(), place.store.clone(), keep=False)
        store.path = file_name
        place.users += 1
        weakref.finalize(store, _leave, place, path, world_size).atexit = False
        return store


def _join(
    thread: RankThread, place: _Place, world_size: int, timeout: timedelta, *, waits: bool
) -> None:
    """Count a process in, and wait for all others if it is the server's."""
    if thread.call(place.store.add, _JOINED, 1) >= world_size:
        thread.call(place.events.set, "all", "")
    if not waits:
        return
    try:
        thread.call(place.events.wait, ["all"], timeout)
    except dist.DistStoreError:
        count = thread.call(place.store.add, _JOINED, 0)
        raise dist.DistStoreError(
            f"Timed out after {_milliseconds(timeout) // 1000 + 1} seconds waiting for clients. "
            f"{count}/{world_size} clients joined."
        ) from None


def _milliseconds(time: timedelta) -> int:
    return time // timedelta(milliseconds=1)


def _leave(place: _Place, path: Path, world_size: int) -> None:
    """Note the end of an object for a file; the last of all processes removes it."""
    place.users, place.ends = place.users - 1, place.ends + 1
    if not place.users and 0 <= world_size <= place.ends:
        # A garbage collection may end it anywhere in another run, where nothing may wait: no
        # function that ranks share.
        with contextlib.suppress(FileNotFoundError):
            _unlink_at_once(path)  # noqa: PTH108


def _hash_store() -> _HashHandle:
    return _HashHandle(current_thread(), HashStore(), keep=False)


class _KindOfStore(type):
    """The class of PyTorch's classes of stores in ranks, which know their stores."""

    kinds: tuple[type, ...] = ()

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.kinds)


def store_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of stores whose waits in C++ would block all ranks."""
    places = _StorePlaces()
    classes = (
        ("TCPStore", places.open_tcp, _TcpHandle),
        ("FileStore", places.open_file, _FileHandle),
        ("HashStore", _hash_store, _HashHandle),
        ("PrefixStore", _prefix_store, _PrefixHandle),
    )
    owners = (dist, distributed_c10d, sys.modules["torch.distributed.rendezvous"])
    changes: list[tuple[Any, str, Any]] = []
    for name, substitute, kind in classes:
        standard = getattr(dist, name)
        in_rank = in_ranks(standard, substitute)
        attributes = {"__new__": in_rank.__new__, "__doc__": standard.__doc__}
        store_class = _KindOfStore(name, (), attributes)
        store_class.kinds = (standard, kind)
        changes += [(owner, name, store_class) for owner in owners if hasattr(owner, name)]
    return changes
