"""``torch.cuda.comm`` on tensors and emulated devices: broadcast, reduce_add, scatter and gather
among the GPUs of one process.

A :class:`DeviceTensor` is a tensor in CPU memory that reports a CUDA device. Arguments, results and
errors are those of ``torch.cuda.comm``; :mod:`simcoll.cuda_comm` moves the data with proved
schedules. As in PyTorch, these functions are not differentiable.

>>> import torch
>>> parts = scatter(torch.arange(5), ["cuda:0", "cuda:1"])
>>> [(part.tolist(), str(part.device)) for part in parts]
[([0, 1, 2], 'cuda:0'), ([3, 4], 'cuda:1')]
>>> gather(parts, destination="cpu")
tensor([0, 1, 2, 3, 4])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._utils import _get_device_index
from torch.cuda import comm
from torch.nn.parallel import comm as parallel_comm
from torch.utils._pytree import tree_map_only

from simcoll import cuda_comm
from simcoll.cuda_comm.emulated_devices import BUFFER_BYTES, CPU, Tensor, device_number
from simcoll.torch.places import HOST, Places
from simcoll.torch.rank_threads import current_thread
from simcoll.torch.replacing import in_ranks
from simcoll.torch.tensors import array_of, tensor_of

__all__ = [
    "DeviceTensor",
    "broadcast",
    "broadcast_coalesced",
    "comm_replacements",
    "gather",
    "on_device",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
]


class DeviceTensor(torch.Tensor):
    """A tensor on an emulated CUDA device. PyTorch's operators accept tensors of one device and
    preserve it.
    """

    number: int = 0

    @property
    def device(self) -> torch.device:
        """``cuda:N``."""
        return torch.device("cuda", self.number)

    @property
    def is_cuda(self) -> bool:
        """True."""
        return True

    def get_device(self) -> int:
        """The number of the device."""
        return self.number

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        """A copy on the CPU."""
        return self.as_subclass(torch.Tensor).clone()

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Convert to another device or dtype."""
        arguments = [*args, kwargs.get("device")]
        device = next(
            (
                argument
                for argument in arguments
                if isinstance(argument, (str, torch.device, int)) and not isinstance(argument, bool)
            ),
            None,
        )
        if device is None:
            return super().to(*args, **kwargs)
        if str(device) == "cpu":
            return self.cpu()
        return self if _number(device) == self.number else on_device(self.cpu(), device)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator and place its results on its tensors' device; a RuntimeError for tensors
        of two devices.
        """
        numbers = {
            tensor.number
            for tensor in _flat((args, kwargs or {}))
            if isinstance(tensor, DeviceTensor)
        }
        if len(numbers) > 1 and func is not torch.Tensor.copy_:
            names = " and ".join(f"cuda:{number}" for number in sorted(numbers)[:2])
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{names}!"
            )
        result = super().__torch_function__(func, types, args, kwargs or {})
        for tensor in _flat(result):
            if isinstance(tensor, DeviceTensor):
                tensor.number = min(numbers)
        return result


def _flat(values: Any) -> list[Any]:
    """Flatten nested arguments."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        return [leaf for value in values for leaf in _flat(value)]
    return [values]


def _number(device: Any) -> int:
    number: int = _get_device_index(device)
    return number


def on_device(tensor: torch.Tensor, device: Any) -> DeviceTensor:
    """Place a tensor on an emulated device, sharing the given tensor's memory.

    Parameters
    ----------
    device
        A number, ``"cuda:1"``, or a :class:`torch.device` with an index; errors as of
        ``torch.cuda.comm``.
    """
    device_tensor: DeviceTensor = tensor.detach().as_subclass(DeviceTensor)
    device_tensor.number = device_number(_number(device))
    return device_tensor


class _Arrays:
    """Converts tensors to simcoll's device arrays, and results back: to the given tensors where
    they are the same.
    """

    def __init__(self) -> None:
        self._given: dict[int, torch.Tensor] = {}
        self._kept: list[Any] = []

    def of(self, tensor: torch.Tensor) -> Any:
        """The array of a tensor, on its device."""
        plain = tensor.as_subclass(torch.Tensor) if isinstance(tensor, DeviceTensor) else tensor
        array = array_of(plain)
        self._given[id(array)] = tensor
        content = (
            cuda_comm.DeviceArray(array, tensor.number)
            if isinstance(tensor, DeviceTensor)
            else array
        )
        self._kept.append((array, content))  # so that no other array gets its identity
        return content

    def back(self, result: Tensor) -> torch.Tensor:
        """The tensor of a result."""
        array = result.array if isinstance(result, cuda_comm.DeviceArray) else result
        original = self._given.get(id(array))
        if original is not None:
            return original
        tensor = tensor_of(array)
        return (
            on_device(tensor, result.device)
            if isinstance(result, cuda_comm.DeviceArray)
            else tensor
        )


