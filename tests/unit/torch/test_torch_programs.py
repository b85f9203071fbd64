"""PyTorch programs on the backend ``simcoll``: what they compute is compared with the same
computation without distribution.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import simcoll
from tests.support.deferred import Deferred, needs_torch

torch, nn, dist = Deferred("torch"), Deferred("torch.nn"), Deferred("torch.distributed")
c10d = Deferred("torch.distributed.distributed_c10d")
checkpoint = Deferred("torch.distributed.checkpoint")
device_mesh = Deferred("torch.distributed.device_mesh")
fsdp = Deferred("torch.distributed.fsdp")
funcol = Deferred("torch.distributed._functional_collectives")
hooks = Deferred("torch.distributed.algorithms.ddp_comm_hooks")
parallel = Deferred("torch.distributed.tensor.parallel")
pipelining = Deferred("torch.distributed.pipelining")
tensor = Deferred("torch.distributed.tensor")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch
PACKAGE = str(Path(simcoll.__file__).parent)

SIZE = 4


def on_ranks(body, nprocs=SIZE, **options):
    """Run ``body(rank, world_size)`` with a default group on every rank."""

    def program(rank, world_size):
        dist.init_process_group("simcoll")
        return body(rank, world_size)

    return backend.spawn(program, nprocs, **options)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    ).double()


def batches(steps=3):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 8, dtype=torch.float64, generator=generator) for _ in range(steps)]


def share(batch, rank, world_size):
    return batch.chunk(world_size)[rank]


def losses_alone(steps=3):
    model = network()
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.1), []
    for batch in batches(steps):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train(model, optimizer, rank, world_size, steps=3):
    """The losses of the whole batch, each rank with its share."""
    losses = []
    for batch in batches(steps):
        loss = model(share(batch, rank, world_size)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        dist.all_reduce(whole, op=dist.ReduceOp.AVG)
        losses.append(whole.item())
    return losses


def close(got, want):
    return torch.allclose(torch.as_tensor(got), torch.as_tensor(want), rtol=1e-12, atol=1e-14)


# Data parallel


@pytest.mark.slow
def test_ddp_gradients_are_those_of_the_whole_batch():
    alone = network()
    alone(batches()[0]).square().mean().backward()

    def body(rank, world_size):
        # A bucket for each parameter.
        model = nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=1e-4)
        for _ in range(2):  # the first pass finds the buckets
            model.zero_grad()
            model(share(batches()[0], rank, world_size)).square().mean().backward()
        return [parameter.grad for parameter in model.parameters()]

    result = on_ranks(body)
    for gradients in result.returns:
        assert all(
            close(got, want.grad) for got, want in zip(gradients, alone.parameters(), strict=True)
        )
    assert sum(record.name == "all_reduce" for record in result.records) > 3
    assert result.time > 0


@pytest.mark.slow
def test_ddp_training_with_no_sync_and_unused_parameters():
    class Partial(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = network(), nn.Linear(2, 2).double()

        def forward(self, x):
            return self.used(x)

    alone = network()
    for batch in batches():
        alone(batch).square().mean().backward()

    def body(rank, world_size):
        model = nn.parallel.DistributedDataParallel(Partial(), find_unused_parameters=True)
        first, second, third = (share(batch, rank, world_size) for batch in batches())
        with model.no_sync():
            model(first).square().mean().backward()
        model(second).square().mean().backward()
        model(third).square().mean().backward()
        return [parameter.grad for parameter in model.module.used.parameters()]

    for gradients in on_ranks(body).returns:
        assert all(
            close(got, want.grad) for got, want in zip(gradients, alone.parameters(), strict=True)
        )


@pytest.mark.slow
def test_ddp_sends_parameters_and_buffers_of_rank_0():
    def body(rank, world_size):
        torch.manual_seed(rank)
        model = nn.parallel.DistributedDataParallel(nn.BatchNorm1d(3))
        model.module.running_mean.fill_(rank)
        model(torch.randn(4, 3))
        return model.module.running_mean

    values = on_ranks(body).returns
    # Before a forward pass all take the buffers of rank 0 and then each its own batch's mean.
    assert all(mean.abs().max() < 0.5 for mean in values)


def test_ddp_logs_how_it_was_made():
    """DB-08: the log of a model has its name, the backend, the ranks and the buckets."""

    def body(rank, world_size):
        logged = nn.parallel.DistributedDataParallel(network())._get_ddp_logging_data()
        keys = (
            "module_name",
            "backend_name",
            "rank",
            "world_size",
            "bucket_cap_bytes",
            "broadcast_buffers",
        )
        return [logged[key] for key in keys]

    with pytest.warns(UserWarning, match="its logger prints or returns are those of this computer"):
        returns = on_ranks(body).returns
    assert list(returns) == [
        ["Sequential", "simcoll", rank, len(returns), 25 * 2**20, 1] for rank in range(len(returns))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["fp16", "powersgd"])
def test_ddp_communication_hooks(hook):
    # The gradients of all ranks are equal, whatever the hook loses; fp16 loses little.
    alone = network()
    for _ in range(4):
        alone.zero_grad()
        alone(batches()[0]).square().mean().backward()

    def body(rank, world_size):
        model = nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=1e-3)
        if hook == "powersgd":  # its callbacks start collectives of their own
            state = hooks.powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=2, start_powerSGD_iter=2
            )
            model.register_comm_hook(state, hooks.powerSGD_hook.powerSGD_hook)
        else:
            model.register_comm_hook(None, hooks.default_hooks.fp16_compress_hook)
        for _ in range(4):
            model.zero_grad()
            model(share(batches()[0], rank, world_size)).square().mean().backward()
        return [parameter.grad for parameter in model.parameters()]

    ranks = on_ranks(body).returns
    assert all(
        torch.equal(a, b) for other in ranks[1:] for a, b in zip(ranks[0], other, strict=True)
    )
    if hook != "powersgd":
        assert all(
            torch.allclose(got, want.grad, rtol=0.05, atol=1e-2)
            for got, want in zip(ranks[0], alone.parameters(), strict=True)
        )


def slowly(x):
    """The identity, whose backward pass takes 50 us."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            backend.compute("50 us")
            return gradient

    return Slow.apply(x)


