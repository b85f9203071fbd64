"""RPC between ranks: calls, references, errors and times, with PyTorch's results."""

from __future__ import annotations

import functools
import threading

import pytest

from simcoll.errors import ConfigError
from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
rpc = Deferred("torch.distributed.rpc")
dist_autograd = Deferred("torch.distributed.autograd")
fake_tensor = Deferred("torch._subclasses.fake_tensor")
parallel, optim = Deferred("torch.nn.parallel"), Deferred("torch.distributed.optim")
remote_module = Deferred("torch.distributed.nn.api.remote_module")
command, backend = Deferred("simcoll.torch.__main__"), Deferred("simcoll.torch")

pytestmark = needs_torch


def add(a, b):
    return a + b


def fail(number):
    raise ValueError(f"no number {number}")


def wait_for_ever():
    threading.Event().wait()


def shape_and_gradient(tensor):
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad


def sum_of_layout(tensor):
    return tensor.layout, tensor.to_dense().tolist()


class Counter:
    def __init__(self, start):
        self.count = start

    def raise_by(self, step=1):
        self.count += step
        return self.count

    def worker(self):
        return rpc.get_worker_info().name


def raise_counter(counter, step):
    return counter.rpc_sync().raise_by(step), counter.is_owner(), counter.owner_name()


def train_with_remote_rows(embedding, rank):
    layer = parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    torch.nn.init.ones_(layer.module.weight)
    references = [*embedding.remote_parameters(), rpc.RRef(layer.module.weight)]
    optimizer = optim.DistributedOptimizer(torch.optim.SGD, references, lr=0.5)
    with dist_autograd.context() as context:
        rows = embedding.forward(torch.tensor([rank]), torch.tensor([0]))
        loss = layer(rows).sum()
        dist_autograd.backward(context, [loss])
        optimizer.step(context)
    return loss.item(), layer.module.weight.flatten().tolist()


def copy_of(reference):
    return reference.to_here()


def add_elsewhere(worker, x, y, z):
    return rpc.rpc_async(worker, torch.add, args=(x, y)).then(lambda future: future.wait() + z)


add_elsewhere._wrapped_async_rpc_function = add_elsewhere  # as async_execution marks it


def run(body, ranks=3, **options):
    """Play ``body()`` on worker 0 while the others answer; its value."""

    def program(rank, world_size):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
        value = body() if rank == 0 else None
        rpc.shutdown()
        return value

    return backend.spawn(program, ranks, **options)


@pytest.mark.slow
def test_calls():
    """The documentation's examples of PyTorch, and their values."""

    def body():
        first = rpc.rpc_async("worker1", torch.add, args=(torch.ones(2), 3))
        second = rpc.rpc_async("worker2", min, args=(1, 2))
        return [
            rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 3)).tolist(),
            (first.wait() + second.wait()).tolist(),
            rpc.rpc_sync(1, add, kwargs={"a": 2, "b": 3}),
            rpc.rpc_sync(rpc.get_worker_info("worker2"), add, args=("a", "b")),
            rpc.rpc_sync("worker0", add, args=(1, 1)),
        ]

    assert run(body).returns[0] == [[4.0, 4.0], [5.0, 5.0], 5, "ab", 2]


@pytest.mark.slow
def test_tensors_keep_what_they_are():
    def body():
        empty = torch.ones(0, 3, dtype=torch.bfloat16)
        sparse = torch.eye(2).to_sparse()
        strided = torch.arange(6.0).reshape(2, 3).t()
        return [
            rpc.rpc_sync("worker1", shape_and_gradient, args=(empty,)),
            rpc.rpc_sync("worker1", shape_and_gradient, args=(torch.ones((), requires_grad=True),)),
            rpc.rpc_sync("worker1", sum_of_layout, args=(sparse,)),
            rpc.rpc_sync("worker1", add, args=(strided, 1)).tolist(),
        ]

    assert run(body).returns[0] == [
        ((0, 3), torch.bfloat16, False),
        ((), torch.float32, True),
        (torch.sparse_coo, [[1.0, 0.0], [0.0, 1.0]]),
        [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]],
    ]


