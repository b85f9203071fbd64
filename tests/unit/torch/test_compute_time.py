"""Operators take time: rooflines by hand, and streams as on a GPU."""

from __future__ import annotations

import pytest

from simcoll.errors import ConfigError
from simcoll.topology import crossbar
from tests.support.deferred import Deferred, needs_torch

torch, nn, dist = Deferred("torch"), Deferred("torch.nn"), Deferred("torch.distributed")
fake, mesh, fsdp = (
    Deferred("torch._subclasses.fake_tensor"),
    Deferred("torch.distributed.device_mesh"),
    Deferred("torch.distributed.fsdp"),
)
parallel = Deferred("torch.distributed.tensor.parallel")
flex = Deferred("torch.nn.attention.flex_attention")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch

GPU = """
[peak]
fp32 = { value = "1 TFLOPS", source = "round" }
[gemm]
fp32 = { value = "1 TFLOPS", source = "round" }
[memory]
size = { value = "80 GB", source = "round" }
bandwidth = { value = "1.25 TB/s", source = "a kernel reaches four fifths" }
[sustained]
share = { value = 1, source = "round" }
[units]
count = { value = 1, source = "round" }
"""
US = 10**9
BANDWIDTH = 10**12
RATE = 10**9  # bytes per second of a link
N = 2


@pytest.fixture
def gpu(tmp_path):
    """A GPU of round numbers: 2 n^3 operations of a matrix product take 2.1 ms for n = 1024, a
    multiple of the tiles, and a megabyte of memory 1 us.
    """
    path = tmp_path / "round.toml"
    path.write_text(GPU)
    return path


def step_time(gpu, step, **options):
    """Simulated seconds of a step on fake tensors, and the run."""

    def program(rank, world_size):
        dist.init_process_group("simcoll")
        with fake.FakeTensorMode():
            ready = step(rank)
            torch.cpu.synchronize()
            begin = backend.emulated_time()
            ready()
            torch.cpu.synchronize()
            return backend.emulated_time() - begin

    place, choices = (
        crossbar(N, "1 GB/s", "0 us"),
        {"algorithm": "ring", "compute": "roofline", "gpu": gpu},
    )
    result = backend.spawn(program, N, topology=place, trace=True, **choices | options)
    return result.returns[0], result


N_PRODUCT = 1024
PRODUCT = 2 * N_PRODUCT**3 / 1e12
ELEMENTS = 500_000
REDUCE = ELEMENTS * 4 / RATE  # a ring of two ranks: every link carries half of the vector twice
ADD = 2 * 4 * N_PRODUCT**2 / BANDWIDTH  # reads a million numbers and writes them


@pytest.mark.slow
def test_parts_add_up_without_overlap(gpu):
    def step(rank):
        x, vector = torch.empty(N_PRODUCT, N_PRODUCT), torch.empty(ELEMENTS)

        def ready():
            y = x @ x
            dist.all_reduce(vector)
            y.add_(1)

        return ready

    assert step_time(gpu, step)[0] == pytest.approx(PRODUCT + REDUCE + ADD, rel=1e-9)


def test_the_longer_one_counts_where_they_overlap(gpu):
    def step(rank):
        x, vector = torch.empty(N_PRODUCT, N_PRODUCT), torch.empty(ELEMENTS)

        def ready():
            y = x @ x
            work = dist.all_reduce(vector, async_op=True)  # begins when the product is there
            y = y @ x
            y = y @ x
            work.wait()
            y.add_(1)

        return ready

    seconds, result = step_time(gpu, step)
    assert seconds == pytest.approx(PRODUCT + max(REDUCE, 2 * PRODUCT) + ADD, rel=1e-9)
    summary = result.timeline.summary(0)
    assert summary.communication_fs == round(REDUCE * 1e15)
    assert sum(summary.exposed_fs.values()) == 0


def test_streams_and_events_order_what_the_program_does_not_wait_for(gpu):
    def step(rank):
        x, vector, side = (
            torch.empty(N_PRODUCT, N_PRODUCT),
            torch.empty(ELEMENTS),
            torch.cpu.Stream(),
        )

        def ready():
            y = x @ x
            with torch.cpu.stream(side):  # at once: it does not wait for the product
                dist.all_reduce(vector)
                done = side.record_event()
                vector.add_(1)
            torch.cpu.current_stream().wait_event(done)
            y @ x

        return ready

    # The addition on the side stream takes 4 us beside the second product.
    assert step_time(gpu, step)[0] == pytest.approx(max(REDUCE, PRODUCT) + PRODUCT, rel=1e-9)


