"""The devices that tensors, meshes and saved files name to programs.

The memory of every tensor is the CPU's, and PyTorch's own code, which would choose kernels and
bindings of CUDA by it, reads that. The code of the program reads the device on which it has placed
the tensor, so ``x.device``, ``x.is_cuda`` and printed tensors are as on GPUs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch import serialization
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from simcoll.torch.accelerator import device_number
from simcoll.torch.callers import asks_for_program
from simcoll.torch.places import HOST, Places, has_storage
from simcoll.torch.rank_threads import Process, RankThread, current_thread, current_thread_or_none
from simcoll.torch.replacing import for_ranks

__all__ = [
    "GpuMeshName",
    "MapsDevices",
    "add_locations",
    "device_query",
    "inner_tensor",
    "maps_devices",
    "of_gpu_mesh",
    "tensor_device_replacements",
]

_CPU = torch.device("cpu")


class GpuMeshName(str):
    """The device type of a mesh of GPUs: ``cpu`` for PyTorch, which passes it on to parts."""

    __slots__ = ()


class MapsDevices(TorchFunctionMode):
    """A mode that maps GPUs to the CPU."""


def maps_devices() -> bool:
    """Whether such a mode sees calls here. PyTorch disables it inside the functions that it has
    seen, such as the operators of a ``DTensor``.
    """
    return any(isinstance(mode, MapsDevices) for mode in _get_current_function_mode_stack())


def _asks(frame: FrameType) -> bool:
    """Whether a frame asks for a device on behalf of the program, and may then name it."""
    return asks_for_program(frame) and maps_devices()


def inner_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that has the memory of a tensor."""
    if isinstance(tensor, DTensor):
        return inner_tensor(tensor._local_tensor)
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return inner_tensor(torch._C._functorch.get_unwrapped(tensor))
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return inner_tensor(getattr(tensor, names[0]))
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    if tensor.layout is not torch.strided and tensor.layout is not torch.jagged:
        compressed: torch.Tensor = tensor.values()
        return compressed
    return tensor


def _device_on(process: Process, tensor: torch.Tensor) -> torch.device:
    """The device of a tensor: the CPU, the GPU of its place or, if that is unknown, the current GPU
    of a process that uses one.
    """
    places: Places = process.places
    inner = tensor if has_storage(tensor) else inner_tensor(tensor)
    with torch._C.DisableTorchFunctionSubclass():  # some classes refuse the question
        place = places.of_storage(inner.untyped_storage())
    if place == HOST or (place is None and not (process.uses_gpu() or of_gpu_mesh(tensor))):
        return _CPU
    return torch.device("cuda", process.cuda_device if place is None else place)


def of_gpu_mesh(tensor: object) -> bool:
    """Whether a tensor is distributed over GPUs, also where one rank plays all (``LocalTensor``)
    and none is selected.
    """
    return isinstance(tensor, DTensor) and isinstance(tensor.device_mesh._device_type, GpuMeshName)


def _device(process: Process, tensor: torch.Tensor, standard: torch.device) -> torch.device:
    return _device_on(process, tensor) if standard.type == "cpu" else standard


def _is_cuda(process: Process, tensor: torch.Tensor, standard: bool) -> bool:
    return standard or (tensor.is_cpu and _device_on(process, tensor) != _CPU)


def _is_cpu(process: Process, tensor: torch.Tensor, standard: bool) -> bool:
    return standard and _device_on(process, tensor) == _CPU


def _type(process: Process, tensor: torch.Tensor, standard: Any) -> Any:
    on_gpu = isinstance(standard, str) and tensor.is_cpu and _device_on(process, tensor) != _CPU
    return standard.replace("torch.", "torch.cuda.") if on_gpu else standard


def _get_device(process: Process, tensor: torch.Tensor, standard: int) -> int:
    device = _device_on(process, tensor) if tensor.is_cpu else _CPU
    return standard if device.index is None else device.index


_QUERIES: dict[Any, Callable[[Process, torch.Tensor, Any], Any]] = {
    torch.Tensor.device.__get__: _device,
    torch.Tensor.is_cuda.__get__: _is_cuda,
    torch.Tensor.is_cpu.__get__: _is_cpu,
    torch.Tensor.type: _type,
    torch.Tensor.get_device: _get_device,
    torch.get_device: _get_device,
}


def device_query(func: Any, args: Any, frame: FrameType) -> Callable[[], Any] | None:
    """The answer to a program's question for a tensor's device, as a function; None for other calls
    and callers.

    Parameters
    ----------
    frame
        The frame that calls.
    """
    query = _QUERIES.get(func)
    if query is None or not asks_for_program(frame):
        return None
    return lambda: query(current_thread().process, args[0], func(*args))


_FAKE_DEVICE: property = FakeTensor.device
_MESH_TYPE: property = DeviceMesh.device_type


def _fake_device(tensor: FakeTensor) -> torch.device:
    device: torch.device = _FAKE_DEVICE.fget(tensor)  # type: ignore[misc]
    if current_thread_or_none() is None or device.type != "cpu" or not _asks(sys._getframe(1)):
        return device
    return _device_on(current_thread().process, tensor)


