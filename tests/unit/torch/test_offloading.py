"""Where tensors live: copies over PCIe, operators on the host, and memory of each."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist, nn = Deferred("torch"), Deferred("torch.distributed"), Deferred("torch.nn")
fsdp, graph = Deferred("torch.distributed.fsdp"), Deferred("torch.autograd.graph")
device_mesh = Deferred("torch.distributed.device_mesh")
fake_tensor = Deferred("torch._subclasses.fake_tensor")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore:operators on the host")]

BYTES = 4 << 20
"""Of a tensor of 1024 x 1024 floats."""
PCIE, HOST_MEMORY = 63e9, 0.8 * 76.8e9
"""Bytes per second: 16 lanes of PCIe 5.0; four fifths of an H100's share of DDR5 in a DGX H100."""
LAUNCH = 10e-6
"""Seconds that the host takes to launch an operator."""


def run(body, ranks=1, **options):
    options = {"cuda_is_cpu": True, "compute": "roofline", "gpu": "h100", **options}
    return backend.spawn(body, ranks, **options)


def seconds_of(call):
    """Simulated seconds until the host and all streams have done it."""
    torch.cuda.synchronize()
    begin = backend.emulated_time()
    call()
    torch.cuda.synchronize()
    return backend.emulated_time() - begin


@pytest.mark.slow
@pytest.mark.parametrize("move", ["cpu", "to", "to_other", "copy", "cuda", "module"])
def test_a_move_takes_its_bytes_over_pcie(move):
    def body(rank, world_size):
        there, here = torch.ones(1024, 1024, device="cuda"), torch.ones(1024, 1024, device="cpu")
        model = nn.Linear(1024, 1024, bias=False, device="cuda")
        moves = {
            "cpu": there.cpu,
            "to": lambda: there.to("cpu"),
            "to_other": lambda: here.to(there),
            "copy": lambda: there.copy_(here),
            "cuda": here.cuda,
            "module": lambda: model.to("cpu"),
        }
        return seconds_of(moves[move])

    assert run(body).returns[0] == pytest.approx(BYTES / PCIE, rel=1e-6)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_copy_to_pinned_memory_leaves_the_host_free(pinned):
    def body(rank, world_size):
        with fake_tensor.FakeTensorMode():
            there = torch.ones(1024, 1024, device="cuda")
            here = torch.empty(1024, 1024, pin_memory=pinned, device="cpu")
            assert here.is_pinned() == pinned
            torch.cuda.synchronize()
            begin = backend.emulated_time()
            here.copy_(there, non_blocking=True)
            host = backend.emulated_time() - begin
            torch.cuda.synchronize()
            return host, backend.emulated_time() - begin

    host, both = run(body).returns[0]
    launch = 10e-6
    assert both == pytest.approx(BYTES / PCIE + launch, rel=1e-3)
    assert host == pytest.approx(launch if pinned else both, rel=1e-3)


def test_an_optimizer_on_the_host_takes_the_time_of_its_memory():
    def body(rank, world_size):
        parameter = nn.Parameter(torch.ones(1024, 1024, device="cuda").cpu())
        parameter.grad = torch.ones(1024, 1024, device="cuda").cpu()
        optimizer = torch.optim.SGD([parameter], lr=0.5, foreach=False)
        seconds = seconds_of(optimizer.step)
        assert parameter.sum().item() == 0.5 * 2**20
        return seconds

    # Reads the parameter and the gradient, and writes the parameter.
    assert run(body).returns[0] == pytest.approx(3 * BYTES / HOST_MEMORY, rel=1e-6)


def test_tensors_of_the_host_are_no_memory_of_the_gpu():
    def body(rank, world_size):
        kept = torch.zeros(1024, 1024, device="cuda")
        offloaded = [torch.zeros(1024, 1024, pin_memory=True) for _ in range(3)]
        offloaded.append(offloaded[0] * 2)
        back = offloaded[0].cuda()
        held = torch.cuda.memory_allocated()
        del back
        return held, torch.cuda.memory_allocated(), kept.shape

    result = run(body)
    assert result.returns[0][:2] == (2 * BYTES, BYTES)
    assert result.peak_bytes == (2 * BYTES,)
    assert result.host_peak_bytes == (4 * BYTES,)