@pytest.mark.slow
def test_communication_of_ddp_overlaps_the_backward_pass():
    def body(rank, world_size, slow=True):
        layers = [nn.Linear(256, 256) for _ in range(4)]
        model = nn.Sequential(*layers)
        model.forward = lambda x: [
            x := layer(slowly(x) if slow and i else x) for i, layer in enumerate(layers)
        ][-1]
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.2)
        for _ in range(2):  # the first pass finds the buckets
            begin = backend.emulated_time()
            model(torch.ones(2, 256)).sum().backward()
            dist.barrier()
        return backend.emulated_time() - begin

    both = on_ranks(body, topology="dgx-h100", protocol="Simple").returns[0]
    communication = on_ranks(
        lambda rank, n: body(rank, n, False), topology="dgx-h100", protocol="Simple"
    ).returns[0]
    assert communication > 40e-6
    assert both < 150e-6 + communication - 20e-6
    assert both > 150e-6


# Sharded


@pytest.mark.slow
def test_fsdp2_trains_as_the_whole_model():
    def body(rank, world_size):
        model = network()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fsdp.fully_shard(layer)
        fsdp.fully_shard(model)
        assert model[0].weight.to_local().shape == (4, 8)
        return train(model, torch.optim.Adam(model.parameters(), lr=0.1), rank, world_size)

    result = on_ranks(body, topology="dgx-h100")
    assert all(close(losses, losses_alone()) for losses in result.returns)
    names = {record.name for record in result.records}
    assert names >= {"all_gather_into_tensor", "reduce_scatter_tensor"}


@pytest.mark.slow
def test_hsdp_on_a_mesh():
    def body(rank, world_size):
        model = network()
        fsdp.fully_shard(
            model,
            mesh=device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")),
        )
        return train(model, torch.optim.Adam(model.parameters(), lr=0.1), rank, world_size)

    assert all(close(losses, losses_alone()) for losses in on_ranks(body).returns)


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [False, True])
def test_fsdp1(gpus):
    """With GPUs, the model is on one already."""
    chosen = {} if gpus else {"device_id": "cpu"}

    def body(rank, world_size):
        model = fsdp.FullyShardedDataParallel(network().cuda() if gpus else network(), **chosen)
        return train(model, torch.optim.Adam(model.parameters(), lr=0.1), rank, world_size)

    assert all(close(losses, losses_alone()) for losses in on_ranks(body, cuda_is_cpu=gpus).returns)


