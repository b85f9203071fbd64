"""Divide groups into smaller ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from simcoll.distributed.api.groups import ProcessGroup, get_process_group_ranks
from simcoll.distributed.api.making_groups import group_of

__all__ = ["new_subgroups", "new_subgroups_by_enumeration", "split_group"]


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
    return _subgroups(
        [members[i : i + size] for i in range(0, len(members), size)], timeout, backend, members
    )


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


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    backend: str | None = None,
) -> tuple[Any, list[Any]]:
    """Create one group per list of disjoint ranks; returns this rank's group (None if it is in
    none), and all.
    """
    return _subgroups(ranks_per_subgroup_list, timeout, backend, None)


def _subgroups(
    lists: Sequence[Sequence[int]],
    timeout: timedelta | None,
    backend: str | None,
    callers: Sequence[int] | None,
) -> tuple[Any, list[Any]]:
    subgroup_of: dict[int, int] = {}
    for number, ranks in enumerate(lists):
        for rank in ranks:
            if rank in subgroup_of:
                raise ValueError(
                    f"Rank {rank} has appeared in both subgroup {subgroup_of[rank]} and {number}"
                )
            subgroup_of[rank] = number
    groups = [group_of(list(ranks), timeout, backend, callers=callers) for ranks in lists]
    mine = next((handle for handle in groups if isinstance(handle, ProcessGroup)), None)
    return mine, groups
