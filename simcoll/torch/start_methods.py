"""``torch.multiprocessing.spawn`` in a script that runs on every rank: each rank is one of the
processes that it would start.

Other processes that ``multiprocessing`` starts run as usual, without simcoll. A process group there
would wait forever for processes that do not exist, so its rendezvous fails with an explanation.
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
    """A ``ProcessContext`` of an ended process."""

    processes: tuple[()] = ()

    def join(  # the signature is that of torch
        self,
        timeout: float | None = None,  # noqa: ARG002
        grace_period: float | None = None,  # noqa: ARG002
    ) -> bool:
        """True."""
        return True

    def pids(self) -> list[int]:
        """None."""
        return []


def _spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    *_: Any,
    **__: Any,
) -> _Joined | None:
    """Call ``fn`` as the process that this rank stands for, of its node or of all."""
    environment = current_thread().process.environment
    for size, number in (("LOCAL_WORLD_SIZE", "LOCAL_RANK"), ("WORLD_SIZE", "RANK")):
        if nprocs == int(environment[size]):
            fn(int(environment[number]), *args)
            return None if join else _Joined()
    local, world = environment["LOCAL_WORLD_SIZE"], environment["WORLD_SIZE"]
    raise ConfigError(
        f"torch.multiprocessing.spawn: nprocs={nprocs}, and the run has {world} ranks, {local} on "
        "this node; every rank runs the script "
        "and is one of the processes, so nprocs has to be one of these numbers: start it with -n "
        f"{nprocs}"
    )


def _start_process(standard: Callable[..., int]) -> Callable[..., int]:
    """Start an interpreter for ``multiprocessing`` with a rendezvous port at which no group can
    form.
    """

    def start(*args: Any) -> int:
        thread = rank_thread_of()
        port = os.environ.get("MASTER_PORT")
        if thread is None or port is None:
            return standard(*args)
        os.environ["MASTER_PORT"] = (
            f"none: a process that rank {thread.number} of a simulated run has started has no "
            "simulated clock, and no process group"
        )
        try:
            return standard(*args)
        finally:
            os.environ["MASTER_PORT"] = port

    return start


def start_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions that start one process per rank."""
    # The name in torch.multiprocessing is the function.
    module = importlib.import_module("torch.multiprocessing.spawn")
    return [
        (util, "spawnv_passfds", _start_process(util.spawnv_passfds)),
        *(
            (owner, name, in_ranks(getattr(owner, name), _spawn))
            for owner in (multiprocessing, module)
            for name in ("spawn", "start_processes")
        ),
    ]
