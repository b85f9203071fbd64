"""The greeting of client and server: each proves that it knows the secret, without sending it.

The server greets with a random number, the client answers with one of its own and a proof over both, the server with its proof.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
import time

import msgspec

from simcoll.distributed.server.frames import Channel, MalformedError, decode, encode

__all__ = [
    "HELLOS",
    "HELLO_BYTES",
    "Greeting",
    "Hello",
    "Refusal",
    "RefusedError",
    "Welcome",
    "introduce",
    "is_ours",
    "proof",
]

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
    """Why the server closes this connection, at whatever point."""

    why: str


class RefusedError(ConnectionError):
    """The other side is not the expected server, or refused; the message says why."""


HELLOS = msgspec.msgpack.Decoder(Hello)
_GREETINGS = msgspec.msgpack.Decoder(Greeting)
_ANSWERS: msgspec.msgpack.Decoder[Welcome | Refusal] = msgspec.msgpack.Decoder(Welcome | Refusal)


def proof(secret: bytes, service: str, who: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Evidence of knowing the secret: HMAC-SHA256 (RFC 2104) over service, side and both random numbers."""
    return hmac.digest(secret, b"|".join((service.encode(), who, server_nonce, client_nonce)), hashlib.sha256)


def introduce(channel: Channel, service: str, secret: bytes, patience_s: float) -> int:
    """Greet a server; returns the most bytes it takes in one message.

    Raises
    ------
    RefusedError
        Something else answers, the server refuses, or it does not know the secret.
    """
    until_s = time.monotonic() + patience_s
    try:
        greeting = decode(channel.receive(HELLO_BYTES, until_s), _GREETINGS)
    except (OSError, MalformedError) as error:
        raise RefusedError(f"no server of {service} answers there: {error}") from error
    if greeting.service != service:
        raise RefusedError(f"the server there offers {greeting.service}, not {service}")
    mine = secrets.token_bytes(32)
    try:
        channel.sock.sendall(encode(Hello(service, mine, proof(secret, service, b"client", greeting.nonce, mine))))
        answer = decode(channel.receive(HELLO_BYTES, until_s), _ANSWERS)
    except (OSError, MalformedError) as error:
        raise RefusedError(f"the connection broke: {error}") from error
    if isinstance(answer, Refusal):
        raise RefusedError(f"refused: {answer.why}")
    if not secrets.compare_digest(answer.proof, proof(secret, service, b"server", greeting.nonce, mine)):
        raise RefusedError("the server does not know the shared secret")
    return answer.max_message_bytes


def is_ours(sock: socket.socket) -> bool:
    """Whether a local socket's other end runs as this user; over a network the secret decides."""
    if sock.family != getattr(socket, "AF_UNIX", None):
        return True
    fields = struct.Struct("3i")  # process, user, group
    _, user, _ = fields.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, fields.size))
    return bool(user == os.getuid())
