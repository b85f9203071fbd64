"""``torch.cuda.comm`` on emulated devices: PyTorch's operators on the CPU are the oracle, its
sources and tests that of the errors.
"""

from __future__ import annotations

import pytest

from tests.support.deferred import Deferred, needs_torch

torch = Deferred("torch")
comm = Deferred("simcoll.torch.cuda_comm")
theirs = Deferred("torch.cuda.comm")

pytestmark = needs_torch


def where(tensors):
    return [str(tensor.device) for tensor in tensors]


def plain(tensor):
    return tensor.cpu() if tensor.is_cuda else tensor


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_scatter_and_gather(dtype):
    x = torch.arange(42).reshape(6, 7).to(getattr(torch, dtype))
    for dim in (0, 1, -1):
        parts = comm.scatter(x, [torch.device("cuda:0"), "cuda:2", 1], dim=dim)
        assert where(parts) == ["cuda:0", "cuda:2", "cuda:1"]
        for part, want in zip(parts, x.chunk(3, dim), strict=True):
            assert torch.equal(plain(part), want)
        for destination, device in (
            (None, "cuda:0"),
            ("cuda:1", "cuda:1"),
            (torch.device("cpu"), "cpu"),
        ):
            whole = comm.gather(parts, dim, destination)
            assert torch.equal(plain(whole), x)
            assert str(whole.device) == device


def test_chunks_on_the_own_device_are_views():
    x = comm.on_device(torch.zeros(4), 1)
    here, there = comm.scatter(x, [1, 0], chunk_sizes=[3, 1])
    here.fill_(7)
    there.fill_(8)
    assert x.tolist() == [7, 7, 7, 0]
    assert there.get_device() == 0


def test_broadcast_and_outputs():
    x = comm.on_device(torch.arange(3.0), 0)
    copies = comm.broadcast(x, [0, 1, 1])
    assert copies[0] is x
    assert where(copies) == ["cuda:0", "cuda:1", "cuda:1"]
    out = [comm.on_device(torch.zeros(3), device) for device in (2, 3)]
    assert all(found is given for found, given in zip(comm.broadcast(x, out=out), out, strict=True))
    assert [each.tolist() for each in out] == [[0, 1, 2]] * 2
    parts = [comm.on_device(torch.zeros(size), 1) for size in (1, 2)]
    assert all(
        found is given for found, given in zip(comm.scatter(x, out=parts), parts, strict=True)
    )
    assert [each.tolist() for each in parts] == [[0], [1, 2]]
    assert comm.gather(parts, out=(whole := torch.zeros(3))) is whole
    assert whole.tolist() == [0, 1, 2]


def test_reduce_add():
    values = [
        torch.randint(-9, 9, (2, 5), generator=torch.Generator().manual_seed(seed))
        for seed in range(3)
    ]
    total = comm.reduce_add(
        [comm.on_device(value, device) for device, value in enumerate(values)], 2
    )
    assert torch.equal(plain(total), sum(values))
    assert str(total.device) == "cuda:2"
    alone = comm.on_device(values[0], 0)
    assert comm.reduce_add([alone]) is alone


def test_coalesced():
    shapes = ((2, 3), (4,), (0,), (5,))
    tensors = [comm.on_device(torch.randn(shape), 0) for shape in shapes] + [
        comm.on_device(torch.arange(3), 0)
    ]
    rows = comm.broadcast_coalesced(tensors, [0, 1, 2], buffer_size=32)
    assert all(a is b for a, b in zip(rows[0], tensors, strict=True))
    for device, row in enumerate(rows):
        assert where(row) == [f"cuda:{device}"] * 5
        assert all(torch.equal(plain(a), plain(b)) for a, b in zip(row, tensors, strict=True))
    for total, one in zip(comm.reduce_add_coalesced(rows, 1, buffer_size=32), tensors, strict=True):
        assert torch.allclose(plain(total), 3 * plain(one))
        assert total.get_device() == 1