@pytest.mark.slow
def test_dtensor_matmul_on_a_mesh():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-8, 8, (8, 8), generator=generator).double() for _ in range(2))

    def body(rank, world_size):
        mesh = device_mesh.init_device_mesh("cpu", (2, 2))
        left, right = (
            tensor.distribute_tensor(a, mesh, [tensor.Shard(0), tensor.Shard(1)]),
            tensor.distribute_tensor(b, mesh, [tensor.Shard(1), tensor.Shard(0)]),
        )
        turned = left.redistribute(mesh, [tensor.Shard(1), tensor.Shard(0)])
        return (left @ right).full_tensor(), turned.full_tensor(), turned.to_local().shape

    for product, turned, shape in on_ranks(body).returns:
        assert torch.equal(product, a @ b)
        assert torch.equal(turned, a)
        assert shape == (4, 4)


@pytest.mark.slow
def test_tensor_parallel():
    x = batches()[0]
    alone = network()
    want = alone(x)
    want.sum().backward()

    def body(rank, world_size):
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        model = parallel.parallelize_module(
            network(), device_mesh.init_device_mesh("cpu", (world_size,)), plan
        )
        y = model(x)
        y.sum().backward()
        return y, model[0].weight.grad.full_tensor()

    for y, gradient in on_ranks(body).returns:
        assert close(y, want)
        assert close(gradient, alone[0].weight.grad)


