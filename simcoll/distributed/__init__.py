"""The programming interface: torch.distributed's names and semantics on the emulator.

Rank programs, groups, collectives and the stores that ranks meet in live here. What a collective does does not: that is a
schedule, played by the emulator.
"""

from __future__ import annotations

from simcoll.distributed import distributed_c10d
from simcoll.distributed.api.backends import (
    Backend,
    get_default_backend_for_device,
    get_node_local_rank,
    is_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
    is_xccl_available,
)
from simcoll.distributed.api.collectives import (
    all_gather,
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
)
from simcoll.distributed.api.debug import (
    DebugLevel,
    breakpoint,  # noqa: A004  # torch's name
    get_debug_level,
    monitored_barrier,
    set_debug_level,
    set_debug_level_from_env,
)
from simcoll.distributed.api.device_mesh import DeviceMesh, init_device_mesh
from simcoll.distributed.api.groups import (
    GroupMember,
    ProcessGroup,
    get_backend,
    get_backend_config,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    is_initialized,
)
from simcoll.distributed.api.initialization import init_process_group
from simcoll.distributed.api.making_groups import (
    destroy_process_group,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
)
from simcoll.distributed.api.object_collectives import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from simcoll.distributed.api.point_to_point import P2POp, batch_isend_irecv, irecv, isend, recv, send
from simcoll.distributed.api.reductions import ReduceOp, deprecated_reduce_op, premul_sum
from simcoll.distributed.runtime.work import Future, Work
from simcoll.distributed.start.launched import run_rank
from simcoll.distributed.start.spawning import RunResult, compute, emulated_time, flight_record, spawn
from simcoll.distributed.stores import (
    DistBackendError,
    DistError,
    DistNetworkError,
    DistStoreError,
    FileStore,
    HashStore,
    PrefixStore,
    QueueEmptyError,
    Store,
    TCPStore,
)

__all__ = [
    "Backend",
    "DebugLevel",
    "DeviceMesh",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "FileStore",
    "Future",
    "GroupMember",
    "HashStore",
    "P2POp",
    "PrefixStore",
    "ProcessGroup",
    "QueueEmptyError",
    "ReduceOp",
    "RunResult",
    "Store",
    "TCPStore",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "breakpoint",
    "broadcast",
    "broadcast_object_list",
    "compute",
    "destroy_process_group",
    "distributed_c10d",
    "emulated_time",
    "flight_record",
    "gather",
    "gather_object",
    "get_backend",
    "get_backend_config",
    "get_debug_level",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_device_mesh",
    "init_process_group",
    "irecv",
    "is_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_xccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "premul_sum",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "run_rank",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_debug_level",
    "set_debug_level_from_env",
    "spawn",
]


def __getattr__(name: str) -> object:
    if name == "reduce_op":
        return deprecated_reduce_op()
    raise AttributeError(f"module 'simcoll.distributed' has no attribute {name!r}")
