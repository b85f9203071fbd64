"""MPI as an implementation under test, through mpi4py."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from simcoll.testing.conformance.mpi_objects import move_objects
from simcoll.testing.rank_calls import RankCall, RankWorld

__all__ = ["MpiBackend"]

OPERATORS = {
    "sum": "SUM",
    "product": "PROD",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}
LOGICAL = {"sum": "LOR", "max": "LOR", "bor": "LOR", "product": "LAND", "min": "LAND"}
"""On bool, as the definition has it; MPI's arithmetic is for numbers."""


class _Pending:
    """A nonblocking operation, with the buffers that it uses."""

    def __init__(self, request: Any, buffers: Any) -> None:
        self.request, self.buffers = request, buffers

    def wait(self) -> None:
        self.request.Wait()


class MpiBackend:
    """A process of MPI; start it with ``ProcessRunner("mpiexec -n {n}")``."""

    def setup(self, world: RankWorld) -> None:
        """Import mpi4py, which initialises MPI."""
        from mpi4py import MPI

        self.mpi: Any = MPI
        self.comm: Any = MPI.COMM_WORLD
        self.world = world
        self.communicators: dict[tuple[int, ...], Any] = {}
        if self.comm.size != world.nranks:
            raise RuntimeError(f"MPI has {self.comm.size} ranks, expected {world.nranks}")

    def communicator(self, ranks: tuple[int, ...]) -> Any:
        """The communicator of some ranks, which only they make."""
        if ranks not in self.communicators:
            group = self.comm.group.Incl(list(ranks))
            self.communicators[ranks] = self.comm.Create_group(group)
        return self.communicators[ranks]

    def operator(self, call: RankCall) -> Any:
        """The reduction of a call."""
        boolean = call.operation.plan.dtype.kind == "b"
        name = (LOGICAL if boolean else OPERATORS).get(call.op)
        if name is None:
            raise NotImplementedError(f"MPI has no {call.op} of {call.operation.dtype}")
        return getattr(self.mpi, name)

    def run(self, call: RankCall) -> Any:
        """Call the function of MPI for an operation, the nonblocking one if it is asynchronous."""
        communicator = self.communicator(call.ranks)
        if call.objects and call.kind != "barrier":
            move_objects(call, communicator)
            return None
        _check_dtype(call)
        if call.mistake == "dtype":
            raise NotImplementedError("MPI leaves open what different types on both sides do")
        arrays = [values for values in (call.input, call.output) if values is not None]
        if call.operation.memory in ("strided", "reversed"):
            raise NotImplementedError("buffers of mpi4py are contiguous")
        execute: Callable[..., Any] = getattr(self, f"_{call.kind}")
        request = execute(call, communicator)
        return None if request is None else _Pending(request, arrays)

    def run_coalesced(self, calls: Sequence[RankCall]) -> Any:
        """Start all operations, then wait for all."""
        if calls[0].objects:
            raise NotImplementedError("collectives of objects block")
        works = [
            self.run(replace(call, operation=replace(call.operation, asynchronous=True)))
            for call in calls
        ]
        for work in works:
            if work is not None:
                work.wait()

    def task(self, name: str) -> None:
        """Check a statement of the semantics on this rank."""
        from simcoll.testing.conformance.mpi_checks import MpiSession, mpi_checks

        try:
            mpi_checks()[name](MpiSession(self))
        except unittest.SkipTest as reason:
            raise NotImplementedError(str(reason)) from None

    def _place(self, call: RankCall) -> Any:
        """The send buffer: ``MPI.IN_PLACE`` where input and output share memory."""
        if call.operation.collective.in_place and call.output is not None:
            if call.input is not None and np.shares_memory(call.input, call.output):
                return self.mpi.IN_PLACE
            if call.input is not None and not call.input.size:
                return self.mpi.IN_PLACE
        return call.input

    def _barrier(self, call: RankCall, comm: Any) -> Any:
        return _function(call, comm, "barrier")()

    def _broadcast(self, call: RankCall, comm: Any) -> Any:
        buffer = call.output
        if call.input is not None and call.output is not None:
            call.output[...] = call.input
        return _function(call, comm, "bcast")(buffer, call.root)

    def _all_reduce(self, call: RankCall, comm: Any) -> Any:
        return _function(call, comm, "allreduce")(
            self._place(call), call.output, self.operator(call)
        )

    def _reduce(self, call: RankCall, comm: Any) -> Any:
        return _function(call, comm, "reduce")(
            self._place(call), call.output, self.operator(call), call.root
        )

    def _all_gather(self, call: RankCall, comm: Any) -> Any:
        if _without_counts(call):
            return _function(call, comm, "allgather")(self._place(call), call.output)
        return _function(call, comm, "allgatherv")(
            self._place(call), [call.output, call.output_counts]
        )

    def _gather(self, call: RankCall, comm: Any) -> Any:
        if _without_counts(call):
            return _function(call, comm, "gather")(self._place(call), call.output, call.root)
        target = None if call.output is None else [call.output, call.output_counts]
        return _function(call, comm, "gatherv")(self._place(call), target, call.root)

    def _scatter(self, call: RankCall, comm: Any) -> Any:
        in_place = call.operation.collective.in_place and call.rank == call.root
        target = self.mpi.IN_PLACE if in_place else call.output
        if _without_counts(call):
            return _function(call, comm, "scatter")(call.input, target, call.root)
        source = None if call.input is None else [call.input, call.input_counts]
        return _function(call, comm, "scatterv")(source, target, call.root)

    def _reduce_scatter(self, call: RankCall, comm: Any) -> Any:
        if call.operation.collective.in_place:
            raise NotImplementedError("MPI puts the result of every rank at the beginning")
        if _without_counts(call):
            function = _function(call, comm, "reduce_scatter_block")
            return function(call.input, call.output, self.operator(call))
        return _function(call, comm, "reduce_scatter")(
            call.input, call.output, call.input_counts, self.operator(call)
        )

    def _all_to_all(self, call: RankCall, comm: Any) -> Any:
        if _without_counts(call):
            return _function(call, comm, "alltoall")(call.input, call.output)
        return _function(call, comm, "alltoallv")(
            [call.input, call.input_counts], [call.output, call.output_counts]
        )

    def _send_recv(self, call: RankCall, comm: Any) -> Any:
        requests, tag = [], call.operation.tag
        if call.source is not None:
            requests.append(comm.Irecv(call.output, call.source, tag))
        if call.destination is not None:
            requests.append(comm.Isend(call.input, call.destination, tag))
        return _All(self.mpi, requests)


class _All:
    """Several requests as one."""

    def __init__(self, mpi: Any, requests: list[Any]) -> None:
        self.mpi, self.requests = mpi, requests

    def Wait(self) -> None:  # noqa: N802  # as mpi4py has it
        self.mpi.Request.Waitall(self.requests)


def _without_counts(call: RankCall) -> bool:
    """Whether to call the form for blocks of one size, as odd seeds say."""
    even = isinstance(call.operation.counts, int)
    return even and call.operation.counts != 0 and call.operation.seed % 2 == 1


def _function(call: RankCall, comm: Any, name: str) -> Any:
    """The blocking or the nonblocking form of a collective."""
    return getattr(comm, f"I{name}" if call.asynchronous else name.capitalize())


@cache
def _known_to_mpi(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufc" and dtype.type.__module__ == "numpy" and dtype.name != "float16"


def _check_dtype(call: RankCall) -> None:
    dtype = call.operation.plan.dtype
    if call.kind != "barrier" and not _known_to_mpi(dtype):
        raise NotImplementedError(f"mpi4py has no datatype for {dtype.name}")
