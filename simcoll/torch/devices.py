"""CUDA devices of scripts that were written for GPUs: they are the CPU, where that has a meaning, and refused where not.

``torch.cuda.is_available()`` is False as ever, so that scripts which ask choose the CPU. Those that do not ask get, in the threads of
ranks: tensors and modules on the CPU for every ``cuda`` device, the device numbers and counts of their node, events on the simulated
clock, and autocast for the CPU. Streams, graphs and kernels are refused in words.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed import device_mesh, fsdp
from torch.overrides import TorchFunctionMode

from simcoll import distributed as ours
from simcoll.errors import ConfigError
from simcoll.torch.rank_threads import current_thread, current_thread_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CudaIsCpu", "device_replacements"]

_REFUSED = (
    "Stream", "ExternalStream", "CUDAGraph", "graph", "make_graphed_callables", "current_stream", "default_stream", "stream",
    "_compile_kernel", "_compile_kernel_from_file",
)  # fmt: skip
_NOTHING = (
    "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated", "init", "manual_seed",
    "manual_seed_all",
)  # fmt: skip


def _is_cuda(given: object) -> bool:
    if isinstance(given, torch.device):
        return bool(given.type == "cuda")
    return isinstance(given, str) and given.partition(":")[0] == "cuda"


def _mapped(given: Any) -> Any:
    return torch.device("cpu") if _is_cuda(given) else given


class CudaIsCpu(TorchFunctionMode):
    """While it is active, tensors that ask for a CUDA device are on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch with the CPU as its device."""
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda or func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.record_stream:
            return None
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if func is torch.Tensor.to:
            args = (args[0], *map(_mapped, args[1:]))
        return func(*args, **kwargs)


class Event:
    """``torch.cuda.Event`` on the simulated clock."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._seconds: float | None = None

    def record(self, stream: Any = None) -> None:  # noqa: ARG002  # torch's signature
        """Note the simulated time."""
        self._seconds = current_thread().call(ours.emulated_time)

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds until another event; a ValueError unless both have been recorded."""
        if self._seconds is None or other._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (other._seconds - self._seconds) * 1e3

    def synchronize(self) -> None:
        """Do nothing: the CPU has computed already."""

    def query(self) -> bool:
        """True: the CPU has computed already."""
        return True

    wait = synchronize


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ConfigError(
            f"torch.cuda.{name} has no meaning in a simulated run: its ranks compute on the CPU, one operator after another; "
            "collectives overlap computation by async_op=True"
        )

    return refuse


def _in_ranks(standard: Any, other: Any) -> Any:
    """A function, or a class, that is another one in the threads of ranks."""
    if isinstance(standard, type):

        def new(_cls: type, *args: Any, **kwargs: Any) -> Any:
            return (standard if current_thread_or_none() is None else other)(*args, **kwargs)

        return type(standard.__name__, (), {"__new__": new, "__doc__": standard.__doc__})

    def function(*args: Any, **kwargs: Any) -> Any:
        return (standard if current_thread_or_none() is None else other)(*args, **kwargs)

    return functools.update_wrapper(function, standard, updated=())


def _variable(name: str) -> Callable[..., int]:
    return lambda *_: int(current_thread().process.environment[name])


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


@contextlib.contextmanager
def _no_device(*_: Any) -> Iterator[None]:
    yield


def _with(standard: Callable[..., Any], changed: Callable[[dict[str, Any]], None]) -> Any:
    """A function whose keyword arguments, and positional devices, are changed in ranks."""

    @functools.wraps(standard)
    def function(*args: Any, **kwargs: Any) -> Any:
        if current_thread_or_none() is not None:
            args = tuple("cpu" if _is_cuda(arg) and isinstance(arg, str) else _mapped(arg) for arg in args)
            changed(kwargs)
        return standard(*args, **kwargs)

    return function


def _devices_dropped(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(kwargs: dict[str, Any]) -> None:
        for name in names:
            kwargs.pop(name, None)

    return change


def _devices_named(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(kwargs: dict[str, Any]) -> None:
        for name in names:
            if isinstance(kwargs.get(name), str) and _is_cuda(kwargs[name]):
                kwargs[name] = "cpu"
            elif _is_cuda(kwargs.get(name)):
                kwargs[name] = torch.device("cpu")

    return change


def _on_cpu(kwargs: dict[str, Any]) -> None:
    if kwargs.get("device_id") is not None:
        kwargs["device_id"] = torch.device("cpu")


def device_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what scripts call for CUDA devices."""
    cuda, accelerator, amp = torch.cuda, torch.accelerator, torch.amp
    local, count = _variable("LOCAL_RANK"), _variable("LOCAL_WORLD_SIZE")
    plain: list[tuple[Any, str, Any]] = [
        *((cuda, name, _nothing) for name in _NOTHING),
        *((cuda, name, _refused(name)) for name in _REFUSED),
        (cuda, "current_device", local),
        (cuda, "device_count", count),
        (cuda, "device", _no_device),
        (cuda, "get_device_name", lambda *_: "simulated GPU"),
        (cuda, "Event", Event),
        (accelerator, "set_device_index", _nothing),
        (accelerator, "current_device_index", local),
        (accelerator, "synchronize", _nothing),
    ]
    drop, name = _devices_dropped, _devices_named
    changed: list[tuple[Any, str, Callable[[dict[str, Any]], None]]] = [
        (torch.nn.parallel.DistributedDataParallel, "__init__", drop("device_ids", "output_device")),
        (fsdp.FullyShardedDataParallel, "__init__", _on_cpu),
        (device_mesh.DeviceMesh, "__init__", name("device_type")),
        (device_mesh, "init_device_mesh", name("device_type")),
        (distributed, "init_device_mesh", name("device_type")),
        (distributed, "init_process_group", drop("device_id")),
        (amp.autocast_mode.autocast, "__init__", name("device_type")),
        (amp.grad_scaler.GradScaler, "__init__", name("device")),
        (torch, "load", name("map_location")),
    ]
    return [
        *((owner, key, _in_ranks(getattr(owner, key), value)) for owner, key, value in plain if hasattr(owner, key)),
        *((owner, key, _with(getattr(owner, key), change)) for owner, key, change in changed),
    ]
