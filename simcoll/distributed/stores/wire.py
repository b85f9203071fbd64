"""Wire format of store requests and replies; a FileStore's records are requests.

``docs/reference/stores.md`` describes the protocol.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, Self

import msgspec

from simcoll.distributed.server.frames import Refusal
from simcoll.distributed.stores.store_errors import DistNetworkError, DistStoreError

__all__ = [
    "ANSWERS",
    "MAX_ITEMS",
    "NOT_READY",
    "REQUESTS",
    "SERVICE",
    "Answer",
    "Reply",
    "Status",
    "StoreRequest",
    "Verb",
]

SERVICE = "simcoll-store/2"
MAX_ITEMS = 65_536

_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Many = msgspec.Meta(max_length=MAX_ITEMS)
# A number in MessagePack, or the head of a string, takes at most 9 bytes.
_HEAD_BYTES = 9
_ANY = None


class _NotReady(enum.Enum):
    NOT_READY = enum.auto()


NOT_READY: Final = _NotReady.NOT_READY
"""The answer to an operation whose keys are missing."""
Answer = None | bool | int | bytes | list[bytes] | list[str] | _NotReady


class Verb(enum.IntEnum):
    """Operations of a store, by their numbers on the wire and in the file.

    Each value also has the numbers of keys and values, whether the operation changes the table, and
    the type of its answer.
    """

    keys: int | None
    values: int | None
    changes: bool
    answer: str

    SET = 1, 1, 1, True, ""
    GET = 2, 1, 0, False, "value"
    ADD = 3, 1, 0, True, "number"
    APPEND = 4, 1, 1, True, ""
    COMPARE_SET = 5, 1, 2, True, "value"
    CHECK = 6, _ANY, 0, False, "flag"
    WAIT = 7, _ANY, 0, False, ""
    DELETE_KEY = 8, 1, 0, True, "flag"
    MULTI_GET = 9, _ANY, 0, False, "values"
    MULTI_SET = 10, _ANY, _ANY, True, ""
    NUM_KEYS = 11, 0, 0, False, "number"
    LIST_KEYS = 12, 0, 0, False, "keys"
    QUEUE_PUSH = 13, 1, 1, True, ""
    QUEUE_POP = 14, 1, 0, True, "value"
    QUEUE_LEN = 15, 1, 0, False, "number"
    COUNT = 16, 1, 0, True, "number"  # of the store's own (its members), which is no key

    def __new__(
        cls, number: int, keys: int | None, values: int | None, changes: bool, answer: str
    ) -> Self:
        """Keep the shape of the operation beside its number."""
        verb = int.__new__(cls, number)
        verb._value_ = number
        verb.keys, verb.values = keys, values
        verb.changes, verb.answer = changes, answer
        return verb


class Status:
    """The codes of replies."""

    OK = 0
    NOT_READY = 1
    VALUE_ERROR = 2
    STORE_ERROR = 3


class _Fields(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
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


class StoreRequest(_Fields, frozen=True, tag=1):
    """One operation and its arguments; ``number`` is the amount to add."""

    code: Verb

    def check(self) -> None:
        """Refuse wrong numbers of keys or values, which only a request from outside can have."""
        for subject, actual, expected in (
            ("keys", len(self.keys), self.code.keys),
            ("values", len(self.values), self.code.values),
        ):
            if expected is not None and actual != expected:
                raise ValueError(
                    f"{self.code.name.lower()} takes {expected} {subject}, got {actual}"
                )


class Reply(_Fields, frozen=True, tag=1):
    """The outcome of a request; the operation determines which field holds it."""

    @classmethod
    def of(cls, answer: Answer) -> Self:
        """The reply that carries an answer."""
        if answer is NOT_READY:
            return cls(Status.NOT_READY)
        if isinstance(answer, bytes):
            return cls(Status.OK, values=(answer,))
        if isinstance(answer, list):
            keys = tuple(entry for entry in answer if isinstance(entry, str))
            return cls(
                Status.OK,
                keys=keys,
                values=tuple(entry for entry in answer if isinstance(entry, bytes)),
            )
        return cls(Status.OK, number=int(answer or 0))

    @classmethod
    def failure(cls, error: Exception) -> Self:
        """The reply that makes the client raise an error."""
        status = Status.STORE_ERROR if isinstance(error, DistStoreError) else Status.VALUE_ERROR
        return cls(status, values=(str(error).encode(),))

    def answer(self, verb: Verb) -> Answer:
        """The answer to an operation.

        Raises
        ------
        ValueError, DistStoreError
            As raised in the server.
        DistNetworkError
            The reply makes no sense.
        """
        if self.code == Status.NOT_READY:
            return NOT_READY
        if self.code != Status.OK:
            why = b" ".join(self.values).decode(errors="replace")
            unknown = f"the store's server answered with the unknown status {self.code}"
            errors = {Status.VALUE_ERROR: ValueError(why), Status.STORE_ERROR: DistStoreError(why)}
            raise errors.get(self.code, DistNetworkError(unknown))
        if verb.answer == "value" and len(self.values) != 1:
            raise DistNetworkError(
                f"the store's server answered {verb.name} with {len(self.values)} values"
            )
        match verb.answer:
            case "number":
                return self.number
            case "flag":
                return bool(self.number)
            case "value":
                return self.values[0]
            case "values":
                return list(self.values)
            case "keys":
                return list(self.keys)
        return None


REQUESTS = msgspec.msgpack.Decoder(StoreRequest)
ANSWERS: msgspec.msgpack.Decoder[Reply | Refusal] = msgspec.msgpack.Decoder(Reply | Refusal)
