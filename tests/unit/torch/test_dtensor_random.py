"""Random DTensors on simulated GPUs, and hooks on all modules."""

from __future__ import annotations

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist, nn = Deferred("torch"), Deferred("torch.distributed"), Deferred("torch.nn")
tensor, debug = (
    Deferred("torch.distributed.tensor"),
    Deferred("torch.distributed.tensor.debug"),
)
parallel = Deferred("torch.distributed.tensor.parallel")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def on_gpus(body, nprocs=4):
    def program(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        return body(rank)

    return backend.spawn(program, nprocs, cuda_is_cpu=True).returns


@pytest.mark.slow
def test_shards_differ_and_replicas_are_equal():
    def body(rank):
        mesh = tensor.init_device_mesh("cuda", (2, 2))
        torch.manual_seed(7)
        weight = tensor.distribute_tensor(
            torch.zeros(4, 6, device="cuda"), mesh, [tensor.Shard(0), tensor.Replicate()]
        )
        nn.init.normal_(weight)
        first = weight.to_local().flatten().tolist()
        nn.init.normal_(weight)
        mask = nn.functional.dropout(
            tensor.ones(64, device_mesh=mesh, placements=[tensor.Shard(0), tensor.Replicate()]), 0.5
        )
        return first, weight.to_local().flatten().tolist(), mask.to_local().tolist()

    ranks = on_gpus(body)
    for part in range(3):
        values = [rank[part] for rank in ranks]
        assert values[0] == values[1]
        assert values[2] == values[3]
        assert values[0] != values[2]
    assert ranks[0][0] != ranks[0][1]


def test_one_seed_gives_one_tensor_again():
    def body(rank):
        mesh = tensor.init_device_mesh("cuda", (4,))
        drawn = []
        for _ in range(2):
            torch.manual_seed(3)
            drawn.append(tensor.randn(8, 2, device_mesh=mesh, placements=[tensor.Shard(0)]))
        assert torch.equal(drawn[0].to_local(), drawn[1].to_local())
        return drawn[0].full_tensor().tolist()

    ranks = on_gpus(body)
    assert ranks[1:] == ranks[:-1]
    assert len({value for row in ranks[0] for value in row}) == 16


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*was never waited for:UserWarning")
def test_hooks_on_all_modules_belong_to_a_rank():
    def body(rank):
        mesh = tensor.init_device_mesh("cuda", (3,))
        torch.manual_seed(0)
        model = nn.Linear(6, 6).cuda()
        parallel.parallelize_module(
            model, mesh, parallel.ColwiseParallel(input_layouts=tensor.Shard(0))
        )
        counts = []
        for _ in range(3):
            with debug.CommDebugMode() as mode:
                model(torch.ones(2, 6, device="cuda", requires_grad=True)).sum().backward()
            counts.append(mode.get_total_counts())
        own, calls = [], 0
        if rank == 1:
            handle = nn.modules.module.register_module_forward_hook(lambda *_: own.append(1))
        model(torch.ones(2, 6, device="cuda"))
        dist.barrier()
        if rank == 1:
            handle.remove()
        return counts, len(own), calls

    ranks = on_gpus(body, 3)
    assert [rank[0] for rank in ranks] == [[2, 2, 2]] * 3
    assert [rank[1] for rank in ranks] == [0, 1, 0]


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.filterwarnings("ignore:.*with different seeds:UserWarning")
def test_different_seeds_of_a_mesh_are_a_finding(same):
    def program(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        mesh = tensor.init_device_mesh("cuda", (world_size,))
        for _ in range(2):  # PyTorch equalises the seeds at the first operator only
            torch.manual_seed(5 if same else rank)
            drawn = tensor.randn(4, device_mesh=mesh, placements=[tensor.Replicate()])
        return drawn.to_local().tolist()

    result = backend.spawn(program, 3, cuda_is_cpu=True)
    assert (len({str(values) for values in result.returns}) == 1) == same
    assert any("with different seeds" in line for line in result.findings) != same


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*unequally often:UserWarning")
def test_shards_that_are_drawn_unequally_often_are_a_finding():
    """A rank redraws the values of its shard until none is outside the bounds."""

    def program(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        mesh = tensor.init_device_mesh("cuda", (world_size,))
        shards = tensor.zeros(world_size, 1, device_mesh=mesh, placements=[tensor.Shard(0)])
        torch.manual_seed(5)
        while (shards.normal_().to_local().abs() > 0.7).any():
            pass
        drawn = tensor.randn(4, device_mesh=mesh, placements=[tensor.Replicate()])
        return drawn.to_local().tolist()

    result = backend.spawn(program, 8, cuda_is_cpu=True)
    assert len({str(values) for values in result.returns}) > 1
    assert any("unequally often" in line for line in result.findings)


@pytest.mark.slow
def test_ranks_that_pytorch_plays_in_one_draw_the_same_numbers():
    """``LocalTensorMode`` has every shard of a rank program, and the same ones at a later draw; the
    first draw takes the seed of rank 0.
    """
    from torch.distributed._local_tensor import LocalIntNode, LocalTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def shards(seed):
        torch.manual_seed(seed)
        mesh = tensor.init_device_mesh("cuda", (2, 2))
        placements = [tensor.Shard(0), tensor.Replicate()]
        weight = tensor.distribute_tensor(torch.zeros(4, 3, device="cuda"), mesh, placements)
        draws = [nn.init.normal_(weight).to_local().clone() for _ in range(2)]
        generator = torch.Generator(device="cuda").manual_seed(9)
        return [*draws, nn.init.uniform_(weight, 0.0, 1.0, generator).to_local().clone()]

    def alone(_rank, _world_size):
        dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
        with LocalTensorMode(4):
            drawn = shards(torch.SymInt(LocalIntNode({rank: 7 + rank for rank in range(4)})))
        return [[part._local_tensors[rank].tolist() for part in drawn] for rank in range(4)]

    as_ranks = on_gpus(lambda rank: [part.tolist() for part in shards(7 + rank)])
    assert as_ranks[0][0] != as_ranks[0][1]
    assert backend.spawn(alone, 1, cuda_is_cpu=True).returns == (list(as_ranks),)
