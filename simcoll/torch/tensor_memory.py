"""Memory accounting of a rank's tensors, by the storages that operators create."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from simcoll.arrays import Array
from simcoll.distributed.runtime.rank_memory import RankMemory

__all__ = ["TensorMemory", "resizing"]


class TensorMemory(RankMemory):
    """Bytes of the storages that a rank's operators have created. Fake tensors count as if they
    were real.

    Attributes
    ----------
    host
        Of those that the program has moved to the memory of the host, which do not count here.
    """

    __slots__ = ("_latest", "host")

    def __init__(self) -> None:
        super().__init__()
        self.host = RankMemory()
        self._latest = (0, 0)  # the storage counted last, and the peak before it

    def hold_arrays(self, arrays: Iterable[Array]) -> None:
        """Do nothing: tensors are counted when they are created, not when they are passed to
        calls.
        """

    def note(self, result: Any) -> None:
        """Count storages that an operator has created or resized."""
        for leaf in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                storage = leaf.untyped_storage()
                address = storage._cdata
                memory = self.host if self.host.knows(address) else self
                self._latest = address, self.peak_bytes
                memory.hold(address, storage, storage.nbytes())

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Update the size of a known storage."""
        for memory in (self, self.host):
            if memory.knows(storage._cdata):
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
