"""Every function that a run replaces keeps PyTorch's parameters, and every method of a group answers
or is refused by name.
"""

from __future__ import annotations

import importlib
import inspect
from datetime import timedelta

import pytest

from simcoll.errors import ConfigError
from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
mesh, c10d = Deferred("torch.distributed.device_mesh"), Deferred("torch._C._distributed_c10d")
accelerator, comm = Deferred("simcoll.torch.accelerator"), Deferred("simcoll.torch.cuda_comm")
backend = Deferred("simcoll.torch")

pytestmark = [
    needs_torch,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]


def parameters(function):
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C++
        return None
    return [(parameter.name, parameter.kind) for parameter in signature.parameters.values()]


def test_replaced_functions_keep_names_and_kinds():
    owners = [
        (owner, name)
        for owner, name, _ in (
            *accelerator.accelerator_replacements("h100"),
            *comm.comm_replacements(),
        )
        if callable(getattr(owner, name))
    ]
    owners += [(mesh.DeviceMesh, "__init__"), (dist, "monitored_barrier"), (dist, "split_group")]
    before = [parameters(getattr(owner, name)) for owner, name in owners]
    assert len(owners) > 90

    def body(rank, world_size):
        return [parameters(getattr(owner, name)) for owner, name in owners]

    (during,) = backend.spawn(body, 1, cuda_is_cpu=True).returns
    changed = {
        f"{getattr(owner, '__name__', owner)}.{name}": (old, new)
        for (owner, name), old, new in zip(owners, before, during, strict=True)
        if old is not None and old != new and not inspect.isclass(getattr(owner, name))
    }
    assert changed == {}


def one():
    return torch.ones(1)


def two():
    return torch.ones(2)


def pair():
    return [torch.ones(1), torch.ones(1)]


def at_root(group, values):
    return values if group.rank() == 0 else []


def exchange(group, receive):
    return group.send([one()], 1, 0) if group.rank() == 0 else receive(group)