@pytest.mark.slow
def test_pipeline():
    x = torch.ones(8, 8, dtype=torch.float64)
    want = [nn.Linear(8, 8).double() for _ in range(SIZE)]

    def body(rank, world_size):
        stage = pipelining.PipelineStage(
            copy.deepcopy(want[rank]), rank, world_size, torch.device("cpu")
        )
        schedule = pipelining.ScheduleGPipe(
            stage, 4, loss_fn=lambda got, target: (got - target).square().mean()
        )
        last = rank == world_size - 1
        return schedule.step(*([x] if rank == 0 else []), **({"target": x} if last else {}))

    assert close(on_ranks(body).returns[-1], nn.Sequential(*want)(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipeline_of_a_traced_model(name):
    """Its middle stages receive from both sides when they meet their neighbours."""
    x = torch.rand(8, 8, dtype=torch.float64)
    whole = nn.Sequential(*(nn.Linear(8, 8).double() for _ in range(SIZE)))

    def body(rank, world_size):
        mine = copy.deepcopy(whole)
        points = {str(part): pipelining.SplitPoint.BEGINNING for part in range(1, world_size)}
        pipe = pipelining.pipeline(mine, mb_args=(x[:2],), split_spec=points)
        stage = pipe.build_stage(rank, torch.device("cpu"))
        schedule = getattr(pipelining, name)(
            stage, 4, loss_fn=lambda got, target: (got - target).square().mean()
        )
        inputs = {"target": x} if rank == world_size - 1 else {}
        output = schedule.step(*([x] if rank == 0 else []), **inputs)
        return output, [weight.grad for weight in stage.submod.parameters()]

    (whole(x) - x).square().mean().backward()
    returns = on_ranks(body).returns
    assert close(returns[-1][0], whole(x))
    gradients = [gradient for _, stage in returns for gradient in stage]
    assert all(
        close(*pair) for pair in zip(gradients, [w.grad for w in whole.parameters()], strict=True)
    )


@pytest.mark.slow
def test_checkpoint(tmp_path):
    def body(rank, world_size):
        mesh = device_mesh.init_device_mesh("cpu", (world_size,))
        saved = {"x": tensor.distribute_tensor(torch.arange(16.0), mesh, [tensor.Shard(0)])}
        checkpoint.save(saved, checkpoint_id=tmp_path / "saved")
        loaded = {"x": tensor.distribute_tensor(torch.zeros(16), mesh, [tensor.Shard(0)])}
        checkpoint.load(loaded, checkpoint_id=tmp_path / "saved")
        return loaded["x"].to_local().tolist()

    assert list(itertools.chain(*on_ranks(body).returns)) == list(range(16))


# Functions


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_functional_collectives():
    def body(rank, world_size):
        group, x = dist.group.WORLD, torch.arange(4.0) + rank
        wide = torch.arange(4.0 * world_size) + rank
        several = funcol.all_reduce_coalesced([x, x.int()], "sum", group)
        gathered = funcol.all_gather_into_tensor_coalesced([x, 2 * x], group)
        scattered = funcol.reduce_scatter_tensor_coalesced([wide, wide], "sum", [0, 0], group)
        found = [
            funcol.all_reduce(x, "max", group),
            funcol.all_gather_tensor(x, 0, group),
            funcol.reduce_scatter_tensor(wide, "avg", 0, group),
            funcol.all_to_all_single(x, None, None, group),
            funcol.broadcast(x, 2, group),
            *several,
            *gathered,
            *scattered,
        ]
        return [each.tolist() for each in found]

    ranks = on_ranks(body).returns
    rows = [[float(i + r) for i in range(4)] for r in range(SIZE)]
    total, joined = (
        [sum(column) for column in zip(*rows, strict=True)],
        list(itertools.chain(*rows)),
    )
    for rank, got in enumerate(ranks):
        mine = [4.0 * rank + i for i in range(4)]
        assert got == [
            rows[3],
            joined,
            [value + 1.5 for value in mine],
            [float(rank + r) for r in range(4)],
            rows[2],
            total,
            total,
            joined,
            [2 * value for value in joined],
            [4 * value + 6 for value in mine],
            [4 * value + 6 for value in mine],
        ]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_functional_collectives_are_differentiated():
    def body(rank, world_size):
        x = torch.full((2,), float(rank), requires_grad=True)
        funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD).square().sum().backward()
        return x.grad.tolist()

    # Each rank's loss has the square of every x.
    assert on_ranks(body).returns == tuple([8.0 * rank] * 2 for rank in range(SIZE))


def test_operators_that_only_exist_in_c_plus_plus():
    def body(rank, world_size):
        operators, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
        x, wide, part = torch.full((2,), float(rank)), torch.zeros(2 * world_size), torch.zeros(2)
        operators.wait_tensor(operators.all_gather_into_tensor_out(x, world_size, name, out=wide))
        operators.wait_tensor(
            operators.reduce_scatter_tensor_out(wide, "max", world_size, name, out=part)
        )
        return wide.tolist(), part.tolist()

    for rank, (wide, part) in enumerate(on_ranks(body).returns):
        assert wide == [0, 0, 1, 1, 2, 2, 3, 3]
        assert part == [rank, rank]


def test_groups_and_point_to_point():
    def body(rank, world_size):
        half = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        outside = dist.new_group([1])
        assert (outside is dist.GroupMember.NON_GROUP_MEMBER) == (rank != 1)
        total = torch.tensor([rank])
        dist.all_reduce(total, group=half)
        left, right = torch.zeros(2), torch.full((2,), float(rank))
        ops = [
            dist.P2POp(dist.isend, right, (rank + 1) % world_size),
            dist.P2POp(dist.irecv, left, (rank - 1) % world_size),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        sender = None
        if rank == 3:
            sender = dist.recv(left, tag=7)
        elif rank == 2:
            backend.compute("1 us")
            dist.send(right, 3, tag=7)
        dist.barrier(group=half)
        return total.item(), left.tolist(), sender

    result = on_ranks(body)
    assert result.returns == (
        (1, [3, 3], None),
        (1, [0, 0], None),
        (5, [1, 1], None),
        (5, [2, 2], 2),
    )
    assert {record.group for record in result.records} >= {"0", "1", "2"}


@pytest.mark.filterwarnings("ignore:.*will be deprecated:FutureWarning")
def test_lists_and_roots():
    def body(rank, world_size):
        mine = torch.tensor([rank, rank])
        gathered = (
            [torch.zeros(2, dtype=torch.int64) for _ in range(world_size)] if rank == 1 else None
        )
        dist.gather(mine, gathered, dst=1)
        scattered = torch.zeros(1)
        dist.scatter(
            scattered,
            [torch.tensor([10.0 + r]) for r in range(world_size)] if rank == 2 else None,
            src=2,
        )
        reduced = torch.tensor([2 + rank])
        dist.reduce(reduced, 3, op=dist.ReduceOp.PRODUCT)
        received = [torch.zeros(r + 1) for r in range(world_size)]
        dist.all_to_all(
            received, [torch.full((rank + 1,), 10.0 * rank + r) for r in range(world_size)]
        )
        collected = [[torch.zeros(1), torch.zeros(2)] for _ in range(world_size)]
        c10d.all_gather_coalesced(
            collected, [torch.full((1,), float(rank)), torch.full((2,), rank + 0.5)]
        )
        flat = [torch.cat(each).tolist() for each in collected]
        return (
            gathered and torch.stack(gathered).tolist(),
            scattered.item(),
            reduced.item(),
            received[3].tolist(),
            flat,
        )

    for rank, (gathered, scattered, reduced, received, flat) in enumerate(on_ranks(body).returns):
        assert gathered == ([[0, 0], [1, 1], [2, 2], [3, 3]] if rank == 1 else None)
        assert scattered == 10 + rank
        assert rank != 3 or reduced == 2 * 3 * 4 * 5
        assert received == [30.0 + rank] * 4
        assert flat == [[r, r + 0.5, r + 0.5] for r in range(SIZE)]


def test_objects():
    def body(rank, world_size):
        everything = [None] * world_size
        dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
        told = [None] if rank else [("from", 0)]
        dist.broadcast_object_list(told, src=0)
        if rank == 0:
            dist.send_object_list(["a", 1], dst=1)
        received = [None, None]
        if rank == 1:
            dist.recv_object_list(received, src=0)
        return everything, told, received

    for rank, (everything, told, received) in enumerate(on_ranks(body).returns):
        assert everything == [{"rank": r, "text": "x" * r} for r in range(SIZE)]
        assert told == [("from", 0)]
        assert received == (["a", 1] if rank == 1 else [None, None])


def test_coalescing():
    def body(rank, world_size):
        a, b, c = torch.ones(2), torch.ones(3, dtype=torch.int32), torch.full((2,), float(rank))
        with c10d._coalescing_manager():
            dist.all_reduce(a)
            dist.all_reduce(b)
        wide = [torch.zeros(2 * world_size), torch.zeros(2 * world_size)]
        with c10d._coalescing_manager(async_ops=True) as both:
            dist.all_gather_single(wide[0], c)
            dist.all_gather_single(wide[1], a)
        both.wait()
        parts = [torch.zeros(2), torch.zeros(2)]
        with c10d._coalescing_manager():
            dist.reduce_scatter_single(parts[0], wide[0])
            dist.reduce_scatter_single(parts[1], wide[1])
        # Sends and receives that would wait for each other.
        with c10d._coalescing_manager(device=torch.device("cpu")):
            dist.broadcast(c, 3)
            dist.broadcast(a, 2)
        return (
            a.tolist(),
            b.tolist(),
            wide[0].tolist(),
            parts[0].tolist(),
            parts[1].tolist(),
            c.tolist(),
        )

    result = on_ranks(body)
    for rank, got in enumerate(result.returns):
        gathered = [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
        assert got == ([4.0] * 2, [4] * 3, gathered, [4.0 * rank] * 2, [16.0] * 2, [3.0] * 2)
    # One operation for each dtype.
    names = [record.name for record in result.records]
    assert (
        names
        == ["all_reduce_coalesced"] * 2
        + ["all_gather_coalesced", "reduce_scatter_coalesced"]
        + ["broadcast"] * 2
    )


def test_works_and_futures():
    def body(rank, world_size):
        x, y = torch.ones(4), torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        looks = 0
        while not work.is_completed():
            looks += 1
        assert work.wait()
        assert work.is_success()
        assert work.exception() is None
        second = dist.all_reduce(y, async_op=True)
        doubled = second.get_future().then(lambda future: 2 * future.value()[0])
        stamps = []
        second.get_future().add_done_callback(lambda _: stamps.append(backend.emulated_time()))
        begin = backend.emulated_time()
        backend.compute("50 us")  # the callback runs meanwhile, when its operation is over
        (waited,) = torch.futures.wait_all([doubled])
        assert begin < stamps[0] < begin + 20e-6
        return looks, x.tolist(), waited.tolist()

    for looks, x, waited in on_ranks(body).returns:
        assert looks > 0
        assert x == [4.0] * 4
        assert waited == [8.0] * 4


def test_the_work_of_a_call_that_has_waited_has_its_result():
    def body(rank, world_size):
        group, options = dist.group.WORLD, dist.AllreduceOptions()
        options.asyncOp = False
        tensors = [torch.full((2,), float(rank)), torch.full((3,), 1.0)]
        works = [group.allreduce([tensor], options) for tensor in tensors]
        return [
            (work.wait(), work.result()[0] is t) for work, t in zip(works, tensors, strict=True)
        ]

    assert on_ranks(body).returns == ([(True, True)] * 2,) * SIZE


def test_a_repeated_call_runs_few_functions_of_this_package():
    def body(rank, world_size):
        x, calls = torch.ones(4), []
        for _ in range(8):  # until all ranks are handled together
            dist.all_reduce(x)

        def note(frame, event, _):
            if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
                calls.append(frame.f_code.co_qualname)

        if rank == 1:
            sys.setprofile(note)
        dist.all_reduce(x)
        sys.setprofile(None)
        return calls

    calls = on_ranks(body).returns[1]
    assert "Round.join" in calls
    assert len(calls) <= 38, calls


# Tensors


def test_dtypes_without_numpy():
    def body(rank, world_size):
        found = {}
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            wide = torch.zeros(2 * world_size, dtype=dtype)
            dist.all_gather_single(wide, torch.tensor([rank, -1.5]).to(dtype))
            found[dtype] = wide.float().tolist()
        x = torch.full((3,), 1.5 * rank, dtype=torch.bfloat16)
        dist.all_reduce(x)
        z = torch.full((2,), complex(rank, 1))
        dist.all_reduce(z)
        return list(found.values()), x, z

    for gathered, x, z in on_ranks(body).returns:
        assert gathered == [[0, -1.5, 1, -1.5, 2, -1.5, 3, -1.5]] * 3
        assert x.dtype is torch.bfloat16
        assert x.tolist() == [9.0] * 3
        assert z.tolist() == [6 + 4j] * 2


def test_operators():
    def body(rank, world_size):
        mean, scaled = torch.tensor([float(rank)]), torch.tensor([float(rank)])
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
        return mean.item(), scaled.item()

    assert on_ranks(body).returns == ((1.5, 3.0),) * SIZE


def test_strided_tensors():
    def body(rank, world_size):
        x = torch.arange(6.0).reshape(2, 3).t()
        dist.all_reduce(x)
        return x.tolist()

    assert on_ranks(body).returns[2] == (4 * torch.arange(6.0).reshape(2, 3).t()).tolist()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.eye(2).to_sparse(), "dense tensors"),
        (lambda: torch.zeros(2, device="meta"), "on the CPU; got one of .* on meta"),
        (
            lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
            "pending conjugation or negation",
        ),
    ],
)
def test_tensors_that_cannot_be_moved(make, text):
    with pytest.raises(RuntimeError, match=text):
        on_ranks(lambda *_: dist.broadcast(make(), 0), 2)


