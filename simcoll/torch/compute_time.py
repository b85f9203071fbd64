"""Intercept dispatched operators: count their memory, and enqueue their modelled time on streams as
on a GPU.

Fake tensors have CUDA's semantics: the program enqueues operators and collectives on streams
without waiting, ordered by ``torch.cpu``'s streams and events (which PyTorch itself leaves without
effect). With real tensors, whose values the program may read, the rank waits for every operator.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simcoll.distributed.runtime.device import DeviceStream, SimulatedDevice
from simcoll.distributed.runtime.records import program_starts
from simcoll.distributed.runtime.tasks import wait_until
from simcoll.distributed.start.spawning import compute
from simcoll.torch.buffer_races import Flights
from simcoll.torch.callers import is_program, is_pytorch
from simcoll.torch.compilation import CompiledCalls
from simcoll.torch.cuda_memory import Shortage, fit_shape, out_of_memory, shortage_of
from simcoll.torch.fake_keys import UNSEEN
from simcoll.torch.module_time import ModuleTimes, Times
from simcoll.torch.operator_work import tensors_of
from simcoll.torch.places import HOST, leaves_operators
from simcoll.torch.rank_threads import RankThread, current_thread_or_none
from simcoll.torch.replacing import for_ranks
from simcoll.torch.roofline import OperatorCosts, operator_name
from simcoll.torch.shard_exchange import EXCHANGE, exchange_shards
from simcoll.torch.stream_races import Clock, StreamRaces, end_fs
from simcoll.torch.tensor_memory import TensorMemory, resizing
from simcoll.torch.works import POLL
from simcoll.torch.wrapper_tensors import dispatches_in_program

__all__ = [
    "HostEvent",
    "HostStream",
    "Watched",
    "compute_replacements",
    "is_over",
    "note_end",
    "tail_of",
    "wait_for_clock",
    "watch_modules",
    "watched_program",
]

_COLLECTIVES = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd"))
_PLAIN = frozenset((torch.Tensor, FakeTensor, torch.nn.Parameter))
_DEVICE_OF, _META = torch.ops.prim.device.default, torch.device("meta")
_READ = torch.ops.aten._local_scalar_dense.default
_RESIZE = torch.ops.aten.resize_.default
_CONSTRUCTORS = frozenset((torch.ops.aten.lift_fresh.default, torch.ops.aten.empty.memory_format))
"""Operators of ``torch.Tensor(...)`` and ``torch.FloatTensor(...)``."""
_INTEGER, _LONGEST = frozenset((int,)), torch.complex128.itemsize


class Watched(TorchDispatchMode):
    """Dispatch mode that counts the memory of a rank's operators and, with a time model, enqueues
    their time on its device.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        device: SimulatedDevice | None,
        costs: OperatorCosts | None,
        root: Watched | None = None,
        *,
        flights: Flights | None = None,
        races: StreamRaces | None = None,
    ) -> None:
        super().__init__()
        self.device = device
        self.costs = costs
        self.root = root or self
        self.memory = TensorMemory()  # these of the root, too
        self.modules = None if costs is None else ModuleTimes(costs.modules)
        self.compiled = CompiledCalls()
        self.inside = self.copying = False  # the fields of the root count
        self.key: Any = None  # of the operator that runs, in PyTorch's cache of fake ones
        self.pushed: list[Any] = []
        self.flights: Flights | None = flights if root is None else root.flights
        self.races: StreamRaces | None = races if root is None else root.races

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled in a run, and PyTorch would otherwise import its compiler and
        query it at every operator.
        """
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, count its memory, and enqueue its time."""
        # A tensor made of others, whose operators come here next.
        if not (_PLAIN.issuperset(types) or all(map(leaves_operators, types))):
            if FunctionalTensor in types:  # the mode of a trace is next, and takes it apart
                return func(*args, **(kwargs or {}))
            return self._by_program(func, types, args, kwargs or {})
        if func is _DEVICE_OF and type(args[0]) is FakeTensor:  # half of all; as it answers itself
            of_kernel = args[0].fake_mode.in_kernel_invocation
            return _META if of_kernel else args[0].fake_device
        if self.root.inside:
            return func(*args, **(kwargs or {}))
        if self.costs is not None and torch.is_inference_mode_enabled() and _is_composite(func):
            with self:  # in inference mode it comes here before PyTorch takes it apart
                return func.decompose(*args, **(kwargs or {}))
        if func is EXCHANGE and args[0].device != _META:
            with self:
                return exchange_shards(*args, **(kwargs or {}))
        collective = _is_collective(func)
        if self.flights is not None and self.flights.open and not collective:
            thread = current_thread_or_none()
            if thread is not None:
                self.flights.check_operator(func, args, kwargs or {}, thread.site)
        memory = self.root.memory
        if args and (type(args[0]) is list or func is _RESIZE):
            _fit_shape(memory, func, args, kwargs or {})
        held_bytes = memory.held_bytes
        self.root.inside, self.root.key = True, UNSEEN
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            self.root.inside = False
            key, self.root.key = self.root.key, None
        memory.note(result)
        if func in _CONSTRUCTORS and is_program(sys._getframe(1).f_code.co_filename):
            _note_default_place(result)
        if memory.held_bytes > max(memory.limit_bytes, held_bytes) and not _is_fake(result):
            shortage = _shortage(tensors_of((args, kwargs)), memory.held_bytes - held_bytes)
            if shortage is not None:
                del result  # which the error's frames would keep
                raise out_of_memory(shortage)
        races = self.races
        if races is not None and races.process.places is not None:  # with simulated GPUs
            if not collective:
                races.note_operator(func, args, kwargs or {}, result)
                if not self.root.copying:
                    races.check_host(func, args, kwargs or {}, result)
            if self._runs_on_host(func, args, kwargs or {}, result):
                return result
        if self.costs is not None and func is _READ:
            self._add_host_copy(self.costs, args[0])
        elif self.costs is not None and not collective and not self.costs.is_free(func):
            fake = FakeTensor in types or _is_fake(result)
            key = None if key is UNSEEN else key
            self._add(self.costs, func, args, kwargs or {}, result, key, fake=fake)
        return result

    def _by_program(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What a class of the program makes of an operator, in the modes of its rank, which PyTorch
        disables here; ``NotImplemented`` where the classes are PyTorch's.
        """
        thread = current_thread_or_none()
        if thread is None or thread.process.places is None:
            return NotImplemented
        for cls in types:
            if cls not in _PLAIN and dispatches_in_program(cls):
                with self, thread.process.around():
                    answer = cls.__torch_dispatch__(func, types, args, kwargs)
                if answer is not NotImplemented:
                    return answer
        return NotImplemented

    def _runs_on_host(self, func: Any, args: Any, kwargs: Any, result: Any) -> bool:
        """Whether the host runs an operator, for which the program then waits."""
        thread = current_thread_or_none()
        if thread is None or self.root.copying:
            return False
        places = thread.process.places
        if places is None or not places.offloaded:
            return False
        if not places.computes_on_host(tensors_of((args, kwargs))):
            return False
        places.note(tree_leaves(result), HOST, offloaded=True)
        if self.costs is not None and not _is_collective(func):
            time_fs = self.costs.on_host(func, args, kwargs, result).time_fs
            if time_fs:
                if self.root.device is not None:
                    self.root.device.on_host_fs += time_fs
                thread.call(compute, time_fs / 1e15, f"host: {operator_name(func)}")
        return True

    def copy_over_pcie(self, name: str, nbytes: int, call: Callable[[], Any], *, wait: bool) -> Any:
        """Call what copies between the host and a GPU, or on to another, on the current stream;
        ``wait``: until it is there.
        """
        time_fs = 0 if self.costs is None else self.costs.host_copy_fs(nbytes)
        was_copying, self.root.copying = self.root.copying, True
        try:
            result = self.one_kernel(name, (time_fs, time_fs), call)
        finally:
            self.root.copying = was_copying
        if wait and self.races is not None:
            self.races.synchronize(self.races.tail(self.races.current()))
        thread, device = current_thread_or_none(), self.root.device
        if wait and self.costs is not None and thread is not None and device is not None:
            thread.call(wait_until, device.current.tail)
        return result

    def _add(
        self,
        costs: OperatorCosts,
        func: Any,
        args: Any,
        kwargs: Any,
        result: Any,
        key: Any,
        *,
        fake: bool,
    ) -> None:
        device, modules, name = self.root.device, self.root.modules, operator_name(func)
        time_fs, ruled, launched = costs.kernel_of_key(key, func, args, kwargs, result)
        if time_fs and modules is not None and func.namespace != "fsdp":
            owner = modules.of_operator(device and device.current)
            name, time_fs, ruled = (name, time_fs, ruled) if owner is None else (*owner, True)
            launched = launched and bool(time_fs)
        if not ruled:
            costs.unknown[name] += 1
        if launched:
            launch_fs = self.root.compiled.launch_fs(costs.launch_fs)
            self.add(name, time_fs, fake=fake, launch_fs=launch_fs)

    def _add_host_copy(self, costs: OperatorCosts, tensor: torch.Tensor) -> None:
        """Enqueue a copy to the host of an element on a GPU that the program reads."""
        thread = current_thread_or_none()
        places = None if thread is None else thread.process.places
        if places is not None and places.is_on_gpu(tensor):
            time_fs = costs.host_copy_fs(tensor.element_size())
            self.add("copy to the host", time_fs, fake=False, launch_fs=costs.launch_fs)

    def one_kernel(self, name: str, times: Times, call: Callable[[], Any]) -> Any:
        """Call a function that is one kernel on a GPU, and one in its backward pass."""
        if self.modules is None or self.root.inside:
            return call()
        owner, result = object(), None
        self.modules.begin(owner, name, times, self.device and self.device.current)
        try:
            result = call()
        finally:
            self.end_call(owner, result)
        return result

    def end_call(self, owner: object, result: Any) -> None:
        """End the call of a module, or of a function that is one kernel; its ``result`` is None
        where an exception ends it.
        """
        timed_call = None if self.modules is None else self.modules.leave(owner)
        if timed_call is not None and result is not None and self.costs is not None:
            launch_fs = self.root.compiled.launch_fs(self.costs.launch_fs)
            self.add(*timed_call, fake=_is_fake(result), launch_fs=launch_fs)

    def add(self, name: str, time_fs: int, *, fake: bool, launch_fs: int = 0) -> None:
        """Enqueue a time, after its launch; with real tensors, wait for the longer of the two."""
        thread, device = current_thread_or_none(), self.root.device
        if thread is not None and thread.process.scopes is not None:
            thread.process.scopes.note()
        if fake and device is not None:
            device.current.run(time_fs, name, launch_fs)
        elif thread is not None and max(time_fs, launch_fs):
            if device is not None:
                device.launches += 1
                device.compute_time_fs += time_fs
                device.awaited_fs += max(0, launch_fs - time_fs)
            thread.call(compute, max(time_fs, launch_fs) / 1e15, name)


def _note_default_place(tensor: torch.Tensor) -> None:
    """Note where ``torch.Tensor(...)`` and its kind make a tensor, which no function mode sees."""
    thread = current_thread_or_none()
    places = None if thread is None else thread.process.places
    if places is not None and places.get(tensor) is None:
        places.note(tensor, places.of_default_type)


def _shortage(inputs: list[torch.Tensor], new_bytes: int) -> Shortage | None:
    """The shortage of memory on a GPU by what an operator has made."""
    thread = current_thread_or_none()
    if thread is None or thread.process.places is None:
        return None
    return shortage_of(thread.process, inputs, new_bytes)


def _fit_shape(memory: TensorMemory, func: Any, args: Any, kwargs: Any) -> None:
    """Raise the same error before an operator makes a tensor of a shape, unless it makes a fake
    one.
    """
    position = int(func is _RESIZE)
    shape = args[position] if len(args) > position else None
    if type(shape) is not list or not _INTEGER.issuperset(map(type, shape)):
        return
    if memory.held_bytes + _LONGEST * math.prod(shape) <= memory.limit_bytes:
        return
    thread, device = current_thread_or_none(), kwargs.get("device")
    is_meta = args[0].is_meta if position else device is not None and device.type == "meta"
    is_fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    if thread is not None and thread.process.places is not None and not is_meta and not is_fake:
        fit_shape(thread.process, shape, args[0].dtype if position else kwargs.get("dtype"))


def _called_by_torch() -> bool:
    """Whether PyTorch calls a replaced method."""
    return is_pytorch(sys._getframe(3).f_code.co_filename)  # past the replacement


def _is_composite(func: Any) -> bool:
    """Whether an operator is made of others."""
    return isinstance(func, OpOverload) and func._can_decompose()


class HostEvent:
    """An event on a stream, with the methods of ``torch.cpu.Event``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.point = None if (device := _device()) is None else device.default.tail
        self.clock: Clock = {}

    def record(self, stream: Any = None) -> None:
        """Record the current tail of a stream (default: the current stream)."""
        device = _device()
        self.clock = tail_of(stream)
        if device is not None:
            self.point = (device.current if stream is None else stream.device_stream).tail

    def wait(self, stream: Any = None) -> None:
        """Make a stream wait for the event."""
        device = _device()
        wait_for_clock(stream, self.clock)
        if device is not None and self.point is not None:
            (device.current if stream is None else stream.device_stream).wait(self.point)

    def query(self) -> bool:
        """Whether the stream has reached the event."""
        reached = is_over(self.clock) and (self.point is None or self.point.done)
        if reached:
            note_end(self.clock)
        return reached

    def synchronize(self) -> None:
        """Wait until the stream has reached the event."""
        thread = current_thread_or_none()
        if thread is not None:
            thread.process.stream_races.synchronize(self.clock)
        if thread is not None and self.point is not None:
            thread.call(wait_until, self.point)


class HostStream:
    """A stream, with the methods of ``torch.cpu.Stream``."""

    def __init__(  # the signature is that of torch
        self,
        priority: int = -1,  # noqa: ARG002
        device_stream: DeviceStream | None = None,
    ) -> None:
        device = _device()
        self.device_stream: Any = (
            device_stream if device_stream is not None or device is None else device.stream()
        )

    @property
    def key(self) -> Hashable:
        """What tells it from other streams in the check of races; None: it has no effect."""
        key: Hashable = self.device_stream
        return key

    def selection(self) -> AbstractContextManager[None]:
        """A context in which it is the current one, where no stream is of the simulated device."""
        return nullcontext()

    def wait_stream(self, stream: HostStream) -> None:
        """Wait for all work enqueued so far on another stream."""
        wait_for_clock(self, tail_of(stream))
        if self.device_stream is not None and stream.device_stream is not None:
            self.device_stream.wait(stream.device_stream.tail)

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """Record an event at the current tail."""
        event = HostEvent() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: HostEvent | None) -> None:
        """Wait for an event."""
        if event is not None:
            event.wait(self)

    def synchronize(self) -> None:
        """Wait until the stream is idle."""
        self.record_event().synchronize()

    def query(self) -> bool:
        """Whether the stream is idle."""
        idle = self.device_stream is None or bool(self.device_stream.tail.done)
        if idle:
            note_end(tail_of(self))
        return idle

    def __enter__(self) -> Self:
        """Make it the current stream."""
        device = _device()
        if device is not None and self.device_stream is not None:
            self._before, device.current = device.current, self.device_stream
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous stream."""
        device = _device()
        if device is not None and self.device_stream is not None:
            device.current = self._before


def tail_of(stream: HostStream | None) -> Clock:
    """The launches that the tail of a stream (default: the current one) follows."""
    thread = current_thread_or_none()
    if thread is None or (stream is not None and stream.key is None):
        return {}
    races: StreamRaces = thread.process.stream_races
    return races.tail(races.current() if stream is None else stream.key)


def wait_for_clock(stream: HostStream | None, clock: Clock) -> None:
    """Order a stream (default: the current one) after the launches of a clock."""
    thread = current_thread_or_none()
    if thread is not None and (stream is None or stream.key is not None):
        races: StreamRaces = thread.process.stream_races
        races.wait(races.current() if stream is None else stream.key, clock)


def is_over(clock: Clock) -> bool:
    """Whether no kernel holds a stream before a clock; a poll that finds one takes time."""
    thread = current_thread_or_none()
    free = thread is None or end_fs(clock) <= thread.now_fs()
    if thread is not None and not free:
        thread.call(compute, POLL)
    return free


def note_end(clock: Clock) -> None:
    """Note that the host knows the end of the launches of a clock."""
    thread = current_thread_or_none()
    if thread is not None:
        thread.process.stream_races.synchronize(clock)


def _device() -> SimulatedDevice | None:
    thread = current_thread_or_none()
    return None if thread is None else thread.process.device


@contextmanager
def _select(stream: HostStream | None) -> Iterator[None]:
    device = _device()
    if device is None or stream is None or stream.device_stream is None:
        with nullcontext() if stream is None else stream.selection():
            yield
        return
    previous, device.current = device.current, stream.device_stream
    try:
        yield
    finally:
        device.current = previous


def _synchronize(_device_given: Any = None) -> None:
    thread, device = current_thread_or_none(), _device()
    if thread is not None and device is not None:
        thread.process.stream_races.synchronize()
        thread.call(wait_until, device.tail())


_OF_HOST = ("numpy", "__array__")
_NOT_ON_HOST = "the tensor is on a GPU, where PyTorch raises a TypeError: call .cpu() first"


@for_ranks
def _read_past_dispatcher(
    thread: RankThread, standard: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any
) -> Any:
    """A method that reads elements past the dispatcher."""
    flights = thread.process.flights
    if flights.open and leaves_operators(type(tensor)):
        flights.check_access(standard.__name__, tensor, thread.site, writes=False)
    places, name = thread.process.places, standard.__name__
    if places is None:
        return standard(tensor, *args, **kwargs)
    thread.process.stream_races.note_host_access(name, tensor)
    if name in _OF_HOST and places.is_on_gpu(tensor) and not _called_by_torch():
        thread.tell(f"Tensor.{name}", _NOT_ON_HOST)
    watched = thread.process.watched
    if name != "tolist" or watched is None or not places.is_on_gpu(tensor):
        return standard(tensor, *args, **kwargs)
    nbytes = tensor.numel() * tensor.element_size()
    return watched.copy_over_pcie("copy to the host", nbytes, lambda: standard(tensor), wait=True)


def compute_replacements() -> list[tuple[Any, str, Any]]:
    """Replacements during a run: CPU streams and events, and entry and exit of FakeTensorMode."""
    standard, enter, leave = (
        torch.cpu.current_stream,
        FakeTensorMode.__enter__,
        FakeTensorMode.__exit__,
    )

    def current_stream(device: Any = None) -> Any:
        if current_thread_or_none() is None:
            return standard(device)
        simulated_device = _device()
        return HostStream(
            device_stream=None if simulated_device is None else simulated_device.current
        )

    def enter_mode(mode: Any) -> Any:
        result = enter(mode)
        watched = _current_watch()
        if watched is not None:
            again = Watched(watched.device, watched.costs, watched)
            watched.pushed.append(_only_shapes(watched) if _entered_by_torch() else again)
            watched.pushed[-1].__enter__()
        return result

    def leave_mode(mode: Any, *error: Any) -> Any:
        watched = _current_watch()
        if watched is not None:
            watched.pushed.pop().__exit__(None, None, None)
        return leave(mode, *error)

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        thread = current_thread_or_none()
        if thread is not None:
            thread.process.stream_races.forget(storage)
        counts, size_before = memory(), storage.nbytes()
        result = resize_and_count(storage, size)
        if counts is not None and counts.held_bytes > counts.limit_bytes and size > size_before:
            shortage = None if storage.device.type == "meta" else _shortage([], size - size_before)
            if shortage is not None:
                resize_and_count(storage, size_before)
                raise out_of_memory(shortage)
        return result

    def memory() -> TensorMemory | None:
        watched = _current_watch()
        return None if watched is None else watched.memory

    resize_and_count = resizing(torch.UntypedStorage.resize_, memory)

    return [
        *(
            (torch.Tensor, name, _read_past_dispatcher(getattr(torch.Tensor, name)))
            for name in ("__array__", "__dlpack__", "__reduce_ex__", "__repr__", "numpy", "tolist")
        ),
        *(
            (torch.cpu, name, value)
            for name, value in {
                "Stream": HostStream,
                "Event": HostEvent,
                "current_stream": current_stream,
                "stream": _select,
                "StreamContext": _select,
                "synchronize": _synchronize,
            }.items()
        ),
        (torch.UntypedStorage, "resize_", resize),
        (FakeTensorMode, "__enter__", enter_mode),
        (FakeTensorMode, "__exit__", leave_mode),
    ]


def _is_fake(result: Any) -> bool:
    """Whether one of an operator's results is a fake tensor."""
    leaves = (result,) if isinstance(result, torch.Tensor) else tree_leaves(result)
    return any(isinstance(leaf, FakeTensor) for leaf in leaves)


