"""``torch.cuda`` and ``torch.accelerator`` in ranks, for the GPUs of the simulated node.

Device numbers and counts are those of the rank's node. Operators on real tensors run on the CPU in
program order, so streams have no effect there; with a time model, streams of fake tensors are those
of :mod:`simcoll.torch.compute_time`. Events read the simulated clock. Functions that launch custom
kernels are refused.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from simcoll.distributed.runtime.tasks import wait_until
from simcoll.errors import ConfigError
from simcoll.torch.callers import finds_gpus
from simcoll.torch.cuda_hardware import hardware_replacements
from simcoll.torch.cuda_memory import GpuProperties, MemoryQueries
from simcoll.torch.cuda_streams import (
    AcceleratorEvent,
    AcceleratorStream,
    CudaEvent,
    CudaStream,
    StreamContext,
    current_stream,
    current_stream_of_torch,
    default_stream,
    set_stream,
    stream_of_torch,
)
from simcoll.torch.rank_threads import current_thread, current_thread_or_none
from simcoll.torch.replacing import by_signature, in_ranks
from simcoll.training.gpu import load_gpu

__all__ = [
    "GeneratorsOfNode",
    "accelerator_replacements",
    "add_bindings",
    "current_device",
    "device_number",
    "gpu_count",
]

_REFUSED = (
    "ExternalStream",
    "CUDAGraph",
    "graph",
    "graph_pool_handle",
    "make_graphed_callables",
    "cudart",
    "caching_allocator_alloc",
    "MemPool",
    "_compile_kernel",
    "_compile_kernel_from_file",
)
_NOTHING = (
    "empty_cache",
    "init",
    "ipc_collect",
    "seed",
    "seed_all",
)
_NVTX = ("range_push", "range_pop", "range_start", "range_end", "mark")
_CAPABILITY = {
    "v100": (7, 0),
    "a100": (8, 0),
    "h100": (9, 0),
    "h200": (9, 0),
    "b200": (10, 0),
    "gb200": (10, 0),
    "b300": (10, 3),
    "gb300": (10, 3),
}


def _in_programs(
    standard: Callable[..., Any], replacement: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that is another one for callers outside PyTorch, which itself computes on the
    CPU.
    """

    @functools.wraps(standard)
    def function(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        simulated = finds_gpus(caller) and current_thread_or_none() is not None
        return (replacement if simulated else standard)(*args, **kwargs)

    return function


def _current_accelerator(check_available: bool = False) -> torch.device:  # noqa: ARG001
    return torch.device("cuda")


def gpu_count() -> int:
    """The number of GPUs of the rank's node."""
    return int(current_thread().process.environment["LOCAL_WORLD_SIZE"])


def current_device() -> int:
    """The number of the rank's current device; initially 0."""
    return current_thread().process.cuda_device


def device_number(device: Any) -> int:
    """The number of an existing device.

    Raises
    ------
    RuntimeError
        When the node has fewer.
    """
    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else device
    index = getattr(index, "idx", index)  # torch.cuda.device, which selects one
    if index is None or int(index) < 0:
        return current_device()
    if int(index) >= gpu_count():
        thread = current_thread()
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: rank {thread.number} asks for device "
            f"{int(index)}, and its node has {gpu_count()}, 0 .. "
            f"{gpu_count() - 1}; a rank's own is LOCAL_RANK, "
            f"{thread.process.environment['LOCAL_RANK']}"
        )
    return int(index)


def _set_device(device: Any) -> None:
    if not isinstance(device, int) or device >= 0:
        process = current_thread().process
        process.cuda_device = device_number(device)
        process.selected_device = True


def _exchange_device(device: int) -> int:
    """Change the current device; returns the previous one, as ``torch.cuda.device`` asks."""
    previous = current_device()
    _set_device(device)
    return previous


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    current_thread().process.stream_races.record(tensor, stream.key)


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ConfigError(
            f"torch.cuda.{name} has no meaning in a simulated run: its ranks compute on the CPU, "
            "one operator after another; "
            "without GPUs (--device cpu) a script may choose another way"
        )

    return refuse


def _synchronize() -> None:
    thread = current_thread()
    works = thread.process.flights.on_gpu()
    for work in works:
        thread.call(work.wait)
    thread.process.flights.land(works)
    thread.process.stream_races.synchronize()
    if thread.process.device is not None:
        thread.call(wait_until, thread.process.device.tail())


