"""Create the default group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcoll.distributed.api.backends import Backend
from simcoll.distributed.api.default_store import open_store
from simcoll.distributed.api.groups import ProcessGroup
from simcoll.distributed.api.making_groups import DEFAULT_TIMEOUT, executor_of, leave_groups, shared_group
from simcoll.distributed.runtime.meeting import Arrival
from simcoll.distributed.runtime.plans import check_choice
from simcoll.distributed.runtime.tasks import wait_until
from simcoll.distributed.runtime.work import timeout_fs
from simcoll.distributed.runtime.world import Rank, current_rank
from simcoll.distributed.stores.rendezvous import parse_init_method

if TYPE_CHECKING:
    from datetime import timedelta

    from simcoll.distributed.runtime.meeting import Meeting
    from simcoll.distributed.runtime.plans import Choice

__all__ = ["init_process_group", "set_default_group"]


def set_default_group(
    rank: Rank,
    backend: str,
    *,
    implicit: bool = False,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    algorithm: Choice = None,
    meeting: Meeting | None = None,
) -> None:
    """Give a rank its handle of the group of all ranks, made at a meeting."""
    name = Backend(backend)
    span = DEFAULT_TIMEOUT if timeout is None else timeout
    limit = (timeout_fs(span), timeout is not None)
    communicator = shared_group(rank, "0", rank.world.everyone, limit, name, algorithm, desc="default_pg")
    executor = executor_of(name, communicator, rank, span, pg_options, meeting)
    rank.default = ProcessGroup(communicator, rank.number, span, executor)
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

    The ranks are known already: no method is needed, and arguments are only checked, as torch checks them. A method's store is
    made nevertheless: a TCPStore and its server, or a FileStore; for ``env://`` if ``MASTER_ADDR`` and ``MASTER_PORT`` are
    set. Emulated ranks share one. It is closed when all have destroyed the group.

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
    _check_device(device_id)
    _check_meeting_place(me, init_method, world_size, rank, store)
    if me.default is not None:
        leave_groups(me)
    me.generation += 1
    me.created.clear()
    url = (init_method or "").split("?")[0]
    key, subject = f"init_process_group {me.generation}", f"{name} {url}".strip()
    meeting = me.world.meet(me, Arrival(key, "init_process_group", me.world.everyone, subject))
    wait_until(meeting, timeout_fs(DEFAULT_TIMEOUT if timeout is None else timeout), explicit=timeout is not None)
    if store is not None:
        me.store = store
    elif url:
        open_store(me, url, timeout)
    set_default_group(me, name, timeout=timeout, pg_options=pg_options, algorithm=algorithm, meeting=meeting)


def _check_device(device_id: Any) -> None:
    if device_id is None:
        return
    text = str(device_id)
    if isinstance(device_id, int) or text.startswith("cpu") or ":" not in text:
        raise ValueError("init_process_group device_id parameter must be an accelerator with an index")


def _check_meeting_place(me: Rank, init_method: str | None, world_size: int, rank: int, store: Any) -> None:
    """Check rendezvous arguments as torch does, and that they agree with spawn's."""
    if init_method is not None and store is not None:
        raise AssertionError("Cannot specify both init_method and store.")
    size = len(me.world.ranks)
    if store is not None:
        if world_size <= 0:
            raise AssertionError("world_size must be positive if using store")
        if rank < 0:
            raise AssertionError("rank must be non-negative if using store")
    elif init_method is not None and not init_method.startswith("env://"):
        rank, world_size = parse_init_method(init_method, rank, world_size)
    for what, given, expected in (("rank", rank, me.number), ("world_size", world_size, size)):
        if given not in (-1, expected):
            raise ValueError(f"init_process_group: {what}={given}, but this program was spawned with {what}={expected}")