def test_tensors_without_a_device_are_on_the_host_until_they_move():
    def body(rank, world_size):
        before = torch.cuda.memory_allocated()
        data = torch.zeros(1024, 1024)
        data = data + torch.from_numpy(data.numpy())  # with a third one for a moment
        model = torch.nn.Linear(1024, 1024, bias=False)
        sizes = [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
        model.cuda()
        sizes.append(torch.cuda.memory_allocated())
        result = model(data.cuda())
        sizes.append(torch.cuda.memory_allocated())
        del result
        sizes.append(torch.cuda.memory_allocated())
        sizes.append(torch.cuda.max_memory_allocated())
        return [size // BYTES for size in (before, *sizes)]

    assert run(body).returns[0] == [0, 0, 0, 1, 3, 1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("decides", [True, False])
def test_an_assumed_rate_is_told_where_it_decides(decides):
    def body(rank, world_size):
        x = torch.ones(1024, 1024, device="cuda")
        for _ in range(1 if decides else 2000):
            x = x * 2
        x.cpu().mul_(2)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(body)
    texts = [str(warning.message) for warning in told]
    assert [text.startswith("operators on the host, which decide") for text in texts] == [
        True
    ] * decides


def test_pinned_memory_is_a_copy_that_the_host_makes():
    def body(rank, world_size):
        x = torch.ones(1024, 1024)
        begin = time.perf_counter()
        pinned = x.pin_memory()
        seconds = time.perf_counter() - begin
        pinned.add_(1)
        assert pinned.pin_memory() is pinned
        with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
            torch.ones(2, device="cuda").pin_memory()
        return seconds, x.sum().item(), pinned.sum().item(), x.is_pinned()

    seconds, total, sum_pinned, x_is_pinned = run(body).returns[0]
    assert seconds == pytest.approx(2 * BYTES / HOST_MEMORY, rel=1e-4)
    assert (total, sum_pinned, x_is_pinned) == (2**20, 2**21, False)


def test_reading_an_element_of_a_gpu_is_a_copy():
    def body(rank, world_size):
        x, y = torch.ones(4, device="cuda"), torch.ones(4)
        reads = (x[0].item, x.tolist, lambda: bool(x[0]), y[0].item, y.tolist)
        return [seconds_of(read) for read in reads]

    launch, none = pytest.approx(LAUNCH, rel=1e-3), pytest.approx(0, abs=1e-8)
    assert run(body).returns[0] == [launch, launch, launch, none, none]


def test_numpy_of_a_tensor_on_a_gpu_is_found():
    def body(rank, world_size):
        x = torch.ones(4, device="cuda")
        np.asarray(x.cpu()), x.cpu().numpy(), torch.ones(2).numpy()
        repr(x)
        x.numpy()

    with pytest.warns(UserWarning, match=r"Tensor.numpy at .*: the tensor is on a GPU, where"):
        assert len(run(body).findings) == 1


def test_each_gpu_has_its_own_memory():
    def body(rank, world_size):
        mine = torch.ones(1024, 1024, device=f"cuda:{rank}")
        assert torch.cuda.memory_allocated(rank) == mine.nbytes
        assert torch.cuda.memory_allocated(1 - rank) == 0
        assert torch.cuda.max_memory_allocated(1 - rank) == 0
        return torch.cuda.max_memory_allocated(rank)

    assert run(body, ranks=2).returns == (BYTES, BYTES)


def test_a_gradient_on_the_host_is_a_copy():
    def body(rank, world_size):
        weight = nn.Parameter(torch.ones(4, device="cuda"))
        weight.sum().backward()
        copy = weight.grad.cpu()
        weight.grad.zero_()
        return copy.sum().item()

    assert run(body).returns[0] == 4


@pytest.mark.slow
@pytest.mark.parametrize("pinned", [True, False])
def test_saved_tensors_go_to_the_host_and_come_back(pinned):
    def body(rank, world_size, offloads):
        x = torch.full((1024, 1024), 2.0, device="cuda", requires_grad=True)

        def step():
            if offloads:
                with graph.save_on_cpu(pin_memory=pinned):
                    y = x.exp()
                    held.append(torch.cuda.memory_allocated())
            else:
                y = x.exp()
            y.sum().backward()

        held: list[int] = []
        return seconds_of(step), x.grad.sum().item()

    (plain, sum_plain), (offloaded, sum_offloaded) = (
        run(body, args=(offloads,)).returns[0] for offloads in (False, True)
    )
    assert sum_offloaded == sum_plain
    assert offloaded - plain == pytest.approx(2 * BYTES / PCIE, rel=0.05)


@pytest.mark.slow
def test_offload_of_fully_shard_takes_copies_and_a_step_on_the_host():
    def body(rank, world_size, offloads):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        mesh = device_mesh.init_device_mesh("cuda", (2,))
        policy = fsdp.CPUOffloadPolicy() if offloads else fsdp.OffloadPolicy()
        model = nn.Linear(1024, 1024, bias=False)
        fsdp.fully_shard(model, mesh=mesh, offload_policy=policy)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
        x = torch.ones(8, 1024, device="cuda")

        def passes():
            model(x).sum().backward()

        times = seconds_of(passes), seconds_of(optimizer.step)
        return *times, model.weight.to_local().sum().item(), torch.cuda.memory_allocated()

    plain, offloaded = (
        run(body, 2, args=(offloads,), topology="dgx-h100") for offloads in (False, True)
    )
    passes, step, total, held = zip(plain.returns[0], offloaded.returns[0], strict=True)
    assert total[0] == total[1]
    shard = BYTES / 2
    # Parameters come before the forward pass (it reshards not, as the root), gradients go after.
    assert passes[1] - passes[0] == pytest.approx(2 * shard / PCIE, rel=0.2)
    assert step[1] == pytest.approx(3 * shard / HOST_MEMORY, rel=1e-3)
    assert held[0] - held[1] == pytest.approx(2 * shard, rel=0.1)  # parameter and gradient
    assert offloaded.host_peak_bytes[0] >= 2 * shard


@pytest.mark.slow
def test_fully_shard_offloads_no_parameters_that_are_on_gpus():
    def body(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        model = fsdp.fully_shard(nn.Linear(2, 2), offload_policy=fsdp.CPUOffloadPolicy())
        x = torch.ones(1, 2, device="cuda")
        model(x)
        policy = fsdp.CPUOffloadPolicy(pin_memory=False)  # pinning would move them back
        moved = fsdp.fully_shard(nn.Linear(2, 2), offload_policy=policy)
        moved.cuda()
        with pytest.raises(RuntimeError, match=rf"'weight', device\(type='cuda', index={rank}\)"):
            moved(x)
        return True

    assert run(body, 2).returns == (True, True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_offload_of_the_first_fsdp_takes_copies_and_a_step_on_the_host():
    def body(rank, world_size, offloads):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        model = fsdp.FullyShardedDataParallel(
            nn.Linear(1024, 1024, bias=False),
            device_id=rank,
            cpu_offload=fsdp.CPUOffload(offload_params=offloads),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
        x = torch.ones(8, 1024, device="cuda")

        def passes():
            model(x).sum().backward()

        passes()  # and prepare
        optimizer.zero_grad()  # it does not accumulate gradients that it offloads
        times = seconds_of(passes), seconds_of(optimizer.step)
        (weight,) = model.parameters()
        return *times, weight.sum().item(), weight.device.type

    plain, offloaded = (
        run(body, 2, args=(offloads,), topology="dgx-h100") for offloads in (False, True)
    )
    passes, step, total, devices = zip(plain.returns[0], offloaded.returns[0], strict=True)
    assert total[0] == total[1]
    assert devices == ("cuda", "cpu")
    shard = BYTES / 2
    # Parameters come before each pass, also for a root that reshards not, and gradients go after.
    assert passes[1] - passes[0] == pytest.approx(3 * shard / PCIE, rel=0.2)
    assert step[1] == pytest.approx(3 * shard / HOST_MEMORY, rel=1e-3)
    assert offloaded.host_peak_bytes[0] >= 2 * shard


def test_a_module_that_was_moved_to_its_gpu_is_no_finding_of_nccl():
    def body(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        model = nn.Linear(2, 2)
        model.to("cuda")
        dist.all_reduce(model.weight.data)
        dist.all_reduce(nn.Linear(2, 2).to(torch.device("cuda", rank)).weight.data)

    assert run(body, 2).findings == ()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*take no time:UserWarning")
@pytest.mark.parametrize("offload", ["save_on_cpu", "CPUOffloadPolicy", "CPUOffload"])
def test_offload_that_is_not_timed_is_a_finding(offload):
    def body(rank, world_size):
        if offload == "save_on_cpu":
            graph.save_on_cpu()
        elif offload == "CPUOffload":
            fsdp.CPUOffload(offload_params=True)
        else:
            fsdp.CPUOffloadPolicy()

    (finding,) = run(body, cuda_is_cpu=False).findings
    assert finding.startswith(offload)
    assert run(body, compute="none").findings == ()


@pytest.mark.filterwarnings("ignore:.*multiplies matrices on the host:UserWarning")
def test_products_on_the_host_are_a_finding():
    def body(rank, world_size):
        x = torch.ones(4, 4, device="cpu")
        return (x @ x).sum().item()

    (finding,) = run(body).findings
    assert "multiplies matrices on the host" in finding
