"""The operator by which DTensor moves shards from one dimension to another on GPUs.

PyTorch has it in C++, as one operator. Here it is taken apart, so that its copies and its
collective are timed, also for fake tensors.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

__all__ = ["EXCHANGE", "exchange_shards"]

EXCHANGE = torch.ops._dtensor.shard_dim_alltoall.default


def exchange_shards(tensor: torch.Tensor, gather_dim: int, shard_dim: int, group: Any) -> Any:
    """The operator in its parts, in the order of ``shard_dim_alltoall`` of PyTorch's
    ``Functional.cpp``: it sends every rank a contiguous part, waits, and joins what it receives.
    """
    if isinstance(group, str):
        group = c10d._resolve_process_group(group)
    length = tensor.shape[shard_dim] // group.size()
    slices = [tensor.narrow(shard_dim, rank * length, length) for rank in range(group.size())]
    # Not ``contiguous``, which is free below autograd: the copies are to be seen.
    parts = [
        part if part.is_contiguous() else part.clone(memory_format=torch.contiguous_format)
        for part in slices
    ]
    received = [torch.empty_like(part) for part in parts]
    dist.all_to_all(received, parts, group=group)
    return torch.cat(received, gather_dim)
