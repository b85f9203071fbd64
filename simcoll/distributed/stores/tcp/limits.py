"""What a TCPStore's server lets its clients do."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server lets its clients do; times in seconds.

    ``max_message_bytes`` bounds one request or reply, ``max_bytes`` and ``max_keys`` what is stored,
    ``max_buffered_bytes`` what has arrived or is to be sent and not finished, over all connections.
    A connection has ``handshake_s`` to introduce itself and ``request_s`` to finish a request it has begun or to take its
    reply; ``idle_s`` (None: for ever) is how long it may say nothing while nothing is owed to it.
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
