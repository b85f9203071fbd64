"""``torch.multiprocessing.spawn`` in a script whose ranks are there already: each is one of the processes that it would start.

Other processes that ``multiprocessing`` starts anew run as always, without simcoll. PyTorch's own groups would wait there for processes
that nobody starts, so they find no port to meet at, but the reason.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from multiprocessing import util
from typing import Any

from torch import multiprocessing

from simcoll.errors import ConfigError
from simcoll.torch.rank_threads import current_thread, rank_thread_of
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


def _started(standard: Callable[..., int]) -> Callable[..., int]:
    """What starts an interpreter for ``multiprocessing``, with a port where no group can meet."""

    def start(*args: Any) -> int:
        thread = rank_thread_of()
        port = os.environ.get("MASTER_PORT")
        if thread is None or port is None:
            return standard(*args)
        os.environ["MASTER_PORT"] = (
            f"none: a process that rank {thread.number} of a simulated run has started has no simulated clock, and no process group"
        )
        try:
            return standard(*args)
        finally:
            os.environ["MASTER_PORT"] = port

    return start


def start_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what starts one process for every rank."""
    module = importlib.import_module("torch.multiprocessing.spawn")  # the name in torch.multiprocessing is the function
    return [
        (util, "spawnv_passfds", _started(util.spawnv_passfds)),
        *(
            (owner, name, in_ranks(getattr(owner, name), _spawn))
            for owner in (multiprocessing, module)
            for name in ("spawn", "start_processes")
        ),
    ]