def _sleep(cycles: int) -> None:
    """A kernel that does nothing for so many nanoseconds: the clock of a GPU is not modelled."""
    process, duration_fs = current_thread().process, round(cycles * 1e6)
    streams = process.cuda_streams
    if process.device is None and streams is not None and streams.several:
        process.stream_races.hold(duration_fs)
    else:
        process.watched.add("sleep", duration_fs, fake=True)


def _stream_numbers(device_index: int) -> tuple[int, int, int]:
    """The numbers of a device's current stream, as :func:`_set_stream` takes them."""
    stream = current_stream(device_index)
    return stream.stream_id, stream.device_index, stream.device_type


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    set_stream(CudaStream(stream_id=stream_id, device_index=device_index, device_type=device_type))


def add_bindings(undo: contextlib.ExitStack) -> None:
    """Give ``torch._C`` the functions of streams and devices under ``torch.cuda``, which some
    programs and PyTorch's test tools call: PyTorch for the CPU lacks them, and those of PyTorch for
    CUDA want a driver.
    """
    for name, function in _BINDINGS.items():
        if hasattr(torch._C, name):
            standard = getattr(torch._C, name)
            setattr(torch._C, name, in_ranks(standard, function))
            undo.callback(setattr, torch._C, name, standard)
        else:
            setattr(torch._C, name, function)
            undo.callback(delattr, torch._C, name)


def _properties(gpu: str) -> Callable[..., Any]:
    """The function ``torch.cuda.get_device_properties``."""

    def properties(device: Any = None) -> GpuProperties:
        number = device_number(current_device() if device is None else device)
        capability = _CAPABILITY.get(gpu.partition("-")[0], (9, 0))
        node = current_thread().process.environment["GROUP_RANK"]
        return GpuProperties.of(load_gpu(gpu), _name(gpu), capability, node, number)

    return properties


def _name(gpu: str) -> str:
    """The device name, such as ``NVIDIA H100 (simulated)``."""
    return (
        f"{'NVIDIA ' if gpu.partition('-')[0] in _CAPABILITY else ''}{Path(gpu).stem.upper()} "
        "(simulated)"
    )


_BINDINGS: dict[str, Callable[..., Any]] = {
    "_cuda_clearCublasWorkspaces": _nothing,
    "_cuda_emptyCache": _nothing,
    "_cuda_getCurrentRawStream": lambda device_index: current_stream(device_index).cuda_stream,
    "_cuda_getCurrentStream": _stream_numbers,
    "_cuda_getDevice": current_device,
    "_cuda_setDevice": _set_device,
    "_cuda_setStream": _set_stream,
    "_cuda_sleep": _sleep,
    "_cuda_synchronize": _synchronize,
}


