"""What makes tensors without naming a device, and the types of tensors that name one; the devices
are those of PyTorch on GPUs.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
dlpack = Deferred("torch.utils.dlpack")
data = Deferred("torch.utils.data")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore::UserWarning")]


def on_gpu_1(body):
    """Run a body on the second of two ranks, each with its own GPU selected."""

    def program(rank, _world_size):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        return body() if rank == 1 else None

    return backend.spawn(program, 2, cuda_is_cpu=True).returns[1]


ON_THE_HOST = {
    "a tensor of numbers": lambda: torch.Tensor([1, 2]),
    "a tensor of a shape": lambda: torch.Tensor(2, 3),
    "integers": lambda: torch.LongTensor([1]),
    "an array": lambda: torch.FloatTensor(np.ones(2, np.float32)),
    "dlpack": lambda: torch.from_dlpack(np.ones(2)),
    "dlpack of the module": lambda: dlpack.from_dlpack(np.ones(2)),
    "random numbers": lambda: torch.normal(0.0, 1.0, (2,)),
    "indices": lambda: torch.triu_indices(3, 3),
    "a window": lambda: torch.hann_window(4),
    "a sparse tensor": lambda: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2)),
    "the state of random numbers": lambda: torch.random.get_rng_state()[:8],
    "that of a GPU": lambda: torch.cuda.get_rng_state()[:8],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ON_THE_HOST)
def test_what_names_no_device_is_on_the_host(kind):
    assert on_gpu_1(lambda: str(ON_THE_HOST[kind]().device)) == "cpu"


def test_what_comes_from_tensors_on_a_gpu_is_there():
    def body():
        x = torch.ones(2, device="cuda")
        made = (
            torch.from_dlpack(x),
            torch.normal(x, 1.0),
            torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.long, device="cuda"), x, (2,)),
            x.new([1, 2]),
            torch.as_tensor(x),
        )
        return {str(tensor.device) for tensor in made}

    assert on_gpu_1(body) == {"cuda:1"}


class Ones:
    """A data set."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(2)


@pytest.mark.slow
def test_batches_from_processes_are_on_the_host():
    def body():
        return str(next(iter(data.DataLoader(Ones(), batch_size=2, num_workers=1))).device)

    assert on_gpu_1(body) == "cpu"


def test_types_of_gpus_make_convert_and_recognise():
    def body():
        kind = torch.cuda.FloatTensor
        x, host = kind([1, 2]), torch.ones(2)
        assert repr(x) == "tensor([1., 2.], device='cuda:1')"
        assert repr(torch.cuda.LongTensor([3])) == "tensor([3], device='cuda:1')"
        assert isinstance(x, kind)
        assert not isinstance(host, kind)
        assert not isinstance(x.long(), kind)
        assert isinstance(host, torch.FloatTensor)
        for named in (kind, "torch.cuda.FloatTensor"):
            assert str(host.type(named).device) == "cuda:1"
            assert x.type(named) is x
        for named in (torch.FloatTensor, "torch.FloatTensor"):
            assert str(x.type(named).device) == "cpu"
            assert host.type(named) is host
        half = x.type(torch.float16)
        return str(half.device), half.dtype, host.type("torch.cuda.LongTensor").dtype

    assert on_gpu_1(body) == ("cuda:1", torch.float16, torch.int64)


def test_a_default_type_is_a_device_and_a_dtype():
    def body():
        torch.set_default_tensor_type(torch.cuda.DoubleTensor)
        on_gpu = torch.ones(1), torch.Tensor(1)
        torch.set_default_tensor_type("torch.FloatTensor")
        on_host = torch.ones(1), torch.Tensor(1)
        return [(str(tensor.device), tensor.dtype) for tensor in (*on_gpu, *on_host)]

    assert on_gpu_1(body) == [
        *[("cuda:1", torch.float64)] * 2,
        *[("cpu", torch.float32)] * 2,
    ]


def test_outside_a_run_the_types_of_gpus_are_pytorchs():
    assert type(torch.cuda.FloatTensor) is type(torch.FloatTensor)