def test_storage_without_memory():
    def body(rank, world_size):
        x = torch.zeros(4)
        x.untyped_storage().resize_(0)
        dist.all_reduce(x)

    with pytest.raises(RuntimeError, match="no memory"):
        on_ranks(body, 2)


# Errors


def test_a_mismatch_is_told_to_every_rank_with_its_line():
    def body(rank, world_size):
        try:
            dist.all_reduce(torch.zeros(3 if rank == 1 else 2))
        except RuntimeError as error:
            return str(error)

    texts = set(on_ranks(body, 3).returns)
    assert len(texts) == 1
    (text,) = texts
    assert "they differ in number of elements; all but rank 1 agree\n" in text
    line = body.__code__.co_firstlineno + 2
    assert text.count(f"{Path(__file__).name}:{line}") == 3
    assert "rank 1: all_reduce [3] float32 SUM" in text


def test_a_hang_is_found():
    with pytest.raises(RuntimeError, match=r"rank 0: barrier .* waits for rank 1"):
        on_ranks(lambda rank, _: dist.barrier() if rank != 1 else None, 3)


@pytest.mark.slow
def test_a_hang_in_a_backward_pass_is_found():
    def body(rank, world_size):
        model = nn.parallel.DistributedDataParallel(network())
        loss = model(batches()[0]).sum()
        if rank != 1:
            loss.backward()

    with pytest.raises(
        RuntimeError, match=r"rank 2: all_reduce \[484\] float64 SUM .* waits for rank 1"
    ):
        on_ranks(body, 3)


