"""Every function of torch.distributed on two ranks, with the answers that gloo gives to rank 0."""
# ruff: noqa: PLW0108 - a run replaces functions, which have to be looked up in it

from __future__ import annotations

import inspect
import warnings

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
c10d = Deferred("torch.distributed.distributed_c10d")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


def one(value=1.0):
    return torch.full((1,), value)


def mine():
    return one(dist.get_rank() + 1.0)


def pair():
    return [one(0.0), one(0.0)]


def into(call):
    """The tensor that a call has filled."""

    def answer():
        output = mine()
        call(output)
        return output.tolist()

    return answer


def into_pair(call):
    def answer():
        outputs = pair()
        call(outputs)
        return [tensor.item() for tensor in outputs]

    return answer


def objects(call, listed):
    def answer():
        values = list(listed)
        call(values)
        return values

    return answer


def at_root(values):
    return values if dist.get_rank() == 0 else None


def message(sent, received):
    """Rank 1's part of a message from rank 0 is returned to rank 0, so that all see it."""

    def answer():
        tensor = mine()
        work = (sent if dist.get_rank() == 0 else received)(tensor)
        if hasattr(work, "wait"):
            work.wait()
        dist.broadcast(tensor, 1)
        return tensor.item()

    return answer


def coalesced_gather():
    outputs = [[one(0.0)], [one(0.0)]]
    dist.all_gather_coalesced(outputs, [mine()])
    return [tensor.item() for (tensor,) in outputs]


