"""PyTorch programs on fake tensors: no memory, the same times."""

import resource
from collections import Counter

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, nn, dist, backend = (
    Deferred("torch"),
    Deferred("torch.nn"),
    Deferred("torch.distributed"),
    Deferred("simcoll.torch"),
)
functional = Deferred("torch.distributed._functional_collectives")
fake_tensor = Deferred("torch._subclasses.fake_tensor")
device_mesh = Deferred("torch.distributed.device_mesh")
fsdp = Deferred("torch.distributed.fsdp")
pipelining = Deferred("torch.distributed.pipelining")
parallel = Deferred("torch.distributed.tensor.parallel")

pytestmark = needs_torch

N = 4


def timed(step, fake, **options):
    """The times that a step takes on each rank, on real or fake tensors."""

    def program(rank, world_size):
        dist.init_process_group("simcoll")
        if not fake:
            step(rank, world_size)
        else:
            with fake_tensor.FakeTensorMode():
                step(rank, world_size)

    return backend.spawn(program, N, topology="dgx-h100", **options)


def collectives(rank, n):
    x, whole = torch.ones(1 << 12), torch.ones(n << 12)
    dist.all_reduce(x)
    dist.all_gather([torch.empty(1 << 12) for _ in range(n)], x)
    dist.all_gather_single(whole, x)
    dist.reduce_scatter_single(x, whole, op=dist.ReduceOp.AVG)
    dist.all_to_all_single(whole, torch.ones(n << 12))
    work = dist.broadcast(x, 1, async_op=True)
    backend.compute("5 us")
    work.wait()
    dist.barrier()
    if rank == 0:
        dist.send(x, 2)
    elif rank == 2:
        dist.recv(x, 0)


def functional_collectives(rank, n):
    x, world = torch.ones(8 * n, 16), dist.group.WORLD
    results = [
        functional.all_reduce(x, "sum", world),
        functional.all_gather_single(x, 0, world),
        functional.all_gather_single(x, 1, world),
        functional.reduce_scatter_single(x, "sum", 0, world),
        functional.all_to_all_single(x, None, None, world),
        functional.broadcast(x, 0, world),
        *functional.all_reduce_coalesced([x, x[:3]], "sum", world),
    ]
    shapes = [functional.wait_tensor(result).shape for result in results]
    assert shapes == [
        (32, 16),
        (128, 16),
        (32, 64),
        (8, 16),
        (32, 16),
        (32, 16),
        (32, 16),
        (3, 16),
    ]


def two_linear():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


def trained(model):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def sharded(rank, n):
    model, mesh = two_linear(), device_mesh.init_device_mesh("cpu", (n,))
    for layer in (model[0], model[2], model):
        fsdp.fully_shard(layer, mesh=mesh)
    trained(model)


def tensor_parallel(rank, n):
    mesh = device_mesh.init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("dp", "tp"))
    trained(
        parallel.parallelize_module(
            two_linear(),
            mesh["tp"],
            {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()},
        )
    )


def pipelined(rank, n):
    stage = pipelining.PipelineStage(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU()), rank, n, torch.device("cpu")
    )
    schedule = pipelining.Schedule1F1B(
        stage, 2 * n, loss_fn=lambda y, target: (y - target).square().sum()
    )
    given = {0: (torch.ones(16, 64),)}.get(rank, ())
    schedule.step(*given, **({"target": torch.zeros(16, 64)} if rank == n - 1 else {}))
    found = [None] * n
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": each} for each in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [collectives, functional_collectives, sharded, tensor_parallel, pipelined]
)
def test_fake_tensors_take_the_same_time_as_real_ones(step):
    real, fake = timed(step, fake=False), timed(step, fake=True)
    assert fake.operations == real.operations > 0
    assert fake.finish_fs == real.finish_fs


@pytest.mark.slow
def test_distributed_data_parallel_runs_with_its_first_buckets():
    def step(rank, n):
        trained(nn.parallel.DistributedDataParallel(two_linear()))

    calls = [record.name for record in timed(step, fake=True).records]
    assert calls.count("all_reduce") == 2  # one bucket, two steps
    # Real tensors have two calls more: ranks agree on new buckets after the first step.
    assert len(calls) == timed(step, fake=False).operations - 2


@pytest.mark.slow
def test_a_model_that_fits_no_memory_here_can_be_stepped():
    def step(rank, n):
        mesh = device_mesh.init_device_mesh("cpu", (n,))
        model = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(4)))
        for layer in (*model, model):
            fsdp.fully_shard(layer, mesh=mesh)
        model(torch.ones(1024, 8192)).sum().backward()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = timed(step, fake=True, alike="all")
    assert result.skew_fs == 0
    assert result.own_ranks == (0,)
    # 4 ranks with a gibibyte of parameters and as much of gradients each.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20
    gathered = 4 * 8192 * 8192 * (N - 1) / N * 2 * 4  # of each layer, forward and backward
    assert result.time > gathered / 450e9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
def test_a_mesh_of_8_by_8_by_16_on_1024_ranks():
    width, hidden, rows = 1024, 4096, 4

    def program(rank, n):
        grid = device_mesh.init_device_mesh(
            "cpu", (8, 8, 16), mesh_dim_names=("replicate", "shard", "tensor")
        )
        with fake_tensor.FakeTensorMode():
            first, last = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
            model = nn.Sequential(first, nn.ReLU(), last)
            parallel.parallelize_module(
                model,
                grid["tensor"],
                {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()},
            )
            fsdp.fully_shard(model, mesh=grid["replicate", "shard"])
            model(torch.ones(rows, width)).sum().backward()
        return sum(parameter.to_local().numel() for parameter in model.parameters())

    result = backend.spawn(program, 1024, topology="superpod-h100", alike="all")
    weight = 4 * width * hidden
    part = 2 * weight // 16  # of both weights, on a tensor-parallel rank
    # 64 groups of tensor-parallel ranks, 128 of shards, and 128 of copies.
    assert Counter((record.name, record.size_bytes) for record in result.records) == {
        ("scatter", weight): 2 * 64,
        ("all_gather_into_tensor", part): 128,
        ("all_reduce", 4 * rows * width): 64,
        ("reduce_scatter_tensor", part): 128,
        ("all_reduce", part // 8): 128,
    }
    assert result.returns == (part // 4 // 8,) * 1024
    assert result.skew_fs == 0
