"""Create and destroy process groups, including the default group and its store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from simcoll.distributed.api.backends import Backend
from simcoll.distributed.api.group_calls import ProcessGroup
from simcoll.distributed.api.groups import GroupMember, default_group, default_pg_timeout
from simcoll.distributed.api.rendezvous_handlers import has_handler, rendezvous
from simcoll.distributed.runtime.tasks import Arrival, Meeting, wait_until
from simcoll.distributed.runtime.work import timeout_fs
from simcoll.distributed.runtime.world import (
    NO_DESCRIPTION,
    Communicator,
    GroupHandle,
    Rank,
    current_rank,
    current_rank_or_none,
)
from simcoll.distributed.stores.rendezvous import check_store_arguments, parse_init_method
from simcoll.libraries.choices import Choice, check_choice

__all__ = ["destroy_process_group", "init_process_group", "new_group"]


def count(me: Rank, kind: str) -> int:
    """Number the groups (or meshes) that a rank makes."""
    me.created[kind] += 1
    return me.created[kind]


def _checked_ranks(
    ranks: Sequence[int] | None, world_size: int, *, sort_ranks: bool
) -> tuple[int, ...]:
    if ranks is None:
        return tuple(range(world_size))
    chosen = [int(rank) for rank in ranks]
    if not chosen:
        raise ValueError("new_group: ranks is empty; expected at least one rank, or None for all")
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"ranks list must not contain duplicate entries, got {chosen}")
    if len(chosen) > world_size:
        raise ValueError(
            "the new group's world size should be less or equal to the world size set by "
            "init_process_group"
        )
    for rank in chosen:
        if not 0 <= rank < world_size:
            raise ValueError(
                f"Rank {rank} is out of range. Valid ranks are 0 to {world_size - 1} "
                f"(world_size={world_size})"
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
    sort_ranks: bool = True,
    *,
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
        Only the members call this function.
    sort_ranks
        Number the ranks in ascending order, whatever the given order.
    algorithm
        The algorithm of its collectives, as for :func:`simcoll.distributed.spawn`.

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
    return group_of(
        ranks,
        timeout,
        backend,
        pg_options,
        use_local_synchronization,
        group_desc,
        sort_ranks=sort_ranks,
        algorithm=algorithm,
    )


def group_of(
    ranks: Sequence[int] | None,
    timeout: timedelta | None,
    backend: str | None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    *,
    sort_ranks: bool = True,
    algorithm: Choice = None,
    callers: Sequence[int] | None = None,
) -> Any:
    """Create a group; ``callers`` are the ranks that call (None: all of the default group)."""
    default = default_group()
    callers = default.communicator.members if callers is None else callers
    chosen = _checked_ranks(ranks, default.size(), sort_ranks=sort_ranks)
    span = default.timeout if timeout is None else timeout
    explicit = default.communicator.explicit if timeout is None else True
    limit = (timeout_fs(span), explicit)
    check_choice(algorithm)
    name = default.communicator.backend if backend is None else Backend(backend)
    me = current_rank()
    note_group(chosen)
    if use_local_synchronization:
        if name == Backend.MPI and me.world.home is None:
            raise ValueError("MPI backend doesn't support use_local_synchronization=True")
        if me.number not in chosen:
            return None
        members = "-".join(map(str, chosen))
        label, tell = f"{members}:{count(me, members)}", chosen
    elif len(callers) < len(me.world.ranks):
        members = "-".join(map(str, callers))
        label, tell = f"among {members}:{count(me, f'among {members}')}", tuple(callers)
    else:
        label, tell = str(count(me, "group")), me.world.everyone
    key, event = f"new_group {me.generation} {label}", f"new_group (number {label})"
    meeting = me.world.meet(me, Arrival(key, event, chosen, chosen, tell=tell))
    if me.number in chosen:
        wait_until(meeting, limit[0], explicit=explicit)
    else:
        meeting.check()
        return GroupMember.NON_GROUP_MEMBER
    communicator = shared_group(
        me, label, chosen, limit, name, algorithm, desc=group_desc or NO_DESCRIPTION
    )
    me.groups.append(_make_handle(me, communicator, span, pg_options, meeting))
    return me.groups[-1]


def note_group(members: Sequence[int]) -> None:
    """Record that the calling rank makes a group, as a member or not."""
    rank_classes = current_rank().world.rank_classes
    if rank_classes is not None:
        rank_classes.note_group(members)


def shared_group(
    me: Rank,
    name: str,
    members: tuple[int, ...],
    limit: tuple[int, bool],
    backend: str,
    algorithm: Choice,
    *,
    desc: str = NO_DESCRIPTION,
    tagged: bool = False,
) -> Communicator:
    """The record that the ranks of a group share; the first rank makes it.

    Each rank numbers its own groups, so different groups of one name are a disagreement: in
    separate processes, their rendezvous would mix. Disjoint ones may share a name if each has one
    rank, or if ``tagged``: PyTorch makes groups of a tag on their ranks only.
    """
    groups, key = me.world.groups, f"{me.generation}/{name}"
    namesakes = groups.setdefault(key, [])
    communicator = next(
        (
            candidate
            for candidate in namesakes
            if me.number in candidate.group_rank
            or not candidate.group_rank.keys().isdisjoint(members)
            or not (tagged or len(candidate.members) == len(members) == 1)
        ),
        None,
    )
    if communicator is None:
        if algorithm is None and me.default is not None:
            algorithm = me.default.communicator.algorithm
        unique = f"{key}/{len(namesakes)}" if namesakes else key
        communicator = Communicator(
            me.world, name, unique, desc, members, *limit, backend, algorithm
        )
        namesakes.append(communicator)
    if communicator.members is not members and communicator.members != members:
        raise RuntimeError(
            f"new_group differs between ranks: rank {me.number} makes group {name} of "
            f"{list(members)}, which another rank made of "
            f"{list(communicator.members)}; all ranks have to make the same groups in the same "
            "order, also those that they are no member of"
        )
    return communicator


def _make_handle(
    me: Rank,
    communicator: Communicator,
    timeout: timedelta,
    pg_options: Any,
    meeting: Meeting | None,
) -> ProcessGroup:
    """One rank's handle of a group, with its executor: a registered backend's, the link's between
    processes, or None.

    Between processes, the backend names that the emulator serves select the backend that connects
    the processes.
    """
    name = communicator.backend
    maker = None if name == me.world.home else Backend.maker(name)
    rank, size = communicator.group_rank[me.number], len(communicator.members)
    executor: Any
    if maker is None:
        executor = me.world.executor(meeting)
    elif not maker[1]:
        executor = maker[0](me.store, rank, size, timeout)
    else:
        options = {
            "store": me.store,
            "group_rank": rank,
            "group_size": size,
            "timeout": timeout,
            "group_id": communicator.name,
            "global_ranks_in_group": list(communicator.members),
        }
        executor = maker[0](options, pg_options)
    return ProcessGroup(communicator, me.number, timeout, executor)


def _leave_groups(me: Rank) -> None:
    """Destroy all groups of a rank."""
    for process_group in (me.default, *me.groups):
        if process_group is not None:
            process_group.communicator.destroyed[me.number] = None
    me.default = None
    me.groups.clear()
    close_store(me)


def destroy_process_group(group: Any = None) -> None:
    """Destroy a group on this rank; the default group stands for all. Operations of other members
    may still finish.

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
        _leave_groups(me)
        return
    if not isinstance(group, GroupHandle) or default.global_rank in group.communicator.destroyed:
        raise ValueError("Invalid process group specified")
    group.communicator.destroyed[default.global_rank] = None


