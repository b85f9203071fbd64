"""Collectives of Python objects, which exchange sizes first and encoded bytes second.

Plain data (numbers, text, bytes, lists, dicts, numpy arrays ...) needs no pickle. Anything else
does, and unpickling runs code of the sender's choice: only with ``trusted=True``, or
``SIMCOLL_TRUSTED_PICKLE=1`` in the environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.distributed.api.arguments import check_length, check_list_of_root, root_of
from simcoll.distributed.api.collectives import all_gather, broadcast, gather, scatter
from simcoll.distributed.api.groups import member_of
from simcoll.distributed.api.point_to_point import recv, send
from simcoll.distributed.runtime.fake import move_always
from simcoll.distributed.runtime.objects import decode, encode
from simcoll.distributed.runtime.world import GroupHandle

Bytes = NDArray[np.uint8]
Sizes = Ints

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


def _encode(objects: Iterable[Any], trusted: bool | None) -> tuple[list[Bytes], Sizes]:
    parts = [np.frombuffer(encode(obj, trusted=trusted), np.uint8).copy() for obj in objects]
    return parts, np.array([part.size for part in parts], np.int64)


def _concatenate(parts: list[Bytes]) -> Bytes:
    return np.concatenate([np.zeros(0, np.uint8), *parts])


def _pad(data: Bytes, size: int) -> Bytes:
    return np.concatenate([data, np.zeros(size - data.size, np.uint8)])


def _decode(
    object_list: list[Any], parts: Iterable[Bytes], sizes: Sizes, trusted: bool | None
) -> None:
    """Decode into a list the object at the start of each part."""
    for index, (part, size) in enumerate(zip(parts, sizes.tolist(), strict=True)):
        object_list[index] = decode(part[:size].tobytes(), trusted=trusted)


def _split(object_list: list[Any], data: Bytes, sizes: Sizes, trusted: bool | None) -> None:
    """Decode into a list the objects stored back to back."""
    _decode(
        object_list, [data[begin:] for begin in (np.cumsum(sizes) - sizes).tolist()], sizes, trusted
    )


def _gather(
    object_list: list[Any] | None,
    obj: Any,
    group: GroupHandle,
    root: int | None,
    trusted: bool | None,
) -> None:
    """Collect one object per rank, on the root or on all ranks."""
    (data,), size = _encode([obj], trusted)
    sizes = np.zeros(group.size(), np.int64)
    with move_always():
        all_gather(list(sizes[:, None]), size, group)
        largest = int(sizes.max())
        parts = (
            [np.zeros(largest, np.uint8) for _ in sizes]
            if root is None or group.rank() == root
            else None
        )
        if root is None:
            all_gather(parts, _pad(data, largest), group)
        else:
            gather(_pad(data, largest), parts, group=group, group_dst=root)
    if parts is not None and object_list is not None:
        _decode(object_list, parts, sizes, trusted)


def all_gather_object(
    object_list: list[Any], obj: Any, group: Any = None, *, trusted: bool | None = None
) -> None:
    """Collect one object per rank, in group order, in every rank's list; further entries are kept.

    Raises
    ------
    IndexError
        When the list is shorter than the group.
    """
    if (process_group := member_of(group, "all_gather_object")) is not None:
        _gather(object_list, obj, process_group, None, trusted)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
    *,
    trusted: bool | None = None,
) -> None:
    """Collect one object per rank, in group order, in the list of one rank (default: global rank
    0).

    Raises
    ------
    ValueError
        When the destination passes no list, or another rank does.
    """
    if (process_group := member_of(group, "gather_object")) is None:
        return
    root = root_of(process_group, dst, group_dst, default=0)
    check_list_of_root(
        object_gather_list, "gather_list", "destination", mine=process_group.rank() == root
    )
    _gather(object_gather_list, obj, process_group, root, trusted)


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

    All lists have the same length, or else there is a RuntimeError.
    """
    if (process_group := member_of(group, "broadcast_object_list")) is None:
        return
    root = root_of(process_group, src, group_src, default=0)
    mine = process_group.rank() == root
    parts, sizes = (
        _encode(object_list, trusted) if mine else ([], np.zeros(len(object_list), np.int64))
    )
    with move_always():
        broadcast(sizes, group=process_group, group_src=root)
        data = _concatenate(parts) if mine else np.zeros(int(sizes.sum()), np.uint8)
        broadcast(data, group=process_group, group_src=root)
    if not mine:
        _split(object_list, data, sizes, trusted)


def scatter_object_list(
    scatter_object_output_list: Any,
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
    *,
    trusted: bool | None = None,
) -> None:
    """Give every rank one object of a root's list (default: global rank 0), as its own list's first
    entry.

    Raises
    ------
    ValueError
        For an output that is not a list with at least one entry, or a source without input.
    """
    if (process_group := member_of(group, "scatter_object_list")) is None:
        return
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError(
            "Expected argument scatter_object_output_list to be a list of size at least 1."
        )
    root = root_of(process_group, src, group_src, default=0)
    mine = process_group.rank() == root
    if mine and scatter_object_input_list is None:
        raise ValueError("source rank must provide non-None scatter_object_input_list")
    things = scatter_object_input_list if mine and scatter_object_input_list is not None else []
    if mine:
        check_length(things, process_group)
    encoded, sizes = _encode(things, trusted)
    largest = np.array([sizes.max(initial=0)], np.int64)
    with move_always():
        broadcast(largest, group=process_group, group_src=root)
        part, size = np.zeros(int(largest[0]), np.uint8), np.zeros(1, np.int64)
        scatter(
            part,
            [_pad(data, part.size) for data in encoded] if mine else None,
            group=process_group,
            group_src=root,
        )
        scatter(size, list(sizes[:, None]) if mine else None, group=process_group, group_src=root)
    _decode(scatter_object_output_list, [part], size, trusted)


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
    if (process_group := member_of(group, "send_object_list")) is None:
        return
    peer = root_of(process_group, dst, group_dst)
    parts, sizes = _encode(object_list, trusted)
    with move_always():
        send(sizes, group=process_group, group_dst=peer)
        send(_concatenate(parts), group=process_group, group_dst=peer)


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
    """Receive objects, from any rank unless one is named; returns the sender's global rank, -1
    outside the group.
    """
    if (process_group := member_of(group, "recv_object_list")) is None:
        return -1
    sizes = np.zeros(len(object_list), np.int64)
    source = (
        {}
        if src is None and group_src is None
        else {"group_src": root_of(process_group, src, group_src)}
    )
    with move_always():
        sender = recv(sizes, group=process_group, **source)
        data = np.zeros(int(sizes.sum()), np.uint8)
        recv(data, src=sender, group=process_group)
    _split(object_list, data, sizes, trusted)
    return sender
