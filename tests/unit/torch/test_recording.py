"""Recorded PyTorch programs, played again here and elsewhere: their times to the femtosecond."""

from __future__ import annotations

import pytest

from simcoll.topology import load_topology
from simcoll.workload.playing import run_workload
from tests.support.deferred import Deferred, needs_torch

torch, nn, dist = Deferred("torch"), Deferred("torch.nn"), Deferred("torch.distributed")
fake, fsdp, parallel = (
    Deferred("torch._subclasses.fake_tensor"),
    Deferred("torch.distributed.fsdp"),
    Deferred("torch.nn.parallel"),
)
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.slow]


def sharded(_rank, _n):
    """Two steps of fully_shard: gathers ahead on a stream of their own, beside the layers."""
    dist.init_process_group("simcoll")
    with fake.FakeTensorMode():
        model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(3)])
        for layer in model:
            fsdp.fully_shard(layer)
        fsdp.fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(2):
            model(torch.randn(64, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def replicated(_rank, _n):
    """A step of DistributedDataParallel, whose futures are waited for in C++."""
    dist.init_process_group("simcoll")
    model = parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    )
    model(torch.randn(16, 64)).sum().backward()


@pytest.mark.parametrize("program", [sharded, replicated])
def test_here_and_elsewhere(program):
    run = {"compute": "roofline", "gpu": "h100"}
    recorded = backend.spawn(program, 4, topology="dgx-h100", record=True, **run)
    assert (
        run_workload(recorded.workload, load_topology("dgx-h100"), exposed=False).time_fs
        == recorded.time_fs
    )
    there = backend.spawn(program, 4, topology="dgx-a100", **run)
    assert (
        run_workload(recorded.workload, load_topology("dgx-a100"), exposed=False).time_fs
        == there.time_fs
    )
    assert len(recorded.workload.classes) == 1
