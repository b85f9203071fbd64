"""Message framing, the authentication handshake, and limits on clients.

A frame is a 4-byte length (big-endian) and a body of MessagePack. Messages are records with
declared types, so decoding neither nests without bound nor allocates memory for bytes that have not
arrived. Both sides prove that they know the secret without sending it: the server greets with a
nonce, the client answers with its own nonce and a proof over both, the server with its proof.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

__all__ = [
    "BACKLOG",
    "HEAD_BYTES",
    "HELLOS",
    "HELLO_BYTES",
    "FrameChannel",
    "Greeting",
    "Hello",
    "Limits",
    "MalformedError",
    "Refusal",
    "RefusedError",
    "Welcome",
    "body_length",
    "decode",
    "encode",
    "introduce",
    "is_ours",
    "proof",
    "take_message",
]

Sent = TypeVar("Sent")

HEAD_BYTES = 4
_RECEIVE_BYTES = 1 << 18
_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()


class MalformedError(ValueError):
    """Bytes that are not a valid message."""


def encode(message: msgspec.Struct) -> bytearray:
    """Encode a message as a frame.

    >>> encode(Refusal("no")).hex()
    '0000000692cc83a26e6f'
    """
    frame = bytearray(HEAD_BYTES)
    _ENCODER.encode_into(message, frame, HEAD_BYTES)
    try:
        _LENGTH.pack_into(frame, 0, len(frame) - HEAD_BYTES)
    except struct.error as error:
        raise MalformedError(
            f"a message of {len(frame) - HEAD_BYTES} bytes is longer than a frame can be"
        ) from error
    return frame


def decode(body: bytes | memoryview, decoder: msgspec.msgpack.Decoder[Sent]) -> Sent:
    """Decode a frame's body; a MalformedError for bytes that are not of the decoder's type."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedError(str(error)) from error


def body_length(buffer: bytes | bytearray) -> int | None:
    """The body length of the frame at the start of the buffer; None until its head has arrived."""
    return _LENGTH.unpack_from(buffer)[0] if len(buffer) >= HEAD_BYTES else None


def take_message(
    arrived: bytearray, most_bytes: int, decoder: msgspec.msgpack.Decoder[Sent]
) -> Sent | None:
    """Take the message whose frame begins here, of at most that many bytes; None until all of it
    has arrived.
    """
    length = body_length(arrived)
    if length is not None and length > most_bytes:
        raise MalformedError(f"it has {length} bytes; the limit is {most_bytes}")
    if length is None or len(arrived) < HEAD_BYTES + length:
        return None
    with memoryview(arrived) as frame, frame[HEAD_BYTES : HEAD_BYTES + length] as body:
        message = decode(body, decoder)
    del arrived[: HEAD_BYTES + length]
    return message


@dataclass(slots=True)
class FrameChannel:
    """A client's end of a connection: a blocking socket and what has arrived on it."""

    sock: socket.socket
    arrived: bytearray = field(default_factory=bytearray)

    def receive(
        self, decoder: msgspec.msgpack.Decoder[Sent], most_bytes: int, until_s: float | None = None
    ) -> Sent:
        """The next message, of at most that many bytes; an OSError when ``time.monotonic()`` passes
        ``until_s``.
        """
        while (message := take_message(self.arrived, most_bytes, decoder)) is None:
            if until_s is not None:
                # One deadline for the whole frame: a sender that drips cannot stretch it.
                self.sock.settimeout(max(until_s - time.monotonic(), 1e-6))
            part = self.sock.recv(_RECEIVE_BYTES)
            if not part:
                raise ConnectionResetError("closed by the other side")
            self.arrived += part
        return message


BACKLOG = 1024
"""Connections that may wait to be accepted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on a server's memory and on its clients' time, in bytes and seconds.

    ``max_message_bytes`` bounds one request or reply, ``max_bytes`` and ``max_keys`` what a store
    keeps, ``max_buffered_bytes`` everything that has arrived or waits to be sent, over all
    connections. A connection has ``handshake_s`` to introduce itself and ``request_s`` to finish a
    request it has begun or to take its reply; ``idle_s`` (None: no limit) is how long it may stay
    silent while nothing is owed to it.
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


# Enough for the greeting and the hello; a stranger's first bytes could announce gigabytes.
HELLO_BYTES = 512


class Greeting(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=128):
    """The server's first message: the service it offers, and a random number."""

    service: str
    nonce: bytes


class Hello(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=129):
    """The client's first message."""

    service: str
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=130):
    """The server's answer to a hello it accepts."""

    max_message_bytes: int
    proof: bytes


class Refusal(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=131):
    """The server's reason for closing the connection, at any point."""

    why: str


class RefusedError(ConnectionError):
    """The peer is not the expected server, or refused the connection."""


HELLOS = msgspec.msgpack.Decoder(Hello)
_GREETINGS = msgspec.msgpack.Decoder(Greeting)
_ANSWERS: msgspec.msgpack.Decoder[Welcome | Refusal] = msgspec.msgpack.Decoder(Welcome | Refusal)


def proof(
    secret: bytes, service: str, who: bytes, server_nonce: bytes, client_nonce: bytes
) -> bytes:
    """Proof of knowing the secret: HMAC-SHA256 (RFC 2104) over service, side and both nonces."""
    return hmac.digest(
        secret, b"|".join((service.encode(), who, server_nonce, client_nonce)), hashlib.sha256
    )


def introduce(channel: FrameChannel, service: str, secret: bytes, patience_s: float) -> int:
    """Authenticate with a server, which must be the expected one and know the secret; returns its
    message size limit.
    """
    until_s = time.monotonic() + patience_s
    try:
        greeting = channel.receive(_GREETINGS, HELLO_BYTES, until_s)
    except (OSError, MalformedError) as error:
        raise RefusedError(f"no server of {service} answers there: {error}") from error
    if greeting.service != service:
        raise RefusedError(f"the server there offers {greeting.service}, not {service}")
    mine = secrets.token_bytes(32)
    try:
        channel.sock.sendall(
            encode(Hello(service, mine, proof(secret, service, b"client", greeting.nonce, mine)))
        )
        answer = channel.receive(_ANSWERS, HELLO_BYTES, until_s)
    except (OSError, MalformedError) as error:
        raise RefusedError(f"the connection broke: {error}") from error
    if isinstance(answer, Refusal):
        raise RefusedError(f"refused: {answer.why}")
    if not secrets.compare_digest(
        answer.proof, proof(secret, service, b"server", greeting.nonce, mine)
    ):
        raise RefusedError("the server does not know the shared secret")
    return answer.max_message_bytes


def is_ours(sock: socket.socket) -> bool:
    """Whether the peer of a local socket runs as this user; over a network the secret decides."""
    if sock.family != getattr(socket, "AF_UNIX", None):
        return True
    fields = struct.Struct("3i")  # process, user, group
    _, user, _ = fields.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, fields.size))
    return bool(user == os.getuid())
