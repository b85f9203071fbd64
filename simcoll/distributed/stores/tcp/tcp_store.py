"""TCPStore: a store for processes on any machines, served by one of them, the master."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Self, cast

import msgspec

from simcoll.distributed.server import frames
from simcoll.distributed.server.secret import check_reach, job_secret
from simcoll.distributed.stores.store import (
    DEFAULT_TIMEOUT,
    PollingWaiter,
    Store,
    Waiter,
    call_and_wait,
    timed_out,
)
from simcoll.distributed.stores.store_errors import DistNetworkError, DistStoreError
from simcoll.distributed.stores.wire import (
    ANSWERS,
    MAX_ITEMS,
    NOT_READY,
    SERVICE,
    Answer,
    Reply,
    StoreRequest,
    Verb,
)
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.distributed.server.server import Server

__all__ = ["TCPStore"]

BIND_VARIABLE = "SIMCOLL_STORE_BIND"
_MOST_NAMED = 4096
# How much longer than the server a client waits before it believes that the server is gone.
_GRACE_S = 2.0


# A client whose master comes later knocks again after pauses that grow to this.
_KNOCK_S = 0.5


@dataclass(slots=True, weakref_slot=True)
class StoreConnection:
    """A client connection with one outstanding request. The server accepts messages of
    ``max_message_bytes``.
    """

    channel: frames.FrameChannel
    lock: threading.Lock
    pid: int
    address: str
    max_message_bytes: int

    def ask(self, request: StoreRequest, patience_s: float) -> Reply:
        """Send a request and receive its reply; a failure closes the connection for good."""
        sock = self.channel.sock
        if self.pid != os.getpid():
            raise DistNetworkError(
                f"the connection to {self.address} belongs to the process that forked this one; "
                "use clone()"
            )
        if sock.fileno() < 0:
            raise DistNetworkError(f"the connection to {self.address} is closed")
        if max(len(request.keys), len(request.values)) > MAX_ITEMS:
            raise DistStoreError(f"a request has at most {MAX_ITEMS} keys and as many values")
        frame = frames.encode(request)
        if len(frame) - frames.HEAD_BYTES > self.max_message_bytes:
            raise DistStoreError(
                f"a request of {len(frame) - frames.HEAD_BYTES} bytes; the server at "
                f"{self.address} takes {self.max_message_bytes}"
            )
        with self.lock:
            try:
                patience_s = min(patience_s, threading.TIMEOUT_MAX / 2)
                until_s = time.monotonic() + patience_s
                sock.settimeout(patience_s)
                sock.sendall(frame)
                reply = self.channel.receive(ANSWERS, self.max_message_bytes, until_s)
            except BaseException as error:
                # The reply to this question would be taken for that to the next.
                sock.close()
                if isinstance(error, (OSError, frames.MalformedError)):
                    raise DistNetworkError(
                        f"the connection to the store at {self.address} broke: {error}"
                    ) from error
                raise
        if isinstance(reply, frames.Refusal):
            sock.close()
            raise DistNetworkError(f"the store's server refused: {reply.why}")
        return reply


def _connect(
    host: str, port: int, patience_s: float, secret: bytes, waiter: Waiter | None
) -> StoreConnection:
    """Retry until a server accepts, then authenticate; a DistNetworkError after ``patience_s``."""
    deadline_s = time.monotonic() + patience_s
    sock = _knock(host, port, patience_s, waiter or PollingWaiter(_KNOCK_S))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        channel = frames.FrameChannel(sock)
        most_bytes = frames.introduce(
            channel, SERVICE, secret, max(deadline_s - time.monotonic(), 1.0)
        )
    except BaseException as error:
        sock.close()
        if isinstance(error, frames.RefusedError):
            raise DistNetworkError(f"cannot use the store at {host}:{port}: {error}") from error
        raise
    return StoreConnection(channel, threading.Lock(), os.getpid(), f"{host}:{port}", most_bytes)


def _knock(host: str, port: int, patience_s: float, waiter: Waiter) -> socket.socket:
    deadline_s = time.monotonic() + patience_s
    opened: socket.socket | None = None
    last: Exception | None = None

    def ready() -> bool:
        nonlocal opened, last
        try:
            sock = socket.create_connection((host, port), max(deadline_s - time.monotonic(), 0.001))
        except (OSError, UnicodeError) as error:
            last = error
            return False
        if sock.getsockname() == sock.getpeername():
            # Knocking at a free port of this machine can, once in many times, end in a connection
            # to oneself.
            sock.close()
            return False
        opened = sock
        return True

    waiter.wait(ready, patience_s)
    if opened is None:
        raise DistNetworkError(
            f"The client socket has timed out after {round(patience_s * 1000)}ms while trying to "
            "connect to "
            f"({host}, {port}). The last attempt ended with: {last}"
        ) from last
    return opened


class TCPStore(Store):
    """A store for processes that can reach one address.

    Parameters
    ----------
    host_name, port
        Address of the master's server. The server binds to exactly the address that the name
        resolves to, so "localhost" is reachable from this machine only. Port 0 lets the master
        choose a free port; see `port`.
    world_size
        Number of stores, the master's included; None if it is not fixed.
    is_master
        Whether this object runs the server.
    timeout
        Time limit for missing keys, for the server to appear and for workers to join.
    wait_for_workers
        With a world size, the master's constructor waits until that many have joined.
    multi_tenant
        Masters of the same address in this process share one server.
    master_listen_fd
        Descriptor of a bound socket for the server, which closes it.
    use_libuv
        Accepted and returned by `libuvBackend`; there is one kind of server.
    secret
        Shared with all clients. Default: the job's, from SIMCOLL_SECRET or the file named by
        SIMCOLL_SECRET_FILE. Both sides prove that they know it without sending it. Without a secret
        only loopback is served. Keys and values are not encrypted.
    bind
        Address to bind to, if not ``host_name``'s; "0.0.0.0" or "::" for all. Default: the
        environment variable SIMCOLL_STORE_BIND.
    limits
        Bounds on clients of the server.
    rank
        Rank of this process, if known, so that the master can name missing ranks.

    Raises
    ------
    DistNetworkError
        The address is in use, belongs to another machine, or is open to others without a secret; or
        no compatible server answered in time.
    DistStoreError
        Not all workers joined in time.

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
        limits: frames.Limits | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__()
        _check_address(host_name, port, is_master)
        self._host = host_name
        self._use_libuv = use_libuv
        try:
            chosen = job_secret(os.environ) if secret is None else secret
        except ConfigError as error:
            raise DistNetworkError(str(error)) from None
        self._secret = chosen.encode() if isinstance(chosen, str) else chosen
        self.set_timeout(timeout)
        with contextlib.ExitStack() as on_failure:
            server = None
            self._reached, self._port = host_name, port
            if is_master:
                address = bind or os.environ.get(BIND_VARIABLE) or host_name
                server = _serving(
                    address,
                    port,
                    master_listen_fd,
                    limits or frames.Limits(),
                    self._secret,
                    multi_tenant,
                )
                on_failure.callback(server.release)
                self._reached, self._port = server.address[:2]
                # It listens on all addresses: loopback is the nearest.
                self._reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(  # noqa: S104
                    self._reached, self._reached
                )
                self._tell()
            self._connection = _connect(
                self._reached, self._port, self._patience_s(), self._secret, self.waiter
            )
            if rank is not None and not is_master:
                self._connection.address += ", of rank 0,"
            self._released = weakref.finalize(self, _release, self._connection, server)
            on_failure.pop_all()
            on_failure.callback(self.close)
            if world_size is not None and world_size > 0 and wait_for_workers:
                self._join(world_size, is_master, rank)
            on_failure.pop_all()

    def __repr__(self) -> str:
        return f"<TCPStore: {self.host}:{self.port}>"

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

    def call(self, request: StoreRequest, timeout_s: float | None = None) -> Answer:
        """Ask the server, which does the waiting unless this store has a `waiter`."""
        if timeout_s is not None and self.waiter is not None:
            return call_and_wait(self, self.waiter, request, timeout_s)
        wait_ms = (
            0 if timeout_s is None else round(min(timeout_s, threading.TIMEOUT_MAX / 2) * 1000)
        )
        patience_s = (self._patience_s() if timeout_s is None else timeout_s) + _GRACE_S
        reply = self._connection.ask(msgspec.structs.replace(request, wait_ms=wait_ms), patience_s)
        answer = reply.answer(request.code)
        if answer is NOT_READY and timeout_s is not None:
            raise timed_out(self, request.keys, timeout_s)
        if request.code.changes and answer is not NOT_READY:
            self._tell()
        return answer

    def clone(self) -> Self:
        """Another connection to the same server (which stays with the master's object)."""
        copy = type(self)(
            self._reached,
            self._port,
            timeout=self.timeout,
            wait_for_workers=False,
            secret=self._secret,
            use_libuv=self._use_libuv,
        )
        copy._host = self._host  # noqa: SLF001  the same class
        return self._like(copy)

    def close(self) -> None:
        """Close the connection, and the server if this is the master's (last) object."""
        self._released()

    def _join(self, world_size: int, is_master: bool, rank: int | None) -> None:
        members = 0

        def count(counter: str, amount: int = 0) -> int:
            return cast("int", self.call(StoreRequest(Verb.COUNT, amount, keys=(counter,))))

        def complete() -> bool:
            nonlocal members
            members = count("members")
            return members >= world_size

        if rank is not None:
            count(f"rank {rank}", 1)
        count("members", 1)
        if is_master and not (self.waiter or PollingWaiter()).wait(complete, self._patience_s()):
            waited = f"{self._patience_s():g} seconds"
            named_ranks = range(min(world_size, _MOST_NAMED)) if rank is not None else ()
            missing = [str(number) for number in named_ranks if not count(f"rank {number}")]
            listing = (
                f" Missing: rank{'s' * (len(missing) > 1)} "
                f"{', '.join(missing[:8])}{', ...' * (len(missing) > 8)}."
                if missing
                else ""
            )
            raise DistStoreError(
                f"Timed out after {waited} waiting for clients. {members}/{world_size} clients "
                f"joined.{listing}"
            )


