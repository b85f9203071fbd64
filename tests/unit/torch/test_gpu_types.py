"""Operators that take more types of numbers on a GPU than on a CPU."""

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, functional = Deferred("torch"), Deferred("torch.nn.functional")
fake, backend = Deferred("torch._subclasses.fake_tensor"), Deferred("simcoll.torch")

pytestmark = needs_torch


def run(program):
    backend.spawn(program, 1, cuda_is_cpu=True)


def test_integers_are_counted():
    """49 places of width 1: in floating point, ``48 / 49 * 49`` is less than 48."""

    def program(_rank, _size):
        x = torch.tensor([0, 3, 3, 7, 1, 2, 48, 49, 50], device="cuda")
        for dtype in ("uint8", "int8", "int16", "int32", "int64"):
            few = torch.histc(x.to(getattr(torch, dtype)), bins=4, min=0, max=3)
            assert few.tolist() == [1, 1, 1, 2]
            assert (str(few.dtype), few.device.type) == (f"torch.{dtype}", "cuda")
        places = torch.histc(x, 49, 0, 49).tolist()
        assert [place for place, count in enumerate(places) if count] == [0, 1, 2, 3, 7, 48]
        assert places[48] == 2
        assert x.histc(3).tolist() == [6, 0, 3]
        assert torch.full([3], 5, device="cuda").histc(2).tolist() == [0, 3]
        assert torch.histc(x.float(), 4, 0, 3).tolist() == [1, 1, 1, 2]
        with pytest.raises(RuntimeError, match="max must be larger"):
            torch.histc(x, 4, 3, 0)
        with pytest.raises(RuntimeError, match="bins must be > 0"):
            torch.histc(x, 0)
        with pytest.raises(NotImplementedError, match="histogram_cpu"):
            torch.histc(x.cpu(), 4, 0, 3)

    run(program)
    with pytest.raises(NotImplementedError, match="histogram_cpu"):
        torch.histc(torch.arange(4))


def test_fake_integers_are_counted():
    def program(_rank, _size):
        with fake.FakeTensorMode():
            x = torch.zeros(9, dtype=torch.int32, device="cuda")
            assert (x.histc(4, 0, 3).shape, x.histc(4).dtype) == ((4,), torch.int32)
            assert x.float().histc(5).shape == (5,)

    run(program)


def inputs_of(operator, dtype):
    """A function of one input, the input, and the other arguments."""
    torch.manual_seed(1)
    if operator == "avg_pool3d":
        return functional.avg_pool3d, torch.randn(2, 3, 4, 4, 6).to(dtype), {"kernel_size": 2}
    if operator == "interpolate":
        options = {"size": (4, 3), "mode": "bilinear", "antialias": True}
        return functional.interpolate, torch.randn(2, 3, 8, 9).to(dtype), options
    scores = torch.randn(3, 5).to(dtype)
    if operator == "multi_margin_loss":
        return functional.multi_margin_loss, scores, {"target": torch.tensor([1, 0, 4])}
    if operator == "multilabel_margin_loss":
        labels = torch.tensor([[1, -1, 0, 0, 0], [0, 1, -1, 0, 0], [4, -1, 0, 0, 0]])
        return functional.multilabel_margin_loss, scores, {"target": labels}
    return torch.round, scores, {"decimals": 2}


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "operator",
    ["avg_pool3d", "interpolate", "multi_margin_loss", "multilabel_margin_loss", "round"],
)
def test_narrow_types_are_computed_in_float32(operator, bits):
    """With their gradients, and rounded once."""

    def program(_rank, _size):
        function, x, options = inputs_of(operator, getattr(torch, bits))
        wide = x.float().requires_grad_()
        expected = function(wide, **options)
        expected.sum().backward()
        narrow = x.cuda().requires_grad_()
        moved = {
            name: value.cuda() if name == "target" else value for name, value in options.items()
        }
        result = function(narrow, **moved)
        result.sum().backward()
        for one, other in ((result, expected), (narrow.grad, wide.grad)):
            assert one.is_cuda
            assert torch.equal(one.cpu(), other.to(x.dtype))

    run(program)


def test_polygamma_takes_halves():
    def program(_rank, _size):
        x = torch.tensor([0.5, 2.0], dtype=torch.float16)
        expected = torch.polygamma(2, x.float()).half()
        assert torch.equal(torch.polygamma(2, x.cuda()).cpu(), expected)

    run(program)
