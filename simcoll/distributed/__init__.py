"""The programming interface: torch.distributed's names and semantics on the emulator.

Rank programs, groups, collectives and the stores that ranks meet in live here. What a collective does does not: that is a
schedule, played by the emulator.
"""

from __future__ import annotations

from simcoll.distributed.backends import (
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
from simcoll.distributed.collectives import (
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
from simcoll.distributed.groups import (
    GroupMember,
    ProcessGroup,
    destroy_process_group,
    get_backend,
    get_backend_config,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    is_initialized,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
)
from simcoll.distributed.initialize import init_process_group
from simcoll.distributed.point_to_point import P2POp, batch_isend_irecv, irecv, isend, recv, send
from simcoll.distributed.reduce_op import ReduceOp, premul_sum
from simcoll.distributed.spawn import Result, compute, emulated_time, flight_record, spawn
from simcoll.distributed.work import Future, Work
