"""Where a script has placed its tensors: on the host, or on which GPU of its node.

All tensors of a run are on the CPU. The place is known of a tensor that a script makes or moves,
and of results of tensors with known places; of others it is unknown, and counts as a GPU's.

A script may make tensors without a device, on the host, and leave their move to PyTorch
(``fully_shard`` does that). So only those count as offloaded that were moved to the host, or made
there by name or in pinned memory, and what is computed from them alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from simcoll.torch.rank_threads import RankThread

__all__ = ["HOST", "PLAIN", "Places", "has_storage", "leaves_operators", "place_of"]

HOST = -1
"""The place of tensors in host memory; those of GPUs are their numbers."""

PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


class _StoragePlace(NamedTuple):
    reference: weakref.ref[Any]
    place: int
    offloaded: bool
    pinned: bool


class Places:
    """The places of a rank's storages, as long as they live.

    Parameters
    ----------
    moved
        Called with a storage, and whether it is offloaded now, when that changes.
    count_place
        Called with a storage, and whether it is known to be on the host now, when that changes.

    Attributes
    ----------
    offloaded
        The number of storages that are offloaded.
    of_module
        Where the script has last asked a module to move.
    gpus
        The GPUs on which tensors were placed.
    default_device
        The device of tensors that are made without one.
    of_default_type
        The place of what ``torch.Tensor(...)`` makes: that of the default type of tensors.
    registered
        The addresses of what was pinned in place.
    shards_on_gpus
        Whether the mesh that ``fully_shard`` was given last is one of GPUs.
    making
        The place of what the call in progress makes; None: that of its inputs.
    """

    def __init__(
        self,
        moved: Callable[[Any, bool], None] = lambda *_: None,
        count_place: Callable[[Any, bool], None] = lambda *_: None,
    ) -> None:
        self._known: dict[int, _StoragePlace] = {}
        self._moved, self._count_place = moved, count_place
        self.offloaded = 0
        self.of_module: int | None = None
        self.gpus: set[int] = set()
        self.registered: set[int] = set()
        self.default_device = torch.device("cpu")
        self.of_default_type = HOST
        self.shards_on_gpus = True
        self.making: int | None = None

    def note(
        self, value: Any, place: int | None, *, offloaded: bool = False, pinned: bool = False
    ) -> None:
        """Note the place of a tensor, or of the tensors in a list; None: unknown."""
        if isinstance(value, (tuple, list)):
            for part in value:
                self.note(part, place, offloaded=offloaded, pinned=pinned)
        elif place is not None and has_storage(value):
            self.note_storage(_storage(value), place, offloaded=offloaded, pinned=pinned)
        elif place is not None and isinstance(value, torch.Tensor) and value.is_sparse:
            self.note((value._indices(), value._values()), place)

    def note_storage(
        self, storage: Any, place: int, *, offloaded: bool = False, pinned: bool = False
    ) -> None:
        """Note the place of a storage."""
        address = storage._cdata
        old = self._known.get(address)
        if old is not None and place == old.place == HOST:
            offloaded, pinned = offloaded or old.offloaded, pinned or old.pinned
        was_offloaded = old is not None and old.offloaded
        reference = weakref.ref(storage, self._forgetting(address)) if old is None else old[0]
        self._known[address] = _StoragePlace(reference, place, offloaded, pinned)
        if place != HOST:
            self.gpus.add(place)
        if offloaded != was_offloaded:
            self.offloaded += 1 if offloaded else -1
            self._moved(storage, offloaded)
        if (place == HOST) != (old is not None and old.place == HOST):
            self._count_place(storage, place == HOST)

    def _forgetting(self, address: int) -> Callable[[object], None]:
        def forget(_reference: object) -> None:
            entry = self._known.pop(address, None)
            self.offloaded -= entry is not None and entry.offloaded

        return forget

    def forget_host(self, tensor: Any) -> None:
        """Note that a tensor that was made on the host may be on a GPU now."""
        entry = self._entry(tensor)
        if entry is not None and entry.place == HOST and not entry.offloaded:
            storage = _storage(tensor)
            del self._known[storage._cdata]
            self._count_place(storage, False)

    def _entry(self, tensor: Any) -> _StoragePlace | None:
        if not has_storage(tensor):
            return None
        return self._known.get(_storage(tensor)._cdata)

    def bytes_on(self, number: int) -> int:
        """The bytes of the live storages that are known to be on a GPU."""
        entries = [entry for entry in self._known.values() if entry.place == number]
        storages = [entry.reference() for entry in entries]
        return sum(storage.nbytes() for storage in storages if storage is not None)

    def get(self, tensor: Any) -> int | None:
        """The place of a tensor; None if it is unknown."""
        entry = self._entry(tensor)
        return None if entry is None else entry.place

    def of_storage(self, storage: Any) -> int | None:
        """The place of a storage; None if it is unknown."""
        entry = self._known.get(storage._cdata)
        return None if entry is None else entry.place

    def is_on_gpu(self, tensor: Any) -> bool:
        """Whether the script has placed a tensor on a GPU."""
        place = self.get(tensor)
        return place is not None and place != HOST

    def lies_on_host(self, tensor: Any) -> bool:
        """Whether a tensor is in the host's memory by a move or by name."""
        entry = self._entry(tensor)
        return entry is not None and entry.offloaded

    def in_pinned_memory(self, tensor: Any) -> bool:
        """Whether a tensor is in pinned memory of the host."""
        entry = self._entry(tensor)
        if entry is None:
            return False
        return entry.pinned or (
            bool(self.registered) and tensor.untyped_storage().data_ptr() in self.registered
        )

    def of_inputs(self, values: Any) -> int | None:
        """The place of the result of some tensors: that of one on a GPU, else the host's; None if
        one is unknown, or there is none.
        """
        places = [self.get(tensor) for tensor in _tensors(values)]
        numbers = [place for place in places if place is not None]
        return max(numbers) if numbers and len(numbers) == len(places) else None

    def differ(self, values: Any) -> bool:
        """Whether two tensors among arguments are on different devices."""
        places = [self.get(tensor) for tensor in _tensors(values)]
        return len(places) > 1 and len({place for place in places if place is not None}) > 1

    def computes_on_host(self, tensors: list[torch.Tensor]) -> bool:
        """Whether the host computes on these tensors: all are there, and one is offloaded."""
        entries = [self._entry(tensor) for tensor in tensors]
        on_host = all(entry is not None and entry.place == HOST for entry in entries)
        return on_host and any(entry is not None and entry.offloaded for entry in entries)


def leaves_operators(kind: type[Any]) -> bool:
    """Whether a class of tensors leaves operators to PyTorch, whatever functions it overrides."""
    standard = torch._C._disabled_torch_dispatch_impl
    return kind in PLAIN or getattr(kind, "__torch_dispatch__", None) is standard


def has_storage(value: Any) -> bool:
    """Whether a value is a tensor with a storage of its own, and none of functorch's wrappers."""
    kind = type(value)
    if kind in PLAIN:
        return _is_dense(value)
    if not leaves_operators(kind):
        return False
    with torch._C.DisableTorchFunctionSubclass():  # the program's class is not to see the questions
        return _is_dense(value)


def _is_dense(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    if type(tensor) in PLAIN:
        return tensor.untyped_storage()
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage()


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
