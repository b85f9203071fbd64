"""What NCCL would refuse or do differently, found by kind and line under its name."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend = Deferred("simcoll.torch")

pytestmark = [
    needs_torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def findings(body, *, name="nccl", own_devices=True):
    def program(rank, world_size):
        dist.init_process_group(name)
        if own_devices:
            torch.cuda.set_device(rank)
        body(rank)

    return backend.spawn(program, 2, cuda_is_cpu=True).findings


CASES = {
    "a column": (
        lambda _: dist.broadcast(torch.ones(2, 2, device="cuda")[:, 0], 0),
        "broadcast at ",
        "Tensors must be contiguous",
    ),
    "a transpose into one tensor": (
        lambda _: dist.all_gather_into_tensor(
            torch.empty(6, 2, device="cuda"), torch.ones(2, 3, device="cuda").t()
        ),
        "all_gather_into_tensor at ",
        "Tensors must be contiguous",
    ),
    "bits": (
        lambda _: dist.all_reduce(
            torch.ones(2, dtype=torch.int32, device="cuda"), dist.ReduceOp.BXOR
        ),
        "all_reduce at ",
        "Cannot use ReduceOp.BXOR with NCCL",
    ),
    "short integers": (
        lambda _: dist.reduce(torch.ones(2, dtype=torch.int16, device="cuda"), 0),
        "reduce at ",
        "data type torch.int16 is not supported",
    ),
    "scales": (
        lambda _: dist.broadcast(torch.ones(2).to("cuda").to(torch.float8_e8m0fnu), 0),
        "broadcast at ",
        "data type torch.float8_e8m0fnu is not supported",
    ),
    "complex numbers": (
        lambda _: dist.broadcast(torch.ones(2, dtype=torch.complex64, device="cuda"), 0),
        "broadcast at ",
        "data type torch.complex64 is not supported",
    ),
    "a tensor on the host": (
        lambda _: dist.all_reduce(torch.ones(2) * 3),
        "all_reduce at ",
        "Tensors must be CUDA and dense",
    ),
    "a tensor moved back": (
        lambda _: dist.all_reduce(torch.ones(2, device="cuda").cpu()),
        "all_reduce at ",
        "Tensors must be CUDA and dense",
    ),
    "any source": (
        lambda rank: (
            dist.send(torch.ones(1).cuda(), 1) if rank == 0 else dist.recv(torch.ones(1).cuda())
        ),
        "recv at ",
        "NCCL does not receive from any rank",
    ),
    "tags": (
        lambda rank: (
            dist.send(torch.ones(1).cuda(), 1, tag=5)
            if rank == 0
            else dist.recv(torch.ones(1).cuda(), 0, tag=5)
        ),
        "send at ",
        "NCCL ignores tags",
    ),
    "NaN": (
        lambda _: dist.all_reduce(
            torch.tensor([float("nan"), 1], device="cuda"), dist.ReduceOp.MIN
        ),
        "all_reduce at ",
        "ReduceOp.MIN of NaN",
    ),
    "a monitored barrier": (
        lambda _: dist.monitored_barrier(),
        "monitored_barrier at ",
        "only implemented for gloo",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_each_limit_is_a_finding_with_its_line(case):
    body, begin, reason = CASES[case]
    matches = [finding for finding in findings(body) if reason in finding]
    assert matches
    assert any(match.startswith(f"nccl: {begin}") for match in matches)
    assert all("test_nccl_limits.py:" in match for match in matches)


@pytest.mark.slow
def test_other_backends_have_none_of_them():
    for body, _, _ in CASES.values():
        assert findings(body, name="gloo") == ()


@pytest.mark.parametrize("make", ["from_numpy", "frombuffer", "as_tensor"])
def test_tensors_on_memory_of_python_are_on_the_host(make):
    def body(rank):
        memory = np.ones(2, np.float32)
        options = {"dtype": torch.float32} if make == "frombuffer" else {}
        dist.all_reduce(getattr(torch, make)(memory, **options))

    said = findings(body)
    assert len(said) == 1
    assert "the input is on the host" in said[0]


def test_a_tensor_made_of_one_on_a_gpu_is_there():
    def body(rank):
        x = torch.ones(2, device="cuda")
        dist.all_reduce(torch.as_tensor(x))
        dist.all_reduce(torch.asarray(x))

    assert findings(body) == ()


@pytest.mark.slow
def test_two_ranks_on_one_gpu():
    def body(rank):
        dist.all_reduce(torch.ones(2, device="cuda:0"))
        dist.broadcast(torch.ones(2, device="cuda:0"), 0)

    said = findings(body)
    assert len(said) == 1
    assert "ranks 0 and 1 both use device 0 of their node, which NCCL refuses" in said[0]
    (said,) = findings(lambda _: dist.all_reduce(torch.ones(2).cuda()), own_devices=False)
    assert "call torch.cuda.set_device(LOCAL_RANK) first" in said


def of_bound_groups(device_of, place_of):
    """Findings of a collective where groups and tensors are on these devices of each rank."""

    def program(rank, world_size):
        dist.init_process_group("nccl", device_id=device_of(rank))
        dist.all_reduce(torch.ones(2, device=f"cuda:{place_of(rank)}"))

    return backend.spawn(program, 2, cuda_is_cpu=True).findings


@pytest.mark.slow
def test_a_group_is_bound_to_its_device():
    assert of_bound_groups(int, int) == ()
    said = of_bound_groups(int, lambda _: 0)
    assert len(said) == 1
    assert "not on device passed to init_process_group: it is on cuda:0" in said[0]
    assert "device_id was cuda:1" in said[0]
    (said,) = of_bound_groups(lambda _: 1, lambda _: 1)
    assert "ranks 0 and 1 both use device 1 of their node" in said
    assert "nccl: device_id at " in said
    assert "test_nccl_limits.py:" in said


@pytest.mark.slow
def test_programs_as_nccl_wants_them_have_no_findings():
    def body(rank):
        x = torch.ones(4, 4, device="cuda")
        model = torch.nn.Linear(4, 4).cuda()
        y = model(x).sum(0).detach()
        dist.all_reduce(y, dist.ReduceOp.AVG)
        (model(x) * torch.ones(4, device="cuda")).sum().backward()
        dist.all_reduce(model.weight.grad)
        dist.all_reduce(torch.zeros_like(x))
        dist.all_gather([torch.empty(4, 4).cuda().t() for _ in range(2)], x)
        dist.broadcast(torch.zeros(2, device=x.device), 0)
        dist.all_reduce(torch.tensor(1.0).to(torch.device("cuda")))
        dist.broadcast(
            torch.ones(1, 3, 4, 4, device="cuda").to(memory_format=torch.channels_last), 0
        )
        dist.barrier()
        values = [None, None]
        dist.all_gather_object(values, rank)

    assert findings(body) == ()


def test_a_move_between_host_and_gpu_is_a_copy():
    def program(rank, world_size):
        x = torch.ones(3)
        y = x.cuda()
        y.add_(1)
        z = y.cpu()
        y.zero_()
        same = y.cuda()
        same.add_(5)
        return x.tolist(), y.tolist(), z.tolist()

    run = backend.spawn(program, 1, cuda_is_cpu=True)
    assert run.returns == (([1.0] * 3, [5.0] * 3, [2.0] * 3),)


def test_complex_numbers_that_pytorch_sends_itself_are_none():
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh

    def share(_rank):
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        frequencies = torch.ones(2, dtype=torch.complex64, device="cuda")
        distribute_tensor(frequencies, mesh, [Replicate()])

    assert findings(share) == ()


def test_an_error_of_a_later_call_leaves_them():
    def program(rank, world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        dist.all_reduce(torch.ones(2, dtype=torch.int16, device="cuda"))
        dist.isend(torch.ones(2, device="cuda"), 1 - rank)  # cut short by the error
        raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program") as caught:
        backend.spawn(program, 2, cuda_is_cpu=True)
    end, finding = caught.value.__notes__
    assert end.startswith("[rank0]: raised by the program of rank 0")
    assert finding.startswith("simcoll: nccl: all_reduce at ")
    assert "data type torch.int16 is not supported by NCCL" in finding


@pytest.mark.parametrize(("name", "value"), [("nccl", [[[1.0], [2.0]]]), ("gloo", [[1.0], [2.0]])])
def test_a_future_of_gathered_tensors_has_what_its_backend_gives(name, value):
    """NCCL gathers tensors of one shape into one, which PyTorch's quantizing hooks of
    DistributedDataParallel read.
    """

    def program(rank, _world_size):
        dist.init_process_group(name)
        torch.cuda.set_device(rank)
        outputs = [torch.empty(1, device="cuda") for _ in range(2)]
        work = dist.all_gather(outputs, torch.full((1,), rank + 1.0, device="cuda"), async_op=True)
        return [tensor.tolist() for tensor in work.get_future().wait()]

    assert backend.spawn(program, 2, cuda_is_cpu=True).returns == (value, value)
