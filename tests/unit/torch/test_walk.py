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
mesh = Deferred("torch.distributed.device_mesh")
accelerator, comm = Deferred("simcoll.torch.accelerator"), Deferred("simcoll.torch.cuda_comm")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


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


METHODS = {
    "_device_types": lambda g: g._device_types,
    "_enable_collectives_timing": lambda g: g._enable_collectives_timing(),
    "_get_backend_name": lambda g: g._get_backend_name(),
    "_get_sequence_number_for_group": lambda g: g._get_sequence_number_for_group(),
    "_has_hooks": lambda g: g._has_hooks(),
    "_register_on_completion_hook": lambda g: g._register_on_completion_hook(print),
    "_set_sequence_number_for_group": lambda g: g._set_sequence_number_for_group(),
    "_wait_for_pending_works": lambda g: g._wait_for_pending_works(),
    "all_gather_single": lambda g: g.all_gather_single(output=torch.ones(2), input=torch.ones(1)),
    "allreduce": lambda g: g.allreduce([torch.ones(1)]),
    "alltoall_base": lambda g: g.alltoall_base(torch.ones(2), torch.ones(2), [], []),
    "barrier": lambda g: g.barrier(),
    "bound_device_id": lambda g: g.bound_device_id,
    "broadcast": lambda g: g.broadcast([torch.ones(1)], dist.BroadcastOptions()),
    "get_group_store": lambda g: g.get_group_store(),
    "group_desc": lambda g: g.group_desc,
    "group_name": lambda g: g.group_name,
    "merge_remote_group": lambda g: g.merge_remote_group(None, 4),
    "monitored_barrier": lambda g: g.monitored_barrier(),
    "name": lambda g: g.name(),
    "set_timeout": lambda g: g.set_timeout(timedelta(seconds=5)),
    "split_group": lambda g: g.split_group([0, 1]),
    "unbox": lambda g: dist.ProcessGroup.unbox(g.boxed()),
}


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_a_group_answer_or_are_refused_by_name(method):
    def body(rank, world_size):
        dist.init_process_group("gloo")
        try:
            answer = METHODS[method](dist.group.WORLD)
            if isinstance(answer, dist.Work):
                answer.wait()
        except ConfigError as error:
            return str(error)
        return ""

    for said in backend.spawn(body, 2).returns:
        assert said == "" or f"ProcessGroup.{method}" in said


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
        assert "rank" in cuda.memory.memory_summary()
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
