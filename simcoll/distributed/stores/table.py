"""The key space behind every store: the meaning of each operation, without waiting, locking or sockets.

A store turns a method call into a `Request`; `apply` carries it out on a `Table` and gives the result or, for an operation
that waits for keys, `NOT_READY`. HashStore applies requests under a lock, FileStore replays them from a file, TCPStore's
server applies what arrives. So all stores mean the same.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from simcoll.distributed.stores.errors import DistStoreError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ENTRY_BYTES",
    "NOT_READY",
    "Operation",
    "Request",
    "Result",
    "Table",
    "apply",
    "changes",
    "check_counts",
    "first_missing",
]


class Operation(enum.IntEnum):
    """Operations of a store; the numbers are those on the wire and in the file."""

    SET = 1
    GET = 2
    ADD = 3
    APPEND = 4
    COMPARE_SET = 5
    CHECK = 6
    WAIT = 7
    DELETE_KEY = 8
    MULTI_GET = 9
    MULTI_SET = 10
    NUM_KEYS = 11
    LIST_KEYS = 12
    QUEUE_PUSH = 13
    QUEUE_POP = 14
    QUEUE_LEN = 15
    COUNT = 16  # a counter of the store's own (its members), which is no key


class _NotReady(enum.Enum):
    NOT_READY = enum.auto()


NOT_READY: Final = _NotReady.NOT_READY
Result = None | bool | int | bytes | list[bytes] | list[str] | _NotReady


@dataclass(frozen=True, slots=True)
class Request:
    """One operation and its arguments."""

    operation: Operation
    keys: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()
    amount: int = 0


@dataclass(slots=True)
class Table:
    """Keys and values, queues, and the store's own counters.

    ``max_keys`` and ``max_bytes`` (of keys and values, with `ENTRY_BYTES` for the bookkeeping of each) bound it; None is
    no bound. ``size_bytes`` is the size of the entries.
    """

    max_keys: int | None = None
    max_bytes: int | None = None
    values: dict[str, bytes] = field(default_factory=dict)
    queues: dict[str, deque[bytes]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0


ENTRY_BYTES = 128
_COUNTERS: Final = frozenset({"members", "gone"})
_NUMBER = re.compile(rb"\s*[+-]?[0-9]{1,19}")


def _reserve(table: Table, added_bytes: int, added_keys: int) -> None:
    """Reserve room for a new value, or refuse it before anything has changed."""
    if table.max_keys is not None and added_keys > 0:
        held = len(table.values) + len(table.queues)
        if held + added_keys > table.max_keys:
            raise DistStoreError(f"the store is full: it holds {held} keys and may hold {table.max_keys}")
    if table.max_bytes is not None and added_bytes > 0 and table.size_bytes + added_bytes > table.max_bytes:
        raise DistStoreError(
            f"the store is full: it holds {table.size_bytes} bytes, {added_bytes} more would pass its {table.max_bytes}"
        )
    table.size_bytes += added_bytes


def _put(table: Table, key: str, value: bytes) -> None:
    old = table.values.get(key)
    if old is None:
        _reserve(table, _entry_bytes(key, value), 1)
    else:
        _reserve(table, len(value) - len(old), 0)
    table.values[key] = value


def _entry_bytes(key: str, value: bytes) -> int:
    return len(key.encode()) + len(value) + ENTRY_BYTES


def _set(table: Table, request: Request) -> Result:
    _put(table, request.keys[0], request.values[0])
    return None


def _get(table: Table, request: Request) -> Result:
    return table.values.get(request.keys[0], NOT_READY)


def _add(table: Table, request: Request) -> Result:
    key = request.keys[0]
    old = table.values.get(key, b"0")
    if not _NUMBER.fullmatch(old):
        raise ValueError(f"store.add: the value of key {key!r} is not a number (stoll): {old[:40]!r}")
    new = int(old) + request.amount
    if not -(1 << 63) <= new < 1 << 63:
        raise ValueError(f"store.add: {int(old)} + {request.amount} at key {key!r} does not fit in 64 bits")
    _put(table, key, str(new).encode())
    return new


def _append(table: Table, request: Request) -> Result:
    key = request.keys[0]
    _put(table, key, table.values.get(key, b"") + request.values[0])
    return None


def _compare_set(table: Table, request: Request) -> Result:
    key, (expected, desired) = request.keys[0], request.values
    old = table.values.get(key)
    if old == expected or (old is None and not expected):
        _put(table, key, desired)
        return desired
    return expected if old is None else old


def _check(table: Table, request: Request) -> Result:
    return all(key in table.values or key in table.queues for key in request.keys)


def _wait(table: Table, request: Request) -> Result:
    return None if _check(table, request) else NOT_READY


def _delete_key(table: Table, request: Request) -> Result:
    key = request.keys[0]
    value = table.values.pop(key, None)
    queue = table.queues.pop(key, None)
    if value is not None:
        table.size_bytes -= _entry_bytes(key, value)
    if queue is not None:
        table.size_bytes -= sum(_entry_bytes(key, item) for item in queue)
    return value is not None or queue is not None


def _multi_get(table: Table, request: Request) -> Result:
    found = [table.values.get(key) for key in request.keys]
    present = [value for value in found if value is not None]
    return present if len(present) == len(found) else NOT_READY


def _multi_set(table: Table, request: Request) -> Result:
    if len(request.keys) != len(request.values):
        raise ValueError(
            f"multi_set needs as many values as keys, got {len(request.keys)} keys and {len(request.values)} values"
        )
    # All or nothing.
    wanted = dict(zip(request.keys, request.values, strict=True))
    added = sum(
        _entry_bytes(key, value) if key not in table.values else len(value) - len(table.values[key])
        for key, value in wanted.items()
    )
    _reserve(table, added, sum(key not in table.values for key in wanted))
    table.values.update(wanted)
    return None


def _num_keys(table: Table, request: Request) -> Result:
    del request
    # Stores that count their members have always shown that counter as one key more.
    return len(table.values) + ("members" in table.counters)


def _list_keys(table: Table, request: Request) -> Result:
    del request
    return sorted(table.values)


def _queue_push(table: Table, request: Request) -> Result:
    key, value = request.keys[0], request.values[0]
    _reserve(table, _entry_bytes(key, value), key not in table.queues)
    table.queues.setdefault(key, deque()).append(value)
    return None


def _queue_pop(table: Table, request: Request) -> Result:
    key = request.keys[0]
    queue = table.queues.get(key)
    if queue is None:
        return NOT_READY
    value = queue.popleft()
    table.size_bytes -= _entry_bytes(key, value)
    if not queue:
        del table.queues[key]
    return value


def _queue_len(table: Table, request: Request) -> Result:
    return len(table.queues.get(request.keys[0], ()))


def _count(table: Table, request: Request) -> Result:
    key = request.keys[0]
    if key not in _COUNTERS:
        raise ValueError(f"a store counts {', '.join(sorted(_COUNTERS))}, not {key!r}")
    table.counters[key] = table.counters.get(key, 0) + request.amount
    return table.counters[key]


@dataclass(frozen=True, slots=True)
class _Meaning:
    """An operation's numbers of keys and values (None: any), whether it changes the table, and its function."""

    keys: int | None
    values: int | None
    changes: bool
    run: Callable[[Table, Request], Result]


