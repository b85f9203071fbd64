"""Map CUDA devices to the CPU, for scripts written for GPUs.

In the threads of ranks, tensors and modules of every ``cuda`` device are on the CPU, and report it.
Autocast, gradient scalers, meshes, generators and saved files that name such a device use the CPU.
Device queries are in :mod:`simcoll.torch.accelerator`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import _tensor_str, distributed
from torch.autograd import graph
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.fsdp._fully_shard import _fsdp_init
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor
from torch.multiprocessing import reductions
from torch.nn.attention import flex_attention
from torch.nn.parameter import UninitializedBuffer, UninitializedTensorMixin
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map_only

from simcoll.torch.accelerator import (
    GeneratorsOfNode,
    accelerator_replacements,
    device_number,
)
from simcoll.torch.accepted_versions import RELEASE
from simcoll.torch.callers import asks_for_program, is_pytorch
from simcoll.torch.cuda_hardware import CudaGenerator
from simcoll.torch.device_mixing import DeviceMixing
from simcoll.torch.places import HOST, Places, has_storage
from simcoll.torch.process_group import SimcollGroup
from simcoll.torch.rank_threads import RankThread, current_thread, current_thread_or_none
from simcoll.torch.replacing import for_ranks, in_ranks
from simcoll.torch.tensor_devices import (
    GpuMeshName,
    MapsDevices,
    device_query,
    inner_tensor,
    maps_devices,
    tensor_device_replacements,
)
from simcoll.torch.tensor_types import place_and_dtype, tensor_type_replacements
from simcoll.torch.wrapper_tensors import copy_of_wrapper, wrapper_replacements, wraps_in_program

__all__ = ["CudaIsCpu", "add_nccl_options", "device_replacements"]

_CPU = torch.device("cpu")
_TO_DEVICE = "_move_states_to_device"
_OF_SHARDS = "_get_device_from_mesh"
_SHARDING = (
    "torch.distributed.fsdp._fully_shard._fully_shard",
    "torch.distributed._composable.replicate_with_fsdp",
)
"""Modules whose functions shard the parameters of a module over a mesh, or copy them."""
_GETTER = type(torch.Tensor.dtype.__get__)
_MOVES = (torch.Tensor.to, torch._C._nn._parse_to)
_FOR_MODULES = (torch._C._nn._parse_to, torch.empty_like)
"""Calls with the device that a program has given to a method of a module."""


def _is_cuda(device: object) -> bool:
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def _is_number(device: object) -> bool:
    return isinstance(device, int) and not isinstance(device, bool)


def _to_cpu(device: Any) -> Any:
    """Map a CUDA device, or a device number, to the CPU."""
    if not (_is_cuda(device) or _is_number(device)):
        return device
    device_number(device)
    return _CPU


_HERE = str(Path(__file__).parent)
_FACTORIES = frozenset((*_device_constructors(), torch.normal))
"""They make tensors on the host unless they are given a device, or a tensor on one."""


class CudaIsCpu(MapsDevices):
    """Mode that places tensors for CUDA devices on the CPU, and notes where the script has put
    them.
    """

    def __init__(self) -> None:
        super().__init__()
        process = current_thread().process

        def count_move(storage: torch.UntypedStorage, to_host: bool) -> None:
            process.watched.memory.move(storage, to_host)

        def count_place(storage: torch.UntypedStorage, on_host: bool) -> None:
            process.watched.memory.place(storage, on_host=on_host)

        if process.places is None:
            process.places = Places(count_move, count_place)
        self.places: Places = process.places
        self.mixing = DeviceMixing(current_thread(), self.places)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a PyTorch function with CUDA devices mapped to the CPU."""
        kwargs = kwargs or {}
        query = device_query(func, args, sys._getframe(1))
        if query is not None and not kwargs and len(args) == 1:
            return query()
        if type(func) is _GETTER and len(args) == 1:
            result = func(*args)
            # A gradient that C++ has made is where its tensor is; an offloaded one is elsewhere.
            if isinstance(result, torch.Tensor) and self.places.get(result) is None:
                self.places.note(result, self.places.get(args[0]))
            return result
        if func is torch.Tensor.cuda:
            device = args[1] if args[1:] else kwargs.get("device")
            place = _place("cuda" if device is None else device)
            return self._move(args[0], place, wait=not _is_asynchronous(args[2:], kwargs))
        if func is torch.Tensor.cpu:
            return self._move(args[0], HOST)
        if func is torch.Tensor.pin_memory:
            return self._pin(args[0], by_program=not is_pytorch(_caller()))
        if func is torch.Tensor.is_pinned:
            return self.places.in_pinned_memory(args[0])
        if func is torch.Tensor.copy_ and len(args) > 1:
            return self._copy(func, args, kwargs)
        if func is torch.device:
            return (
                torch.device("cuda", args[0])
                if len(args) == 1 and _is_number(args[0])
                else func(*args, **kwargs)
            )
        if func is torch.Tensor.type and (args[1:] or "dtype" in kwargs):
            return self._convert(*args, **kwargs)
        device = kwargs.get("device")
        if device is not None:
            kwargs = {**kwargs, "device": _to_cpu(device)}
        pinned = bool(kwargs.get("pin_memory"))
        if pinned:
            kwargs = {**kwargs, "pin_memory": False}
        if func in _MOVES:
            position = 1 if func is torch.Tensor.to else 0
            device = args[position] if device is None and args[position:] else device
            args = (
                *args[:position],
                *map(_to_cpu, args[position : position + 1]),
                *args[position + 1 :],
            )
        explicit = place = _place(device)
        if place is None and device == _CPU and self._means_host(func, sys._getframe(1)):
            place = HOST
        by_default = (
            device is None
            and func in _FACTORIES
            and not _caller().startswith(_HERE)
            and self.places.of_inputs((*args, *kwargs.values())) is None
        )
        if func is torch._C._nn._parse_to:
            self.places.of_module = place
        if func is torch.Tensor.to and place is None and device is not None:
            place = self._implied_place(args[0], device, _caller())
            if place is None:
                self.places.forget_host(args[0])
        if func is torch.Tensor.to and place is not None:
            wait = not _is_asynchronous(args[2:], kwargs)
            return self._move(
                args[0],
                place,
                lambda: func(*args, **kwargs),
                wait=wait,
                by_name=explicit is not None,
            )
        if self.places.gpus and self.places.differ((*args, *kwargs.values())):
            self.mixing.check(func, args, kwargs)
        self.places.making = HOST if pinned else self._default_place() if by_default else place
        try:
            result = func(*args, **kwargs)
        finally:
            self.places.making = None
        if isinstance(result, (torch.Tensor, tuple, list)) and result is not (args or [None])[0]:
            by_name = pinned or (explicit == HOST and not is_pytorch(_caller()))
            if device is None:
                place = self.places.of_inputs(args)
                if place is None and by_default:
                    place = self._default_place()
            self.places.note(result, HOST if pinned else place, offloaded=by_name, pinned=pinned)
        return result

    def _convert(
        self, tensor: torch.Tensor, dtype: Any, non_blocking: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        """``Tensor.type``, which takes a device with a dtype, or a dtype alone."""
        place, dtype = place_and_dtype(current_thread().process, dtype)
        return self._move(
            tensor,
            self.places.get(tensor) if place is None else place,
            lambda: torch.Tensor.type(tensor, dtype, non_blocking, **kwargs),
            wait=not non_blocking,
        )

    def _default_place(self) -> int:
        """Where tensors are made without a device."""
        place = _place(self.places.default_device)
        return HOST if place is None else place

    def _means_host(self, func: Any, frame: FrameType) -> bool:
        """Whether a call with the CPU as an object comes from the program, to which tensors on GPUs
        tell their own device. A module that it makes passes its device on.
        """
        # Before the program uses a GPU, what has no known place counts as the host's: no move.
        if func in _MOVES and not current_thread().process.uses_gpu():
            return False
        while frame.f_back is not None and (
            (func in _FOR_MODULES and frame.f_code.co_filename.endswith(_MOVES_MODULES))
            or _makes_module(frame)
        ):
            frame = frame.f_back
        return asks_for_program(frame)

    def _implied_place(self, tensor: torch.Tensor, device: Any, caller: str) -> int | None:
        """The place that a script means by another tensor, or PyTorch by the CPU as an object,
        which may be the device of a tensor on a GPU: modules go where their program says, offloaded
        tensors go back, and ``fully_shard`` moves gradients to the host. None: nowhere.
        """
        if isinstance(device, torch.Tensor) and self.places.get(device) is not None:
            return self.places.get(device)
        if not isinstance(device, (torch.Tensor, torch.device)):
            return None
        if caller.endswith(_MOVES_MODULES):
            return self.places.of_module
        if self.places.lies_on_host(tensor):
            return int(current_thread().process.cuda_device)
        return HOST if caller.endswith(_OFFLOADS_GRADIENTS) else None

    def _move(
        self,
        tensor: torch.Tensor,
        place: int | None,
        call: Callable[[], torch.Tensor] | None = None,
        *,
        wait: bool = True,
        by_name: bool = True,
    ) -> torch.Tensor:
        """Move a tensor, or what ``call`` makes of it: a copy, if it is elsewhere, as on a GPU. One
        that stays on the host is offloaded if the host is meant ``by_name``.
        """
        if isinstance(tensor, UninitializedTensorMixin):  # of a lazy module; its data can be copied
            of_data = None if call is None else lambda: _data(call())
            moved = self._move(_data(tensor), place, of_data, wait=wait, by_name=by_name)
            return moved.as_subclass(type(tensor)) if type(tensor) is UninitializedBuffer else moved
        if wraps_in_program(tensor):
            result = tensor if call is None else call()
            old = self.places.get(inner_tensor(result))
            stays = old == place or (old is None and place != HOST)
            return result if place is None or stays else copy_of_wrapper(result, place)
        holder = _with_storage(tensor)
        old, to_host = self.places.get(holder), place == HOST
        stays = old == place or (old is None and not to_host)
        if place is None or stays or not has_storage(holder) or holder.is_meta:
            result = tensor if call is None else call()
            self.places.note(_with_storage(result), place, offloaded=to_host and by_name)
            return result

        def copy() -> torch.Tensor:
            self.places.making = place
            try:
                result = tensor if call is None else call()
                return tensor.clone() if result is tensor else result
            finally:
                self.places.making = None

        if HOST not in {old, place}:
            result = copy()
        else:
            waits = wait or not (to_host or self.places.in_pinned_memory(holder))
            result = self._over_pcie(holder, copy, to_host=to_host, wait=waits)
        self.places.note(
            _with_storage(result), place, offloaded=to_host, pinned=to_host and not wait
        )
        return result

    def _pin(self, tensor: torch.Tensor, *, by_program: bool) -> torch.Tensor:
        """A copy in pinned memory, which the host makes, unless the tensor is there."""
        if self.places.in_pinned_memory(tensor):
            return tensor
        if by_program and self.places.is_on_gpu(tensor):
            raise RuntimeError(
                f"cannot pin a tensor on cuda:{self.places.get(tensor)}: only dense CPU tensors "
                "can be pinned"
            )
        self.places.note(tensor, HOST, offloaded=True)
        copy = tensor.clone()
        self.places.note(copy, HOST, offloaded=True, pinned=True)
        return copy

    def _copy(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """``Tensor.copy_``, perhaps between the host and a GPU."""
        target, source = args[0], args[1]
        to_host, from_host = (self.places.get(tensor) == HOST for tensor in (target, source))
        if to_host == from_host or not isinstance(source, torch.Tensor):
            result: torch.Tensor = func(*args, **kwargs)
            return result
        if to_host:
            self.places.note(target, HOST, offloaded=True)
        pinned = self.places.in_pinned_memory(target if to_host else source)
        wait = not (pinned and _is_asynchronous(args[2:], kwargs))
        return self._over_pcie(source, lambda: func(*args, **kwargs), to_host=to_host, wait=wait)

    def _over_pcie(
        self, tensor: torch.Tensor, call: Callable[[], torch.Tensor], *, to_host: bool, wait: bool
    ) -> torch.Tensor:
        """Call what copies a tensor to or from the host's memory, which takes the time of the
        GPU's connection to it, and so does its gradient the other way.
        """
        watched = current_thread().process.watched
        if watched is None:
            return call()
        name = "copy to the host" if to_host else "copy to the GPU"
        nbytes = tensor.numel() * tensor.element_size()
        result: torch.Tensor = watched.copy_over_pcie(name, nbytes, call, wait=wait)
        if not wait and not _belongs_to_torch():
            on_host = result if to_host else tensor
            current_thread().process.stream_races.note_copy(name, on_host, writes=to_host)
        return result


_OF_MEMORY = ("from_numpy", "frombuffer")
_STORAGES_OF_MEMORY = {
    "from_buffer": torch.UntypedStorage.from_buffer,
    "from_file": torch.UntypedStorage.from_file,
}
_MOVES_MODULES = str(Path("nn") / "modules" / "module.py")
_MODULES = str(Path(torch.nn.__file__).parent)
_OFFLOADS_GRADIENTS = str(Path("_fully_shard") / "_fsdp_collectives.py")


def _data(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.data


def _with_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of this rank that has the storage: the local one of a ``DTensor``."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _is_asynchronous(args: Any, kwargs: Any) -> bool:
    """Whether a move is to be ``non_blocking``, as an argument that remains or by name."""
    return bool(kwargs.get("non_blocking", any(arg is True for arg in args[:2])))


def _makes_module(frame: FrameType) -> bool:
    """Whether a frame makes one of PyTorch's modules."""
    code = frame.f_code
    return code.co_name in {"__init__", "skip_init"} and code.co_filename.startswith(_MODULES)


def _caller() -> str:
    """The file that calls a function that the mode sees."""
    return sys._getframe(2).f_code.co_filename


def _belongs_to_torch() -> bool:
    """Whether PyTorch's own code makes a call that the mode sees, and orders what follows."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return is_pytorch(frame.f_code.co_filename)


def _place(device: Any) -> int | None:
    """The place that a script means by a device; None where it says none, or the device of another
    tensor.
    """
    if isinstance(device, GpuMeshName):
        return int(torch.cuda.current_device())
    if _is_cuda(device) or _is_number(device):
        return device_number(device)
    return HOST if isinstance(device, str) and device == "cpu" else None


class _NcclOptions(SimpleNamespace):
    """Options of a group."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__(is_high_priority_stream=is_high_priority_stream, config=SimpleNamespace())


class _Nccl:
    """``torch.distributed.ProcessGroupNCCL``, which PyTorch for the CPU lacks; its options have no
    effect.
    """

    Options = _NcclOptions
    NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY, NCCL_CTA_POLICY_ZERO = range(3)


def add_nccl_options(undo: ExitStack) -> None:
    """Let scripts make NCCL's options during a run."""
    if not hasattr(distributed, "ProcessGroupNCCL"):
        undo.callback(delattr, distributed, "ProcessGroupNCCL")
        distributed.ProcessGroupNCCL = _Nccl


class _GeneratorMeta(type):
    """Makes every generator an instance."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class _Generator(metaclass=_GeneratorMeta):
    """``torch.Generator``, on the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if current_thread_or_none() is None:
            return torch._C.Generator(device)
        if not _is_cuda(device):
            return torch._C.Generator(_to_cpu(device))
        generator = CudaGenerator()
        generator.index = device_number(device)
        return generator


def _with(standard: Callable[..., Any], *changes: Callable[[dict[str, Any]], None]) -> Any:
    """Wrap a function to change its keyword arguments and positional devices in ranks."""

    @functools.wraps(standard)
    def function(*args: Any, **kwargs: Any) -> Any:
        if current_thread_or_none() is not None:
            for change in changes:
                change(kwargs)
            args = tuple(
                "cpu" if _is_cuda(arg) and isinstance(arg, str) else _of_device(arg) for arg in args
            )
        return standard(*args, **kwargs)

    return function


def _of_device(device: Any) -> Any:
    return _CPU if isinstance(device, torch.device) and _is_cuda(device) else device


def _drop(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(kwargs: dict[str, Any]) -> None:
        for name in names:
            kwargs.pop(name, None)

    return change


def _use_cpu(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(kwargs: dict[str, Any]) -> None:
        for name in names:
            if isinstance(kwargs.get(name), str) and _is_cuda(kwargs[name]):
                kwargs[name] = "cpu"
            elif _is_cuda(kwargs.get(name)):
                kwargs[name] = _CPU

    return change


@for_ranks
def _mesh(thread: RankThread, standard: Any, *args: Any, **kwargs: Any) -> Any:
    """A mesh of CPUs, which selects the GPU of a process that has selected or used none."""
    names = [*args, kwargs.get("device_type")]
    if not any(isinstance(name, str) and _is_cuda(name) for name in names):
        return standard(*args, **kwargs)
    if "device_type" in kwargs:
        kwargs["device_type"] = _mesh_name(kwargs["device_type"])
    selects = not thread.process.uses_gpu()
    result = standard(*map(_mesh_name, args), **kwargs)
    if selects and distributed.get_backend() != "fake":
        local_rank = os.environ.get("LOCAL_RANK")
        if local_rank is None:
            warnings.warn(_NO_DEVICE, stacklevel=3)
        number = distributed.get_rank() if local_rank is None else int(local_rank)
        torch.cuda.set_device(number % torch.cuda.device_count())
    return result


def _mesh_name(name: Any) -> Any:
    """The name of the device type of a mesh of GPUs; anything else as it is."""
    return (
        GpuMeshName(name.replace("cuda", "cpu"))
        if isinstance(name, str) and _is_cuda(name)
        else name
    )


_NO_DEVICE = (
    "It seems like you did not set/select the default device for the current process before the "
    "DeviceMesh initialization, and LOCAL_RANK is not set: the mesh selects device "
    "global_rank % num_devices_per_host"
)


@for_ranks
def _data_parallel(
    _thread: Any,
    standard: Any,
    self: Any,
    module: Any,
    device_ids: Any = None,
    output_device: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """``DistributedDataParallel`` of a module on the CPU."""
    standard(self, module, None, None, *args, **kwargs)
    if device_ids:
        numbers = [device_number(device) for device in device_ids]
        output = numbers[0] if output_device is None else device_number(output_device)
        self._simulated_devices = numbers, output
        self.device = torch.device("cuda", numbers[0])


@for_ranks
def _data_parallel_inputs(
    thread: RankThread, standard: Any, self: Any, *inputs: Any, **kwargs: Any
) -> Any:
    """The inputs of a forward pass, which ``DistributedDataParallel`` moves to its GPU."""
    if hasattr(self, "_simulated_devices") and thread.process.places is not None:
        inputs, kwargs = _on_gpu(thread.process.places, (inputs, kwargs), self.device)
    return standard(self, *inputs, **kwargs)


def _on_gpu(places: Places, values: Any, device: Any) -> Any:
    """Values with copies on a GPU of the tensors that are on the host."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device) if places.get(tensor) == HOST else tensor

    return tree_map_only(torch.Tensor, move, values)


@for_ranks
def _fully_sharded_inputs(
    thread: RankThread, standard: Any, self: Any, module: Any, args: Any, kwargs: Any
) -> Any:
    """The inputs of a forward pass, which ``fully_shard`` moves to the GPU of its outermost
    module.
    """
    result = standard(self, module, args, kwargs)
    process, context = thread.process, self._state_ctx
    on_gpus = process.places is not None and process.uses_gpu()
    on_gpus = on_gpus and all(
        isinstance(group.mesh_info.mesh._device_type, GpuMeshName)
        for state in context.all_states
        for group in _groups_of(state)
    )
    if context.iter_forward_root is not self or not on_gpus:
        return result
    return _on_gpu(process.places, result, "cuda")


def _groups_of(state: Any) -> list[Any]:
    """The groups of sharded parameters of a module's state."""
    if hasattr(state, "_fsdp_param_groups"):
        groups: list[Any] = state._fsdp_param_groups
        return groups
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


@for_ranks
def _device_of_shards(thread: RankThread, standard: Any, mesh: Any) -> torch.device:
    """The device of the mesh of ``fully_shard``, which PyTorch reads as the CPU."""
    device: torch.device = standard(mesh)
    if thread.process.places is not None:
        thread.process.places.shards_on_gpus = isinstance(mesh._device_type, GpuMeshName)
    return device


@for_ranks
def _states_to_device(
    thread: RankThread, standard: Any, params: Any, buffers: Any, *args: Any
) -> None:
    """``fully_shard`` moves what a module has to the device of its mesh."""
    places = thread.process.places
    if places is None:
        standard(params, buffers, *args)
        return
    tensors = [*params, *buffers]
    for tensor in tensors:
        if isinstance(tensor, DTensor) and not tensor.is_meta:
            _check_mesh(tensor, on_gpus=places.shards_on_gpus)
    standard(params, buffers, *args)
    for tensor in tensors:
        if places.shards_on_gpus:
            places.forget_host(tensor)
        elif places.is_on_gpu(tensor):
            tensor.data = tensor.cpu()


def _check_mesh(tensor: DTensor, *, on_gpus: bool) -> None:
    """Refuse a distributed tensor on a mesh of another type than that of ``fully_shard``."""
    of_gpus = isinstance(tensor.device_mesh._device_type, GpuMeshName)
    if of_gpus != on_gpus:
        kind, of_shards = ("cuda" if gpus else "cpu" for gpus in (of_gpus, on_gpus))
        raise ValueError(
            "Requires DTensor to have mesh of the same type as the FSDP mesh but got "
            f"{kind} for DTensor and {of_shards} for FSDP"
        )


@for_ranks
def _default_mesh(_thread: Any, standard: Any, _device_type: str, **kwargs: Any) -> Any:
    """The mesh of ``fully_shard`` without one, for which PyTorch looks for an accelerator."""
    return standard("cuda", **kwargs)


@for_ranks
def _set_default_device(thread: RankThread, standard: Any, device: Any) -> None:
    """Keep the device of tensors that are made without one, for where no mode of it is active."""
    if thread.process.places is not None:
        default = _CPU if device is None else torch.device(device)
        if _is_cuda(default):
            device_number(default)
        thread.process.places.default_device = default
    standard(_to_cpu(device))


@for_ranks
def _checked_hook(_thread: Any, standard: Any, self: Any, hook: Any) -> None:
    """DDP's check of a communication hook, without its requirement of CUDA and NCCL for some
    hooks.
    """

    def nameless_hook(*_: Any) -> None: ...

    if callable(hook):
        nameless_hook.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined]
    standard(self, nameless_hook if callable(hook) else hook)


@for_ranks
def _subgroups(
    _thread: Any, standard: Any, group_size: int | None = None, *args: Any, **kwargs: Any
) -> Any:
    """``new_subgroups``, by default one group per node."""
    return standard(
        torch.cuda.device_count() if group_size is None else group_size, *args, **kwargs
    )


@for_ranks
def _bind_world(
    _thread: Any, standard: Any, *args: Any, device_id: Any = None, **kwargs: Any
) -> None:
    """``init_process_group``, whose ``device_id`` PyTorch would check against the CPU."""
    device = None if device_id is None else _device_of_group(device_id)
    if device is not None and not args and kwargs.get("backend") is None:
        kwargs["backend"] = distributed.Backend.default_device_backend_map[device.type]
    standard(*args, **kwargs)
    if device is not None and isinstance(distributed.group.WORLD, SimcollGroup):
        distributed.group.WORLD.bind(device)


def _device_of_group(device_id: Any) -> torch.device:
    """The device of a group, with PyTorch's checks."""
    device: torch.device = torch.device("cuda", device_id) if _is_number(device_id) else device_id
    count = torch.cuda.device_count()
    if device.type == "cpu":
        raise ValueError(
            "init_process_group device_id parameter must be an accelerator with an index"
        )
    if device.type != "cuda":
        raise ValueError(
            f"device_id {device} does not match the current compilation's accelerator support: cuda"
        )
    if device.index is None:
        raise ValueError("Please use a device_id with index.")
    if device.index >= count:
        raise ValueError(
            f"device_id {device} is out of range. Please use a device index less than the number "
            f"of accelerators available: {count}."
        )
    return device


_SPLITS_UNBOUND = (2, 15)
"""The release from which groups without a device are split."""
_NO_MEMBER = (
    distributed_c10d.GroupMember.NON_GROUP_MEMBER
    if hasattr(distributed_c10d, "_NonGroupMember")  # from 2.14 on
    else None
)
"""The result of ``split_group`` on ranks that are in none of the groups."""


@for_ranks
def _split(
    _thread: Any,
    _standard: Any,
    parent_pg: Any = None,
    split_ranks: Any = None,
    timeout: Any = None,
    *_: Any,
    **options: Any,
) -> Any:
    """``split_group``, by groups that only their ranks make."""
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    if RELEASE < _SPLITS_UNBOUND and distributed.group.WORLD.bound_device_id is None:
        raise RuntimeError(
            "No device associated with the default pg, not safe to split any process groups: "
            "call init_process_group with device_id="
        )
    parent = parent_pg or distributed.group.WORLD
    mine = next((sorted(ranks) for ranks in split_ranks if parent.rank() in ranks), None)
    if mine is None:
        return _NO_MEMBER
    members = [distributed.get_global_rank(parent, rank) for rank in mine]
    return distributed.new_group(
        members, timeout, use_local_synchronization=True, group_desc=options.get("group_desc")
    )


@for_ranks
def _count_modes(_thread: Any, _standard: Any) -> int:
    """How many modes the program itself has entered: it is not to see the mapping of devices."""
    modes = _get_current_function_mode_stack()
    return sum(not isinstance(mode, CudaIsCpu) for mode in modes)


@for_ranks
def _backward(_thread: Any, standard: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The backward pass with the device mapping active, which PyTorch would disable for the
    program's hooks.
    """
    with CudaIsCpu():
        return standard(*args, **kwargs)


@for_ranks
def _print(_thread: Any, standard: Callable[..., str], *args: Any, **kwargs: Any) -> str:
    """A printed tensor with its device, for which PyTorch asks without modes."""
    with CudaIsCpu():
        return standard(*args, **kwargs)


@for_ranks
def _saved_tensors_hooks(
    _thread: Any, standard: Any, self: Any, pack_hook: Any, unpack_hook: Any
) -> None:
    """Hooks of saved tensors with the device mapping active, which PyTorch disables inside the
    functions that save.
    """

    def with_devices(hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook)
        def call(*args: Any) -> Any:
            if maps_devices():
                return hook(*args)
            with CudaIsCpu():
                return hook(*args)

        return call

    standard(self, with_devices(pack_hook), with_devices(unpack_hook))


def _memory_replacements() -> list[tuple[Any, str, Any]]:
    """Functions that make tensors and storages on memory of the host."""
    return [
        *((torch, name, _from_memory(getattr(torch, name))) for name in _OF_MEMORY),
        *(
            (torch.UntypedStorage, name, staticmethod(_from_memory(standard)))
            for name, standard in _STORAGES_OF_MEMORY.items()
        ),
    ]


@for_ranks
def _from_memory(
    thread: RankThread, standard: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """A tensor or a storage on memory of numpy, Python or a file, which is the host's. Tensors are
    made of storages without an operator: pickled objects, for instance.
    """
    result = standard(*args, **kwargs)
    places: Places | None = thread.process.places
    if places is not None and isinstance(result, torch.UntypedStorage):
        places.note_storage(result, HOST)
    elif places is not None:
        places.note(result, HOST)
    return result


@for_ranks
def _from_dlpack(thread: RankThread, standard: Any, ext_tensor: Any, **kwargs: Any) -> Any:
    """A tensor on the memory of another, or of another library's array, which is the host's."""
    result = standard(ext_tensor, **kwargs)
    if thread.process.places is not None:
        of_tensor = isinstance(ext_tensor, torch.Tensor)
        place = thread.process.places.get(ext_tensor) if of_tensor else HOST
        thread.process.places.note(result, place)
    return result


@for_ranks
def _autocast(
    _thread: Any,
    standard: Any,
    self: Any,
    device_type: str,
    dtype: torch.dtype | None = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Map autocast of ``cuda`` to the CPU's, with CUDA's default dtype."""
    if _is_cuda(device_type):
        device_type, dtype = "cpu", torch.get_autocast_dtype("cuda") if dtype is None else dtype
    standard(self, device_type, dtype, *args, **kwargs)


@for_ranks
def _asked_autocast(
    _thread: Any, standard: Callable[..., Any], device_type: str = "cuda", *args: Any
) -> Any:
    return standard("cpu" if _is_cuda(device_type) else device_type, *args)


def device_replacements(gpu: str) -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions that take CUDA devices; ``gpu`` is the emulated
    GPU.
    """
    amp, c10d, data_parallel = (
        torch.amp,
        distributed_c10d,
        torch.nn.parallel.DistributedDataParallel,
    )
    changed: list[tuple[Any, str, tuple[Callable[[dict[str, Any]], None], ...]]] = [
        (torch.utils.data.DataLoader, "__init__", (_drop("pin_memory", "pin_memory_device"),)),
        *((owner, "barrier", (_drop("device_ids"),)) for owner in (distributed, c10d)),
        *(
            (owner, "__init__", (_use_cpu("device"),))
            for owner in (amp.grad_scaler.GradScaler, FSDPParamGroup)
        ),
        *(
            (owner, name, (_use_cpu("device_type"),))
            for owner in (amp, amp.autocast_mode)
            for name in ("custom_fwd", "custom_bwd")
        ),
    ]
    return [
        *accelerator_replacements(gpu),
        *tensor_device_replacements(),
        *tensor_type_replacements(),
        *wrapper_replacements(),
        (_tensor_str, "_str_intern", _print(_tensor_str._str_intern)),
        *(
            (owner, "init_device_mesh", _mesh(device_mesh.init_device_mesh))
            for owner in (device_mesh, distributed)
        ),
        (device_mesh.DeviceMesh, "__init__", _mesh(device_mesh.DeviceMesh.__init__)),
        *((owner, key, _with(getattr(owner, key), *changes)) for owner, key, changes in changed),
        *(
            (owner, "_engine_run_backward", _backward(graph._engine_run_backward))
            for owner in (torch.autograd, graph)
        ),
        (
            graph.saved_tensors_hooks,
            "__init__",
            _saved_tensors_hooks(graph.saved_tensors_hooks.__init__),
        ),
        (
            torch._C,
            "_len_torch_function_stack",
            _count_modes(torch._C._len_torch_function_stack),
        ),
        (torch, "Generator", _Generator),
        (torch.cuda, "default_generators", GeneratorsOfNode()),
        *_memory_replacements(),
        *(
            (owner, "get_rng_state", _from_memory(torch.get_rng_state))
            for owner in (torch, torch.random)
        ),
        *(
            (owner, "from_dlpack", _from_dlpack(torch.from_dlpack))
            for owner in (torch, torch.utils.dlpack)
        ),
        # Tensors from other processes, such as the workers of a loader.
        (reductions, "rebuild_tensor", _from_memory(reductions.rebuild_tensor)),
        *(
            (owner, "new_subgroups", _subgroups(c10d.new_subgroups))
            for owner in (distributed, c10d)
        ),
        *((owner, "split_group", _split(c10d.split_group)) for owner in (distributed, c10d)),
        *(
            (owner, "init_process_group", _bind_world(c10d.init_process_group))
            for owner in (distributed, c10d)
        ),
        (data_parallel, "__init__", _data_parallel(data_parallel.__init__)),
        (data_parallel, "_pre_forward", _data_parallel_inputs(data_parallel._pre_forward)),
        *_sharding_replacements(),
        (torch, "set_default_device", _set_default_device(torch.set_default_device)),
        (data_parallel, "_check_comm_hook", _checked_hook(data_parallel._check_comm_hook)),
        (amp.autocast_mode.autocast, "__init__", _autocast(amp.autocast_mode.autocast.__init__)),
        # It refuses backward passes on the CPU, where PyTorch has no kernel for them, but the
        # formula.
        (
            flex_attention,
            "_validate_device",
            in_ranks(flex_attention._validate_device, lambda *_: None),
        ),
        (torch, "is_autocast_enabled", _asked_autocast(torch.is_autocast_enabled)),
    ]


def _sharding_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what ``fully_shard`` and ``replicate`` ask for devices."""
    return [
        *(
            (owner, _OF_SHARDS, _device_of_shards(getattr(owner, _OF_SHARDS)))
            for owner in map(importlib.import_module, _SHARDING)
        ),
        (_fsdp_init, _TO_DEVICE, _states_to_device(getattr(_fsdp_init, _TO_DEVICE))),
        (FSDPState, "_root_pre_forward", _fully_sharded_inputs(FSDPState._root_pre_forward)),
        (_fsdp_init, "init_device_mesh", _default_mesh(_fsdp_init.init_device_mesh)),
    ]