def test_a_failing_rank_ends_the_run():
    def body(rank, world_size):
        if rank == 2:
            raise KeyError("lost")
        dist.barrier()

    with pytest.raises(KeyError) as caught:
        on_ranks(body)
    assert "raised by the program of rank 2" in caught.value.__notes__[0]


def test_an_interrupt_unwinds_all_ranks():
    left = []

    def body(rank, world_size):
        dist.barrier()
        try:
            if rank == 3:
                raise KeyboardInterrupt
            dist.barrier()
        finally:
            left.append(rank)

    with pytest.raises(KeyboardInterrupt):
        on_ranks(body)
    assert sorted(left) == [0, 1, 2, 3]


def test_timeouts_count_simulated_time():
    def body(rank, world_size):
        if rank == 1:
            backend.compute(3.0)
        work = dist.all_reduce(torch.ones(1), async_op=True)
        if rank == 0:
            with pytest.raises(RuntimeError, match="Timed out waiting 2000ms for all_reduce"):
                work.wait(timedelta(seconds=2))
            assert backend.emulated_time() == pytest.approx(2)
        work.wait()
        return backend.emulated_time()

    assert on_ranks(body, 2).returns == pytest.approx((3.000001, 3.000001), abs=1e-9)


def test_one_run_at_a_time_and_only_inside():
    with pytest.raises(RuntimeError, match="another run is active"):
        backend.spawn(lambda *_: backend.spawn(print, 1), 2)
    with pytest.raises(RuntimeError, match=r"programs that simcoll.torch.spawn"):
        dist.init_process_group("simcoll", store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized()
    with pytest.raises(RuntimeError, match=r"programs that simcoll.torch.spawn"):
        backend.compute(1.0)


# The process


@pytest.mark.slow
def test_ranks_start_as_torch_does_it():
    def program(rank, world_size, store):
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), str(world_size))
        # A name says nothing here.
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        assert dist.get_backend() == "gloo"
        dist.monitored_barrier()
        dist.destroy_process_group()
        dist.init_process_group()
        shared = c10d._get_default_store()
        if rank == 0:
            backend.compute("5 us")
            shared.set("key", "value")
        value = shared.get("key")  # waits
        dist.barrier()
        assert os.environ["RANK"] == str(rank)
        return value, dist.get_rank(), int(os.environ["LOCAL_RANK"])

    before = dict(os.environ)
    result = backend.spawn(program, 10, args=(dist.HashStore(),), topology="dgx-h100")
    assert result.returns == tuple((b"value", rank, rank % 8) for rank in range(10))
    assert os.environ == before
    with pytest.raises(ValueError, match="rank=0, but this program was spawned with rank=1"):
        backend.spawn(
            lambda *_: dist.init_process_group(
                "simcoll", rank=0, world_size=2, store=dist.HashStore()
            ),
            2,
        )


