"""A torch Store on a simcoll store: while a rank waits for a key, the others run."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from simcoll.distributed.stores import HashStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from simcoll.torch.rank_threads import RankThread

__all__ = ["RankStore"]


def _forwarded(name: str) -> Callable[..., Any]:
    """A method that calls the same method of the shared store, in the rank's task."""

    def method(self: RankStore, *args: Any) -> Any:
        return self.thread.call(getattr(self.shared, name), *args)

    return functools.update_wrapper(method, getattr(HashStore, name))


class RankStore(dist.Store):
    """One rank's handle of the store of a run, with torch's methods."""

    def __init__(self, thread: RankThread, shared: HashStore) -> None:
        super().__init__()
        self.thread = thread
        self.shared = shared

    set, get, add, append = map(_forwarded, ("set", "get", "add", "append"))
    compare_set, check, wait, delete_key = map(_forwarded, ("compare_set", "check", "wait", "delete_key"))
    num_keys, multi_get, multi_set = map(_forwarded, ("num_keys", "multi_get", "multi_set"))

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set are supported: True."""
        return True
