"""``torch.cuda.Stream`` and ``torch.cuda.Event`` for simulated GPUs.

With a time model, a stream is one of the simulated device; without, operators run one by one, and
streams have identity only. Events read the simulated clock.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Hashable
from typing import Any, Self

import torch

from simcoll import distributed as ours
from simcoll.errors import ConfigError
from simcoll.torch.compute_time import (
    HostEvent,
    HostStream,
    is_over,
    note_end,
    tail_of,
    wait_for_clock,
)
from simcoll.torch.rank_threads import current_thread
from simcoll.torch.stream_races import Clock, end_fs

__all__ = [
    "AcceleratorEvent",
    "AcceleratorStream",
    "CudaEvent",
    "CudaStream",
    "StreamContext",
    "StreamsOfRank",
    "current_stream",
    "current_stream_of_torch",
    "default_stream",
    "set_stream",
    "stream_of_torch",
]

_CUDA = 1
"""The number of the device type in PyTorch."""
_LEAST, _GREATEST = 0, -5
"""Priorities of CUDA's streams."""


class StreamsOfRank:
    """The streams that a rank has made, by number, and the current one of each device.

    ``works`` has the streams of the simulated device; None without a time model.
    """

    def __init__(self) -> None:
        self.devices: list[int] = [0]
        self.priorities: list[int] = [0]
        self.works: list[Any] = [None]
        self.current: dict[int, int] = {}

    def add(self, device: int, priority: int, work: Any) -> int:
        """Number a stream."""
        self.devices.append(device)
        self.priorities.append(priority)
        self.works.append(work)
        return len(self.works) - 1

    @property
    def several(self) -> bool:
        """Whether there are others than the default stream."""
        return len(self.works) > 1

    def number_of(self, work: Any, device: int) -> int:
        """The number of a stream of the simulated device, which PyTorch may have made itself."""
        for number, numbered in enumerate(self.works):
            if numbered is work:
                return number
        return self.add(device, 0, work)


def _streams() -> StreamsOfRank:
    process = current_thread().process
    if process.cuda_streams is None:
        process.cuda_streams = StreamsOfRank()
        if process.device is not None:
            process.cuda_streams.works[0] = process.device.default
    streams: StreamsOfRank = process.cuda_streams
    return streams


def _index(device: Any) -> int:
    """The number of a device; the current one for None and negative numbers."""
    index = device if isinstance(device, int) else torch.device(device or "cuda").index
    if index is None or index < 0:
        return int(torch.cuda.current_device())
    return int(index)


class AcceleratorStream(HostStream):
    """``torch.Stream``.

    Parameters
    ----------
    device
        Its GPU; by default the current one.
    priority
        Kept, without effect.
    stream_id, device_index, device_type
        An existing stream.
    """

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int = _CUDA,
        **_: Any,
    ) -> None:
        streams = _streams()
        self.device_type = device_type
        if stream_id is not None:
            self.device_index = _index(device_index)
            self.stream_id = stream_id
            self.device_stream = streams.works[stream_id]
            return
        super().__init__(priority)
        current_thread().process.stream_races.activate()
        self.device_index = _index(device)
        kept_priority = min(_LEAST, max(_GREATEST, priority))
        self.stream_id = streams.add(self.device_index, kept_priority, self.device_stream)

    @classmethod
    def of_torch(cls) -> Self:
        """A stream that PyTorch's own code makes, which begins no check of the program's."""
        device = _index(None)
        return cls(stream_id=_streams().add(device, 0, None), device_index=device)

    @property
    def device(self) -> torch.device:
        """Its GPU."""
        return torch.device("cuda", self.device_index)

    @property
    def key(self) -> Hashable:
        """What tells it from other streams in the check of races."""
        return self.stream_id if self.device_stream is None else self.device_stream

    @property
    def priority(self) -> int:
        """The priority given; lower numbers come first on a GPU."""
        return _streams().priorities[self.stream_id]

    def selection(self) -> StreamContext:
        """A context in which it is the current one, of PyTorch's own code for the CPU too."""
        return StreamContext(self)

    def record_event(self, event: Any = None) -> Any:
        """Record an event at the current tail."""
        event = CudaEvent() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether the stream is idle."""
        return is_over(tail_of(self)) and super().query()

    def __enter__(self) -> Self:
        """Make it the current stream."""
        self._context = StreamContext(self)
        self._context.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous stream."""
        self._context.__exit__()

    def __eq__(self, stream: object) -> bool:
        """Whether it is the same stream of the same device."""
        if not isinstance(stream, AcceleratorStream):
            return NotImplemented
        return (self.stream_id, self.device_index) == (stream.stream_id, stream.device_index)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"torch.Stream device={self.device} stream_id={self.stream_id}"