def _release(connection: StoreConnection, server: Server | None) -> None:
    # Closing under a lock that a waiting thread holds would wait for it; closing the socket ends
    # its wait.
    if connection.pid == os.getpid():
        with contextlib.suppress(OSError):
            connection.channel.sock.shutdown(socket.SHUT_RDWR)
    connection.channel.sock.close()
    if server is not None:
        server.release()


def _check_address(host_name: object, port: object, is_master: bool) -> None:
    if not isinstance(host_name, str) or not host_name:
        raise TypeError(f"TCPStore's host_name must be a name or address, got {host_name!r}")
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(
            f"TCPStore's port must be an int, got {port!r} of type {type(port).__name__}"
        )
    if not (0 if is_master else 1) <= port <= 65_535:
        raise ValueError(
            f"TCPStore's port must be 1 to 65535 (or 0 on the master, for any free one), got {port}"
        )


def _resolve(host: str, port: int) -> tuple[int, tuple[str, int]]:
    """The family and address of a host; IPv4 first, as older stores' clients expect for
    "localhost".
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DistNetworkError(
            f"the host {host!r} of a TCPStore has no address: {error}"
        ) from error
    entry = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    family, (host_address, host_port) = entry[0], entry[4][:2]
    return family, (str(host_address), int(host_port))


def _serving(
    host: str,
    port: int,
    descriptor: int | None,
    limits: frames.Limits,
    secret: bytes,
    multi_tenant: bool,
) -> Server:
    """A server at an address or on an adopted socket; with ``multi_tenant``, shared within this
    process.
    """
    # Only the process that holds the store needs the event loop.
    from simcoll.distributed.server.server import Server
    from simcoll.distributed.stores.tcp.service import StoreService

    def find_server() -> Server | None:
        # The interpreter's list of threads is the only registry: nothing to keep in step, nothing
        # global of ours.
        for thread in threading.enumerate() if multi_tenant else ():
            if isinstance(thread, Server) and thread.address[:2] == address:
                service = thread.service
                if isinstance(service, StoreService) and service.multi_tenant and thread.retain():
                    return thread
        return None

    if descriptor is not None:
        listener = _adopt(descriptor)
    else:
        family, address = _resolve(host, port)
        shared_server = find_server()
        if shared_server is not None:
            return shared_server
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A port whose last connections are still being buried is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(frames.BACKLOG)
        except OSError as error:
            listener.close()
            shared_server = find_server()
            if shared_server is not None:  # another thread was faster
                return shared_server
            name = errno.errorcode.get(error.errno or 0, "error")
            foreign = f"; {host!r} is not an address of this machine: pass bind="
            raise DistNetworkError(
                f"The server socket has failed to listen on {address[0]}. port: {port}, {name}: "
                f"{error.strerror}"
                f"{foreign if error.errno == errno.EADDRNOTAVAIL else ''}"
            ) from error
    try:
        check_reach(listener.getsockname()[0], secret)
    except ConfigError as error:
        listener.close()
        raise DistNetworkError(str(error)) from None
    server = Server(listener, StoreService(limits, multi_tenant), limits, secret)
    server.start()
    return server


def _adopt(descriptor: int) -> socket.socket:
    try:
        listener = socket.socket(fileno=descriptor)
        listener.listen(frames.BACKLOG)
    except (OSError, TypeError, ValueError) as error:
        raise DistNetworkError(
            f"master_listen_fd {descriptor!r} is not a bound socket: {error}"
        ) from error
    return listener