@functools.cache
def _is_collective(func: Any) -> bool:
    return func.namespace in _COLLECTIVES


@contextmanager
def _only_shapes(watched: Watched) -> Iterator[None]:
    """Ignore operators inside the block, which PyTorch runs only to infer shapes."""
    was_inside, watched.inside = watched.inside, True
    try:
        yield
    finally:
        watched.inside = was_inside


def _entered_by_torch() -> bool:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == contextlib.__file__:
        frame = frame.f_back
    return is_pytorch(frame.f_code.co_filename)


def _current_watch() -> Watched | None:
    thread = current_thread_or_none()
    watched: Watched | None = None if thread is None else thread.process.watched
    return watched


def watched_program(program: Callable[[], Any], watched: Watched) -> Any:
    """Run a program with its operators intercepted."""
    with watched:
        return program()


program_starts.add(watched_program.__code__)


@contextmanager
def watch_modules() -> Iterator[None]:
    """Notify ranks of module calls, if modules have measured times."""

    def enter(module: Any, args: Any) -> None:
        watched = _current_watch()
        if watched is not None and watched.modules is not None and not watched.inside:
            watched.modules.enter(module, args, watched.device and watched.device.current)

    def leave(module: Any, _args: Any, result: Any) -> None:
        watched = _current_watch()
        if watched is not None:
            watched.end_call(module, result)

    hooks = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
