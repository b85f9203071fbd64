"""Checkpoints of tensors on simulated GPUs: PyTorch stages them in the host's memory.

Its loader copies ahead of the file on GPUs, and its stager copies storages, which no function of
tensors sees, to memory that it registers with CUDA by address.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.cuda import _pin_memory_utils
from torch.distributed.checkpoint import _state_dict_stager, filesystem

from simcoll.torch.places import HOST, Places
from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks, in_ranks

__all__ = ["staging_replacements"]


@for_ranks
def _copy_storage(
    thread: RankThread, standard: Any, self: Any, source: Any, non_blocking: bool | None = None
) -> Any:
    """Copy a storage, which the stager does from a GPU to the host."""
    places, watched = thread.process.places, thread.process.watched
    staging = sys._getframe(2).f_code.co_filename == _state_dict_stager.__file__
    if places is None or not staging or places.of_storage(source) == HOST:
        return standard(self, source, non_blocking)
    places.note_storage(self, HOST, offloaded=True)
    if watched is None:
        return standard(self, source, non_blocking)
    return watched.copy_over_pcie(
        "copy to the host",
        source.nbytes(),
        lambda: standard(self, source, non_blocking),
        wait=not (non_blocking and self.data_ptr() in places.registered),
    )


def _registrations() -> list[tuple[Any, str, Any]]:
    """Registration of memory with CUDA, and its end, which may come after the rank's thread."""
    registered: dict[int, Places] = {}
    unpin = _pin_memory_utils.unpin_memory

    def pin_memory(thread: RankThread, standard: Any, data_ptr: int, size: int) -> None:
        places = thread.process.places
        if places is None:
            standard(data_ptr, size)
            return
        places.registered.add(data_ptr)
        registered[data_ptr] = places

    def unpin_memory(data_ptr: int) -> None:
        places = registered.pop(data_ptr, None)
        if places is None:
            unpin(data_ptr)
        else:
            places.registered.discard(data_ptr)

    return [
        (_pin_memory_utils, "pin_memory", for_ranks(pin_memory)(_pin_memory_utils.pin_memory)),
        (_pin_memory_utils, "unpin_memory", unpin_memory),
    ]


def staging_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what checkpoints do on GPUs."""
    find = "_get_available_device_type"
    return [
        (filesystem, find, in_ranks(getattr(filesystem, find), lambda: "cuda")),
        (torch.UntypedStorage, "copy_", _copy_storage(torch.UntypedStorage.copy_)),
        *_registrations(),
    ]