GROUP = {
    "_allgather_base": lambda g: g._allgather_base(two(), one()),
    "_backend_id": lambda g: g._backend_id(g.BackendType.GLOO),
    "_device_types": lambda g: g._device_types,
    "_enable_collectives_timing": lambda g: g._enable_collectives_timing(),
    "_end_coalescing": lambda g: (
        g._start_coalescing(torch.device("cpu")),
        g._end_coalescing(torch.device("cpu")).wait(),
    ),
    "_get_backend": lambda g: g._get_backend(torch.device("cpu")),
    "_get_backend_name": lambda g: g._get_backend_name(),
    "_get_sequence_number_for_group": lambda g: g._get_sequence_number_for_group(),
    "_has_hooks": lambda g: g._has_hooks(),
    "_id": lambda g: g._id(),
    "_reduce_scatter_base": lambda g: g._reduce_scatter_base(one(), two()),
    "_register_on_completion_hook": lambda g: g._register_on_completion_hook(print),
    "_set_default_backend": lambda g: g._set_default_backend(g.BackendType.GLOO),
    "_set_group_desc": lambda g: g._set_group_desc("walk"),
    "_set_group_name": lambda g: g._set_group_name(g.group_name),
    "_set_sequence_number_for_group": lambda g: g._set_sequence_number_for_group(),
    "_wait_for_pending_works": lambda g: g._wait_for_pending_works(),
    "all_gather_single": lambda g: g.all_gather_single(output=two(), input=one()),
    "all_gather_single_coalesced": lambda g: g.all_gather_single_coalesced([two()], [one()]),
    "all_to_all_single": lambda g: g.all_to_all_single(two(), two(), [], []),
    "allgather": lambda g: g.allgather([pair()], [one()]),
    "allgather_coalesced": lambda g: g.allgather_coalesced([[one()], [one()]], [one()]),
    "allgather_into_tensor_coalesced": lambda g: g.allgather_into_tensor_coalesced(
        [two()], [one()]
    ),
    "allreduce": lambda g: g.allreduce([one()]),
    "allreduce_coalesced": lambda g: g.allreduce_coalesced([one()]),
    "alltoall": lambda g: g.alltoall(pair(), pair()),
    "alltoall_base": lambda g: g.alltoall_base(two(), two(), [], []),
    "barrier": lambda g: g.barrier(),
    "bound_device_id": lambda g: g.bound_device_id,
    "boxed": lambda g: g.boxed(),
    "broadcast": lambda g: g.broadcast([one()], dist.BroadcastOptions()),
    "gather": lambda g: g.gather(at_root(g, [pair()]), [one()]),
    "get_group_store": lambda g: g.get_group_store(),
    "group_desc": lambda g: g.group_desc,
    "group_name": lambda g: g.group_name,
    "merge_remote_group": lambda g: g.merge_remote_group(None, 4),
    "monitored_barrier": lambda g: g.monitored_barrier(),
    "name": lambda g: g.name(),
    "rank": lambda g: g.rank(),
    "recv": lambda g: exchange(g, lambda g: g.recv([one()], 0, 0)),
    "recv_anysource": lambda g: exchange(g, lambda g: g.recv_anysource([one()], 0)),
    "reduce": lambda g: g.reduce([one()]),
    "reduce_scatter": lambda g: g.reduce_scatter([one()], [pair()]),
    "reduce_scatter_single": lambda g: g.reduce_scatter_single(one(), two()),
    "reduce_scatter_single_coalesced": lambda g: g.reduce_scatter_single_coalesced(
        [one()], [two()]
    ),
    "reduce_scatter_tensor_coalesced": lambda g: g.reduce_scatter_tensor_coalesced(
        [one()], [two()]
    ),
    "scatter": lambda g: g.scatter([one()], at_root(g, [pair()])),
    "send": lambda g: exchange(g, lambda g: g.recv([one()], 0, 0)),
    "set_timeout": lambda g: g.set_timeout(timedelta(seconds=5)),
    "size": lambda g: g.size(),
    "split_group": lambda g: g.split_group([0, 1]),
    "unbox": lambda g: dist.ProcessGroup.unbox(g.boxed()),
    "use_pg_for_symm_mem_rendezvous": lambda g: g.use_pg_for_symm_mem_rendezvous,
    # From PyTorch 2.14 on:
    "_add_ephemeral_timeout": lambda g: g._add_ephemeral_timeout(timedelta(seconds=1)),
    "gather_into_tensor": lambda g: g.gather_into_tensor(two(), one(), c10d.GatherOptions()),
    "gather_single": lambda g: g.gather_single(two(), one(), c10d.GatherOptions()),
    "get_backend": lambda g: g.get_backend(torch.device("cpu")),
    "get_reconfigure_handle": lambda g: g.get_reconfigure_handle(),
    "new_window": lambda g: g.new_window(),
    "reconfigure": lambda g: g.reconfigure(),
    "register_abort_hook": lambda g: g.register_abort_hook(1, print),
    "register_post_hook": lambda g: g.register_post_hook(1, repr),
    "register_pre_hook": lambda g: g.register_pre_hook(1, repr),
    "supports_reconfigure": lambda g: g.supports_reconfigure,
    "supports_window": lambda g: g.supports_window,
    "unregister_abort_hook": lambda g: g.unregister_abort_hook(1),
    "unregister_post_hook": lambda g: g.unregister_post_hook(1),
    "unregister_pre_hook": lambda g: g.unregister_pre_hook(1),
    # From PyTorch 2.15 on:
    "supports_abort_hooks": lambda g: g.supports_abort_hooks,
    "supports_completion_hooks": lambda g: g.supports_completion_hooks,
    # These end the use of the group:
    "shutdown": lambda g: g.shutdown(),
    "abort": lambda g: g.abort(),
}
BACKEND = {
    "Options": lambda b: b.Options(),
    "allocate_tensor": lambda b: b.allocate_tensor(2),
    "eager_connect_single_device": lambda b: b.eager_connect_single_device(torch.device("cpu")),
    "mem_allocator": lambda b: b.mem_allocator,
    "memory_stats": lambda b: b.memory_stats(),
    "resume": lambda b: b.resume(),
    "setUsePgForSymmMemRendezvous": lambda b: b.setUsePgForSymmMemRendezvous(True),
    "shrink": lambda b: b.shrink([1]),
    "supports_coalescing": lambda b: b.supports_coalescing,
    "supports_shrinking": lambda b: b.supports_shrinking,
    "supports_splitting": lambda b: b.supports_splitting,
    "supports_tensor_alloc": lambda b: b.supports_tensor_alloc(torch.device("cpu")),
    "supports_time_estimate": lambda b: b.supports_time_estimate,
    # From PyTorch 2.15 on:
    "_supports_time_estimate": lambda b: b._supports_time_estimate,
    "_start_time_estimate": lambda b: b._start_time_estimate(),
    "_end_time_estimate": lambda b: b._end_time_estimate(),
    "suspend": lambda b: b.suspend(),
    # From PyTorch 2.14 on:
    "_set_group_uid": lambda b: b._set_group_uid("0"),
    "allreduce_sparse": lambda b: b.allreduce_sparse([one().to_sparse()]),
    "bound_device_id": lambda b: b.bound_device_id,
    "get_error": lambda b: b.get_error(),
    "merge": lambda b: b.merge(None, None, 0, 4),
    "options": lambda b: b.options,
    "split": lambda b: b.split(None, [0, 1], None),
}
WORK = {
    "_get_duration": lambda w: w._get_duration(),
    "_get_sequence_number": lambda w: w._get_sequence_number(),
    "_get_op_type": lambda w: w._get_op_type(),
    "block_current_stream": lambda w: w.block_current_stream(),
    "boxed": lambda w: w.boxed(),
    "exception": lambda w: w.exception(),
    "get_future": lambda w: w.get_future().wait(),
    "is_completed": lambda w: w.is_completed(),
    "is_success": lambda w: w.is_success(),
    "result": lambda w: w.result(),
    "synchronize": lambda w: w.synchronize(),
    "timeout": lambda w: w.timeout,
    "unbox": lambda w: dist.Work.unbox(w.boxed()),
    "wait": lambda w: w.wait(timedelta(seconds=1)),
}
WORK_REFUSES = {
    "_source_rank": lambda w: w._source_rank(),
    "get_future_result": lambda w: w.get_future_result(),
    "source_rank": lambda w: w.source_rank(),
}
"""Methods that gloo refuses for an all-reduce, too."""
STORE = {
    "add": lambda s: s.add("count", 1),
    "append": lambda s: s.append("text", "x"),
    "barrier": lambda s: s.barrier("here", 2, timedelta(seconds=1)),
    "check": lambda s: s.check(["text"]),
    "clone": lambda s: s.clone().set("key", "value"),
    "compare_set": lambda s: s.compare_set("key", "value", "new"),
    "delete_key": lambda s: s.delete_key("none"),
    "get": lambda s: s.get("text"),
    "has_extended_api": lambda s: s.has_extended_api(),
    "list_keys": lambda s: s.list_keys(),
    "multi_get": lambda s: s.multi_get(["text"]),
    "multi_set": lambda s: s.multi_set(["a", "b"], ["1", "2"]),
    "num_keys": lambda s: s.num_keys(),
    "queue_len": lambda s: s.queue_len("queue"),
    "queue_pop": lambda s: s.queue_pop("queue"),
    "queue_push": lambda s: s.queue_push("queue", "x"),
    "set": lambda s: s.set("key", "value"),
    "set_timeout": lambda s: s.set_timeout(timedelta(seconds=5)),
    "timeout": lambda s: s.timeout,
    "wait": lambda s: s.wait(["text"]),
}
FIRST_OF_STORE = ("append", "set", "queue_push")
"""Others ask for what these write."""
MESH = {
    "_concatenate": lambda m: mesh.DeviceMesh._concatenate([m["dp"], m["tp"]]),
    "_flatten": lambda m: m._flatten("all"),
    "_unflatten": lambda m: m["dp"]._unflatten(0, (2, 1), ("a", "b")),
    "device_type": lambda m: m.device_type,
    "from_group": lambda _: mesh.DeviceMesh.from_group(dist.group.WORLD, "cpu"),
    "get_all_groups": lambda m: m.get_all_groups(),
    "get_coordinate": lambda m: m.get_coordinate(),
    "get_group": lambda m: m.get_group(mesh_dim="dp"),
    "get_local_rank": lambda m: m.get_local_rank("tp"),
    "get_rank": lambda m: m.get_rank(),
    "mesh": lambda m: m.mesh,
    "mesh_dim_names": lambda m: m.mesh_dim_names,
    "ndim": lambda m: m.ndim,
    "shape": lambda m: m.shape,
    "size": lambda m: m.size(mesh_dim=1),
    # From PyTorch 2.15 on; it ends the use of the groups:
    "abort": lambda m: m.abort() if hasattr(m, "abort") else None,
}