@pytest.mark.slow
def test_a_tensor_parallel_block_is_the_sum_of_its_parts(gpu):
    rows, width, hidden = 512, 1024, 4096

    def step(rank):
        grid = mesh.init_device_mesh("cpu", (N,))
        block = nn.Sequential(
            nn.Linear(width, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, width, bias=False)
        )
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        block, x = (
            parallel.parallelize_module(block, grid, plan).requires_grad_(False),
            torch.empty(rows, width),
        )
        return lambda: block(x) + 1

    products = 2 * 2 * rows * width * (hidden / N) / 1e12
    relu, add = (2 * rows * columns * 4 / BANDWIDTH for columns in (hidden / N, width))
    reduce = rows * width * 4 / RATE
    assert step_time(gpu, step)[0] == pytest.approx(products + relu + reduce + add, rel=1e-9)


@pytest.mark.slow
def test_sharded_layers_are_gathered_while_the_one_before_computes(gpu):
    width, layers, rows = 512, 4, 4096

    def step(rank):
        grid = mesh.init_device_mesh("cpu", (N,))
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
        for layer in (*model, model):
            fsdp.fully_shard(layer, mesh=grid)
        x = torch.empty(rows, width)

        def ready():
            with torch.no_grad():
                model(x)

        return ready

    seconds, _ = step_time(gpu, step)
    gather, product = width * width * 4 / 2 / RATE, 2 * rows * width * width / 1e12
    assert product > 2 * gather
    # The first gather is exposed; the others fly beside products. Copies in and out of buffers take
    # a few microseconds.
    assert seconds == pytest.approx(gather + layers * product, rel=0.02)
    assert seconds > gather + layers * product


def test_real_tensors_wait_for_every_operator(gpu):
    def program(rank, world_size):
        dist.init_process_group("simcoll")
        x = torch.ones(256, 256)
        begin = backend.emulated_time()
        y = x @ x
        return backend.emulated_time() - begin, y[0, 0].item()

    result = backend.spawn(program, N, compute="roofline", gpu=gpu)
    assert result.returns == ((pytest.approx(2 * 256**3 / 1e12), 256.0),) * N


