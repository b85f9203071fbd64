"""Programs in the shape of frameworks: groups in globals of modules, operators of their own, a
value that is found once.
"""

from __future__ import annotations

import sys
import textwrap

import pytest

from tests.support.deferred import Deferred, needs_torch

command = Deferred("simcoll.torch.__main__")

pytestmark = needs_torch

PARALLEL = """
    import torch
    import torch.distributed as dist

    _TENSOR, _DATA, _STATE = None, None, {}

    def initialize(tensor_size):
        global _TENSOR, _DATA
        assert _TENSOR is None, "initialized before"
        rank, size = dist.get_rank(), dist.get_world_size()
        for begin in range(0, size, tensor_size):
            ranks = range(begin, begin + tensor_size)
            group = dist.new_group(ranks)
            if rank in ranks:
                _TENSOR = group
        for offset in range(tensor_size):
            ranks = range(offset, size, tensor_size)
            group = dist.new_group(ranks)
            if rank in ranks:
                _DATA = group

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.clone()
            dist.all_reduce(gradient, group=_TENSOR)
            return gradient

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x = x.clone()
            dist.all_reduce(x, group=_TENSOR)
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Layer(torch.nn.Module):
        def __init__(self, width, hidden):
            super().__init__()
            part, rank = hidden // dist.get_world_size(_TENSOR), dist.get_rank(_TENSOR)
            full = torch.randn(hidden, width) / 8, torch.randn(width, hidden) / 8
            self.up = torch.nn.Parameter(full[0][rank * part : (rank + 1) * part].clone())
            self.down = torch.nn.Parameter(full[1][:, rank * part : (rank + 1) * part].clone())

        def forward(self, x):
            return x + Reduce.apply(torch.relu(Copy.apply(x) @ self.up.t()) @ self.down.t())

    def reduce_gradients(model):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=_DATA)
"""

TRAIN = """
    import torch
    import torch.distributed as dist

    import parallel

    dist.init_process_group("nccl")
    parallel.initialize(2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(parallel.Layer(8, 16), parallel.Layer(8, 16)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(dist.get_rank() // 2)
    for step in range(3):
        model(torch.randn(4, 8, generator=data).cuda()).square().mean().backward()
        parallel.reduce_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    total = torch.tensor([sum(float(each.detach().double().sum()) for each in model.parameters())], dtype=torch.float64)
    dist.all_reduce(total, group=parallel._TENSOR)
    print(f"{dist.get_rank()} {total.item():.9f}")
"""


