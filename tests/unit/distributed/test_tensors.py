"""Torch CPU tensors and other people's memory: used without a copy, results land in them."""

import array
import subprocess
import sys

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll import cuda_comm as comm
from simcoll.distributed.api.arguments import as_array
from simcoll.distributed.api.groups import group

N = 3
NAMES = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)


def run(program):
    return dist.spawn(program, N).returns


@pytest.mark.slow
def test_torch_is_not_imported():
    code = (
        "import sys, simcoll, simcoll.distributed, simcoll.cuda_comm; assert 'torch' not in "
        "sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def numbers(torch, rank, name, shape=(6,)):
    """Small whole numbers, exact in every type."""
    size = int(np.prod(shape))
    values = torch.tensor([(rank + i) % 2 for i in range(size)])
    return values.to(torch.float32).to(getattr(torch, name)).reshape(shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_is_reduced_and_moved_in_place(torch, name):
    def program(rank, world_size):
        x = numbers(torch, rank, name)
        address = x.data_ptr()
        assert as_array(x).ctypes.data == address
        assert as_array(x).dtype.name == name
        dist.all_reduce(x, op=dist.ReduceOp.SUM)
        # Torch's own sums, where it has them; float8 has none.
        inputs = [numbers(torch, r, name).to(torch.complex128) for r in range(world_size)]
        expected = sum(inputs).real.bool() if name == "bool" else sum(inputs)
        assert torch.equal(x.to(torch.complex128), expected.to(torch.complex128))
        dist.broadcast(x, 1)
        outputs = [torch.zeros_like(x) for _ in range(world_size)]
        dist.all_gather(outputs, numbers(torch, rank, name))
        whole = torch.zeros_like(x)
        dist.all_to_all_single(whole, numbers(torch, rank, name))
        if rank == 0:
            dist.send(numbers(torch, 5, name), 1)
        elif rank == 1:
            dist.recv(x)
            assert torch.equal(x.view(torch.uint8), numbers(torch, 5, name).view(torch.uint8))
        assert x.data_ptr() == address
        for r, output in enumerate(outputs):
            assert torch.equal(output.view(torch.uint8), numbers(torch, r, name).view(torch.uint8))
        parts = torch.cat(
            [numbers(torch, r, name)[2 * rank : 2 * rank + 2] for r in range(world_size)]
        )
        assert torch.equal(whole.view(torch.uint8), parts.view(torch.uint8))

    run(program)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2", "complex64"])
def test_views_keep_their_strides(torch, name):
    def program(rank, world_size):
        whole = torch.zeros((4, 6), dtype=getattr(torch, name))
        view = whole.t()[1:4, ::2]
        view.copy_(numbers(torch, rank, name, (3, 2)))
        work = dist.all_reduce(view, async_op=True)
        work.wait()
        assert work.result()[0] is view
        return whole.to(torch.complex64).real.tolist()

    ones = run(program)[0]
    # Ranks 0 and 2 bring i % 2, rank 1 brings (i + 1) % 2.
    expected = np.zeros((4, 6))
    expected.T[1:4, ::2] = np.array([[1, 2], [1, 2], [1, 2]])
    assert ones == expected.tolist()


def test_scalars_and_empty_tensors(torch):
    def program(rank, world_size):
        scalar, empty = torch.tensor(2.0, dtype=torch.bfloat16), torch.zeros((0, 3))
        dist.all_reduce(scalar)
        dist.all_reduce(empty)
        return float(scalar), tuple(empty.shape)

    assert run(program) == ((6.0, (0, 3)),) * N


def test_gradients_are_left_alone(torch):
    def program(rank, world_size):
        weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        leaf = torch.ones(2, requires_grad=True)
        dist.all_reduce(leaf)
        dist.all_reduce(weight)
        (leaf * 3).sum().backward()
        assert weight.requires_grad
        return leaf.tolist(), leaf.grad.tolist(), weight.tolist()

    assert run(program) == (([3.0, 3.0], [3.0, 3.0], [3.0, 3.0]),) * N


def test_tensors_that_have_no_memory_to_share_are_refused(torch):
    def program(rank, world_size):
        for wrong, kind, text in (
            (torch.zeros(3).to_sparse(), TypeError, "to_dense"),
            (torch.zeros(3, device="meta"), TypeError, "meta device"),
            (
                torch.zeros(3, dtype=torch.bfloat16, device="meta"),
                TypeError,
                "meta device|BFloat16",
            ),
            (torch.zeros(3, dtype=torch.complex64).conj(), RuntimeError, "resolve_conj"),
            (torch.zeros(3, dtype=torch.float8_e8m0fnu), TypeError, "float8_e8m0fnu"),
        ):
            with pytest.raises(kind, match=text):
                dist.all_reduce(wrong)

    run(program)


def test_mixed_kinds_meet(torch):
    """One rank may bring a tensor, another an array, a third a buffer."""

    def program(rank, world_size):
        x = (torch.ones(4, dtype=torch.float64), np.ones(4), array.array("d", [1] * 4))[rank]
        dist.all_reduce(x)
        raw = bytearray(2) if rank else bytearray(b"hi")
        dist.broadcast(raw, 0)
        assert dist.get_world_size(group.WORLD) == N
        return list(map(float, x)), bytes(raw)

    assert run(program) == (([3.0] * 4, b"hi"),) * N


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "complex64"])
def test_comm_takes_tensors(torch, name):
    x = numbers(torch, 1, name)
    chunks = comm.scatter(x, [0, 1, 2])
    assert [chunk.array.dtype.name for chunk in chunks] == [name] * 3
    outs = [torch.zeros_like(x) for _ in range(2)]
    comm.broadcast(x, out=[comm.DeviceArray(out, device) for device, out in enumerate(outs)])
    assert all(torch.equal(out.view(torch.uint8), x.view(torch.uint8)) for out in outs)
    joined = torch.zeros_like(x)
    comm.gather(chunks, out=comm.DeviceArray(joined, 0))
    assert torch.equal(joined.view(torch.uint8), x.view(torch.uint8))
    total = comm.reduce_add([comm.DeviceArray(out, device) for device, out in enumerate(outs)])
    assert total.array.astype(np.complex64).real.tolist() == [2.0, 0.0] * 3
    leaf = torch.ones(4, requires_grad=True)
    assert comm.broadcast(leaf, [0, 1])[1].array.tolist() == [1.0] * 4