def test_measured_times_take_the_place_of_the_roofline(gpu, tmp_path):
    table = tmp_path / "operators.toml"
    table.write_text(
        '[operators]\n"aten::mm" = "5 us"\n"aten::mm [1024, 1024] [1024, 1024]" = "7 ms"\n'
    )

    def step(rank):
        x, y = torch.empty(N_PRODUCT, N_PRODUCT), torch.empty(10, N_PRODUCT)

        def ready():
            x @ x
            y @ x

        return ready

    assert step_time(gpu, step, compute=table)[0] == pytest.approx(7.005e-3, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compute": "roofline"}, "depends on the GPU: give one, such as --gpu h100"),
        ({"compute": "roofline", "gpu": "h10"}, "did you mean 'h100'"),
        ({"compute": "rooflin"}, r"did you mean 'roofline'\?.*or a .toml file"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        backend.spawn(print, N, **options)


TIMES = """
[operators]
"aten::relu" = "1 us"
[modules]
"Linear" = { forward = "3 ms", backward = "5 ms" }
"first.*" = "2 ms"
"Linear [7, 10]" = { forward = "4 ms", backward = "1 ms" }
"""


def step_of_modules(gpu, table, rows):
    """Seconds of the forward and the backward pass of two linear layers, a sigmoid, and more."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Tanh(), nn.Softmax(0))
            self.rest = nn.Sequential(nn.Linear(10, 10), nn.Sigmoid(), nn.Linear(10, 10))

        def forward(self, x):
            return torch.relu(self.rest(self.first(x)))

    def step(rank, way):
        model, x = Model(), torch.empty(rows, 10)
        y = model(x)
        gradient = torch.empty_like(y)
        return (lambda: model(x)) if way == "forward" else (lambda: y.backward(gradient))

    return [
        step_time(gpu, lambda rank, way=way: step(rank, way), compute=table)[0]
        for way in ("forward", "backward")
    ]


@pytest.mark.slow
def test_measured_modules_take_the_place_of_their_operators(gpu, tmp_path):
    table = tmp_path / "modules.toml"
    table.write_text(TIMES)
    forward, backward = step_of_modules(gpu, table, 1)
    row = 4 * 10 / BANDWIDTH
    assert forward == pytest.approx(2 * 2e-3 + 3e-3 + 2 * row + 3e-3 + 1e-6, rel=1e-9)
    # Two rows in and one out: for relu, whose forward time alone is measured, and for the sigmoid.
    assert backward == pytest.approx(2 * 5e-3 + 2 * 3 * row, rel=1e-7)
    assert step_of_modules(gpu, table, 7) == [
        pytest.approx(12.001e-3, rel=1e-6),
        pytest.approx(2e-3, rel=1e-5),
    ]


@pytest.mark.slow
def test_measured_modules_that_are_recomputed_or_sharded(gpu, tmp_path):
    table = tmp_path / "modules.toml"
    table.write_text('[modules]\n"Linear" = { forward = "30 ms", backward = "50 ms" }\n')

    def step(rank):
        grid, model = (
            mesh.init_device_mesh("cpu", (N,)),
            nn.Sequential(*(nn.Linear(500, 500, bias=False) for _ in range(3))),
        )
        for layer in model:
            fsdp.fully_shard(layer, mesh=grid)
        checkpoint = torch.utils.checkpoint.checkpoint
        x = torch.empty(10, 500, requires_grad=True)
        return lambda: checkpoint(model, x, use_reentrant=False).sum().backward()

    gather = 500 * 500 * 4 / 2 / RATE
    assert step_time(gpu, step)[0] < 10e-3
    seconds = step_time(gpu, step, compute=table)[0]
    # PyTorch stops to recompute before the last layer, whose input is all that it needs. Few
    # gathers are exposed.
    assert 3 * 30e-3 + 2 * 30e-3 + 3 * 50e-3 < seconds < 300e-3 + 5 * gather


def test_operators_without_a_rule_are_named_and_counted(gpu):
    def step(rank):
        x = torch.empty(50, 50)

        def ready():
            for _ in range(3):
                torch.linalg.qr(x)
            (torch.softmax(x, 0) @ x).sort()
            nn.functional.layer_norm(x, [50]).add(1).sum()

        return ready

    with pytest.warns(UserWarning, match="has no rule"):
        _, result = step_time(gpu, step)
    said = [finding for finding in result.findings if "has no rule" in finding]
    assert said == [
        "operator aten::linalg_qr has no rule: its 6 calls were timed by their bytes",
        "operator aten::sort has no rule: its 2 calls were timed by their bytes",
    ]


without_warnings = pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile",
    "ignore:torch.compile has no effect",
    "ignore:operator",  # of masks, which are sorted
)


def causal(batch, head, query, key):
    return query >= key


@pytest.mark.slow
@without_warnings
def test_flex_attention_is_one_kernel_each_way(gpu):
    heads, tokens, depth = 2, 512, 64

    def step(rank, way):
        mask = flex.create_block_mask(causal, None, None, tokens, tokens, device="cuda")
        q, k, v = (torch.empty(1, heads, tokens, depth, requires_grad=True) for _ in range(3))
        y = flex.flex_attention(q, k, v, block_mask=mask)
        back = torch.empty_like(y)
        return lambda: (
            flex.flex_attention(q, k, v, block_mask=mask) if way == "forward" else y.backward(back)
        )

    product = 2 * heads * tokens**2 * depth / 10**12  # of queries and keys, for example
    share, rate = 10 / 16, 0.6  # of blocks of 128 tokens, and of products in 32 bits
    for way, products in (("forward", 2), ("backward", 5)):
        seconds, result = step_time(gpu, lambda rank, way=way: step(rank, way), cuda_is_cpu=True)
        assert seconds == pytest.approx(share * products * product / rate, rel=0.01)
        assert not [finding for finding in result.findings if "attention" in finding]


@pytest.mark.slow
@without_warnings
def test_flex_attention_trains_where_there_are_gpus():
    def program(rank, world_size):
        shape = (2, 3, 70, 16)
        q, k, v, gradient = (
            torch.randn(shape, dtype=torch.float64, device="cuda", requires_grad=True)
            for _ in range(4)
        )
        mask = flex.create_block_mask(causal, None, None, 70, 70, device="cuda")
        y = flex.flex_attention(q, k, v, block_mask=mask)
        scores = (q @ k.transpose(-1, -2) / 4).masked_fill(
            torch.ones(70, 70, device="cuda").triu(1).bool(), float("-inf")
        )
        expected = scores.softmax(-1) @ v
        torch.testing.assert_close(y, expected)
        ours, theirs = (torch.autograd.grad(each, (q, k, v), gradient) for each in (y, expected))
        torch.testing.assert_close(ours, theirs)

    backend.spawn(program, N, cuda_is_cpu=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[modules]\n"Linear" = { backward = "5 ms" }', "forward = "),
        ('[modules]\n"Linear" = "5 parsecs"', "modules.Linear.forward"),
        ('[layers]\n"Linear" = "5 ms"', "expected the tables"),
    ],
)
def test_tables_that_cannot_be_read(gpu, tmp_path, text, said):
    table = tmp_path / "modules.toml"
    table.write_text(text)
    with pytest.raises(ConfigError, match=said):
        backend.spawn(print, N, compute=table, gpu=gpu)
