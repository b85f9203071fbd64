"""Rendezvous by URL, with handlers that programs register for schemes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from simcoll.distributed.stores import Store
from simcoll.distributed.stores.rendezvous import rendezvous as meet_at
from simcoll.errors import nearest

__all__ = ["register_rendezvous_handler", "rendezvous"]

_SCHEMES = ("env", "file", "tcp")
Handler = Callable[..., Iterator[tuple[Store, int, int]]]


class _Registered:
    """Handlers by scheme. Programs register them on import, before any world exists, as backends:
    this table belongs to the process.
    """

    handlers: ClassVar[dict[str, Handler]] = {}


def has_handler(url: str) -> bool:
    """Whether a program has registered a handler for the scheme of a URL."""
    return urlsplit(url).scheme in _Registered.handlers


def register_rendezvous_handler(scheme: str, handler: Handler) -> None:
    """Call a generator function for URLs of a scheme, in :func:`rendezvous` and
    ``init_process_group``.

    Parameters
    ----------
    handler
        Takes the URL, with rank and world size in its query where they were arguments, and
        ``timeout``; yields a store, the rank and the world size.

    Raises
    ------
    RuntimeError
        For a scheme that has a handler.
    """
    if scheme in _SCHEMES or scheme in _Registered.handlers:
        raise RuntimeError(f"Rendezvous handler for {scheme}:// already registered")
    _Registered.handlers[scheme] = handler


def rendezvous(
    url: str, rank: int = -1, world_size: int = -1, **kwargs: Any
) -> Iterator[tuple[Store, int, int]]:
    """Meet other processes at a URL: yields the store, the rank and the world size.

    Parameters
    ----------
    url
        ``env://``, ``tcp://host:port``, ``file:///path``, or one of a registered scheme.
    rank, world_size
        -1 leaves them to the URL or the environment.
    **kwargs
        For the handler: ``timeout``, a timedelta.

    Raises
    ------
    RuntimeError
        For arguments of wrong types, or a scheme without a handler.
    AssertionError
        For a rank or a world size both in the URL and as an argument.

    Examples
    --------
    >>> import simcoll.distributed as dist
    >>> def two_in_memory(url, timeout=None):
    ...     yield dist.HashStore(), int(url[-1]), 2
    >>> dist.register_rendezvous_handler("memory", two_in_memory)
    >>> next(dist.rendezvous("memory://1"))[1:]
    (1, 2)
    """
    if not isinstance(url, str):
        raise RuntimeError(f"`url` must be a string. {type(url)}: {url}")  # noqa: TRY004  # as torch
    for name, value in (("rank", rank), ("world_size", world_size)):
        if not isinstance(value, int):
            raise RuntimeError(f"`{name}` must be an integer. {value!r}")  # noqa: TRY004
    scheme = urlsplit(url).scheme
    if scheme in _Registered.handlers:
        return _Registered.handlers[scheme](_with_ranks(url, rank, world_size), **kwargs)
    if scheme not in _SCHEMES:
        schemes = [*_SCHEMES, *_Registered.handlers]
        raise RuntimeError(f"No rendezvous handler for {scheme}://; {nearest(scheme, schemes)}")
    return _standard(url, rank, world_size, **kwargs)


def _with_ranks(url: str, rank: int, world_size: int) -> str:
    """A URL with rank and world size in its query, if they are arguments."""
    arguments = {"rank": rank, "world_size": world_size}
    numbers = {name: str(value) for name, value in arguments.items() if value != -1}
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if numbers and not arguments.keys().isdisjoint(query):
        raise AssertionError(
            f"The url: {url} has node-specific arguments(rank, world_size) already."
        )
    return parts._replace(query=urlencode(query | numbers)).geturl() if numbers else url


def _standard(
    url: str, rank: int, world_size: int, timeout: timedelta | None = None
) -> Iterator[tuple[Store, int, int]]:
    place = meet_at(url, rank=rank, world_size=world_size, timeout=timeout)
    yield place.store, place.rank, place.world_size
