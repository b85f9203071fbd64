"""Tensors on emulated devices, buckets of tensors, and the execution of plans among devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from simcoll.arrays import Array
from simcoll.core.array_views import array_on, is_tensor
from simcoll.core.plan import Plan

Play = Callable[[Plan, Sequence[Array], Sequence[int]], Sequence[Array | None]]

__all__ = [
    "BUFFER_BYTES",
    "CPU",
    "DeviceArray",
    "Tensor",
    "axis_of",
    "buckets",
    "check_on_devices",
    "content_of",
    "device_number",
    "device_of",
    "handed_over",
    "play_on_emulator",
    "required_output",
    "split_like",
]

CPU = -1
"""The CPU, in place of a device number."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceArray:
    """An array in the memory of a device.

    Attributes
    ----------
    array
        The data; for a torch CPU tensor, an array on its memory.
    device
        Number of the device.
    """

    array: Array
    device: int

    def __post_init__(self) -> None:
        """Replace a torch tensor by an array on its memory."""
        if is_tensor(self.array):
            object.__setattr__(self, "array", array_on(self.array))


Tensor: TypeAlias = "Array | DeviceArray"


def play_on_emulator(
    plan: Plan,
    inputs: Sequence[Array],
    devices: Sequence[int],  # noqa: ARG001
) -> Sequence[Array | None]:
    """Execute a plan on an emulated crossbar, and return the outputs by rank."""
    from simcoll.emulator import emulate
    from simcoll.topology import crossbar

    machine = crossbar(plan.nranks, "50 GB/s", "1 us")
    return emulate(plan, machine, data=list(inputs), bound=False).outputs or ()


def content_of(tensor: Tensor) -> Array:
    """The array of a tensor."""
    if isinstance(tensor, DeviceArray):
        return tensor.array
    array = array_on(tensor)
    return np.asarray(tensor) if array is None else array


def device_of(tensor: Tensor) -> int:
    """The device of a tensor; ``CPU`` for a numpy array."""
    return tensor.device if isinstance(tensor, DeviceArray) else CPU


def device_number(device: Any) -> int:
    """Parse a device, given as a number or as ``"cuda:1"``."""
    if isinstance(device, str):
        kind, colon, number = device.partition(":")
        if kind == "cpu":
            raise ValueError(f"Expected a non cpu device, but got: {device}")
        if kind != "cuda" or not colon or not number.isdecimal():
            raise ValueError(
                f"Expected a cuda device with a specified index such as 'cuda:0', but got: {device}"
            )
        return int(number)
    if isinstance(device, bool) or not isinstance(device, (int, np.integer)):
        raise ValueError(  # noqa: TRY004 - as PyTorch
            f"Expected a device number or a text such as 'cuda:0', but got: {device!r}"
        )
    if device < 0:
        raise RuntimeError(f"Expected non-negative device index, but got {device}")
    return int(device)


def axis_of(dim: int, dims: int) -> int:
    """Normalise a dimension to a non-negative index."""
    if not dims:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    if not -dims <= dim < dims:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-dims}, {dims - 1}], but got "
            f"{dim})"
        )
    return dim % dims


def check_on_devices(out: Sequence[Tensor]) -> None:
    """Refuse output tensors on the CPU."""
    for index, target in enumerate(out):
        if not isinstance(target, DeviceArray):
            raise RuntimeError(  # noqa: TRY004 - as PyTorch
                "Expected all output tensors to be CUDA tensors, but output tensor at index "
                f"{index} has device 'cpu'"
            )


def required_output(output: Array | None) -> Array:
    """The output of a rank that must have one."""
    if output is None:
        from simcoll.errors import InternalError

        raise InternalError("a schedule gave no output where its collective has one")
    return output


def handed_over(
    results: Sequence[Array], devices: Sequence[int], out: Sequence[DeviceArray] | None
) -> tuple[DeviceArray, ...]:
    """Place results on their devices, or copy them to the caller's tensors."""
    if out is None:
        return tuple(map(DeviceArray, results, devices))
    for target, result in zip(out, results, strict=True):
        target.array[...] = result
    return tuple(out)


BUFFER_BYTES = 10485760
"""PyTorch's default."""


def buckets(tensors: Sequence[Array], buffer_size: int) -> list[list[int]]:
    """Group consecutive tensors of one dtype that fit a buffer, ordered by each bucket's first
    tensor.
    """
    if buffer_size <= 0:
        raise ValueError(f"buffer_size must be above 0, but got {buffer_size}")
    result: list[list[int]] = []
    filling: dict[str, tuple[list[int], int]] = {}
    for index, tensor in enumerate(tensors):
        bucket, size = filling.get(tensor.dtype.name, ([], 0))
        if not bucket or (size and size + tensor.nbytes > buffer_size):
            bucket, size = [], 0
            result.append(bucket)
        bucket.append(index)
        filling[tensor.dtype.name] = (bucket, size + tensor.nbytes)
    return result


def split_like(flat: Array, like: Sequence[Array]) -> list[Array]:
    """Split a buffer into tensors shaped like others."""
    ends = np.cumsum([part.size for part in like])[:-1]
    return [
        piece.reshape(part.shape) for piece, part in zip(np.split(flat, ends), like, strict=True)
    ]
