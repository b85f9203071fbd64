"""Kernels that hold a stream while the host goes on, as ``torch.cuda._sleep``: times are sums that
CUDA's rules of streams give.
"""

from __future__ import annotations

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist, backend = Deferred("torch"), Deferred("torch.distributed"), Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.slow]

MICROSECOND = 1000
"""In cycles of a GPU, which take a nanosecond."""


def elapsed_us(begin, end):
    return pytest.approx(begin.elapsed_time(end) * 1e3)


def alone(body):
    """What a program of one rank returns."""
    return backend.spawn(lambda *_: body(), 1, cuda_is_cpu=True).returns[0]


def test_streams_overlap_and_the_host_goes_on():
    def body():
        begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        side = torch.cuda.Stream()
        begin.record()
        torch.cuda._sleep(20 * MICROSECOND)
        with torch.cuda.stream(side):
            torch.cuda._sleep(30 * MICROSECOND)
            middle.record()
        assert backend.emulated_time() == 0
        assert not middle.query()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda._sleep(5 * MICROSECOND)
        end.record()
        end.synchronize()
        assert side.query()
        assert end.query()
        assert elapsed_us(begin, middle) == 30
        assert elapsed_us(begin, end) == 35
        return backend.emulated_time()

    assert alone(body) == pytest.approx(35e-6)


def test_a_program_with_one_stream_waits_for_its_kernels():
    def body():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(20 * MICROSECOND)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3

    assert alone(body) == pytest.approx(20)


@pytest.mark.parametrize("wait", ["synchronize", "item", "stream", "poll"])
def test_the_host_waits_where_cuda_does(wait):
    def body():
        x = torch.ones(3, device="cuda")
        side = torch.cuda.Stream()
        torch.cuda._sleep(40 * MICROSECOND)
        with torch.cuda.stream(side):
            x.record_stream(side)
        if wait == "synchronize":
            torch.cuda.synchronize()
        elif wait == "item":
            x.sum().item()
        elif wait == "stream":
            torch.cuda.current_stream().synchronize()
        else:
            while not torch.cuda.current_stream().query():
                assert side.query()
        return backend.emulated_time()

    assert alone(body) == pytest.approx(40e-6, abs=1e-6 if wait == "poll" else 1e-12)


def test_a_collective_starts_when_its_stream_is_free():
    def program(rank, _world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        taken_s = backend.emulated_time()
        side = torch.cuda.Stream()
        torch.cuda._sleep(500 * MICROSECOND)
        with torch.cuda.stream(side):
            dist.all_reduce(torch.ones(4, device="cuda"))
        on_free_stream_s = backend.emulated_time() - taken_s
        work = dist.all_reduce(x, async_op=True)
        issued_s = backend.emulated_time() - taken_s
        work.wait()
        assert x.tolist() == [4.0] * 4
        return taken_s, on_free_stream_s, issued_s, backend.emulated_time() - taken_s

    for taken_s, free_s, issued_s, end_s in backend.spawn(program, 2, cuda_is_cpu=True).returns:
        assert free_s == issued_s == pytest.approx(taken_s)
        assert end_s == pytest.approx(500e-6 + taken_s)


def test_a_backward_pass_does_not_wait_for_kernels_of_other_streams():
    """PyTorch orders a backward pass after the forward pass by its data alone."""

    def body():
        x = torch.ones(3, device="cuda", requires_grad=True)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(70 * MICROSECOND)
        (2 * x).sum().backward()
        torch.cuda.current_stream().synchronize()
        on_default_s = backend.emulated_time()
        torch.cuda.synchronize()
        return on_default_s, backend.emulated_time()

    assert alone(body) == (0, pytest.approx(70e-6))


def train_sharded(rank, layers, *, kernel_us=0):
    """A forward and a backward pass of sharded layers, whose forward passes hold the stream, after
    one step to warm up; returns the milliseconds of each pass.
    """
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(layers)])
    for layer in model:
        layer.register_forward_hook(lambda *_: torch.cuda._sleep(kernel_us * MICROSECOND))
        fully_shard(layer)
    fully_shard(model)
    x = torch.randn(2, 64, device="cuda")
    model(x).sum().backward()
    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    dist.barrier()
    torch.cuda.synchronize()
    begin.record()
    loss = model(x).sum()
    middle.record()
    loss.backward()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(middle), middle.elapsed_time(end), loss.detach().item()


def test_fully_shard_gathers_the_next_layer_while_a_kernel_runs():
    def program(rank, _world_size, kernel_us):
        return train_sharded(rank, 4, kernel_us=kernel_us)

    runs = [
        backend.spawn(program, 2, args=(kernel_us,), cuda_is_cpu=True).returns
        for kernel_us in (0, 300)
    ]
    for (gathers_ms, _, loss), (forward_ms, _, same_loss) in zip(*runs, strict=True):
        assert loss == same_loss
        assert gathers_ms > 0
        assert forward_ms == pytest.approx(4 * 0.3 + gathers_ms / 4, rel=0.02)


def test_the_streams_of_fully_shard_are_ordered():
    """The check of races, which a program's own stream begins, accepts PyTorch's own code."""

    def program(rank, _world_size):
        torch.cuda.Stream()
        train_sharded(rank, 3)

    result = backend.spawn(program, 2, cuda_is_cpu=True)
    assert not [finding for finding in result.findings if finding.startswith("streams:")]
