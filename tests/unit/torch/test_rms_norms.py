"""RMS norm of distributed tensors, as on GPUs."""

from __future__ import annotations

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
nn, tensor = Deferred("torch.nn"), Deferred("torch.distributed.tensor")
device_mesh = Deferred("torch.distributed.device_mesh")
debug = Deferred("torch.distributed.tensor.debug")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore::UserWarning")]


def normalized(x, weight):
    """The norm of the last dimension, by its definition."""
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5) * weight


@pytest.mark.parametrize(
    ("sharded", "gathered"),
    [
        pytest.param(0, 0, id="rows on ranks"),
        pytest.param(1, 1, id="parts of rows, which each pass gathers"),
    ],
)
def test_the_norm_of_a_distributed_tensor(sharded, gathered):
    def body(rank, _world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        torch.manual_seed(1)
        mesh = device_mesh.init_device_mesh("cuda", (2,))
        values, scale = torch.randn(4, 6), torch.randn(6)
        x, weight = values.clone().requires_grad_(), scale.clone().requires_grad_()
        expected = normalized(x, weight)
        expected.square().sum().backward()
        norm = nn.RMSNorm(6, eps=1e-5, device="cuda")
        replicas = tensor.distribute_tensor(scale.cuda(), mesh, [tensor.Replicate()])
        norm.weight = nn.Parameter(replicas)
        parts = tensor.distribute_tensor(values.cuda(), mesh, [tensor.Shard(sharded)])
        parts.requires_grad_()
        with debug.CommDebugMode() as first:
            result = norm(parts)
        whole = result.full_tensor()
        with debug.CommDebugMode() as second:
            whole.square().sum().backward()
        torch.testing.assert_close(whole.cpu(), expected)
        torch.testing.assert_close(parts.grad.full_tensor().cpu(), x.grad)
        torch.testing.assert_close(norm.weight.grad.full_tensor().cpu(), weight.grad)
        return first.get_total_counts(), second.get_total_counts()

    counts = backend.spawn(body, 2, cuda_is_cpu=True).returns
    assert counts == ((gathered, gathered),) * 2