def members(owner):
    """The names of a class, without those that Python and pybind11 give every class."""
    constants = {"BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL"}
    return {
        name
        for name in dir(owner)
        if not name.startswith(("__", "_pybind11", "_start_coalescing", "_register_backend"))
    } - constants


def test_the_walk_has_every_name():
    assert members(c10d.ProcessGroup) - GROUP.keys() == set()
    assert members(c10d.Backend) - GROUP.keys() - BACKEND.keys() == set()
    assert members(c10d.Work) - WORK.keys() - WORK_REFUSES.keys() == set()
    assert members(c10d.Store) - STORE.keys() == set()
    public = {name for name in members(mesh.DeviceMesh) if not name.startswith("_")}
    assert public - MESH.keys() == set()


def refusals(calls, subject, owner):
    """The errors of calls, each of which has to name its method."""
    texts, standard = {}, getattr(c10d, owner, mesh)
    for name, call in calls.items():
        if standard is not mesh and not hasattr(standard, name):
            continue  # of a newer PyTorch
        try:
            answer = call(subject)
            if isinstance(answer, dist.Work):
                answer.wait()
        except ConfigError as error:
            texts[name] = str(error)
    return {name: text for name, text in texts.items() if f"{owner}.{name}" not in text}, set(texts)


NEWER = {
    "get_reconfigure_handle",
    "merge",
    "new_window",
    "reconfigure",
    "register_abort_hook",
    "split",
}
"""What a run refuses of PyTorch 2.14."""


