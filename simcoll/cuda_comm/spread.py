"""One tensor to many devices: scatter and broadcast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from simcoll.algorithms import schedule
from simcoll.arrays import Array
from simcoll.binding import bind
from simcoll.cuda_comm.emulated_devices import (
    BUFFER_BYTES,
    CPU,
    DeviceArray,
    Play,
    Tensor,
    axis_of,
    buckets,
    check_on_devices,
    content_of,
    device_number,
    device_of,
    handed_over,
    play_on_emulator,
    required_output,
    split_like,
)

__all__ = ["broadcast", "broadcast_coalesced", "scatter"]


def scatter(
    tensor: Tensor,
    devices: Iterable[Any] | None = None,
    chunk_sizes: Iterable[int] | None = None,
    dim: int = 0,
    streams: Iterable[Any] | None = None,
    *,
    out: Sequence[DeviceArray] | None = None,
    play: Play = play_on_emulator,
) -> tuple[DeviceArray, ...]:
    """Split a tensor along a dimension, and put each chunk on a device.

    Parameters
    ----------
    tensor
        On the CPU or on a device.
    devices
        Destinations of the chunks; exactly one of ``devices`` and ``out`` is needed.
    chunk_sizes
        Sizes along ``dim``, one for each device; default: equal chunks. Not together with ``out``.
    dim
        The dimension to split.
    streams
        A stream for each device, or None; the device of a stream must match.
    out
        Tensors to fill; their sizes along ``dim`` are those of the chunks.
    play
        Executes the schedule.

    Returns
    -------
    tuple
        The chunks, each on its device, or ``out``. Equal chunks can be fewer than devices, and a
        chunk that stays on the tensor's device is a view of it.

    Raises
    ------
    RuntimeError, ValueError, IndexError, TypeError
        As in PyTorch.

    Examples
    --------
    >>> [chunk.array.tolist() for chunk in scatter(np.arange(5), [0, 1, 2, 3])]
    [[0, 1], [2, 3], [4]]
    """
    content = content_of(tensor)
    if out is None:
        if devices is None:
            raise TypeError("scatter needs 'devices' or 'out'; got neither")
        targets = [device_number(device) for device in devices]
        chunks = _chunks(content, targets, None if chunk_sizes is None else list(chunk_sizes), dim)
        targets = targets[: len(chunks)]
        _check_streams(streams, targets, device_of(tensor))
    else:
        if devices is not None:
            raise RuntimeError(
                "'devices' must not be specified when 'out' is specified, but got "
                f"devices={devices}"
            )
        if chunk_sizes is not None:
            raise RuntimeError(
                "'chunk_sizes' must not be specified when 'out' is specified, but got "
                f"chunk_sizes={chunk_sizes}"
            )
        chunks = _chunks_for(content, out, axis_of(dim, content.ndim))
        targets = [target.device for target in out]
        _check_streams(streams, targets)
    return handed_over(_scatter_chunks(chunks, targets, device_of(tensor), play), targets, out)


def _chunks(
    content: Array, devices: Sequence[int], sizes: Sequence[int] | None, dim: int
) -> list[Array]:
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if not content.ndim:
        raise RuntimeError(
            f"{'chunk' if sizes is None else 'split'} expects at least a 1-dimensional tensor"
        )
    axis = axis_of(dim, content.ndim)
    length = content.shape[axis]
    if sizes is None:
        chunk_size = max(1, -(-length // len(devices)))
        sizes = [min(chunk_size, length - begin) for begin in range(0, length, chunk_size)] or [
            0
        ] * len(devices)
    elif len(sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(sizes)}"
        )
    if min(sizes) < 0:
        raise RuntimeError(
            "split_with_sizes expects split_sizes have only non-negative entries, but got "
            f"split_sizes={list(sizes)}"
        )
    if sum(sizes) != length:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {length} (input tensor's size "
            f"at dimension {axis}), but got "
            f"split_sizes={list(sizes)}"
        )
    return np.split(content, np.cumsum(sizes)[:-1], axis)


def _chunks_for(content: Array, out: Sequence[DeviceArray], axis: int) -> list[Array]:
    """The chunks that fit the output tensors."""
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    check_on_devices(out)
    for index, target in enumerate(out):
        shape, expected = list(target.array.shape), list(content.shape)
        if len(shape) != len(expected) or any(
            a != b for d, (a, b) in enumerate(zip(shape, expected, strict=True)) if d != axis
        ):
            raise RuntimeError(
                f"Output tensor at index {index} has incorrect shape: {shape}. Expected same shape "
                f"except for scatter dim {axis} "
                f"as the source tensor: {expected}"
            )
    sizes = [target.array.shape[axis] for target in out]
    if sum(sizes) != content.shape[axis]:
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {axis} does not match the source "
            f"tensor size at dim {axis}. "
            f"Expected {content.shape[axis]}, but got total size {sum(sizes)}"
        )
    return np.split(content, np.cumsum(sizes)[:-1], axis)


def _check_streams(streams: Iterable[Any] | None, devices: Sequence[int], home: int = CPU) -> None:
    for index, (stream, device) in enumerate(zip(streams or (), devices, strict=False)):
        stream_device = getattr(stream, "device", None)
        if stream_device is not None and device != home and device_number(stream_device) != device:
            raise RuntimeError(
                f"Expected the device associated with the stream at index {index} (was "
                f"{device_number(stream_device)}) "
                f"to match the device supplied at that index (expected {device})"
            )


def _scatter_chunks(
    chunks: Sequence[Array], devices: Sequence[int], home: int, play: Play
) -> list[Array]:
    """The chunks on their devices; those for other devices go through a scatter whose source is
    rank 0.
    """
    away = [index for index, device in enumerate(devices) if device != home]
    if not away:
        return list(chunks)
    sizes = [0, *(chunks[index].size for index in away)]
    plan = bind(schedule("scatter", "linear", nranks=len(sizes)), sizes, chunks[0].dtype)
    source = np.concatenate([chunks[index].reshape(-1) for index in away])
    nothing = np.zeros(0, source.dtype)
    outputs = play(
        plan, [source, *(nothing for _ in away)], [home, *(devices[index] for index in away)]
    )
    result = list(chunks)
    for rank, index in enumerate(away, 1):
        result[index] = required_output(outputs[rank]).reshape(chunks[index].shape)
    return result


def broadcast(
    tensor: Tensor,
    devices: Iterable[Any] | None = None,
    *,
    out: Sequence[DeviceArray] | None = None,
    play: Play = play_on_emulator,
) -> tuple[DeviceArray, ...]:
    """Copy a tensor to devices, or to the tensors ``out``; on its own device it is not copied.

    Raises
    ------
    RuntimeError, ValueError
        Unless exactly one of ``devices`` and ``out`` is given; for outputs on the CPU or of another
        shape.

    Examples
    --------
    >>> [copy.device for copy in broadcast(np.arange(3), ["cuda:1", "cuda:0"])]
    [1, 0]
    """
    if (devices is None) == (out is None):
        raise RuntimeError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and "
            f"out={out}"
        )
    content, home = content_of(tensor), device_of(tensor)
    if out is None:
        targets = [device_number(device) for device in devices or ()]
    else:
        check_on_devices(out)
        for index, target in enumerate(out):
            if target.array.shape != content.shape:
                raise RuntimeError(
                    "Expected all output tensors to have same shape as the source tensor "
                    f"{list(content.shape)}, but output tensor at index {index} has shape "
                    f"{list(target.array.shape)}"
                )
        targets = [target.device for target in out]
    away = [device for device in targets if device != home]
    copies: Iterator[Array] = iter(())
    if away:
        plan = bind(
            schedule("broadcast", "tree", nranks=len(away) + 1), content.size, content.dtype
        )
        nothing = np.zeros(0, content.dtype)
        outputs = play(plan, [content.reshape(-1), *(nothing for _ in away)], [home, *away])
        copies = iter([required_output(output).reshape(content.shape) for output in outputs[1:]])
    copies_by_target = [content if device == home else next(copies) for device in targets]
    return handed_over(copies_by_target, targets, out)


def broadcast_coalesced(
    tensors: Sequence[DeviceArray],
    devices: Iterable[Any],
    buffer_size: int = BUFFER_BYTES,
    *,
    play: Play = play_on_emulator,
) -> tuple[tuple[DeviceArray, ...], ...]:
    """Copy several tensors to devices, with small tensors coalesced in buffers.

    Parameters
    ----------
    tensors
        The tensors, all on ``devices[0]``.
    devices
        Destinations.
    buffer_size
        Size of a buffer in bytes.

    Returns
    -------
    tuple
        For every device, the tensors on it.
    """
    targets = [device_number(device) for device in devices]
    if not targets:
        raise RuntimeError("Expected at least one device to broadcast to")
    if any(device_of(tensor) != targets[0] for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {targets[0]}")
    contents = [content_of(tensor) for tensor in tensors]
    rows: list[list[Any]] = [
        list(tensors) if device == targets[0] else [None] * len(contents) for device in targets
    ]
    for bucket in buckets(contents, buffer_size):
        parts = [contents[index] for index in bucket]
        flat = DeviceArray(np.concatenate([part.reshape(-1) for part in parts]), targets[0])
        for position, copy in enumerate(broadcast(flat, targets, play=play)):
            if copy.device != targets[0]:
                for index, piece in zip(bucket, split_like(copy.array, parts), strict=True):
                    rows[position][index] = DeviceArray(piece, copy.device)
    return tuple(tuple(row) for row in rows)
