"""The sections of the accuracy page of steps about memory, intervals, and what large errors come from."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from simcoll.files.paths import data_folder
from simcoll.planning.measured.step_fitting import predict_seconds
from simcoll.planning.measured.step_rows import StepRow, published_memory, published_steps
from simcoll.planning.measured.step_spreads import difference_coverages, read_step_errors
from simcoll.training.memory import memory_by_stage, stage_parameters
from simcoll.training.step_calibration import UNCALIBRATED, StepCalibration, shipped_calibration

__all__ = ["causes", "coverage", "fits", "memory", "memory_gib"]

MEMORY_TABLES = ("torchtitan", "torchtitan-405b", "nanotron")
MEMORY = """
## Peak memory

Predicted against published memory of the fullest GPU. torchtitan prints what PyTorch's allocator reserved, fragments included,
on H100 of 96 GB; nanotron what was allocated. PyTorch's tensor parallelism and nanotron save the inputs that they gather (`gathers = "saved"`), and nanotron's eager activation functions what they
make (`kernels = "eager"`); nanotron gives the first of two stages 14 of 24 layers (of eight 4), since it counts the head as 2.5. Not modelled: copies of eager attention (the first and fourth row of
torchtitan are eager too), and fragments, which grow with the messages of a pipeline (405B).

| measured by | model | GPUs | published GiB | predicted GiB | error |
|---|---|---|---|---|---|
"""
MEMORY_END = """
Median error: torchtitan {titan:.1f} % ({titan_rows} rows), all {all:.1f} %. Of {rows:,} published steps that ran, {unfit} do not fit the model's memory: {names}.
They do not count in the means of this page. Two of Llama 3 70B on GB300 are printed without chunks or sharding, which they may have had. Memory is what CUDA
reports as the capacity of the GPU. Inputs of products in 8 bits are saved in 8 bits, as Transformer Engine does; recomputed modules and offloaded layers are those of the recipes.

Not in these medians: what `nvidia-smi` showed of BLOOM's runs on one node, {bloom:.0f} % above the predictions ({bloom_rows} rows), 1.6 GiB of CUDA, and what PyTorch keeps in its cache, included. They used DeepSpeed's `BF16_Optimizer` (`bf16_optimizer` of a design), which does not free gradients of 16 bits
beside those of 32 (`update_hp_grads(clear_lp_grads=False)`), and reduces the latter, all at once, in a copy of 16 bits (`get_grads_for_reduction`, `allreduce_bucket`; as merged in April 2022, commit 56c5223): 2 bytes more for each parameter always, and 2 more after the last backward pass. Neither is in
Megatron-LM or PyTorch. Three configurations ran out of memory:

| published | layers | hidden | tp x pp x dp | micro-batch | predicted GiB, without these copies | predicted GiB | fits |
|---|---:|---:|---|---:|---:|---:|---|
{full}
The first two do not fit for the copies: their last stage has the most parameters, {largest:.1f} billion, and needs as much for the reduction with one sequence a micro-batch as with two. The third is not explained: it is as large as a configuration that ran, 94 layers of 13,312 with the same mapping and heads
({neighbour:.1f} GiB, with 67 GB in use). Checked and not enough for it: CUDA's 1.6 GiB; the logits of 250,880 words in 32 bits, inputs of 12 micro-batches in flight and scores of attention of a layer, which are in the model; and loading (weights twice in 16 bits). Fragments, and a fault of
a node (13 of 52 were down at one time), remain.
"""
COVERAGE = """
## Intervals

