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
    made: ProcessGroup = group_of(ranks, None, None, group_desc=desc, sort_ranks=False, callers=ranks)
    return made


def new_subgroups(
    group_size: int | None = None, group: Any = None, timeout: timedelta | None = None, backend: str | None = None
) -> tuple[Any, list[Any]]:
    """Divide a group (default: all ranks) into groups of ``group_size`` consecutive ranks; returns this rank's, and all.

    All ranks of the group call.
    """
    members = get_process_group_ranks(group)
    size = len(members) if group_size is None else group_size
    if not 0 < size <= len(members):
        raise ValueError(
            f"The arg 'group_size' ({size}) must be at least 1 and not exceed the world size ({len(members)})"
        )
    if len(members) % size:
        raise ValueError(f"The world size ({len(members)}) must be divisible by 'group_size={size}'")
    return _subgroups([members[i : i + size] for i in range(0, len(members), size)], timeout, backend, members)


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
    seen: set[int] = set()
    mine = None
    for part in split_ranks:
        if not part:
            raise ValueError("the split group cannot be empty")
        if len(set(part)) != len(part) or not seen.isdisjoint(part):
            raise ValueError(f"the split group cannot have duplicate ranks, got {[list(each) for each in split_ranks]}")
        if not all(0 <= rank < len(parents) for rank in part):
            raise ValueError(f"split_ranks has {list(part)}; expected ranks of the group, 0..{len(parents) - 1}")
        seen.update(part)
        ranks = [parents[rank] for rank in sorted(part)]
        made = group_of(ranks, timeout, backend, pg_options, group_desc=group_desc, callers=parents)
        mine = made if isinstance(made, ProcessGroup) else mine
    return mine


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]], timeout: timedelta | None = None, backend: str | None = None
) -> tuple[Any, list[Any]]:
    """Create one group per list of disjoint ranks; returns this rank's group (None if it is in none), and all."""
    return _subgroups(ranks_per_subgroup_list, timeout, backend, None)


def _subgroups(
    lists: Sequence[Sequence[int]], timeout: timedelta | None, backend: str | None, callers: Sequence[int] | None
) -> tuple[Any, list[Any]]:
    seen: dict[int, int] = {}
    for number, ranks in enumerate(lists):
        for rank in ranks:
            if rank in seen:
                raise ValueError(f"Rank {rank} has appeared in both subgroup {seen[rank]} and {number}")
            seen[rank] = number
    made = [group_of(list(ranks), timeout, backend, callers=callers) for ranks in lists]
    mine = next((each for each in made if isinstance(each, ProcessGroup)), None)
    return mine, made
