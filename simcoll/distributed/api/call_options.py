"""Options of the methods of a group, with torch's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from simcoll.distributed.api.reductions import ReduceOp

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "BarrierOptions",
    "BroadcastOptions",
    "GatherOptions",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
]

_UNSET = timedelta(milliseconds=-1)
"""The timeout of a call that takes that of its group, as in torch."""


@dataclass(slots=True)
class AllgatherOptions:
    """Options of ``allgather`` and the methods like it.

    Attributes
    ----------
    timeout
        How long the operation may take; a negative one stands for the group's.
    asyncOp
        The method returns before the operation has ended.
    """

    timeout: timedelta = _UNSET
    asyncOp: bool = True


@dataclass(slots=True)
class AllToAllOptions:
    """Options of ``alltoall`` and ``alltoall_base``, as of :class:`AllgatherOptions`."""

    timeout: timedelta = _UNSET
    asyncOp: bool = True


@dataclass(slots=True)
class BarrierOptions:
    """Options of ``barrier``, as of :class:`AllgatherOptions`; devices have no effect."""

    timeout: timedelta = _UNSET
    asyncOp: bool = True
    device: Any = None
    device_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class AllreduceOptions:
    """Options of ``allreduce``: the operator, and those of :class:`AllgatherOptions`."""

    reduceOp: ReduceOp = ReduceOp.SUM
    timeout: timedelta = _UNSET
    asyncOp: bool = True


@dataclass(slots=True)
class AllreduceCoalescedOptions:
    """Options of ``allreduce_coalesced``, as of :class:`AllreduceOptions`."""

    reduceOp: ReduceOp = ReduceOp.SUM
    timeout: timedelta = _UNSET
    asyncOp: bool = True


@dataclass(slots=True)
class ReduceScatterOptions:
    """Options of ``reduce_scatter`` and the methods like it, as of :class:`AllreduceOptions`."""

    reduceOp: ReduceOp = ReduceOp.SUM
    timeout: timedelta = _UNSET
    asyncOp: bool = True


@dataclass(slots=True)
class BroadcastOptions:
    """Options of ``broadcast``.

    Attributes
    ----------
    rootRank
        Group rank of the source.
    rootTensor
        Number of its tensor in the list, which has one: 0.
    timeout, asyncOp
        As of :class:`AllgatherOptions`.
    """

    rootRank: int = 0
    rootTensor: int = 0
    timeout: timedelta = _UNSET
    asyncOp: bool = True


@dataclass(slots=True)
class ReduceOptions:
    """Options of ``reduce``: those of :class:`BroadcastOptions`, with the destination as root, and
    the operator.
    """

    reduceOp: ReduceOp = ReduceOp.SUM
    rootRank: int = 0
    rootTensor: int = 0
    timeout: timedelta = _UNSET
    asyncOp: bool = True


@dataclass(slots=True)
class GatherOptions:
    """Options of ``gather``: the group rank of the destination, and those of
    :class:`AllgatherOptions`.
    """

    rootRank: int = 0
    timeout: timedelta = _UNSET
    asyncOp: bool = True


@dataclass(slots=True)
class ScatterOptions:
    """Options of ``scatter``: the group rank of the source, and those of
    :class:`AllgatherOptions`.
    """

    rootRank: int = 0
    timeout: timedelta = _UNSET
    asyncOp: bool = True
