"""A torch Store on a simcoll store: while a rank waits for a key, the others run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from datetime import timedelta

    from simcoll.distributed.stores import HashStore
    from simcoll.torch.rank_threads import RankThread

__all__ = ["RankStore"]


class RankStore(dist.Store):
    """One rank's handle of the store of a run, with torch's methods."""

    def __init__(self, thread: RankThread, shared: HashStore) -> None:
        super().__init__()
        self._thread = thread
        self._shared = shared

    def set(self, key: str, value: str | bytes) -> None:
        """Set the value of a key."""
        self._thread.call(self._shared.set, key, value)

    def get(self, key: str) -> bytes:
        """The value of a key; waits until it has one."""
        found: bytes = self._thread.call(self._shared.get, key)
        return found

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return its new value."""
        total: int = self._thread.call(self._shared.add, key, amount)
        return total

    def append(self, key: str, value: str | bytes) -> None:
        """Append to a value."""
        self._thread.call(self._shared.append, key, value)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Change a value if it is the expected one, and return the current one."""
        found: bytes = self._thread.call(self._shared.compare_set, key, expected, desired)
        return found

    def check(self, keys: list[str]) -> bool:
        """Whether all keys have values."""
        found: bool = self._thread.call(self._shared.check, keys)
        return found

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        self._thread.call(self._shared.wait, keys, timeout)

    def delete_key(self, key: str) -> bool:
        """Delete a key; whether it existed."""
        found: bool = self._thread.call(self._shared.delete_key, key)
        return found

    def num_keys(self) -> int:
        """The number of keys."""
        found: int = self._thread.call(self._shared.num_keys)
        return found

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values of several keys."""
        found: list[bytes] = self._thread.call(self._shared.multi_get, keys)
        return found

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Set the values of several keys."""
        self._thread.call(self._shared.multi_set, keys, values)

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set are supported: True."""
        return True
