"""The work of operators: attention by its mask, products by their groups, bytes by what is read."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest

from tests.support.deferred import Deferred, needs_torch
from tests.unit.torch.test_compute_time import BANDWIDTH, GPU, N, step_time

torch, nn = Deferred("torch"), Deferred("torch.nn")
flex = Deferred("torch.nn.attention.flex_attention")
varlen = Deferred("torch.nn.attention.varlen")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch

RATES = """
[peak]
bf16 = { value = "1 TFLOPS", source = "round" }
fp32 = { value = "1 TFLOPS", source = "round" }
fp8 = { value = "1 TFLOPS", source = "round" }
tf32 = { value = "4 TFLOPS", source = "round" }
[gemm]
fp32 = { value = "1 TFLOPS", source = "round" }
bf16 = { value = "1 TFLOPS", source = "round" }
fp8 = { value = "1 TFLOPS", source = "round" }
tf32 = { value = "4 TFLOPS", source = "round" }
[attention]
forward = { value = "1 TFLOPS", source = "round" }
backward = { value = "1 TFLOPS", source = "round" }
"""
LAUNCHES = """
[kernel]
floor = { value = "2 us", source = "round" }
[launch]
eager = { value = "10 us", source = "round" }
compiled = { value = "3 us", source = "round" }
"""


@pytest.fixture
def gpu(tmp_path):
    """The GPU of round numbers, with rates for all types."""
    path = tmp_path / "round.toml"
    path.write_text(RATES + GPU[GPU.index("[memory]") :])
    return path


def seconds_of(gpu, prepare, **options):
    """Simulated seconds of a call on fake tensors, and the findings of the run."""
    seconds, result = step_time(gpu, lambda _rank: prepare(), **options)
    return seconds, result.findings


@dataclass(frozen=True)
class Shape:
    """Sequences, heads, tokens and width."""

    batch: int = 1
    heads: int = 2
    tokens: int = 512
    width: int = 64

    @property
    def seconds(self):
        """All pairs of queries and keys, both products, at 1 TFLOP/s."""
        return 4 * self.batch * self.heads * self.tokens**2 * self.width / 1e12

    def tensors(self):
        lengths = (self.batch, self.heads, self.tokens, self.width)
        return [torch.empty(lengths, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]


def attend(shape, way, **options):
    def prepare():
        inputs = shape.tensors()
        output = nn.functional.scaled_dot_product_attention(*inputs, **options)
        gradient = torch.empty_like(output)
        if way == "backward":
            return lambda: output.backward(gradient)
        return lambda: nn.functional.scaled_dot_product_attention(*inputs, **options)

    return prepare


@pytest.mark.slow
@pytest.mark.parametrize(("way", "products"), [("forward", 1), ("backward", 2.5)])
def test_causal_attention_takes_half_of_the_products(gpu, way, products):
    shape = Shape()
    whole, _ = seconds_of(gpu, attend(shape, way))
    half, _ = seconds_of(gpu, attend(shape, way, is_causal=True))
    assert whole == pytest.approx(products * shape.seconds, rel=1e-2)
    pairs = shape.tokens * (shape.tokens + 1) / 2
    assert half == pytest.approx(whole * pairs / shape.tokens**2, rel=1e-2)


def test_a_mask_of_elements_skips_nothing(gpu):
    shape = Shape()

    def prepare():
        inputs, mask = shape.tensors(), torch.empty(512, 512, dtype=torch.bfloat16)
        return lambda: nn.functional.scaled_dot_product_attention(*inputs, attn_mask=mask)

    assert seconds_of(gpu, prepare)[0] == pytest.approx(shape.seconds, rel=1e-3)


@pytest.mark.filterwarnings("ignore:the lengths of sequences")
def test_sequences_of_varying_lengths_attend_to_themselves(gpu):
    heads, width = 4, 64
    tokens = 1024

    def prepare():
        inputs = [torch.empty(tokens, heads, width, dtype=torch.bfloat16) for _ in range(3)]
        offsets = torch.empty(5, dtype=torch.int32)  # of four sequences
        return lambda: varlen.varlen_attn(*inputs, offsets, offsets, 400, 400)

    seconds, findings = seconds_of(gpu, prepare)
    assert seconds == pytest.approx(4 * heads * 4 * (tokens / 4) ** 2 * width / 1e12, rel=1e-3)
    assert any("lengths of sequences are unknown" in finding for finding in findings)


def window(batch, head, query, key):
    return (query >= key) & (query - key < 128)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_blocks_outside_a_window_are_skipped(gpu):
    shape = Shape(tokens=2048)

    def prepare():
        mask = flex.create_block_mask(window, None, None, 2048, 2048, device="cpu")
        inputs = [tensor.detach() for tensor in shape.tensors()]
        return lambda: flex.flex_attention(*inputs, block_mask=mask)

    # Of 16 rows of 16 blocks: the diagonal, and the one before it.
    seconds, _ = seconds_of(gpu, prepare)
    assert seconds == pytest.approx(shape.seconds * (16 + 15) / 256, rel=1e-2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_mask_that_reads_fake_tensors_counts_whole(gpu):
    shape = Shape()

    def prepare():
        document = torch.zeros(512, dtype=torch.int64)

        def same(batch, head, query, key):
            return document[query] == document[key]

        mask = flex.create_block_mask(same, None, None, 512, 512, device="cpu")
        inputs = [tensor.detach() for tensor in shape.tensors()]
        return lambda: flex.flex_attention(*inputs, block_mask=mask)

    seconds, findings = seconds_of(gpu, prepare)
    assert seconds == pytest.approx(shape.seconds, rel=1e-2)
    assert any("blocks of a mask that reads fake tensors" in finding for finding in findings)


def product_seconds(rows, columns, depth, rate=1e12):
    return 2 * rows * columns * depth / rate


@pytest.mark.filterwarnings("ignore:the sizes of groups are unknown:UserWarning")
def test_a_grouped_product_is_the_sum_of_its_groups(gpu):
    def prepare():
        rows = torch.empty(2048, 1024, dtype=torch.bfloat16)
        experts = torch.empty(4, 1024, 512, dtype=torch.bfloat16)
        ends = torch.empty(4, dtype=torch.int32)
        return lambda: nn.functional.grouped_mm(rows, experts, offs=ends)

    seconds, findings = seconds_of(gpu, prepare)
    assert seconds == pytest.approx(product_seconds(2048, 512, 1024), rel=1e-6)
    assert any("sizes of groups are unknown on fake tensors" in finding for finding in findings)


@pytest.mark.slow
def test_experts_without_tokens_take_no_time(gpu):
    def program(rank, world_size):
        rows = torch.ones(512, 256, dtype=torch.bfloat16)
        experts = torch.ones(8, 256, 256, dtype=torch.bfloat16)
        ends = torch.tensor([256, 256, 256, 256, 512, 512, 512, 512], dtype=torch.int32)
        begin = backend.emulated_time()
        nn.functional.grouped_mm(rows, experts, offs=ends)
        return backend.emulated_time() - begin

    result = backend.spawn(program, N, compute="roofline", gpu=gpu)
    assert result.returns[0] == pytest.approx(product_seconds(512, 256, 256), rel=1e-6)


def test_a_sparse_product_counts_what_is_not_zero(gpu):
    def program(rank, world_size):
        dense = torch.zeros(1024, 1024)
        dense[:4] = 1
        sparse, other = dense.to_sparse(), torch.ones(1024, 512)
        begin = backend.emulated_time()
        torch.sparse.mm(sparse, other)
        return backend.emulated_time() - begin

    result = backend.spawn(program, N, compute="roofline", gpu=gpu)
    elements, output = 4 * 1024, 1024 * 512 * 4
    assert result.returns[0] > 2 * elements * 512 / 1e12
    assert result.returns[0] < product_seconds(1024, 512, 1024) / 10
    assert output / BANDWIDTH < result.returns[0]


@pytest.mark.parametrize("inference", [False, True])
def test_inference_mode_has_the_same_products(gpu, inference):
    def prepare():
        layer, x = nn.Linear(512, 512, bias=False), torch.empty(1024, 512)

        def call():
            with torch.inference_mode() if inference else contextlib.nullcontext():
                layer(x)

        return call

    seconds, findings = seconds_of(gpu, prepare)
    assert seconds == pytest.approx(product_seconds(1024, 512, 512), rel=1e-6)
    assert not [finding for finding in findings if "no rule" in finding]


def test_products_of_32_bits_may_be_rounded_to_tf32(gpu):
    def prepare():
        x = torch.empty(1024, 1024)
        return lambda: x @ x

    exact, _ = seconds_of(gpu, prepare)
    torch.set_float32_matmul_precision("high")
    try:
        rounded, _ = seconds_of(gpu, prepare)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert exact == pytest.approx(4 * rounded, rel=1e-6)


def bytes_seconds(*counts):
    return sum(counts) / BANDWIDTH


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "nbytes"),
    [
        # Rows that 512 indices select are read and written; the table of 100,000 is not.
        ("nn.functional.embedding(index, table)", 512 * 8 + 2 * 512 * 64 * 4),
        ("table.index_select(0, index)", 512 * 8 + 2 * 512 * 64 * 4),
        ("table.index_add_(0, index, rows)", 512 * 8 + 3 * 512 * 64 * 4),
        # An expanded dimension is read once.
        ("row.expand(512, 64) + rows", 64 * 4 + 2 * 512 * 64 * 4),
        # What is only written.
        ("rows.zero_()", 512 * 64 * 4),
        ("torch.zeros_like(rows)", 512 * 64 * 4),
        ("rows.copy_(others)", 2 * 512 * 64 * 4),
        ("rows.add_(others)", 3 * 512 * 64 * 4),
        ("torch.add(rows, others, out=out)", 3 * 512 * 64 * 4),
        ("torch._foreach_add_([rows, others], 1.0)", 4 * 512 * 64 * 4),
    ],
)
def test_bytes_are_those_that_move(gpu, call, nbytes):
    def prepare():
        names = {
            "torch": torch,
            "nn": nn,
            "table": torch.empty(100_000, 64),
            "index": torch.empty(512, dtype=torch.int64),
            "row": torch.empty(1, 64),
            "rows": torch.empty(512, 64),
            "others": torch.empty(512, 64),
            "out": torch.empty(512, 64),
        }
        return lambda: eval(call, names)  # the cases above

    assert seconds_of(gpu, prepare)[0] == pytest.approx(bytes_seconds(nbytes), rel=1e-6)


def test_a_loss_reads_one_logit_for_each_token(gpu):
    def prepare():
        logits, target = torch.empty(1024, 5000), torch.empty(1024, dtype=torch.int64)
        return lambda: nn.functional.nll_loss(logits, target)

    assert seconds_of(gpu, prepare)[0] < bytes_seconds(1024 * 5000 * 4) / 100


# Launches


@pytest.fixture
def launching(gpu):
    """The same GPU, with a host that takes 10 us for an operator, and kernels of 2 us at least."""
    gpu.write_text(gpu.read_text() + LAUNCHES)
    return gpu


def test_small_operators_take_as_long_as_the_host(launching):
    def prepare():
        x = torch.empty(16, 16)

        def call():
            y = x
            for _ in range(100):
                y = y @ x

        return call

    # The last kernel begins when it has been launched.
    assert seconds_of(launching, prepare)[0] == pytest.approx(100 * 10e-6 + 2e-6, rel=1e-6)


def test_large_operators_hide_the_host(launching):
    def prepare():
        x = torch.empty(1024, 1024)
        return lambda: [x @ x for _ in range(10)]

    product = product_seconds(1024, 1024, 1024)
    assert seconds_of(launching, prepare)[0] == pytest.approx(10e-6 + 10 * product, rel=1e-6)


@pytest.mark.slow
def test_views_launch_nothing(launching):
    def prepare():
        x = torch.empty(16, 16)
        return lambda: [x.view(4, 64).t().detach() for _ in range(100)]

    assert seconds_of(launching, prepare)[0] == 0


def training(optimizer, layers=3):
    """A function that trains a small model for a step."""

    def prepare():
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers)))
        steps = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)

        def call():
            model(torch.empty(8, 64)).sum().backward()
            steps.step()

        call()
        return call

    return prepare


@pytest.mark.slow
def test_a_run_that_waits_for_launches_says_so(launching):
    _, result = step_time(launching, lambda _rank: training("SGD")(), algorithm="ring")
    assert result.launches.startswith("launch-bound: the GPU of rank ")
    assert "for the host, which launches" in result.launches

    def large():
        x = torch.empty(4096, 4096)
        return lambda: [x @ x for _ in range(10)]

    _, result = step_time(launching, lambda _rank: large())
    assert result.launches == ""


@pytest.mark.slow
def test_one_operator_updates_all_parameters(launching):
    few, many = (seconds_of(launching, training("AdamW", layers))[0] for layers in (3, 6))
    forward_and_backward = 3 * (1 + 2 + 1) * 10e-6  # with the sums of gradients of biases
    assert many - few < 2 * forward_and_backward


# Kernels of a GPU


@pytest.mark.slow
def test_an_rms_norm_is_one_kernel_each_way(gpu):
    rows, width = 4096, 1024

    def prepare(way):
        norm, x = nn.RMSNorm(width), torch.empty(rows, width, requires_grad=True)
        y = norm(x)
        gradient = torch.empty_like(y)
        return (lambda: norm(x)) if way == "forward" else (lambda: y.backward(gradient))

    forward, backward = (
        seconds_of(gpu, lambda way=way: prepare(way))[0] for way in ("forward", "backward")
    )
    assert forward == pytest.approx(bytes_seconds(2 * 4 * rows * width), rel=1e-3)
    assert backward == pytest.approx(bytes_seconds(3 * 4 * rows * width), rel=1e-3)


def test_attention_with_dropout_is_fused(gpu):
    shape = Shape()
    seconds, _ = seconds_of(gpu, attend(shape, "forward", dropout_p=0.1))
    assert seconds == pytest.approx(shape.seconds, rel=1e-3)


def test_attention_to_values_of_another_width_is_fused(gpu):
    shape = Shape()

    def prepare():
        query, key, _ = (tensor.detach() for tensor in shape.tensors())
        value = torch.empty(1, 2, 512, 32, dtype=torch.bfloat16)
        return lambda: nn.functional.scaled_dot_product_attention(query, key, value)

    assert seconds_of(gpu, prepare)[0] == pytest.approx(shape.seconds * 3 / 4, rel=1e-3)


def test_dropout_is_one_kernel(gpu):
    def prepare():
        dropout, x = nn.Dropout(0.1), torch.empty(4096, 1024)
        return lambda: dropout(x)

    expected = bytes_seconds((2 * 4 + 1) * 4096 * 1024)
    assert seconds_of(gpu, prepare)[0] == pytest.approx(expected, rel=1e-3)


def small_products(compiled):
    def prepare():
        weight = torch.empty(16, 16, requires_grad=True)

        def multiply(x):
            for _ in range(20):
                x = x @ weight
            return x

        call = compiled(multiply)
        return lambda: call(torch.empty(16, 16)).sum().backward()

    return prepare


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.compile")
def test_compiled_programs_launch_faster_and_graphs_in_no_time(launching):
    eager, compiled, graphs = (
        seconds_of(launching, small_products(way))[0]
        for way in (
            lambda function: function,
            lambda function: torch.compile(function, mode="default"),
            lambda function: torch.compile(function, mode="reduce-overhead"),
        )
    )
    # 20 products forward and 39 back, with 19 sums; they take 2 us, and launches 10, 3 and 0.
    assert eager - compiled == pytest.approx(78 * 7e-6, rel=0.1)
    assert compiled - graphs > 78 * 1e-6  # and the last launches outside are hidden


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.compile")
@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_modules_launch_faster(launching, in_place):
    def prepare(compiled):
        model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(10)))
        if compiled and in_place:
            model.compile()
        elif compiled:
            model = torch.compile(model)
        return lambda: model(torch.empty(16, 16))

    eager, compiled = (
        seconds_of(launching, lambda flag=flag: prepare(flag))[0] for flag in (False, True)
    )
    assert eager - compiled == pytest.approx(10 * 7e-6, rel=0.1)


@pytest.mark.parametrize("fake", [False, True])
def test_moves_cross_the_connection_to_the_host(gpu, fake):
    gpu.write_text(
        gpu.read_text() + '[host]\nbandwidth = { value = "50 GB/s", source = "round" }\n'
    )
    nbytes = 4 * 1024 * 1024

    def program(rank, world_size):
        fakes = Deferred("torch._subclasses.fake_tensor")
        with fakes.FakeTensorMode() if fake else contextlib.nullcontext():
            times = []
            x = torch.zeros(1024, 1024)
            for move in (lambda x: x.cuda(), lambda x: x.cpu(), lambda x: x.to("cuda")):
                torch.cuda.synchronize()
                begin = backend.emulated_time()
                x = move(x)
                torch.cuda.synchronize()
                times.append(backend.emulated_time() - begin)
            return times

    result = backend.spawn(program, N, compute="roofline", gpu=gpu, cuda_is_cpu=True)
    assert result.returns[0] == pytest.approx([nbytes / 50e9] * 3, rel=1e-6)
