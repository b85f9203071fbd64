"""Create and destroy groups."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from simcoll.distributed.api.backends import Backend
from simcoll.distributed.api.default_store import close_store
from simcoll.distributed.api.groups import GroupMember, ProcessGroup, default_group, get_process_group_ranks
from simcoll.distributed.runtime.meeting import Arrival
from simcoll.distributed.runtime.plans import check_choice
from simcoll.distributed.runtime.tasks import wait_until
from simcoll.distributed.runtime.work import timeout_fs
from simcoll.distributed.runtime.world import Communicator, Rank, current_rank, current_rank_or_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simcoll.distributed.runtime.meeting import Meeting
    from simcoll.distributed.runtime.plans import Choice

__all__ = [
    "DEFAULT_TIMEOUT", "count", "destroy_process_group", "executor_of", "leave_groups", "new_group", "new_subgroups",
    "new_subgroups_by_enumeration", "shared_group",
]  # fmt: skip

DEFAULT_TIMEOUT = timedelta(minutes=30)


def count(me: Rank, what: str) -> int:
    """Number a group or mesh that a rank makes, among those of its kind."""
    me.created[what] = me.created.get(what, 0) + 1
    return me.created[what]


def _checked_ranks(ranks: Sequence[int] | None, world_size: int, *, sort_ranks: bool) -> tuple[int, ...]:
    if ranks is None:
        return tuple(range(world_size))
    chosen = [int(rank) for rank in ranks]
    if not chosen:
        raise ValueError("new_group: ranks is empty; expected at least one rank, or None for all")
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"ranks list must not contain duplicate entries, got {chosen}")
    if len(chosen) > world_size:
        raise ValueError(
            "the new group's world size should be less or equal to the world size set by init_process_group"
        )
    for rank in chosen:
        if not 0 <= rank < world_size:
            raise ValueError(
                f"Rank {rank} is out of range. Valid ranks are 0 to {world_size - 1} (world_size={world_size})"
            )
    return tuple(sorted(chosen) if sort_ranks else chosen)


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,  # noqa: ARG001  # torch's signature
    *,
    sort_ranks: bool = True,
    algorithm: Choice = None,
) -> Any:
    """Create a group. All ranks of the default group call, in the same order.

    Parameters
    ----------
    ranks
        Global ranks; None for all.
    timeout
        How long operations on the group may take.
    use_local_synchronization
        Only the members call.
    sort_ranks
        Number the ranks in ascending order, whatever the given order.
    algorithm
        What its collectives run, as for :func:`simcoll.distributed.spawn`.

    Returns
    -------
    ProcessGroup
        On other ranks ``GroupMember.NON_GROUP_MEMBER``, or None with ``use_local_synchronization``.

    Raises
    ------
    ValueError
        For repeated or nonexistent ranks.
    RuntimeError
        When the ranks ask for different groups.
    """
    default = default_group()
    size = default.size()
    chosen = _checked_ranks(ranks, size, sort_ranks=sort_ranks)
    span = default.timeout if timeout is None else timeout
    explicit = default.communicator.explicit if timeout is None else True
    limit = (timeout_fs(span), explicit)
    check_choice(algorithm)
    name = default.communicator.backend if backend is None else Backend(backend)
    me = current_rank()
    if use_local_synchronization:
        if name == Backend.MPI and me.world.home is None:
            raise ValueError("MPI backend doesn't support use_local_synchronization=True")
        if me.number not in chosen:
            return None
        members = "-".join(map(str, chosen))
        label, tell = f"{members}:{count(me, members)}", chosen
    else:
        label, tell = str(count(me, "group")), me.world.everyone
    key, what = f"new_group {me.generation} {label}", f"new_group (number {label})"
    meeting = me.world.meet(me, Arrival(key, what, chosen, chosen, tell=tell))
    if me.number in chosen:
        wait_until(meeting, limit[0], explicit=explicit)
    else:
        meeting.check()
        return GroupMember.NON_GROUP_MEMBER
    communicator = shared_group(me, label, chosen, limit, name, algorithm, desc=group_desc or "undefined")
    executor = executor_of(name, communicator, me, span, pg_options, meeting)
    made = ProcessGroup(communicator, me.number, span, executor)
    me.groups.append(made)
    return made


def shared_group(
    me: Rank,
    name: str,
    members: tuple[int, ...],
    limit: tuple[int, bool],
    backend: str,
    algorithm: Choice,
    *,
    desc: str = "undefined",
) -> Communicator:
    """The record that the ranks of a group share, found by name; the first rank makes it.

    Raises
    ------
    RuntimeError
        When another rank has made a group of different ranks under this name.
    """
    groups, key = me.world.groups, f"{me.generation}/{name}"
    found = groups.get(key)
    if found is None:
        if algorithm is None and me.default is not None:
            algorithm = me.default.communicator.algorithm
        found = groups[key] = Communicator(me.world, name, key, desc, members, *limit, backend, algorithm)
    if found.members is not members and found.members != members:
        raise RuntimeError(
            f"new_group differs between ranks: rank {me.number} makes group {name} of {list(members)}, which another rank made of "
            f"{list(found.members)}; all ranks have to make the same groups in the same order"
        )
    return found


def executor_of(
    name: str,
    communicator: Communicator,
    me: Rank,
    timeout: timedelta,
    pg_options: Any,
    meeting: Meeting | None,
) -> Any:
    """The executor of one rank's plans: a registered backend's, the processes' own, or None for the emulator.

    Between processes, the names that the emulator serves stand for the backend that connects them.
    """
    maker = None if name == me.world.home else Backend.maker(name)
    if maker is None:
        return me.world.executor(meeting)
    func, extended = maker
    rank, size = communicator.group_rank[me.number], len(communicator.members)
    if not extended:
        return func(me.store, rank, size, timeout)
    options = {
        "store": me.store, "group_rank": rank, "group_size": size, "timeout": timeout, "group_id": communicator.name,
        "global_ranks_in_group": list(communicator.members),
    }  # fmt: skip
    return func(options, pg_options)


def new_subgroups(
    group_size: int | None = None, group: Any = None, timeout: timedelta | None = None, backend: str | None = None
) -> tuple[Any, list[Any]]:
    """Divide all ranks into groups of ``group_size`` neighbours; returns this rank's group, and all.

    Raises
    ------
    ValueError
        When the number of ranks is not a multiple of it.
    """
    members = get_process_group_ranks(group)
    size = len(members) if group_size is None else group_size
    if not 0 < size <= len(members):
        raise ValueError(
            f"The arg 'group_size' ({size}) must be at least 1 and not exceed the world size ({len(members)})"
        )
    if len(members) % size:
        raise ValueError(f"The world size ({len(members)}) must be divisible by 'group_size={size}'")
    return new_subgroups_by_enumeration([members[i : i + size] for i in range(0, len(members), size)], timeout, backend)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]], timeout: timedelta | None = None, backend: str | None = None
) -> tuple[Any, list[Any]]:
    """Create one group per list of ranks; returns this rank's group (None if in none), and all.

    Raises
    ------
    ValueError
        When a rank is in two lists.
    """
    seen: dict[int, int] = {}
    for number, ranks in enumerate(ranks_per_subgroup_list):
        for rank in ranks:
            if rank in seen:
                raise ValueError(f"Rank {rank} has appeared in both subgroup {seen[rank]} and {number}")
            seen[rank] = number
    made = [new_group(list(ranks), timeout, backend) for ranks in ranks_per_subgroup_list]
    mine = next((each for each in made if isinstance(each, ProcessGroup)), None)
    return mine, made


def leave_groups(me: Rank) -> None:
    """Leave all groups."""
    for each in (me.default, *me.groups):
        if each is not None:
            each.communicator.destroyed[me.number] = None
    me.default = None
    me.groups.clear()
    close_store(me)


def destroy_process_group(group: Any = None) -> None:
    """Destroy a group on this rank; the default group stands for all. Operations of other members may still finish.

    Raises
    ------
    ValueError
        For a group that is destroyed already.
    AssertionError
        Without a default group, as torch does.
    """
    if group is GroupMember.NON_GROUP_MEMBER:
        return
    me = current_rank_or_none()
    default = None if me is None else me.default
    if me is None or default is None:
        raise AssertionError("Process group cannot be None: there is no default group to destroy")
    if group is None or group is default:
        leave_groups(me)
        return
    if not isinstance(group, ProcessGroup) or default.global_rank in group.communicator.destroyed:
        raise ValueError("Invalid process group specified")
    group.communicator.destroyed[default.global_rank] = None
