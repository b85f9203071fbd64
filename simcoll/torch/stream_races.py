"""Races among the streams of a simulated GPU.

Operators run one by one, so values come out right whatever the order of streams. On a GPU only
events, waits and synchronization order them. As CUDA's stream sanitizer does, every access of an
operator or collective is compared with the accesses to the same memory before it: one of another
stream that nothing orders before it is a race, if either writes.

Every stream has a vector clock: the number of the last launch on each stream that it follows. Where
operators take no time, a kernel that only waits (``torch.cuda._sleep``) still holds its stream: the
clock has the simulated time at which the last such kernel ends that it follows.

A copy between a GPU and the host for which the program does not wait (``non_blocking=True``, in
pinned memory) is one access more to the host's tensor: until the host has waited for its stream, an
operator on the host may not read what it writes, nor write what it reads.

PyTorch gives memory that a program frees to the next tensor of its size that is made on the same
stream, as if no other had used it. If that stream does not wait for an access of another one, and
the program has not called ``record_stream``, the next access to this memory is a race.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from simcoll.distributed.runtime.device import after
from simcoll.distributed.runtime.records import Site
from simcoll.distributed.runtime.tasks import Waitable
from simcoll.distributed.runtime.work import Work
from simcoll.distributed.runtime.world import current_rank
from simcoll.torch.buffer_races import SHAPES_ONLY, has_no_gaps, span
from simcoll.torch.places import HOST, has_storage
from simcoll.torch.rank_threads import Process, current_thread, current_thread_or_none

__all__ = ["Clock", "StreamRaces", "end_fs"]

Clock = dict[Hashable, int]
_END = "end_fs"
"""The key of the time in a clock, beside the streams."""

_HOST_WAITS = frozenset(
    (
        *("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2"),
        *("unique_dim", "unique_consecutive", "repeat_interleave", "_linalg_check_errors"),
        *("bincount", "histogram"),
    )
)
"""Operators whose results the host needs, or may need, before it goes on."""
_BLOCK = 512
"""Sizes of memory on a GPU are multiples of it, and only blocks of equal size are compared."""
_LIMIT = 64
"""Accesses remembered for one storage; without the oldest ones, races may be missed."""


@dataclass(frozen=True, slots=True)
class _StreamAccess:
    """The last access of its kind: ``number`` is that of the launch on its stream, and ``begin``
    and ``end`` limit its bytes.
    """

    name: str
    site: Site
    stream: Hashable
    number: int
    writes: bool
    begin: int
    end: int
    dense: bool

    def overlaps(self, earlier: _StreamAccess) -> bool:
        """Whether both touch a byte; of two accesses with gaps in one span it is unknown."""
        if self.begin >= earlier.end or earlier.begin >= self.end:
            return False
        return self.dense or earlier.dense or (self.begin, self.end) == (earlier.begin, earlier.end)

    def covers(self, earlier: _StreamAccess) -> bool:
        """Whether it touches every byte of another access."""
        within = self.begin <= earlier.begin and earlier.end <= self.end
        return within and (self.dense or (self.begin, self.end) == (earlier.begin, earlier.end))


class _EarlyWrite(NamedTuple):
    """The last write of a storage before the program has made a stream."""

    storage: weakref.ref[Any]
    name: str
    site: Site
    stream: Hashable
    number: int


@dataclass(slots=True)
class _StorageAccesses:
    """``stream`` is the one on which it was made; None if that was before the check began.
    ``recorded`` are those for which the program has called ``record_stream``.
    """

    reference: weakref.ref[Any]
    accesses: list[_StreamAccess] = field(default_factory=list)
    stream: Hashable = None
    recorded: set[Hashable] = field(default_factory=set)


class _FreedBlock(NamedTuple):
    """Memory that the program has freed, and the last access of another stream to it."""

    stream: Hashable
    nbytes: int
    access: _StreamAccess


class _HostCopy(NamedTuple):
    """A copy to the host or from there for which the program has not waited."""

    storage: weakref.ref[Any]
    access: _StreamAccess


class StreamRaces:
    """The order of a rank's streams, and the accesses to its tensors on the GPU.

    Parameters
    ----------
    process
        The rank's process.

    Attributes
    ----------
    active
        Whether the program has made a stream. Before, only writes are remembered.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.active = self._holds = False
        self._launches = 0
        self._host: Clock = {}
        self._clocks: dict[Hashable, Clock] = {}
        self._storages: dict[int, _StorageAccesses] = {}
        self._early: dict[int, _EarlyWrite] = {}
        self._freed: list[_FreedBlock] = []
        self._copies: dict[int, _HostCopy] = {}
        self._of_works: weakref.WeakKeyDictionary[Work, Clock] = weakref.WeakKeyDictionary()
        self._awaited: Clock = {}
        self._reported: set[tuple[Site, Site]] = set()

    # Order

    def current(self) -> Hashable:
        """The current stream."""
        device, streams = self.process.device, self.process.cuda_streams
        if device is not None:
            return device.current
        return 0 if streams is None else streams.current.get(self.process.cuda_device, 0)

    def tail(self, stream: Hashable) -> Clock:
        """The launches that what is recorded on a stream follows."""
        return _latest(self._clocks.get(stream, {}), self._host)

    def wait(self, stream: Hashable, clock: Clock) -> None:
        """Order what a stream launches from here on after the launches of a clock."""
        self._clocks[stream] = _latest(self._clocks.get(stream, {}), clock)

    def synchronize(self, clock: Clock | None = None) -> None:
        """Make the host wait for the launches of a clock; by default for all."""
        for waited in self._clocks.values() if clock is None else (clock,):
            self._host = _latest(self._host, waited)
            self._awaited = _latest(self._awaited, waited)
        thread = current_thread_or_none() if self._holds else None
        if thread is not None and end_fs(self._host) > thread.now_fs():
            thread.call(_pause_until, end_fs(self._host))

    def wait_for(self, works: Iterable[Work]) -> None:
        """Make the current stream wait for collectives."""
        for work in works:
            clock = self._of_works.get(work)
            if clock is not None:
                self.wait(self.current(), clock)
                self._awaited = _latest(self._awaited, clock)

    def end(self, works: Iterable[Work]) -> None:
        """Note that the host knows the end of collectives."""
        for work in works:
            clock = self._of_works.get(work)
            if clock is not None:
                self.synchronize(clock)

    def hold(self, duration_fs: int) -> None:
        """Hold the current stream for a time, in which the host goes on."""
        self._holds, stream = True, self.current()
        self._launch(stream)
        clock = self._clocks[stream]
        clock[_END] = max(end_fs(clock), current_thread().now_fs()) + duration_fs

    def on_stream(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose calls start when nothing holds the current stream any more."""
        free_fs = end_fs(self.tail(self.current())) if self._holds else 0
        if not free_fs or free_fs <= current_thread().now_fs():
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            event = Waitable("a kernel that holds the stream")
            current_rank().world.later(free_fs, event.finish)
            with after(event):
                return function(*args, **kwargs)

        return call

    def _launch(self, stream: Hashable) -> None:
        self._launches += 1
        self._clocks[stream] = {**self.tail(stream), stream: self._launches}

    # Accesses

    def forget(self, storage: torch.UntypedStorage) -> None:
        """Forget the accesses to a storage whose memory is freed."""
        self._storages.pop(storage._cdata, None)
        self._early.pop(storage._cdata, None)

    def note_operator(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note the accesses of an operator on the current stream."""
        if self.process.places is None or current_thread_or_none() is None:
            return
        if self.active and _allocates(func):
            for tensor in tree_leaves(result):
                self._note_allocation(func, tensor)
        name = _name_of_kernel(func)
        if name is None:
            return
        if not self.active and isinstance(result, torch.Tensor):
            self._note_early(name, result)
        else:
            self._note_operands(name, _operands(func, args, kwargs, result, reads=self.active))
        if (name in _HOST_WAITS or (name.startswith("index") and _has_mask(args))) and any(
            self._is_on_gpu(argument) for argument in args
        ):
            self.synchronize(self.tail(self.current()))

    def _note_operands(self, name: str, operands: Iterable[tuple[torch.Tensor, bool]]) -> None:
        accesses = [access for access in operands if self._is_on_gpu(access[0])]
        if not accesses:
            return
        stream = self.current()
        if torch._C._current_graph_task_id() != -1:
            # PyTorch runs a backward pass on the streams of the forward pass, and orders them.
            # Its order is that of the data, which no kernel that only waits has.
            for forward in [key for key in self._clocks if not isinstance(key, tuple)]:
                self.wait(stream, {**self.tail(forward), _END: 0})
        self._launch(stream)
        self._note(name, accesses, stream)

    def _note_early(self, name: str, tensor: torch.Tensor) -> None:
        """Note the write of a program that has made no stream yet, fast: by its result."""
        if not has_storage(tensor) or isinstance(tensor, FakeTensor):
            return
        stream = self.current()
        self._launches += 1
        self._clocks.setdefault(stream, {})[stream] = self._launches
        storage = tensor.untyped_storage()
        self._early[storage._cdata] = _EarlyWrite(
            weakref.ref(storage), name, current_thread().site(), stream, self._launches
        )

    def activate(self) -> None:
        """Remember all accesses from here on, as the program makes a stream."""
        self.active = True
        for early in self._early.values():
            storage = early.storage()
            if storage is None:
                continue
            accesses = self._accesses(storage)
            if all(access.number < early.number for access in accesses):
                limits = (0, storage.nbytes(), True)
                accesses.append(
                    _StreamAccess(early.name, early.site, early.stream, early.number, True, *limits)
                )
                self._storages[storage._cdata].stream = early.stream
        self._early.clear()

    def record(self, tensor: Any, stream: Hashable) -> None:
        """Note that the memory of a tensor is to stay until a stream has used it."""
        entry = self._storages.get(tensor.untyped_storage()._cdata) if has_storage(tensor) else None
        if entry is not None:
            entry.recorded.add(stream)

    def _note_allocation(self, func: Any, tensor: Any) -> None:
        """Note on which stream a tensor is made, and whose memory it may get."""
        if not self._is_on_gpu(tensor):
            return
        storage, stream = tensor.untyped_storage(), self.current()
        self._accesses(storage)
        self._storages[storage._cdata].stream = stream
        clock, nbytes = self.tail(stream), _block_of(storage.nbytes())
        remaining = []
        for block in self._freed:
            if block.access.number <= clock.get(block.access.stream, 0):
                continue
            if (block.stream, block.nbytes) == (stream, nbytes):
                self._report_reuse(func, block.access, stream)
            else:
                remaining.append(block)
        self._freed = remaining[-_LIMIT:]

    def _note_free(self, entry: _StorageAccesses, nbytes: int) -> None:
        """Note the free of memory that a stream may still use, unknown to the one that made it."""
        if entry.stream is None or not self.active:
            return
        clock = self.tail(entry.stream)
        pending = [
            access
            for access in entry.accesses
            if access.stream not in {entry.stream, *entry.recorded}
            and access.number > clock.get(access.stream, 0)
            and not isinstance(access.stream, tuple)  # a collective, which keeps its tensors
        ]
        self._freed += [_FreedBlock(entry.stream, _block_of(nbytes), access) for access in pending]

    def note_copy(self, name: str, tensor: torch.Tensor, *, writes: bool) -> None:
        """Note that a copy of the current stream, for which the host does not wait, reads or writes
        a tensor on the host.
        """
        if isinstance(tensor, FakeTensor) or not tensor.numel():
            return
        stream, storage = self.current(), tensor.untyped_storage()
        self._launch(stream)
        limits = (*span(tensor), has_no_gaps(tensor))
        site = current_thread().site()
        access = _StreamAccess(name, site, stream, self._launches, writes, *limits)
        self._copies[storage._cdata] = _HostCopy(weakref.ref(storage), access)

    def check_host(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Compare the operands of an operator that is no copy with those of copies to and from the
        host that may still be under way.
        """
        name = _name_of_kernel(func) if self._copies else None
        if name is not None:
            for tensor, writes in _operands(func, args, kwargs, result, reads=True):
                self._check_copies(name, tensor, writes=writes)

    def _check_copies(self, name: str, tensor: torch.Tensor, *, writes: bool) -> None:
        """Compare an access of the host with the copies that may still be under way."""
        address = tensor.untyped_storage()._cdata if has_storage(tensor) else 0
        copy = self._copies.get(address)
        if copy is None:
            return
        earlier = copy.access
        if copy.storage() is None or earlier.number <= self._host.get(earlier.stream, 0):
            del self._copies[address]
            return
        limits = (*span(tensor), has_no_gaps(tensor))
        access = _StreamAccess(name, current_thread().site(), None, 0, writes, *limits)
        lines = (access.site, earlier.site)
        if (
            not (writes or earlier.writes)
            or not access.overlaps(earlier)
            or lines in self._reported
        ):
            return
        self._reported.add(lines)
        verbs = ("reads", "writes")
        current_thread().tell(
            f"streams: {name} at {access.site} {verbs[writes]} a tensor on the host that "
            f"{earlier.name} at {earlier.site} {verbs[earlier.writes]} on "
            f"{self._stream_name(earlier.stream)}, for which the host has not waited: synchronize "
            "first, or copy without non_blocking"
        )

    def note_host_access(self, name: str, tensor: torch.Tensor) -> None:
        """Note that the host waits for the current stream and reads a tensor."""
        if self._copies:
            self._check_copies(name, tensor, writes=False)
        if self._is_on_gpu(tensor):
            if self.active:
                self._note_operands(name, [(tensor, False)])
            self.synchronize(self.tail(self.current()))

    def note_collective(
        self,
        name: str,
        work: Work | None,
        lane: tuple[Hashable, ...],
        buffers: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
    ) -> None:
        """Note the accesses of a collective or message: on a stream of its group, the ``lane``,
        which waits for the current one; or on the current one, if that waits (no ``work``).
        """
        inputs, outputs = buffers
        targets = [tensor for tensor in outputs if self._is_on_gpu(tensor)]
        accesses = [(tensor, True) for tensor in targets]
        accesses += [
            (tensor, False)
            for tensor in inputs
            if self._is_on_gpu(tensor) and not any(tensor is output for output in targets)
        ]
        current = self.current()
        stream = current if work is None else lane
        if work is not None:
            self.wait(lane, self.tail(current))
        self._launch(stream)
        if work is not None:
            self._of_works[work] = self.tail(stream)
        elif name == "barrier":
            self.synchronize(self.tail(stream))
        self._note(name, accesses, stream)

    def _is_on_gpu(self, tensor: Any) -> bool:
        if isinstance(tensor, FakeTensor) or not has_storage(tensor) or tensor.is_meta:
            return False
        return bool(tensor.numel()) and self.process.places.get(tensor) != HOST

    def _note(
        self, name: str, accesses: Sequence[tuple[torch.Tensor, bool]], stream: Hashable
    ) -> None:
        clock, site = self._clocks[stream], current_thread().site()
        for tensor, writes in accesses:
            limits = (*span(tensor), has_no_gaps(tensor))
            access = _StreamAccess(name, site, stream, clock[stream], writes, *limits)
            accesses_before = self._accesses(tensor.untyped_storage())
            remaining = []
            for earlier in accesses_before:
                ordered = earlier.number <= clock.get(earlier.stream, 0)
                if not ordered and (writes or earlier.writes) and access.overlaps(earlier):
                    self._report(access, earlier, tensor)
                superseded = writes or (not earlier.writes and earlier.stream == stream)
                if not (superseded and access.covers(earlier)):
                    remaining.append(earlier)
            accesses_before[:] = [*remaining[1 - _LIMIT :], access]

    def _accesses(self, storage: torch.UntypedStorage) -> list[_StreamAccess]:
        address = storage._cdata
        entry = self._storages.get(address)
        if entry is None:
            nbytes = storage.nbytes()

            def forget(_reference: object) -> None:
                freed = self._storages.pop(address, None)
                if freed is not None:
                    self._note_free(freed, nbytes)

            entry = self._storages[address] = _StorageAccesses(weakref.ref(storage, forget))
        return entry.accesses

    def _report(self, access: _StreamAccess, earlier: _StreamAccess, tensor: torch.Tensor) -> None:
        by_group = isinstance(earlier.stream, tuple)
        if by_group and earlier.number > self._awaited.get(earlier.stream, 0):
            return  # nobody has waited for it: an access to a buffer in flight, which is an error
        lines = (access.site, earlier.site)
        if not self.active or lines in self._reported:
            return
        self._reported.add(lines)
        later, former = self._stream_name(access.stream), self._stream_name(earlier.stream)
        remedy = (
            f"call wait() of its work on {later}, or let that wait for the stream that called it"
            if by_group
            else "let it wait first (wait_stream or an event), or synchronize"
        )
        verbs = ("reads", "writes")
        current_thread().tell(
            f"streams: {access.name} at {access.site} {verbs[access.writes]} a "
            f"{str(tensor.dtype).removeprefix('torch.')} tensor of shape {list(tensor.shape)} on "
            f"{later}, which does not wait for {former}, where {earlier.name} at {earlier.site} "
            f"{verbs[earlier.writes]} it: {remedy}"
        )

    def _report_reuse(self, func: Any, access: _StreamAccess, stream: Hashable) -> None:
        site = current_thread().site()
        if (site, access.site) in self._reported:
            return
        self._reported.add((site, access.site))
        verbs = ("reads", "writes")
        maker, user = self._stream_name(stream), self._stream_name(access.stream)
        current_thread().tell(
            f"streams: {access.name} at {access.site} {verbs[access.writes]} a tensor on {user} "
            f"that was made on {maker} and is freed now; {func.overloadpacket.__name__} at {site} "
            f"may get its memory on {maker}, which does not wait for {user}: call record_stream() "
            f"before it is freed, or let {maker} wait first"
        )

    def _stream_name(self, stream: Hashable) -> str:
        if isinstance(stream, tuple):
            return f"the stream of {stream[0]}"
        streams = self.process.cuda_streams
        number = stream if isinstance(stream, int) else streams.number_of(stream, 0)
        return f"stream {number << 4:#x}" if number else "the default stream"


def end_fs(clock: Clock) -> int:
    """The time at which the last kernel ends that holds a stream before the clock."""
    return clock.get(_END, 0)


def _pause_until(time_fs: int) -> None:
    world = current_rank().world
    world.pause(time_fs - world.now, "kernels that the host waits for")


def _latest(clock: Clock, waited: Clock) -> Clock:
    """The launches that one of two clocks has."""
    merged = dict(clock)
    for stream, number in waited.items():
        if number > merged.get(stream, 0):
            merged[stream] = number
    return merged


@functools.cache
def _name_of_kernel(func: Any) -> str | None:
    """The name of an operator that reads or writes elements; None for others, and for those of
    higher order, whose operators run inside them.
    """
    if not isinstance(func, OpOverload) or func.is_view:
        return None
    name: str = func._schema.name.partition("::")[2]
    return None if name in SHAPES_ONLY or name.startswith("empty") else name


@functools.cache
def _allocates(func: Any) -> bool:
    """Whether the results of an operator are new tensors."""
    return (
        isinstance(func, OpOverload)
        and not func.is_view
        and not any(result.alias_info for result in func._schema.returns)
    )


def _block_of(nbytes: int) -> int:
    return -(-nbytes // _BLOCK) * _BLOCK


def _has_mask(args: Sequence[Any]) -> bool:
    """Whether an index is a mask, of which the host needs the number of elements."""
    return any(
        isinstance(index, torch.Tensor) and index.dtype in {torch.bool, torch.uint8}
        for value in args
        if isinstance(value, (list, tuple))
        for index in value
    )


def _operands(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, *, reads: bool
) -> Iterator[tuple[torch.Tensor, bool]]:
    """The tensors that an operator accesses, and whether it writes them."""
    operands: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                operands.append(tensor)
                if writes or reads:
                    yield tensor, writes
    results = (result,) if isinstance(result, torch.Tensor) else tree_leaves(result)
    for leaf in results:
        if isinstance(leaf, torch.Tensor) and not any(leaf is operand for operand in operands):
            yield leaf, True
