"""The memory of a rank's GPUs, as ``torch.cuda`` tells it: a caching allocator without a cache.

Tensors of unknown place are on the current device. What does not fit is an error, as on a GPU;
fake tensors always fit, since a run of them is to find out what they need.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from simcoll.torch.places import HOST, Places
from simcoll.torch.rank_threads import Process, current_thread
from simcoll.torch.tensor_memory import TensorMemory
from simcoll.training.gpu import Gpu

__all__ = [
    "GpuProperties",
    "MemoryQueries",
    "Shortage",
    "fit_shape",
    "out_of_memory",
    "shortage_of",
]

_PEAK_OF_ALL = "the rank has tensors on several GPUs, and the peak is that of all together"
_KIB = 1024
_summary = torch.cuda.memory_summary
_BYTES = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
_COUNTS = ("allocation", "active", "segment")
_POOLS = ("all", "small_pool", "large_pool")
_LIMITS = {
    (7, 0): (98304, 98304, 6 << 20),
    (8, 0): (167936, 166912, 40 << 20),
    (9, 0): (233472, 232448, 50 << 20),
    (10, 0): (233472, 232448, 126 << 20),
    (10, 3): (233472, 232448, 126 << 20),
}
"""Shared memory of a multiprocessor and of a block that asks for more, and the L2 cache, in bytes:
NVIDIA CUDA C++ programming guide, table of compute capabilities; data sheets of V100, A100, H100
and B200."""


def _text(size_bytes: int) -> str:
    """A size as CUDA's allocator prints it."""
    value, units = float(size_bytes), ("KiB", "MiB", "GiB")
    if size_bytes <= _KIB:
        return f"{size_bytes} bytes"
    for unit in units:
        value /= _KIB
        if value <= _KIB or unit == units[-1]:
            break
    return f"{value:.2f} {unit}"


class GpuProperties(SimpleNamespace):
    """The result of ``torch.cuda.get_device_properties``."""

    def __repr__(self) -> str:
        """As PyTorch shows it."""
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )

    @classmethod
    def of(
        cls, gpu: Gpu, name: str, capability: tuple[int, int], node: str, number: int
    ) -> GpuProperties:
        """Those of a GPU, by its number in a node."""
        major, minor = capability
        shared, shared_optin, cache = _LIMITS.get(capability, _LIMITS[9, 0])
        return cls(
            name=name,
            total_memory=gpu.memory_bytes,
            major=major,
            minor=minor,
            multi_processor_count=round(gpu.values.get("units.count", 1)),
            warp_size=32,
            max_threads_per_multi_processor=2048,
            max_threads_per_block=1024,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=shared_optin,
            shared_memory_per_multiprocessor=shared,
            L2_cache_size=cache,
            is_integrated=0,
            is_multi_gpu_board=0,
            gcnArchName=name,
            uuid=uuid.uuid5(uuid.NAMESPACE_OID, f"node {node} GPU {number}"),
            pci_bus_id=number + 1,
            pci_device_id=0,
            pci_domain_id=0,
        )


def _held_bytes(process: Process, number: int) -> int:
    """The bytes on a device of a process's tensors: on the current one, of all but those that are
    known to be on the host or on another.
    """
    places: Places = process.places
    if number != process.cuda_device:
        return places.bytes_on(number)
    elsewhere = sum(places.bytes_on(gpu) for gpu in places.gpus - {number})
    return max(0, int(process.watched.memory.all_pools.size_bytes) - elsewhere)