@pytest.mark.slow
def test_references():
    def body():
        x = rpc.remote("worker1", torch.add, args=(torch.ones(2), 3))
        y = rpc.remote("worker1", torch.add, args=(torch.ones(2), 1))
        counter = rpc.remote("worker1", Counter, args=(10,))
        own = rpc.RRef([1, 2])
        with pytest.raises(RuntimeError, match=r"local_value.* on user .*worker0"):
            counter.local_value()
        return [
            (x.to_here() + y.to_here()).tolist(),
            counter.rpc_sync().raise_by(),
            counter.rpc_async().raise_by(5).wait(),
            counter.remote().raise_by(step=2).to_here(),
            counter.rpc_sync().worker(),
            rpc.rpc_sync("worker2", raise_counter, args=(counter, 100)),
            (own.is_owner(), own.owner().name, own.local_value() is own.to_here()),
            rpc.rpc_sync("worker2", copy_of, args=(own,)),
            isinstance(own, rpc.RRef),
        ]

    assert run(body).returns[0] == [
        [6.0, 6.0],
        11,
        16,
        18,
        "worker1",
        (118, False, "worker1"),
        (True, "worker0", True),
        [1, 2],
        True,
    ]


@pytest.mark.slow
def test_a_function_that_answers_later():
    def body():
        arguments = ("worker2", torch.ones(2), 1, 1)
        return rpc.rpc_sync("worker1", add_elsewhere, args=arguments).tolist()

    assert run(body).returns[0] == [3.0, 3.0]


@pytest.mark.parametrize("way", ["rpc_sync", "rpc_async", "remote"])
def test_an_error_of_a_call_is_raised_in_the_caller(way):
    def body():
        answer = getattr(rpc, way)("worker1", fail, args=(7,))
        return answer.wait() if way == "rpc_async" else answer.to_here()

    with pytest.raises(ValueError, match=r"On WorkerInfo\(id=1, name=worker1\)") as raised:
        run(body)
    assert str(raised.value).count("On WorkerInfo") == 1
    assert "no number 7" in str(raised.value)


