"""Computation takes time: operators are timed as they are dispatched, and enqueued on streams as on a GPU.

Fake tensors have the semantics of CUDA: the program enqueues operators and collectives on streams and goes on; ``torch.cpu``'s streams
and events, which do nothing in PyTorch, order them. With real tensors, whose values the program may look at, the rank waits for every
operator.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simcoll.distributed.runtime.tasks import wait_until
from simcoll.distributed.start.spawning import compute
from simcoll.torch.rank_threads import current_thread_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simcoll.distributed.runtime.device import Device, DeviceStream
    from simcoll.torch.roofline import Costs

__all__ = ["Timed", "compute_replacements", "timed_program"]

_TORCH = str(Path(torch.__file__).parent)
_PLAIN = (torch.Tensor, FakeTensor, torch.nn.Parameter)


class Timed(TorchDispatchMode):
    """Adds the time of every operator to the device of a rank."""

    def __init__(self, device: Device, costs: Costs, root: Timed | None = None) -> None:
        super().__init__()
        self.device = device
        self.costs = costs
        self.root = root or self
        self.inside = False  # the fields of the root count
        self.pushed: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and enqueue its time."""
        if any(not issubclass(each, _PLAIN) or each.__module__.startswith("torch.distributed") for each in types):
            return NotImplemented  # a tensor made of others, whose operators come here next
        if self.root.inside:
            return func(*args, **(kwargs or {}))
        self.root.inside = True
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            self.root.inside = False
        if func.namespace not in {"c10d", "_c10d_functional", "_c10d_functional_autograd"}:
            self._add(func, args, kwargs or {}, result)
        return result

    def _add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        time_fs = self.costs.time_fs(func, args, kwargs, result)
        thread = current_thread_or_none()
        if not time_fs or thread is None:
            return
        name = func._schema.name
        if any(isinstance(each, FakeTensor) for each in tree_leaves((args, kwargs, result))):
            self.device.current.run(time_fs, name)
        else:
            thread.call(compute, time_fs / 1e15, name)


class _Event:
    """A point of a stream; the methods are those of ``torch.cpu.Event``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.point = None if (device := _device()) is None else device.default.tail

    def record(self, stream: Any = None) -> None:
        """Take the present end of a stream, by default the selected one."""
        device = _device()
        if device is not None:
            self.point = (device.current if stream is None else stream.own).tail

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for the point."""
        device = _device()
        if device is not None and self.point is not None:
            (device.current if stream is None else stream.own).wait(self.point)

    def query(self) -> bool:
        """Whether the stream has come so far."""
        return self.point is None or self.point.done

    def synchronize(self) -> None:
        """Wait until the stream has come so far."""
        thread = current_thread_or_none()
        if thread is not None and self.point is not None:
            thread.call(wait_until, self.point)


class _Stream:
    """A stream; the methods are those of ``torch.cpu.Stream``."""

    def __init__(self, priority: int = -1, own: DeviceStream | None = None) -> None:  # noqa: ARG002  # torch's signature
        device = _device()
        self.own: Any = own if own is not None or device is None else device.stream()

    def wait_stream(self, stream: _Stream) -> None:
        """Wait for all that is enqueued on another stream now."""
        if self.own is not None and stream.own is not None:
            self.own.wait(stream.own.tail)

    def record_event(self, event: _Event | None = None) -> _Event:
        """An event at the present end."""
        event = _Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: _Event | None) -> None:
        """Wait for an event."""
        if event is not None and self.own is not None:
            event.wait(self)

    def synchronize(self) -> None:
        """Wait until it is empty."""
        self.record_event().synchronize()

    def query(self) -> bool:
        """Whether it is empty."""
        return self.own is None or bool(self.own.tail.done)

    def __enter__(self) -> Self:
        """Select it."""
        device = _device()
        if device is not None and self.own is not None:
            self._before, device.current = device.current, self.own
        return self

    def __exit__(self, *_: object) -> None:
        """Select the stream of before."""
        device = _device()
        if device is not None and self.own is not None:
            device.current = self._before


def _device() -> Device | None:
    thread = current_thread_or_none()
    return None if thread is None else thread.process.device


@contextmanager
def _selected(stream: _Stream | None) -> Iterator[None]:
    device = _device()
    if device is None or stream is None or stream.own is None:
        yield
        return
    before, device.current = device.current, stream.own
    try:
        yield
    finally:
        device.current = before


def _synchronize(_device_given: Any = None) -> None:
    thread, device = current_thread_or_none(), _device()
    if thread is not None and device is not None:
        thread.call(wait_until, device.tail())


def compute_replacements() -> list[tuple[Any, str, Any]]:
    """What to replace during a run: streams and events of the CPU, and the begin and end of FakeTensorMode."""
    standard, enter, leave = torch.cpu.current_stream, FakeTensorMode.__enter__, FakeTensorMode.__exit__

    def current_stream(device: Any = None) -> Any:
        found = _device()
        return standard(device) if found is None else _Stream(own=found.current)

    def entered(mode: Any) -> Any:
        result = enter(mode)
        timed = _timed()
        if timed is not None:
            timed.pushed.append(_only_shapes(timed) if _entered_by_torch() else Timed(timed.device, timed.costs, timed))
            timed.pushed[-1].__enter__()
        return result

    def left(mode: Any, *error: Any) -> Any:
        timed = _timed()
        if timed is not None:
            timed.pushed.pop().__exit__(None, None, None)
        return leave(mode, *error)

    return [
        *(
            (torch.cpu, name, value)
            for name, value in {
                "Stream": _Stream,
                "Event": _Event,
                "current_stream": current_stream,
                "stream": _selected,
                "StreamContext": _selected,
                "synchronize": _synchronize,
            }.items()
        ),
        (FakeTensorMode, "__enter__", entered),
        (FakeTensorMode, "__exit__", left),
    ]


@contextmanager
def _only_shapes(timed: Timed) -> Iterator[None]:
    """Count no operators inside: PyTorch's own modules run them to find out shapes."""
    before, timed.inside = timed.inside, True
    try:
        yield
    finally:
        timed.inside = before


def _entered_by_torch() -> bool:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == contextlib.__file__:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_TORCH)


def _timed() -> Timed | None:
    thread = current_thread_or_none()
    found: Timed | None = None if thread is None else thread.process.timed
    return found


def timed_program(program: Callable[[], Any], timed: Timed) -> Any:
    """Run a program whose operators take time."""
    with timed:
        return program()
