"""``torch.multiprocessing.spawn`` in a script whose ranks are there already: each is one of the processes that it would start."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import multiprocessing

from simcoll.errors import ConfigError
from simcoll.torch.rank_threads import current_thread
from simcoll.torch.replacing import in_ranks

__all__ = ["start_replacements"]


class _Joined:
    """In place of a ``ProcessContext``: the process has ended."""

    processes: tuple[()] = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:  # noqa: ARG002  # torch's signature
        """True."""
        return True

    def pids(self) -> list[int]:
        """None."""
        return []


def _spawn(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any
) -> _Joined | None:
    """Call ``fn`` for the process that this rank is: of its node, or of all."""
    environment = current_thread().process.environment
    for size, number in (("LOCAL_WORLD_SIZE", "LOCAL_RANK"), ("WORLD_SIZE", "RANK")):
        if nprocs == int(environment[size]):
            fn(int(environment[number]), *args)
            return None if join else _Joined()
    local, world = environment["LOCAL_WORLD_SIZE"], environment["WORLD_SIZE"]
    raise ConfigError(
        f"torch.multiprocessing.spawn: nprocs={nprocs}, and the run has {world} ranks, {local} on this node; every rank runs the script "
        f"and is one of the processes, so nprocs has to be one of these numbers: start it with -n {nprocs}"
    )


def start_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what starts one process for every rank."""
    module = importlib.import_module("torch.multiprocessing.spawn")  # the name in torch.multiprocessing is the function
    return [
        (owner, name, in_ranks(getattr(owner, name), _spawn))
        for owner in (multiprocessing, module)
        for name in ("spawn", "start_processes")
    ]
