"""`Store`: the methods all stores have, each of them one `Request`.

torch's programs test ``isinstance(store, Store)`` and hand any store to any function, so this is a class with subclasses,
unlike the rest of simcoll. A store of your own implements one method, `call`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Self, cast

from simcoll.distributed.stores.arguments import key_list, key_text, number, seconds, value_bytes, value_list
from simcoll.distributed.stores.errors import DistStoreError, QueueEmptyError
from simcoll.distributed.stores.table import NOT_READY, Operation, Request, Result
from simcoll.distributed.stores.waiting import waiter_here

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simcoll.distributed.stores.waiting import Waiter

__all__ = ["DEFAULT_TIMEOUT", "Store", "call_and_wait"]

DEFAULT_TIMEOUT = timedelta(seconds=300)
# Keys that are looked at one by one after a timeout, to find those that are missing.
_MOST_ASKED = 4096


class Store:
    """Keys and values that all ranks see.

    Keys are str; values go in as str or bytes and come out as bytes. Methods that wait do so for at most `timeout` and
    then raise DistStoreError; a timeout of zero asks once. Wrong types raise TypeError. Every method may be called from
    several threads.
    """

    def __init__(self) -> None:
        self._timeout = DEFAULT_TIMEOUT
        self._waiter: Waiter | None = None

    def call(self, request: Request, timeout_s: float | None = None) -> Result:
        """Carry out one operation: the method a store implements.

        Parameters
        ----------
        request
            The operation and its arguments, already checked.
        timeout_s
            How long to wait until the operation is ready; None gives `NOT_READY` at once instead.

        Raises
        ------
        RuntimeError
            ``Not implemented.``, in this class.
        """
        del request, timeout_s
        raise RuntimeError("Not implemented.")

    @property
    def waiter(self) -> Waiter | None:
        """The waiter of this store: as set here, else by `use_waiter`; None for its own way."""
        return self._waiter or waiter_here()

    @waiter.setter
    def waiter(self, waiter: Waiter | None) -> None:
        self._waiter = waiter

    @property
    def timeout(self) -> timedelta:
        """Time that methods wait unless given their own timeout: 300 seconds at first."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long methods of this object wait."""
        self._timeout = timedelta(seconds=seconds(timeout))

    def has_extended_api(self) -> bool:
        """Whether append, multi_get, multi_set and queues are native to this store."""
        return False

    def clone(self) -> Self:
        """Another object for the same data, which can be used at the same time as this one."""
        raise RuntimeError("Not implemented.")

    def close(self) -> None:
        """Release connections and files. Safe to call twice; garbage collection does it, too."""

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
        self.call(Request(Operation.SET, (key_text(key),), (value_bytes(value),)))

    def get(self, key: str) -> bytes:
        """The value of a key; waits until there is one."""
        return cast("bytes", self.call(Request(Operation.GET, (key_text(key),)), self._patience_s()))

    def try_get(self, key: str) -> bytes | None:
        """The value of a key, or None at once when there is none. (Not in torch.)"""
        value = self.call(Request(Operation.GET, (key_text(key),)))
        return None if value is NOT_READY else cast("bytes", value)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0 and is kept as decimal text; returns the sum.

        Raises
        ------
        ValueError
            The value there is not a number, or the sum does not fit in 64 bits.
        """
        return cast("int", self.call(Request(Operation.ADD, (key_text(key),), amount=number(amount))))

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value of a key; sets it when there is none."""
        self.call(Request(Operation.APPEND, (key_text(key),), (value_bytes(value),)))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if it holds ``expected``, or if it is missing and ``expected`` is empty.

        Returns
        -------
        The value the key holds now; ``expected`` when the key is missing and stays so.
        """
        request = Request(Operation.COMPARE_SET, (key_text(key),), (value_bytes(expected), value_bytes(desired)))
        return cast("bytes", self.call(request))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all these keys (or queues) exist now."""
        return cast("bool", self.call(Request(Operation.CHECK, key_list(keys))))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these keys (or queues) exist, for at most ``timeout`` (None: the store's)."""
        patience_s = self._patience_s() if timeout is None else seconds(timeout)
        self.call(Request(Operation.WAIT, key_list(keys)), patience_s)

    def delete_key(self, key: str) -> bool:
        """Remove a key or queue; whether there was one."""
        return cast("bool", self.call(Request(Operation.DELETE_KEY, (key_text(key),))))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of these keys, in order; waits until all are there."""
        return cast("list[bytes]", self.call(Request(Operation.MULTI_GET, key_list(keys)), self._patience_s()))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set these keys to these values, all at once; a ValueError when their numbers differ."""
        self.call(Request(Operation.MULTI_SET, key_list(keys), value_list(values)))

    def num_keys(self) -> int:
        """Number of keys; one more in a FileStore, and in a TCPStore whose workers were counted."""
        return cast("int", self.call(Request(Operation.NUM_KEYS)))

    def list_keys(self) -> list[str]:
        """All keys, sorted."""
        return cast("list[str]", self.call(Request(Operation.LIST_KEYS)))

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Put a value at the end of a queue, making it when there is none."""
        self.call(Request(Operation.QUEUE_PUSH, (key_text(key),), (value_bytes(value),)))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first value of a queue; waits for one.

        Raises
        ------
        QueueEmptyError
            There is none and ``block`` is False.
        """
        value = self.call(Request(Operation.QUEUE_POP, (key_text(key),)), self._patience_s() if block else None)
        if value is NOT_READY:
            raise QueueEmptyError(f"queue is empty: {key}")
        return cast("bytes", value)

    def queue_len(self, key: str) -> int:
        """Number of values in a queue; 0 when there is no such queue."""
        return cast("int", self.call(Request(Operation.QUEUE_LEN, (key_text(key),))))


def call_and_wait(store: Store, waiter: Waiter, request: Request, timeout_s: float) -> Result:
    """Try an operation until it is ready, waiting as ``waiter`` does.

    Raises
    ------
    DistStoreError
        It was not ready within ``timeout_s`` seconds.
    """
    result: Result = NOT_READY

    def ready() -> bool:
        nonlocal result
        result = store.call(request)
        return result is not NOT_READY

    if not waiter.wait(ready, timeout_s):
        raise timed_out(store, request.keys, timeout_s)
    return result


def timed_out(store: Store, keys: Sequence[str], timeout_s: float) -> DistStoreError:
    """The error of an operation whose keys did not come in time; it names the keys that are missing."""
    if 1 < len(keys) <= _MOST_ASKED:
        # A queue that is waited for may have a value of the same name.
        keys = [key for key in keys if not store.call(Request(Operation.CHECK, (key,)))] or keys
    shown = ", ".join(f"/{key}" for key in keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
    return DistStoreError(f"wait timeout after {round(timeout_s * 1000)}ms, keys: {shown}")
