"""Many devices to one: reduce_add and gather."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from simcoll.algorithms import schedule
from simcoll.binding import bind
from simcoll.cuda_comm.emulated_devices import (
    BUFFER_BYTES,
    CPU,
    DeviceArray,
    Play,
    Tensor,
    axis_of,
    buckets,
    content_of,
    device_number,
    device_of,
    play_on_emulator,
    required_output,
    split_like,
)

__all__ = ["gather", "reduce_add", "reduce_add_coalesced"]


def reduce_add(
    inputs: Sequence[DeviceArray], destination: Any = None, *, play: Play = play_on_emulator
) -> DeviceArray:
    """The sum of tensors of one shape on different devices.

    Parameters
    ----------
    inputs
        The tensors; one of them on the destination.
    destination
        Device of the result; default 0.

    Raises
    ------
    AssertionError, ValueError, RuntimeError
        For tensors on the CPU or of different shapes, and for a destination without a tensor, as in
        PyTorch.

    Examples
    --------
    >>> parts = [DeviceArray(np.array([1.0, 2.0]), device) for device in range(3)]
    >>> reduce_add(parts).array.tolist()
    [3.0, 6.0]
    """
    if not inputs:
        raise IndexError("reduce_add expects at least one tensor")
    place = 0 if destination is None else device_number(destination)
    root = None
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, DeviceArray):
            raise AssertionError(  # noqa: TRY004 - as PyTorch
                f"reduce_add expects all inputs to be on GPUs, but input {index} is on CPU"
            )
        if tensor.device == place:
            root = index
        shape, expected = tensor.array.shape, inputs[0].array.shape
        if shape != expected:
            actual_text, expected_text = ("x".join(map(str, sizes)) for sizes in (shape, expected))
            raise ValueError(
                f"input {index} has invalid size: got {actual_text}, but expected {expected_text}"
            )
        if tensor.array.dtype != inputs[0].array.dtype:
            raise ValueError(
                f"input {index} is of {tensor.array.dtype}, but input 0 is of "
                f"{inputs[0].array.dtype}"
            )
    if root is None:
        raise RuntimeError(
            "reduce_add expects destination to be on the same GPU with one of the tensors"
        )
    if len(inputs) == 1:
        return inputs[0]
    template = inputs[0].array
    plan = bind(
        schedule("reduce", "tree", nranks=len(inputs), root=root), template.size, template.dtype
    )
    flat = [tensor.array.reshape(-1) for tensor in inputs]
    outputs = play(plan, flat, [tensor.device for tensor in inputs])
    return DeviceArray(required_output(outputs[root]).reshape(template.shape), place)


def reduce_add_coalesced(
    inputs: Sequence[Sequence[DeviceArray]],
    destination: Any = None,
    buffer_size: int = BUFFER_BYTES,
    *,
    play: Play = play_on_emulator,
) -> tuple[DeviceArray, ...]:
    """Sum several tensors over devices, with small tensors coalesced in buffers.

    Parameters
    ----------
    inputs
        The tensors of every device, equal in number and shapes.
    destination
        Device of the results; default 0.
    buffer_size
        Size of a buffer in bytes.
    """
    if any(len(row) != len(inputs[0]) for row in inputs):
        raise ValueError("reduce_add_coalesced expects as many tensors from every device")
    place = 0 if destination is None else device_number(destination)
    contents = [[content_of(tensor) for tensor in row] for row in inputs]
    templates = contents[0] if contents else []
    for row, tensors in zip(contents, inputs, strict=True):
        for index, (part, expected) in enumerate(zip(row, templates, strict=True)):
            if (
                part.shape != expected.shape
                or part.dtype != expected.dtype
                or device_of(tensors[index]) != device_of(tensors[0])
            ):
                raise ValueError(
                    f"tensor {index} differs in shape, dtype or device from the others"
                )
    sums: list[Any] = [None] * len(templates)
    for bucket in buckets(templates, buffer_size):
        flat = [
            DeviceArray(
                np.concatenate([row[index].reshape(-1) for index in bucket]), device_of(tensors[0])
            )
            for row, tensors in zip(contents, inputs, strict=True)
        ]
        total = reduce_add(flat, place, play=play)
        for index, piece in zip(
            bucket, split_like(total.array, [templates[index] for index in bucket]), strict=True
        ):
            sums[index] = DeviceArray(piece, place)
    return tuple(sums)


def gather(
    tensors: Sequence[DeviceArray],
    dim: int = 0,
    destination: Any = None,
    *,
    out: Tensor | None = None,
    play: Play = play_on_emulator,
) -> Tensor:
    """Concatenate tensors from devices along a dimension.

    Parameters
    ----------
    tensors
        Equal in shape except along ``dim``.
    dim
        The dimension along which they are concatenated.
    destination
        Device of the result, or ``"cpu"`` (also -1, with a warning); default 0. Not together with
        ``out``.
    out
        Tensor to fill, on a device or on the CPU.

    Raises
    ------
    RuntimeError, IndexError
        For tensors on the CPU, shapes that do not fit, or both ``destination`` and ``out``.
    """
    if out is not None and destination is not None:
        raise RuntimeError(
            "'destination' must not be specified when 'out' is specified, but got "
            f"destination={destination}"
        )
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    cpu = "cpu" if out is None else "'cpu'"
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, DeviceArray):
            raise RuntimeError(  # noqa: TRY004 - as PyTorch
                f"Expected all input tensors to be CUDA tensors, but tensor at index {index} has "
                f"device {cpu}"
            )
    template = tensors[0].array
    parts = [tensor.array.astype(template.dtype, copy=False) for tensor in tensors]
    axis = axis_of(dim, template.ndim)
    for index, part in enumerate(parts):
        if part.ndim != template.ndim:
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at "
                f"index {index} has {part.ndim} "
                f"dimensions, (expected {template.ndim})"
            )
        expected = [*template.shape[:axis], part.shape[axis], *template.shape[axis + 1 :]]
        if list(part.shape) != expected:
            raise RuntimeError(
                f"Input tensor at index {index} has invalid shape {list(part.shape)}, but expected "
                f"{expected}"
            )
    place = _place(destination) if out is None else device_of(out)
    sizes = [0, *(part.size for part in parts)]
    plan = bind(schedule("gather", "linear", nranks=len(sizes)), sizes, template.dtype)
    flat = [np.zeros(0, template.dtype), *(part.reshape(-1) for part in parts)]
    gathered = required_output(play(plan, flat, [place, *(tensor.device for tensor in tensors)])[0])
    joined = np.concatenate(split_like(gathered, parts), axis)
    if out is None:
        return joined if place == CPU else DeviceArray(joined, place)
    target = content_of(out)
    if target.shape != joined.shape:
        raise RuntimeError(
            f"Expected out tensor to have shape {list(joined.shape)}, but got {list(target.shape)}"
        )
    target[...] = joined
    return out


def _place(destination: Any) -> int:
    """Device of the result of a gather."""
    if destination is None:
        return 0
    if isinstance(destination, int) and destination == CPU:
        warnings.warn(
            "Using -1 to represent CPU tensor is deprecated. Please use a device object or string "
            'instead, e.g., "cpu".',
            FutureWarning,
            stacklevel=3,
        )
        return CPU
    return CPU if destination == "cpu" else device_number(destination)
