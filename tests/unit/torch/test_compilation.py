"""``torch.compile`` of modules, which run as they are."""

from __future__ import annotations

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, nn = Deferred("torch"), Deferred("torch.nn")
time, fake_tensor = Deferred("time"), Deferred("torch._subclasses.fake_tensor")
copy, eval_frame = Deferred("copy"), Deferred("torch._dynamo.eval_frame")
backend, dist = Deferred("simcoll.torch"), Deferred("torch.distributed")
functional = Deferred("torch.distributed._functional_collectives")
proxy_tensor = Deferred("torch.fx.experimental.proxy_tensor")

pytestmark = [needs_torch, pytest.mark.slow]
HAS_NO_EFFECT = "ignore:torch.compile"


@pytest.mark.filterwarnings(HAS_NO_EFFECT)
@pytest.mark.parametrize("compute", ["none", "roofline"])
def test_a_compiled_module_wraps_the_program_s(compute):
    def body(_rank, _world_size):
        module = nn.Linear(2, 2)
        compiled = torch.compile(module)
        assert isinstance(compiled, eval_frame.OptimizedModule)
        assert compiled._orig_mod is module
        assert torch.compile(compiled) is compiled
        assert list(compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
        with pytest.raises(TypeError, match="not subscriptable"):
            compiled[0]
        x = torch.ones(1, 2)
        assert torch.equal(compiled(x), module(x))
        assert torch.equal(copy.deepcopy(compiled)(x), module(x))
        compiled.eval()
        return module.training, compiled.in_features

    result = backend.spawn(body, 2, compute=compute, gpu="h100")
    assert result.returns == ((False, 2), (False, 2))


@pytest.mark.filterwarnings(HAS_NO_EFFECT)
def test_hooks_of_a_compiled_module_are_called():
    def body(_rank, _world_size):
        calls = []
        compiled = torch.compile(nn.Linear(2, 2))
        compiled.register_forward_hook(lambda *_: calls.append("wrapper"))
        compiled._orig_mod.register_forward_hook(lambda *_: calls.append("module"))
        compiled(torch.ones(1, 2))
        return calls

    assert backend.spawn(body, 1).returns == (["module", "wrapper"],)


def test_a_condition_runs_the_branch_that_its_tensor_chooses():
    from torch.distributed import init_process_group
    from torch.distributed.tensor import distribute_tensor, init_device_mesh

    def body(_rank, world_size):
        init_process_group("gloo")
        mesh = init_device_mesh("cpu", (world_size,))

        def gradient(x):
            x.requires_grad_()
            result = torch.cond(x.sum() > 4, lambda y: y * 2, lambda y: y * 3, (x,))
            result.sum().backward()
            return x.grad

        plain = [gradient(value * torch.ones(2, 2)).sum().item() for value in (1, 5)]
        sharded = gradient(distribute_tensor(torch.ones(2, 2), mesh))
        return *plain, sharded.full_tensor().sum().item()

    assert backend.spawn(body, 2).returns == ((12.0, 8.0, 12.0),) * 2


def test_a_condition_without_a_value_runs_its_first_branch():
    from torch._subclasses.fake_tensor import FakeTensorMode

    def body(_rank, _size):
        with FakeTensorMode():
            x = torch.ones(4, 8, requires_grad=True)
            result = torch.cond(x.sum() > 0, lambda y: y @ y.T, lambda y: -y @ y.T, (x,))
            result.sum().backward()
            return tuple(result.shape), tuple(x.grad.shape)

    with pytest.warns(UserWarning, match=r"torch\.cond at .* the first branch"):
        result = backend.spawn(body, 1)
    assert result.returns == (((4, 4), (4, 8)),)


def test_a_condition_in_a_transformation_is_that_of_each_element():
    def body(_rank, _size):
        x = torch.tensor([[1.0, 2.0], [-3.0, 1.0]])

        def f(x):
            return torch.cond(x.sum() > 0, lambda y: 2 * y, lambda y: 3 * y, (x,))

        gradient = torch.func.grad(lambda y: f(y).sum())(x[1])
        return torch.vmap(f)(x).tolist(), gradient.tolist()

    expected = [[2.0, 4.0], [-9.0, 3.0]], [3.0, 3.0]
    assert backend.spawn(body, 1).returns == (expected,)


@pytest.mark.parametrize("cuda_is_cpu", [True, False])
def test_make_fx_traces_collectives_in_no_time(cuda_is_cpu):
    def body(rank, world_size):
        dist.init_process_group("gloo")

        def summed(x):
            return functional.all_reduce(x, "sum", dist.group.WORLD)

        graph = proxy_tensor.make_fx(summed, tracing_mode="fake")(torch.ones(2))
        calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        began = backend.emulated_time() == 0
        return calls, began, graph(torch.full((2,), rank + 1.0)).tolist()

    operators = torch.ops._c10d_functional
    expected = [operators.all_reduce.default, operators.wait_tensor.default], True, [3.0, 3.0]
    assert backend.spawn(body, 2, cuda_is_cpu=cuda_is_cpu).returns == (expected, expected)


def test_a_rank_communicates_while_another_one_traces():
    def body(rank, world_size):
        dist.init_process_group("gloo")
        alone = [dist.new_group([member]) for member in range(world_size)][rank]
        if rank == 0:
            traced = proxy_tensor.make_fx(
                lambda x: (time.sleep(1.0), x + 1)[1], tracing_mode="fake"
            )
            traced(torch.ones(2))
        else:
            time.sleep(0.1)
            with fake_tensor.FakeTensorMode():
                functional.all_reduce(torch.ones(2), "sum", alone)
        dist.barrier()

    assert backend.spawn(body, 2).operations == 2
