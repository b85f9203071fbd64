"""Process groups: lookup, membership, rank numbering, and the default store."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

from simcoll.distributed.api.backends import Backend
from simcoll.distributed.runtime.world import (
    NOT_INITIALIZED,
    GroupHandle,
    current_rank,
    current_rank_or_none,
)

__all__ = [
    "GroupMember",
    "default_pg_timeout",
    "get_backend",
    "get_backend_config",
    "get_global_rank",
    "get_group_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "is_initialized",
]


default_pg_timeout = timedelta(minutes=30)
"""How long operations of a group may take that was made without a timeout."""


class _Outside:
    """The result of new_group on ranks that are not in the group."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NON_GROUP_MEMBER"

    def __reduce__(self) -> str:
        return "_OUTSIDE"


_OUTSIDE = _Outside()


class _CurrentWorld(type):
    @property
    def WORLD(cls) -> Any:  # noqa: N802  # torch's name
        """The default group of this rank; None if there is none."""
        me = current_rank_or_none()
        return None if me is None else me.default


class GroupMember(metaclass=_CurrentWorld):
    """``GroupMember.WORLD``: the default group. ``GroupMember.NON_GROUP_MEMBER``: the result of
    new_group on other ranks.
    """

    NON_GROUP_MEMBER = _OUTSIDE


class group(metaclass=_CurrentWorld):  # noqa: N801  # torch's name
    """``group.WORLD``: the default group."""


def default_group() -> GroupHandle:
    """The default group of this rank; a ValueError before init_process_group."""
    default = current_rank().default
    if default is None:
        raise ValueError(NOT_INITIALIZED)
    if default.global_rank in default.communicator.destroyed:
        raise ValueError(f"{default!r} was shut down on this rank; call destroy_process_group")
    return default


def default_store() -> Any:
    """The default group's store: the one given to init_process_group, else one shared by all
    emulated ranks.
    """
    default_group()
    me = current_rank()
    return me.world.default_store() if me.store is None else me.store


def _resolve(group: Any) -> GroupHandle | None:
    """The group passed to a call (None: the default); None on a rank outside it."""
    default = default_group()
    if group is None or group is default:
        return default
    if group is GroupMember.NON_GROUP_MEMBER:
        return None
    if not isinstance(group, GroupHandle):
        raise ValueError(  # noqa: TRY004 - as PyTorch
            f"Invalid process group specified: {group!r}; expected what new_group returned"
        )
    if group.global_rank != default.global_rank:
        raise ValueError(
            f"Invalid process group specified: {group!r} is the handle of rank "
            f"{group.global_rank}, used on rank {default.global_rank}"
        )
    if default.global_rank in group.communicator.destroyed:
        raise ValueError(f"Group {group!r} is not registered: it was destroyed on this rank")
    return group


def member_of(group: Any, operation: str, depth: int = 3) -> GroupHandle | None:
    """The group passed to a call (None: the default); None, with a warning, on a rank outside it.

    ``depth`` is the number of frames from this function to the program's line: 3 if the program
    calls the function that calls this.
    """
    me = current_rank()
    process_group = me.default
    # Most calls, which are many, are on the default group.
    if (
        process_group is None
        or (group is not None and group is not process_group)
        or me.number in process_group.communicator.destroyed
    ):
        process_group = _resolve(group)
    if process_group is None:
        warnings.warn(
            f"Running {operation} on global rank {current_rank().number} which does not belong to "
            "the given group.",
            UserWarning,
            stacklevel=depth,
        )
    return process_group


def is_initialized() -> bool:
    """Whether this rank has a default group."""
    me = current_rank_or_none()
    return me is not None and me.default is not None


def get_rank(group: Any = None) -> int:
    """The calling rank's group rank; -1 outside the group."""
    process_group = _resolve(group)
    return -1 if process_group is None else process_group.rank()


def get_world_size(group: Any = None) -> int:
    """The number of ranks in a group; -1 outside the group."""
    process_group = _resolve(group)
    return -1 if process_group is None else process_group.size()


def get_pg_count() -> int:
    """The number of groups that all ranks have made together since they made the default group,
    which counts too; 0 without one.
    """
    me = current_rank_or_none()
    return 0 if me is None or me.default is None else 1 + me.created["group"]


def get_backend(group: Any = None) -> str:
    """The name of a group's backend; a ValueError outside the group."""
    process_group = _resolve(group)
    if process_group is None:
        raise ValueError("Invalid process group specified")
    return process_group.communicator.backend


def get_backend_config(group: Any = None) -> str:
    """The backend of each kind of device, such as ``"cpu:emulator,cuda:emulator"``."""
    name = get_backend(group)
    if ":" in name:
        return name
    chosen = Backend.EMULATOR if name == Backend.UNDEFINED else name
    return f"cpu:{chosen},cuda:{chosen}"


def _beyond_default(group: Any) -> GroupHandle | None:
    """A group other than the default one; None for the default group, in which torch does not check
    ranks.
    """
    if not isinstance(group, GroupHandle):
        text = (
            f"Group {group!r} is not registered, please create group with "
            "torch.distributed.new_group API"
        )
        raise ValueError(text)  # noqa: TRY004  # as torch
    _resolve(group)
    return None if group.communicator.name == "0" else group


def get_group_rank(group: Any, global_rank: int) -> int:
    """The group rank of a global rank; a ValueError outside the group. The default group returns it
    unchecked, as torch does.
    """
    process_group = _beyond_default(group)
    return global_rank if process_group is None else rank_in_group(process_group, global_rank)


def rank_in_group(process_group: GroupHandle, global_rank: int) -> int:
    """The group rank of a global rank; a ValueError outside the group."""
    if global_rank not in process_group.communicator.group_rank:
        members = list(process_group.communicator.members)
        raise ValueError(
            f"Global rank {global_rank} is not part of group {process_group.group_name} with ranks "
            f"{members}"
        )
    return process_group.communicator.group_rank[global_rank]


def get_global_rank(group: Any, group_rank: int) -> int:
    """The global rank of a group rank; a ValueError if there is none. The default group returns it
    unchecked, as torch does.
    """
    process_group = _beyond_default(group)
    if process_group is None:
        return group_rank
    if not 0 <= group_rank < process_group.size():
        raise ValueError(
            f"Group rank {group_rank} is not part of group {process_group.group_name} with "
            f"{process_group.size()} ranks"
        )
    return process_group.communicator.members[group_rank]


def get_process_group_ranks(group: Any) -> list[int]:
    """The global ranks of a group, in its order; a ValueError outside the group."""
    process_group = _resolve(group)
    if process_group is None:
        raise ValueError("Invalid process group specified: this rank is not a member")
    return list(process_group.communicator.members)
