"""Statements on signatures, backends, initialisation and debugging."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from simcoll.testing.conformance.torch_session import TorchSession, states


@states("SIG-01", "SIG-04", "BK-12")
def availability(s: TorchSession) -> None:
    """Functions that tell what is there return bools."""
    for name in ["available", "initialized", "mpi_available", "nccl_available", "gloo_available"]:
        s.same(type(getattr(s.dist, f"is_{name}")()), bool)
    s.same(type(s.dist.is_xccl_available()), bool)
    s.same(type(s.dist.is_torchelastic_launched()), bool)


@states("SIG-02")
def signature_of_init(s: TorchSession) -> None:
    """Order of the parameters of init_process_group."""
    s.parameters(
        s.dist.init_process_group,
        "backend init_method timeout world_size rank store group_name pg_options device_id",
    )


@states("SIG-03", "SIG-11")
def signatures_of_meshes(s: TorchSession) -> None:
    """Parameters and methods of meshes."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    s.parameters(init_device_mesh, "device_type mesh_shape mesh_dim_names")
    s.parameters(DeviceMesh.__init__, "device_type mesh mesh_dim_names")
    s.members(
        DeviceMesh, "from_group get_all_groups get_coordinate get_group get_local_rank get_rank"
    )


@states("SIG-05")
def default_backend(s: TorchSession) -> None:
    """The default backend of a device is a name."""
    s.same(type(s.dist.get_default_backend_for_device("cpu")), str)


@states("SIG-06")
def signature_of_backend(s: TorchSession) -> None:
    """Parameters of register_backend."""
    s.parameters(s.dist.Backend.register_backend, "name func extended_api devices")


@states("SIG-07", "SIG-08", "SIG-10")
def signatures_of_groups(s: TorchSession) -> None:
    """Functions of groups."""
    for name in ["get_backend", "get_rank", "get_world_size", "destroy_process_group"]:
        s.parameters(getattr(s.dist, name), "group")
    s.parameters(s.dist.get_group_rank, "group global_rank")
    s.parameters(s.dist.get_global_rank, "group group_rank")
    s.parameters(s.dist.get_process_group_ranks, "group")


@states("SIG-09")
def signature_of_new_group(s: TorchSession) -> None:
    """Parameters of new_group."""
    names = "ranks timeout backend pg_options use_local_synchronization group_desc device_id"
    s.parameters(s.dist.new_group, names)


@states("SIG-12", "SIG-13", "SIG-14")
def signatures_of_messages(s: TorchSession) -> None:
    """Functions that send and receive."""
    for name in ("send", "isend"):
        s.parameters(getattr(s.dist, name), "tensor dst group tag group_dst")
    for name in ("recv", "irecv"):
        s.parameters(getattr(s.dist, name), "tensor src group tag group_src")
    s.parameters(s.dist.send_object_list, "object_list dst group device group_dst")
    s.parameters(s.dist.recv_object_list, "object_list src group device group_src")
    s.parameters(s.dist.batch_isend_irecv, "p2p_op_list")
    s.parameters(s.dist.P2POp.__init__, "op tensor peer group tag group_peer")


SIGNATURES = {
    "SIG-15": {
        "broadcast": "tensor src group async_op group_src",
        "broadcast_object_list": "object_list src group device group_src",
    },
    "SIG-16": {
        "all_reduce": "tensor op group async_op",
        "reduce": "tensor dst op group async_op group_dst",
    },
    "SIG-17": {
        "all_gather": "tensor_list tensor group async_op",
        "all_gather_into_tensor": "output_tensor input_tensor group async_op",
        "all_gather_object": "object_list obj group",
    },
    "SIG-18": {
        "gather": "tensor gather_list dst group async_op group_dst",
        "gather_object": "obj object_gather_list dst group group_dst",
    },
    "SIG-19": {
        "scatter": "tensor scatter_list src group async_op group_src",
        "scatter_object_list": (
            "scatter_object_output_list scatter_object_input_list src group group_src"
        ),
    },
    "SIG-20": {
        "reduce_scatter": "output input_list op group async_op",
        "reduce_scatter_tensor": "output input op group async_op",
    },
    "SIG-21": {
        "all_to_all_single": "output input output_split_sizes input_split_sizes group async_op",
        "all_to_all": "output_tensor_list input_tensor_list group async_op",
    },
    "SIG-22": {
        "barrier": "group async_op device_ids",
        "monitored_barrier": "group timeout wait_all_ranks",
    },
}