`step` and `plan` print what nine of ten, and half, of measured steps of a design's class would take
([how](explanation/intervals.md#steps)). *Within*: how often intervals made without any row of a table hold the rows of that table, each series (a model, GPU and
data type of a table) with the same weight. *Width*: upper over lower end of the 90 % interval, median.

| constants | model | sharding | GPU | series | rows | within 50 % | within 90 % | width |
|---|---|---|---|---:|---:|---:|---:|---:|
"""
DIFFERENCES = """
Designs of different classes are a tie if they differ by less than both errors together allow ([how](explanation/intervals.md#steps)). That holds for the errors of {shares}.
Each row is judged by intervals without its table, and each pair of series has the same weight.
"""
CAUSES = """
## What large errors come from

The mean error of groups of rows, without constants, and with one assumption changed at a time.

| rows | number | as predicted | no overlap of tp | attention of eager FSDP | other kernels of eager FSDP | host launches |
|---|---:|---:|---:|---:|---:|---:|
"""
CAUSES_END = """
*Long sequences*: attention. PyTorch runs FlashAttention-2; with the rate of FlashAttention-3 and of 700 W, the rows are 45 % too fast; at 0.75 of the rate of
FlashAttention-2, which MPT's rows of 2,048 tokens say of older kernels, the rest is gone or more. *Nemotron-4 340B on GB200*: the overlap of tensor parallelism, which its recipe has (user buffers, `scripts/performance/llm/pretrain_nemotron4_340b.py` of NeMo). In the model
each exchange runs beside its own product, sums are split in four with the last one exposed, and take 16 multiprocessors from the product beside them; without these three, the rows are 15 % too fast.
*Asynchronous*: the same; overlap gains {gains}, where torchtitan published {published}. *Mixtures of experts*: launches from the host explain
a part ([above](#nemo-megatron-bridge-dgx-cloud-and-llama-3-no-calibration)). Another is in rows that were printed before their layout was tuned: GPT-OSS on B300 took 9.8 s, and 5.4 s in a newer
container; Qwen3 235B 49.6 s and 22.1 s. A third is one container: in 26.06.01 GPT-OSS was 37 to 39 % slower on GB200 and GB300, since the gradient of experts' biases made a fused product
take 1,363 us instead of 139 (issue 256 of cudnn-frontend; 156 since request 322). Sliding windows are not all of it: cuDNN 9.22 takes 0.41 and 0.91 ms on GB200 for both passes of
two sequences of 8,192 tokens with 128 heads of 64 and a window of 128 (cudnn-frontend 3929da2, `benchmark/sdpa_benchmark_training`), and the rates here alone 0.39 and 1.19. Nor are grouped products: the experts of a layer in the
fastest of three inference engines, with activation and permutation, 8,192 tokens on one GPU (aiconfigurator 095f58a), took 0.71 to 1.22 of what is counted for the same, over Qwen3 30B and 235B, DeepSeek V3 and Mixtral
8x22B in 16 and 8 bits on H100 and GB200. Nor are balance and router: the recipes balance the load of experts and fuse their choice. *Grok-1*: that its experts are split over tensor
parallelism, so that tokens cross nodes and are gathered, is counted, and takes 8 to 11 points away; what is left has no known cause.
*MI300X*: no published step states its sequence, batch and mapping ([MI325X](#primus-amd-mi325x) has some): ROCm's cluster validation suite states them with thresholds that are placeholders, MLPerf's rows are of LoRA, which is not modelled; AMD's figures of one container change with its version, and issues 72 to 79 of ROCm's Transformer Engine are of software under repair. Ratios agree:
Llama 3.1 8B in bf16 took 1.32 to 1.40 times as long as on H200 in one report (github.com/alpharomercoma/MI300X-vs-H200), 1.19 to 1.30 here, and in 8 bits MI300X is slower than H100 in both.
"""
LONG = 32_768
NEIGHBOUR_LAYERS = 94
"""Layers of the run of BLOOM that is as large as a configuration that ran out of memory."""
MIXTURE_TABLES = ("megatron-bridge-2025", "megatron-bridge-2026", "automodel-2025", "dgxc-2502")


def memory_gib(row: StepRow) -> float:
    """The predicted memory of the fullest GPU."""
    return max(stage.total for stage in memory_by_stage(row.design)) / 2**30


def fits(row: StepRow) -> bool:
    """Whether the design of a row fits the memory of its GPUs."""
    return memory_gib(row) <= row.design.memory_limit / 2**30


def memory(tables: Sequence[str]) -> Iterator[str]:
    """Predicted and published peaks, and the published steps that do not fit.

    Parameters
    ----------
    tables
        All tables of published steps.
    """
    yield MEMORY
    errors: dict[str, list[float]] = {}
    for name in MEMORY_TABLES:
        of_table = published_steps if name == "torchtitan" else published_memory
        for row in of_table(name).rows:
            if row.peak_gib:
                predicted = memory_gib(row)
                errors.setdefault(name.partition("-")[0], []).append(predicted / row.peak_gib - 1)
                design = row.design
                gpus = f"{design.mesh.nranks} {design.gpu.name.upper()}"
                yield (
                    f"| {name.partition('-')[0]} | {row.fold}, {design.dtype} | {gpus} | "
                    f"{row.peak_gib:.1f} | {predicted:.1f} | "
                    f"{100 * (predicted / row.peak_gib - 1):+.0f} % |\n"
                )
    rows = [row for name in tables for row in published_steps(name).rows]
    unfit = [row for row in rows if not fits(row)]
    names = ", ".join(
        f"{row.fold} on {row.design.mesh.nranks} {row.design.gpu.name.upper()} "
        f"({memory_gib(row):.1f} of {row.design.memory_limit / 2**30:.1f} GiB)"
        for row in unfit
    )
    bloom = [memory_gib(row) / row.peak_gib for row in published_steps("bloom").rows]
    full = published_memory("bloom-oom").rows
    medians = {name: 100 * float(np.median(np.abs(off))) for name, off in errors.items()}
    together = 100 * float(np.median(np.abs([off for part in errors.values() for off in part])))
    yield MEMORY_END.format(
        titan=medians["torchtitan"],
        titan_rows=len(errors["torchtitan"]),
        all=together,
        rows=len(rows),
        unfit=len(unfit),
        names=names,
        bloom=100 * (1 / float(np.mean(bloom)) - 1),
        bloom_rows=len(bloom),
        full="".join(map(_full_line, full)),
        largest=max(
            sum(stage_parameters(full[0].design, stage))
            for stage in range(full[0].design.parallel.pp)
        )
        / 1e9,
        neighbour=next(
            memory_gib(row)
            for row in published_steps("bloom").rows
            if row.design.model.layers == NEIGHBOUR_LAYERS
        ),
    )


def _full_line(row: StepRow) -> str:
    """A line of a configuration that ran out of memory."""
    design = row.design
    parallel = msgspec.structs.replace(design.parallel, bf16_optimizer=False)
    plain = replace(row, design=replace(design, parallel=parallel))
    mapping = f"{parallel.tp} x {parallel.pp} x {parallel.dp}"
    return (
        f"| {row.fold} | {design.model.layers} | {design.model.hidden} | {mapping} | "
        f"{parallel.micro_batch} | {memory_gib(plain):.1f} | {memory_gib(row):.1f} | "
        f"{'yes' if fits(row) else 'no'} |\n"
    )


def coverage() -> Iterator[str]:
    """How often the intervals of steps hold."""
    yield COVERAGE
    path = data_folder("measurements") / "step_coverage.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            names = [row[name] for name in ("calibration", "model", "sharding", "gpu")]
            shares = [f"{100 * float(row[name]):.0f} %" for name in ("within50", "within90")]
            cells = [*names, row["series"], row["rows"], *shares, f"{float(row['width90']):.2f}"]
            yield f"| {' | '.join(cells)} |\n"
    texts = [
        f"{share:.0%} of pairs of {calibration} rows ({twins:.0%} of one model on two kinds of GPU)"
        for calibration, share, twins in difference_coverages(read_step_errors())
    ]
    yield DIFFERENCES.format(shares=" and ".join(texts).replace("%", " %"))


def causes() -> Iterator[str]:
    """The mean errors of groups of rows with one assumption changed at a time."""
    yield CAUSES
    eager = shipped_calibration("fsdp-h100")
    attention = msgspec.structs.replace(UNCALIBRATED, attention=eager.attention)
    kernels = msgspec.structs.replace(UNCALIBRATED, hbm=eager.hbm, unfused=eager.unfused)
    experts = shipped_calibration("megatron-experts")
    host = msgspec.structs.replace(
        UNCALIBRATED,
        host_layer_us=experts.host_layer_us,
        host_expert_us=experts.host_expert_us,
    )
    titan = published_steps("torchtitan").rows
    groups = {
        "torchtitan, sequences of 32k to 256k": [
            row for row in titan if row.design.sequence >= LONG
        ],
        "torchtitan, asynchronous": [
            row for row in titan if row.design.parallel.overlap_tp and row.design.parallel.pp == 1
        ],
        "Nemotron-4 340B on GB200": [
            row
            for row in published_steps("dgxc-2025").rows
            if "340B" in row.fold and row.design.gpu.name == "gb200"
        ],
    }
    for name in MIXTURE_TABLES:
        for row in published_steps(name).rows:
            if row.design.model.experts:
                family = f"mixtures of experts: {row.fold.split()[0]}"
                groups.setdefault(family, []).append(row)
    for name, rows in groups.items():
        means = [
            _mean_error(rows, UNCALIBRATED),
            _mean_error([_without_overlap(row) for row in rows], UNCALIBRATED),
            *(_mean_error(rows, constants) for constants in (attention, kernels, host)),
        ]
        cells = [f"{100 * mean:+.1f} %" for mean in means]
        yield f"| {name} | {len(rows)} | {' | '.join(cells)} |\n"
    yield CAUSES_END.format(**_gains(titan))


def _gains(rows: Sequence[StepRow]) -> dict[str, str]:
    """What asynchronous tensor parallelism gained in torchtitan, and gains here, in percent of a
    step: the least and the most.
    """
    eager = shipped_calibration("fsdp-h100")
    gains: list[tuple[float, float]] = []
    for row in rows:
        if row.design.parallel.overlap_tp and row.design.parallel.pp == 1:
            name = row.fold.replace(", asynchronous", "")
            (apart,) = (
                other
                for other in rows
                if other.fold == name and other.design.dtype == row.design.dtype
            )
            beside_s, apart_s = predict_seconds([row, apart], eager).tolist()
            gains.append((1 - row.seconds / apart.seconds, 1 - beside_s / apart_s))
    names = ("published", "gains")
    return {
        name: f"{100 * min(part):.0f} to {100 * max(part):.0f} %"
        for name, part in zip(names, zip(*gains, strict=True), strict=True)
    }


def _without_overlap(row: StepRow) -> StepRow:
    parallel = msgspec.structs.replace(row.design.parallel, overlap_tp=False)
    return replace(row, design=replace(row.design, parallel=parallel))


def _mean_error(rows: Sequence[StepRow], calibration: StepCalibration) -> float:
    measured = np.array([row.seconds for row in rows])
    return float((predict_seconds(rows, calibration) / measured - 1).mean())