@pytest.mark.slow
def test_every_method_of_a_group_answers_or_is_refused_by_name():
    def body(rank, world_size):
        dist.init_process_group("gloo")
        return refusals(GROUP, dist.new_group(), "ProcessGroup")

    for obscure, refused in backend.spawn(body, 2).returns:
        assert obscure == {}
        assert refused - NEWER == {"_register_on_completion_hook", "merge_remote_group"}


@pytest.mark.slow
def test_every_method_of_a_backend_answers_or_is_refused_by_name():
    def body(rank, world_size):
        dist.init_process_group("gloo")
        backend_of_cpu = dist.new_group()._get_backend(torch.device("cpu"))
        calls = {name: GROUP[name] for name in GROUP if hasattr(c10d.Backend, name)}
        found, refused = refusals({**BACKEND, **calls}, backend_of_cpu, "Backend")
        return [name for name in found if "ProcessGroup." not in found[name]], refused

    for obscure, refused in backend.spawn(body, 2).returns:
        assert obscure == []
        assert refused - NEWER - {"_register_on_completion_hook"} == {
            "allocate_tensor",
            "mem_allocator",
            "setUsePgForSymmMemRendezvous",
            "shrink",
        }


def test_every_method_of_works_stores_and_meshes():
    def body(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        work = dist.all_reduce(torch.ones(2, device="cuda"), async_op=True)
        work.wait()
        found = [refusals(WORK, work, "Work")]
        for call in WORK_REFUSES.values():
            with pytest.raises(RuntimeError):
                call(work)
        store = dist.distributed_c10d._get_default_store()
        order = [*FIRST_OF_STORE, *(name for name in STORE if name not in FIRST_OF_STORE)]
        found.append(refusals({name: STORE[name] for name in order}, store, "Store"))
        grid = mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
        found.append(refusals(MESH, grid, "DeviceMesh"))
        return found

    for found in backend.spawn(body, 2, cuda_is_cpu=True).returns:
        assert found == [({}, set())] * 3


def test_device_meshes_and_versions():
    def body(rank, world_size):
        dist.init_process_group("nccl")
        made = mesh.DeviceMesh(device_type="cuda", mesh=[0, 1])
        assert made.mesh.tolist() == [0, 1]
        assert torch.cuda.nccl.version() >= (2, 27)
        stream = torch.cuda.Stream(device=torch.device("cuda", 0), priority=-1)
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert isinstance(stream, torch.cuda.Stream)
        assert stream.priority == -1
        with torch.cuda.device(1):
            assert torch.cuda.current_device() == 1
        torch.cuda.set_device(torch.cuda.device(1))
        return torch.cuda.current_device(), torch.cuda.memory_allocated(device="cuda:0") >= 0

    assert backend.spawn(body, 2, cuda_is_cpu=True).returns == ((1, True),) * 2


def test_functions_have_their_values_where_they_are_defined():
    """Programs also write torch.cuda.random.get_rng_state, as Megatron-LM does."""

    def body(rank, world_size):
        torch.cuda.random.manual_seed(3)
        state = torch.cuda.random.get_rng_state(device="cuda:0")
        calls = []
        torch.cuda._lazy_call(lambda: calls.append(torch.cuda.default_generators[1].get_state()))
        assert torch.equal(calls[0], state)
        assert torch.cuda.memory.memory_allocated() == torch.cuda.memory_allocated()
        with pytest.raises(IndexError):
            torch.cuda.default_generators[2]
        return len(torch.cuda.default_generators)

    assert backend.spawn(body, 2, cuda_is_cpu=True).returns == (2, 2)
    assert len(torch.cuda.default_generators) == torch.cuda.device_count()


@pytest.mark.parametrize("kind", ["tensor", "array", "tuple"])
def test_split_sizes_of_any_sequence(kind):
    def body(rank, world_size):
        dist.init_process_group("gloo")
        sizes = torch.tensor([1, 2])
        mine = {"tensor": sizes, "array": sizes.numpy(), "tuple": (1, 2)}[kind]
        received = torch.empty(2 * (rank + 1))
        dist.all_to_all_single(received, torch.arange(3.0), [rank + 1] * 2, mine)
        return received.tolist()

    assert backend.spawn(body, 2).returns == ([0.0, 0.0], [1.0, 2.0, 1.0, 2.0])


def test_copies_between_gpus():
    def body(rank, world_size):
        parts = torch.cuda.comm.scatter(torch.arange(4.0), [0, 1])
        total = torch.cuda.comm.reduce_add(
            [torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")]
        )
        copies = torch.cuda.comm.broadcast(torch.ones(2, device="cuda"), devices=[0, 1])
        whole = torch.cuda.comm.gather(parts, destination=0)
        return [part.tolist() for part in parts], total.tolist(), len(copies), whole.tolist()

    (first, _) = backend.spawn(body, 2, cuda_is_cpu=True).returns
    assert first == ([[0.0, 1.0], [2.0, 3.0]], [2.0, 2.0], 2, [0.0, 1.0, 2.0, 3.0])


ARGUMENTS = {
    "set_stream": lambda: (torch.cuda.current_stream(),),
    "stream": lambda: (torch.cuda.current_stream(),),
    "StreamContext": lambda: (None,),
    "can_device_access_peer": lambda: (0, 1),
    "device": lambda: (0,),
    "device_of": lambda: (torch.ones(1),),
    "set_device": lambda: (0,),
    "device_index": lambda: (0,),
    "set_device_idx": lambda: (0,),
    "set_device_index": lambda: (0,),
    "manual_seed": lambda: (1,),
    "manual_seed_all": lambda: (1,),
    "set_rng_state": lambda: (torch.cuda.get_rng_state(),),
    "set_rng_state_all": lambda: ([torch.cuda.get_rng_state()],),
    "set_per_process_memory_fraction": lambda: (0.5,),
    "set_sync_debug_mode": lambda: ("warn",),
    "ExternalStream": lambda: (0,),
    "caching_allocator_alloc": lambda: (16,),
    "graph": lambda: (None,),
    "make_graphed_callables": lambda: (None, ()),
}
"""Arguments of functions of PyTorch's GPU modules that need some."""


@pytest.mark.parametrize("module", ["torch.cuda", "torch.accelerator"])
def test_functions_of_a_gpu_answer_or_are_refused_by_name(module):
    owner = importlib.import_module(module)

    def body(rank, world_size):
        obscure, refused, count = {}, [], 0
        for name in owner.__all__:
            function = getattr(owner, name, None)
            if not callable(function) or name.endswith(("Tensor", "Storage", "Error")):
                continue
            count += 1
            try:
                function(*ARGUMENTS.get(name, tuple)())
            except ConfigError as error:
                refused.append(name)
                if name not in str(error):
                    obscure[name] = error
            except (AssertionError, AttributeError, ImportError, RuntimeError, TypeError) as error:
                obscure[name] = error
        return obscure, refused, count

    obscure, refused, count = backend.spawn(body, 1, cuda_is_cpu=True).returns[0]
    assert obscure == {}
    assert count > 20
    assert len(refused) < count / 3


def test_settings_and_generators_of_gpus():
    def body(rank, world_size):
        cuda = torch.cuda
        cuda.set_sync_debug_mode("warn" if rank else "error")
        cuda.set_per_process_memory_fraction(0.25)
        generator = torch.Generator(device="cuda:1").manual_seed(3)
        assert torch.equal(
            torch.randn(2, device="cuda", generator=generator),
            torch.randn(2, generator=torch.Generator().manual_seed(3)),
        )
        with pytest.raises(ConfigError, match="get_offset"):
            generator.get_offset()
        cuda.default_generators[1].manual_seed(5)
        assert "device ID 0" in cuda.memory.memory_summary()
        with pytest.raises(ConfigError, match=r"torch.cuda.nccl.all_reduce"):
            cuda.nccl.all_reduce([torch.ones(1)])
        assert not cuda.tunable.is_enabled()
        return (
            cuda.get_sync_debug_mode(),
            cuda.get_per_process_memory_fraction(),
            generator.device == torch.device("cuda", 1),
            len(cuda.default_generators),
            cuda.initial_seed(),
        )

    returns = backend.spawn(body, 2, cuda_is_cpu=True).returns
    assert returns == ((2, 0.25, True, 2, 5), (1, 0.25, True, 2, 5))