def test_each_rank_has_its_own_random_numbers():
    def body(rank, world_size):
        if rank == 1:
            torch.manual_seed(5)
        first = torch.rand(2)
        dist.barrier()
        return torch.cat([first, torch.rand(2)]).tolist()

    torch.manual_seed(3)
    before = torch.get_rng_state()
    result = on_ranks(body)
    assert torch.equal(torch.get_rng_state(), before)
    streams = []
    for seed in (3, 5):
        generator = torch.Generator().manual_seed(seed)
        streams.append(
            torch.cat(
                [torch.rand(2, generator=generator), torch.rand(2, generator=generator)]
            ).tolist()
        )
    assert list(result.returns) == [streams[0], streams[1], streams[0], streams[0]]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_torch_is_as_before(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # init_process_group changes it
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    before = (
        c10d._world,
        c10d.rendezvous,
        torch._C.Future.wait,
        torch.get_num_threads(),
        sys.excepthook,
    )
    try:
        outside = dist.group.WORLD

        def body(rank, world_size):
            x = torch.zeros(2)
            outside._allgather_base(
                x, torch.ones(2)
            ).wait()  # the operator of C++ that we replace still serves it
            return x.tolist()

        assert on_ranks(body, 2).returns == ([1.0, 1.0],) * 2
        assert (
            c10d._world,
            c10d.rendezvous,
            torch._C.Future.wait,
            torch.get_num_threads(),
            sys.excepthook,
        ) == before
        assert funcol.all_gather_tensor_autograd(torch.ones(2), 0, outside).tolist() == [1.0, 1.0]
    finally:
        dist.destroy_process_group()


def test_options_choose_the_algorithm():
    def body(rank, world_size):
        ring = dist.new_group(pg_options=backend.Options(algorithm="ring"))
        dist.all_reduce(torch.ones(8), group=ring)
        dist.all_reduce(torch.ones(8))

    schedules = [record.schedule for record in on_ranks(body, algorithm="rabenseifner").records]
    assert [schedule.partition("(")[0] for schedule in schedules] == ["ring", "rabenseifner"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*will be deprecated:UserWarning")
def test_the_time_estimator():
    def body(rank, world_size):
        x, wide = torch.ones(1 << 14), torch.ones(1 << 14)
        if rank == 0:  # an estimate is no operation: the others need not take part
            with c10d._time_estimator() as estimate:
                dist.all_reduce(x)
                dist.all_to_all_single(wide, x)
            assert backend.emulated_time() == 0
        begin = backend.emulated_time()
        dist.all_reduce(x)
        dist.all_to_all_single(wide, x)
        return (
            (estimate.estimated_time if rank == 0 else None),
            (backend.emulated_time() - begin) * 1e6,
            x[0].item(),
        )

    result = on_ranks(body, topology="dgx-h100")
    estimated, took, value = result.returns[0]
    assert estimated == pytest.approx(took, rel=1e-9)
    assert value == 4.0
    assert result.operations == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [None, "gloo", "nccl", "mpi", "ucc", "simcoll", "cpu:gloo,cuda:nccl"]
)
def test_ranks_have_their_numbers_under_every_name(name):
    def program(rank, world_size):
        dist.init_process_group(name)
        part = dist.new_group([1, 2])
        return (
            dist.get_rank(),
            dist.get_world_size(),
            dist.get_process_group_ranks(None),
            dist.get_rank(part),
        )

    everyone = [0, 1, 2]
    assert backend.spawn(program, 3).returns == (
        (0, 3, everyone, -1),
        (1, 3, everyone, 0),
        (2, 3, everyone, 1),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*was never waited for:UserWarning")
def test_gradients_of_uneven_inputs_are_means_over_the_ranks_that_have_some():
    def program(rank, world_size):
        dist.init_process_group("simcoll")
        model, gradients = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False)), []
        with model.join(divide_by_initial_world_size=False):
            for step in range(2 + rank):
                model.zero_grad()
                model(torch.full((1, 1), float(step + rank))).sum().backward()
                gradients.append(model.module.weight.grad.item())
        return gradients

    assert backend.spawn(program, 3).returns == ([1.0, 2.0], [1.0, 2.0, 3.5], [1.0, 2.0, 3.5, 5.0])


