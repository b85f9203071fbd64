"""Collectives as operators of the dispatcher: seen by modes, and by tensor subclasses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
c10d = Deferred("torch._C._distributed_c10d")
python_dispatch = Deferred("torch.utils._python_dispatch")
debug = Deferred("torch.distributed.tensor.debug")
two_tensor = Deferred("torch.testing._internal.two_tensor")
functional = Deferred("torch.distributed._functional_collectives")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


def on_ranks(body, nprocs=2):
    def program(rank, world_size):
        dist.init_process_group("gloo")
        return body(rank, world_size)

    return backend.spawn(program, nprocs).returns


CALLS = {
    "allreduce_": lambda t: dist.all_reduce(t.x, dist.ReduceOp.MAX),
    "broadcast_": lambda t: dist.broadcast(t.x, 1),
    "reduce_": lambda t: dist.reduce(t.x, 0),
    "allgather_": lambda t: dist.all_gather(t.parts, t.x),
    "_allgather_base_": lambda t: dist.all_gather_single(t.y, t.x),
    "_reduce_scatter_base_": lambda t: dist.reduce_scatter_single(t.x, t.y),
    "reduce_scatter_": lambda t: dist.reduce_scatter(t.x, t.parts, dist.ReduceOp.MIN),
    "alltoall_base_": lambda t: dist.all_to_all_single(t.y, t.y.clone()),
    "alltoall_": lambda t: dist.all_to_all(t.parts, [part.clone() for part in t.parts]),
    "gather_": lambda t: dist.gather(t.x, t.parts if dist.get_rank() == 0 else None),
    "scatter_": lambda t: dist.scatter(t.x, t.parts if dist.get_rank() == 0 else None),
    "barrier": lambda _: dist.barrier(),
    "send": lambda t: dist.send(t.x, 1) if dist.get_rank() == 0 else dist.recv(t.x, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("operator", CALLS)
def test_a_mode_sees_every_collective_and_changes_nothing(operator):
    def body(rank, world_size):
        seen = []

        class Log(python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func._schema.name)
                return func(*args, **(kwargs or {}))

        def tensors():
            return SimpleNamespace(
                x=torch.full((2,), rank + 1.0),
                y=torch.arange(4.0) + rank,
                parts=[torch.arange(2.0) + rank, torch.arange(2.0) * rank],
            )

        plain, watched = tensors(), tensors()
        CALLS[operator](plain)
        with Log():
            CALLS[operator](watched)
        values = [torch.cat([t.x, t.y, *t.parts]).tolist() for t in (plain, watched)]
        assert values[0] == values[1]
        return [name for name in seen if name.startswith("c10d::")]

    ranks = on_ranks(body)
    assert ranks[0] == [f"c10d::{operator}"]
    assert ranks[1] == (["c10d::recv_"] if operator == "send" else ranks[0])


@pytest.mark.slow
def test_debug_mode_counts_collectives():
    def body(rank, world_size):
        with debug.CommDebugMode() as mode:
            dist.all_reduce(torch.ones(2))
            dist.all_reduce(torch.ones(2))
            dist.all_gather_single(torch.empty(4), torch.ones(2))
        return mode.get_total_counts()

    assert on_ranks(body) == (3, 3)


def test_subclasses_take_collectives_apart():
    def body(rank, world_size):
        pair = two_tensor.TwoTensor(torch.ones(2), torch.full((2,), 5.0 + rank))
        work = dist.all_reduce(pair, dist.ReduceOp.MAX, async_op=True)
        work.wait()
        dist.broadcast(pair, 0)
        return pair.a.tolist(), pair.b.tolist()

    assert on_ranks(body) == (([1.0, 1.0], [6.0, 6.0]),) * 2


def test_programs_may_call_the_operators():
    def body(rank, world_size):
        x = torch.full((2,), rank + 1.0)
        op = torch.classes.c10d.ReduceOp()
        _, work = torch.ops.c10d.allreduce_([x], dist.group.WORLD.boxed(), op, None, False, -1)
        dist.Work.unbox(work).wait()
        return x.tolist()

    assert on_ranks(body) == ([3.0, 3.0],) * 2


@pytest.mark.parametrize(("op", "value"), [("sum", 3.0), ("max", 2.0), ("avg", 1.5)])
def test_functional_reduce_scatter_into_a_tensor_knows_its_reduction(op, value):
    def body(rank, world_size):
        out, source = torch.zeros(2), torch.full((4,), rank + 1.0)
        name = dist.group.WORLD.group_name
        result = torch.ops._c10d_functional.reduce_scatter_tensor_out(
            source, op, world_size, name, out=out
        )
        torch.ops._c10d_functional.wait_tensor(result)
        return out.tolist()

    assert on_ranks(body) == ([value] * 2,) * 2


def test_functional_collectives_take_a_fake_group():
    """Its backend, written in C++, has no methods for several tensors in Python."""

    def program(_rank, _world_size):
        dist.init_process_group("fake", rank=0, world_size=4)
        group, parts = dist.group.WORLD, [torch.ones(4, 2), torch.ones(8)]
        gathers = functional.all_gather_into_tensor_coalesced(parts, group)
        sums = functional.reduce_scatter_tensor_coalesced(parts, "sum", [0, 0], group)
        results = [functional.all_gather_tensor(parts[0], 0, group), *gathers, *sums]
        return [tuple(result.shape) for result in results]

    (shapes,) = backend.spawn(program, 1).returns
    assert shapes == [(16, 2), (16, 2), (32,), (1, 2), (2,)]


def test_a_mode_finds_the_group_that_pytorch_knows():
    """``ProcessGroup.unbox`` of an operator's argument, as PyTorch's ``LocalTensorMode`` asks."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Ranks(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "c10d":
                group = dist.ProcessGroup.unbox(args[1])
                members.append((dist.get_process_group_ranks(group), group is dist.group.WORLD))
            return func(*args, **(kwargs or {}))

    members = []

    def program(_rank, _size):
        dist.init_process_group("gloo")
        with Ranks():
            dist.all_reduce(torch.ones(2))

    unbox = vars(dist.ProcessGroup)["unbox"]
    backend.spawn(program, 2)
    assert members == [([0, 1], True)] * 2
    assert vars(dist.ProcessGroup)["unbox"] is unbox
