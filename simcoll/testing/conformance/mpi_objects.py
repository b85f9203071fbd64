"""Collectives of Python objects through mpi4py, which pickles them."""

from __future__ import annotations

from itertools import chain
from typing import Any

from simcoll.testing.conformance.torch_objects import fill, pieces
from simcoll.testing.rank_calls import RankCall

__all__ = ["move_objects"]


def move_objects(call: RankCall, comm: Any) -> None:
    """Call the function of mpi4py for a collective of objects; a block is one list."""
    if call.asynchronous and call.kind != "send_recv":
        raise NotImplementedError("collectives of objects block")
    values = [] if call.input is None else call.input.tolist()
    if call.kind == "send_recv":
        _messages(call, comm, values)
    elif call.kind == "broadcast":
        fill(call.output, comm.bcast(values, call.root))
    elif call.kind == "all_gather":
        fill(call.output, chain.from_iterable(comm.allgather(values)))
    elif call.kind == "gather":
        fill(call.output, chain.from_iterable(comm.gather(values, call.root) or []))
    elif call.kind == "scatter":
        parts = None if call.input is None else pieces(values, call.input_counts)
        fill(call.output, comm.scatter(parts, call.root))
    else:
        fill(call.output, chain.from_iterable(comm.alltoall(pieces(values, call.input_counts))))


def _messages(call: RankCall, comm: Any, values: list[Any]) -> None:
    """A send that does not block, and a receive."""
    tag, request = call.operation.tag, None
    if call.destination is not None:
        request = comm.isend(values, call.destination, tag)
    if call.source is not None:
        fill(call.output, comm.recv(source=call.source, tag=tag))
    if request is not None:
        request.wait()
