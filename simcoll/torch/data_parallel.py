"""What DistributedDataParallel does with clocks and streams that a simulated run has not."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from simcoll.errors import ConfigError
from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["data_parallel_replacements"]

_NAME = "DistributedDataParallel"
_HOST_TIMES = (
    "the times that its logger prints or returns are those of this computer, not of the simulated "
    "cluster: see the table of --trace"
)


@for_ranks
def _initialize(
    thread: RankThread, standard: Any, self: Any, module: Any, *args: Any, **kwargs: Any
) -> None:
    """Make a wrapper, unless it would cast its parameters.

    Casts run on a stream of the GPU while the reducer, in C++, has gradients; with tensors in host
    memory their order differs, and gradients are wrong.
    """
    if kwargs.get("mixed_precision") is not None:
        raise ConfigError(
            f"{_NAME}(mixed_precision=...) casts parameters on a stream of the GPU, and a "
            "simulated run, whose tensors are in host memory, would get wrong gradients: use "
            "torch.autocast, or fully_shard with a MixedPrecisionPolicy"
        )
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        thread.tell(_NAME, _HOST_TIMES)
    standard(self, module, *args, **kwargs)


@for_ranks
def _logging_data(thread: RankThread, standard: Any, self: Any) -> Any:
    """What DDP logs, with a finding, since it has host times."""
    thread.tell(_NAME, _HOST_TIMES)
    return standard(self)


def data_parallel_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of methods of the wrapper."""
    wrapper, logged = DistributedDataParallel, "_get_ddp_logging_data"
    return [
        (wrapper, "__init__", _initialize(wrapper.__init__)),
        (wrapper, logged, _logging_data(getattr(wrapper, logged))),
    ]
