"""Divide groups into smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from simcoll.distributed.api.backends import Backend
from simcoll.distributed.api.group_calls import ProcessGroup
from simcoll.distributed.api.groups import default_group, get_process_group_ranks
from simcoll.distributed.api.making_groups import destroy_process_group, group_of
from simcoll.errors import ConfigError

__all__ = [
    "SHRINK_ABORT",
    "SHRINK_DEFAULT",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "shrink_group",
    "split_group",
]

SHRINK_DEFAULT = 0
SHRINK_ABORT = 1
"""Flags of :func:`shrink_group`; an abort ends the operations of the group first."""


def group_among(ranks: Sequence[int], desc: str) -> ProcessGroup:
    """Create a group by a call of its members only."""
    process_group: ProcessGroup = group_of(
        ranks, None, None, group_desc=desc, sort_ranks=False, callers=ranks
    )
    return process_group


def new_subgroups(
    group_size: int | None = None,
    group: Any = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Divide a group (default: all ranks) into groups of ``group_size`` consecutive ranks; returns
    this rank's, and all.

    All ranks of the group call.
    """
    members = get_process_group_ranks(group)
    size = len(members) if group_size is None else group_size
    if not 0 < size <= len(members):
        raise ValueError(
            f"The arg 'group_size' ({size}) must be at least 1 and not exceed the world size "
            f"({len(members)})"
        )
    if len(members) % size:
        raise ValueError(
            f"The world size ({len(members)}) must be divisible by 'group_size={size}'"
        )
    lists = [members[i : i + size] for i in range(0, len(members), size)]
    make = partial(group_of, callers=members, group_desc=group_desc)
    return _subgroups(lists, lambda ranks: make(ranks, timeout, backend, pg_options))


def split_group(
    parent_pg: Any = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Split a group into disjoint groups. All its ranks call, with the same lists of group ranks.

    Returns
    -------
    ProcessGroup
        This rank's part; None if it is in none.

    Raises
    ------
    ValueError
        For no lists, an empty one, or ranks that are repeated or not in the group.
    """
    parents = get_process_group_ranks(parent_pg)
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    assigned: set[int] = set()
    mine = None
    for part in split_ranks:
        if not part:
            raise ValueError("the split group cannot be empty")
        if len(set(part)) != len(part) or not assigned.isdisjoint(part):
            raise ValueError(
                "the split group cannot have duplicate ranks, got "
                f"{[list(subgroup) for subgroup in split_ranks]}"
            )
        if not all(0 <= rank < len(parents) for rank in part):
            raise ValueError(
                f"split_ranks has {list(part)}; expected ranks of the group, 0..{len(parents) - 1}"
            )
        assigned.update(part)
        ranks = [parents[rank] for rank in sorted(part)]
        process_group = group_of(
            ranks, timeout, backend, pg_options, group_desc=group_desc, callers=parents
        )
        mine = process_group if isinstance(process_group, ProcessGroup) else mine
    return mine


def shrink_group(
    ranks_to_exclude: list[int],
    group: Any = None,
    shrink_flags: int = SHRINK_DEFAULT,
    pg_options: Any = None,
) -> ProcessGroup:
    """Make the group of the ranks that are left of one, which is destroyed; only they call.

    Parameters
    ----------
    ranks_to_exclude
        Group ranks.
    group
        A group that ``new_group`` or its siblings made, of a backend that can shrink: any but gloo.
    shrink_flags
        ``SHRINK_DEFAULT`` or ``SHRINK_ABORT``, which mean the same here: operations of the old
        group that are in flight still finish where all their ranks have called.

    Raises
    ------
    TypeError
        For a backend that cannot shrink, or ranks that are no list of integers.
    ValueError
        For no ranks, all, repeated or nonexistent ones, or another flag.
    RuntimeError
        On an excluded rank.
    ConfigError
        For the default group, whose ranks are those of the run.

    Examples
    --------
    >>> import simcoll.distributed as dist
    >>> def program(rank, world_size):
    ...     everyone = dist.new_group(backend="nccl")
    ...     if rank != 1:
    ...         return dist.get_process_group_ranks(dist.shrink_group([1], everyone))
    >>> dist.spawn(program, 3).returns
    ([0, 2], None, [0, 2])
    """
    members = get_process_group_ranks(group)
    if not isinstance(ranks_to_exclude, list):
        raise TypeError(
            f"ranks_to_exclude must be a list, but got {type(ranks_to_exclude).__name__}"
        )
    if shrink_flags not in (SHRINK_DEFAULT, SHRINK_ABORT):
        raise ValueError(
            f"Invalid shrink_flags value: {shrink_flags}. Must be SHRINK_DEFAULT (0) or "
            "SHRINK_ABORT (1)"
        )
    for rank in ranks_to_exclude:
        if not isinstance(rank, int):
            raise TypeError(f"All elements in ranks_to_exclude must be integers, got {rank!r}")
    if group is None or group is default_group():
        raise ConfigError(
            "shrink_group of the default group would renumber the ranks of the run, which are "
            "fixed: make a group of all ranks with new_group, and shrink that"
        )
    if group.communicator.backend == Backend.GLOO:
        raise TypeError(
            f"Process group backend for '{group.group_name}' does not support shrinking operations."
        )
    excluded = set(ranks_to_exclude)
    if (
        not 0 < len(excluded) < len(members)
        or len(excluded) != len(ranks_to_exclude)
        or not excluded.issubset(range(len(members)))
    ):
        raise ValueError(
            f"ranks_to_exclude is {ranks_to_exclude}; expected some but not all of the group's "
            f"ranks 0..{len(members) - 1}, each once"
        )
    if group.rank() in excluded:
        raise RuntimeError(
            f"Current rank {group.rank()} is in the exclusion list and should not call "
            "shrink_group()."
        )
    remaining = [member for rank, member in enumerate(members) if rank not in excluded]
    destroy_process_group(group)
    shrunk: ProcessGroup = group_of(
        remaining,
        group.timeout,
        group.communicator.backend,
        pg_options,
        group_desc=f"{group.group_name}:shrunk",
        sort_ranks=False,
        callers=remaining,
    )
    return shrunk


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Create one group per list of disjoint ranks; returns this rank's group (None if it is in
    none), and all.
    """
    make = partial(group_of, group_desc=group_desc)
    return _subgroups(
        ranks_per_subgroup_list, lambda ranks: make(ranks, timeout, backend, pg_options)
    )


def _subgroups(
    lists: Sequence[Sequence[int]],
    make: Callable[[list[int]], Any],
) -> tuple[Any, list[Any]]:
    subgroup_of: dict[int, int] = {}
    for number, ranks in enumerate(lists):
        for rank in ranks:
            if rank in subgroup_of:
                raise ValueError(
                    f"Rank {rank} has appeared in both subgroup {subgroup_of[rank]} and {number}"
                )
            subgroup_of[rank] = number
    groups = [make(list(ranks)) for ranks in lists]
    mine = next((handle for handle in groups if isinstance(handle, ProcessGroup)), None)
    return mine, groups