def plain_sum():
    """The same model in one process: the mean over both halves of the data."""
    import torch

    torch.manual_seed(0)
    layers = [(torch.randn(16, 8) / 8, torch.randn(8, 16) / 8) for _ in range(2)]
    parameters = [each.requires_grad_() for pair in layers for each in pair]
    generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
    for _ in range(3):
        x = torch.cat([torch.randn(4, 8, generator=each) for each in generators])
        for up, down in layers:
            x = x + torch.relu(x @ up.t()) @ down.t()
        gradients = torch.autograd.grad(x.square().mean(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(0.1 * gradient)
    return sum(float(each.detach().double().sum()) for each in parameters)


@pytest.fixture
def played(tmp_path, monkeypatch, capsys):
    """Play a script and the modules beside it on four ranks: its lines, sorted."""

    def play(script, **modules):
        monkeypatch.chdir(tmp_path)
        for name, text in {"train": script, **modules}.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        status = command.main(["-n", "4", "train.py"])
        out, err = capsys.readouterr()
        assert status == 0, err
        return sorted(out.splitlines()[:-1]), err

    return play


@pytest.mark.slow
def test_tensor_parallel_layers_with_groups_in_globals(played):
    lines, _ = played(TRAIN, parallel=PARALLEL)
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]
    assert [float(line.split()[1]) for line in lines] == pytest.approx([plain_sum()] * 4, abs=1e-6)


REGISTERS = """
    import torch
    import torch.distributed as dist

    RANK = None

    @torch.library.custom_op("shape_of_a_framework::add_rank", mutates_args=())
    def add_rank(x: torch.Tensor) -> torch.Tensor:
        return x + RANK

    @add_rank.register_fake
    def _(x):
        return torch.empty(x.shape[0] + RANK)

    add_rank.register_autograd(lambda ctx, gradient: gradient * RANK)

    low = torch.library.Library("shape_of_a_framework", "FRAGMENT")
    low.define("twice(Tensor x) -> Tensor")
    low.impl("twice", lambda x: x * 2 + RANK, "CompositeExplicitAutograd")

    class Pair(tuple):
        pass

    torch.utils._pytree.register_pytree_node(Pair, lambda pair: (list(pair), None), lambda parts, _: Pair(parts))
"""


@pytest.mark.slow
def test_operators_of_a_module_are_each_ranks_own(played):
    script = """
        import torch
        import torch.distributed as dist
        from torch._subclasses.fake_tensor import FakeTensorMode

        import registers

        dist.init_process_group()
        registers.RANK = rank = dist.get_rank()
        dist.barrier()
        x = torch.zeros(1, requires_grad=True)
        found = registers.add_rank(x)
        found.backward()
        with FakeTensorMode():
            rows = torch.ops.shape_of_a_framework.add_rank(torch.zeros(1)).shape[0]
        twice = torch.ops.shape_of_a_framework.twice(torch.zeros(1)).item()
        pair = torch.utils._pytree.tree_map(lambda value: value + rank, registers.Pair((1, 2)))
        print(rank, found.item(), x.grad.item(), rows, twice, *pair)
    """
    for _ in range(2):  # the second run defines them anew
        lines, err = played(script, registers=REGISTERS)
        assert lines == [
            f"{rank} {rank}.0 {rank}.0 {rank + 1} {rank}.0 {rank + 1} {rank + 2}"
            for rank in range(4)
        ]
        assert "share" not in err
    import torch

    assert not hasattr(torch.ops.shape_of_a_framework, "twice")


@pytest.mark.slow
def test_opaque_types_of_a_module_are_each_ranks_own(played):
    opaque = """
        import torch
        from torch._library.opaque_object import register_opaque_type

        class Factor:
            def __init__(self, value):
                self.value = value

            def __eq__(self, other):
                return self.value == other.value

            def __hash__(self):
                return hash(self.value)

            def __fx_repr__(self):
                return f"Factor({self.value})", {"Factor": Factor}

        register_opaque_type(Factor, typ="value")

        @torch.library.custom_op("types_of_a_framework::scaled", mutates_args=())
        def scaled(x: torch.Tensor, factor: Factor) -> torch.Tensor:
            return x * factor.value
    """
    script = """
        import torch
        import torch.distributed as dist
        from torch._library.opaque_object import register_opaque_type

        import opaque

        dist.init_process_group()
        rank = dist.get_rank()
        dist.barrier()
        scaled = opaque.scaled(torch.ones(1), opaque.Factor(rank)).item()
        try:
            register_opaque_type(opaque.Factor, typ="value")
        except RuntimeError as error:
            print(rank, scaled, "already registered" in str(error))
    """
    for _ in range(2):  # the second run registers them anew
        assert played(script, opaque=opaque)[0] == [f"{rank} {rank}.0 True" for rank in range(4)]
    import torch

    assert not torch._C._is_opaque_type_registered("opaque.Factor")


@pytest.mark.slow
def test_operators_of_a_shared_module_outlive_the_run(played, monkeypatch):
    """The module stays loaded, and a later run or program uses them."""
    script = """
        import torch
        import torch.distributed as dist

        import shared_registers

        dist.init_process_group()
        print(dist.get_rank(), torch.ops.shared_framework.twice(torch.ones(1)).item())
    """
    source = REGISTERS.replace("shape_of_a_framework", "shared_framework").replace(
        " + RANK", " + 1"
    )
    monkeypatch.setitem(sys.modules, "shared_registers", None)  # absent again after the test
    del sys.modules["shared_registers"]
    for _ in range(2):
        lines, _ = played(script, shared_registers=f"{source}\n    # torch.ops.load_library")
        assert lines == [f"{rank} 3.0" for rank in range(4)]
    import torch

    assert torch.ops.shared_framework.twice(torch.ones(1)).item() == 3
    assert torch.ops.shared_framework.add_rank(torch.ones(1)).item() == 2
    assert sys.modules["shared_registers"].Pair in torch.utils._pytree.SUPPORTED_NODES


def test_a_cached_property_of_a_shared_class_may_call_collectives(played, monkeypatch, tmp_path):
    script = """
        import functools
        import sys

        import torch
        import torch.distributed as dist

        class Setup:
            @functools.cached_property
            def rank(self):
                dist.init_process_group()
                dist.barrier()
                return dist.get_rank()

        shared = vars(sys).setdefault("one_class_for_all", Setup)  # as of a module that ranks share
        print(shared().rank)
    """
    monkeypatch.setattr("sys.one_class_for_all", None, raising=False)
    monkeypatch.delattr("sys.one_class_for_all")
    try:
        assert played(script)[0] == ["0", "1", "2", "3"]
    finally:
        monkeypatch.delattr("sys.one_class_for_all", raising=False)


def test_hooks_of_a_backward_pass_find_the_devices(played):
    script = """
        import torch
        import torch.distributed as dist

        dist.init_process_group()
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda gradient: gradient + torch.ones(2, device="cuda:0"))
        (x * torch.ones(2, device="cuda")).sum().backward()
        y = torch.ones(2, requires_grad=True)
        y.register_hook(lambda gradient: gradient + torch.ones(2, device=0))
        (gradient,) = torch.autograd.grad(y.sum(), y)
        print(dist.get_rank(), x.grad.tolist(), gradient.tolist())
    """
    assert played(script)[0] == [f"{rank} [2.0, 2.0] [2.0, 2.0]" for rank in range(4)]


INSIDE = """
    import torch

    @torch.library.custom_op("inside_operators::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return 2 * x + torch.ones(3, device="cuda")

    class Counted(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=inner.device)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            inner = [getattr(each, "inner", each) for each in args]
            assert inner[0].is_cuda
            return function(*inner, **(kwargs or {})) + torch.zeros(3, device="cuda")

    torch.cuda.set_device(int(__import__("os").environ["LOCAL_RANK"]))
    x = torch.ones(3, device="cuda")
    y, z = scaled(x), Counted(x) * 4
    print(y.device, y.tolist(), z.device, z.tolist())
"""


def test_what_pytorch_calls_inside_operators_sees_gpus(played):
    """Functions of ``torch.library``, and classes of tensors."""
    lines, _ = played(INSIDE)
    assert lines == [
        f"cuda:{rank} [3.0, 3.0, 3.0] cuda:{rank} [4.0, 4.0, 4.0]" for rank in range(4)
    ]
