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

__all__ = ["Pool", "TensorMemory", "resizing"]

_SMALL_BYTES = 1 << 20
"""The largest storage in the small pool of CUDA's allocator."""
_CONTAINERS = frozenset((list, tuple))
"""Types of the results of operators with several tensors."""


class Pool:
    """Storages of one pool of CUDA's allocator: their bytes and number now, the peaks, and all that
    were ever added.
    """

    __slots__ = ("_peaks", "added", "added_bytes", "count", "peak", "peak_bytes", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = self.peak_bytes = self.added_bytes = 0
        self.count = self.peak = self.added = 0
        self._peaks = 0, 0  # before the last storage

    def add(self, size_bytes: int) -> None:
        """Count a storage."""
        self._peaks = self.peak_bytes, self.peak
        self.added_bytes += size_bytes
        self.size_bytes = size = self.size_bytes + size_bytes
        self.peak_bytes = max(self.peak_bytes, size)
        self.added += 1
        self.count = count = self.count + 1
        self.peak = max(self.peak, count)

    def remove(self, size_bytes: int) -> None:
        """Count a storage no longer."""
        self.size_bytes -= size_bytes
        self.count -= 1

    def forget_latest_peak(self) -> None:
        """Set the peaks as they were before the last storage."""
        self.peak_bytes, self.peak = self._peaks

    def retract(self, size_bytes: int) -> None:
        """Undo the addition of the last storage."""
        self.remove(size_bytes)
        self.forget_latest_peak()
        self.added_bytes -= size_bytes
        self.added -= 1

    def reset_peak(self) -> None:
        """Begin the peaks again with what is there."""
        self.peak_bytes, self.peak = self.size_bytes, self.count

    def reset_totals(self) -> None:
        """Begin what was ever added again with what is there."""
        self.added_bytes, self.added = self.size_bytes, self.count


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
    all_pools, small_pool, large_pool
        The storages, and the same by size, but for those on the host.
    """

    __slots__ = (
        "_added",
        "_latest",
        "_on_host",
        "all_pools",
        "host",
        "large_pool",
        "limit_bytes",
        "refusals",
        "small_pool",
    )

    def __init__(self) -> None:
        super().__init__()
        self.host = RankMemory()
        self.limit_bytes = sys.maxsize
        self.refusals = 0
        self.all_pools, self.small_pool, self.large_pool = Pool(), Pool(), Pool()
        self._latest = (0, 0)  # the storage counted last, and the peak before it
        self._added = 0  # the storage that was last added to pools
        self._on_host: set[int] = set()

    def forget_latest_peak(self) -> None:
        """Set the peak as it was before the last storage, for which there is no memory."""
        address, self.peak_bytes = self._latest
        if address == self._added:
            for pool in self._pools(self._known[address][1]):
                pool.forget_latest_peak()

    def reset_peak(self) -> None:
        """Begin the peak again with what is held."""
        self.peak_bytes = self.held_bytes
        for pool in (self.all_pools, self.small_pool, self.large_pool):
            pool.reset_peak()

    def reset_totals(self) -> None:
        """Begin the totals again with what is held."""
        for pool in (self.all_pools, self.small_pool, self.large_pool):
            pool.reset_totals()
        self.refusals = 0

    def hold(self, address: int, owner: Any, size_bytes: int) -> None:
        """Count a storage until it is freed, or its new size."""
        entry = self._known.get(address)
        if entry is not None:
            if entry[1] == size_bytes:
                return
            self._remove(address, entry[1])
        super().hold(address, owner, size_bytes)
        self._add(address, size_bytes)

    def release(self, address: int) -> None:
        """Stop counting a storage."""
        self._remove(address, self._known[address][1])
        self._on_host.discard(address)
        super().release(address)

    def _pools(self, size_bytes: int) -> tuple[Pool, Pool]:
        of_size = self.small_pool if size_bytes <= _SMALL_BYTES else self.large_pool
        return self.all_pools, of_size

    def _add(self, address: int, size_bytes: int) -> None:
        if address not in self._on_host:
            self._added = address
            for pool in self._pools(size_bytes):
                pool.add(size_bytes)

    def _remove(self, address: int, size_bytes: int) -> None:
        if address not in self._on_host:
            for pool in self._pools(size_bytes):
                pool.remove(size_bytes)

    def hold_arrays(self, arrays: Iterable[Array]) -> None:
        """Do nothing: tensors are counted when they are created, not when they are passed to
        calls.
        """

    def note(self, result: Any) -> None:
        """Count storages that an operator has created or resized."""
        if isinstance(result, torch.Tensor):
            leaves: Iterable[Any] = (result,)
        elif type(result) in _CONTAINERS:  # tree_leaves asks six questions about each tensor
            leaves = result
        else:
            leaves = tree_leaves(result)
        for leaf in leaves:
            if type(leaf) in _CONTAINERS:
                self.note(leaf)
            elif (
                isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and _has_bytes(leaf)
            ):
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
            if to_host:
                self.place(storage, on_host=True)
            old.release(address)
            new.hold(address, storage, storage.nbytes())
        if to_host and address == latest:  # it was made there
            self.peak_bytes = max(peak_before, self.held_bytes)

    def place(self, storage: torch.UntypedStorage, *, on_host: bool) -> None:
        """Leave a storage of the host out of the pools, or count it there again. In the memory of
        the rank it stays, since PyTorch may move it without a word.
        """
        address = storage._cdata
        entry = self._known.get(address)
        if entry is None or on_host == (address in self._on_host):
            return
        size_bytes = entry[1]
        if not on_host:
            self._on_host.remove(address)
            self._add(address, size_bytes)
            return
        if address == self._added:  # it was made there
            for pool in self._pools(size_bytes):
                pool.retract(size_bytes)
            self._added = 0
        else:
            self._remove(address, size_bytes)
        self._on_host.add(address)

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
