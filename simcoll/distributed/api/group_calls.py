"""The methods of a process group, with torch's names and arguments.

Their ranks are group ranks. Each takes what torch's overloads take: lists with one tensor and
options, or one tensor and plain values; and each returns a Work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from simcoll.distributed.api import coalesced, collectives, debug, point_to_point
from simcoll.distributed.api.arguments import as_array, as_arrays
from simcoll.distributed.api.call_options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from simcoll.distributed.api.groups import default_store
from simcoll.distributed.runtime.work import Work, timeout_fs
from simcoll.distributed.runtime.world import GroupHandle
from simcoll.errors import ConfigError

__all__ = ["ProcessGroup"]

_Options = TypeVar(
    "_Options",
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)


def _options(
    kind: type[_Options],
    opts: Any,
    place: str = "timeout",
    timeout: timedelta | None = None,
    **values: Any,
) -> _Options:
    """The options of a call. ``opts`` are options, or the plain value of the field ``place``, which
    stands in their place in torch's other overloads.
    """
    options = kind()
    if isinstance(opts, kind):
        options = opts
    elif type(opts).__name__.endswith("Options"):
        raise TypeError(f"expected {kind.__name__}, got {type(opts).__name__}")
    elif opts is not None:
        values[place] = opts
    if timeout is not None:
        values["timeout"] = timeout
    changes = {name: value for name, value in values.items() if value is not None}
    return replace(options, **changes)


def _only(tensors: Any, method: str) -> Any:
    """The tensor of a list that has to have one, or the tensor itself."""
    if tensors is None:
        raise TypeError(f"ProcessGroup.{method}() needs a tensor, or a list with one")
    if not isinstance(tensors, (list, tuple)):
        return tensors
    if len(tensors) != 1:
        raise RuntimeError(f"{method}: expected one tensor per rank, got {len(tensors)}")
    return tensors[0]


def _rows(tensors: Any, method: str) -> list[Any]:
    """The list of a nested list that has one entry, or the list itself."""
    listed = list(tensors)
    if listed and isinstance(listed[0], (list, tuple)):
        return list(_only(listed, method))
    return listed


def _begun(work: Work | None, options: Any) -> Any:
    """A work with the timeout of its call, ended if the call is not asynchronous; None where a
    block of coalesced calls starts it later.
    """
    if work is None:
        return None
    limit_fs = timeout_fs(options.timeout)
    if limit_fs > 0:
        work.deadline_fs, work.explicit = work.entry.created_fs + limit_fs, True
    if not options.asyncOp:
        work.wait()
    return work


class ProcessGroup(GroupHandle):
    """One rank's handle of a group, as ``new_group`` and ``group.WORLD`` give it.

    >>> import numpy as np
    >>> import simcoll.distributed as dist
    >>> def program(rank, world_size):
    ...     total = np.ones(2)
    ...     dist.group.WORLD.allreduce([total]).wait()
    ...     return total.tolist()
    >>> dist.spawn(program, 3).returns[0]
    [3.0, 3.0]
    """

    __slots__ = ()

    def allreduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        tensor: Any = None,
        op: Any = None,
    ) -> Any:
        """Reduce the tensor of all ranks; every rank gets the same bits.

        Parameters
        ----------
        tensors, tensor
            A list with one tensor, or the tensor.
        opts, op
            :class:`AllreduceOptions`, or the operator.

        Raises
        ------
        RuntimeError
            For several tensors, which torch takes no more.
        """
        options = _options(AllreduceOptions, opts, "reduceOp", timeout, reduceOp=op)
        array = _only(tensor if tensors is None else tensors, "allreduce")
        work = collectives.all_reduce(array, options.reduceOp, self, async_op=True)
        return _begun(work, options)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce several tensors of one dtype as one operation."""
        options = _options(AllreduceCoalescedOptions, opts)
        arrays = as_arrays(list(tensors), "tensors")
        work = coalesced.all_reduce_coalesced(arrays, options.reduceOp, self, async_op=True)
        return _begun(work, options)

    def broadcast(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        tensor: Any = None,
        root: int | None = None,
    ) -> Any:
        """Copy the tensor of one rank to all others; ``opts`` are options, or the root."""
        options = _options(BroadcastOptions, opts, "rootRank", timeout, rootRank=root)
        array = _only(tensor if tensors is None else tensors, "broadcast")
        root_rank = options.rootRank
        return _begun(
            collectives.broadcast(array, group=self, async_op=True, group_src=root_rank), options
        )

    def reduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        tensor: Any = None,
        root: int | None = None,
    ) -> Any:
        """Reduce the tensors of all ranks on one; ``opts`` are options, or the root."""
        options = _options(ReduceOptions, opts, "rootRank", timeout, rootRank=root, reduceOp=op)
        array = _only(tensor if tensors is None else tensors, "reduce")
        work = collectives.reduce(
            array, op=options.reduceOp, group=self, async_op=True, group_dst=options.rootRank
        )
        return _begun(work, options)

    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        *,
        input_tensor: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Collect the tensors of all ranks in a list on every rank."""
        options = _options(AllgatherOptions, opts, timeout=timeout)
        array = _only(input_tensor if input_tensors is None else input_tensors, "allgather")
        outputs = _rows(output_tensors, "allgather")
        return _begun(collectives.all_gather(outputs, array, self, async_op=True), options)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:  # noqa: A002
        """Collect the tensors of all ranks in one tensor."""
        work = collectives.all_gather_into_tensor(output, input, self, async_op=True)
        return _begun(work, _options(AllgatherOptions, opts))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Collect several tensors of one dtype of all ranks, each in one tensor, as one
        operation.
        """
        arrays = [
            coalesced.by_rank(array, self.size()) for array in as_arrays(list(outputs), "outputs")
        ]
        rows = [list(row) for row in zip(*arrays, strict=True)]
        sources = as_arrays(list(inputs), "inputs")
        work = coalesced.all_gather_coalesced(rows, sources, self, async_op=True)
        return _begun(work, _options(AllgatherOptions, opts))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """Collect the lists of all ranks; ``output_lists[r]`` are those of rank r."""
        outputs = [as_arrays(list(tensors), "output_lists") for tensors in output_lists]
        sources = as_arrays(list(input_list), "input_list")
        work = coalesced.all_gather_coalesced(outputs, sources, self, async_op=True)
        return _begun(work, _options(AllgatherOptions, opts))

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        input_tensor: Any = None,
        root: int | None = None,
    ) -> Any:
        """Collect the tensors of all ranks in a list on one; ``opts`` are options, or the root."""
        options = _options(GatherOptions, opts, "rootRank", timeout, rootRank=root)
        array = _only(input_tensor if input_tensors is None else input_tensors, "gather")
        outputs = _rows(output_tensors, "gather") or None
        root_rank = options.rootRank
        work = collectives.gather(array, outputs, group=self, async_op=True, group_dst=root_rank)
        return _begun(work, options)

    def scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        output_tensor: Any = None,
        root: int | None = None,
    ) -> Any:
        """Give every rank one tensor of the list of one; ``opts`` are options, or the root."""
        options = _options(ScatterOptions, opts, "rootRank", timeout, rootRank=root)
        array = _only(output_tensor if output_tensors is None else output_tensors, "scatter")
        inputs = _rows(input_tensors or [], "scatter") or None
        root_rank = options.rootRank
        work = collectives.scatter(array, inputs, group=self, async_op=True, group_src=root_rank)
        return _begun(work, options)

    def reduce_scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        output: Any = None,
        input: Any = None,  # noqa: A002
        op: Any = None,
    ) -> Any:
        """Reduce entry i of the lists of all ranks on rank i; ``opts`` are options, or the
        operator.
        """
        options = _options(ReduceScatterOptions, opts, "reduceOp", timeout, reduceOp=op)
        array = _only(output if output_tensors is None else output_tensors, "reduce_scatter")
        inputs = _rows(input if input_tensors is None else input_tensors, "reduce_scatter")
        work = collectives.reduce_scatter(array, inputs, options.reduceOp, self, async_op=True)
        return _begun(work, options)

    def reduce_scatter_single(self, outputTensor: Any, inputTensor: Any, opts: Any = None) -> Any:
        """Reduce part i of the tensors of all ranks on rank i."""
        options = _options(ReduceScatterOptions, opts)
        work = collectives.reduce_scatter_tensor(
            outputTensor, inputTensor, options.reduceOp, self, async_op=True
        )
        return _begun(work, options)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce several tensors of one dtype, and give every rank its parts, as one operation."""
        options = _options(ReduceScatterOptions, opts)
        targets = as_arrays(list(outputs), "outputs")
        parts = [
            coalesced.by_rank(array, self.size()) for array in as_arrays(list(inputs), "inputs")
        ]
        rows = [list(row) for row in zip(*parts, strict=True)]
        work = coalesced.reduce_scatter_coalesced(
            targets, rows, options.reduceOp, self, async_op=True
        )
        return _begun(work, options)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Send entry i of the inputs to rank i; entry i of the outputs comes from rank i."""
        outputs, inputs = list(output_tensors), list(input_tensors)
        work = collectives.all_to_all(outputs, inputs, self, async_op=True)
        return _begun(work, _options(AllToAllOptions, opts))

    def all_to_all_single(
        self,
        output: Any,
        input: Any,  # noqa: A002
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Any:
        """Send part i of the input to rank i, and concatenate what comes; without sizes, the parts
        are equal.
        """
        work = collectives.all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, self, async_op=True
        )
        return _begun(work, _options(AllToAllOptions, opts, timeout=timeout))

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, *, timeout: timedelta | None = None) -> Any:
        """Wait until every rank has called; ``opts`` are options, or the timeout."""
        options = _options(BarrierOptions, opts, timeout=timeout)
        return _begun(collectives.barrier(self, async_op=True), options)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait at a barrier that names the ranks that do not reach it, as
        :func:`simcoll.distributed.monitored_barrier`.
        """
        debug.monitored_barrier(self, timeout, wait_all_ranks)

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work:
        """Start a send to a group rank."""
        tensor = _only(tensors, "send")
        work: Work = point_to_point.isend(tensor, group=self, tag=tag, group_dst=dstRank)
        return work

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work:
        """Start a receive from a group rank."""
        tensor = _only(tensors, "recv")
        work: Work = point_to_point.irecv(tensor, group=self, tag=tag, group_src=srcRank)
        return work

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Start a receive from any rank."""
        tensor = _only(tensors, "recv_anysource")
        as_array(tensor)
        work: Work = point_to_point.irecv(tensor, group=self, tag=tag)
        return work

    @property
    def bound_device_id(self) -> None:
        """The device of the group: none, since arrays are in the memory of the host."""
        return

    def get_group_store(self) -> Any:
        """The store of the default group, which all groups share."""
        return default_store()

    def set_timeout(self, timeout: timedelta) -> None:
        """Limit how long later operations of the group may take, on all its ranks."""
        self.communicator.timeout_fs, self.communicator.explicit = timeout_fs(timeout), True
        self.timeout = timeout

    def shutdown(self) -> None:
        """Leave the group: this rank uses it no more."""
        self.communicator.destroyed[self.global_rank] = None

    abort = shutdown

    def boxed(self) -> ProcessGroup:
        """Return itself; torch boxes groups to pass them to operators."""
        return self

    @staticmethod
    def unbox(group: ProcessGroup) -> ProcessGroup:
        """Return the group that :meth:`boxed` returned."""
        return group

    def split_group(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: all ranks of a group split it together."""
        raise ConfigError(
            "ProcessGroup.split_group makes one group on a part of the ranks, and here all ranks "
            "of a group call: use split_group(parent_pg, split_ranks)"
        )

    def merge_remote_group(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: there are no other runs to merge with."""
        raise ConfigError(
            "ProcessGroup.merge_remote_group joins groups of other jobs, and a run has its own "
            "ranks only: use new_group"
        )