def accelerator_replacements(gpu: str) -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions that query GPUs.

    Parameters
    ----------
    gpu
        A shipped GPU, or a file, which gives name and memory.
    """
    cuda, accelerator, properties = torch.cuda, torch.accelerator, _properties(gpu)
    memory = MemoryQueries(device_number, load_gpu(gpu).memory_bytes).functions()

    def capability(device: Any = None) -> tuple[int, int]:
        described = properties(device)
        return described.major, described.minor

    queries: list[tuple[Any, str, Callable[..., Any]]] = [
        (cuda, "is_available", lambda: True),
        (cuda, "is_initialized", lambda: True),
        (accelerator, "is_available", lambda: True),
        (accelerator, "device_count", gpu_count),
        (accelerator, "current_accelerator", _current_accelerator),
        (torch._C, "_get_accelerator", _current_accelerator),
        (distributed, "is_nccl_available", lambda: True),
    ]
    in_rank_threads: list[tuple[Any, str, Any]] = [
        *((cuda, name, _nothing) for name in _NOTHING),
        *((cuda, name, _refusal(name)) for name in _REFUSED),
        *((cuda.nvtx, name, _nothing) for name in _NVTX),
        (cuda.nvtx, "range", _range),
        *((cuda.profiler, name, _nothing) for name in ("start", "stop")),
        (cuda.memory, "_record_memory_history", _nothing),
        *(
            (cuda.memory, name, _refusal(f"memory.{name}"))
            for name in ("_snapshot", "_dump_snapshot")
        ),
        (cuda, "can_device_access_peer", lambda *_: True),
        (cuda, "is_current_stream_capturing", lambda: False),
        (cuda, "device_count", gpu_count),
        (cuda, "current_device", current_device),
        (cuda, "set_device", _set_device),
        *(
            (cuda, name, _exchange_device)
            for name in ("_exchange_device", "_maybe_exchange_device")
        ),
        (cuda, "synchronize", _synchronize),
        (cuda, "_sleep", _sleep),
        (cuda, "get_device_name", lambda device=None: properties(device).name),
        (cuda, "get_device_capability", capability),
        (cuda, "get_device_properties", properties),
        *((owner, name, memory[name]) for owner in (cuda, accelerator) for name in memory),
        (accelerator, "memory_stats", lambda device_index=None: cuda.memory_stats(device_index)),
        (accelerator, "get_memory_info", memory["mem_get_info"]),
        (cuda, "is_bf16_supported", lambda: properties().major >= 8),
        *((cuda, name, _seed) for name in ("manual_seed", "manual_seed_all")),
        (cuda, "initial_seed", torch.initial_seed),
        (cuda, "get_rng_state", _rng_state),
        (cuda, "get_rng_state_all", lambda: [_rng_state() for _ in range(gpu_count())]),
        (cuda, "set_rng_state", torch.set_rng_state),
        (cuda, "set_rng_state_all", lambda new_states: torch.set_rng_state(new_states[0])),
        (cuda, "_lazy_init", _nothing),
        (cuda, "_lazy_call", _call_now),
        (cuda, "current_stream", current_stream),
        (cuda, "default_stream", default_stream),
        (cuda, "set_stream", set_stream),
        (torch.cpu, "Stream", stream_of_torch),
        (torch.cpu, "current_stream", current_stream_of_torch),
        (torch.Tensor, "record_stream", _record_stream),
        (accelerator, "set_device_index", _set_device),
        (accelerator, "set_device_idx", _set_device),
        (accelerator, "current_device_index", current_device),
        (accelerator, "current_device_idx", current_device),
        (accelerator, "synchronize", _synchronize),
        (accelerator, "current_stream", current_stream),
        (accelerator, "set_stream", set_stream),
    ]
    classes = [
        (cuda, "StreamContext", StreamContext),
        (cuda, "stream", StreamContext),
        (cuda, "Event", CudaEvent),
        (cuda, "Stream", CudaStream),
        (torch, "Event", AcceleratorEvent),
        (torch, "Stream", AcceleratorStream),
    ]
    replaced = [
        *classes,
        *((owner, key, _in_programs(getattr(owner, key), value)) for owner, key, value in queries),
        *(
            (owner, key, in_ranks(getattr(owner, key), by_signature(getattr(owner, key), value)))
            for owner, key, value in in_rank_threads
            if hasattr(owner, key)
        ),
        *hardware_replacements(),
    ]
    return [*replaced, *_in_their_modules(replaced)]


def _rng_state() -> torch.Tensor:
    return torch.get_rng_state()  # as it is replaced


def _in_their_modules(replaced: list[tuple[Any, str, Any]]) -> list[tuple[Any, str, Any]]:
    """The same functions in the modules of ``torch.cuda`` that define them, by whose names programs
    call them too (``torch.cuda.random.get_rng_state``).
    """
    modules = [module for name, module in sys.modules.items() if name.startswith("torch.cuda.")]
    return [
        (module, key, value)
        for owner, key, value in replaced
        if owner is torch.cuda
        for module in modules
        if vars(module).get(key) is getattr(owner, key)
    ]


class GeneratorsOfNode(Sequence[torch.Generator]):
    """``torch.cuda.default_generators``: in ranks, the generator of the CPU for every GPU."""

    def __len__(self) -> int:
        """The number of GPUs of the node."""
        return 0 if current_thread_or_none() is None else gpu_count()

    def __getitem__(self, index: Any) -> Any:
        """The generator of a GPU."""
        return ((torch.default_generator,) * len(self))[index]


def _seed(seed: int) -> None:
    """Seed CUDA's random numbers, which come from the CPU's generator."""
    torch.default_generator.manual_seed(int(seed))


def _call_now(callable: Callable[[], Any]) -> None:  # noqa: A002  # PyTorch's name
    """Call a function that PyTorch would set aside until CUDA is initialized."""
    callable()


@contextlib.contextmanager
def _range(*_: Any, **__: Any) -> Iterator[None]:
    yield