class CudaStream(AcceleratorStream):
    """``torch.cuda.Stream``."""

    @property
    def cuda_stream(self) -> int:
        """Its handle: 0 for the default stream, else a number of its own."""
        return self.stream_id << 4

    @property
    def _as_parameter_(self) -> Any:
        return ctypes.c_void_p(self.cuda_stream)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority."""
        return _LEAST, _GREATEST

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


def current_stream(device: Any = None) -> CudaStream:
    """The current stream of a device: its default stream, unless another was set."""
    process, streams, index = current_thread().process, _streams(), _index(device)
    if process.device is not None:
        number = streams.number_of(process.device.current, index)
        number = number if streams.devices[number] == index or not number else 0
    else:
        number = streams.current.get(index, 0)
    return CudaStream(stream_id=number, device_index=index)


def default_stream(device: Any = None) -> CudaStream:
    """The default stream of a device."""
    return CudaStream(stream_id=0, device_index=_index(device))


def stream_of_torch(priority: int = -1) -> HostStream:
    """``torch.cpu.Stream``, which PyTorch's own code makes for a device that is the CPU here."""
    if current_thread().process.device is not None:
        return HostStream(priority)
    return CudaStream.of_torch()


def current_stream_of_torch(device: Any = None) -> HostStream:
    """``torch.cpu.current_stream``."""
    current = current_thread().process.device
    del device
    return current_stream() if current is None else HostStream(device_stream=current.current)


def set_stream(stream: Any) -> None:
    """Make a stream the current one of its device, and that the thread's current device; None is
    ignored, as in PyTorch.
    """
    if stream is None:
        return
    process = current_thread().process
    process.cuda_device = stream.device_index
    if process.device is not None and stream.device_stream is not None:
        process.device.current = stream.device_stream
    _streams().current[stream.device_index] = stream.stream_id


class StreamContext:
    """``torch.cuda.stream``: makes a stream and its device the current ones inside the block; None:
    nothing.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        """Make it the current stream."""
        if self.stream is not None:
            self._previous = current_stream(self.stream.device_index), current_stream()
            set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        """Restore the previous stream of its device, and the device."""
        if self.stream is not None:
            for stream in self._previous:
                set_stream(stream)


_handles = itertools.count(1)


class AcceleratorEvent:
    """``torch.Event``, on the simulated clock.

    Parameters
    ----------
    enable_timing
        Whether times between it and another event can be asked for.
    blocking, interprocess
        Without effect; ``interprocess`` is refused.
    """

    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        if interprocess:
            raise ConfigError(
                "torch.cuda.Event(interprocess=True) is for other processes on the GPU, and the "
                "ranks of a simulated run share one process: leave interprocess out"
            )
        self.enable_timing, self.blocking = enable_timing, blocking
        self.device_index = _index(device)
        self.event_id = next(_handles)
        self._event: Any = None
        self._seconds: float | None = None
        self._clock: Clock = {}

    @property
    def device(self) -> torch.device:
        """Its GPU."""
        return torch.device("cuda", self.device_index)

    def record(self, stream: Any = None) -> None:
        """Record the simulated time, or the current tail of a timed stream."""
        thread = current_thread()
        device = thread.process.device
        self._clock = tail_of(stream)
        if device is None:
            self._seconds = max(thread.call(ours.emulated_time), end_fs(self._clock) / 1e15)
            return
        self._event, self._seconds = HostEvent(), None
        self._event.record(stream)

        def note_time() -> None:
            self._seconds = thread.now_fs() / 1e15

        self._event.point.when_done(note_time)

    def elapsed_time(self, end_event: AcceleratorEvent) -> float:
        """Milliseconds until another event.

        Raises
        ------
        ValueError
            Unless both were made with ``enable_timing`` and have been recorded.
        """
        for event in (self, end_event):
            if not event.enable_timing:
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if event._event is not None:
                event.synchronize()
        if self._seconds is None or end_event._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1e3

    def synchronize(self) -> None:
        """Wait until the stream has reached the event."""
        note_end(self._clock)
        if self._event is not None:
            self._event.synchronize()

    def query(self) -> bool:
        """Whether the stream has reached the event."""
        reached = is_over(self._clock) and (self._event is None or bool(self._event.query()))
        if reached:
            note_end(self._clock)
        return reached

    def wait(self, stream: Any = None) -> None:
        """Make a stream wait for the event."""
        wait_for_clock(stream, self._clock)
        if self._event is not None:
            self._event.wait(stream)

    def ipc_handle(self) -> bytes:
        """Refuse: there is no other process on the GPU."""
        raise ConfigError(
            "torch.cuda.Event.ipc_handle is for other processes on the GPU, and the ranks of a "
            "simulated run share one process"
        )

    def __repr__(self) -> str:
        return f"torch.Event device_type=cuda, device_index={self.device_index}"


class CudaEvent(AcceleratorEvent):
    """``torch.cuda.Event``."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,  # noqa: ARG002  # for CUDA graphs, which are refused
    ) -> None:
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> CudaEvent:
        """Refuse: there is no other process on the GPU."""
        del device, handle
        raise ConfigError(
            "torch.cuda.Event.from_ipc_handle is for other processes on the GPU, and the ranks of "
            "a simulated run share one process"
        )

    @property
    def cuda_event(self) -> int:
        """Its handle; 0 before it is recorded."""
        recorded = self._event is not None or self._seconds is not None
        return self.event_id << 4 if recorded else 0

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.cuda_event:#x}>"