@states(*SIGNATURES)
def signatures_of_collectives(s: TorchSession) -> None:
    """Parameters of the collectives."""
    for functions in SIGNATURES.values():
        for name, parameters in functions.items():
            s.parameters(getattr(s.dist, name), parameters)


@states("SIG-23")
def methods_of_work(s: TorchSession) -> None:
    """Methods of works."""
    s.members(
        s.dist.Work,
        "boxed exception get_future get_future_result is_completed is_success result source_rank "
        "synchronize unbox wait",
    )


@states("SIG-24")
def operators(s: TorchSession) -> None:
    """Names of reductions."""
    s.members(s.dist.ReduceOp, "SUM PRODUCT MIN MAX BAND BOR BXOR PREMUL_SUM AVG")
    s.members(s.dist, "reduce_op")


@states("SIG-25", "SIG-27")
def methods_of_stores(s: TorchSession) -> None:
    """Methods of stores."""
    s.members(
        s.dist.Store,
        "add append check clone compare_set delete_key get has_extended_api multi_get multi_set "
        "num_keys queue_len queue_pop queue_push set set_timeout timeout wait",
    )
    s.members(s.dist.FileStore, "path")
    s.members(s.dist.PrefixStore, "underlying_store")


@states("SIG-26")
def members_of_tcp_stores(s: TorchSession) -> None:
    """Properties of TCP stores."""
    s.members(s.dist.TCPStore, "host port libuvBackend")


@states("SIG-28")
def signature_of_breakpoint(s: TorchSession) -> None:
    """The breakpoint takes a rank."""
    s.parameters(s.dist.breakpoint, "rank")


@states("SIG-29")
def signature_of_scatter_on_gpus(s: TorchSession) -> None:
    """Parameters of torch.cuda.comm.scatter."""
    from torch.cuda import comm

    s.parameters(comm.scatter, "tensor devices chunk_sizes dim streams out")


@states("SIG-30")
def options_of_the_launcher(s: TorchSession) -> None:
    """Options of torch.distributed.run, and parameters of spawn."""
    from torch.distributed.run import get_args_parser
    from torch.multiprocessing import spawn

    text = get_args_parser().format_help().replace("_", "-")
    for option in ["nproc-per-node", "nnodes", "node-rank", "master-addr", "master-port"]:
        s.same(f"--{option}" in text, True)
    s.parameters(spawn, "fn args nprocs")


@states("BK-05", "BK-06")
def names_of_backends(s: TorchSession) -> None:
    """Names of backends are strings in lower case."""
    s.same(s.dist.Backend("GLOO"), "gloo")
    s.same(s.dist.Backend.GLOO, "gloo")
    s.same(s.dist.Backend("unregistered"), "unregistered")
    s.raises(ValueError, s.dist.Backend, 7)


@states("BK-10")
def backends_of_devices(s: TorchSession) -> None:
    """Default backends."""
    s.same(s.dist.get_default_backend_for_device("cpu"), "gloo")
    s.same(s.dist.get_default_backend_for_device("cuda"), "nccl")
    s.raises(ValueError, s.dist.get_default_backend_for_device, "ipu")


@states("BK-11")
def launched_by_elastic(s: TorchSession) -> None:
    """Torchelastic is known by a variable."""
    s.same(s.dist.is_torchelastic_launched(), "TORCHELASTIC_RUN_ID" in os.environ)


@states("IN-01", "IN-02", "IN-23", "IN-24", "IN-27")
def ends_and_begins_again(s: TorchSession) -> None:
    """Between two default groups there is none."""
    dist = s.dist
    s.same((dist.is_initialized(), dist.group.WORLD is None), (True, False))
    dist.barrier()
    dist.destroy_process_group()
    try:
        s.same((dist.is_initialized(), dist.group.WORLD), (False, None))
        text = s.raises(ValueError, dist.all_reduce, s.numbers())
        s.same("init_process_group" in text, True)
        s.raises(ValueError, dist.barrier)
        s.raises(AssertionError, dist.destroy_process_group)
    finally:
        s.backend.initialise()
    s.same(dist.is_initialized(), True)


