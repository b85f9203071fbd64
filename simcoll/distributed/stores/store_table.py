"""The table behind every store: the semantics of each operation, without waiting, locking or
sockets.

A store turns a method call into a `Request`; `Table.apply` carries it out and returns the answer
or, for an operation that waits for keys, `NOT_READY`. HashStore applies requests under a lock,
FileStore replays them from a file, and TCPStore's server applies those that it receives, so all
stores have the same semantics.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from simcoll.distributed.stores.store_errors import DistStoreError
from simcoll.distributed.stores.wire import NOT_READY, Answer, StoreRequest, Verb

__all__ = ["ENTRY_BYTES", "StoreTable"]

ENTRY_BYTES, SUMMED = 128, 128
_COUNTER = re.compile(r"members|gone|rank [0-9]{1,9}")
_NUMBER = re.compile(rb"\s{0,40}[+-]?[0-9]{1,19}")


def _entry_bytes(key: str, value: bytes) -> int:
    return len(key.encode()) + len(value) + ENTRY_BYTES


@dataclass(slots=True)
class StoreTable:
    """Keys and values, queues, and the store's own counters.

    ``max_keys`` and ``max_bytes`` (of keys and values, with `ENTRY_BYTES` for the bookkeeping of
    each) bound it; None is no bound. An entry of a queue counts as a key. ``size_bytes`` is the
    size of the entries, ``queued`` how many are in queues.

    >>> table = StoreTable()
    >>> table.apply(StoreRequest(Verb.ADD, 3, keys=("n",)))
    3
    >>> table.apply(StoreRequest(Verb.GET, keys=("n",)))
    b'3'
    """

    max_keys: int | None = None
    max_bytes: int | None = None
    values: dict[str, bytes | bytearray] = field(default_factory=dict)
    queues: dict[str, deque[bytes]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    queued: int = 0

    def apply(self, request: StoreRequest) -> Answer:
        """Carry out one operation: the method of its name.

        Returns
        -------
        The operation's answer, or `NOT_READY` when keys it waits for are missing (nothing has
        changed then).

        Raises
        ------
        ValueError
            ``add`` on a value that is not a number, ``multi_set`` with unequal lengths.
        DistStoreError
            It would pass the table's bounds; nothing has changed.
        """
        return _RUN[request.code](self, request)

    def first_missing(self, request: StoreRequest, start: int = 0) -> int | None:
        """The index of the first missing key, from ``start`` on, of an operation that waits."""
        values = request.code is not Verb.QUEUE_POP
        queues = request.code in {Verb.QUEUE_POP, Verb.WAIT}
        for index in range(start, len(request.keys)):
            key = request.keys[index]
            if not ((values and key in self.values) or (queues and key in self.queues)):
                return index
        return None

    def moved_bytes(self, request: StoreRequest) -> int:
        """About how many bytes an operation moves besides those that come with it; to look for a
        key counts as some.
        """
        key = request.keys[0] if request.keys else ""
        match request.code:
            case Verb.MULTI_GET | Verb.WAIT | Verb.CHECK if len(request.keys) > SUMMED:
                return ENTRY_BYTES * len(request.keys)
            case Verb.GET | Verb.MULTI_GET | Verb.COMPARE_SET:
                return sum(len(self.values.get(requested, b"")) for requested in request.keys)
            case Verb.APPEND:
                value = self.values.get(key, b"")
                return len(value) if isinstance(value, bytes) else 0
            case Verb.QUEUE_POP:
                return len(self.queues[key][0]) if key in self.queues else 0
            case Verb.DELETE_KEY:
                return ENTRY_BYTES * len(self.queues.get(key, ()))
            case Verb.LIST_KEYS:
                return ENTRY_BYTES * len(self.values)
        return 0

    def _value(self, key: str) -> bytes:
        """A value as immutable bytes, which the caller may keep."""
        value = self.values[key]
        if isinstance(value, bytearray):
            value = self.values[key] = bytes(value)
        return value

    def _reserve(self, added_bytes: int, added_keys: int) -> None:
        """Reserve room for a new value, or refuse it before anything has changed."""
        if self.max_keys is not None and added_keys > 0:
            key_count = len(self.values) + self.queued
            if key_count + added_keys > self.max_keys:
                raise DistStoreError(
                    f"the store is full: it holds {key_count} keys and may hold {self.max_keys}"
                )
        if (
            self.max_bytes is not None
            and added_bytes > 0
            and self.size_bytes + added_bytes > self.max_bytes
        ):
            raise DistStoreError(
                f"the store is full: it holds {self.size_bytes} bytes, {added_bytes} more would "
                f"pass its {self.max_bytes}"
            )
        self.size_bytes += added_bytes

    def _assign(self, key: str, value: bytes) -> None:
        old = self.values.get(key)
        if old is None:
            self._reserve(_entry_bytes(key, value), 1)
        else:
            self._reserve(len(value) - len(old), 0)
        self.values[key] = value

    def _set(self, request: StoreRequest) -> None:
        self._assign(request.keys[0], request.values[0])

    def _get(self, request: StoreRequest) -> Answer:
        return self._value(request.keys[0]) if request.keys[0] in self.values else NOT_READY

    def _add(self, request: StoreRequest) -> int:
        key, amount = request.keys[0], request.number
        old = self.values.get(key, b"0")
        if not _NUMBER.fullmatch(old):
            raise ValueError(
                f"store.add: the value of key {key!r} is not a number (stoll): {bytes(old[:40])!r}"
            )
        new = int(old) + amount
        if not -(1 << 63) <= new < 1 << 63:
            raise ValueError(
                f"store.add: {int(old)} + {amount} at key {key!r} does not fit in 64 bits"
            )
        self._assign(key, str(new).encode())
        return new

    def _append(self, request: StoreRequest) -> None:
        key, suffix = request.keys[0], request.values[0]
        if key not in self.values:
            self._assign(key, suffix)
            return
        self._reserve(len(suffix), 0)
        old = self.values[key]
        if isinstance(old, bytes):  # others may hold it
            old = self.values[key] = bytearray(old)
        old += suffix

    def _compare_set(self, request: StoreRequest) -> bytes:
        key, (expected, desired) = request.keys[0], request.values
        old = self.values.get(key)
        if old == expected or (old is None and not expected):
            self._assign(key, desired)
            return desired
        return expected if old is None else self._value(key)

    def _check(self, request: StoreRequest) -> bool:
        return all(key in self.values or key in self.queues for key in request.keys)

    def _wait(self, request: StoreRequest) -> Answer:
        return None if self._check(request) else NOT_READY

    def _delete_key(self, request: StoreRequest) -> bool:
        key = request.keys[0]
        queued = self.queues.pop(key, ())
        self.queued -= len(queued)
        gone = [*queued, *([self.values.pop(key)] if key in self.values else [])]
        self.size_bytes -= _entry_bytes(key, b"") * len(gone) + sum(map(len, gone))
        return bool(gone)

    def _multi_get(self, request: StoreRequest) -> Answer:
        return (
            [self._value(key) for key in request.keys]
            if all(key in self.values for key in request.keys)
            else NOT_READY
        )

    def _multi_set(self, request: StoreRequest) -> None:
        keys, values = request.keys, request.values
        if len(keys) != len(values):
            raise ValueError(
                f"multi_set needs as many values as keys, got {len(keys)} keys and {len(values)} "
                "values"
            )
        # All or nothing.
        entries = dict(zip(keys, values, strict=True))
        added = sum(
            len(value) - len(self.values[key]) if key in self.values else _entry_bytes(key, value)
            for key, value in entries.items()
        )
        self._reserve(added, sum(key not in self.values for key in entries))
        self.values.update(entries)

    def _num_keys(self, _: StoreRequest) -> int:
        # Stores that count their members have always shown that counter as one key more.
        return len(self.values) + ("members" in self.counters)

    def _list_keys(self, _: StoreRequest) -> list[str]:
        return sorted(self.values)

    def _queue_push(self, request: StoreRequest) -> None:
        key, value = request.keys[0], request.values[0]
        self._reserve(_entry_bytes(key, value), 1)
        self.queued += 1
        self.queues.setdefault(key, deque()).append(value)

    def _queue_pop(self, request: StoreRequest) -> Answer:
        key = request.keys[0]
        queue = self.queues.get(key)
        if queue is None:
            return NOT_READY
        value = queue.popleft()
        self.queued -= 1
        self.size_bytes -= _entry_bytes(key, value)
        if not queue:
            del self.queues[key]
        return value

    def _queue_len(self, request: StoreRequest) -> int:
        return len(self.queues.get(request.keys[0], ()))

    def _count(self, request: StoreRequest) -> int:
        key = request.keys[0]
        if not _COUNTER.fullmatch(key):
            raise ValueError(f"a store counts 'members', 'gone' and each 'rank 0', not {key!r:.60}")
        new = self.counters.get(key, 0) + request.number
        if not -(1 << 63) <= new < 1 << 63:
            raise ValueError(f"the counter {key!r} does not fit in 64 bits")
        if request.number:
            if (
                self.max_keys is not None
                and key not in self.counters
                and len(self.counters) >= self.max_keys
            ):
                raise DistStoreError(f"the store is full: it has {self.max_keys} counters")
            self.counters[key] = new
        return new


_RUN: Final[dict[Verb, Callable[[StoreTable, StoreRequest], Answer]]] = {
    verb: getattr(StoreTable, f"_{verb.name.lower()}") for verb in Verb
}
