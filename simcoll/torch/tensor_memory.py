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
    """

    __slots__ = ()

    def hold_arrays(self, arrays: Iterable[Array]) -> None:
        """Do nothing: tensors are counted when they are created, not when they are passed to
        calls.
        """

    def note(self, result: Any) -> None:
        """Count storages that an operator has created or resized."""
        for leaf in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                storage = leaf.untyped_storage()
                self.hold(storage._cdata, storage, storage.nbytes())

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Update the size of a known storage."""
        if self.knows(storage._cdata):
            self.hold(storage._cdata, storage, storage.nbytes())


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
