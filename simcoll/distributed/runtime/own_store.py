"""The default store of a rank: given to init_process_group, or made by it and closed with the group."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from simcoll.distributed.api.groups import default_group
from simcoll.distributed.runtime.world import current
from simcoll.distributed.stores import HashStore

if TYPE_CHECKING:
    from datetime import timedelta

    from simcoll.distributed.runtime.world import Rank

__all__ = ["close_store", "default_store", "take_store"]


def take_store(me: Rank, place: str, timeout: timedelta | None) -> None:
    """Make the store of a URL; emulated ranks share that of the first, as they share its process."""
    from simcoll.distributed.start.rendezvous import rendezvous

    if place.startswith("env://") and not ("MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ):
        return
    if me.world.linked is not None:
        store = rendezvous(place, rank=me.number, world_size=len(me.world.ranks), timeout=timeout).store
        users = {me.number: None}
    else:
        shared = me.world.shared.setdefault("own_stores", {})
        generation = me.local["generation"]
        if generation not in shared:
            shared[generation] = (rendezvous(place, rank=0, world_size=1, timeout=timeout).store, {})
        store, users = shared[generation]
        users[me.number] = None
    me.local["store"] = store
    me.local["own_store"] = store, users


def close_store(me: Rank) -> None:
    """Forget the default store of a rank; the last who uses one that was made here closes it."""
    me.local.pop("store", None)
    store, users = me.local.pop("own_store", (None, {}))
    users.pop(me.number, None)
    if store is not None and not users:
        store.close()


def default_store() -> Any:
    """The store of the default group: that of init_process_group, else one that all emulated ranks share.

    Raises
    ------
    ValueError
        Without a default group.
    RuntimeError
        Where ranks are processes and init_process_group was not told where to meet.
    """
    default_group()
    me = current().rank
    if "store" in me.local:
        return me.local["store"]
    if me.world.linked is not None:
        raise RuntimeError(
            "there is no default store: call init_process_group with a store, or init_method='tcp://...' or 'file://...'"
        )
    return me.world.shared.setdefault("store", HashStore())
