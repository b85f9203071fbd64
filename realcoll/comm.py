"""Collectives among the GPUs of one process, as in ``torch.cuda.comm``, on real GPUs.

The same functions as in :mod:`simcoll.cuda_comm`, on CuPy arrays; numpy arrays are tensors on the
CPU. The same proved schedules move the data, by copies from device to device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from realcoll.transports import kernels
from realcoll.transports.nccl import load_cupy
from realcoll.turns import STAGING, Span, part
from simcoll import cuda_comm as comm
from simcoll.core.plan import INPUT, OUTPUT, Plan
from simcoll.cuda_comm import DeviceArray
from simcoll.cuda_comm.emulated_devices import device_number, device_of

__all__ = [
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
]

ANY_TO_ANY = 4
"""cudaMemcpyDefault: CUDA infers the direction from the addresses."""


def _is_cupy(array: Any) -> bool:
    return hasattr(getattr(array, "device", None), "id")  # numpy's device is the text "cpu"


def _place(tensor: Any) -> Any:
    return DeviceArray(tensor, int(tensor.device.id)) if _is_cupy(tensor) else np.asarray(tensor)


def _bare(tensors: Iterable[DeviceArray]) -> tuple[Any, ...]:
    return tuple(tensor.array for tensor in tensors)


def on_gpus(plan: Plan, inputs: Sequence[Any], devices: Sequence[int]) -> list[Any]:
    """Execute a plan whose rank r is on GPU ``devices[r]`` (below 0: the CPU, which uses GPU 0),
    and return the outputs by rank.
    """
    cupy, _ = load_cupy()
    gpu = [max(0, device) for device in devices]
    itemsize, dtype = plan.dtype.itemsize, kernels.device_dtype(plan.dtype)
    program = part(plan, [0] * plan.nranks, 0)
    memory: dict[int, list[Any]] = {}
    for rank, sizes in enumerate(plan.buffer_elements().tolist()):
        with cupy.cuda.Device(gpu[rank]):
            memory[rank] = [cupy.empty(max(1, size * itemsize), cupy.uint8) for size in sizes]
    root = plan.collective.root or 0  # where operands meet
    with cupy.cuda.Device(gpu[root]):
        memory[STAGING] = [cupy.empty(max(1, program.staging_bytes[0]), cupy.uint8)]

    def buffer_of(span: Span) -> Any:
        rank, buffer = span[:2]
        return memory[rank][buffer]

    def view(span: Span) -> Any:
        begin, size = span[2:]
        return buffer_of(span)[begin : begin + size].view(dtype)

    def address(span: Span) -> int:
        begin = span[2]
        return int(buffer_of(span).data.ptr) + begin

    def move(target: Span, source: Span) -> None:
        size = source[3]
        cupy.cuda.runtime.memcpy(address(target), address(source), size, ANY_TO_ANY)

    for rank, values in enumerate(inputs):
        buffer, offset, length = plan.view(rank, INPUT)
        if not length:
            continue
        target: Span = (rank, buffer, offset * itemsize, length * itemsize)
        with cupy.cuda.Device(gpu[rank]):
            flat = cupy.ascontiguousarray(values) if _is_cupy(values) else cupy.asarray(values)
            cupy.cuda.runtime.memcpy(address(target), flat.data.ptr, target[3], ANY_TO_ANY)
    with cupy.cuda.Device(gpu[root]):
        reduce = (
            kernels.reducer(cupy, plan.op, plan.dtype) if plan.collective.spec.reduces else None
        )
        for turn in program.lanes[0]:
            for copy, original in turn.aside:
                move(copy, original)
            sent = deque(span for span, _, _ in turn.sends)
            for landing, _, _ in turn.recvs:
                move(landing, sent.popleft())
            for operation in turn.afterwards:
                if operation.combines and reduce is not None:
                    reduce(view(operation.target), view(operation.source))
                else:
                    move(operation.target, operation.source)
        cupy.cuda.runtime.deviceSynchronize()
    outputs = []
    for rank in range(plan.nranks):
        buffer, offset, length = plan.view(rank, OUTPUT)
        outputs.append(view((rank, buffer, offset * itemsize, length * itemsize)))
    return outputs


def scatter(
    tensor: Any,
    devices: Iterable[Any] | None = None,
    chunk_sizes: Iterable[int] | None = None,
    dim: int = 0,
    streams: Iterable[Any] | None = None,
    *,
    out: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """Split a tensor along a dimension, and put each chunk on a GPU: see
    :func:`simcoll.cuda_comm.scatter`.
    """
    targets = None if out is None else [_place(target) for target in out]
    source = _place(tensor)
    # What CuPy makes is made on the current device.
    with load_cupy()[0].cuda.Device(max(0, device_of(source))):
        return _bare(
            comm.scatter(source, devices, chunk_sizes, dim, streams, out=targets, play=on_gpus)
        )


def broadcast(
    tensor: Any, devices: Iterable[Any] | None = None, *, out: Sequence[Any] | None = None
) -> tuple[Any, ...]:
    """Copy a tensor to GPUs: see :func:`simcoll.cuda_comm.broadcast`."""
    targets = None if out is None else [_place(target) for target in out]
    return _bare(comm.broadcast(_place(tensor), devices, out=targets, play=on_gpus))


def broadcast_coalesced(
    tensors: Sequence[Any], devices: Iterable[Any], buffer_size: int = 10485760
) -> tuple[tuple[Any, ...], ...]:
    """Copy several tensors to GPUs: see :func:`simcoll.cuda_comm.broadcast_coalesced`."""
    rows = comm.broadcast_coalesced(
        [_place(t) for t in tensors], devices, buffer_size, play=on_gpus
    )
    return tuple(_bare(row) for row in rows)


def reduce_add(inputs: Sequence[Any], destination: Any = None) -> Any:
    """The sum of tensors on different GPUs: see :func:`simcoll.cuda_comm.reduce_add`."""
    return comm.reduce_add([_place(tensor) for tensor in inputs], destination, play=on_gpus).array


def reduce_add_coalesced(
    inputs: Sequence[Sequence[Any]], destination: Any = None, buffer_size: int = 10485760
) -> tuple[Any, ...]:
    """Sums of several tensors over GPUs: see :func:`simcoll.cuda_comm.reduce_add_coalesced`."""
    rows = [[_place(tensor) for tensor in row] for row in inputs]
    return _bare(comm.reduce_add_coalesced(rows, destination, buffer_size, play=on_gpus))


def gather(
    tensors: Sequence[Any], dim: int = 0, destination: Any = None, *, out: Any = None
) -> Any:
    """Concatenate tensors from GPUs: see :func:`simcoll.cuda_comm.gather`."""
    cupy, _ = load_cupy()
    sources, target = [_place(tensor) for tensor in tensors], None if out is None else _place(out)
    on_cpu = destination in (None, "cpu", -1)
    device = (
        device_of(target) if target is not None else 0 if on_cpu else device_number(destination)
    )
    with cupy.cuda.Device(max(0, device)):  # what CuPy makes is made on the current device
        result = comm.gather(sources, dim, destination, out=target, play=on_gpus)
    if out is not None:
        return out
    return result.array if isinstance(result, DeviceArray) else cupy.asnumpy(result)
