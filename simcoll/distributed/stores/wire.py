"""The messages between a TCPStore and its server, and the records of a FileStore: one small binary form.

A frame is a 4-byte length and that many bytes; all integers are big-endian::

    code u8 | number i64 | wait_ms i64 | keys u32 | then items, each: length u32, bytes

The first ``keys`` items are keys (UTF-8), the others values. Nothing is believed: a length that does not fit in what has
arrived, bytes left over, a key that is not UTF-8 or too many items are a `MalformedError`, before anything is allocated for
them. ``docs/reference/stores.md`` describes the conversation.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

__all__ = ["GREETING", "HELLO", "MAGIC", "MalformedError", "Message", "Status", "decode", "encode", "proof"]

MAGIC = b"simcoll-store/1"
GREETING = 100
HELLO = 101
MAX_ITEMS = 65_536

_HEAD = struct.Struct(">BqqI")
_LENGTH = struct.Struct(">I")


class MalformedError(ValueError):
    """Bytes that are no message."""


class Status:
    """The codes of replies."""

    OK = 0
    NOT_READY = 1
    VALUE_ERROR = 2
    STORE_ERROR = 3
    REFUSED = 4


@dataclass(frozen=True, slots=True)
class Message:
    """A request, a reply, a greeting or a record; what the fields mean is its code's affair."""

    code: int
    number: int = 0
    wait_ms: int = 0
    keys: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of the frame's body."""
        return _HEAD.size + sum(len(key.encode()) for key in self.keys) + sum(map(len, self.values)) + 4 * self.items

    @property
    def items(self) -> int:
        """How many keys and values there are."""
        return len(self.keys) + len(self.values)


def encode(message: Message) -> bytes:
    """The frame of a message.

    >>> encode(Message(1, keys=("k",), values=(b"v",))).hex()
    '0000001f010000000000000000000000000000000000000001000000016b0000000176'
    """
    items = [*(key.encode() for key in message.keys), *message.values]
    parts = [_HEAD.pack(message.code, message.number, message.wait_ms, len(message.keys))]
    for item in items:
        parts += (_LENGTH.pack(len(item)), item)
    return b"".join([_LENGTH.pack(sum(map(len, parts))), *parts])


def decode(body: bytes) -> Message:
    """The message of a frame's body (without its length).

    Raises
    ------
    MalformedError
        It is none.
    """
    if len(body) < _HEAD.size:
        raise MalformedError(f"a message has at least {_HEAD.size} bytes, got {len(body)}")
    code, number, wait_ms, n_keys = _HEAD.unpack_from(body)
    items: list[bytes] = []
    at = _HEAD.size
    while at < len(body):
        if len(items) == MAX_ITEMS:
            raise MalformedError(f"a message has at most {MAX_ITEMS} keys and values")
        if len(body) - at < _LENGTH.size:
            raise MalformedError(f"{len(body) - at} bytes are left over at the end")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if length > len(body) - at:
            raise MalformedError(f"an item of {length} bytes does not fit in the {len(body) - at} that follow")
        items.append(body[at : at + length])
        at += length
    if n_keys > len(items):
        raise MalformedError(f"{n_keys} keys are announced and {len(items)} items follow")
    try:
        keys = tuple(item.decode() for item in items[:n_keys])
    except UnicodeDecodeError as error:
        raise MalformedError("a key is not UTF-8") from error
    return Message(code, number, wait_ms, keys, tuple(items[n_keys:]))


def frame_length(buffer: bytes | bytearray) -> int | None:
    """The length of the frame's body that begins here, or None when not even that has arrived."""
    return _LENGTH.unpack_from(buffer)[0] if len(buffer) >= _LENGTH.size else None


def proof(secret: bytes, who: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """What shows that one knows the secret without telling it (HMAC-SHA256 over both nonces; RFC 2104)."""
    return hmac.digest(secret, b"|".join((MAGIC, who, server_nonce, client_nonce)), hashlib.sha256)
