"""`Store`: the methods common to all stores, each of them one `Request`.

torch programs test ``isinstance(store, Store)`` and pass any store to any function, so unlike
elsewhere in simcoll this is a class with subclasses. A custom store implements one method, `call`.

A runtime that plays many ranks in one thread must not block the thread. It calls `use_waiter` at
the start of each rank's greenlet with a `Waiter` that parks the rank and lets the others run;
stores used in that greenlet wait through it. (``store.waiter = ...`` does the same for one store
everywhere.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Protocol, Self, TypeVar, cast

from simcoll.distributed.stores.store_errors import (
    DistNetworkError,
    DistStoreError,
    QueueEmptyError,
)
from simcoll.distributed.stores.wire import NOT_READY, Answer, StoreRequest, Verb
from simcoll.errors import listed

__all__ = [
    "DEFAULT_TIMEOUT",
    "PollingWaiter",
    "Store",
    "ThreadWaiter",
    "Waiter",
    "call_and_wait",
    "key_text",
    "timed_out",
    "use_waiter",
]

DEFAULT_TIMEOUT = timedelta(seconds=300)
# Keys that are looked at one by one after a timeout, to find those that are missing.
_MOST_ASKED = 4096
_INT64 = 1 << 63
_Item = TypeVar("_Item")


class Waiter(Protocol):
    """The waiting strategy of a store.

    ``ready`` tries the operation; it is called until it returns True, and never after that.
    """

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``ready()`` is True; False if it is not within ``timeout_s`` seconds (it is
        tried at least once).
        """
        ...

    def notify(self) -> None:
        """Wake the waiting ranks after a change of a store. Must not call into a store."""
        ...


# Each thread and each greenlet has a context, so this is no state that others could see.
WAITER_HERE: ContextVar[Waiter | None] = ContextVar("simcoll_store_waiter", default=None)
TURN_HERE: ContextVar[Callable[[], None] | None] = ContextVar("simcoll_store_turn", default=None)


def use_waiter(waiter: Waiter | None, offer_turn: Callable[[], None] | None = None) -> None:
    """Make stores used in this context (greenlet, thread) wait through ``waiter``; None restores
    their own waiters. ``offer_turn`` is called before each operation.
    """
    WAITER_HERE.set(waiter)
    TURN_HERE.set(offer_turn)