def close_store(me: Rank) -> None:
    """Drop a rank's default store; a store that init_process_group made closes with its last
    user.
    """
    own_store, me.store, me.own_store = me.own_store, None, None
    if own_store is not None:
        own_store.users.pop(me.number, None)
        if not own_store.users:
            own_store.store.close()


def set_default_group(
    rank: Rank,
    backend: str,
    *,
    implicit: bool = False,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    algorithm: Choice = None,
    meeting: Meeting | None = None,
    members: tuple[int, ...] | None = None,
) -> None:
    """Give a rank its handle of the default group, which the ranks made at a meeting; None: all
    ranks are its members.
    """
    name = Backend(backend)
    span = default_pg_timeout if timeout is None else timeout
    limit = (timeout_fs(span), timeout is not None)
    communicator = shared_group(
        rank, "0", members or rank.world.everyone, limit, name, algorithm, desc="default_pg"
    )
    rank.default = _make_handle(rank, communicator, span, pg_options, meeting)
    rank.implicit = implicit


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",  # noqa: ARG001  # torch's signature, ignored there too
    pg_options: Any = None,
    device_id: Any = None,
    *,
    algorithm: Choice = None,
) -> None:
    """Create the default group, and wait until all ranks have called.

    No rendezvous is needed, because the ranks are already known; arguments are checked as torch
    checks them. The store of an init method is made nevertheless: a TCPStore and its server, or a
    FileStore; for ``env://`` if ``MASTER_ADDR`` and ``MASTER_PORT`` are set. Emulated ranks share
    one store, which closes when all have destroyed the group.

    Raises
    ------
    ValueError
        When there is a default group already, for an unknown backend, or an incomplete rendezvous.
    AssertionError
        For arguments that exclude each other, as in torch.
    TypeError
        For a timeout that is not a timedelta.
    DistNetworkError, DistStoreError
        When the method's store cannot be made, or not all ranks reach it.
    """
    me = current_rank()
    if me.default is not None and not me.implicit:
        raise ValueError("trying to initialize the default process group twice!")
    if timeout is not None:
        timeout_fs(timeout)
    name = Backend(backend) if backend is not None else Backend.UNDEFINED
    if name != me.world.home:
        Backend.maker(name)
    check_choice(algorithm)
    index = str(device_id).partition(":")[2]
    if device_id is not None and (
        isinstance(device_id, int) or str(device_id).startswith("cpu") or not index
    ):
        raise ValueError(
            "init_process_group device_id parameter must be an accelerator with an index"
        )
    if store is not None:
        check_store_arguments(init_method, rank, world_size)
    elif init_method is not None and has_handler(init_method):
        limit = default_pg_timeout if timeout is None else timeout
        store, rank, world_size = next(rendezvous(init_method, rank, world_size, timeout=limit))
    elif init_method is not None and not init_method.startswith("env://"):
        rank, world_size = parse_init_method(init_method, rank, world_size)
    members = _members_of_default(me, rank, world_size)
    if me.default is not None:
        _leave_groups(me)
    me.generation += 1
    me.created.clear()
    url = (init_method or "").split("?")[0]
    key, subject = f"init_process_group {me.generation}", f"{name} {url}".strip()
    meeting = me.world.meet(
        me, Arrival(key, "init_process_group", members, subject, tell=me.world.everyone)
    )
    wait_until(
        meeting,
        timeout_fs(default_pg_timeout if timeout is None else timeout),
        explicit=timeout is not None,
    )
    if store is not None:
        me.store = store
    elif url and not (
        url.startswith("env://") and not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    ):
        me.own_store = me.world.open_store(me, url, timeout)
        me.store = me.own_store.store
    set_default_group(
        me,
        name,
        timeout=timeout,
        pg_options=pg_options,
        algorithm=algorithm,
        meeting=meeting,
        members=members,
    )


def _members_of_default(me: Rank, rank: int, world_size: int) -> tuple[int, ...]:
    """The ranks of the default group that a rank makes: all, or, of emulated ones, the first
    ``world_size``. -1: not stated.
    """
    everyone, emulated = me.world.everyone, me.world.home is None
    size = len(everyone) if world_size == -1 else world_size
    if rank not in (-1, me.number):
        wrong, right = f"rank={rank}", f"rank={me.number}"
    elif size > len(everyone) or (size < len(everyone) and not emulated):
        wrong, right = f"world_size={size}", f"world_size={len(everyone)}"
    elif me.number >= size:
        wrong = f"world_size={size}"
        right = f"rank={me.number}: it can be in a default group of at least {me.number + 1} ranks"
    else:
        return everyone[:size]
    raise ValueError(f"init_process_group: {wrong}, but this program was spawned with {right}")
