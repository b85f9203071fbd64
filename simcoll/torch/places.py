"""Where a script has placed its tensors: on the host, or on which GPU of its node.

All tensors of a run are on the CPU. The place is known of a tensor that a script makes or moves,
and of results of tensors with known places; of others it is unknown.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from simcoll.torch.rank_threads import RankThread

__all__ = ["HOST", "Places", "place_of"]

HOST = -1
"""The place of tensors in host memory; those of GPUs are their numbers."""

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


class Places:
    """The places of a rank's storages, as long as they live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def note(self, value: Any, place: int | None) -> None:
        """Note the place of a tensor, or of the tensors in a list; None: unknown."""
        if isinstance(value, (tuple, list)):
            for part in value:
                self.note(part, place)
        elif place is not None and _has_storage(value):
            storage = value.untyped_storage()
            address = storage._cdata

            def forget(_reference: object) -> None:
                self._known.pop(address, None)

            self._known[address] = weakref.ref(storage, forget), place

    def get(self, tensor: Any) -> int | None:
        """The place of a tensor; None if it is unknown."""
        if not _has_storage(tensor):
            return None
        entry = self._known.get(tensor.untyped_storage()._cdata)
        return None if entry is None else entry[1]

    def of_inputs(self, values: Any) -> int | None:
        """The place of the result of some tensors: that of one on a GPU, else the host's; None if
        one is unknown, or there is none.
        """
        places = [self.get(tensor) for tensor in _tensors(values)]
        numbers = [place for place in places if place is not None]
        return max(numbers) if numbers and len(numbers) == len(places) else None


def _has_storage(value: Any) -> bool:
    """Whether a value is a tensor with a storage of its own, and none of functorch's wrappers."""
    return (
        type(value) in _PLAIN
        and value.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def _tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among arguments, and in lists of them."""
    tensors: list[torch.Tensor] = []
    for value in values:
        parts = value if isinstance(value, (tuple, list)) else (value,)
        tensors += [part for part in parts if isinstance(part, torch.Tensor)]
    return tensors


def place_of(thread: RankThread, tensor: torch.Tensor) -> int | None:
    """The place that a rank's script has given a tensor; None if it is unknown."""
    places: Places | None = thread.process.places
    return None if places is None else places.get(tensor)
