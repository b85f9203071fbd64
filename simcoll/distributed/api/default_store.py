"""The default store of a rank: given to init_process_group, or made by it and closed with the group."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from simcoll.distributed.api.groups import default_group
from simcoll.distributed.runtime.world import current_rank

if TYPE_CHECKING:
    from datetime import timedelta

    from simcoll.distributed.runtime.world import Rank

__all__ = ["close_store", "default_store", "open_store"]


def open_store(me: Rank, url: str, timeout: timedelta | None) -> None:
    """Make the store of a URL the rank's default; none for ``env://`` without an address."""
    if url.startswith("env://") and not ("MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ):
        return
    me.own_store = me.world.open_store(me, url, timeout)
    me.store = me.own_store.store


def close_store(me: Rank) -> None:
    """Forget a rank's default store; one that was made here closes with its last user."""
    own, me.store, me.own_store = me.own_store, None, None
    if own is not None:
        own.users.pop(me.number, None)
        if not own.users:
            own.store.close()


def default_store() -> Any:
    """The default group's store: the one given to init_process_group, else one shared by all emulated ranks.

    Raises
    ------
    ValueError
        Without a default group.
    RuntimeError
        Where ranks are processes and init_process_group was given no place to meet.
    """
    default_group()
    me = current_rank()
    return me.world.default_store() if me.store is None else me.store