@states("IN-04")
def second_initialisation(s: TorchSession) -> None:
    """A second initialisation is refused."""
    s.raises(ValueError, s.dist.init_process_group, "gloo", rank=s.rank, world_size=s.size)


def _without_group(s: TorchSession, check: Any) -> None:
    """Run a check while there is no default group."""
    s.dist.barrier()
    s.dist.destroy_process_group()
    try:
        check()
    finally:
        s.backend.initialise()


@states("IN-05", "IN-06", "IN-16")
def wrong_initialisations(s: TorchSession) -> None:
    """Arguments that exclude each other, are missing, or have a wrong type."""

    def check() -> None:
        begin, store = s.dist.init_process_group, s.dist.HashStore()
        options = {"rank": 0, "world_size": 1, "store": store}
        refusals = (AssertionError, ValueError)
        s.raises(refusals, begin, "gloo", init_method="env://", **options)
        s.raises(refusals, begin, "gloo", store=store)
        s.raises(TypeError, begin, "gloo", timeout=5, **options)
        s.same(s.dist.is_initialized(), False)

    _without_group(s, check)


@states("IN-14", "IN-10", "IN-09")
def wrong_methods(s: TorchSession) -> None:
    """Unknown URL schemes, and URLs and environments without a rank."""

    def check() -> None:
        begin = s.dist.init_process_group
        s.raises(RuntimeError, begin, "gloo", init_method="pigeon://", rank=0, world_size=1)
        s.raises(ValueError, begin, "gloo", init_method="tcp://localhost:1")
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        variables = {name: os.environ.pop(name) for name in names if name in os.environ}
        try:
            s.same("RANK" in s.raises(ValueError, begin, "gloo"), True)
        finally:
            os.environ.update(variables)

    _without_group(s, check)


@states("IN-11", "IN-12")
def file_method(s: TorchSession) -> None:
    """A file as meeting point is created, and removed at the end."""

    def check() -> None:
        path = os.path.join(s.folder, f"file-{s.backend.initialisations}")  # noqa: PTH118
        options = {"rank": s.rank, "world_size": s.size}
        s.dist.init_process_group(s.backend.name, init_method=f"file://{path}", **options)
        s.same(os.path.exists(path), True)  # noqa: PTH110
        s.dist.barrier()
        s.dist.destroy_process_group()

    _without_group(s, check)


@states("IN-17")
def backend_in_lower_case(s: TorchSession) -> None:
    """The name of the default group's backend."""
    s.same(s.dist.get_backend(), s.dist.get_backend().lower())


@states("IN-15")
def default_timeout(s: TorchSession) -> None:
    """Thirty minutes."""
    from torch.distributed.constants import default_pg_timeout

    s.same(default_pg_timeout, timedelta(minutes=30))


@states("DB-01")
def debug_levels(s: TorchSession) -> None:
    """Levels of debugging by name; others are errors."""
    level = os.environ.get("TORCH_DISTRIBUTED_DEBUG")
    try:
        for text in ("OFF", "info", "Detail"):
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = text
            s.dist.set_debug_level_from_env()
            s.same(s.dist.get_debug_level().name, text.upper())
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "LOUD"
        s.raises((ValueError, RuntimeError), s.dist.set_debug_level_from_env)
    finally:
        os.environ.pop("TORCH_DISTRIBUTED_DEBUG")
        if level is not None:
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
        s.dist.set_debug_level_from_env()


@states("LA-03")
def node_local_rank(s: TorchSession) -> None:
    """LOCAL_RANK, else the fallback, else an error."""
    variable = os.environ.pop("LOCAL_RANK", None)
    try:
        s.same(s.dist.get_node_local_rank(fallback_rank=7), 7)
        s.raises(RuntimeError, s.dist.get_node_local_rank)
        os.environ["LOCAL_RANK"] = "3"
        s.same(s.dist.get_node_local_rank(), 3)
    finally:
        os.environ.pop("LOCAL_RANK", None)
        if variable is not None:
            os.environ["LOCAL_RANK"] = variable
