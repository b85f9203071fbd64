"""Barriers that name who is missing, debug levels, and a debugger on one rank."""

from __future__ import annotations

import enum
import os
import pdb  # noqa: T100  # breakpoint() is a debugger
import sys
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from simcoll.distributed.api.collectives import barrier
from simcoll.distributed.api.groups import get_rank, member_of
from simcoll.distributed.api.making_groups import DEFAULT_TIMEOUT
from simcoll.distributed.runtime.work import timeout_fs
from simcoll.distributed.runtime.world import Waitable, current, current_or_none, wait_until
from simcoll.errors import nearest

if TYPE_CHECKING:
    from simcoll.distributed.api.groups import ProcessGroup
    from simcoll.distributed.linked.linked import LinkedWorld
    from simcoll.distributed.runtime.operations import Communicator

__all__ = [
    "DebugLevel",
    "breakpoint",
    "get_debug_level",
    "monitored_barrier",
    "set_debug_level",
    "set_debug_level_from_env",
]


class _Roll(Waitable):
    """Who has come to a monitored barrier. Numbers in its messages are group ranks, as in torch."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self.group = group
        self.arrived: dict[int, bool] = {}
        self.milliseconds = 0

    def missing(self) -> list[int]:
        """Group ranks that have not come."""
        return [rank for rank in range(len(self.group.members)) if rank not in self.arrived]

    def waits_for(self) -> str:
        """Who is missing."""
        members = self.group.members
        return f"monitored_barrier on {self.group} waits for rank {', '.join(str(members[rank]) for rank in self.missing()[:16])}"

    def verdict(self, rank: int) -> str:
        """What a rank is told after the timeout."""
        return _verdict(rank, self.missing(), self.milliseconds, self.waits_for(), names_all=self.arrived[rank])

    def expired(self, waited_fs: int) -> str:
        """Rank 0 tells the others; they are told apart by the caller."""
        return f"monitoredBarrier timed out after {waited_fs // 10**12} ms"


def _verdict(rank: int, missing: list[int], milliseconds: int, waits_for: str, *, names_all: bool) -> str:
    """What a group rank is told of a monitored barrier to which not all came."""
    if rank != 0 or not missing:
        return (
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
            " Please check rank 0 logs for faulty rank."
        )
    listed = f"Ranks {', '.join(map(str, missing))}" if names_all else f"Rank {missing[0]}"
    return f"[Rank 0]: {listed} failed to pass monitoredBarrier in {milliseconds} ms\n Original exception: {waits_for}"


def _call_the_roll(linked: LinkedWorld, found: ProcessGroup, number: int, limit_fs: int, *, names_all: bool) -> None:
    """The barrier between processes: every rank gives up by its own clock."""
    group = found.communicator
    what = f"monitored_barrier on {group}"
    roll = linked.gather(f"roll {group.key} {number}", what, [""], group.members)
    try:
        wait_until(roll, limit_fs, explicit=True)
    except RuntimeError:
        missing = [group.group_rank[member] for member in roll.missing()]
        text = _verdict(found.rank(), missing, limit_fs // 10**12, roll.waits_for(), names_all=names_all)
        raise RuntimeError(text) from None


def monitored_barrier(
    group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """A barrier that says who did not come.

    Parameters
    ----------
    timeout
        None: 30 minutes.
    wait_all_ranks
        Rank 0 names all missing ranks, not just the first.

    Raises
    ------
    RuntimeError
        After the timeout: on group rank 0 with the missing ranks, on the others a pointer to rank 0.
    TypeError
        For a timeout that is no timedelta; a float is taken as seconds, with a warning.
    """
    found = member_of(group, "monitored_barrier")
    if found is None:
        return
    if isinstance(timeout, float):
        warnings.warn(
            "Please specify timeout arg as a timedelta. Converting a float of seconds.", UserWarning, stacklevel=2
        )
        timeout = timedelta(seconds=timeout)
    limit = timeout_fs(DEFAULT_TIMEOUT if timeout is None else timeout)
    communicator, rank = found.communicator, found.rank()
    number = communicator.barrier_calls[rank]
    communicator.barrier_calls[rank] += 1
    linked = communicator.world.linked
    if linked is not None:
        _call_the_roll(linked, found, number, limit, names_all=wait_all_ranks)
        return
    roll = communicator.barriers.setdefault(number, _Roll(communicator))
    roll.arrived[rank] = wait_all_ranks
    if not roll.missing():
        communicator.barriers.pop(number)
        roll.finish()
    elif not roll.done:
        try:
            wait_until(roll, limit, explicit=True)
        except RuntimeError:
            if rank == 0:
                roll.milliseconds = limit // 10**12
                message = roll.verdict(0)
                roll.finish("rank 0 gave up")
                raise RuntimeError(message) from None
            raise RuntimeError(roll.verdict(rank)) from None
    if roll.error is not None:
        raise RuntimeError(roll.verdict(rank))
    barrier(found)


class DebugLevel(enum.Enum):
    """Torch's levels. The checks of simcoll are on at every level; ``spawn(debug=False)`` turns the costly ones off."""

    OFF = 0
    INFO = 1
    DETAIL = 2


def _from_environment() -> DebugLevel:
    text = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if text not in DebugLevel.__members__:
        raise ValueError(
            f"The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL. Got {text!r}; {nearest(text, DebugLevel.__members__)}"
        )
    return DebugLevel[text]


def get_debug_level() -> DebugLevel:
    """The level that this rank set, or that of ``TORCH_DISTRIBUTED_DEBUG``.

    Raises
    ------
    ValueError
        When the variable has another value.
    """
    task = current_or_none()
    found = None if task is None else task.rank.local.get("debug_level")
    return found if isinstance(found, DebugLevel) else _from_environment()


def set_debug_level(level: DebugLevel) -> None:
    """Set the level of this rank."""
    current().rank.local["debug_level"] = DebugLevel(level)


def set_debug_level_from_env() -> None:
    """Take the level of ``TORCH_DISTRIBUTED_DEBUG`` again.

    Raises
    ------
    ValueError
        When the variable has another value than OFF, INFO or DETAIL.
    """
    set_debug_level(_from_environment())


def breakpoint(rank: int = 0, skip: int = 0, timeout_s: int = 3600) -> None:  # noqa: A001, ARG001  # torch's name and signature
    """Start the debugger on one rank, while all others wait in a barrier.

    Parameters
    ----------
    rank
        Global rank, the same on all ranks.
    skip
        Do nothing the first ``skip`` times.
    """
    local = current().rank.local
    local["breakpoints"] = local.get("breakpoints", 0) + 1
    if local["breakpoints"] <= skip:
        return
    if get_rank() == rank:
        sys.stderr.write(f"\n!!! breakpoint on rank {rank}: type 'up' for the frame that called !!!\n\n")
        pdb.Pdb().set_trace(sys._getframe(1))  # noqa: SLF001
    barrier()