def _devices(devices: Iterable[Any] | None) -> list[int] | None:
    return None if devices is None else [_number(device) for device in devices]


def broadcast(
    tensor: torch.Tensor,
    devices: Iterable[Any] | None = None,
    *,
    out: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Copy a tensor to devices, or to the tensors ``out``; on its own device it is not copied."""
    arrays = _Arrays()
    targets = None if out is None else [arrays.of(target) for target in out]
    copies = cuda_comm.broadcast(arrays.of(tensor), _devices(devices), out=targets)
    return tuple(map(arrays.back, copies))


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Iterable[Any], buffer_size: int = BUFFER_BYTES
) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Copy several tensors of ``devices[0]`` to devices, small ones coalesced; returns the tensors
    of each device.
    """
    arrays = _Arrays()
    rows = cuda_comm.broadcast_coalesced(
        [arrays.of(tensor) for tensor in tensors], _devices(devices) or [], buffer_size
    )
    return tuple(tuple(map(arrays.back, row)) for row in rows)


def reduce_add(inputs: Sequence[torch.Tensor], destination: Any = None) -> torch.Tensor:
    """Sum tensors of one shape on different devices, one of which is the destination (default
    0).
    """
    arrays = _Arrays()
    place = None if destination is None else _number(destination)
    return arrays.back(cuda_comm.reduce_add([arrays.of(tensor) for tensor in inputs], place))


def reduce_add_coalesced(
    inputs: Sequence[Sequence[torch.Tensor]],
    destination: Any = None,
    buffer_size: int = BUFFER_BYTES,
) -> tuple[torch.Tensor, ...]:
    """Sum several tensors over devices, entry by entry, small ones coalesced."""
    arrays = _Arrays()
    place = None if destination is None else _number(destination)
    rows = [[arrays.of(tensor) for tensor in row] for row in inputs]
    return tuple(map(arrays.back, cuda_comm.reduce_add_coalesced(rows, place, buffer_size)))


def scatter(
    tensor: torch.Tensor,
    devices: Iterable[Any] | None = None,
    chunk_sizes: Iterable[int] | None = None,
    dim: int = 0,
    streams: Iterable[Any] | None = None,
    *,
    out: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Split a tensor along a dimension, and put each chunk on a device; one on the tensor's own
    device is a view of it.
    """
    arrays = _Arrays()
    targets = None if out is None else [arrays.of(target) for target in out]
    chunks = cuda_comm.scatter(
        arrays.of(tensor), _devices(devices), chunk_sizes, dim, streams, out=targets
    )
    return tuple(map(arrays.back, chunks))


def gather(
    tensors: Sequence[torch.Tensor],
    dim: int = 0,
    destination: Any = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Concatenate tensors from devices along a dimension, on a device (default 0), on the CPU, or
    in ``out``.
    """
    arrays = _Arrays()
    place = destination
    if not isinstance(destination, (int, type(None))):
        number = _get_device_index(destination, allow_cpu=True)
        place = "cpu" if number == CPU else number
    target = None if out is None else arrays.of(out)
    return arrays.back(
        cuda_comm.gather([arrays.of(tensor) for tensor in tensors], dim, place, out=target)
    )


def comm_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the functions of ``torch.cuda.comm``, for the tensors of
    ranks, which are on the CPU and have the place that the script has given them.
    """
    functions = (broadcast, broadcast_coalesced, gather, reduce_add, reduce_add_coalesced, scatter)
    return [
        (owner, function.__name__, in_ranks(getattr(owner, function.__name__), _on_gpus(function)))
        for owner in (comm, parallel_comm)
        for function in functions
    ]


def _on_gpus(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of device tensors, for tensors with places."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        places: Places = current_thread().process.places
        originals: dict[int, tuple[DeviceTensor, torch.Tensor]] = {}

        def to_device(tensor: torch.Tensor) -> torch.Tensor:
            place = places.get(tensor)
            if place == HOST or isinstance(tensor, DeviceTensor):
                return tensor
            twin = on_device(tensor, torch.cuda.current_device() if place is None else place)
            originals[id(twin)] = twin, tensor
            return twin

        def to_plain(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in originals:
                return originals[id(tensor)][1]
            result = tensor.as_subclass(torch.Tensor)
            places.note(result, tensor.number if isinstance(tensor, DeviceTensor) else HOST)
            return result

        arguments = tree_map_only(torch.Tensor, to_device, (args, kwargs))
        return tree_map_only(torch.Tensor, to_plain, function(*arguments[0], **arguments[1]))

    return call