def test_operators_keep_the_device():
    x, y = (comm.on_device(torch.ones(2), device) for device in (0, 1))
    assert (x + 1).get_device() == 0
    assert (y * 2).sum().get_device() == 1
    with pytest.raises(
        RuntimeError,
        match=r"on the same device, but found at least two devices, cuda:0 and cuda:1!",
    ):
        x + y
    assert torch.equal(plain(x + y.to("cuda:0")), torch.full((2,), 2.0))
    assert str(y.to("cpu").device) == "cpu"
    assert y.to(torch.float64).dtype is torch.float64


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x, d: comm.scatter(x, [0], out=[d]),
            RuntimeError,
            "'devices' must not be specified when 'out'",
        ),
        (
            lambda x, d: comm.scatter(x, chunk_sizes=[4], out=[d]),
            RuntimeError,
            "'chunk_sizes' must not be specified",
        ),
        (
            lambda x, _: comm.scatter(x, [0, 1, 2], [1, 3]),
            RuntimeError,
            r"len\(devices\) = 3 and len\(chunk_sizes\) = 2",
        ),
        (
            lambda x, _: comm.scatter(x, []),
            RuntimeError,
            "Expected at least one device to scatter to",
        ),
        (
            lambda x, _: comm.scatter(x, ["cpu"]),
            ValueError,
            "Expected a non cpu device, but got: cpu",
        ),
        (
            lambda x, _: comm.scatter(x, [torch.device("cuda")]),
            ValueError,
            "with a specified index",
        ),
        (lambda x, _: comm.scatter(x, [-2]), RuntimeError, "Expected non-negative device index"),
        (
            lambda x, _: comm.scatter(x, out=[x]),
            RuntimeError,
            "output tensor at index 0 has device 'cpu'",
        ),
        (lambda x, _: comm.scatter(x, [0], dim=3), IndexError, "Dimension out of range"),
        (
            lambda x, _: comm.broadcast(x),
            RuntimeError,
            "Exactly one of 'devices' and 'out' must be specified",
        ),
        (
            lambda x, _: comm.broadcast_coalesced([x], [0]),
            RuntimeError,
            r"All tensors must be on devices\[0\]: 0",
        ),
        (lambda x, d: comm.reduce_add([x, d]), AssertionError, "input 0 is on CPU"),
        (
            lambda _, d: comm.reduce_add([d, d[:2]]),
            ValueError,
            "input 1 has invalid size: got 2, but expected 4",
        ),
        (
            lambda _, d: comm.reduce_add([d, d], 3),
            RuntimeError,
            "on the same GPU with one of the tensors",
        ),
        (lambda x, _: comm.gather([x]), RuntimeError, "tensor at index 0 has device cpu$"),
        (
            lambda _, d: comm.gather([d, d.unsqueeze(0)]),
            RuntimeError,
            "to have the same number of dimensions",
        ),
        (
            lambda x, d: comm.gather([d], destination=0, out=x),
            RuntimeError,
            "'destination' must not be specified",
        ),
        (
            lambda x, d: comm.gather([d], out=x[:2]),
            RuntimeError,
            r"to have shape \[4\], but got \[2\]",
        ),
    ],
)
def test_errors(call, error, text):
    x = torch.arange(4.0)
    with pytest.raises(error, match=text):
        call(x, comm.on_device(x, 0))


@pytest.mark.parametrize(
    "call",
    [
        lambda module, x: module.broadcast(x),
        lambda module, x: module.broadcast(x, [], out=[]),
        lambda module, x: module.broadcast(x, ["cuda"]),
        lambda module, x: module.broadcast(x, [1.5]),
        lambda module, x: module.broadcast(x, ["cuda:x"]),
        lambda module, x: module.broadcast_coalesced([x], [torch.device("cpu")]),
        lambda module, x: module.scatter(x, ["cpu"]),
        lambda module, x: module.scatter(x, [None]),
        lambda module, x: module.scatter(x, [0], out=[x]),
        lambda module, x: module.scatter(x, chunk_sizes=[4], out=[x]),
        lambda module, x: module.gather([x], destination="cuda:1.5"),
        lambda module, x: module.gather([x], destination=0, out=x),
        lambda module, x: module.reduce_add([x]),
        lambda module, x: module.reduce_add([x], "cpu"),
    ],
)
def test_errors_are_those_of_the_wheel(call):
    """What PyTorch refuses before it comes to CUDA, it says in the same words."""
    found = []
    for module in (theirs, comm):
        with pytest.raises((RuntimeError, ValueError, AssertionError)) as refused:
            call(module, torch.arange(4.0))
        found.append((refused.type, str(refused.value)))
    assert found[0] == found[1]
