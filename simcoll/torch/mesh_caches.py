"""DTensor's caches of redistributions, for each rank.

A redistribution of uneven shards depends on the rank's place in the mesh. PyTorch keeps its steps
in process-wide caches, by meshes that are equal on all ranks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from torch.distributed.tensor import _redistribute

from simcoll.torch.rank_threads import current_thread_or_none

__all__ = ["separate_caches"]


class _OfRanks(dict[Any, Any]):
    """A dictionary of which each rank sees its part."""

    def __contains__(self, key: object) -> bool:
        return super().__contains__((_rank(), key))

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__((_rank(), key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__((_rank(), key), value)


def _rank() -> int:
    thread = current_thread_or_none()
    return -1 if thread is None else thread.number


def _remember_for_ranks(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose results are remembered for each rank."""

    @functools.cache
    def of_rank(_number: int, *args: Any, **options: Any) -> Any:
        return function(*args, **options)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        return of_rank(_rank(), *args, **options)

    vars(call)["cache_clear"] = of_rank.cache_clear
    return call


def separate_caches(undo: contextlib.ExitStack) -> None:
    """Give each rank its caches for the duration of the run; what a PyTorch lacks stays away."""
    steps: Any = getattr(_redistribute, "_gen_transform_infos", None)
    for name, substitute in (
        ("_planner_cache", _OfRanks()),
        ("_gen_transform_infos", _remember_for_ranks(getattr(steps, "__wrapped__", steps))),
    ):
        standard = getattr(_redistribute, name, None)
        if standard is not None:
            undo.callback(setattr, _redistribute, name, standard)
            setattr(_redistribute, name, substitute)
