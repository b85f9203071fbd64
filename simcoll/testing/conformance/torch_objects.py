"""Collectives of Python objects on a backend of torch.distributed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from simcoll.testing.rank_calls import RankCall

__all__ = ["fill", "move_objects", "pieces"]


def move_objects(dist: Any, call: RankCall, group: Any) -> None:
    """Call the function of torch.distributed for a collective of objects.

    A block is one list, as each of these functions takes one object for each rank.
    """
    if call.asynchronous:
        raise NotImplementedError("object collectives block")
    if call.kind == "send_recv":
        _messages(dist, call, group)
    elif call.kind == "broadcast":
        values = call.output if call.input is None else call.input
        objects = [None] * len(values if values is not None else [])
        if call.input is not None:
            objects = call.input.tolist()
        dist.broadcast_object_list(objects, group_src=call.root, group=group)
        fill(call.output, objects)
    elif call.kind == "all_gather":
        blocks: list[Any] = [None] * call.nranks
        dist.all_gather_object(blocks, _list(call.input), group=group)
        fill(call.output, chain.from_iterable(blocks))
    elif call.kind == "gather":
        places: list[Any] | None = [None] * call.nranks if call.output is not None else None
        dist.gather_object(_list(call.input), places, group_dst=call.root, group=group)
        fill(call.output, chain.from_iterable(places or []))
    elif call.kind == "scatter":
        parts = None if call.input is None else pieces(_list(call.input), call.input_counts)
        place: list[Any] = [None]
        dist.scatter_object_list(place, parts, group_src=call.root, group=group)
        fill(call.output, place[0])
    else:
        raise NotImplementedError(f"torch has no {call.kind} of objects")


def _messages(dist: Any, call: RankCall, group: Any) -> None:
    """One message after the other, in an order that is the same on all ranks: a send may block."""
    for source, target in call.operation.collective.pairs:
        if call.rank == source:
            dist.send_object_list(_list(call.input), group_dst=target, group=group)
        elif call.rank == target and call.output is not None:
            objects = [None] * len(call.output)
            dist.recv_object_list(objects, group_src=source, group=group)
            fill(call.output, objects)


def _list(values: Any) -> list[Any]:
    return [] if values is None else list(values.tolist())


def pieces(values: list[Any], counts: Sequence[int]) -> list[list[Any]]:
    """Consecutive parts of a list."""
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


def fill(output: Any, objects: Iterable[Any]) -> None:
    """Put objects into an array, one at each place."""
    if output is not None:
        for place, value in enumerate(objects):
            output[place] = value