_MEANINGS: Final = {
    Operation.SET: _Meaning(1, 1, True, _set),
    Operation.GET: _Meaning(1, 0, False, _get),
    Operation.ADD: _Meaning(1, 0, True, _add),
    Operation.APPEND: _Meaning(1, 1, True, _append),
    Operation.COMPARE_SET: _Meaning(1, 2, True, _compare_set),
    Operation.CHECK: _Meaning(None, 0, False, _check),
    Operation.WAIT: _Meaning(None, 0, False, _wait),
    Operation.DELETE_KEY: _Meaning(1, 0, True, _delete_key),
    Operation.MULTI_GET: _Meaning(None, 0, False, _multi_get),
    Operation.MULTI_SET: _Meaning(None, None, True, _multi_set),
    Operation.NUM_KEYS: _Meaning(0, 0, False, _num_keys),
    Operation.LIST_KEYS: _Meaning(0, 0, False, _list_keys),
    Operation.QUEUE_PUSH: _Meaning(1, 1, True, _queue_push),
    Operation.QUEUE_POP: _Meaning(1, 0, True, _queue_pop),
    Operation.QUEUE_LEN: _Meaning(1, 0, False, _queue_len),
    Operation.COUNT: _Meaning(1, 0, True, _count),
}


def check_counts(request: Request) -> None:
    """Refuse a request with the wrong number of keys or values; only one that came from outside can have that."""
    meaning = _MEANINGS[request.operation]
    for what, given, expected in (
        ("keys", len(request.keys), meaning.keys),
        ("values", len(request.values), meaning.values),
    ):
        if expected is not None and given != expected:
            raise ValueError(f"{request.operation.name.lower()} takes {expected} {what}, got {given}")


def first_missing(table: Table, request: Request, start: int = 0) -> int | None:
    """The first of the keys, from number ``start`` on, that a waiting operation still waits for."""
    values = request.operation is not Operation.QUEUE_POP
    queues = request.operation in {Operation.QUEUE_POP, Operation.WAIT}
    for at in range(start, len(request.keys)):
        key = request.keys[at]
        if not ((values and key in table.values) or (queues and key in table.queues)):
            return at
    return None


def changes(request: Request) -> bool:
    """Whether the operation can change the table."""
    return _MEANINGS[request.operation].changes


def apply(table: Table, request: Request) -> Result:
    """Carry out one operation.

    Returns
    -------
    The operation's result, or `NOT_READY` when keys it waits for are missing (nothing has changed then).

    Raises
    ------
    ValueError
        ``add`` on a value that is not a number, ``multi_set`` with unequal lengths.
    DistStoreError
        It would pass the table's bounds; nothing has changed.

    Examples
    --------
    >>> table = Table()
    >>> apply(table, Request(Operation.ADD, keys=("n",), amount=3))
    3
    >>> apply(table, Request(Operation.GET, keys=("n",)))
    b'3'
    """
    return _MEANINGS[request.operation].run(table, request)