MISTAKES = {
    "Unknown destination worker nobody; the workers are worker0, worker1": lambda: rpc.rpc_sync(
        "nobody", add
    ),
    "function should be callable": lambda: rpc.rpc_sync("worker1", 3),
    "Can't pickle local object": lambda: rpc.rpc_sync("worker1", lambda: 1),
    "RPC is already initialized": lambda: rpc.init_rpc("worker0", rank=0, world_size=2),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes(words):
    with pytest.raises((ConfigError, RuntimeError, TypeError, AttributeError), match=words):
        run(MISTAKES[words], ranks=2)


@pytest.mark.slow
def test_a_module_of_another_worker_is_trained_beside_a_group_of_two():
    """The shape of PyTorch's example of DistributedDataParallel with RPC."""

    def body(rank, world_size):
        if rank < 2:
            dist.init_process_group(
                "gloo", rank=rank, world_size=2, init_method="tcp://localhost:29500"
            )
        name = ("trainer0", "trainer1", "master", "ps")[rank]
        rpc.init_rpc(name, rank=rank, world_size=world_size)
        values = None
        if rank == 2:
            embedding = remote_module.RemoteModule(
                "ps",
                torch.nn.EmbeddingBag,
                args=(2, 2),
                kwargs={"mode": "sum", "_weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]])},
            )
            calls = [
                rpc.rpc_async(f"trainer{number}", train_with_remote_rows, args=(embedding, number))
                for number in range(2)
            ]
            values = [call.wait() for call in calls]
        rpc.shutdown()
        return values

    # The gradient of the layer is the mean of the rows (1, 2) and (3, 4).
    weight = [1 - 0.5 * 2, 1 - 0.5 * 3]
    assert backend.spawn(body, 4).returns[2] == [(3.0, weight), (7.0, weight)]


def test_names_differ():
    def program(rank, world_size):
        rpc.init_rpc("worker", rank=rank, world_size=world_size)

    with pytest.raises(RuntimeError, match=r"rank 1 is worker 'worker' .* and rank 0 is 'worker'"):
        backend.spawn(program, 2)


def test_calls_need_the_start():
    with pytest.raises(RuntimeError, match="RPC has not been initialized"):
        backend.spawn(lambda *_: rpc.rpc_sync("worker1", add, args=(1, 1)), 2)


def test_a_worker_that_ends_without_shutdown_is_named():
    def program(rank, world_size):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
        if rank == 0:
            backend.compute("1 ms")
            rpc.rpc_sync("worker1", add, args=(1, 1))

    with pytest.raises(RuntimeError, match=r"worker 'worker1' \(rank 1\) has ended without"):
        backend.spawn(program, 2)


def test_a_call_without_an_answer_is_a_hang_that_names_the_worker():
    with pytest.raises(RuntimeError, match=r"Hang(.|\n)*the answer of worker worker1, rank 1"):
        run(lambda: rpc.rpc_sync("worker1", wait_for_ever), ranks=2)


def test_a_timeout_is_of_simulated_time():
    def body():
        with pytest.raises(RuntimeError, match=r"more than set timeout \(500 ms\)"):
            rpc.rpc_sync("worker1", backend.compute, args=(3.0,), timeout=0.5)
        return backend.emulated_time()

    result = run(body, ranks=2)
    assert result.returns[0] == pytest.approx(0.5, abs=1e-3)
    assert result.time == pytest.approx(3, abs=1e-3)  # shutdown waits for the function


@pytest.mark.slow
def test_messages_take_the_time_of_their_bytes():
    """A call with 1 MiB takes the time of 1 MiB more at the machine's 50 GB/s."""
    from simcoll.topology import crossbar

    def body(count):
        begin = backend.emulated_time()
        rpc.rpc_sync("worker1", shape_and_gradient, args=(torch.zeros(count),))
        return backend.emulated_time() - begin

    times = []
    for count in (1, 1 << 18):
        machine = crossbar(2, "50 GB/s", "1 us")
        call = functools.partial(body, count)
        results = [run(call, ranks=2, topology=machine) for _ in range(2)]
        assert results[0].trace_hash == results[1].trace_hash
        times.append(results[0].returns[0])
    assert times[1] - times[0] == pytest.approx((1 << 20) / 50e9, rel=0.01)


def test_fake_tensors_are_refused():
    def body():
        with fake_tensor.FakeTensorMode():
            rpc.rpc_sync("worker1", add, args=(torch.ones(2), 1))

    with pytest.raises(ConfigError, match="fake tensor, which has no data"):
        run(body, ranks=2)


def test_ranks_that_behave_alike_are_refused():
    with pytest.raises(ConfigError, match="leave alike out"):
        run(lambda: None, ranks=2, alike="all")


def test_workers_start_again():
    def program(rank, world_size):
        values = []
        for name in ("first", "second"):
            rpc.init_rpc(f"{name}{rank}", rank=rank, world_size=world_size)
            values.append(rpc.rpc_sync(f"{name}{1 - rank}", add, args=(rank, 10)))
            rpc.shutdown()
            dist.init_process_group("gloo")
            dist.destroy_process_group()
        return values

    assert backend.spawn(program, 2).returns == ([10, 10], [11, 11])


@pytest.mark.slow
def test_a_script_calls_the_functions_of_the_other_ranks_copy(tmp_path, monkeypatch, capsys):
    script = """
import os

import torch.distributed.rpc as rpc

RANK = int(os.environ["RANK"])

class Holder:
    def rank(self):
        return RANK

def rank_here():
    return RANK

rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=int(os.environ["WORLD_SIZE"]))
if RANK == 0:
    holder = rpc.remote("worker1", Holder)
    print(rpc.rpc_sync("worker2", rank_here), holder.rpc_sync().rank())
rpc.shutdown()
"""
    (tmp_path / "train.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    assert command.main(["-n", "3", "train.py"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "2 1"


class Part:
    """A linear layer, and the gradients that PyTorch's documentation lets its owner read."""

    def __init__(self, seed):
        self.weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)) / 4
        self.weight.requires_grad_()

    def forward(self, x):
        return torch.tanh(x @ self.weight)

    def parameters(self):
        return [rpc.RRef(self.weight)]

    def gradient(self, context):
        return dist_autograd.get_gradients(context)[self.weight]

    def value(self):
        return self.weight.detach()


def double_and_forward(part, x):
    """Gradients on the calling worker, on that of the part, and back."""
    return part.rpc_sync().forward(x * 2) + x.sum()


def gradients_in_one_process(inputs, own):
    first, second = Part(1), Part(2)
    x = first.forward(inputs)
    x = second.forward(x * 2) + x.sum() + second.forward(x)
    loss = (x @ own).square().mean()
    return loss, torch.autograd.grad(loss, [own, first.weight, second.weight]), (first, second)


@pytest.mark.slow
def test_gradients_through_calls():
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(4, 2, generator=torch.Generator().manual_seed(3))

    def body():
        own = weight.clone().requires_grad_()
        first, second = (rpc.remote(f"worker{rank}", Part, args=(rank,)) for rank in (1, 2))
        with dist_autograd.context() as context:
            x = first.rpc_sync().forward(inputs)
            x = rpc.rpc_sync("worker1", double_and_forward, args=(second, x)) + (
                second.remote().forward(x).to_here()
            )
            loss = (x @ own).square().mean()
            dist_autograd.backward(context, [loss])
            gradients = [
                dist_autograd.get_gradients(context)[own],
                first.rpc_sync().gradient(context),
                second.rpc_sync().gradient(context),
            ]
        with pytest.raises(RuntimeError, match="Could not find autograd context"):
            dist_autograd.get_gradients(context)
        assert own.grad is None
        return loss.detach(), gradients

    loss, gradients = run(body).returns[0]
    expected_loss, expected, _ = gradients_in_one_process(inputs, weight.clone().requires_grad_())
    torch.testing.assert_close(loss, expected_loss.detach())
    torch.testing.assert_close(gradients, list(expected))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_distributed_optimizer(name):
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

    def body():
        from torch.distributed.optim import DistributedOptimizer

        part = rpc.remote("worker1", Part, args=(1,))
        optimizer = DistributedOptimizer(
            getattr(torch.optim, name), part.rpc_sync().parameters(), lr=0.1
        )
        for _ in range(3):
            with dist_autograd.context() as context:
                loss = part.rpc_sync().forward(inputs).square().mean()
                dist_autograd.backward(context, [loss])
                optimizer.step(context)
        return part.rpc_sync().value()

    part = Part(1)
    optimizer = getattr(torch.optim, name)([part.weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        part.forward(inputs).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(run(body, ranks=2).returns[0], part.value())


def test_mistakes_of_distributed_autograd():
    def body():
        with dist_autograd.context() as context:
            with pytest.raises(RuntimeError, match="Already have an autograd context"):
                dist_autograd.context().__enter__()
            with pytest.raises(RuntimeError, match="a root of distributed autograd has one"):
                dist_autograd.backward(context, [torch.ones(2, requires_grad=True)])
            with pytest.raises(RuntimeError, match="requires_grad not set on root"):
                dist_autograd.backward(context, [torch.ones(1)])
        with pytest.raises(RuntimeError, match="Could not find autograd context with id: 7"):
            dist_autograd.backward(7, [torch.ones((), requires_grad=True)])

    run(body, ranks=2)


class Unreadable:
    """Can be sent, and not be read."""

    def __reduce__(self):
        return fail, (3,)


@pytest.mark.parametrize("direction", ["there", "back"])
def test_what_cannot_be_read_is_an_error(direction):
    function, arguments = {"there": (id, (Unreadable(),)), "back": (Unreadable, ())}[direction]
    with pytest.raises(ValueError, match="no number 3"):
        run(lambda: rpc.rpc_sync("worker1", function, args=arguments), ranks=2)
