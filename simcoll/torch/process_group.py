"""The process group that PyTorch calls, which maps each call to simcoll.distributed on the tensors'
memory.

PyTorch's functions check most arguments, convert complex tensors to pairs of real ones, and wait
for the returned Work unless the program asked for it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d

from simcoll import distributed as ours
from simcoll.distributed.api.coalesced import (
    all_gather_coalesced,
    all_reduce_coalesced,
    by_rank,
    reduce_scatter_coalesced,
)
from simcoll.distributed.api.groups import default_group
from simcoll.distributed.api.making_groups import shared_group
from simcoll.distributed.runtime.device import SimulatedDevice, after
from simcoll.distributed.runtime.tasks import wait_until
from simcoll.distributed.runtime.work import Work, timeout_fs
from simcoll.distributed.runtime.world import GroupHandle, current_rank
from simcoll.errors import ConfigError
from simcoll.libraries.choices import Choice
from simcoll.torch.buffer_races import IN_PLACE, overlaps
from simcoll.torch.c10d_operators import DispatchedGroup, as_pytorch_calls
from simcoll.torch.callers import asks_for_program
from simcoll.torch.estimate import Estimator, estimating
from simcoll.torch.group_hooks import GroupHooks
from simcoll.torch.nccl_limits import NcclLimits
from simcoll.torch.rank_threads import current_thread
from simcoll.torch.tensors import array_of, arrays_of, reduce_op_of
from simcoll.torch.works import RankWork

Tensors = Sequence[torch.Tensor]

__all__ = ["Options", "SimcollGroup", "create"]

_FRAMES_OF_RUN = 5
"""Frames inside the program's line where a group calls a collective: those of the site, of the
call, :meth:`SimcollGroup._run`, the method, and its wrapper."""
_STANDARD_TIMEOUTS = {
    "nccl": distributed_c10d.default_pg_nccl_timeout,
    "emulator": distributed_c10d.default_pg_timeout,
}
"""PyTorch's default timeouts of groups, by backend; None for NCCL's in a build without CUDA."""
_NO_LIMIT = timedelta(milliseconds=-1)
"""The timeout of options that give none."""
_FRAMES_TO_CALLER = 3
"""From :meth:`SimcollGroup._run` to what has called the group."""


@dataclass(frozen=True, slots=True)
class Options:
    """``pg_options`` of ``init_process_group`` and ``new_group``.

    Attributes
    ----------
    algorithm
        Algorithm of the group's collectives, as for :func:`simcoll.distributed.spawn`. None: as
        passed to spawn.
    """

    algorithm: Choice = None


def create(options: Any, pg_options: Any) -> SimcollGroup:
    """Create a rank's handle of a group, for
    ``torch.distributed.Backend.register_backend(extended_api=True)``.
    """
    return SimcollGroup(options, pg_options)


def _join(options: Any, algorithm: Choice, backend: str, *, tagged: bool) -> GroupHandle:
    """Join the group that PyTorch creates; runs in the rank's task. ``backend`` is the name whose
    errors it raises.
    """
    standard = _STANDARD_TIMEOUTS[backend] or distributed_c10d.default_pg_timeout
    timeout = None if options.timeout == standard else options.timeout
    me = current_rank()
    members = tuple(options.global_ranks_in_group)
    if not members:
        ours.init_process_group(
            backend,
            rank=options.group_rank,
            world_size=options.group_size,
            timeout=timeout,
            algorithm=algorithm,
        )
        return default_group()
    limit = (timeout_fs(options.timeout), timeout is not None)
    communicator = shared_group(
        me, options.group_id, members, limit, backend, algorithm, tagged=tagged
    )
    handle = GroupHandle(communicator, me.number, options.timeout)
    me.groups.append(handle)
    return handle


def _leave(handle: GroupHandle) -> None:
    if handle.global_rank not in handle.communicator.destroyed:
        ours.destroy_process_group(handle)


def _numbers(splits: Any) -> list[int]:
    """The numbers of a list or an array; none for None.

    Also of a tensor, which PyTorch refuses: Megatron-LM makes arrays only of tensors that say that
    they are on a GPU.
    """
    return [] if splits is None else [int(split) for split in splits]


def _single(tensors: Tensors | torch.Tensor, function: str) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise RuntimeError(f"{function}: expected one tensor per rank, got {len(tensors)}")
    return tensors[0]


class SimcollGroup(DispatchedGroup):
    """One rank's handle of a group. Names and arguments are those of
    ``torch.distributed.ProcessGroup``.
    """

    def __init__(self, options: Any, pg_options: Any) -> None:
        thread, rank, size = current_thread(), options.group_rank, options.group_size
        if rank < 0:  # called mpi, which would know them
            rank, size = thread.number, int(thread.process.environment["WORLD_SIZE"])
        super().__init__(rank, size)
        self._thread = thread
        self._store = options.store
        # Options of other backends mean nothing here.
        algorithm = pg_options.algorithm if isinstance(pg_options, Options) else None
        process = self._thread.process
        self._handle: GroupHandle = self._thread.call(
            _join, options, algorithm, process.backend, tagged=process.tagged
        )
        self._name: str = options.group_id
        self._coalescing: list[RankWork] | None = None
        self._finished = RankWork(thread, (), [])
        self.hooks = GroupHooks()
        self._limits: NcclLimits | None = None
        self._runs_in_order = process.nccl_only
        self._queue = self._handle.communicator if process.nccl_only else None
        if process.nccl_only and process.places is not None:
            users: dict[tuple[str, str], int] = self._handle.communicator.device_users
            self._limits = NcclLimits(self._thread, users)
        self._run_handle = self._handle  # while times are estimated, calls go to another
        self._estimator: Estimator | None = None

    def __repr__(self) -> str:
        members = list(self._handle.communicator.members)
        return f"<ProcessGroup {self._name}: rank {self.rank()} of the ranks {members}>"

    def _run(
        self,
        function: Callable[..., Any],
        *args: Any,
        opts: Any,
        inputs: Sequence[torch.Tensor],
        results: list[torch.Tensor],
        **kwargs: Any,
    ) -> RankWork:
        """Call a collective, and wait for it unless the caller wants the Work."""
        waits = opts is not None and not opts.asyncOp and self._coalescing is None
        process, name, hooks = self._thread.process, function.__name__, self.hooks
        # Most calls have nothing to tell, to check or to watch, and are many.
        end = None
        if hooks.pre_hooks or hooks.post_hooks:
            end = hooks.begin(name, inputs, results, opts)
        else:
            hooks.operations += 1
        if (
            self._limits is not None
            or process.flights.open
            or len(results) > 1
            or name not in IN_PLACE
        ):
            self._check(name, inputs, results, opts)
        device = None if process.device is None else self._device(results)
        if device is not None:
            work = self._enqueue(device, function, *args, results=results, async_op=True, **kwargs)
            if waits:
                work.wait()
        else:
            limit = _NO_LIMIT if opts is None else opts.timeout
            limit_fs = 0 if limit == _NO_LIMIT else timeout_fs(limit)
            kwargs |= {"group": self._handle, "async_op": limit_fs > 0 or not waits}
            call = function if process.places is None else process.stream_races.on_stream(function)
            part = self._thread.carry(_FRAMES_OF_RUN, call, args, kwargs)
            if part is not None or process.places is not None:
                self._watch(name, part, inputs, results, self._queue)
            if (
                part is None
                and waits
                and end is None
                and sys._getframe(_FRAMES_TO_CALLER).f_code in _WAITING
            ):
                return self._finished
            work = RankWork(self._thread, () if part is None else (part,), results)
            if part is not None and limit_fs > 0:
                part.deadline_fs, part.explicit = part.entry.created_fs + limit_fs, True
                if waits:
                    work.wait()
        if end is not None:
            end(work)
        return work if self._coalescing is None else self._note(work)

    def _check(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> None:
        """Note what NCCL would refuse, and buffers that operations in flight use or that
        overlap.
        """
        thread = self._thread
        if self._limits is not None:
            self._limits.check(name, inputs, outputs, getattr(opts, "reduceOp", None))
        if thread.process.flights.open:
            thread.process.flights.check_call(name, self._queue, (inputs, outputs), thread.site)
            if self._runs_in_order:  # on one stream, where gloo has several threads
                for work in thread.process.flights.writers(
                    self._handle.communicator, (inputs, outputs)
                ):
                    thread.call(wait_until, work)
        if len(outputs) > 1 or name not in IN_PLACE:
            for reason in overlaps(name, inputs, outputs, self.rank(), self.size()):
                thread.tell(name, reason)

    def _watch(
        self, name: str, part: Work | None, inputs: Tensors, outputs: Tensors, queue: Any
    ) -> None:
        """Note the accesses of an operation, and watch its buffers while it is in flight."""
        process = self._thread.process
        if process.places is not None:
            kind = "messages" if part is not None and part.entry.p2p else "collectives"
            process.stream_races.note_collective(
                name,
                part,
                (f"{kind} of group {self._name}",),
                (inputs, outputs),
            )
        if part is None:
            return
        on_gpu = process.places is not None and (
            self._runs_in_order
            or all(process.places.is_on_gpu(tensor) for tensor in (*inputs, *outputs))
        )
        process.flights.begin(
            part, self._handle.communicator, inputs, outputs, queue=queue, on_gpu=on_gpu
        )

    def _device(self, tensors: list[torch.Tensor]) -> SimulatedDevice | None:
        """The device of fake tensors, with a time model."""
        device = self._thread.process.device
        if device is None or not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return None
        return device

    def _enqueue(
        self,
        device: SimulatedDevice,
        function: Callable[..., Any],
        *args: Any,
        results: list[torch.Tensor],
        **kwargs: Any,
    ) -> RankWork:
        """Call an operation that starts when the current stream reaches it."""

        def call() -> Any:
            with after(device.current.tail):
                return function(*args, group=self._handle, **kwargs)

        part = self._thread.call(call)
        return RankWork(self._thread, () if part is None else (part,), results, device)

    def _note(self, work: RankWork) -> RankWork:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    # Collectives

    @as_pytorch_calls()
    def allreduce(self, tensors: Tensors, opts: Any = None) -> RankWork:
        """Reduce the tensors of all ranks; every rank gets the result."""
        tensor = tensors[0] if len(tensors) == 1 else _single(tensors, "allreduce")
        if tensor.layout is torch.sparse_coo:
            return self._allreduce_sparse(tensor, opts)
        op = reduce_op_of(opts.reduceOp if opts is not None else dist.ReduceOp.SUM)
        array = array_of(tensor, reduced=True)
        return self._run(ours.all_reduce, array, op, opts=opts, inputs=[tensor], results=[tensor])

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> RankWork:
        """Sum sparse tensors: gather all indices and values on every rank. Blocks, as sizes have to
        be known first.
        """
        op = reduce_op_of(opts.reduceOp if opts is not None else dist.ReduceOp.SUM)
        if op != ours.ReduceOp.SUM:
            raise RuntimeError(f"all_reduce of sparse tensors is a SUM; got {op}")
        mine = tensor.detach().coalesce()
        group, call = self._handle, self._thread.call
        counts = torch.zeros(self.size(), dtype=torch.int64)
        call(
            ours.all_gather_into_tensor,
            array_of(counts),
            array_of(torch.tensor([mine._nnz()])),
            group=group,
        )
        parts = []
        for part in (mine.indices().t().contiguous(), mine.values().contiguous()):
            listed = [part.new_empty((count, *part.shape[1:])) for count in counts.tolist()]
            call(ours.all_gather, arrays_of(listed), array_of(part), group=group)
            parts.append(torch.cat(listed))
        with torch.no_grad():
            tensor.copy_(torch.sparse_coo_tensor(parts[0].t(), parts[1], tensor.shape).coalesce())
        return self._note(RankWork(self._thread, (), [tensor]))

    @as_pytorch_calls()
    def broadcast(self, tensors: Tensors, opts: Any) -> RankWork:
        """Copy the root's tensor to the others."""
        tensor = _single(tensors, "broadcast")
        return self._run(
            ours.broadcast,
            array_of(tensor),
            opts=opts,
            inputs=[tensor],
            results=[tensor],
            group_src=opts.rootRank,
        )

    @as_pytorch_calls()
    def reduce(self, tensors: Tensors, opts: Any) -> RankWork:
        """Reduce into the root's tensor."""
        tensor = _single(tensors, "reduce")
        op = reduce_op_of(opts.reduceOp)
        return self._run(
            ours.reduce,
            array_of(tensor, reduced=True),
            op=op,
            opts=opts,
            inputs=[tensor],
            results=[tensor],
            group_dst=opts.rootRank,
        )

    @as_pytorch_calls()
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> RankWork:
        """Collect every rank's tensor, of any size, in a list."""
        listed = list(outputs[0])
        source = _single(inputs, "allgather")
        arrays = arrays_of(listed), array_of(source)
        work = self._run(ours.all_gather, *arrays, opts=opts, inputs=[source], results=listed)
        if self._limits is not None and work is not self._finished:
            work.stacked = len({tensor.shape for tensor in listed}) == 1
        return work

    @as_pytorch_calls()
    def all_gather_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        opts: Any = None,
    ) -> RankWork:
        """Collect every rank's tensor in one tensor."""
        return self._run(
            ours.all_gather_into_tensor,
            array_of(output),
            array_of(input),
            opts=opts,
            inputs=[input],
            results=[output],
        )

    @as_pytorch_calls()
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> RankWork:
        """Collect every rank's tensor in a list of the root."""
        listed = list(outputs[0]) if outputs else []
        source = _single(inputs, "gather")
        return self._run(
            ours.gather,
            array_of(source),
            arrays_of(listed),
            opts=opts,
            inputs=[source],
            results=listed,
            group_dst=opts.rootRank,
        )

    @as_pytorch_calls(observed=False)
    def gather_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        opts: Any,
    ) -> RankWork:
        """Collect every rank's tensor in one tensor of the root; from PyTorch 2.14 on."""
        listed = []
        if self.rank() == opts.rootRank:
            if not output.is_contiguous():
                raise ValueError("Tensors must be contiguous")
            if output.numel() != input.numel() * self.size():
                raise ValueError(
                    f"gather_single: the output has {output.numel()} elements; expected "
                    f"{self.size()} times the {input.numel()} of the input"
                )
            listed = list(output.view(self.size(), *input.shape).unbind())
        work: RankWork = self.gather([listed] if listed else [], [input], opts)
        return work

    @as_pytorch_calls()
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> RankWork:
        """Give every rank one tensor of the root's list."""
        output = _single(outputs, "scatter")
        listed = list(inputs[0]) if inputs else []
        return self._run(
            ours.scatter,
            array_of(output),
            arrays_of(listed),
            opts=opts,
            inputs=listed,
            results=[output],
            group_src=opts.rootRank,
        )

    @as_pytorch_calls()
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> RankWork:
        """Reduce lists entry by entry, and give every rank one entry."""
        output = _single(outputs, "reduce_scatter")
        op, arrays = reduce_op_of(opts.reduceOp), arrays_of(inputs[0], reduced=True)
        return self._run(
            ours.reduce_scatter,
            array_of(output),
            arrays,
            op,
            opts=opts,
            inputs=list(inputs[0]),
            results=[output],
        )

    @as_pytorch_calls()
    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        opts: Any,
    ) -> RankWork:
        """Reduce tensors, and give every rank one part."""
        op = reduce_op_of(opts.reduceOp)
        return self._run(
            ours.reduce_scatter_tensor,
            array_of(output),
            array_of(input, reduced=True),
            op,
            opts=opts,
            inputs=[input],
            results=[output],
        )

    @as_pytorch_calls()
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        opts: Any = None,
    ) -> RankWork:
        """Send every rank a part of a tensor, and join the received parts."""
        self._equal_splits()
        arrays = array_of(output), array_of(input)
        splits = _numbers(output_splits), _numbers(input_splits)
        return self._run(
            ours.all_to_all_single,
            *arrays,
            *splits,
            opts=opts,
            inputs=[input],
            results=[output],
        )

    @as_pytorch_calls()
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RankWork:
        """Send every rank one entry of a list, and receive one from each."""
        self._equal_splits()
        arrays = arrays_of(outputs), arrays_of(inputs)
        return self._run(
            ours.all_to_all, *arrays, opts=opts, inputs=list(inputs), results=list(outputs)
        )

    @as_pytorch_calls()
    def barrier(self, opts: Any = None) -> RankWork:
        """Wait until all ranks have called."""
        return self._run(ours.barrier, opts=opts, inputs=[], results=[])

    # Several tensors at once

    @as_pytorch_calls()
    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> RankWork:
        """All-reduce several tensors."""
        op = reduce_op_of(opts.reduceOp)
        works = [
            self._run(
                all_reduce_coalesced,
                arrays_of(batch, reduced=True),
                op,
                opts=opts,
                inputs=batch,
                results=batch,
            )
            for batch in _of_one_dtype(tensors, lambda tensor: tensor)
        ]
        return self._together(works, list(tensors))

    @as_pytorch_calls()
    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RankWork:
        """All-gather several pairs of tensors."""
        works = []
        for pairs in _of_one_dtype(list(zip(outputs, inputs, strict=True)), lambda pair: pair[1]):
            rows = zip(
                *(by_rank(array_of(output), self.size()) for output, _ in pairs), strict=True
            )
            sources = [array_of(source) for _, source in pairs]
            works.append(
                self._run(
                    all_gather_coalesced,
                    list(map(list, rows)),
                    sources,
                    opts=opts,
                    inputs=[source for _, source in pairs],
                    results=[output for output, _ in pairs],
                )
            )
        return self._together(works, list(outputs))

    @as_pytorch_calls()
    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> RankWork:
        """Collect lists of tensors: entry r of ``outputs`` is the list of rank r."""
        targets = [arrays_of(rank_outputs) for rank_outputs in outputs]
        flat = [tensor for rank_outputs in outputs for tensor in rank_outputs]
        arrays = targets, arrays_of(inputs)
        return self._run(
            all_gather_coalesced, *arrays, opts=opts, inputs=list(inputs), results=flat
        )

    @as_pytorch_calls()
    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any
    ) -> RankWork:
        """Reduce-scatter several pairs of tensors."""
        works, op = [], reduce_op_of(opts.reduceOp)
        for pairs in _of_one_dtype(list(zip(outputs, inputs, strict=True)), lambda pair: pair[0]):
            rows = zip(
                *(by_rank(array_of(source, reduced=True), self.size()) for _, source in pairs),
                strict=True,
            )
            targets = [array_of(output) for output, _ in pairs]
            works.append(
                self._run(
                    reduce_scatter_coalesced,
                    targets,
                    list(map(list, rows)),
                    op,
                    opts=opts,
                    inputs=[source for _, source in pairs],
                    results=[output for output, _ in pairs],
                )
            )
        return self._together(works, list(outputs))

    def join_works(self, works: Sequence[Any]) -> RankWork:
        """One Work for several."""
        results = [tensor for work in works for tensor in work.results]
        return self._together(list(works), results) if len(works) > 1 else works[0]

    def _together(self, works: list[RankWork], results: list[torch.Tensor]) -> RankWork:
        parts = tuple(part for work in works for part in work.parts)
        return RankWork(self._thread, parts, results, next((work.device for work in works), None))

    # A group is its own backend, whose methods have no device.

    def _start_coalescing(self, device_type: Any = None) -> None:  # noqa: ARG002
        self._coalescing = []

    def _end_coalescing(self, device_type: Any = None) -> RankWork:  # noqa: ARG002
        works, self._coalescing = self._coalescing or [], None
        return self._together(works, [tensor for work in works for tensor in work.results])

    # Point to point

    @as_pytorch_calls()
    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> RankWork:
        """Start to send to a group rank."""
        tensor = _single(tensors, "send")
        return self._message(ours.isend, tensor, tag, group_dst=dst)

    @as_pytorch_calls()
    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> RankWork:
        """Start to receive from a group rank."""
        return self._message(ours.irecv, _single(tensors, "recv"), tag, group_src=src)

    @as_pytorch_calls()
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RankWork:
        """Start to receive from any rank."""
        work = self._message(ours.irecv, _single(tensors, "recv"), tag)
        work.parts[0].entry.name = "recvAnySource"  # as PyTorch calls it
        return work

    def _message(
        self, function: Callable[..., Any], tensor: torch.Tensor, tag: int, **peer: int
    ) -> RankWork:
        if self._estimator is not None:
            raise RuntimeError("the time estimator supports collectives only, not send and recv")
        sends, flights = function is ours.isend, self._thread.process.flights
        buffers = ([tensor], []) if sends else ([], [tensor])
        if self._limits is not None:
            name = "send" if sends else "recv"
            self._limits.check_message(name, tensor, tag, any_source=not peer)
        root = next(iter(peer.values()), -1)
        queue = (self._handle.communicator, sends, root) if peer else None
        if flights.open:
            flights.check_call(function.__name__, queue, buffers, self._thread.site)
        end = self.hooks.begin(function.__name__, *buffers, async_op=True, root=root)
        device = self._device([tensor])
        if device is not None:
            work = self._enqueue(
                device, function, array_of(tensor), results=[tensor], tag=tag, **peer
            )
        else:
            call = self._thread.process.stream_races.on_stream(function)
            part = self._thread.call(call, array_of(tensor), group=self._handle, tag=tag, **peer)
            self._watch(function.__name__, part, *buffers, queue)
            work = RankWork(self._thread, (part,), [tensor])
        if end is not None:
            end(work)
        return self._note(work)

    # Names of these before and after torch 2.13

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # The group itself

    Options = Options
    supports_coalescing = False
    supports_shrinking = False
    supports_splitting = False

    def getBackendName(self) -> str:  # noqa: N802  # torch's names
        """``simcoll``, since PyTorch's C++ expects a ProcessGroupGloo behind the name gloo."""
        return "simcoll"

    def getGroupName(self) -> str:  # noqa: N802
        """Unique name."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Do nothing: torch repeats the name given at creation."""

    def getGroupDesc(self) -> str:  # noqa: N802
        """The description."""
        return self._handle.communicator.desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        """Set the description."""
        self._handle.communicator.desc = desc

    def get_group_store(self) -> dist.Store:
        """The store given at creation."""
        return self._store

    def get_backend(self, device: torch.device) -> SimcollGroup:  # noqa: ARG002
        """The group itself, which is its own backend."""
        return self

    _get_backend = get_backend

    def _set_default_backend(self, backend_type: Any) -> None:
        """Do nothing: the group is its own backend, also under this type."""

    def _register_backend(self, device: Any, backend_type: Any, backend: Any = None) -> None:
        """Do nothing, as :meth:`_set_default_backend`."""

    def _get_sequence_number_for_group(self) -> int:
        return self._handle.communicator.calls[self._handle.rank()]

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier that names the missing ranks: see
        :func:`simcoll.distributed.monitored_barrier`.
        """
        if self._limits is not None:
            reason = "monitored_barrier is only implemented for gloo"
            self._limits.refuse("monitored_barrier", reason)
        self._thread.call(ours.monitored_barrier, self._handle, timeout, wait_all_ranks)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,  # noqa: ARG002  # torch's signature
        group_name: str | None = None,  # noqa: ARG002
        group_desc: str | None = None,
        device_types: Any = None,  # noqa: ARG002
    ) -> Any:
        """The group of some group ranks, which only they make; None on the others.

        Raises
        ------
        ValueError
            For ranks that are not of this group.
        """
        members = self._handle.communicator.members
        wrong = [rank for rank in ranks if not 0 <= rank < len(members)]
        if wrong or not ranks:
            raise ValueError(
                f"split_group: ranks {list(ranks)}; expected ranks of this group, 0 .. "
                f"{len(members) - 1}"
            )
        if self.rank() not in ranks:
            return None
        return dist.new_group(
            sorted(members[rank] for rank in ranks),
            timeout,
            use_local_synchronization=True,
            group_desc=group_desc,
        )

    def supports_tensor_alloc(self, device: torch.device) -> bool:  # noqa: ARG002
        """Whether the group has memory of its own for tensors: never."""
        return False

    def allocate_tensor(self, *_: Any, **__: Any) -> Any:
        """Refuse: the memory that NCCL registers is on a GPU."""
        raise ConfigError(
            "Backend.allocate_tensor takes memory that NCCL has registered on a GPU: use "
            "torch.empty, which takes as long here"
        )

    @property
    def mem_allocator(self) -> Any:
        """Refuse, as :meth:`allocate_tensor`."""
        raise ConfigError(
            "Backend.mem_allocator is that of NCCL for memory on a GPU: use torch.empty"
        )

    def memory_stats(self) -> dict[str, int]:
        """Bytes that the group itself has allocated: none are counted."""
        return {}

    def bind(self, device: torch.device) -> None:
        """Take the ``device_id`` of ``init_process_group`` or ``new_group``."""
        self.bound_device_id = device
        if self._limits is not None:
            self._limits.connect(device)

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Do nothing: the ranks of a run are connected."""

    def suspend(self) -> None:
        """Do nothing: there is no memory of the group to give back."""

    resume = suspend

    def shrink(self, *_: Any, **__: Any) -> Any:
        """Refuse: the ranks of a run are fixed."""
        raise ConfigError(
            "Backend.shrink makes a group without ranks that have failed, and the ranks of a "
            "simulated run do not fail: use new_group with the ranks that are left"
        )

    def setUsePgForSymmMemRendezvous(self, value: bool) -> None:  # noqa: N802
        """Refuse symmetric memory, which maps memory of other GPUs."""
        if value:
            raise ConfigError(
                "ProcessGroup.use_pg_for_symm_mem_rendezvous is for symmetric memory, which maps "
                "the memory of other GPUs: use collectives"
            )

    @property
    def use_pg_for_symm_mem_rendezvous(self) -> bool:
        """Whether symmetric memory meets over this group: never."""
        return False

    @use_pg_for_symm_mem_rendezvous.setter
    def use_pg_for_symm_mem_rendezvous(self, value: bool) -> None:
        self.setUsePgForSymmMemRendezvous(value)

    def _backend_id(self, backend_type: Any) -> int:  # noqa: ARG002  # torch's signature
        return id(self)

    def merge_remote_group(self, *_: Any, **__: Any) -> Any:
        """Refuse: there are no other runs to merge with."""
        raise ConfigError(
            "ProcessGroup.merge_remote_group joins groups of other jobs, and a simulated run has "
            "one: use new_group with ranks of this run"
        )

    # From PyTorch 2.14 on

    allreduce_sparse = allreduce

    @property
    def options(self) -> Any:
        """Options of the group: the algorithm of its collectives."""
        return Options(self._handle.communicator.algorithm)

    def get_error(self) -> Any:
        """The state of the group: errors of a run end all ranks, so that none is left to ask."""
        return c10d.ErrorType.SUCCESS

    def _set_group_uid(self, pg_uid: str) -> None:
        """Do nothing: a group has the name given at creation."""

    def split(self, *_: Any, **__: Any) -> Any:
        """Refuse: groups of a run are made by PyTorch's functions."""
        raise ConfigError(
            "Backend.split makes a communicator of NCCL's: use torch.distributed.split_group"
        )

    def merge(self, *_: Any, **__: Any) -> Any:
        """Refuse: there are no other runs to merge with."""
        raise ConfigError(
            "Backend.merge joins groups of other jobs, and a simulated run has one: use new_group"
        )

    supports_window = False
    supports_reconfigure = False
    # From PyTorch 2.15 on; completion hooks are refused, and there is no watchdog that aborts.
    supports_completion_hooks = supports_abort_hooks = False

    def register_pre_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
        """Call a function before each operation is issued."""
        self.hooks.pre_hooks[hook_id] = hook

    def register_post_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
        """Call a function after each operation is issued."""
        self.hooks.post_hooks[hook_id] = hook

    def unregister_pre_hook(self, hook_id: int) -> None:
        """Forget a hook."""
        self.hooks.pre_hooks.pop(hook_id, None)

    def unregister_post_hook(self, hook_id: int) -> None:
        """Forget a hook."""
        self.hooks.post_hooks.pop(hook_id, None)

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Refuse: no watchdog aborts a simulated group."""
        raise ConfigError(
            "ProcessGroup.register_abort_hook is called by a watchdog, which a simulated run has "
            f"not: its errors end all ranks (hook {hook_id}: {hook!r})"
        )

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Do nothing: there is none."""

    def new_window(self, *_: Any, **__: Any) -> Any:
        """Refuse: one-sided access has no schedule."""
        raise ConfigError(
            "ProcessGroup.new_window gives one-sided access to the memory of other ranks, which "
            "is not emulated: use send, recv and collectives"
        )

    def reconfigure(self, *_: Any, **__: Any) -> Any:
        """Refuse: the ranks of a run are fixed."""
        raise ConfigError(
            "ProcessGroup.reconfigure and ProcessGroup.get_reconfigure_handle replace ranks of a "
            "group, and those of a simulated run are fixed: use new_group with the ranks that are "
            "left"
        )

    get_reconfigure_handle = reconfigure

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Do nothing: the operations that it would prolong end by their own timeouts, or in a hang
        that is reported.
        """

    def set_timeout(self, timeout: timedelta) -> None:
        """Limit the time of later operations."""
        communicator = self._handle.communicator
        communicator.timeout_fs, communicator.explicit = timeout_fs(timeout), True

    def _register_on_completion_hook(self, hook: Callable[..., Any]) -> None:
        raise ConfigError(
            "ProcessGroup._register_on_completion_hook calls back from a thread of NCCL's, which a "
            f"simulated run has not: poll Work.is_completed() instead (hook {hook!r})"
        )

    def _wait_for_pending_works(self) -> None:
        """Do nothing: hooks, whose ends it waits for, are refused."""

    def _has_hooks(self) -> bool:
        return False

    def _enable_collectives_timing(self) -> None:
        """Do nothing: times of collectives are always known."""

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: operations are numbered in any case."""

    def _get_backend_name(self) -> str:
        return self.getBackendName()

    def shutdown(self) -> None:
        """Leave the group."""
        self._thread.call(_leave, self._handle)

    abort = shutdown

    @property
    def _device_types(self) -> list[torch.device]:
        process, cpu = self._thread.process, torch.device("cpu")
        frame = sys._getframe(1)
        is_for_objects = frame.f_code is _OBJECT_DEVICE
        if frame.f_code in _DEVICE_QUERIES and frame.f_back is not None:
            frame = frame.f_back
        if process.places is None or not (is_for_objects or asks_for_program(frame)):
            return [cpu]
        return [torch.device("cuda")] if process.nccl_only else [cpu, torch.device("cuda")]

    # torch.distributed.distributed_c10d._time_estimator

    supports_time_estimate = _supports_time_estimate = True  # before 2.15, since

    def _start_time_estimate(self) -> None:
        if self._estimator is not None:
            raise RuntimeError("the time estimator is already active for this group")
        self._handle, self._estimator = self._thread.call(estimating, self._run_handle)

    def _end_time_estimate(self) -> float:
        estimator, self._estimator, self._handle = self._estimator, None, self._run_handle
        return 0.0 if estimator is None else estimator.time_fs / 1e9  # microseconds, as NCCL's

    def _equal_splits(self) -> None:
        if self._estimator is not None:
            self._estimator.equal_splits = True


_WAITING = frozenset(
    inspect.unwrap(getattr(distributed_c10d, name)).__code__
    for name in ("all_reduce", "broadcast", "reduce", "barrier", "all_gather", "reduce_scatter")
)
"""Functions of PyTorch that do nothing with the Work of a call that has waited but wait for it: to
make one takes as long as a tenth of the call.
"""
_DEVICE_QUERIES = frozenset(
    inspect.unwrap(query).__code__
    for query in (distributed_c10d._get_pg_default_device, distributed_c10d._device_capability)
)
"""Functions of PyTorch that answer their caller."""
_OBJECT_DEVICE = inspect.unwrap(distributed_c10d._get_object_coll_device).__code__
"""The function of PyTorch that says where pickled objects go: to a GPU, if NCCL is all there is."""


def _of_one_dtype(
    entries: Sequence[Any], tensor_of: Callable[[Any], torch.Tensor]
) -> list[list[Any]]:
    """Split into lists of equal dtype, in order of first appearance."""
    batches: dict[torch.dtype, list[Any]] = {}
    for entry in entries:
        batches.setdefault(tensor_of(entry).dtype, []).append(entry)
    return list(batches.values())
