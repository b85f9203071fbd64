"""Offload to the host: findings on what a run does not time, and what PyTorch refuses on GPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import graph
from torch.distributed import fsdp
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["offload_replacements"]

_CHECK = "_validate_cpu_offload_params"
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


@for_ranks
def _check_offload(thread: RankThread, standard: Any, self: Any) -> None:
    """Refuse parameters on GPUs that ``fully_shard`` is to offload, as it does there."""
    places = thread.process.places
    if places is not None and isinstance(self.offload_policy, fsdp.CPUOffloadPolicy):
        owned = [(part._param_fqn, part.sharded_param._local_tensor) for part in self.fsdp_params]
        on_gpus = [
            (name, torch.device("cuda", places.get(local)))
            for name, local in owned
            if places.is_on_gpu(local)
        ]
        if on_gpus:
            raise RuntimeError(
                "FSDP parameters should be materialized on CPU when enabling CPU offloading. "
                f"Found following parameters on non-CPU device: {on_gpus}"
            )
    standard(self)


def offload_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what a program makes to offload."""
    return [
        *(
            (owner, "__init__", _offloads(owner.__init__))
            for owner in (fsdp.CPUOffloadPolicy, fsdp.CPUOffload, graph.save_on_cpu)
        ),
        (FSDPParamGroup, _CHECK, _check_offload(getattr(FSDPParamGroup, _CHECK))),
    ]
