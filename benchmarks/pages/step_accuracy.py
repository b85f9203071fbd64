"""The accuracy page of training steps: predicted against measured, with the constants fitted to
each table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from step_examples import CONTENTION, DEEPEP, PLACED, contention, exchange_us, placement_ms
from step_memory import causes, coverage, fits, memory, memory_gib

from simcoll.planning.measured.step_fitting import fit_steps, predict_seconds
from simcoll.planning.measured.step_rows import StepRow, StepTable, published_steps
from simcoll.training import chunks, layers, operators, step_workload
from simcoll.training.chunks import CAST_HOST_US, EXPERTS_HOST_US
from simcoll.training.design import Design
from simcoll.training.script import shape_of
from simcoll.training.step_calibration import UNCALIBRATED, StepCalibration, shipped_calibration
from simcoll.training.steps import TrainingStep

__all__ = ["megatron_a100", "step_page"]

SINGLE_EVERY = 6
FITTED = ("rate", "hbm", "host_layer_us", "host_tp_us", "step_ms")
LEAD = """# Accuracy of training steps

| measured by | rows | constants from | mean error |
|---|---:|---|---:|
"""
UNDER = """
Predicted (tier 1) against measured times of published training steps. *None*: predicted from a design file alone;
the share of its rate that a GPU sustains is from some of these rows ([below](#nemo-megatron-bridge-dgx-cloud-and-llama-3-no-calibration)). Rows that do
not fit the model's memory ([three](#peak-memory)) do not count.
`simcoll accuracy --steps` prints this page; the rows are in `measurements/steps`, with their sources.

"""
HEAD = """## vTrain: Megatron-DeepSpeed on A100

Five constants, {constants}, each for all rows: {calibration}. Fitted to the rows of several nodes and to every sixth
of one node, half of the weight each. *Left out*: every fold (rows of one model width on one number of GPUs), with constants fitted
to the other folds. The peak is the vendor's, its ceiling a measured matrix product (`gpus/a100-80.toml`); collectives are NCCL
2.27's, measured elsewhere (`libraries/nccl-2.27.toml`).

| rows | | number | mean error | median | p90 | bias |
|---|---|---|---|---|---|---|
"""
PUBLISHED = """
vTrain itself, which measures kernels on a GPU and fits nothing, reports 14.7 % for several nodes and 8.4 % for one (arXiv 2312.12391,
on all of its rows, more than these).

The rows with the largest errors have tp 2 with pp 8 or 16 and a model of 39.1B; all took longer than predicted, with memory nearly
full.
"""
KORTHIKANTI = """
## Korthikanti et al., table 5: Megatron-LM on A100

Nothing is fitted to these rows: the constants are those from vTrain's. Calculon reports a mean of 3.65 % and at most 8.87 %, with
efficiencies set by hand (arXiv 2306.02003).

| model | recompute | measured s | predicted s | error |
|---|---|---|---|---|
"""
SLOWER = 0.4
"""Slow-down of computation beside collectives, for MLPerf's rows: the maximum measured by arXiv
2507.03114 on H100 and A100.
"""
SLOWDOWNS = {
    0.0: "off",
    0.189: "their mean",
    SLOWER: "their most",
    0.76: "a product of matrices on A100, NCCL issue 1428",
}
MLPERF = """
## MLPerf Training v5.0: Llama 3.1 405B on H100

*Blind*: no constant. *From 512 GPUs*: the rate of matrix products from the first row ({rate}), and computation that is {slower} % slower
beside collectives of data parallelism, the most that arXiv 2507.03114 measured on H100 and A100; the other rows are predicted.

| GPUs | micro-batches | measured s | blind | from 512 GPUs |
|---|---|---|---|---|
"""
INTERCEPT = """
A line through the times over micro-batches and bubble has its intercept, the cost of data parallelism and the optimizer in a step, at
{line:.3f} s measured, {weighted:.3f} s when each row weighs by its time. Played together (tier 2), where data parallelism, stages and
context share NICs, and with a slow-down of {slower:.1g} as above, steps have it at
{together}. Exposed bytes, those of the first and the last layers,
are a small part; the rest is computation slowed down by overlapped bytes. In tier 1, without weights:

| slow-down beside collectives | intercept s | all stages at the same time | layer by layer |
|---|---|---|---|
"""
BUCKETS = """
The runs reduced the gradients of a chunk of layers at once, when its stage had finished it, so that a slowed stage delays the next.
NeMo 2.2.0, the version in the submission's `Dockerfile`, makes a chunk one bucket (`init_ddp` in `nemo/lightning/megatron_parallel.py`),
and has no option that its `extract_ddp_funcs` would need to reduce on *all stages at the same time*, as older versions of NeMo do; then stages
are slow together. The submission's files (`config_common.sh`, `custom_communicator_cta.yaml` and `pretrain.py` of
`eos-dfw_n64_ngc25.01_nemo`) confirm that both collectives overlap, with parameters in 8 bits. Not modelled: three operations of some
5 ms per step (setting gradients to 0, checking them for NaN, transposing 8-bit weights), the host's wait for the result of that check
before every reduction and its work between two steps, NCCL's limits of 8 multiprocessors for data parallelism and 1 for context, and
differences between GPUs.
"""
GPT3 = """
## MLPerf Training v4.1: GPT-3 175B on H100

The same cluster; nothing fitted. *Slowed*: {slower} % slower beside collectives, as above. These runs used NeMo's older classes, which
reduce a chunk's gradients on all stages at the same time (`megatron_gpt_model.py`, `align_grad_reduce`).

| GPUs | micro-batches | measured s | blind | slowed |
|---|---|---|---|---|
"""
MEGATRON = """
## Narayanan et al., table 1: Megatron-LM on A100

Nothing fitted: constants from vTrain. Measured times follow from the published TFLOP/s and the paper's count of operations.

| model | GPUs | measured s | predicted s | error |
|---|---|---|---|---|
"""
BLOOM = """
## BLOOM: Megatron-DeepSpeed on 384 A100

Second steps of trial runs in bf16 with gradients summed in fp32, whole layers recomputed, 2,048 sequences (512 on one node). *Megatron*: `megatron-a100`, from vTrain's rows. *Rate*: with one constant more, the rate
of products, from the rows of the other widths.

| GPUs | hidden | layers | heads | tp x pp | micro-batch | measured s | Megatron | rate |
|---|---|---|---|---|---|---|---|---|
"""
BLOOM_END = """
Mean error: {plain:.1f} %, and {rate_error:.1f} % with products at {rate:.2f} of that rate. It is neither the network nor the pipeline: the two runs on one node, without
both, are as far off ({alone:.0f} %). A slower memory instead (`hbm`) leaves {hbm_error:.0f} %. So its products were slower than Megatron-LM's and vTrain's on the same
GPU; why is not published. The row with 104 heads, of 128 wide, and those of micro-batches of 2 with TP 8 are the slowest.
"""
FSDP = """
## MPT: PyTorch FSDP on H100 and A100

Models of 125 million to 70 billion parameters, sequences of 512 to 65,536, 8 to 512 GPUs. *Blind*: no constant. *Seen* and *other
models*: {constants}, three for each GPU, fitted to the models of {fitted} alone; computation is {slower} % slower beside collectives, as
above. Nothing is fitted to the rows of A100 with 40 GB and of 8-bit products.

| table | rows | blind: mean | bias | seen: mean | other models: rows | mean | median | p90 |
|---|---|---|---|---|---|---|---|---|
"""
STACKS = (
    ("mpt-h100", "fsdp-h100"),
    ("mpt-h100-fp8", "fsdp-h100"),
    ("mpt-a100-80", "fsdp-a100"),
    ("mpt-a100-40", "fsdp-a100"),
)
"""Tables of PyTorch FSDP, and the constants for their predictions."""
STACK_FITTED = ("1b", "7b", "30b")
"""Models that gave those constants, on H100 with 16-bit products and on A100 with 80 GB."""
TITAN = """
## torchtitan: PyTorch FSDP2

Nothing is fitted to these rows. *Blind*: no constant. *FSDP*: `fsdp-h100` and `fsdp-a100`, from MPT's rows of
eager PyTorch; compiled runs on H100 and H200 with fused element-wise kernels (`unfused` 1). The H100 had 96 GB of 2.4 TB/s and ran at 500 W (`gpus/h100-96.toml`): rates
of kernels are those measured at 700 W, the share that is sustained is less by the cube root of the power. Attention is PyTorch's FlashAttention-2 (`attention = "flash2"`).
What asynchronous tensor parallelism gains is [below](#what-large-errors-come-from). Pipelines whose micro-batches are not published are left out.

| model | GPUs | type | measured s | blind | FSDP |
|---|---|---|---|---|---|
"""
BLIND = """
## NeMo, Megatron Bridge, DGX Cloud and Llama 3: no calibration

Predictions from a design file alone. The sustained share of single kernels' rates of H100 is from the rows of NeMo 24.07,
that of B200 and GB200 from the dense rows of Megatron Bridge 25.11, and that of GB300 from those of Megatron Bridge 26; all other rows
are predicted with these shares. The recipes of the containers determine which rows overlap exchanges of tokens, on how many
multiprocessors, which kernels CUDA graphs launch, which modules are recomputed, how many layers' activations are offloaded, which products of 8 bits keep their weights in 8 bits (`fp8_param_gather`), so that
they are not cast for every micro-batch, and which experts are split over tensor parallelism (`split_experts`). *GiB*: of the fullest GPU. Megatron Bridge 26 means containers 26.02 to 26.08, each configuration in its
newest container; two are printed there without chunks or sharding, which they may have had: 70B on GB300 at +25 % and -21 %. *Cards* are its
verification cards, Kimi K2, and configurations whose recipes of 26.04 had neither graphs of whole steps nor fused products of experts. The
Llama 3 paper gives neither the chunks of a stage nor the kernel of attention; 8, and FlashAttention-2, are assumed (with FlashAttention-3, which was published after the runs, both rows are 8 % too fast). Nothing is fitted to the 63
rows of NeMo 24.12, from recipes of DGX Cloud.

| software | model | GPUs | type | measured s | predicted s | error | GiB | fits |
|---|---|---|---|---|---|---|---|---|
"""
MIXTURES = """
26 rows of Megatron-LM, of the cards, and of NeMo AutoModel were predicted **blind**, when of the causes below only biases and clamps were modelled:

| predicted blind | rows | error |
|---|---:|---|
| mixtures, Megatron-LM | 13 | 19.7 % (4 to 36) |
| mixtures, cards | 10 | 12.7 % |
| mixtures, AutoModel: GPT-OSS 120B; DeepSeek V3 | 2 | +9.5 %; +34.4 % |
| dense, AutoModel: Llama 3.1 70B | 1 | -2.1 % |

The other causes were looked for with the errors of all rows in view, so that no error of this section is blind. But only the host's time for casts is fitted to a step of a mixture, one row;
all other numbers are of kernels measured alone, of recipes and code, of a run that is not among the rows, and of the number of kernels in a profile. Mean errors (and biases), and without one cause at
a time:

| mixtures | Qwen3 | GPT-OSS | DeepSeek | Grok-1 | all |
|---|---:|---:|---:|---:|---:|
"""
MIXTURES_END = """
* **The host**: unless one CUDA graph launches the whole step, the forward pass of a layer with experts takes the host {graphs:.2f} ms or more with graphs of the rest of the layer,
  {none:.2f} without, and the backward pass twice that: Qwen3 30B on 16 H100, two stages and two micro-batches, took 484 ms with and 623 without (`nemo-mbridge-perf-cuda-graphs` of Megatron
  Bridge; not among the rows). In 8 bits Transformer Engine casts the tokens of one expert after the other (`split_quantize`), {casts:.0f} us for each in a pass, from Qwen3 30B in 8 bits on
  32 H100 of Megatron-LM (without that row, mixtures are off by {unfitted:.1f} %). The pair of one design with and without a graph of the step, Qwen3 235B on GB200, 32.1 and 44.3 s, is
  predicted.
* **Scaled rotary embedding**: Megatron-LM's fused kernel has no scale, so that YaRN in GPT-OSS takes separate ones (`apply_rotary_pos_emb` in `rope_utils.py`), 44 bytes for each element of
  queries and keys.
* **Exchanges**: on Blackwell HybridEP sends tokens within NVLink at 0.81 to 0.84 of the rate of an all_to_all, by its own measurements (`[exchange]` of the GPU files).
* **Experts on any node**: AutoModel's balanced gate gives a token neighbouring experts, and DeepSeek's router chooses at most four nodes (`node_limit`).
* **Exchanges overlap in every pass**: Megatron-LM runs the backward pass of a micro-batch beside the forward pass of the next one, so that the first forward and the last backward passes
  have nothing beside them (`combined_1f1b.py`), a fifth of GPT-OSS's with five micro-batches.
* **Attention in 16 bits**: recipes of MXFP8 with a graph of the whole step compute attention in 8 bits (`fp8_dot_product_attention`), Transformer Engine since 2.15 also with GPT-OSS's sinks
  (`attention/dot_product_attention/utils.py`). cuDNN's backward kernels of 8 bits do not skip what is outside of a window: four times as long for twice the sequence, on GB200 2.1 ms where
  16 bits take 0.5 (cudnn-frontend 3929da2, `benchmark/sdpa_benchmark_training`, GPT-OSS).
* **Experts of separate kernels, and a head of 16 bits**: the same recipes compute a product of experts with what is around it in one kernel (`NVTE_CUTEDSL_FUSED_GROUPED_MLP`), and but for
  Qwen3 the head in 8 bits (`fp8_output_proj`); both make predictions faster, and those of GPT-OSS are further off with them.
* **Norms of queries and keys**: Qwen3 has them.
* **Starts of kernels**: a profile of Qwen3 30B on 16 H100 counts 463,348 kernels in a step of 64 micro-batches and 48 layers, {kernels} for a layer besides its products of experts, each of
  which begins and ends (2.5 us).
* **Short products**: experts' products are short; cuBLAS reaches 0.73 of its rate at a depth of 768 in 8 bits and 0.93 in 16, alike on six kinds of GPU (`SHORT_BYTES` in
  `simcoll/training/operators.py`).
* **Layout printed**: 25.11 prints two sequences a micro-batch and 24 chunks for Qwen3 30B on H100, as 25.09 did; its recipe (branch r0.2.0) has 1 and 12.

What is left: mixtures are still too fast in most publications. In the same profile (without overlap, 24.7 s) kernels are active for 92 % of the step, communication takes 8.3 s, and 13 % of the step prepares exchanges, 3 % when they overlap: ranks wait for each other at each exchange, which is not modelled. Two rows
are not explained by the machine: 25.11's Qwen3 30B on H100 took 1.7 times as long for a token as in 26.02 with the same recipe, and Qwen3 235B on B300 49.6 s before its micro-batches were doubled, 22.1 after. GPT-OSS is too fast by the most, although the kernels are counted with
which Megatron-LM adds biases of its experts in 32 bits and clamps their inner values (in MXFP8 on GB200 and GB300 both are part of the products), the rate of attention with heads of 64 and with windows, and its rotary embedding. Checked and not it: the vocabulary (the printed FLOPs of 25.11 and 26.08 fit 201,088), the balance of experts
(forced), the fusion of the permutation (on), dropout (none), the loss (fused). Not measured anywhere: cuDNN's kernels with sinks, and Transformer Engine's products of experts, one after the other on four streams.

*Dense models on H100*: Megatron Bridge 26 has two rows, 70B at +9 and 405B at 0 %; 25.11 has +6, -9 and +5 %. Kernels of these containers are faster than the share of 2024 says, and the step of 405B on 1,024 GPUs waits longer for what is not kernels: with the rate of products and attention 7 % higher they are
{faster}. No one share mends both.
"""
VTRAIN_TABLES = ("vtrain-multi", "vtrain-single")
OTHER_TABLES = (
    "korthikanti",
    "megatron-table1",
    "bloom",
    "mlperf-405b-h100",
    "mlperf-gpt3-h100",
    "torchtitan",
)
CAST_ROW = 3.1037
"""Seconds of the row that determines the host's time for casts."""
PRINTED_ROW = 24.8478
"""Seconds of the row whose layout is that of its recipe."""
BLIND_TABLES = {
    "nemo-2024": "NeMo 24.07",
    "megatron-bridge-2025": "Megatron Bridge 25.11",
    "megatron-bridge-2026": "Megatron Bridge 26",
    "megatron-bridge-cards": "Megatron Bridge 26, cards",
    "megatron-lm-2026": "Megatron-LM 2026",
    "automodel-2025": "NeMo AutoModel",
    "dgxc-2502": "NeMo 24.12",
    "dgxc-2025": "DGX Cloud",
    "llama3-paper": "Llama 3 paper",
    "deepseek-v3-paper": "DeepSeek paper",
}
AMD = """
## Primus: AMD MI325X

Llama 3.1 with sequences of 8,192 tokens, from AMD's Primus; global batches, overlap and recomputation are those of its configuration files, not stated with the rows. **Blind**, with the lowest share of any
GPU for everything that was not measured on MI325X, the four rows were predicted at +39, +38, +44 and +36 %. The two rows of 8B then gave the share that products sustain in training, all of the measured rate of
a long product (NVIDIA's sustain 73 to 83 % of theirs); 70B is left out. In 8 bits it cannot do without recomputation (619 GiB); in 16 it
could (194 GiB), and would be predicted at -24 %.

| model | GPUs | type | measured s | predicted s | error | GiB | fits |
|---|---|---|---:|---:|---:|---:|---|
"""
AMD_NOTE = """
*Mixtral 8x22B* on 64 MI355X (PP 4, EP 8, 3,534 tokens a second of a GPU) is predicted at +30 % without recomputation, with 313 GiB of 268; by Primus's own projection it needs 583 GB, so that it recomputes, which
is not stated. *Qwen3 235B* on 32 MI355X (2,742 tokens a second of a GPU, 262 GB) is predicted at -30 % and 424 GiB; its types of gradients and moments and its global batch are not stated. Neither is entered.
*Llama 2 7B* on eight MI300X (PP 8) has 10,057 tokens a second and 236 TFLOPS of a GPU; its tokens would take 1.9 times those operations.
"""
EXCHANGE = """
## DeepEP: exchanges of tokens

Microseconds on H800 with a NIC of 400 Gbit/s per GPU; nothing fitted. *Balanced*: with equal load on all experts.

| GPUs | kernel | measured | predicted | error | balanced |
|---|---|---|---|---|---|
"""
PLACEMENT = """
A step of 256 H100, four nodes a leaf: tensor parallelism of 8, 4 stages, data parallelism of 8, 8 micro-batches of 20 ms forward and 40 ms
backward, 32 MiB from stage to stage, 4 GB of gradients and 2 GB of parameters of each rank.

| spine | step ms | data parallelism exposed | stages exposed |
|---|---|---|---|
"""
SHARED = """
## Two axes on one NIC: formulas against the emulator

Backward passes of 8 layers on 4 nodes of 8 H100: each waits for an all_to_all among 16 ranks, and a reduce_scatter over all 32 runs beside
the next layers. Milliseconds, without measurements: the error of simple formulas.

| compute, exchange, reduction of a layer | the longer of both | the sum | emulated |
|---|---|---|---|
"""


def megatron_a100() -> StepCalibration:
    """The constants of Megatron on A100, from vTrain's rows."""
    return shipped_calibration("megatron-a100")


def step_page() -> str:
    """The page, in Markdown; made from scratch it takes some ten minutes."""
    parts = (
        _vtrain,
        _korthikanti,
        _mlperf,
        _gpt3,
        _megatron,
        _bloom,
        _fsdp,
        _titan,
        _blind,
        _amd,
        _exchange,
    )
    lead: list[str] = []
    body = [line for part in parts for line in part(lead)]
    tables = (*VTRAIN_TABLES, *OTHER_TABLES, *(name for name, _ in STACKS), *BLIND_TABLES)
    rest = (*memory(tables), *coverage(), *causes(), *_contention_rows())
    return "".join([LEAD, *lead, UNDER, *body, *rest])


def _lead_line(source: str, constants: str, errors: ArrayLike) -> str:
    """A line of the table at the top."""
    size = np.abs(np.asarray(errors))
    return f"| {source} | {len(size)} | {constants} | {100 * size.mean():.1f} % |\n"


def _vtrain(lead: list[str]) -> Iterator[str]:
    several, single = published_steps("vtrain-multi").rows, published_steps("vtrain-single").rows
    some = single[::SINGLE_EVERY]
    rows, weights = (
        [*several, *some],
        [1 / len(several)] * len(several) + [1 / len(some)] * len(some),
    )
    shipped = megatron_a100()
    fit = fit_steps(rows, FITTED, start=shipped, weights=weights)
    words = f"`{shipped.hash}` in `calibrations/megatron-a100.toml`"
    yield HEAD.format(
        constants=", ".join(f"`{name}` {getattr(shipped, name):.4g}" for name in FITTED),
        calibration=words,
    )
    count = len(several)
    for name, part in (("several nodes", slice(count)), ("one node", slice(count, None))):
        for how, errors in (("left out", fit.unseen_errors[part]), ("all", fit.errors[part])):
            yield f"| {name} | {how} | {len(errors)} | {_summary(errors)} |\n"
        lead.append(
            _lead_line(
                f"vTrain: Megatron-DeepSpeed on A100, {name}",
                "other folds",
                fit.unseen_errors[part],
            )
        )
    blind = predict_seconds(several, UNCALIBRATED) / np.array([row.seconds for row in several]) - 1
    yield f"| several nodes | no constant | {count} | {_summary(blind)} |\n"
    yield PUBLISHED


def _summary(errors: NDArray[np.float64]) -> str:
    size = np.abs(errors)
    values = (size.mean(), np.median(size), np.quantile(size, 0.9))
    return " | ".join(
        [*(f"{100 * value:.1f} %" for value in values), f"{100 * errors.mean():+.1f} %"]
    )


def _errors(
    table: StepTable, calibration: StepCalibration
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    times = predict_seconds(table.rows, calibration)
    return times, times / np.array([row.seconds for row in table.rows]) - 1


def _korthikanti(lead: list[str]) -> Iterator[str]:
    table = published_steps("korthikanti")
    times, errors = _errors(table, megatron_a100())
    yield KORTHIKANTI
    for row, time, error in zip(table.rows, times, errors, strict=True):
        yield f"| {row.fold} | {row.design.parallel.recompute} | {row.seconds:.2f} | {time:.2f} | {100 * error:+.1f} % |\n"
    yield f"\nMean {100 * np.abs(errors).mean():.1f} %, at most {100 * np.abs(errors).max():.1f} %.\n"
    lead.append(_lead_line("Korthikanti et al.: Megatron-LM on A100", "vTrain's rows", errors))


def _mlperf(lead: list[str]) -> Iterator[str]:
    table = published_steps("mlperf-405b-h100")
    fit = fit_steps(table.rows[:1], ("rate",), start=StepCalibration(overlap=SLOWER))
    _, blind = _errors(table, UNCALIBRATED)
    errors = _errors(table, fit.calibration)[1]
    lead.append(_lead_line("MLPerf v5.0: Llama 3.1 405B on H100", "none", blind))
    yield MLPERF.format(
        rate=f"{fit.calibration.rate:.3f} of what the GPU sustains", slower=round(100 * SLOWER)
    )
    for row, blind_error, fitted_error in zip(table.rows, blind, errors, strict=True):
        design = row.design
        shape = f"{design.mesh.nranks} | {design.micro_batches} | {row.seconds:.3f}"
        yield f"| {shape} | {100 * blind_error:+.1f} % | {100 * fitted_error:+.1f} % |\n"
    parallel = table.rows[0].design.parallel
    passes = [row.design.micro_batches + (parallel.pp - 1) / parallel.virtual for row in table.rows]
    measured = np.array([row.seconds for row in table.rows])
    intercept, weighed = _intercept(passes, measured), _intercept(passes, measured, 1 / measured)
    played = [
        TrainingStep(replace(row.design, calibration=fit.calibration)).time_fs(tier=2) / 1e15
        for row in table.rows
    ]
    lines = (
        (_intercept(passes, played), intercept),
        (_intercept(passes, played, 1 / measured), weighed),
    )
    together = " and ".join(
        f"{simulated:.3f} s ({100 * (simulated / reference - 1):+.0f} %)"
        for simulated, reference in lines
    )
    yield INTERCEPT.format(line=intercept, weighted=weighed, slower=SLOWER, together=together)
    for slower, words in SLOWDOWNS.items():
        constants = msgspec.structs.replace(fit.calibration, overlap=slower)
        cells = []
        for buckets in ("chunk", "aligned", "layer"):
            rows = [replace(row, design=_with(row.design, buckets=buckets)) for row in table.rows]
            seconds = _intercept(passes, predict_seconds(rows, constants))
            cells.append(f"{seconds:.3f} ({100 * (seconds / intercept - 1):+.0f} %)")
        yield f"| {slower:.3g}: {words} | {' | '.join(cells)} |\n"
    yield BUCKETS


def _with(design: Design, **changes: str) -> Design:
    return replace(design, parallel=msgspec.structs.replace(design.parallel, **changes))


def _intercept(
    passes: Sequence[float], seconds: ArrayLike, weights: NDArray[np.float64] | None = None
) -> float:
    return float(np.polyfit(passes, np.asarray(seconds), 1, w=weights)[1])


def _gpt3(lead: list[str]) -> Iterator[str]:
    table = published_steps("mlperf-gpt3-h100")
    yield GPT3.format(slower=round(100 * SLOWER))
    blind, slowed = (
        _errors(table, calibration)[1]
        for calibration in (UNCALIBRATED, StepCalibration(overlap=SLOWER))
    )
    lead.append(_lead_line("MLPerf v4.1: GPT-3 175B on H100", "none", blind))
    for row, blind_error, slowed_error in zip(table.rows, blind, slowed, strict=True):
        design = row.design
        shape = f"{design.mesh.nranks} | {design.micro_batches} | {row.seconds:.3f}"
        yield f"| {shape} | {100 * blind_error:+.1f} % | {100 * slowed_error:+.1f} % |\n"


def _megatron(lead: list[str]) -> Iterator[str]:
    table = published_steps("megatron-table1")
    times, errors = _errors(table, megatron_a100())
    lead.append(_lead_line("Narayanan et al.: Megatron-LM on A100", "vTrain's rows", errors))
    yield MEGATRON
    for row, time, error in zip(table.rows, times, errors, strict=True):
        yield f"| {row.fold} | {row.design.mesh.nranks} | {row.seconds:.2f} | {time:.2f} | {100 * error:+.1f} % |\n"


def _bloom(lead: list[str]) -> Iterator[str]:
    rows = published_steps("bloom").rows
    measured = np.array([row.seconds for row in rows])
    plain = predict_seconds(rows, megatron_a100()) / measured - 1
    fit, memory_fit = (fit_steps(rows, (name,), start=megatron_a100()) for name in ("rate", "hbm"))
    yield BLOOM
    for row, off, fitted in zip(rows, plain.tolist(), fit.unseen_errors.tolist(), strict=True):
        model, parallel = row.design.model, row.design.parallel
        yield (
            f"| {row.design.mesh.nranks} | {model.hidden} | {model.layers} | {model.heads} | {parallel.tp} x {parallel.pp} | "
            f"{parallel.micro_batch} | {row.seconds:.1f} | {100 * off:+.1f} % | {100 * fitted:+.1f} % |\n"
        )
    lead.append(_lead_line("BLOOM: Megatron-DeepSpeed on A100", "vTrain's rows", plain))
    alone = np.array([row.fold == "one node" for row in rows])
    yield BLOOM_END.format(
        plain=100 * np.abs(plain).mean(),
        rate_error=100 * np.abs(fit.unseen_errors).mean(),
        rate=fit.calibration.rate / megatron_a100().rate,
        alone=100 * plain[alone].mean(),
        hbm_error=100 * np.abs(memory_fit.unseen_errors).mean(),
    )


def _fsdp(lead: list[str]) -> Iterator[str]:
    names = " and ".join(f"`{name}`" for name in dict.fromkeys(name for _, name in STACKS))
    yield FSDP.format(constants=names, fitted=", ".join(STACK_FITTED), slower=round(100 * SLOWER))
    for name, constants in STACKS:
        table, calibration = published_steps(name), shipped_calibration(constants)
        blind, errors = (_errors(table, candidate)[1] for candidate in (UNCALIBRATED, calibration))
        fitted = np.array(
            [
                row.fold in STACK_FITTED and calibration.source.startswith(f"{name}:")
                for row in table.rows
            ]
        )
        size = np.abs(errors)
        fitted_text = f"{100 * size[fitted].mean():.1f} %" if fitted.any() else "-"
        unseen = size[~fitted]
        lead.append(_lead_line(table.title, "three of MPT's models", unseen))
        values = (
            f"{100 * value:.1f} %"
            for value in (unseen.mean(), np.median(unseen), np.quantile(unseen, 0.9))
        )
        yield (
            f"| {table.title.removeprefix('MPT with PyTorch FSDP on ')} | {len(table.rows)} | "
            f"{100 * np.abs(blind).mean():.0f} % "
            f"| {100 * blind.mean():+.0f} % | {fitted_text} | {len(unseen)} | {' | '.join(values)} "
            "|\n"
        )


def _titan(lead: list[str]) -> Iterator[str]:
    table = published_steps("torchtitan")
    yield TITAN
    blind = _errors(table, UNCALIBRATED)[1]
    eager = {name: shipped_calibration(f"fsdp-{name}") for name in ("h100", "a100")}
    constants = {**eager, "compiled": msgspec.structs.replace(eager["h100"], unfused=1.0)}
    errors = {name: _errors(table, calibration)[1] for name, calibration in constants.items()}
    groups: dict[str, list[float]] = {}
    for place, row in enumerate(table.rows):
        gpu = row.design.gpu.name
        kind_of_gpu = "H100" if gpu.startswith("h100") else gpu.upper()
        hopper = "h100" if "eager" in row.fold else "compiled"
        error = float(errors["a100" if gpu.startswith("a100") else hopper][place])
        kind = (
            "asynchronous"
            if row.design.parallel.overlap_tp and row.design.parallel.pp == 1
            else kind_of_gpu
        )
        groups.setdefault(kind, []).append(abs(error))
        yield (
            f"| {row.fold} | {row.design.mesh.nranks} {kind_of_gpu} | {row.design.dtype} | "
            f"{row.seconds:.2f} "
            f"| {100 * blind[place]:+.1f} % | {100 * error:+.1f} % |\n"
        )
    lead += [
        _lead_line(f"torchtitan, FSDP2: {kind}", "MPT's rows", off) for kind, off in groups.items()
    ]
    long = [abs(blind[place]) for place, row in enumerate(table.rows) if row.design.sequence > 8192]
    groups_blind = {"all": np.abs(blind).tolist(), "sequences of 32k to 256k": long}
    lead += [
        _lead_line(f"torchtitan, FSDP2: {kind}", "none", off) for kind, off in groups_blind.items()
    ]
    yield f"\nMean error, FSDP: {_means(groups)}; blind: {_means(groups_blind)}.\n"


def _blind(lead: list[str]) -> Iterator[str]:
    yield BLIND
    groups: dict[str, list[float]] = {}
    for name, software in BLIND_TABLES.items():
        table = published_steps(name)
        for row, time, error in zip(table.rows, *_errors(table, UNCALIBRATED), strict=True):
            design = row.design
            gpu = design.gpu.name.upper()
            kind = row.fold.split()[0] if design.model.experts else f"{software} on {gpu}"
            if fits(row):
                groups.setdefault(kind, []).append(abs(float(error)))
            yield (
                f"| {software} | {row.fold} | {design.mesh.nranks} {gpu} | {design.dtype} | "
                f"{row.seconds:.2f} | {time:.2f} "
                f"| {100 * error:+.1f} % | {memory_gib(row):.1f} | {'yes' if fits(row) else 'no'} |\n"
            )
    yield f"\nMean error: {_means(groups)}.\n"
    dense, mixtures = (
        [off for kind, group in groups.items() if (" on " in kind) == is_dense for off in group]
        for is_dense in (True, False)
    )
    lead.append(
        _lead_line("NeMo, Megatron Bridge, DGX Cloud, Llama 3: dense models", "none", dense)
    )
    lead.append(_lead_line("the same: mixtures of experts", "none", mixtures))
    yield from _mixtures()


def _mixtures() -> Iterator[str]:
    """What each mechanism of mixtures of experts is worth, by taking it away."""
    yield MIXTURES
    rows = [
        row
        for name in BLIND_TABLES
        for row in published_steps(name).rows
        if row.design.model.experts and fits(row)
    ]
    measured = np.array([row.seconds for row in rows])
    families = {
        kind: np.array([row.fold.startswith(kind) for row in rows])
        for kind in ("Qwen3", "GPT-OSS", "DeepSeek", "Grok-1")
    }
    families["all"] = np.ones(len(rows), dtype=bool)
    unfitted, predicted = 0.0, np.zeros(len(rows))
    for words, without, patches in ((AS_PREDICTED, _same, ()), *WITHOUT):
        with ExitStack() as changes:
            for module, name, value in patches:
                changes.enter_context(patch.object(module, name, value))
            changed_rows = [without(row) for row in rows]
            anew = [
                place
                for place, (row, changed) in enumerate(zip(rows, changed_rows, strict=True))
                if words == AS_PREDICTED or patches or _differs(row.design, changed.design)
            ]
            times = predicted.copy()
            times[anew] = predict_seconds([changed_rows[place] for place in anew], UNCALIBRATED)
        errors = times / measured - 1
        if words == AS_PREDICTED:
            predicted = times
            unfitted = 100 * float(np.abs(errors[measured != CAST_ROW]).mean())
        cells = [
            f"{100 * np.abs(errors[of]).mean():.1f} % ({100 * errors[of].mean():+.1f} %)"
            for of in families.values()
        ]
        yield f"| {words} | {' | '.join(cells)} |\n"
    hopper = [
        row
        for name in ("megatron-bridge-2025", "megatron-bridge-2026")
        for row in published_steps(name).rows
        if row.design.gpu.name == "h100" and not row.design.model.experts
    ]
    off = (
        predict_seconds(hopper, StepCalibration(rate=FASTER)) / [row.seconds for row in hopper] - 1
    )
    faster = ", ".join(
        f"{row.fold} {100 * error:+.0f} %" for row, error in zip(hopper, off.tolist(), strict=True)
    )
    yield MIXTURES_END.format(
        graphs=EXPERTS_HOST_US["layer"] / 1000,
        none=EXPERTS_HOST_US["none"] / 1000,
        casts=CAST_HOST_US,
        unfitted=unfitted,
        kernels=layers.KERNELS,
        faster=faster,
    )


def _differs(design: Design, changed: Design) -> bool:
    """Whether a change of a row changes its design."""
    parts = ("parallel", "model", "gpu")
    return any(getattr(design, part) != getattr(changed, part) for part in parts)


def _same(row: StepRow) -> StepRow:
    return row


def _changed(row: StepRow, **changes: Any) -> StepRow:
    parallel = msgspec.structs.replace(row.design.parallel, **changes)
    return replace(row, design=replace(row.design, parallel=parallel))


def _of_model(row: StepRow, **changes: Any) -> StepRow:
    model = msgspec.structs.replace(row.design.model, **changes)
    return replace(row, design=replace(row.design, model=model))


def _at_full_rate(row: StepRow) -> StepRow:
    gpu = row.design.gpu
    values = {place: value for place, value in gpu.values.items() if place != "exchange.share"}
    return replace(row, design=replace(row.design, gpu=replace(gpu, values=values)))


def _without_starts(row: StepRow) -> StepRow:
    gpu = row.design.gpu
    values = {place: value for place, value in gpu.values.items() if place != "kernel.floor"}
    return replace(row, design=replace(row.design, gpu=replace(gpu, values=values)))


def _as_printed(row: StepRow) -> StepRow:
    changed = row.seconds == PRINTED_ROW
    return _changed(row, micro_batch=2, virtual=24) if changed else row


def _16_bits(row: StepRow) -> StepRow:
    return _changed(row, attention="fused") if row.design.parallel.attention == "fp8" else row


AS_PREDICTED = "**as predicted**"
WITHOUT: tuple[
    tuple[str, Callable[[StepRow], StepRow], tuple[tuple[Any, str, object], ...]], ...
] = (
    ("without the host's time", lambda row: _changed(row, graphs="step"), ()),
    (
        "the host's time alike with graphs of layers and without",
        lambda row: row if row.design.parallel.graphs == "step" else _changed(row, graphs="layer"),
        (),
    ),
    ("without the host's casts", _same, ((chunks, "CAST_HOST_US", 0.0),)),
    ("without scaled rotary embedding", lambda row: _of_model(row, yarn=False), ()),
    ("exchanges at the rate of all_to_all", _at_full_rate, ()),
    ("experts on any node", lambda row: _changed(row, node_limit=0), ()),
    (
        "exchanges overlap in every pass",
        _same,
        ((step_workload, "shape_of", lambda design: replace(shape_of(design), pairs=False)),),
    ),
    ("attention in 16 bits", _16_bits, ()),
    ("experts of separate kernels", lambda row: _changed(row, fused_experts=False), ()),
    ("a head of 16 bits", lambda row: _changed(row, head="bf16"), ()),
    ("without norms of queries and keys", lambda row: _of_model(row, qk_norm=False), ()),
    ("without starts of kernels", _without_starts, ()),
    (
        "short products as fast as long ones",
        _same,
        ((operators, "SHORT_BYTES", 0), (operators, "SHORT_SHARE", 1.0)),
    ),
    ("layout printed, not of the recipe", _as_printed, ()),
)
"""Mechanisms of mixtures taken away: in words, by a change of rows, and by names of modules."""
FASTER = 1.07
"""A rate that suits Llama 3 70B on H100."""


def _amd(lead: list[str]) -> Iterator[str]:
    yield AMD
    table = published_steps("primus")
    apart = []
    for row, time, error in zip(table.rows, *_errors(table, UNCALIBRATED), strict=True):
        design = row.design
        yield (
            f"| {row.fold} | {design.mesh.nranks} {design.gpu.name.upper()} | {design.dtype} | "
            f"{row.seconds:.2f} | {time:.2f} | {100 * error:+.1f} % | {memory_gib(row):.1f} | "
            f"{'yes' if fits(row) else 'no'} |\n"
        )
        if row.fold.endswith("70B"):
            apart.append(float(error))
    lead.append(_lead_line("Primus: Llama 3.1 70B on MI325X", "8B's rows", apart))
    yield AMD_NOTE


def _means(groups: dict[str, list[float]]) -> str:
    return ", ".join(f"{kind} {100 * np.mean(errors):.1f} %" for kind, errors in groups.items())


def _exchange(lead: list[str]) -> Iterator[str]:
    yield EXCHANGE
    errors = []
    for gpus, measured in DEEPEP.items():
        for phase, kernel in enumerate(("dispatch", "combine")):
            time, even = exchange_us(gpus, phase), exchange_us(gpus, phase, balanced=True)
            errors.append(time / measured[phase] - 1)
            off = f"{100 * errors[-1]:+.1f} % | {100 * (even / measured[phase] - 1):+.1f} %"
            yield f"| {gpus} | {kernel} | {measured[phase]} | {time:.0f} | {off} |\n"
    yield f"\nMean {100 * float(np.abs(errors).mean()):.1f} %.\n"
    lead.append(_lead_line("DeepEP: exchanges of tokens on H800", "none", errors))


def _contention_rows() -> Iterator[str]:
    yield SHARED
    for case in CONTENTION:
        longer, summed, played = contention(case)
        sizes = f"{case.compute_ms:g} ms, {case.exchange_mib} MiB, {case.reduce_mib} MiB"
        yield (
            f"| {sizes} | {longer:.1f} ({100 * (longer / played - 1):+.0f} %) | {summed:.1f} "
            f"({100 * (summed / played - 1):+.0f} %) "
            f"| {played:.1f} |\n"
        )
    yield PLACEMENT
    for (oversubscription, order), words in PLACED.items():
        total, without_data, without_sends = (
            placement_ms(oversubscription, order, **bytes_of)
            for bytes_of in ({}, {"data": False}, {"sends": False})
        )
        yield f"| {words} | {total:.0f} | {total - without_data:.0f} | {total - without_sends:.0f} |\n"
