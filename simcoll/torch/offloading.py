"""Findings on offload to the host that a run does not time."""

from __future__ import annotations

from typing import Any

from torch.autograd import graph
from torch.distributed import fsdp

from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["offload_replacements"]

_NO_GPUS = (
    "the script sees no GPUs, so that its copies take no time and count as memory of the GPU: run "
    "it with --device cuda (in Python cuda_is_cpu=True)"
)


def _has_times(thread: RankThread) -> bool:
    watched = thread.process.watched
    return watched is not None and watched.costs is not None


@for_ranks
def _offloads(thread: RankThread, standard: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """What asks for offload, which moves what has a place; the first version of FSDP asks for none
    in the same way.
    """
    standard(self, *args, **kwargs)
    asks = not isinstance(self, fsdp.CPUOffload) or self.offload_params
    if asks and _has_times(thread) and thread.process.places is None:
        thread.tell(type(self).__name__, _NO_GPUS)


def offload_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what a program makes to offload."""
    return [
        *(
            (owner, "__init__", _offloads(owner.__init__))
            for owner in (fsdp.CPUOffloadPolicy, fsdp.CPUOffload, graph.save_on_cpu)
        ),
    ]