class ThreadWaiter:
    """Waits on a condition variable, for stores shared by threads of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Try under the condition's lock, so that no change is missed between a failed try and the
        wait.
        """
        with self._changed:
            return self._changed.wait_for(ready, min(timeout_s, threading.TIMEOUT_MAX))

    def notify(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._changed.notify_all()


class PollingWaiter:
    """Polls for changes by other processes, with ``sleep`` pauses that grow from 0.5 ms to
    ``longest_s``.
    """

    def __init__(
        self, longest_s: float = 0.01, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._longest_s = longest_s
        self._sleep = sleep

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Try, pause, try again."""
        deadline = time.monotonic() + timeout_s
        pause_s = 0.0005
        while not ready():
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            self._sleep(min(pause_s, remaining_s))
            pause_s = min(2 * pause_s, self._longest_s)
        return True

    def notify(self) -> None:
        """Do nothing: pauses are short."""


def key_text(key: object) -> str:
    """Check a key: a TypeError unless it is a str, a ValueError for text without a UTF-8 form.

    >>> key_text(3)
    Traceback (most recent call last):
    TypeError: a store's key must be a str, got 3 of type int
    """
    if not isinstance(key, str):
        raise TypeError(f"a store's key must be a str, got {key!r} of type {type(key).__name__}")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a store's key must be text that UTF-8 can hold, got {key!r}") from None
    return key


def _value_bytes(value: object) -> bytes:
    if isinstance(value, str):
        return key_text(value).encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(
        f"a store's value must be str or bytes, got {value!r} of type {type(value).__name__}"
    )


def _several(
    values: object, expectation: str, convert: Callable[[object], _Item]
) -> tuple[_Item, ...]:
    if type(values) not in {list, tuple} and (
        isinstance(values, (str, bytes)) or not isinstance(values, Sequence)
    ):
        raise TypeError(f"{expectation}, got {values!r} of type {type(values).__name__}")
    return tuple(map(convert, cast("Sequence[object]", values)))


def _amount(amount: object) -> int:
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise TypeError(
            f"the amount to add must be an int, got {amount!r} of type {type(amount).__name__}"
        )
    if not -_INT64 <= amount < _INT64:
        raise ValueError(f"the amount to add must fit in 64 bits, got {amount}")
    return amount


def _seconds(timeout: object) -> float:
    """A timeout in seconds, from a timedelta or a float of seconds (torch's binding refuses an
    int).
    """
    if isinstance(timeout, timedelta):
        length = timeout.total_seconds()
    elif isinstance(timeout, float):
        length = timeout
    else:
        raise TypeError(
            f"Expected timeout argument to be of type datetime.timedelta, got {timeout!r} of type "
            f"{type(timeout).__name__}"
        )
    if not 0 <= length <= timedelta.max.total_seconds():
        raise ValueError(f"a timeout must be 0 or more seconds, got {timeout}")
    return length


class Store:
    """A key-value store visible to all ranks.

    Keys are str; values are stored from str or bytes and returned as bytes. Methods that wait do so
    for at most `timeout`, then raise DistStoreError; a timeout of zero tries once. Wrong types
    raise TypeError. All methods are thread-safe.
    """

    def __init__(self) -> None:
        self._timeout = DEFAULT_TIMEOUT
        self._waiter: Waiter | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def call(self, request: StoreRequest, timeout_s: float | None = None) -> Answer:
        """Carry out one operation; the only method that a custom store has to implement.

        Parameters
        ----------
        request
            The operation and its arguments, already checked.
        timeout_s
            How long to wait until the operation is ready; None gives `NOT_READY` at once instead.
        """
        del request, timeout_s
        raise RuntimeError("Not implemented.")

    def _ask(
        self,
        verb: Verb,
        keys: object = (),
        values: object = (),
        amount: object = 0,
        timeout_s: float | None = None,
    ) -> Any:
        """Check the arguments of an operation and call it."""
        checked = _several(keys, "keys must be a list of str", key_text)
        contents = _several(values, "values must be a list of str or bytes", _value_bytes)
        offer_turn = TURN_HERE.get()
        if offer_turn is not None:
            offer_turn()
        return self.call(
            StoreRequest(verb, _amount(amount), keys=checked, values=contents), timeout_s
        )

    @property
    def waiter(self) -> Waiter | None:
        """The waiter set on this store, else by `use_waiter`; None for the store's own."""
        return self._waiter or WAITER_HERE.get()

    @waiter.setter
    def waiter(self, waiter: Waiter | None) -> None:
        self._waiter = waiter

    @property
    def timeout(self) -> timedelta:
        """Default timeout of this object's methods; initially 300 seconds."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of this object's methods."""
        self._timeout = timedelta(seconds=_seconds(timeout))

    def has_extended_api(self) -> bool:
        """Whether append, multi_get, multi_set and queues are native to this store."""
        return False

    def clone(self) -> Self:
        """Another object for the same data, which can be used concurrently with this one."""
        raise RuntimeError("Not implemented.")

    def _like(self, store: Self) -> Self:
        """Another store, made to wait as this one."""
        store.set_timeout(self.timeout)
        store.waiter = self._waiter
        return store

    def close(self) -> None:
        """Release connections and files. Idempotent; garbage collection does it too."""

    def __enter__(self) -> Self:
        """The store itself; it is closed at the end of the block."""
        return self

    def __exit__(self, *args: object) -> None:
        """Close the store."""
        self.close()

    def _tell(self) -> None:
        """Wake the ranks that wait through a runtime's waiter."""
        waiter = self.waiter
        if waiter is not None:
            waiter.notify()

    def _patience_s(self) -> float:
        return self.timeout.total_seconds()

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value under a key, replacing an earlier one."""
        self._ask(Verb.SET, [key], [value])

    def get(self, key: str) -> bytes:
        """The value of a key; waits until there is one."""
        return cast("bytes", self._ask(Verb.GET, [key], timeout_s=self._patience_s()))

    def try_get(self, key: str) -> bytes | None:
        """The value of a key, or None if there is none, without waiting. (Not in torch.)"""
        value = self._ask(Verb.GET, [key])
        return None if value is NOT_READY else cast("bytes", value)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0 and is stored as decimal text; returns the sum.

        Raises
        ------
        ValueError
            The value is not a number, or the sum does not fit in 64 bits.
        """
        return cast("int", self._ask(Verb.ADD, [key], amount=amount))

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value of a key, or set it if there is none."""
        self._ask(Verb.APPEND, [key], [value])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if it holds ``expected``, or if it is missing and ``expected`` is empty.

        Returns
        -------
        The value the key holds now; ``expected`` when the key is missing and stays so.
        """
        return cast("bytes", self._ask(Verb.COMPARE_SET, [key], [expected, desired]))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all these keys (or queues) exist now."""
        return cast("bool", self._ask(Verb.CHECK, keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these keys (or queues) exist, for at most ``timeout`` (None: the
        store's).
        """
        self._ask(
            Verb.WAIT, keys, timeout_s=self._patience_s() if timeout is None else _seconds(timeout)
        )

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until ``world_size`` callers have reached the barrier of this key, for at most
        ``timeout`` (None: the store's).

        It can be passed again, with all callers.

        Raises
        ------
        ValueError
            For a number of callers below 1.
        DistStoreError
            Not all of them come in time.

        Examples
        --------
        >>> from simcoll.distributed.stores import HashStore
        >>> HashStore().barrier("checkpoint", world_size=1)
        """
        if world_size < 1:
            raise ValueError(f"barrier: expected a world_size of at least 1, got {world_size}")
        number = self.add(f"{key}/num_members", 1)
        last = f"{key}/last_member/{(number - 1) // world_size}"
        if number % world_size == 0:
            self.set(last, "1")
        patience_s = self._patience_s() if timeout is None else _seconds(timeout)
        try:
            self.wait([last], timeout)
        except DistStoreError:
            raise DistStoreError(
                f"barrier timeout after {round(patience_s * 1000)}ms, key: {key}"
            ) from None

    def delete_key(self, key: str) -> bool:
        """Remove a key or queue; returns whether it existed."""
        return cast("bool", self._ask(Verb.DELETE_KEY, [key]))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of these keys, in order; waits until all are there."""
        return cast("list[bytes]", self._ask(Verb.MULTI_GET, keys, timeout_s=self._patience_s()))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set several keys atomically; a ValueError if the numbers of keys and values differ."""
        self._ask(Verb.MULTI_SET, keys, values)

    def num_keys(self) -> int:
        """Number of keys; one more in a FileStore, and in a TCPStore whose workers were counted."""
        return cast("int", self._ask(Verb.NUM_KEYS))

    def list_keys(self) -> list[str]:
        """All keys, sorted."""
        return cast("list[str]", self._ask(Verb.LIST_KEYS))

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Append a value to a queue, creating it if needed."""
        self._ask(Verb.QUEUE_PUSH, [key], [value])

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Remove and return the first value of a queue; waits for one.

        Raises
        ------
        QueueEmptyError
            There is none and ``block`` is False.
        """
        value = self._ask(Verb.QUEUE_POP, [key], timeout_s=self._patience_s() if block else None)
        if value is NOT_READY:
            raise QueueEmptyError(f"queue is empty: {key}")
        return cast("bytes", value)

    def queue_len(self, key: str) -> int:
        """Number of values in a queue; 0 if there is no such queue."""
        return cast("int", self._ask(Verb.QUEUE_LEN, [key]))


def call_and_wait(store: Store, waiter: Waiter, request: StoreRequest, timeout_s: float) -> Answer:
    """Retry an operation through a waiter until it is ready; a DistStoreError after ``timeout_s``
    seconds.
    """
    answer: Answer = NOT_READY

    def ready() -> bool:
        nonlocal answer
        answer = store.call(request)
        return answer is not NOT_READY

    if not waiter.wait(ready, timeout_s):
        raise timed_out(store, request.keys, timeout_s)
    return answer


def timed_out(store: Store, keys: Sequence[str], timeout_s: float) -> DistStoreError:
    """The error of an operation that timed out, with the missing keys."""
    if 1 < len(keys) <= _MOST_ASKED:
        # A queue that is waited for may have a value of the same name.
        # Nor is its end meanwhile, with the process that keeps it, what this error is about.
        with suppress(DistNetworkError):
            keys = [
                key for key in keys if not store.call(StoreRequest(Verb.CHECK, keys=(key,)))
            ] or keys
    names = listed(f"/{key}" for key in keys)
    return DistStoreError(f"wait timeout after {round(timeout_s * 1000)}ms, keys: {names}")
