"""TCPStore: a store behind a socket, for processes on any machines; one of them, the master, holds the server."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Self, cast

import msgspec

from simcoll.distributed.server.frames import BACKLOG, Limits
from simcoll.distributed.stores.errors import DistNetworkError, DistStoreError
from simcoll.distributed.stores.store import DEFAULT_TIMEOUT, Store, call_and_wait, timed_out
from simcoll.distributed.stores.tcp.link import Link, connect
from simcoll.distributed.stores.waiting import PollingWaiter
from simcoll.distributed.stores.wire import NOT_READY, Answer, Request, Verb

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from simcoll.distributed.server.server import Server

__all__ = ["TCPStore"]

SECRET_VARIABLE = "SIMCOLL_STORE_SECRET"  # noqa: S105  a name, no secret
BIND_VARIABLE = "SIMCOLL_STORE_BIND"
# How much longer than the server a client waits before it believes that the server is gone.
_GRACE_S = 10.0


class TCPStore(Store):
    """A store for processes that can reach one address.

    Parameters
    ----------
    host_name, port
        Where the master's server listens. The server binds to exactly the address this name has, so "localhost" is seen by
        this machine only. Port 0 lets the master choose a free one; see `port`.
    world_size
        How many stores, the master's included, belong together; None when that is not fixed.
    is_master
        Whether this object holds the server.
    timeout
        How long to wait for keys, for a server to appear and for workers to join.
    wait_for_workers
        With a world size, the master's constructor returns when that many have joined.
    multi_tenant
        Masters of the same address in this process share one server.
    master_listen_fd
        A bound socket's descriptor for the server to use; the server closes it.
    use_libuv
        Accepted and returned by `libuvBackend`; there is one kind of server.
    secret
        Known to all clients; by default the environment variable SIMCOLL_STORE_SECRET. Each side shows the
        other that it knows it, without sending it. Keys and values are not encrypted.
    bind
        The address the server binds to where that is not ``host_name``'s; "0.0.0.0" or "::" for all. By default the
        environment variable SIMCOLL_STORE_BIND.
    limits
        Bounds on clients of the server.

    Raises
    ------
    DistNetworkError
        The address is in use or not of this machine; no server answered in time, or not one of this kind.
    DistStoreError
        Not all workers came in time.

    Examples
    --------
    >>> with TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) as store:
    ...     store.set("first_key", "first_value")
    ...     store.get("first_key")
    b'first_value'
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
        *,
        secret: str | bytes | None = None,
        bind: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        super().__init__()
        _check_address(host_name, port, is_master)
        self._host = host_name
        self._use_libuv = use_libuv
        chosen = os.environ.get(SECRET_VARIABLE, "") if secret is None else secret
        self._secret = chosen.encode() if isinstance(chosen, str) else chosen
        self.set_timeout(timeout)
        with contextlib.ExitStack() as on_failure:
            server = None
            self._reached, self._port = host_name, port
            if is_master:
                address = bind or os.environ.get(BIND_VARIABLE) or host_name
                start = functools.partial(_started, limits or Limits(), self._secret, multi_tenant)
                server = (
                    start(_adopted(master_listen_fd))
                    if master_listen_fd is not None
                    else _server(address, port, multi_tenant, start)
                )
                on_failure.callback(server.release)
                self._reached, self._port = server.address[:2]
                # It listens on all addresses: loopback is the nearest.
                self._reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._reached, self._reached)  # noqa: S104
                self._tell()
            self._link = connect(self._reached, self._port, self._patience_s(), self._secret, self.waiter)
            self._released = weakref.finalize(self, _release, self._link, server)
            on_failure.pop_all()
            on_failure.callback(self.close)
            if world_size is not None and world_size > 0 and wait_for_workers:
                self._join(world_size, is_master)
            on_failure.pop_all()

    @property
    def host(self) -> str:
        """The host name as given."""
        return self._host

    @property
    def port(self) -> int:
        """The port the server listens on."""
        return self._port

    @property
    def libuvBackend(self) -> bool:  # noqa: N802  torch's name
        """The value given as ``use_libuv``."""
        return self._use_libuv

    def has_extended_api(self) -> bool:
        """True."""
        return True

    def call(self, request: Request, timeout_s: float | None = None) -> Answer:
        """Ask the server; it does the waiting, unless the store was given a `waiter`."""
        if timeout_s is not None and self.waiter is not None:
            return call_and_wait(self, self.waiter, request, timeout_s)
        wait_ms = 0 if timeout_s is None else round(min(timeout_s, threading.TIMEOUT_MAX / 2) * 1000)
        patience_s = (self._patience_s() if timeout_s is None else timeout_s) + _GRACE_S
        reply = self._link.ask(msgspec.structs.replace(request, wait_ms=wait_ms), patience_s)
        answer = reply.answer(request.code)
        if answer is NOT_READY and timeout_s is not None:
            raise timed_out(self, request.keys, timeout_s)
        if request.code.changes:
            self._tell()
        return answer

    def clone(self) -> Self:
        """Another connection to the same server (which stays with the master's object)."""
        other = type(self)(
            self._reached,
            self._port,
            timeout=self.timeout,
            wait_for_workers=False,
            secret=self._secret,
            use_libuv=self._use_libuv,
        )
        other._host = self._host  # noqa: SLF001  the same class
        return self._like(other)

    def close(self) -> None:
        """Close the connection, and the server if this is the master's (last) object."""
        self._released()

    def _join(self, world_size: int, is_master: bool) -> None:
        def joined(amount: int) -> int:
            return cast("int", self.call(Request(Verb.COUNT, amount, keys=("members",))))

        here = joined(1)

        def complete() -> bool:
            nonlocal here
            here = joined(0)
            return here >= world_size

        if is_master and not (self.waiter or PollingWaiter()).wait(complete, self._patience_s()):
            waited = f"{self._patience_s():g} seconds"
            raise DistStoreError(f"Timed out after {waited} waiting for clients. {here}/{world_size} clients joined.")


