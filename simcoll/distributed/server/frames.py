"""Frames: a 4-byte length (big-endian) and as many bytes of MessagePack, one typed message each.

Messages are records with declared types, so decoding neither nests without bound nor allocates what has not arrived.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    import socket

__all__ = ["HEAD_BYTES", "Channel", "MalformedError", "body_length", "decode", "encode"]

Sent = TypeVar("Sent")

HEAD_BYTES = 4
_RECEIVE_BYTES = 1 << 16
_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()


class MalformedError(ValueError):
    """Bytes that are no message."""


def encode(message: msgspec.Struct) -> bytearray:
    """The frame of a message.

    >>> from simcoll.distributed.server.greeting import Refusal
    >>> encode(Refusal("no")).hex()
    '0000000692cc83a26e6f'
    """
    frame = bytearray(HEAD_BYTES)
    _ENCODER.encode_into(message, frame, HEAD_BYTES)
    try:
        _LENGTH.pack_into(frame, 0, len(frame) - HEAD_BYTES)
    except struct.error as error:
        raise MalformedError(f"a message of {len(frame) - HEAD_BYTES} bytes is longer than a frame can be") from error
    return frame


def decode(body: bytes, decoder: msgspec.msgpack.Decoder[Sent]) -> Sent:
    """The message in a frame's body.

    Raises
    ------
    MalformedError
        The bytes are not a message of the decoder's type.
    """
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedError(str(error)) from error


def body_length(buffer: bytes | bytearray) -> int | None:
    """Length of the body of the frame that begins here; None until its head has arrived."""
    return _LENGTH.unpack_from(buffer)[0] if len(buffer) >= HEAD_BYTES else None


@dataclass(slots=True)
class Channel:
    """A client's end of a connection: a blocking socket and what has arrived on it."""

    sock: socket.socket
    arrived: bytearray = field(default_factory=bytearray)

    def receive(self, most_bytes: int, until_s: float | None = None) -> bytes:
        """The body of the next frame.

        Raises
        ------
        MalformedError
            The frame is longer than ``most_bytes``.
        OSError
            The connection broke, or ``time.monotonic()`` passed ``until_s``.
        """
        while True:
            length = body_length(self.arrived)
            wanted = HEAD_BYTES + (length or 0)
            if length is not None:
                if length > most_bytes:
                    raise MalformedError(f"an answer of {length} bytes exceeds the limit of {most_bytes}")
                if len(self.arrived) >= wanted:
                    body = bytes(memoryview(self.arrived)[HEAD_BYTES:wanted])
                    del self.arrived[:wanted]
                    return body
            if until_s is not None:
                # One deadline for the whole frame: a sender that drips cannot stretch it.
                self.sock.settimeout(max(until_s - time.monotonic(), 1e-6))
            part = self.sock.recv(min(max(wanted - len(self.arrived), _RECEIVE_BYTES), 1 << 20))
            if not part:
                raise ConnectionResetError("closed by the other side")
            self.arrived += part
