"""Operators on tensors of the host and of GPUs, which PyTorch refuses on GPUs."""

from __future__ import annotations

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
nn, functional = Deferred("torch.nn"), Deferred("torch.nn.functional")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore::UserWarning")]


def findings(body, nprocs=2):
    def program(rank, _world_size):
        torch.cuda.set_device(rank)
        body(torch.ones(4, device="cuda"))

    result = backend.spawn(program, nprocs, cuda_is_cpu=True)
    return [said for said in result.findings if said.startswith("devices: ")]


WRONG = {
    "add": lambda x: x + torch.ones(4),
    "add_": lambda x: torch.ones(4).add_(x),
    "mul": lambda x: torch.mul(x, x, out=torch.empty(4)),
    "cat": lambda x: torch.cat([x, x, torch.ones(1)]),
    "linear": lambda _: nn.Linear(4, 4).cuda()(torch.ones(4)),
    "embedding": lambda _: nn.Embedding(4, 2).cuda()(torch.tensor([1, 2])),
    "cross_entropy": lambda x: nn.CrossEntropyLoss()(x[None], torch.tensor([1])),
    "where": lambda x: torch.where(x > 0, x, torch.zeros(4)),
    "index_select": lambda x: x.index_select(0, torch.tensor([1])),
    "sub": lambda x: x - torch.ones(4, device=f"cuda:{1 - torch.cuda.current_device()}"),
}


@pytest.mark.slow
def test_a_mixture_is_a_finding_with_its_line():
    for name, call in WRONG.items():
        said = findings(call)
        line = f"test_device_mixing.py:{call.__code__.co_firstlineno}"
        assert len(said) == 1, name
        assert said[0].startswith(f"devices: {name} at ")
        assert line in said[0]
        places = said[0].partition("these are on ")[2]
        assert ("another" if name == "sub" else "the host") in places


def allowed(x):
    """What PyTorch takes: numbers, indices, copies, lengths, and tensors that it moves itself."""
    x * torch.tensor(2.0), torch.where(x > 0, x, torch.tensor(0.0))
    x[torch.tensor([0])], torch.tensor_split(x, torch.tensor([1]))
    x[:2] = torch.ones(2)
    x.copy_(torch.ones(4)), torch.ones(4).copy_(x)
    x + torch.arange(4.0).to(x.device)  # which says that it is the CPU
    torch.set_default_device("cuda")
    x + torch.ones(4)
    torch.set_default_device(None)
    with torch.device("cuda"):
        x + torch.ones(4)
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(4, 2, 3).cuda(), torch.tensor([4, 2]))
    nn.LSTM(3, 5).cuda()(packed)
    nn.Linear(4, 4).to(x.device)(x)


def moved(x):
    dist.init_process_group("nccl")
    layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()
    device_ids = [torch.cuda.current_device()]
    nn.parallel.DistributedDataParallel(layers, device_ids=device_ids)(torch.ones(2, 4))
    from torch.distributed.fsdp import fully_shard

    layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    fully_shard(layers)(torch.ones(2, 4, device="cuda")).sum().backward()


@pytest.mark.slow
def test_what_pytorch_takes_is_none():
    assert findings(allowed) == []
    assert findings(moved) == []