def _release(link: Link, server: Server | None) -> None:
    # Closing under a lock that a waiting thread holds would wait for it; closing the socket ends its wait.
    if link.pid == os.getpid():
        with contextlib.suppress(OSError):
            link.channel.sock.shutdown(socket.SHUT_RDWR)
    link.channel.sock.close()
    if server is not None:
        server.release()


def _check_address(host_name: object, port: object, is_master: bool) -> None:
    if not isinstance(host_name, str) or not host_name:
        raise TypeError(f"TCPStore's host_name must be a name or address, got {host_name!r}")
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"TCPStore's port must be an int, got {port!r} of type {type(port).__name__}")
    if not (0 if is_master else 1) <= port <= 65_535:
        raise ValueError(f"TCPStore's port must be 1 to 65535 (or 0 on the master, for any free one), got {port}")


def _resolved(host: str, port: int) -> tuple[int, tuple[str, int]]:
    """The family and address of a host; IPv4 first, as clients of older stores expect of "localhost"."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DistNetworkError(f"the host {host!r} of a TCPStore has no address: {error}") from error
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _server(host: str, port: int, multi_tenant: bool, start: Callable[[socket.socket], Server]) -> Server:
    """The server at an address: a new one, or one that tenants of this process share."""
    family, address = _resolved(host, port)
    shared = _running_server(address) if multi_tenant else None
    if shared is not None:
        return shared
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port whose last connections are still being buried is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        return start(listener)
    except OSError as error:
        listener.close()
        shared = _running_server(address) if multi_tenant else None
        if shared is not None:  # another thread was faster
            return shared
        name = errno.errorcode.get(error.errno or 0, "error")
        foreign = f"; {host!r} is not an address of this machine: pass bind="
        raise DistNetworkError(
            f"The server socket has failed to listen on {address[0]}. port: {port}, {name}: {error.strerror}"
            f"{foreign if error.errno == errno.EADDRNOTAVAIL else ''}"
        ) from error


def _adopted(descriptor: int) -> socket.socket:
    try:
        listener = socket.socket(fileno=descriptor)
        listener.listen(BACKLOG)
    except (OSError, TypeError, ValueError) as error:
        raise DistNetworkError(f"master_listen_fd {descriptor!r} is not a bound socket: {error}") from error
    return listener


def _started(limits: Limits, secret: bytes, multi_tenant: bool, listener: socket.socket) -> Server:
    # Only the process that holds the store needs the event loop.
    from simcoll.distributed.server.server import Server
    from simcoll.distributed.stores.tcp.service import StoreService

    server = Server(listener, StoreService(limits, multi_tenant), limits, secret)
    server.start()
    return server


def _running_server(address: tuple[str, int]) -> Server | None:
    """The server of this process that shares this address, held once more; None when there is none.

    The interpreter's list of threads is the only registry: nothing to keep in step, nothing global of ours.
    """
    from simcoll.distributed.server.server import Server
    from simcoll.distributed.stores.tcp.service import StoreService

    for thread in threading.enumerate():
        if isinstance(thread, Server) and thread.address[:2] == address:
            service = thread.service
            if isinstance(service, StoreService) and service.multi_tenant and thread.retain():
                return thread
    return None
