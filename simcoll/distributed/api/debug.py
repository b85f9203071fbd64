"""Barriers that name the missing ranks, debug levels, and a debugger on one rank."""

from __future__ import annotations

import enum
import os
import pdb  # noqa: T100  # breakpoint() is a debugger
import sys
import warnings
from datetime import timedelta
from typing import Any

from simcoll.distributed.api.collectives import barrier
from simcoll.distributed.api.groups import default_pg_timeout, get_rank, member_of
from simcoll.distributed.runtime.tasks import Arrival, wait_until
from simcoll.distributed.runtime.work import timeout_fs
from simcoll.distributed.runtime.world import current_rank, current_rank_or_none
from simcoll.errors import nearest

__all__ = [
    "DebugLevel",
    "breakpoint",
    "get_debug_level",
    "monitored_barrier",
    "set_debug_level",
    "set_debug_level_from_env",
]


def monitored_barrier(
    group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait at a barrier, which names the ranks that do not reach it.

    Parameters
    ----------
    timeout
        None: 30 minutes.
    wait_all_ranks
        Name all missing ranks rather than the first.

    Raises
    ------
    RuntimeError
        After the timeout: on group rank 0 with the missing ranks, on the others with a pointer to
        rank 0.
    TypeError
        For a timeout that is not a timedelta; a float counts as seconds, with a warning.
    """
    if (process_group := member_of(group, "monitored_barrier")) is None:
        return
    if isinstance(timeout, float):
        warnings.warn(
            "Please specify timeout arg as a timedelta. Converting a float of seconds.",
            UserWarning,
            stacklevel=2,
        )
        timeout = timedelta(seconds=timeout)
    span = default_pg_timeout if timeout is None else timeout
    limit = timeout_fs(span)
    group, rank, me = process_group.communicator, process_group.rank(), current_rank()
    key = f"monitored_barrier {group.key} {group.barriers[rank]}"
    group.barriers[rank] += 1
    roll = group.world.meet(me, Arrival(key, f"monitored_barrier on {group}", group.members))
    try:
        wait_until(roll, limit, explicit=True)
    except RuntimeError:
        missing = [group.group_rank[member] for member in roll.missing()]
        # Numbers are group ranks, as in torch.
        subject = (
            f"Ranks {', '.join(map(str, missing))}"
            if wait_all_ranks
            else f"Rank {missing[0] if missing else ''}"
        )
        if rank != 0 or not missing:
            subject = (
                f"Rank {rank} successfully reached monitoredBarrier, but received errors "
                "while waiting for send/recv from rank 0."
            )
            text = f"{subject} Please check rank 0 logs for faulty rank."
        elif not limit:
            text = (
                "[Rank 0]: Rank 0 timed out in monitoredBarrier after 0 ms\n"
                f" Original exception: {roll.waits_for()}"
            )
        else:
            text = (
                f"[Rank 0]: {subject} failed to pass monitoredBarrier in {limit // 10**12} ms\n"
                f" Original exception: {roll.waits_for()}"
            )
        if rank == 0:
            roll.finish("rank 0 gave up")
        raise RuntimeError(text) from None
    barrier(process_group, timeout=span)


class DebugLevel(enum.Enum):
    """Torch's levels. They do not change what simcoll checks; ``spawn(debug=False)`` turns the
    costly checks off.
    """

    OFF = 0
    INFO = 1
    DETAIL = 2


def _from_environment() -> DebugLevel:
    text = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if text not in DebugLevel.__members__:
        raise ValueError(
            f"The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL. Got {text!r}; "
            f"{nearest(text, DebugLevel.__members__)}"
        )
    return DebugLevel[text]


def get_debug_level() -> DebugLevel:
    """The level set by this rank, else by ``TORCH_DISTRIBUTED_DEBUG``; a ValueError for an invalid
    variable.
    """
    me = current_rank_or_none()
    return (
        _from_environment() if me is None or me.debug_level is None else DebugLevel(me.debug_level)
    )


def set_debug_level(level: DebugLevel) -> None:
    """Set the level of this rank."""
    current_rank().debug_level = DebugLevel(level).value


def set_debug_level_from_env() -> None:
    """Set this rank's level from ``TORCH_DISTRIBUTED_DEBUG``; a ValueError for an invalid
    variable.
    """
    set_debug_level(_from_environment())


# The name and the signature are torch's.
def breakpoint(rank: int = 0, skip: int = 0, timeout_s: int = 3600) -> None:  # noqa: A001, ARG001
    """Start the debugger on one rank, while the others wait in a barrier.

    Parameters
    ----------
    rank
        Global rank, the same on all ranks.
    skip
        Do nothing the first ``skip`` times.
    """
    me = current_rank()
    me.breakpoints += 1
    if me.breakpoints <= skip:
        return
    if get_rank() == rank:
        sys.stderr.write(
            f"\n!!! breakpoint on rank {rank}: type 'up' for the frame that called !!!\n\n"
        )
        pdb.Pdb().set_trace(sys._getframe(1))  # noqa: SLF001
    barrier()
