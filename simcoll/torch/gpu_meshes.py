"""Ways of DTensor that depend on the device type of a mesh, for meshes of simulated GPUs.

PyTorch's own code reads the CPU as the type of such a mesh, since it would choose kernels of CUDA
by it. Where it chooses collectives by it, it is to choose those of GPUs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import _functional_collectives as functional
from torch.distributed import device_mesh
from torch.distributed.tensor import _collective_utils, placement_types
from torch.distributed.tensor._collective_utils import MeshTopoInfo

from simcoll.torch.accelerator import gpu_count
from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks
from simcoll.torch.tensor_devices import GpuMeshName

__all__ = ["gpu_mesh_replacements"]


@for_ranks
def _shard_dim_alltoall(
    _thread: RankThread,
    standard: Any,
    input: torch.Tensor,  # noqa: A002  # PyTorch's name
    gather_dim: int,
    shard_dim: int,
    mesh: Any,
    mesh_dim: int,
) -> Any:
    """Shards of one dimension in place of those of another; on CPUs PyTorch gathers all of them,
    for want of gloo's ``all_to_all``.
    """
    if not isinstance(mesh._device_type, GpuMeshName):
        return standard(input, gather_dim, shard_dim, mesh, mesh_dim)
    group = functional._group_or_group_name(functional._resolve_group((mesh, mesh_dim)))
    return torch.ops._dtensor.shard_dim_alltoall(input, gather_dim, shard_dim, group)


@for_ranks
def _devices_per_host(_thread: RankThread, standard: Any, device_type: str) -> Any:
    return gpu_count() if isinstance(device_type, GpuMeshName) else standard(device_type)


def _topologies() -> Any:
    """``MeshTopoInfo.build_from_mesh``, whose bandwidths and latencies make the costs by which
    DTensor chooses placements: with the GPUs of a node, where PyTorch remembers one host for each
    of its equal meshes.
    """
    remembered: dict[tuple[Any, int], MeshTopoInfo] = {}

    @for_ranks
    def build_from_mesh(_thread: RankThread, standard: Any, mesh: Any) -> MeshTopoInfo:
        if not isinstance(mesh._device_type, GpuMeshName):
            of_cpus: MeshTopoInfo = standard(mesh)
            return of_cpus
        key = mesh, gpu_count()
        if key not in remembered:
            remembered[key] = standard.__wrapped__(mesh)
        return remembered[key]

    return staticmethod(build_from_mesh(MeshTopoInfo.build_from_mesh))


def gpu_mesh_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of what depends on a mesh's device type, where scripts see
    GPUs.
    """
    hosts, per_host = device_mesh._MeshEnv, "num_devices_per_host"
    exchange = _shard_dim_alltoall(_collective_utils.shard_dim_alltoall)
    return [
        *(
            (owner, "shard_dim_alltoall", exchange)
            for owner in (_collective_utils, placement_types)
        ),
        (hosts, per_host, staticmethod(_devices_per_host(getattr(hosts, per_host)))),
        (MeshTopoInfo, "build_from_mesh", _topologies()),
    ]
