"""Collectives among the GPUs of one process, as in ``torch.cuda.comm``, on emulated devices.

Names, arguments, defaults, return values and errors follow the documentation of PyTorch 2.8. A tensor on a device is a :class:`DeviceArray`, a
numpy array is a tensor on the CPU. The data is moved by this package's own proved schedules; ``play`` chooses who executes
them (the emulator by default).

One accident of PyTorch is not repeated: its scatter turns complex tensors into real ones with one more dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from simcoll.algorithms import schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from simcoll.plan import Plan

    Array = NDArray[Any]
    Play = Callable[[Plan, Sequence[Array], Sequence[int]], Sequence[Array | None]]

__all__ = ["DeviceArray", "broadcast", "broadcast_coalesced", "gather", "reduce_add", "reduce_add_coalesced", "scatter"]

CPU = -1
BUFFER_BYTES = 10485760


@dataclass(frozen=True, slots=True, eq=False)
class DeviceArray:
    """An array in the memory of a device.

    Attributes
    ----------
    array
        The data.
    device
        Number of the device.
    """

    array: Array
    device: int


Tensor: TypeAlias = "Array | DeviceArray"


def emulated(plan: Plan, inputs: Sequence[Array], devices: Sequence[int]) -> Sequence[Array | None]:  # noqa: ARG001
    """Execute a plan on an emulated crossbar, and return the outputs by rank."""
    from simcoll.emulator import emulate
    from simcoll.topology import crossbar

    machine = crossbar(plan.nranks, "50 GB/s", "1 us")
    return emulate(plan, machine, data=list(inputs), bound=False).outputs or ()


def _content(tensor: Tensor) -> Array:
    return tensor.array if isinstance(tensor, DeviceArray) else np.asarray(tensor)


def _device_of(tensor: Tensor) -> int:
    return tensor.device if isinstance(tensor, DeviceArray) else CPU


def _device(given: Any) -> int:
    """Number of a device given as a number or as ``"cuda:1"``."""
    if isinstance(given, str):
        kind, colon, number = given.partition(":")
        if kind == "cpu":
            raise ValueError(f"Expected a non cpu device, but got: {given}")
        if kind != "cuda" or not colon or not number.isdecimal():
            raise ValueError(f"Expected a cuda device with a specified index such as 'cuda:0', but got: {given}")
        return int(number)
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise ValueError(f"Expected a device number or a text such as 'cuda:0', but got: {given!r}")  # noqa: TRY004 - as PyTorch
    if given < 0:
        raise RuntimeError(f"Expected non-negative device index, but got {given}")
    return int(given)


def _axis(dim: int, dims: int) -> int:
    if not -max(dims, 1) <= dim < max(dims, 1):
        limits = f"[{-max(dims, 1)}, {max(dims, 1) - 1}]"
        raise IndexError(f"Dimension out of range (expected to be in range of {limits}, but got {dim})")
    return dim % max(dims, 1)


def _on_devices(out: Sequence[Tensor]) -> None:
    for index, target in enumerate(out):
        if not isinstance(target, DeviceArray):
            raise RuntimeError(
                f"Expected all output tensors to be CUDA tensors, but output tensor at index {index} has device 'cpu'"
            )  # noqa: TRY004


def scatter(
    tensor: Tensor,
    devices: Iterable[Any] | None = None,
    chunk_sizes: Iterable[int] | None = None,
    dim: int = 0,
    streams: Iterable[Any] | None = None,
    *,
    out: Sequence[DeviceArray] | None = None,
    play: Play = emulated,
) -> tuple[DeviceArray, ...]:
    """Cut a tensor along a dimension and put each chunk on a device.

    Parameters
    ----------
    tensor
        On the CPU or on a device.
    devices
        Where the chunks go; exactly one of ``devices`` and ``out`` is needed.
    chunk_sizes
        Sizes along ``dim``, one for each device; default equal chunks. Not with ``out``.
    dim
        Along which to cut.
    streams
        A stream for each device, or None; the device of one that has any must match.
    out
        Tensors to fill; their sizes along ``dim`` are those of the chunks.
    play
        What executes the schedule.

    Returns
    -------
    tuple
        The chunks, one on its device each; or what was given as ``out``. Equal chunks can be fewer than devices, and a chunk that stays on
        the tensor's device is a view of it.

    Raises
    ------
    RuntimeError, ValueError, IndexError, TypeError
        As PyTorch does.

    Examples
    --------
    >>> [chunk.array.tolist() for chunk in scatter(np.arange(5), [0, 1, 2, 3])]
    [[0, 1], [2, 3], [4]]
    """
    content = _content(tensor)
    axis = _axis(dim, content.ndim)
    if out is None:
        if devices is None:
            raise TypeError("scatter needs 'devices' or 'out'; got neither")
        where = [_device(device) for device in devices]
        chunks = _chunks(content, where, None if chunk_sizes is None else list(chunk_sizes), axis)
        where = where[: len(chunks)]
        _check_streams(streams, where)
    else:
        if devices is not None:
            raise RuntimeError(f"'devices' must not be specified when 'out' is specified, but got devices={devices}")
        if chunk_sizes is not None:
            raise RuntimeError(
                f"'chunk_sizes' must not be specified when 'out' is specified, but got chunk_sizes={chunk_sizes}"
            )
        chunks = _chunks_for(content, out, axis)
        where = [target.device for target in out]
        _check_streams(streams, where)
    moved = _scattered(chunks, where, _device_of(tensor), play)
    if out is None:
        return tuple(DeviceArray(chunk, device) for chunk, device in zip(moved, where, strict=True))
    for target, chunk in zip(out, moved, strict=True):
        target.array[...] = chunk
    return tuple(out)


def _chunks(content: Array, devices: Sequence[int], sizes: Sequence[int] | None, axis: int) -> list[Array]:
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    length = content.shape[axis] if content.ndim else 1
    if sizes is None:
        each = max(1, -(-length // len(devices)))
        sizes = [min(each, length - first) for first in range(0, length, each)] or [0] * len(devices)
    elif len(sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(sizes)}"
        )
    if sum(sizes) != length or min(sizes) < 0:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {length} (input tensor's size at dimension {axis}) "
            f"with non-negative entries, but got split_sizes={list(sizes)}"
        )
    return np.split(np.atleast_1d(content), np.cumsum(sizes)[:-1], axis)


def _chunks_for(content: Array, out: Sequence[DeviceArray], axis: int) -> list[Array]:
    """The chunks that fit the given targets."""
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    _on_devices(out)
    for index, target in enumerate(out):
        shape, expected = list(target.array.shape), list(content.shape)
        if len(shape) != len(expected) or any(
            a != b for d, (a, b) in enumerate(zip(shape, expected, strict=True)) if d != axis
        ):
            raise RuntimeError(
                f"Output tensor at index {index} has incorrect shape: {shape}. Expected same shape except for scatter dim {axis} "
                f"as the source tensor: {expected}"
            )
    sizes = [target.array.shape[axis] for target in out]
    if sum(sizes) != content.shape[axis]:
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {axis} does not match the source tensor size at dim {axis}. "
            f"Expected {content.shape[axis]}, but got total size {sum(sizes)}"
        )
    return np.split(content, np.cumsum(sizes)[:-1], axis)


def _check_streams(streams: Iterable[Any] | None, devices: Sequence[int]) -> None:
    for index, (stream, device) in enumerate(zip(streams or (), devices, strict=False)):
        own = getattr(stream, "device", None)
        if own is not None and _device(own) != device:
            raise RuntimeError(
                f"Expected the device associated with the stream at index {index} (was {own}) to match the device supplied "
                f"at that index (expected {device})"
            )


def _scattered(chunks: Sequence[Array], devices: Sequence[int], home: int, play: Play) -> list[Array]:
    """Chunks at their devices: those for other devices go through a scatter of which the source is rank 0."""
    away = [index for index, device in enumerate(devices) if device != home]
    if not away:
        return list(chunks)
    sizes = [0, *(chunks[index].size for index in away)]
    plan = schedule("scatter", "linear", nranks=len(sizes)).bind(sizes, chunks[0].dtype)
    source = np.concatenate([chunks[index].reshape(-1) for index in away])
    nothing = np.zeros(0, source.dtype)
    outputs = play(plan, [source, *(nothing for _ in away)], [home, *(devices[index] for index in away)])
    result = list(chunks)
    for rank, index in enumerate(away, 1):
        result[index] = _given(outputs[rank]).reshape(chunks[index].shape)
    return result


def _given(output: Array | None) -> Array:
    if output is None:
        from simcoll.errors import InternalError

        raise InternalError("a schedule gave no output where its collective has one")
    return output


def broadcast(
    tensor: Tensor,
    devices: Iterable[Any] | None = None,
    *,
    out: Sequence[DeviceArray] | None = None,
    play: Play = emulated,
) -> tuple[DeviceArray, ...]:
    """Copy a tensor to devices, or to the tensors ``out``; on its own device it is the result itself.

    Raises
    ------
    RuntimeError, ValueError
        Unless exactly one of ``devices`` and ``out`` is given; for targets on the CPU or of another shape.

    Examples
    --------
    >>> [copy.device for copy in broadcast(np.arange(3), ["cuda:1", "cuda:0"])]
    [1, 0]
    """
    if (devices is None) == (out is None):
        raise RuntimeError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}"
        )
    content, home = _content(tensor), _device_of(tensor)
    if out is None:
        where = [_device(device) for device in devices or ()]
    else:
        _on_devices(out)
        for index, target in enumerate(out):
            if target.array.shape != content.shape:
                raise RuntimeError(
                    "Expected all output tensors to have same shape as the source tensor "
                    f"{list(content.shape)}, but output tensor at index {index} has shape {list(target.array.shape)}"
                )
        where = [target.device for target in out]
    away = [device for device in where if device != home]
    copies: Iterable[Array] = iter(())
    if away:
        plan = schedule("broadcast", "tree", nranks=len(away) + 1).bind(content.size, content.dtype)
        nothing = np.zeros(0, content.dtype)
        outputs = play(plan, [content.reshape(-1), *(nothing for _ in away)], [home, *away])
        copies = iter([_given(output).reshape(content.shape) for output in outputs[1:]])
    found = [content if device == home else next(iter(copies)) for device in where]
    if out is None:
        return tuple(DeviceArray(copy, device) for copy, device in zip(found, where, strict=True))
    for target, copy in zip(out, found, strict=True):
        target.array[...] = copy
    return tuple(out)


def _buckets(tensors: Sequence[Array], buffer_size: int) -> list[list[int]]:
    """Positions of neighbouring tensors of one dtype that together fit a buffer, in the order of the first of each."""
    if buffer_size <= 0:
        raise ValueError(f"buffer_size must be above 0, but got {buffer_size}")
    result: list[list[int]] = []
    filling: dict[str, tuple[list[int], int]] = {}
    for index, tensor in enumerate(tensors):
        bucket, size = filling.get(tensor.dtype.name, ([], buffer_size))
        if size + tensor.nbytes > buffer_size:
            bucket, size = [], 0
            result.append(bucket)
        bucket.append(index)
        filling[tensor.dtype.name] = (bucket, size + tensor.nbytes)
    return result


def _cut(flat: Array, like: Sequence[Array]) -> list[Array]:
    ends = np.cumsum([part.size for part in like])[:-1]
    return [piece.reshape(part.shape) for piece, part in zip(np.split(flat, ends), like, strict=True)]


def broadcast_coalesced(
    tensors: Sequence[DeviceArray], devices: Iterable[Any], buffer_size: int = BUFFER_BYTES, *, play: Play = emulated
) -> tuple[tuple[DeviceArray, ...], ...]:
    """Copy several tensors to devices, small ones together in buffers.

    Parameters
    ----------
    tensors
        All on ``devices[0]``.
    devices
        Where they go.
    buffer_size
        Bytes of a buffer.

    Returns
    -------
    tuple
        For every device the tensors on it.
    """
    where = [_device(device) for device in devices]
    if not where:
        raise RuntimeError("Expected at least one device to broadcast to")
    if any(_device_of(tensor) != where[0] for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {where[0]}")
    contents = [_content(tensor) for tensor in tensors]
    found: list[list[Any]] = [list(tensors) if device == where[0] else [None] * len(contents) for device in where]
    for bucket in _buckets(contents, buffer_size):
        parts = [contents[index] for index in bucket]
        flat = DeviceArray(np.concatenate([part.reshape(-1) for part in parts]), where[0])
        for position, copy in enumerate(broadcast(flat, where, play=play)):
            if copy.device != where[0]:
                for index, piece in zip(bucket, _cut(copy.array, parts), strict=True):
                    found[position][index] = DeviceArray(piece, copy.device)
    return tuple(tuple(row) for row in found)


def reduce_add(inputs: Sequence[DeviceArray], destination: Any = None, *, play: Play = emulated) -> DeviceArray:
    """The sum of tensors of one shape on different devices.

    Parameters
    ----------
    inputs
        The tensors; one of them on the destination.
    destination
        Device of the result; default 0.

    Raises
    ------
    RuntimeError, ValueError
        For tensors on the CPU or of different shapes, or a destination without a tensor.

    Examples
    --------
    >>> reduce_add([DeviceArray(np.array([1.0, 2.0]), device) for device in range(3)]).array.tolist()
    [3.0, 6.0]
    """
    if not inputs:
        raise RuntimeError("reduce_add expects at least one tensor")
    place = 0 if destination is None else _device(destination)
    root = None
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, DeviceArray):
            raise RuntimeError("reduce_add expects all inputs to be on GPUs")  # noqa: TRY004 - as PyTorch
        if tensor.device == place:
            root = index
        shape, expected = tensor.array.shape, inputs[0].array.shape
        if shape != expected or tensor.array.dtype != inputs[0].array.dtype:
            got, wanted = (f"{'x'.join(map(str, t.array.shape))} of {t.array.dtype}" for t in (tensor, inputs[0]))
            raise ValueError(f"input {index} has invalid size: got {got}, but expected {wanted}")
    if root is None:
        raise RuntimeError("reduce_add expects destination to be on the same GPU with one of the tensors")
    if len(inputs) == 1:
        return inputs[0]
    first = inputs[0].array
    plan = schedule("reduce", "tree", nranks=len(inputs), root=root).bind(first.size, first.dtype)
    flat = [tensor.array.reshape(-1) for tensor in inputs]
    outputs = play(plan, flat, [tensor.device for tensor in inputs])
    return DeviceArray(_given(outputs[root]).reshape(first.shape), place)


def reduce_add_coalesced(
    inputs: Sequence[Sequence[DeviceArray]],
    destination: Any = None,
    buffer_size: int = BUFFER_BYTES,
    *,
    play: Play = emulated,
) -> tuple[DeviceArray, ...]:
    """Sums of several tensors over devices, small ones together in buffers.

    Parameters
    ----------
    inputs
        For every device its tensors, alike in number and shapes.
    destination
        Device of the results; default 0.
    buffer_size
        Bytes of a buffer.
    """
    if not inputs or any(len(row) != len(inputs[0]) for row in inputs):
        raise RuntimeError("reduce_add_coalesced expects as many tensors from every device, at least one")
    place = 0 if destination is None else _device(destination)
    contents = [[_content(tensor) for tensor in row] for row in inputs]
    for row, other in zip(contents, inputs, strict=True):
        for index, (part, expected) in enumerate(zip(row, contents[0], strict=True)):
            if (
                part.shape != expected.shape
                or part.dtype != expected.dtype
                or _device_of(other[index]) != _device_of(other[0])
            ):
                raise ValueError(f"tensor {index} differs in shape, dtype or device from the others")
    found: list[Any] = [None] * len(contents[0])
    for bucket in _buckets(contents[0], buffer_size):
        flat = [
            DeviceArray(np.concatenate([row[index].reshape(-1) for index in bucket]), _device_of(given[0]))
            for row, given in zip(contents, inputs, strict=True)
        ]
        total = reduce_add(flat, place, play=play)
        for index, piece in zip(bucket, _cut(total.array, [contents[0][index] for index in bucket]), strict=True):
            found[index] = DeviceArray(piece, place)
    return tuple(found)


def gather(
    tensors: Sequence[DeviceArray],
    dim: int = 0,
    destination: Any = None,
    *,
    out: DeviceArray | None = None,
    play: Play = emulated,
) -> Tensor:
    """Concatenate tensors from devices along a dimension.

    Parameters
    ----------
    tensors
        Alike in shape except along ``dim``.
    dim
        Along which they are joined.
    destination
        Device of the result, or ``"cpu"``; default 0. Not with ``out``.
    out
        Tensor to fill.

    Raises
    ------
    RuntimeError, IndexError
        For tensors on the CPU, shapes that do not fit, or both ``destination`` and ``out``.
    """
    if out is not None and destination is not None:
        raise RuntimeError(
            f"'destination' must not be specified when 'out' is specified, but got destination={destination}"
        )
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, DeviceArray):
            raise RuntimeError(
                f"Expected all input tensors to be CUDA tensors, but tensor at index {index} has device 'cpu'"
            )  # noqa: TRY004
    parts = [np.atleast_1d(tensor.array) for tensor in tensors]
    axis = _axis(dim, parts[0].ndim)
    for index, part in enumerate(parts):
        same = part.ndim == parts[0].ndim and part.dtype == parts[0].dtype
        if not same or any(
            a != b for d, (a, b) in enumerate(zip(part.shape, parts[0].shape, strict=True)) if d != axis
        ):
            raise RuntimeError(
                f"Input tensor at index {index} has invalid shape {list(part.shape)}, but expected "
                f"{[*parts[0].shape[:axis], '*', *parts[0].shape[axis + 1 :]]} of {parts[0].dtype}"
            )
    place = (
        out.device
        if out is not None
        else 0
        if destination is None
        else CPU
        if destination == "cpu"
        else _device(destination)
    )
    sizes = [0, *(part.size for part in parts)]
    plan = schedule("gather", "linear", nranks=len(sizes)).bind(sizes, parts[0].dtype)
    flat = [np.zeros(0, parts[0].dtype), *(part.reshape(-1) for part in parts)]
    whole = _given(play(plan, flat, [place, *(tensor.device for tensor in tensors)])[0])
    joined = np.concatenate(_cut(whole, parts), axis)
    if out is None:
        return joined if place == CPU else DeviceArray(joined, place)
    if out.array.shape != joined.shape:
        raise RuntimeError(f"Expected out tensor to have shape {list(joined.shape)}, but got {list(out.array.shape)}")
    out.array[...] = joined
    return out