def batch():
    received = one(0.0)
    peer = 1 - dist.get_rank()
    operations = [dist.P2POp(dist.isend, mine(), peer), dist.P2POp(dist.irecv, received, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received.item()


def object_messages():
    values = [dist.get_rank() + 7]
    if dist.get_rank() == 0:
        dist.send_object_list(values, 1)
    else:
        dist.recv_object_list(values, 0)
    return values


def refused_shrinking():
    with pytest.raises(TypeError, match="does not support shrinking"):
        dist.shrink_group([1])


def another_group():
    group = dist.new_group([0, 1], use_local_synchronization=True, group_desc="walk")
    size, desc = dist.get_world_size(group), group.group_desc
    dist.destroy_process_group(group)
    return size, desc


def named_calls():
    with dist.record_comm("layer"):
        dist.barrier()


FUNCTIONS = {
    "all_gather": (into_pair(lambda out: dist.all_gather(out, mine())), [1.0, 2.0]),
    "all_gather_coalesced": (coalesced_gather, [1.0, 2.0]),
    "all_gather_into_tensor": (
        into(lambda t: dist.all_gather_into_tensor(t.resize_(2), mine())),
        [1.0, 2.0],
    ),
    "all_gather_object": (objects(lambda v: dist.all_gather_object(v, "x"), [0, 0]), ["x", "x"]),
    "all_gather_single": (
        into(lambda t: dist.all_gather_single(t.resize_(2), mine())),
        [1.0, 2.0],
    ),
    "all_reduce": (into(lambda t: dist.all_reduce(t)), [3.0]),
    "all_reduce_coalesced": (into(lambda t: dist.all_reduce_coalesced([t])), [3.0]),
    "all_to_all": (into_pair(lambda out: dist.all_to_all(out, [mine(), mine()])), [1.0, 2.0]),
    "all_to_all_single": (
        into(lambda t: dist.all_to_all_single(t.resize_(2), mine().repeat(2))),
        [1.0, 2.0],
    ),
    "barrier": (lambda: dist.barrier(), None),
    "batch_isend_irecv": (batch, 2.0),
    "broadcast": (into(lambda t: dist.broadcast(t, 1)), [2.0]),
    "broadcast_object_list": (objects(lambda v: dist.broadcast_object_list(v, 1), ["a"]), ["a"]),
    "destroy_process_group": (another_group, (2, "walk")),
    "gather": (lambda: dist.gather(mine(), at_root(pair())), None),
    "gather_object": (lambda: dist.gather_object("x", at_root([0, 0])), None),
    "get_backend": (lambda: dist.get_backend(), "gloo"),
    "get_backend_config": (lambda: dist.get_backend_config(), "cpu:gloo,cuda:gloo"),
    "get_default_backend_for_device": (
        lambda: dist.get_default_backend_for_device("cpu"),
        "gloo",
    ),
    "get_global_rank": (lambda: dist.get_global_rank(dist.group.WORLD, 1), 1),
    "get_group_rank": (lambda: dist.get_group_rank(dist.group.WORLD, 1), 1),
    "get_node_local_rank": (lambda: dist.get_node_local_rank(0), 0),
    "get_pg_count": (lambda: dist.get_pg_count() > 0, True),
    "get_process_group_ranks": (lambda: dist.get_process_group_ranks(None), [0, 1]),
    "get_rank": (lambda: dist.get_rank(), 0),
    "get_world_size": (lambda: dist.get_world_size(), 2),
    "init_process_group": (None, None),
    "irecv": (message(lambda t: dist.isend(t, 1), lambda t: dist.irecv(t, 0)), 1.0),
    "is_backend_available": (
        lambda: [dist.is_backend_available(name) for name in ("gloo", "none")],
        [True, False],
    ),
    "is_gloo_available": (lambda: dist.is_gloo_available(), True),
    "is_initialized": (lambda: dist.is_initialized(), True),
    "is_mpi_available": (lambda: type(dist.is_mpi_available()), bool),
    "is_nccl_available": (lambda: type(dist.is_nccl_available()), bool),
    "is_torchelastic_launched": (lambda: type(dist.is_torchelastic_launched()), bool),
    "is_ucc_available": (lambda: dist.is_ucc_available(), False),
    "is_xccl_available": (lambda: dist.is_xccl_available(), False),
    "isend": (message(lambda t: dist.isend(t, 1), lambda t: dist.irecv(t, 0)), 1.0),
    "monitored_barrier": (lambda: dist.monitored_barrier(), None),
    "new_group": (another_group, (2, "walk")),
    "new_subgroups": (lambda: len(dist.new_subgroups(1)[1]), 2),
    "new_subgroups_by_enumeration": (
        lambda: len(dist.new_subgroups_by_enumeration([[0], [1]], group_desc="walk")[1]),
        2,
    ),
    "record_comm": (named_calls, None),
    "recv": (message(lambda t: dist.send(t, 1), lambda t: dist.recv(t, 0)), 1.0),
    "recv_object_list": (object_messages, [7]),
    "reduce": (into(lambda t: dist.reduce(t, 0)), [3.0]),
    "reduce_scatter": (into(lambda t: dist.reduce_scatter(t, [mine(), mine()])), [3.0]),
    "reduce_scatter_single": (
        into(lambda t: dist.reduce_scatter_single(t, mine().repeat(2))),
        [3.0],
    ),
    "reduce_scatter_tensor": (
        into(lambda t: dist.reduce_scatter_tensor(t, mine().repeat(2))),
        [3.0],
    ),
    "scatter": (into(lambda t: dist.scatter(t, at_root([one(5.0), one(6.0)]))), [5.0]),
    "scatter_object_list": (
        objects(lambda v: dist.scatter_object_list(v, at_root(["a", "b"])), [0]),
        ["a"],
    ),
    "send": (message(lambda t: dist.send(t, 1), lambda t: dist.recv(t, 0)), 1.0),
    "send_object_list": (object_messages, [7]),
    "shrink_group": (refused_shrinking, None),
    "split_group": (
        lambda: dist.split_group(None, [[0], [1]], group_desc="walk").group_desc,
        "walk",
    ),
    "supports_complex": (lambda: c10d.supports_complex(dist.ReduceOp.MAX), False),
}
"""A call of each function, and its answer on rank 0."""
OF_GPUS = {"split_group"}
"""Gloo refuses it, and NCCL does not."""
NEWER = {"gather_into_tensor", "gather_single", "get_backend_impl", "set_timeout"}
"""Functions of PyTorch 2.14, which `test_newer_torch` calls."""


def test_the_walk_has_every_function():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a deprecated class looks like a function
        module = dist.distributed_c10d
        names = {name for name in module.__all__ if inspect.isfunction(getattr(module, name))}
    assert names - NEWER - FUNCTIONS.keys() == set()


@pytest.mark.slow
@pytest.mark.parametrize("shows_gpus", [False, True])
def test_functions_answer_as_gloo_does(shows_gpus):
    def body(rank, world_size):
        dist.init_process_group("gloo", device_id=rank if shows_gpus else None)
        left_out = set() if shows_gpus else OF_GPUS
        calls = {name: call for name, (call, _) in FUNCTIONS.items() if name not in left_out}
        return {name: call() for name, call in calls.items() if call is not None}

    answers = backend.spawn(body, 2, cuda_is_cpu=shows_gpus).returns[0]
    assert answers == {name: FUNCTIONS[name][1] for name in answers}
