"""Steps of a served model: by hand, by scaling, and against published figures."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

import engines_accuracy
import pytest
import serving_accuracy

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.planning.designs.serving_report import serving_lines
from simcoll.training.serving import serving_cases, serving_front, serving_step

ROOT = Path(__file__).parents[3]


def served(model="llama-3.1-8b", machine=None, **serving):
    (only,) = serving_cases(
        {
            "model": {"name": model, "dtype": "fp8"},
            "topology": machine or {"name": "dgx-h100"},
            "serving": serving,
        }
    )
    return only


def test_a_decode_step_of_one_sequence_reads_the_weights_once():
    step = serving_step(served(context=1), "decode")
    # Eight bits at 95 % of 0.83 of the bandwidth; the output head has 16 bits, at 0.83.
    head = 128_256 * 4096
    layers = 8_030_261_248 - 2 * head
    streamed = layers / (0.95 * 0.83 * 3.35e12) + 2 * head / (0.83 * 3.35e12)
    # Four products, attention, and four small kernels of a layer: 80 % of their starts show.
    starts = 32 * 0.8 * (4 * 5.5 + 7.5 + 4 * 2.5) * 1e-6
    assert step.seconds == pytest.approx(streamed + starts, rel=0.02)
    assert step.floors == pytest.approx(starts, rel=0.02)
    assert step.communication == step.exposed == 0


def test_a_prefill_step_is_bound_by_its_products():
    step = serving_step(served(prompt=8192), "prefill")
    flops = 2 * 7.0e9 * 8192
    assert step.tokens == 8192
    assert flops / 1979e12 < step.seconds < 3 * flops / 1979e12


def test_the_cache_by_hand():
    step = serving_step(served(batch=32, context=4096, tp=2, kv_dtype="fp8"), "decode")
    # Keys and values of 8 heads of 128, half of them on each rank, in 32 layers.
    assert step.cache == 32 * 4096 * 2 * 4 * 128 * 32
    latent = serving_step(
        served("deepseek-v3", {"name": "dgx-h200"}, batch=8, context=1000, tp=8), "decode"
    )
    assert latent.cache == 8 * 1000 * (512 + 64) * 2 * 61  # on every rank


def test_kernels_without_groups_read_the_cache_for_every_head():
    long = {"batch": 64, "context": 16384}
    shared, apart = (
        serving_step(served(**long, cache_reads=reads), "decode") for reads in ("group", "head")
    )
    # Four heads share a part of the cache, which is read at 70 % of the memory bandwidth.
    cache = 64 * 16384 * 2 * 8 * 128 * 2 * 32
    assert apart.seconds - shared.seconds == pytest.approx(3 * cache / (0.7 * 3.35e12))
    assert apart.cache == shared.cache
    long_latent = {"tp": 8, **long}
    latent = [
        serving_step(served("deepseek-v3", **long_latent, cache_reads=reads), "decode").seconds
        for reads in ("group", "head")
    ]
    assert latent[0] == latent[1]  # all heads share one


def test_larger_batches_do_not_wait_for_few_tiles():
    steps = [
        serving_step(served("llama-3.1-70b", tp=8, batch=batch), "decode") for batch in (64, 65)
    ]
    assert steps[1].seconds < 1.2 * steps[0].seconds


def test_the_weights_of_deepseek_v3_fit_eight_h200():
    step = serving_step(served("deepseek-v3", {"name": "dgx-h200"}, tp=8), "decode")
    assert step.weights == pytest.approx(671e9 / 8, rel=0.05)
    assert step.fits
    assert not serving_step(served("deepseek-v3", tp=8), "decode").fits  # 8 H100


def test_experts_that_are_spread_are_read_once_by_all():
    machine = {"name": "dgx-h200", "nodes": 2}
    split = serving_step(served("deepseek-v3", {"name": "dgx-h200"}, tp=8, batch=128), "decode")
    spread = serving_step(
        served("deepseek-v3", machine, dp=16, ep=16, batch=256, imbalance=1.0), "decode"
    )
    assert spread.weights < split.weights
    uneven = serving_step(
        served("deepseek-v3", machine, dp=16, ep=16, batch=256, imbalance=2.0), "decode"
    )
    assert uneven.communication > spread.communication


def test_stages_keep_the_latency_and_divide_the_memory():
    whole = serving_step(served(batch=64, context=2048), "decode")
    staged = serving_step(served(batch=64, context=2048, pp=2), "decode")
    assert staged.weights == pytest.approx(whole.weights / 2, rel=0.01)
    assert staged.cache == whole.cache // 2
    assert staged.tokens == 64


def test_overlap_hides_at_most_what_there_is():
    machine = {"name": "dgx-h100", "nodes": 9}
    serving = {"dp": 72, "ep": 72, "batch": 72 * 64, "context": 2048}
    bare = serving_step(served("deepseek-v3", machine, **serving), "decode")
    hidden = serving_step(served("deepseek-v3", machine, **serving, overlap=True), "decode")
    assert bare.seconds == pytest.approx(bare.compute + bare.communication)
    assert hidden.seconds == pytest.approx(max(hidden.compute, hidden.communication))


def test_half_batches_run_every_kernel_twice():
    machine = {"name": "dgx-h100", "nodes": 9}
    serving = {"dp": 72, "ep": 72, "batch": 72 * 64, "context": 2048}
    bare = serving_step(served("deepseek-v3", machine, **serving), "decode")
    halves = serving_step(served("deepseek-v3", machine, **serving, overlap=True), "decode")
    assert halves.floors == pytest.approx(2 * bare.floors, rel=0.05)
    assert bare.compute < halves.compute < 2 * bare.compute
    single = {**serving, "batch": 72}
    steps = [
        serving_step(served("deepseek-v3", machine, **single, overlap=overlap), "decode")
        for overlap in (False, True)
    ]
    assert steps[0].seconds == steps[1].seconds  # one sequence has no halves


def test_prompts_of_new_requests_take_time_of_all_others():
    one = serving_step(served(batch=1, prompt=1024, context=1536, output=1024), "decode")
    assert one.token_seconds == one.seconds  # nobody else has a prompt
    prompt = serving_step(served(prompt=1024), "prefill").seconds
    # But its own takes time from its tokens.
    lasts = 1024 * one.seconds + prompt
    assert one.steady_rate == pytest.approx(1024 / lasts, rel=0.01)
    many = serving_step(served(batch=64, prompt=1024, context=1088, output=128), "decode")
    # 63 prompts in 128 steps, which read the weights once for prompts and tokens.
    assert many.token_seconds < many.seconds + 63 / 128 * prompt
    assert many.token_seconds > many.seconds + 63 / 128 * 0.7 * prompt
    assert 64 / many.steady_rate > many.token_seconds
    without = serving_step(served(batch=64, prompt=1024, context=1088), "decode")
    assert (without.token_seconds, without.steady_rate) == (0.0, 0.0)


def test_replicas_without_a_request_add_nothing():
    alone = serving_step(
        served("deepseek-v3", {"name": "dgx-b200"}, dp=8, ep=8, output=512), "decode"
    )
    assert alone.steady_rate < alone.tokens_per_second_per_gpu


def test_no_more_requests_are_in_flight_than_prompts_fit():
    steps = [
        serving_step(served(batch=batch, prompt=8192, output=64, chunk=8192), "decode")
        for batch in (64, 256)
    ]
    # One prompt in each step keeps 64 in flight; more of them wait.
    assert steps[0].steady_rate == steps[1].steady_rate
    assert steps[0].token_seconds == steps[1].token_seconds


def test_few_tokens_choose_few_experts():
    steps = [
        serving_step(
            served("qwen3-235b", {"name": "dgx-h200"}, tp=8, batch=batch, context=1), "decode"
        )
        for batch in (1, 2, 64)
    ]
    weights = 94 * 3 * 4096 * 1536 / 8 / (0.82 * 4.8e12)  # of one expert in every layer
    twice = steps[1].compute - steps[0].compute
    assert 5 * weights < twice < 9 * weights  # eight more, some of them chosen before
    assert steps[2].compute - steps[0].compute < 120 * weights  # not all 128


def test_types_of_attention_and_experts_are_their_own():
    machine = {"name": "dgx-b200"}
    bare = served("gpt-oss-120b", machine)
    mixed = served("gpt-oss-120b", machine, attention_dtype="bf16", expert_dtype="fp4")
    weights = [serving_step(model, "decode").weights for model in (bare, mixed)]
    experts, attention = 36 * 128 * 3 * 2880**2, 36 * 2880 * (64 + 16 + 64) * 64
    saved = experts * (1 - 0.5 - 1 / 16) - attention
    assert weights[0] - weights[1] == pytest.approx(saved, rel=1e-3)
    steps = [serving_step(model, "decode").seconds for model in (bare, mixed)]
    assert steps[1] < steps[0]


def test_experts_of_one_replica_need_no_exchange():
    machine = {"name": "dgx-h200"}
    split = serving_step(served("deepseek-v3", machine, tp=8, batch=8), "decode")
    spread = serving_step(served("deepseek-v3", machine, tp=8, ep=8, batch=8), "decode")
    assert spread.communication == split.communication


def test_a_window_bounds_what_a_token_reads():
    machine = {"name": "dgx-b200"}
    steps = [
        serving_step(served("gpt-oss-120b", machine, batch=64, context=context), "decode").compute
        for context in (1024, 2048, 129)
    ]
    # Half of the layers read all tokens more, the others their 128; heads of 64, at 70 %.
    token = 64 * 2 * 8 * 64 * 2 / (0.7 * 8e12)
    assert steps[1] - steps[0] == pytest.approx(1024 * 18 * token)
    assert steps[0] - steps[2] == pytest.approx((895 * 18 - 18 * 1 + 18) * token, rel=1e-3)


def test_stages_multiply_steady_traffic():
    whole, staged = (
        serving_step(
            served(batch=32 * stages, prompt=512, context=768, output=512, pp=stages), "decode"
        )
        for stages in (1, 2)
    )
    # Two parts of the batch are in the two stages at a time.
    assert staged.steady_rate == pytest.approx(whole.steady_rate, rel=0.05)
    assert staged.token_seconds == pytest.approx(whole.token_seconds, rel=0.05)


def test_steady_traffic_decides_the_front():
    models = serving_cases(
        {
            "model": {"name": "llama-3.1-70b", "dtype": "fp8"},
            "topology": {"name": "dgx-h100"},
            "serving": {"tp": [4, 8], "batch": [16, 64], "context": 3072, "output": 256},
        }
    )
    front = serving_front([serving_step(model, "decode") for model in models])
    rates = [step.steady_rate for step in front]
    assert rates == sorted(rates)
    assert [step.token_seconds for step in front] == sorted(step.token_seconds for step in front)


def test_the_front_is_what_nothing_beats():
    models = serving_cases(
        {
            "model": {"name": "llama-3.1-70b", "dtype": "fp8"},
            "topology": {"name": "dgx-h100"},
            "serving": {"tp": [2, 4, 8], "batch": [1, 16, 256], "context": 3072},
        }
    )
    steps = [serving_step(model, "decode") for model in models]
    front = serving_front(steps)
    for step in steps:
        beaten = any(
            rival.seconds <= step.seconds
            and rival.tokens_per_second_per_gpu >= step.tokens_per_second_per_gpu
            for rival in front
            if rival is not step
        )
        assert beaten == (step not in front) or not step.fits


@pytest.mark.parametrize(
    ("model", "serving", "said"),
    [
        ("llama-3.1-8b", {"tp": 3}, r"\$\.serving\.tp: 32 heads do not divide by 3"),
        ("llama-3.1-8b", {"pp": 3}, r"\$\.serving\.pp: 32 layers do not divide by 3"),
        ("llama-3.1-8b", {"tp": 16}, r"are 16 GPUs; the machine has 8"),
        ("llama-3.1-8b", {"dp": 2, "ep": 2}, r"\$\.serving\.ep: the model has no experts"),
        ("deepseek-v3", {"tp": 8, "ep": 4}, r"over all tp x dp = 8 ranks, got ep = 4"),
        ("llama-3.1-8b", {"batch": 0}, r"\$\.serving\.batch: expected a whole number"),
        ("llama-3.1-8b", {"batch": 2**40}, r"from 1 to 2147483647, got 1099511627776"),
        ("llama-3.1-8b", {"batch": []}, r"\$\.serving\.batch: an empty list"),
        ("llama-3.1-8b", {"kv_dtype": "fp9"}, r"\$\.serving\.kv_dtype: unknown type 'fp9'"),
        ("llama-3.1-8b", {"batches": 1}, r"did you mean 'batch'"),
        ("llama-3.1-8b", {"attention_dtype": "fp9"}, r"\$\.serving\.attention_dtype: unknown type"),
        ("llama-3.1-8b", {"attention_dtype": "fp4"}, r"\$\.serving\.attention_dtype: GPU 'h100'"),
        ("llama-3.1-8b", {"expert_dtype": "fp4"}, r"\$\.serving\.expert_dtype: the model has no"),
        ("llama-3.1-8b", {"output": -1}, r"\$\.serving\.output: expected a whole number from 0"),
        ("llama-3.1-8b", {"chunk": 0}, r"\$\.serving\.chunk: expected a whole number from 1"),
        ("llama-3.1-8b", {"step_us": -1.0}, r"\$\.serving\.step_us: expected microseconds"),
        ("llama-3.1-8b", {"scales": "row"}, r"scales"),
        ("llama-3.1-8b", {"imbalance": 0.5}, "an imbalance of at least 1"),
        ("llama-3.1-8b", {"tp": [2, 4, 2]}, r"\$\.serving\.tp: a value twice: 2"),
        (
            "llama-3.1-8b",
            {"prompt": 1024, "context": 512},
            r"\$\.serving\.context: a context of 512 tokens is shorter than the prompt of 1,024",
        ),
    ],
)
def test_what_cannot_be_served_says_why(model, serving, said):
    with pytest.raises(ConfigError, match=said):
        served(model, **serving)


def test_the_command_writes_every_step(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(
        '[model]\nname = "llama-3.1-8b"\ndtype = "fp8"\n[topology]\nname = "dgx-h100"\n'
        "[serving]\ntp = [1, 2]\nbatch = [1, 64]\n"
    )
    assert main(["step", str(tmp_path / "s.toml"), "-o", str(tmp_path / "out")]) == 0
    assert "tokens/s/GPU" in capsys.readouterr().out
    with (tmp_path / "out" / "serving.csv").open() as file:
        rows = list(csv.DictReader(file))
    # A prompt is as fast whatever the batch of the decode step.
    assert [row["phase"] for row in rows] == ["prefill"] * 2 + ["decode"] * 4


@pytest.mark.slow
def test_the_command_prints_the_interval_of_published_engines(tmp_path, capsys):
    text = '[model]\nname = "{}"\ndtype = "fp8"\n[topology]\nname = "dgx-h200"\n[serving]\n{}\n'
    lines = {}
    for name, keys in (
        ("llama-3.1-8b", "output = 64"),
        ("qwen3-235b", "tp = 8"),
        ("deepseek-v3", "dp = 8\nep = 8"),
    ):
        (tmp_path / "s.toml").write_text(text.format(name, keys))
        assert main(["step", str(tmp_path / "s.toml"), "-o", str(tmp_path / "out")]) == 0
        lines[name] = capsys.readouterr().out
    assert "ms/token" in lines["llama-3.1-8b"]
    assert "ms/token" not in lines["qwen3-235b"]
    assert "of dense models on H100 to B300" in lines["llama-3.1-8b"]
    assert "of mixtures of experts on H100 to B300" in lines["qwen3-235b"]
    assert "no interval" in lines["deepseek-v3"]


@pytest.mark.slow
def test_the_intervals_are_today_s():
    written = (ROOT / "measurements" / "serving" / "intervals.csv").read_text()
    assert written == engines_accuracy.intervals_csv(engines_accuracy.engine_rows()), (
        "python benchmarks/pages/engines_accuracy.py"
    )


@pytest.mark.slow
def test_published_engines_are_near():
    rows = engines_accuracy.engine_rows()
    errors = [abs(row.rate - 1) for row in rows if not row.chosen_on]
    unseen = [abs(row.rate - 1) for row in rows if row.model == engines_accuracy.UNSEEN]
    assert len(unseen) == 46
    assert median(unseen) < 0.07
    assert len(rows) > 1700
    assert median(errors) < 0.11
    for row in rows:
        assert 0 <= row.spread < 0.5


@pytest.mark.slow
def test_the_page_has_today_s_errors():
    page = serving_accuracy.serving_page()
    assert (ROOT / "docs" / "accuracy-serving.md").read_text() == page, (
        "python benchmarks/pages/serving_accuracy.py > docs/accuracy-serving.md"
    )
    for gpu in ("h200", "h100"):  # left out of the choice of constants
        (line,) = (
            line for line in page.splitlines() if line.startswith(f"| LLaMA, batches, {gpu}")
        )
        assert int(line.split("|")[3].strip(" %")) <= 10


@pytest.mark.parametrize(
    ("host", "says"), [({}, True), ({"step_us": 750}, False), ({"dp": 2, "batch": 8}, False)]
)
def test_an_interval_without_the_host_says_which_host_it_was_made_with(host, says):
    model = served(**host)
    lines = list(serving_lines([model], [serving_step(model, "decode")]))
    assert says == any("750 us for vLLM, 2,000 us for SGLang" in line for line in lines)
    # These are the hosts that the rows of the interval were predicted with.
    step = engines_accuracy.STEP
    assert (step["vllm"]["step_us"], step["sglang"]["step_us"]) == (750, 2000)
    assert "step_us" not in step["trtllm"]
