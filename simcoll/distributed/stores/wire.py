"""The messages between a TCPStore and its server, and the records of a FileStore.

``docs/reference/stores.md`` describes the conversation.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from simcoll.distributed.server.greeting import Refusal

__all__ = ["ANSWERS", "MAX_ITEMS", "REQUESTS", "SERVICE", "Message", "Status"]

SERVICE = "simcoll-store/2"
MAX_ITEMS = 65_536

_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Many = msgspec.Meta(max_length=MAX_ITEMS)
# A number in MessagePack, or the head of a string, takes at most 9 bytes.
_HEAD_BYTES = 9


class Status:
    """The codes of replies."""

    OK = 0
    NOT_READY = 1
    VALUE_ERROR = 2
    STORE_ERROR = 3


class Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """A request, a reply or a record; the code gives its fields their meaning."""

    code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    number: _Int64 = 0
    wait_ms: _Int64 = 0
    keys: Annotated[tuple[str, ...], _Many] = ()
    values: Annotated[tuple[bytes, ...], _Many] = ()

    @property
    def most_bytes(self) -> int:
        """An upper bound on the bytes of the frame's body, known without making it."""
        heads = _HEAD_BYTES * (6 + len(self.keys) + len(self.values))
        return heads + sum(len(key.encode()) for key in self.keys) + sum(map(len, self.values))


REQUESTS = msgspec.msgpack.Decoder(Message)
ANSWERS: msgspec.msgpack.Decoder[Message | Refusal] = msgspec.msgpack.Decoder(Message | Refusal)
