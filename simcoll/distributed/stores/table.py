"""The key space behind every store: the meaning of each operation, without waiting, locking or sockets.

A store turns a method call into a `Request`; `Table.apply` carries it out and gives the answer or, for an operation that waits
for keys, `NOT_READY`. HashStore applies requests under a lock, FileStore replays them from a file, TCPStore's server applies
what arrives. So all stores mean the same.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from simcoll.distributed.stores.errors import DistStoreError
from simcoll.distributed.stores.wire import NOT_READY, Answer, Request, Verb

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ENTRY_BYTES", "Table"]

ENTRY_BYTES = 128
_COUNTERS: Final = frozenset({"members", "gone"})
_NUMBER = re.compile(rb"\s*[+-]?[0-9]{1,19}")


def _entry_bytes(key: str, value: bytes) -> int:
    return len(key.encode()) + len(value) + ENTRY_BYTES


@dataclass(slots=True)
class Table:
    """Keys and values, queues, and the store's own counters.

    ``max_keys`` and ``max_bytes`` (of keys and values, with `ENTRY_BYTES` for the bookkeeping of each) bound it; None is
    no bound. ``size_bytes`` is the size of the entries.

    >>> table = Table()
    >>> table.apply(Request(Verb.ADD, 3, keys=("n",)))
    3
    >>> table.apply(Request(Verb.GET, keys=("n",)))
    b'3'
    """

    max_keys: int | None = None
    max_bytes: int | None = None
    values: dict[str, bytes] = field(default_factory=dict)
    queues: dict[str, deque[bytes]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0

    def apply(self, request: Request) -> Answer:
        """Carry out one operation: the method of its name, with its keys, values and number.

        Returns
        -------
        The operation's answer, or `NOT_READY` when keys it waits for are missing (nothing has changed then).

        Raises
        ------
        ValueError
            ``add`` on a value that is not a number, ``multi_set`` with unequal lengths.
        DistStoreError
            It would pass the table's bounds; nothing has changed.
        """
        verb = request.code
        arguments: list[Any] = []
        for count, given in ((verb.keys, request.keys), (verb.values, request.values)):
            arguments += [given] if count is None else given
        if verb in {Verb.ADD, Verb.COUNT}:
            arguments.append(request.number)
        answer: Answer = getattr(self, f"_{verb.name.lower()}")(*arguments)
        return answer

    def first_missing(self, request: Request, start: int = 0) -> int | None:
        """The first of the keys, from number ``start`` on, that a waiting operation still waits for."""
        values = request.code is not Verb.QUEUE_POP
        queues = request.code in {Verb.QUEUE_POP, Verb.WAIT}
        for at in range(start, len(request.keys)):
            key = request.keys[at]
            if not ((values and key in self.values) or (queues and key in self.queues)):
                return at
        return None

    def _reserve(self, added_bytes: int, added_keys: int) -> None:
        """Reserve room for a new value, or refuse it before anything has changed."""
        if self.max_keys is not None and added_keys > 0:
            held = len(self.values) + len(self.queues)
            if held + added_keys > self.max_keys:
                raise DistStoreError(f"the store is full: it holds {held} keys and may hold {self.max_keys}")
        if self.max_bytes is not None and added_bytes > 0 and self.size_bytes + added_bytes > self.max_bytes:
            raise DistStoreError(
                f"the store is full: it holds {self.size_bytes} bytes, {added_bytes} more would pass its {self.max_bytes}"
            )
        self.size_bytes += added_bytes

    def _set(self, key: str, value: bytes) -> None:
        self._multi_set((key,), (value,))

    def _get(self, key: str) -> Answer:
        return self.values.get(key, NOT_READY)

    def _add(self, key: str, amount: int) -> int:
        old = self.values.get(key, b"0")
        if not _NUMBER.fullmatch(old):
            raise ValueError(f"store.add: the value of key {key!r} is not a number (stoll): {old[:40]!r}")
        new = int(old) + amount
        if not -(1 << 63) <= new < 1 << 63:
            raise ValueError(f"store.add: {int(old)} + {amount} at key {key!r} does not fit in 64 bits")
        self._set(key, str(new).encode())
        return new

    def _append(self, key: str, value: bytes) -> None:
        self._set(key, self.values.get(key, b"") + value)

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        old = self.values.get(key)
        if old == expected or (old is None and not expected):
            self._set(key, desired)
            return desired
        return expected if old is None else old

    def _check(self, keys: Sequence[str]) -> bool:
        return all(key in self.values or key in self.queues for key in keys)

    def _wait(self, keys: Sequence[str]) -> Answer:
        return None if self._check(keys) else NOT_READY

    def _delete_key(self, key: str) -> bool:
        gone = [*self.queues.pop(key, ()), *([self.values.pop(key)] if key in self.values else [])]
        self.size_bytes -= sum(_entry_bytes(key, value) for value in gone)
        return bool(gone)

    def _multi_get(self, keys: Sequence[str]) -> Answer:
        found = [self.values[key] for key in keys if key in self.values]
        return found if len(found) == len(keys) else NOT_READY

    def _multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        if len(keys) != len(values):
            raise ValueError(f"multi_set needs as many values as keys, got {len(keys)} keys and {len(values)} values")
        # All or nothing.
        wanted = dict(zip(keys, values, strict=True))
        added = sum(
            len(value) - len(self.values[key]) if key in self.values else _entry_bytes(key, value)
            for key, value in wanted.items()
        )
        self._reserve(added, sum(key not in self.values for key in wanted))
        self.values.update(wanted)

    def _num_keys(self) -> int:
        # Stores that count their members have always shown that counter as one key more.
        return len(self.values) + ("members" in self.counters)

    def _list_keys(self) -> list[str]:
        return sorted(self.values)

    def _queue_push(self, key: str, value: bytes) -> None:
        self._reserve(_entry_bytes(key, value), key not in self.queues)
        self.queues.setdefault(key, deque()).append(value)

    def _queue_pop(self, key: str) -> Answer:
        queue = self.queues.get(key)
        if queue is None:
            return NOT_READY
        value = queue.popleft()
        self.size_bytes -= _entry_bytes(key, value)
        if not queue:
            del self.queues[key]
        return value

    def _queue_len(self, key: str) -> int:
        return len(self.queues.get(key, ()))

    def _count(self, key: str, amount: int) -> int:
        if key not in _COUNTERS:
            raise ValueError(f"a store counts {', '.join(sorted(_COUNTERS))}, not {key!r}")
        self.counters[key] = self.counters.get(key, 0) + amount
        return self.counters[key]
