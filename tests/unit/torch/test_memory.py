"""The most memory of tensors that each rank held at once, counted by hand."""

from __future__ import annotations

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, nn, dist = Deferred("torch"), Deferred("torch.nn"), Deferred("torch.distributed")
fake, mesh, fsdp = (
    Deferred("torch._subclasses.fake_tensor"),
    Deferred("torch.distributed.device_mesh"),
    Deferred("torch.distributed.fsdp"),
)
backend = Deferred("simcoll.torch")
contextlib = Deferred("contextlib")

pytestmark = needs_torch


def held(rank, world_size, faked):
    dist.init_process_group("simcoll")
    with fake.FakeTensorMode() if faked else contextlib.nullcontext():
        x = torch.zeros(1000 * (rank + 1))
        y = x.view(10, -1).t() + 1
        del x
        dist.all_reduce(torch.zeros(100))
        z = torch.empty(50, dtype=torch.float64)
        z.resize_(60)
        return len(y) + len(z)


@pytest.mark.parametrize("faked", [False, True])
@pytest.mark.parametrize("alike", [None, "all"])
def test_ranks_hold_what_they_have_made(faked, alike):
    expected = [2 * 4 * 1000 * (rank + 1) for rank in ((0, 1) if alike is None else (0, 0))]
    assert backend.spawn(held, 2, args=(faked,), alike=alike).peak_bytes == tuple(expected)


@pytest.mark.slow
def test_what_is_gathered_and_freed():
    width, layers = 500, 4

    def program(rank, world_size):
        grid = mesh.init_device_mesh("cuda", (world_size,))
        with fake.FakeTensorMode():
            model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
            for layer in (*model, model):
                fsdp.fully_shard(layer, mesh=grid)
            torch.cuda.reset_peak_memory_stats()
            with torch.no_grad():
                model(torch.empty(1, width))
            counted = torch.cuda.memory_stats()
            assert counted["active_bytes.all.peak"] == torch.cuda.max_memory_allocated()
            assert counted["num_ooms"] == 0
            return torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()

    layer = 4 * width * width
    peak, left = backend.spawn(program, 4, cuda_is_cpu=True).returns[0]
    # Two layers, each as it came and as it is used.
    shards, gathered = (layers * layer / 4, 2 * 2 * layer)
    assert shards <= left < shards + layer
    assert shards + layer < peak < shards + gathered + layer