class MemoryQueries:
    """The functions of ``torch.cuda`` on memory.

    Parameters
    ----------
    number_of
        The number of a device that a script gives; of the current one for None.
    total_bytes
        The memory of a GPU.
    """

    def __init__(self, number_of: Callable[[Any], int], total_bytes: int) -> None:
        self._number_of = number_of
        self._total_bytes = total_bytes

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions, by their names in ``torch.cuda``."""
        return {
            **{f"memory_{kind}": self._size for kind in ("allocated", "reserved", "cached")},
            **{f"max_memory_{kind}": self._peak for kind in ("allocated", "reserved", "cached")},
            "memory_stats_as_nested_dict": self._statistics,
            "mem_get_info": self._free_and_total,
            "device_memory_used": lambda device=None: _node_bytes(self._number_of(device)),
            **dict.fromkeys(
                (
                    "reset_peak_memory_stats",
                    "reset_max_memory_allocated",
                    "reset_max_memory_cached",
                ),
                self._reset_peak,
            ),
            "reset_accumulated_memory_stats": self._reset_totals,
            "memory_summary": self._summary,
        }

    def _size(self, device: Any = None) -> int:
        return _held_bytes(current_thread().process, self._number_of(device))

    def _peak(self, device: Any = None) -> int:
        """The peak of a device: that of the rank, unless it has put tensors on others only."""
        number, process = self._number_of(device), current_thread().process
        gpus = process.places.gpus
        if number not in gpus and (gpus or number != process.cuda_device):
            return 0
        if gpus - {number}:
            current_thread().tell("torch.cuda.max_memory_allocated", _PEAK_OF_ALL)
        return int(process.watched.memory.all_pools.peak_bytes)

    def _free_and_total(self, device: Any = None) -> tuple[int, int]:
        taken_bytes = _node_bytes(self._number_of(device))
        return max(0, self._total_bytes - taken_bytes), self._total_bytes

    def _summary(self, device: Any = None, abbreviated: bool = False) -> str:
        # Of itself, PyTorch finds no current device.
        return str(_summary(self._number_of(device), abbreviated))

    def _reset_peak(self, device: Any = None) -> None:
        self._number_of(device)
        current_thread().process.watched.memory.reset_peak()

    def _reset_totals(self, device: Any = None) -> None:
        self._number_of(device)
        current_thread().process.watched.memory.reset_totals()

    def _statistics(self, device: Any = None) -> dict[str, Any]:
        """``memory_stats``: those of the rank's tensors, of which none are kept after their end."""
        held_bytes, peak_bytes = self._size(device), self._peak(device)
        memory: TensorMemory = current_thread().process.watched.memory
        pools = memory.small_pool, memory.large_pool
        of_pools = [_row(pool.size_bytes, pool.peak_bytes, pool.added_bytes) for pool in pools]
        of_all = _row(held_bytes, peak_bytes, memory.all_pools.added_bytes)
        byte_pools = dict(zip(_POOLS, (of_all, *of_pools), strict=True))
        counts = [_row(pool.count, pool.peak, pool.added) for pool in (memory.all_pools, *pools)]
        count_of_all = counts[0]
        count_pools = dict(zip(_POOLS, counts, strict=True))
        nothing = _row(0, 0, 0)
        return {
            **dict.fromkeys(_BYTES, byte_pools),
            **dict.fromkeys(_COUNTS, count_pools),
            **dict.fromkeys(
                ("inactive_split", "inactive_split_bytes"), dict.fromkeys(_POOLS, nothing)
            ),
            **dict.fromkeys(("oversize_allocations", "oversize_segments"), nothing),
            "max_split_size": -1,
            "num_alloc_retries": memory.refusals,
            "num_ooms": memory.refusals,
            "num_oom_rejections": 0,
            "num_sync_all_streams": 0,
            "num_device_alloc": count_of_all["allocated"],
            "num_device_free": count_of_all["freed"],
        }


def _row(current: int, peak: int, added: int) -> dict[str, int]:
    return {"current": current, "peak": peak, "allocated": added, "freed": added - current}


def _node_bytes(number: int) -> int:
    """The bytes of all processes of a node on one of its devices."""
    me = current_thread().process
    mates = (mate for mate in me.mates if mate.places is not None)
    return sum(_held_bytes(mate, number) for mate in mates)


class Shortage(NamedTuple):
    """Memory that a GPU lacks: the process, the GPU, the new bytes, and those that are held."""

    process: Process
    number: int
    new_bytes: int
    held_bytes: int


def shortage_of(process: Process, tensors: list[torch.Tensor], new_bytes: int) -> Shortage | None:
    """The shortage if what an operator has made of tensors, or of none, does not fit on its GPU."""
    places: Places = process.places
    if _goes_to_host(places, tensors):
        return None
    number = process.cuda_device if places.making is None else places.making
    memory: TensorMemory = process.watched.memory
    held_bytes = _held_bytes(process, number)
    if number == process.cuda_device:  # where it counts as long as its place is unknown
        held_bytes -= new_bytes
    if held_bytes + new_bytes <= memory.limit_bytes:
        return None
    memory.forget_latest_peak()
    return Shortage(process, number, new_bytes, held_bytes)


def fit_shape(process: Process, shape: list[int], dtype: torch.dtype | None) -> None:
    """Raise the same error for a tensor of a shape that an operator is about to make.

    Raises
    ------
    torch.OutOfMemoryError
        With the text of CUDA's allocator.
    """
    memory: TensorMemory = process.watched.memory
    size_bytes = math.prod(shape) * (dtype or torch.get_default_dtype()).itemsize
    if memory.held_bytes + size_bytes <= memory.limit_bytes or _goes_to_host(process.places, []):
        return
    places: Places = process.places
    number = process.cuda_device if places.making is None else places.making
    held_bytes = _held_bytes(process, number)
    if held_bytes + size_bytes > memory.limit_bytes:
        raise out_of_memory(Shortage(process, number, size_bytes, held_bytes))


def _goes_to_host(places: Places, tensors: list[torch.Tensor]) -> bool:
    place = places.of_inputs(tensors) if places.making is None else places.making
    return place == HOST


def out_of_memory(shortage: Shortage) -> torch.OutOfMemoryError:
    """The error with the text of CUDA's allocator."""
    number, held_bytes = shortage.number, shortage.held_bytes
    memory: TensorMemory = shortage.process.watched.memory
    total = int(torch.cuda.get_device_properties(number).total_memory)
    allowed = f"{_text(memory.limit_bytes)} allowed; " if memory.limit_bytes < total else ""
    memory.refusals += 1
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {_text(shortage.new_bytes)}. GPU {number} has a "
        f"total capacity of {_text(total)} of which {_text(max(0, total - held_bytes))} is free. "
        f"Including non-PyTorch memory, this process has {_text(held_bytes)} memory in use. "
        f"{allowed}Of the allocated memory {_text(held_bytes)} is allocated by PyTorch, and "
        "0 bytes is reserved by PyTorch but unallocated."
    )
