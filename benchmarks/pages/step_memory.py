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
from simcoll.training.memory import memory_by_stage
from simcoll.training.step_calibration import UNCALIBRATED, StepCalibration, shipped_calibration

__all__ = ["causes", "coverage", "fits", "memory", "memory_gib"]

MEMORY_TABLES = ("torchtitan", "torchtitan-405b", "nanotron")
MEMORY = """
## Peak memory

Predicted against published memory of the fullest GPU. torchtitan prints what PyTorch's allocator reserved, fragments included,
on H100 of 96 GB; nanotron what was allocated. Not modelled: what eager kernels keep beside the inputs of products (nanotron's norms, rotations and
activation functions are separate kernels; the first row of torchtitan is eager), and fragments.

| measured by | model | GPUs | published GiB | predicted GiB | error |
|---|---|---|---|---|---|
"""
MEMORY_END = """
Median error: torchtitan {titan:.1f} % ({titan_rows} rows), all {all:.1f} %. Of {rows:,} published steps that ran, {unfit} do not fit the model's memory: {names}.
They do not count in the means of this page. Two of Llama 3 70B on GB300 are printed without chunks or sharding, which they may have had. Memory is what CUDA
reports as the capacity of the GPU. Inputs of products in 8 bits are saved in 8 bits, as Transformer Engine does; recomputed modules and offloaded layers are those of the recipes.
"""
COVERAGE = """
## Intervals

`step` and `plan` print what nine of ten, and half, of measured steps of a design's class would take
([how](explanation/intervals.md#steps)). *Within*: how often intervals made without any row of a table hold the rows of that table, each series (a model, GPU and
data type of a table) with the same weight. *Width*: upper over lower end of the 90 % interval, median.

| constants | model | sharding | GPU | series | rows | within 50 % | within 90 % | width |
|---|---|---|---|---:|---:|---:|---:|---:|
"""
CAUSES = """
## What large errors come from

The mean error of groups of rows, without constants, and with one assumption changed at a time.

| rows | number | as predicted | no overlap of tp | attention of eager FSDP | other kernels of eager FSDP | host launches |
|---|---:|---:|---:|---:|---:|---:|
"""
CAUSES_END = """
*Long sequences*: nearly all of the error is attention. The rate of the H100 is that of FlashAttention-3; at 0.43 of it, which MPT's rows of 2,048 tokens say of
FlashAttention-2, the mean error is gone. *Nemotron-4 340B on GB200*: the overlap of tensor parallelism. Without it the steps are too slow,
with it too fast: kernels for parts of a product are slower, and not all of the exchange is hidden. *Asynchronous*: the same. A cap on what overlap
gains, 16 % of a step, the most that torchtitan published, was tried: rows of GB200 are right then (DGX Cloud -15 to -2 %), and those of H100 wrong (NeMo 24.07 +6 %, Megatron Bridge 26 +17 %, MLPerf +13 %), so
there is none. *Mixtures of experts*: launches from the host explain
a part ([above](#nemo-megatron-bridge-dgx-cloud-and-llama-3-no-calibration)). Another is in rows that were printed before their layout was tuned: GPT-OSS on B300 took 9.8 s, and 5.4 s in a newer
container; Qwen3 235B 49.6 s and 22.1 s.
"""
LONG = 32_768


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
    medians = {name: 100 * float(np.median(np.abs(off))) for name, off in errors.items()}
    together = 100 * float(np.median(np.abs([off for part in errors.values() for off in part])))
    yield MEMORY_END.format(
        titan=medians["torchtitan"],
        titan_rows=len(errors["torchtitan"]),
        all=together,
        rows=len(rows),
        unfit=len(unfit),
        names=names,
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
        "mixtures of experts": [
            row
            for name in ("megatron-bridge-2025", "megatron-bridge-2026", "automodel-2025")
            for row in published_steps(name).rows
            if row.design.model.experts
        ],
    }
    for name, rows in groups.items():
        means = [
            _mean_error(rows, UNCALIBRATED),
            _mean_error([_without_overlap(row) for row in rows], UNCALIBRATED),
            *(_mean_error(rows, constants) for constants in (attention, kernels, host)),
        ]
        cells = [f"{100 * mean:+.1f} %" for mean in means]
        yield f"| {name} | {len(rows)} | {' | '.join(cells)} |\n"
    yield CAUSES_END


def _without_overlap(row: StepRow) -> StepRow:
    parallel = msgspec.structs.replace(row.design.parallel, overlap_tp=False)
    return replace(row, design=replace(row.design, parallel=parallel))


def _mean_error(rows: Sequence[StepRow], calibration: StepCalibration) -> float:
    measured = np.array([row.seconds for row in rows])
    return float((predict_seconds(rows, calibration) / measured - 1).mean())
