"""Collectives of Python objects: the sizes of their encoded form, then the bytes.

Plain data (numbers, text, bytes, lists, dicts, numpy arrays ...) needs no pickle. Anything else does, and unpickling runs code
of the sender's choice: only with ``trusted=True``, or ``SIMCOLL_TRUSTED_PICKLE=1`` in the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.distributed.api.arguments import check_length, check_list_of_root, root_of
from simcoll.distributed.api.collectives import all_gather, broadcast, gather, scatter
from simcoll.distributed.api.groups import ProcessGroup, member_of
from simcoll.distributed.api.point_to_point import recv, send
from simcoll.distributed.runtime.objects import decode, encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


def _encoded(thing: Any, trusted: bool | None) -> Bytes:
    return np.frombuffer(encode(thing, trusted=trusted), np.uint8).copy()


def _decoded(data: Bytes, size: int, trusted: bool | None) -> Any:
    return decode(data[:size].tobytes(), trusted=trusted)


def _padded(data: Bytes, size: int) -> Bytes:
    return np.concatenate([data, np.zeros(size - data.size, np.uint8)])


def _all_sizes(size: int, found: ProcessGroup) -> list[int]:
    """The byte count of every rank."""
    sizes = [np.zeros(1, np.int64) for _ in range(found.size())]
    all_gather(sizes, np.array([size], np.int64), found)
    return [int(each[0]) for each in sizes]


def _unpad(object_list: list[Any], parts: list[Bytes], sizes: list[int], trusted: bool | None) -> None:
    """Decode one padded object per rank."""
    for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        object_list[index] = _decoded(part, size, trusted)


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None, *, trusted: bool | None = None) -> None:
    """Collect one object per rank, in group order, in every rank's list; further entries stay.

    Raises
    ------
    IndexError
        When the list is shorter than the group.
    """
    found = member_of(group, "all_gather_object")
    if found is None:
        return
    data = _encoded(obj, trusted)
    sizes = _all_sizes(data.size, found)
    largest = max(sizes)
    parts = [np.zeros(largest, np.uint8) for _ in sizes]
    all_gather(parts, _padded(data, largest), found)
    _unpad(object_list, parts, sizes, trusted)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
    *,
    trusted: bool | None = None,
) -> None:
    """Collect one object per rank, in group order, in the list of one rank (default: global rank 0).

    Raises
    ------
    ValueError
        When the destination passes no list, or another rank does.
    """
    found = member_of(group, "gather_object")
    if found is None:
        return
    root = root_of(found, dst, group_dst, default=0)
    mine = check_list_of_root(object_gather_list, "gather_list", "destination", mine=found.rank() == root)
    data = _encoded(obj, trusted)
    sizes = _all_sizes(data.size, found)
    largest = max(sizes)
    parts = [np.zeros(largest, np.uint8) for _ in sizes] if mine else None
    gather(_padded(data, largest), parts, group=found, group_dst=root)
    if parts is not None and object_gather_list is not None:
        _unpad(object_gather_list, parts, sizes, trusted)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,  # noqa: ARG001  # torch's signature
    group_src: int | None = None,
    *,
    trusted: bool | None = None,
) -> None:
    """Copy the objects of one rank (default: global rank 0) into the lists of all others.

    All lists have the same length.

    Raises
    ------
    RuntimeError
        When the lengths differ.
    """
    found = member_of(group, "broadcast_object_list")
    if found is None:
        return
    root = root_of(found, src, group_src, default=0)
    mine = found.rank() == root
    encoded = [_encoded(thing, trusted) for thing in object_list] if mine else []
    sizes = np.array([data.size for data in encoded] if mine else [0] * len(object_list), np.int64)
    broadcast(sizes, group=found, group_src=root)
    data = np.concatenate([np.zeros(0, np.uint8), *encoded]) if mine else np.zeros(int(sizes.sum()), np.uint8)
    broadcast(data, group=found, group_src=root)
    if not mine:
        _unpack(object_list, data, sizes, trusted)


def _unpack(object_list: list[Any], data: Bytes, sizes: NDArray[np.int64], trusted: bool | None) -> None:
    begin = 0
    for index, size in enumerate(sizes.tolist()):
        object_list[index] = _decoded(data[begin:], size, trusted)
        begin += size


def scatter_object_list(
    scatter_object_output_list: Any,
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
    *,
    trusted: bool | None = None,
) -> None:
    """Give every rank one object of a root's list (default: global rank 0), as its own list's first entry.

    Raises
    ------
    ValueError
        For an output that is not a list with at least one entry, or a source without input.
    """
    found = member_of(group, "scatter_object_list")
    if found is None:
        return
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    root = root_of(found, src, group_src, default=0)
    mine = found.rank() == root
    encoded: list[Bytes] = []
    if mine:
        if scatter_object_input_list is None:
            raise ValueError("source rank must provide non-None scatter_object_input_list")
        check_length(scatter_object_input_list, found)
        encoded = [_encoded(thing, trusted) for thing in scatter_object_input_list]
    largest = np.array([max((data.size for data in encoded), default=0)], np.int64)
    broadcast(largest, group=found, group_src=root)
    part, size = np.zeros(int(largest[0]), np.uint8), np.zeros(1, np.int64)
    parts = [_padded(data, int(largest[0])) for data in encoded] if mine else None
    scatter(part, parts, group=found, group_src=root)
    scatter(size, [np.array([data.size], np.int64) for data in encoded] if mine else None, group=found, group_src=root)
    scatter_object_output_list[0] = _decoded(part, int(size[0]), trusted)


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Any = None,
    device: Any = None,  # noqa: ARG001  # torch's signature
    group_dst: int | None = None,
    use_batch: bool = False,  # noqa: ARG001  # torch's signature
    *,
    trusted: bool | None = None,
) -> None:
    """Send objects to a rank, which passes a list of the same length."""
    found = member_of(group, "send_object_list")
    if found is None:
        return
    peer = root_of(found, dst, group_dst)
    encoded = [_encoded(thing, trusted) for thing in object_list]
    send(np.array([data.size for data in encoded], np.int64), group=found, group_dst=peer)
    send(np.concatenate([np.zeros(0, np.uint8), *encoded]), group=found, group_dst=peer)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,  # noqa: ARG001  # torch's signature
    group_src: int | None = None,
    use_batch: bool = False,  # noqa: ARG001  # torch's signature
    *,
    trusted: bool | None = None,
) -> int:
    """Receive objects, from any rank unless one is named; returns the sender's global rank, -1 outside the group."""
    found = member_of(group, "recv_object_list")
    if found is None:
        return -1
    sizes = np.zeros(len(object_list), np.int64)
    named = {} if src is None and group_src is None else {"group_src": root_of(found, src, group_src)}
    sender = recv(sizes, group=found, **named)
    data = np.zeros(int(sizes.sum()), np.uint8)
    recv(data, src=sender, group=found)
    _unpack(object_list, data, sizes, trusted)
    return sender
