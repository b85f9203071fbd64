"""Limits on the clients of a server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BACKLOG", "Limits"]

BACKLOG = 1024
"""Connections that may wait to be accepted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients can make a server hold; times in seconds.

    ``max_message_bytes`` bounds one request or reply, ``max_bytes`` and ``max_keys`` what a store keeps,
    ``max_buffered_bytes`` everything that has arrived or waits to be sent, over all connections.
    A connection has ``handshake_s`` to introduce itself and ``request_s`` to finish a request it has begun or to take its
    reply; ``idle_s`` (None: no limit) is how long it may stay silent while nothing is owed to it.
    """

    max_connections: int = 16_384
    max_message_bytes: int = 64 << 20
    max_bytes: int = 1 << 30
    max_buffered_bytes: int = 1 << 30
    max_keys: int = 1_000_000
    max_key_bytes: int = 4096
    handshake_s: float = 10.0
    request_s: float = 30.0
    idle_s: float | None = None
