"""Rendezvous: from an address, a file, the environment or a store to (store, rank, world size)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from simcoll.distributed.stores import DistNetworkError, FileStore, Store, TCPStore

__all__ = ["MeetingPlace", "check_store_arguments", "parse_init_method", "rendezvous"]

DEFAULT_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """The store where processes meet, and this process's rank among them."""

    store: Store
    rank: int
    world_size: int


def rendezvous(
    init_method: str | None = None,
    *,
    rank: int = -1,
    world_size: int = -1,
    store: Store | None = None,
    timeout: timedelta | None = None,
) -> MeetingPlace:
    """Create or adopt the store, and determine rank and world size.

    Parameters
    ----------
    init_method
        ``env://`` (the default without a store), ``tcp://host:port`` or ``file:///path``,
        optionally with rank and world size: ``?rank=0&world_size=2``.
    rank, world_size
        This process's rank, and the number of processes; -1 leaves them to the URL or the
        environment.
    store
        A store to use instead of an ``init_method``; rank and world size are required then.
    timeout
        For the store; None is 30 minutes.

    Returns
    -------
    The store, the rank and the world size. With ``tcp://`` and ``env://`` this waits for the
    server, and on rank 0 for all other ranks; other methods wait for nothing.

    Raises
    ------
    ValueError
        A value is missing, or is not a number.
    RuntimeError
        The URL's scheme has no handler.
    AssertionError
        Both a store and an ``init_method``; a store without rank or world size; a rank both in the
        URL and as argument. (The types are torch's.)
    TypeError
        ``timeout`` is not a timedelta.
    DistNetworkError, DistStoreError
        The store could not be made.

    Examples
    --------
    >>> from simcoll.distributed.stores import HashStore
    >>> rendezvous(store=HashStore(), rank=1, world_size=4).rank
    1
    """
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(
            f"Expected timeout argument to be of type datetime.timedelta, got {timeout!r}"
        )
    if store is not None:
        check_store_arguments(init_method, rank, world_size)
        if not isinstance(store, Store):
            raise TypeError(f"store must be a Store, got {store!r} of type {type(store).__name__}")
        if rank >= world_size:
            raise AssertionError(
                f"rank must be 0 to {world_size - 1} (world size {world_size}), got {rank}"
            )
        return MeetingPlace(store, rank, world_size)
    rank, world_size, opened = _parse(
        "env://" if init_method is None else init_method, rank, world_size
    )
    return MeetingPlace(opened(DEFAULT_TIMEOUT if timeout is None else timeout), rank, world_size)


def parse_init_method(init_method: str, rank: int = -1, world_size: int = -1) -> tuple[int, int]:
    """The rank and world size that `rendezvous` would return, without connecting; raises the same
    errors.

    >>> parse_init_method("tcp://127.0.0.1:29500", rank=1, world_size=4)
    (1, 4)
    """
    return _parse(init_method, rank, world_size)[:2]


def _parse(
    url: object, rank: int, world_size: int
) -> tuple[int, int, Callable[[timedelta], Store]]:
    """The rank and world size in a URL or given with it, and a function that opens the store."""
    if not isinstance(url, str):
        raise TypeError(f"init_method must be a str such as 'tcp://127.0.0.1:29500', got {url!r}")
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme not in {"env", "tcp", "file"}:
        raise RuntimeError(
            f"No rendezvous handler for {parts.scheme}:// (there are env, file, tcp)"
        )
    if rank != -1 or world_size != -1:
        if "rank" in query or "world_size" in query:
            raise AssertionError(
                f"The url: {url} has node-specific arguments(rank, world_size) already."
            )
        query |= {
            name: str(value)
            for name, value in (("rank", rank), ("world_size", world_size))
            if value != -1
        }
    # Two slashes and a relative path put its first folder where a host would stand.
    path = unquote(parts.netloc + parts.path)
    if parts.scheme == "file":
        if not path:
            _wrong("file", "path missing")
        host, port = "", 0
    else:
        host, port = _tcp(parts) if parts.scheme == "tcp" else _env(query)
    rank, size = _both(parts.scheme, query)

    def open_store(timeout: timedelta) -> Store:
        if host:
            try:
                return TCPStore(
                    host, port, size, rank == 0, timeout=timeout, multi_tenant=True, rank=rank
                )
            except DistNetworkError as error:
                if rank == 0:
                    raise
                raise DistNetworkError(
                    f"rank 0 has the store, and did not let this rank in: {error}"
                ) from error
        store = FileStore(path, size)
        store.set_timeout(timeout)
        return store

    return rank, size, open_store


def check_store_arguments(init_method: str | None, rank: int, world_size: int) -> None:
    """Refuse a method beside a store, or a store without rank and world size; AssertionErrors, as
    in torch.
    """
    if init_method is not None:
        raise AssertionError("Cannot specify both init_method and store.")
    if world_size <= 0:
        raise AssertionError(f"world_size must be positive if using store, got {world_size}")
    if rank < 0:
        raise AssertionError(f"rank must be non-negative if using store, got {rank}")


def _wrong(scheme: str, why: str) -> NoReturn:
    raise ValueError(f"Error initializing simcoll.distributed using {scheme}:// rendezvous: {why}")


def _number(scheme: str, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        _wrong(scheme, f"{name} must be a number, got {text!r}")


def _both(scheme: str, query: Mapping[str, str]) -> tuple[int, int]:
    """The rank and world size of a query, checked."""
    for name in ("rank", "world_size"):
        if name not in query:
            _wrong(scheme, f"{name.replace('_', ' ')} parameter missing")
    rank = _number(scheme, "rank", query["rank"])
    world_size = _number(scheme, "world_size", query["world_size"])
    if not 0 <= rank < world_size:
        _wrong(
            scheme, f"the rank must be 0 to {world_size - 1} (world size {world_size}), got {rank}"
        )
    return rank, world_size


def _tcp(parts: SplitResult) -> tuple[str, int]:
    try:
        port = parts.port
    except ValueError as error:
        _wrong("tcp", str(error))
    if not port:
        _wrong("tcp", "port number missing")
    if not parts.hostname:
        _wrong("tcp", "host name missing")
    return parts.hostname, port


def _env(query: dict[str, str]) -> tuple[str, int]:
    """The server's address from the environment; missing rank and world size are added to the
    query.
    """

    def setting(variable: str) -> str:
        text = os.environ.get(variable)
        if text is None:
            _wrong("env", f"environment variable {variable} expected, but not set")
        return text

    for name in ("rank", "world_size"):
        if name not in query:
            query[name] = setting(name.upper())
    host, port = setting("MASTER_ADDR"), _number("env", "MASTER_PORT", setting("MASTER_PORT"))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise DistNetworkError(
            f"torchrun keeps a store of its own at {host}:{port}, which simcoll cannot use; start "
            "it with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, or use python -m simcoll.distributed.launch"
        )
    return host, port