def _mesh_type(mesh: DeviceMesh) -> str:
    name: str = _MESH_TYPE.fget(mesh)  # type: ignore[misc]
    caller = sys._getframe(1)
    if not isinstance(name, GpuMeshName):
        return name
    asks = caller.f_code.co_name == "__repr__" or _asks(caller)
    return name.replace("cpu", "cuda") if asks else name


@for_ranks
def _mesh_state(_thread: RankThread, standard: Any, self: DeviceMesh) -> dict[str, Any]:
    """What is saved of a mesh, for programs that know nothing of this package too."""
    state = dict(standard(self))
    name = state.get("_device_type")
    return {**state, "_device_type": "cuda"} if isinstance(name, GpuMeshName) else state


@for_ranks
def _load_mesh(thread: RankThread, standard: Any, self: DeviceMesh, state: dict[str, Any]) -> None:
    of_gpus = state.get("_device_type") == "cuda" and thread.process.places is not None
    standard(self, {**state, "_device_type": GpuMeshName("cpu")} if of_gpus else state)


@for_ranks
def _default_device(thread: RankThread, standard: Callable[[], torch.device]) -> torch.device:
    """``torch.get_default_device``, which would ask a new tensor for the number of the GPU."""
    contexts = [
        mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)
    ]
    outer = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    device = contexts[-1].device if contexts else _CPU
    if not contexts or contexts[-1] is outer:
        device = thread.process.places.default_device
    if device.type != "cuda" or not asks_for_program(sys._getframe(2)):
        return standard()
    return torch.device(
        "cuda", thread.process.cuda_device if device.index is None else device.index
    )


@for_ranks
def _load(
    thread: RankThread, standard: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """``torch.load``, where storages that a function of the program returns are on the host."""
    if map_location is None or isinstance(map_location, (str, bytes, dict, torch.device)):
        return standard(f, map_location, *args, **kwargs)

    @functools.wraps(map_location)
    def locate(storage: Any, location: str) -> Any:
        result = map_location(storage, location)
        if (
            isinstance(result, torch.UntypedStorage)
            and thread.process.places.of_storage(result) is None
        ):
            thread.process.places.note_storage(result, HOST)
        return result

    return standard(f, locate, *args, **kwargs)


@for_ranks
def _storage_to(
    thread: RankThread, standard: Any, self: Any, device: torch.device, *args: Any
) -> Any:
    """A storage moved to a GPU, as functions for ``map_location`` do it."""
    if device.type != "cuda":
        return standard(self, device, *args)
    copy = self.clone()
    thread.process.places.note_storage(copy, device_number(device))
    return copy


def _location(storage: Any) -> str | None:
    """The location of a storage on a GPU, as files name it."""
    thread = current_thread_or_none()
    if thread is None or thread.process.places is None:
        return None
    place = thread.process.places.of_storage(getattr(storage, "_untyped_storage", storage))
    return None if place is None or place == HOST else f"cuda:{place}"


def _restore(storage: Any, location: str) -> Any:
    """A storage of a file where the file, or ``map_location``, wants it."""
    thread = current_thread_or_none()
    kind, _, index = location.partition(":")
    if thread is None or thread.process.places is None or kind not in {"cpu", "cuda"}:
        return None
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise RuntimeError(
            f"Attempting to deserialize object on CUDA device {index} but "
            f"torch.cuda.device_count() is {torch.cuda.device_count()}. Please use torch.load with "
            "map_location to map your storages to an existing device."
        )
    untyped = getattr(storage, "_untyped_storage", storage)
    thread.process.places.note_storage(untyped, HOST if kind == "cpu" else device_number(location))
    return storage


_FIRST = 5
"""Before the locations that PyTorch knows, which begin at 10."""


def _storage_device(storage: torch.UntypedStorage) -> torch.device:
    device: torch.device = _STORAGE_DEVICE.__get__(storage)
    location = _location(storage) if asks_for_program(sys._getframe(1)) else None
    return device if location is None else torch.device(location)


def _storage_is_cuda(storage: torch.UntypedStorage) -> bool:
    on_gpu: bool = _STORAGE_IS_CUDA.fget(storage)  # type: ignore[misc]
    return on_gpu or (asks_for_program(sys._getframe(1)) and _location(storage) is not None)


_STORAGE_DEVICE: Any = torch.UntypedStorage.device
_STORAGE_IS_CUDA: property = torch.UntypedStorage.is_cuda


def add_locations(undo: ExitStack) -> None:
    """Let files that ranks save name GPUs, and let ranks load from them, during a run."""
    serialization.register_package(_FIRST, _location, _restore)
    undo.callback(serialization._package_registry.remove, (_FIRST, _location, _restore))


def tensor_device_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what tells devices without being a function of tensors."""
    return [
        (FakeTensor, "device", property(_fake_device, _FAKE_DEVICE.fset)),
        (torch.UntypedStorage, "device", property(_storage_device)),
        (torch.UntypedStorage, "is_cuda", property(_storage_is_cuda)),
        (DeviceMesh, "device_type", property(_mesh_type)),
        *(
            (DeviceMesh, name, change(getattr(DeviceMesh, name)))
            for name, change in (("__getstate__", _mesh_state), ("__setstate__", _load_mesh))
            if hasattr(DeviceMesh, name)  # not in every release
        ),
        (torch, "get_default_device", _default_device(torch.get_default_device)),
        (torch, "load", _load(torch.load)),
        (torch.storage, "_to", _storage_to(torch.storage._to)),
    ]
