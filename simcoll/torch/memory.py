"""The memory of a rank's tensors: bytes of the storages that are alive, and the most at once."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

__all__ = ["Memory", "resizing"]


class Memory:
    """Bytes of the storages that operators of a rank have made. Fake tensors count as if they were real.

    Attributes
    ----------
    held_bytes
        Of those that are alive.
    peak_bytes
        The most that it was.
    """

    __slots__ = ("_known", "held_bytes", "peak_bytes")

    def __init__(self) -> None:
        self.held_bytes = self.peak_bytes = 0
        self._known: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}  # by where they are

    def note(self, result: Any) -> None:
        """Count what an operator has made or resized."""
        for each in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                self._count(each.untyped_storage())

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count the new size of a storage that is known."""
        if storage._cdata in self._known:
            self._count(storage)

    def _count(self, storage: torch.UntypedStorage) -> None:
        where, size = storage._cdata, storage.nbytes()
        known = self._known.get(where)
        before = 0 if known is None else known[1]
        if known is None or size != before:
            found = weakref.ref(storage, functools.partial(self._gone, where)) if known is None else known[0]
            self._known[where] = found, size
            self.held_bytes += size - before
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def _gone(self, where: int, _reference: object) -> None:
        self.held_bytes -= self._known.pop(where)[1]


def resizing(standard: Callable[..., Any], current: Callable[[], Memory | None]) -> Callable[..., Any]:
    """``UntypedStorage.resize_``, by which FSDP frees what it has gathered; no operator does it."""

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        result = standard(storage, size)
        memory = current()
        if memory is not None:
            memory.resized(storage)
        return result

    return resize
