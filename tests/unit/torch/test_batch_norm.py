"""``SyncBatchNorm`` where scripts find GPUs: batches of all ranks are normalized as one batch."""

import copy

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, nn, dist = Deferred("torch"), Deferred("torch.nn"), Deferred("torch.distributed")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def assert_close(one, other, **tolerances):
    """Compare tensors on a GPU with those on the host."""
    torch.testing.assert_close(one, other, check_device=False, **tolerances)


def train(module, x, target):
    """The output, the gradient of the input, and what the module has learnt, of one batch."""
    y = module(x)
    (y * target).sum().backward()
    return y.detach(), x.grad


def norm(momentum, affine):
    torch.manual_seed(1)
    made = nn.BatchNorm2d(3, momentum=momentum, affine=affine)
    if affine:
        nn.init.normal_(made.weight)
        nn.init.normal_(made.bias)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("momentum", "affine"), [(0.1, True), (None, True), (0.3, False)])
@pytest.mark.parametrize("sizes", [[4, 4], [1, 5, 2]])
def test_the_ranks_batches_are_one_batch(sizes, momentum, affine):
    def program(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        batch, target = torch.randn(2, sum(sizes), 3, 2, 5)
        begin = sum(sizes[:rank])
        mine = slice(begin, begin + sizes[rank])
        whole = norm(momentum, affine)
        part = nn.SyncBatchNorm.convert_sync_batchnorm(norm(momentum, affine)).cuda()
        for _ in range(2):
            expected = train(whole, batch.clone().requires_grad_(), target)
            got = train(part, batch[mine].clone().cuda().requires_grad_(), target[mine])
            for one, all_of_it in zip(got, expected, strict=True):
                assert_close(one, all_of_it[mine], rtol=1e-4, atol=1e-5)
        for parameter in part.parameters():
            dist.all_reduce(parameter.grad)
        assert_close(part.state_dict(), whole.state_dict())
        for one, other in zip(part.parameters(), whole.parameters(), strict=True):
            assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
        part.eval(), whole.eval()
        assert_close(part(batch.cuda()), whole(batch), rtol=1e-4, atol=1e-5)

    backend.spawn(program, len(sizes), cuda_is_cpu=True)


@pytest.mark.slow
def test_a_model_with_distributed_data_parallel():
    """A step on parts of a batch is a step on all of it."""

    def program(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        whole = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        model = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole)).cuda()
        model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
        x = torch.randn(2 * world_size, 6)
        whole(x).square().mean().backward()
        model(x[2 * rank : 2 * rank + 2]).square().mean().backward()
        for one, other in zip(model.parameters(), whole.parameters(), strict=True):
            assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)

    backend.spawn(program, 3, cuda_is_cpu=True)


def half_norm(x, *, statistics):
    """A batch norm with parameters of the type of ``x``, and its running statistics of another."""
    layer = norm(0.1, affine=True).to(x.dtype)
    layer.running_mean = layer.running_mean.to(statistics)
    layer.running_var = layer.running_var.to(statistics)
    return layer


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_sixteen_bits_with_wide_statistics_as_on_a_gpu(kind):
    """Forward passes and channels-last backward passes have the numbers of a norm in 32 bits; the
    backward pass of other layouts ends with CUDA's message.
    """

    def program(rank, world_size):
        narrow = getattr(torch, kind)
        x = torch.randn(4, 3, 2, 5, device="cuda").to(narrow)
        wide = norm(0.1, affine=True)
        wide.load_state_dict(half_norm(x, statistics=torch.float32).float().state_dict())
        layer = half_norm(x, statistics=torch.float32)
        last = x.to(memory_format=torch.channels_last).requires_grad_()
        got, gradient = train(layer, last, torch.ones(1, dtype=narrow))
        expected, expected_gradient = train(wide, x.float().requires_grad_(), torch.ones(1))
        assert got.dtype is gradient.dtype is layer.weight.grad.dtype is narrow
        assert layer.running_mean.dtype is torch.float32
        close = {"rtol": 1e-2, "atol": 2e-2}
        assert_close(got.float(), expected, **close)
        assert_close(gradient.float(), expected_gradient, **close)
        assert_close(layer.weight.grad.float(), wide.weight.grad, rtol=1e-2, atol=0.1)
        assert_close(layer.running_var, wide.running_var)
        assert_close(layer.eval()(x).float(), wide.eval()(x.float()), **close)
        name = {"bfloat16": "BFloat16", "float16": "Half"}[kind]
        with pytest.raises(RuntimeError, match=f"Expected running_mean to have type {name} but"):
            train(layer.train(), x.clone().requires_grad_(), torch.ones(1, dtype=narrow))

    backend.spawn(program, 1, cuda_is_cpu=True)


@pytest.mark.slow
def test_without_gpus_mixed_types_are_refused_as_by_pytorch():
    def program(rank, world_size):
        x = torch.randn(4, 3, 2, 5).bfloat16()
        half_norm(x, statistics=torch.float32)(x)

    with pytest.raises(RuntimeError, match="expected scalar type BFloat16 but found Float"):
        backend.spawn(program, 1)


@pytest.mark.slow
def test_without_gpus_it_is_refused_as_by_pytorch():
    def program(rank, world_size):
        dist.init_process_group("gloo")
        nn.SyncBatchNorm(3)(torch.randn(4, 3))

    with pytest.raises(ValueError, match="expected input tensor to be on GPU"):
        backend.spawn(program, 2)
