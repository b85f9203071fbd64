"""Functions of ``torch.cuda`` on what only the hardware has: sensors, handles, allocators, tuning.

Those with an answer in a simulated run give it; the others are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import collective_utils

from simcoll.errors import ConfigError
from simcoll.torch.rank_threads import current_thread
from simcoll.torch.replacing import in_ranks

__all__ = ["CudaGenerator", "hardware_replacements"]

_SENSOR = "reads a sensor of a GPU, and a simulated one has none"
_HANDLE = "gives access to the driver's objects, and no GPU runs: use PyTorch's operators"
_ALLOCATOR = "is for the allocator of a GPU's memory, and tensors of a run are in host memory"
_ALLOCATORS = (
    "caching_allocator_delete change_current_allocator CUDAPluggableAllocator memory_snapshot "
    "use_mem_pool"
)
_HANDLES = (
    "current_blas_handle current_solver_handle get_stream_from_external check_error GreenContext "
    "export_dot export_graph_data"
)
_SEVERAL = "works on several GPUs of one process: use torch.distributed or torch.cuda.comm"
_TUNING = "measures kernels of a GPU, and no GPU runs"

_REFUSED = (
    (torch.cuda, _SENSOR, "memory_usage utilization temperature power_draw clock_rate"),
    (
        torch.cuda,
        _HANDLE,
        _HANDLES,
    ),
    (
        torch.cuda,
        _ALLOCATOR,
        _ALLOCATORS,
    ),
    (torch.cuda.nccl, _SEVERAL, " ".join([*torch.cuda.nccl.__all__, "unique_id", "init_rank"])),
    (torch.cuda.tunable, _TUNING, " ".join(torch.cuda.tunable.__all__)),
    (torch.accelerator, "records kernels of a GPU, and no GPU runs", "Graph"),
    (
        torch.accelerator,
        "lists the types that a GPU's kernels take: see torch.cuda.get_device_capability",
        "get_device_capability",
    ),
)
_SWITCHES = ("is_enabled", "tuning_is_enabled", "record_untuned_is_enabled")
_NOTHING = (
    (torch.cuda, "reset_accumulated_host_memory_stats reset_peak_host_memory_stats"),
    (torch.accelerator, "empty_cache empty_host_cache"),
)
_SYNC_MODES = {"default": 0, "warn": 1, "error": 2}


class CudaGenerator(torch._C.Generator):
    """A generator of random numbers for a GPU, on the CPU's algorithm."""

    index = 0

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return torch.device("cuda", self.index)

    def get_offset(self) -> int:
        """Refuse: the numbers of a run are not counted as a GPU's."""
        raise ConfigError(
            "torch.Generator.get_offset counts the random numbers of a GPU's algorithm, and a run "
            "draws them with the CPU's: save and restore get_state()"
        )

    def set_offset(self, offset: int) -> None:
        """Refuse, as :meth:`get_offset`."""
        raise ConfigError(
            f"torch.Generator.set_offset({offset}) counts the random numbers of a GPU's algorithm, "
            "and a run draws them with the CPU's: save and restore get_state()"
        )


class _RankSettings:
    """Values that ranks set and read again."""

    def __init__(self) -> None:
        self._values: dict[int, dict[str, Any]] = {}

    def _of_rank(self) -> dict[str, Any]:
        return self._values.setdefault(current_thread().number, {})

    def set_sync_mode(self, debug_mode: int | str) -> None:
        """Note the mode, whose warnings a run has no cause for."""
        mode = (
            _SYNC_MODES.get(debug_mode, debug_mode) if isinstance(debug_mode, str) else debug_mode
        )
        if mode not in _SYNC_MODES.values():
            raise RuntimeError(
                f"invalid value of debug_mode, expected one of `default`, `warn`, `error`, got "
                f"{debug_mode!r}"
            )
        self._of_rank()["sync"] = mode

    def sync_mode(self) -> int:
        """The mode that was set; 0 otherwise."""
        return int(self._of_rank().get("sync", 0))

    def set_fraction(self, fraction: float, device: Any = None) -> None:
        """Note the part of a GPU's memory that tensors may take."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self._of_rank()["fraction"] = fraction
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        current_thread().process.watched.memory.limit_bytes = int(fraction * total_bytes)

    def fraction(self, device: Any = None) -> float:
        """The part that was set; 1.0 otherwise."""
        del device
        return float(self._of_rank().get("fraction", 1.0))


def _refusal(owner: Any, name: str, reason: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ConfigError(f"{owner.__name__}.{name} {reason}")

    return refuse


def _false(*_: Any, **__: Any) -> bool:
    return False


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def hardware_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of these functions, where scripts see GPUs."""
    cuda, settings = torch.cuda, _RankSettings()
    changes: list[tuple[Any, str, Any]] = [
        (owner, name, _refusal(owner, name, reason))
        for owner, reason, names in _REFUSED
        for name in names.split()
        if not (owner is cuda.tunable and name in _SWITCHES)
    ]
    changes += [(cuda.tunable, name, _false) for name in _SWITCHES]
    changes += [(owner, name, _nothing) for owner, names in _NOTHING for name in names.split()]
    changes += [
        (cuda, "get_allocator_backend", lambda: "native"),
        # It reads seed and offset in the state of a GPU's generator, which is the CPU's here.
        (collective_utils, "_check_philox_rng_sync", collective_utils._check_cpu_rng_sync),
        (cuda, "get_sync_debug_mode", settings.sync_mode),
        (cuda, "set_sync_debug_mode", settings.set_sync_mode),
        (cuda, "get_per_process_memory_fraction", settings.fraction),
        (cuda, "set_per_process_memory_fraction", settings.set_fraction),
    ]
    return [
        (owner, name, in_ranks(getattr(owner, name), value))
        for owner, name, value in changes
        if hasattr(owner, name)
    ]
