"""Memory accounting of a rank's tensors, by the storages that operators create."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from simcoll.arrays import Array
from simcoll.distributed.runtime.rank_memory import RankMemory

__all__ = ["Count", "TensorMemory", "resizing"]

_SMALL_BYTES = 1 << 20
"""The largest storage in the small pool of CUDA's allocator."""


class Count:
    """A count of what is there now, its peak, and all that was ever added."""

    __slots__ = ("added", "current", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.added = 0

    def add(self, difference: int) -> None:
        """Count more, or less."""
        self.current += difference
        if difference > 0:
            self.added += difference
            self.peak = max(self.peak, self.current)

    def reset(self, *, peak: bool) -> None:
        """Begin again with what is there, of the peak or of all that was added."""
        if peak:
            self.peak = self.current
        else:
            self.added = self.current


class TensorMemory(RankMemory):
    """Bytes of the storages that a rank's operators have created. Fake tensors count as if they
    were real.

    Attributes
    ----------
    host
        Of those that the program has moved to the memory of the host, which do not count here.
    limit_bytes
        The memory of the GPU, or the part of it that the program allows itself.
    refusals
        How often an operator found no memory.
    small_bytes, large_bytes, all_count, small_count, large_count
        Bytes and number of storages, by the pools of CUDA's allocator.
    """

    __slots__ = (
        "_latest",
        "all_count",
        "host",
        "large_bytes",
        "large_count",
        "limit_bytes",
        "refusals",
        "small_bytes",
        "small_count",
    )

    def __init__(self) -> None:
        super().__init__()
        self.host = RankMemory()
        self.limit_bytes = sys.maxsize
        self.refusals = 0
        self.small_bytes, self.large_bytes = Count(), Count()
        self.all_count, self.small_count, self.large_count = Count(), Count(), Count()
        self._latest = (0, 0)  # the storage counted last, and the peak before it

    def _counts(self) -> tuple[Count, ...]:
        pools = (self.all_count, self.small_count, self.large_count)
        return (self.small_bytes, self.large_bytes, *pools)

    def forget_latest_peak(self) -> None:
        """Set the peak as it was before the last storage, for which there is no memory."""
        self.peak_bytes = self._latest[1]

    def reset_peak(self) -> None:
        """Begin the peak again with what is held."""
        self.peak_bytes = self.held_bytes
        for count in self._counts():
            count.reset(peak=True)

    def reset_totals(self) -> None:
        """Begin the totals again with what is held."""
        for count in self._counts():
            count.reset(peak=False)
        self.refusals = 0

    def hold(self, address: int, owner: Any, size_bytes: int) -> None:
        """Count a storage until it is freed, or its new size."""
        entry = self._known.get(address)
        if entry is not None and entry[1] == size_bytes:
            return
        if entry is not None:
            self._add(-entry[1], -1)
        super().hold(address, owner, size_bytes)
        self._add(size_bytes, 1)

    def release(self, address: int) -> None:
        """Stop counting a storage."""
        self._add(-self._known[address][1], -1)
        super().release(address)

    def _add(self, size_bytes: int, number: int) -> None:
        is_small = abs(size_bytes) <= _SMALL_BYTES
        (self.small_bytes if is_small else self.large_bytes).add(size_bytes)
        (self.small_count if is_small else self.large_count).add(number)
        self.all_count.add(number)

    def hold_arrays(self, arrays: Iterable[Array]) -> None:
        """Do nothing: tensors are counted when they are created, not when they are passed to
        calls.
        """

    def note(self, result: Any) -> None:
        """Count storages that an operator has created or resized."""
        for leaf in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and _has_bytes(leaf):
                storage = leaf.untyped_storage()
                address = storage._cdata
                memory = self.host if self.host.knows(address) else self
                self._latest = address, self.peak_bytes
                memory.hold(address, storage, storage.nbytes())

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Update the size of a known storage."""
        for memory in (self, self.host):
            if memory.knows(storage._cdata):
                self._latest = storage._cdata, self.peak_bytes
                memory.hold(storage._cdata, storage, storage.nbytes())

    def move(self, storage: torch.UntypedStorage, to_host: bool) -> None:
        """Count a storage in the memory of the host from now on, or of the GPU."""
        address, (latest, peak_before) = storage._cdata, self._latest
        old, new = (self, self.host) if to_host else (self.host, self)
        if old.knows(address):
            old.release(address)
            new.hold(address, storage, storage.nbytes())
        if to_host and address == latest:  # it was made there
            self.peak_bytes = max(peak_before, self.held_bytes)

    @property
    def host_peak_bytes(self) -> int:
        """Peak number of bytes in the memory of the host."""
        return self.host.peak_bytes


def _has_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory, or would have it if it were not fake."""
    if isinstance(tensor, FakeTensor):
        return bool(tensor.fake_device.type != "meta")
    return not tensor.is_meta


def resizing(
    standard: Callable[..., Any], current: Callable[[], TensorMemory | None]
) -> Callable[..., Any]:
    """``UntypedStorage.resize_``, by which FSDP frees gathered parameters without an operator."""

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        result = standard(storage, size)
        memory = current()
        if memory is not None:
            memory.resize(storage)
        return result

    return resize