PROGRAM = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import simcoll.torch

def program(rank, world_size):
    dist.init_process_group("simcoll")
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), bucket_cap_mb=1e-4)
    works = []
    for step in range(3):
        model(torch.full((2, 8), float(rank))).sum().backward()
        works.append(dist.all_reduce(torch.ones(100 * (rank % 2) + 1), group=groups[rank % 2], async_op=True))
        simcoll.torch.compute(1e-6 * (rank + 1))
        dist.send(torch.ones(5), (rank + 1) % 4) if rank % 2 else dist.recv(torch.ones(5), (rank - 1) % 4)
    for work in works:
        work.wait()

result = simcoll.torch.spawn(program, 4, topology="dgx-h100")
"""


@pytest.mark.slow
def test_equal_programs_have_equal_traces(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + "print(result.trace_hash, result.time_fs)\n")
    found = []
    for _ in range(2):
        namespace = {}
        exec(PROGRAM, namespace)
        found.append(f"{namespace['result'].trace_hash} {namespace['result'].time_fs}")
    environment = os.environ | {
        "PYTHONHASHSEED": "1",
        "PYTHONPATH": str(Path(simcoll.__file__).parents[1]),
    }
    other = subprocess.run(
        [sys.executable, path], env=environment, capture_output=True, text=True, check=True
    )
    assert found == [other.stdout.strip()] * 2


@pytest.mark.slow
def test_only_this_part_imports_torch():
    package = Path(simcoll.__file__).parent
    importing = re.compile(r"^ *(import|from) (simcoll\.)?torch\b", re.MULTILINE)
    found = {
        path for path in package.rglob("*.py") if importing.search(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 4
    # The conformance suite plays statements on the backends of PyTorch.
    assert {path.parent for path in found} == {
        package / "torch",
        package / "testing" / "conformance",
    }
