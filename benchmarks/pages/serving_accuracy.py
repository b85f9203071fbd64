"""The accuracy page of served models: predicted against published steps."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

from engines_accuracy import STEP, engine_rows, engines_section, engines_summary

from simcoll.files.paths import data_folder
from simcoll.training.serving import exchange_seconds, serving_cases, serving_step

__all__ = ["serving_page"]

SIZES: Mapping[str, Mapping[str, object]] = {
    "mistral-7b": {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocabulary": 32000,
    },
    "llama-7b": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocabulary": 32000},
    "mixtral-8x7b": {"name": "mixtral-8x7b"},
    "llama-70b": {"name": "llama-3.1-70b", "vocabulary": 32000},
}
MACHINES = {"h200": "dgx-h200", "h100": "dgx-h100", "a100-80": "dgx-a100", "mi300x": "mi300x"}
WIDE_EP = (
    # source, measured tokens/s of 8 GPUs, phase, machine, serving
    (
        "SGLang, 96 H100 (lmsys.org/blog/2025-05-05-large-scale-ep), prompts of 2,000",
        52_300,
        "prefill",
        {"name": "dgx-h100", "nodes": 4},
        {"dp": 32, "ep": 32, "prefill_batch": 256, "prompt": 2000, "overlap": True},
    ),
    (
        "the same, decode",
        22_300,
        "decode",
        {"name": "dgx-h100", "nodes": 9},
        {"dp": 72, "ep": 72, "batch": 72 * 256, "context": 2050, "overlap": True},
    ),
    (
        "DeepSeek-V3/R1 inference system, H800, average of a day, cache of 4,989 tokens",
        14_800,
        "decode",
        {"name": "dgx-h100", "nodes": 18, "set": {"gpu.bandwidth": "200 GB/s"}},
        {"dp": 144, "ep": 144, "batch": 144 * 128, "context": 4989, "overlap": True},
    ),
)
RACK = {"name": "gb200-nvl72", "nodes": 18}
RACK_EP = (
    # source, measured tokens/s of 8 GPUs, phase, type, serving
    (
        "SGLang, GB200 (lmsys.org/blog/2025-09-25-gb200-part-2), prompts of 2,000, 8 GPUs",
        8 * 18_471,
        "prefill",
        "fp8",
        {"dp": 8, "ep": 8, "prefill_batch": 8 * 8, "prompt": 2000},
    ),
    (
        "the same, 48 GPUs, 768 sequences on each",
        8 * 9_087,
        "decode",
        "fp8",
        {"dp": 48, "ep": 48, "batch": 48 * 768, "context": 2088},
    ),
    (
        "the same, 4 bits, 4 GPUs",
        8 * 26_156,
        "prefill",
        "fp4",
        {"dp": 4, "ep": 4, "prefill_batch": 4 * 8, "prompt": 2000, "kv_dtype": "fp8"},
    ),
    (
        "the same, 4 bits, 48 GPUs, 1,408 sequences on each",
        8 * 13_386,
        "decode",
        "fp4",
        {"dp": 48, "ep": 48, "batch": 48 * 1408, "context": 2056, "kv_dtype": "fp8"},
    ),
)
"""Of its reproduction (issue 10903 of sglang): chunks of 16,384 tokens of a rank, batches of CUDA
graphs, and room for 176 or 112 further tokens of each sequence, half of which are counted."""
HEAD = """# Accuracy of served models

| published steps | rows | mean error | median | chosen on these rows |
|---|---:|---:|---:|---|
"""
SUMMARY = {
    # label: kinds of rows, what was chosen on them
    "TensorRT-LLM of 2024, batches of LLaMA": (r"LLaMA, batches, .*", "two numbers"),
    "the same, batches of Mistral": (r"Mistral, batches", "nothing"),
    "the same, batches of Mixtral": (r"Mixtral, batches", "nothing"),
    "vLLM of 2025 on MI300X, batches of Llama 3.1": (r"vLLM, batches, .*", "nothing"),
    "DeepSeek-V3 over NICs, exchanges hidden": (r"wide expert parallelism", "nothing"),
    "the same, nothing hidden": (r"wide expert parallelism, nothing hidden", "nothing"),
    "DeepSeek-V3 in a rack of GB200": (r"expert parallelism in a rack", "nothing"),
    "exchanges of DeepEP, 8 to 256 H800": (r"DeepEP, .*", "two numbers"),
}
ABOUT = """
Predicted against published steps of inference (`simcoll step` with a [`[serving]` table](reference/design-file.md#serving)): tokens a second, seconds of a batch, or times of exchanges.
Starts and rates of kernels are those measured one by one. Chosen on rows of this page are nine numbers: [five](#engines-of-2025-and-2026) on half of the engines' systems; that attention to the cache
reaches 70 % of the memory bandwidth, on the A100 batches of LLaMA; the least time of a kernel that the host launches, 12 us, on all LLaMA rows; and two shares of rates of DeepEP.
"""
OLDER = """
## Static batches and experts over many nodes

| rows | | mean error | median | largest |
|---|---:|---:|---:|---:|
"""
REASONS = """
* **LLaMA** is dense, with a kernel for each product and a cache that the heads of a group share.
* **Mistral** and **Mixtral** have 4 heads a group. The kernel of TensorRT-LLM 0.9 that reads the cache once for a group takes groups of 8 or 1 (`decoderXQARunner.h`); with 4, another one
  reads it once for each head (`cache_reads = "head"`). Without that, batches of Mistral are off by {mistral}, of Mixtral by {mixtral}. On A100 the truth is between the two, as if heads of a
  group met in its cache.
* **Mixtral** in 8 bits (H100, H200) had slow products of experts in this engine of 2024: its prompts of 2,048 tokens reach 300 TFLOPS of a GPU, and with that rate for all products its batches there are off by
  {slow}. Kernels of 2025 reach 1,100 to 1,500 for 8,192 tokens of the same model (aiconfigurator); engines of 2025 and 2026 are the first part of this page.
* **vLLM on MI300X** is predicted with nothing from these rows. Rates and starts of its skinny products are not measured: they are the lowest of NVIDIA's GPUs.
* **Wide expert parallelism** over NICs: two half batches in turn (`overlap = true`), whose kernels run twice on half of the rows, and whose exchanges are taken to hide completely: an upper bound. With
  one batch and nothing hidden the same three are near: the published systems hide little more than their halves cost. In a rack nothing is taken to hide.
* **DeepEP**: two shares of rates, chosen on these rows, and a least time of 10 us.

## TensorRT-LLM 0.9.0

Static batches of `gptSessionBenchmark`, 8-bit weights, products and cache on H100 and H200, 16 bits on A100 (docs/source/performance.md of the release;
`measurements/serving/trtllm-0.9.csv`). Tokens a second of a batch are predicted from one prefill and one decode step at the mean length of the cache.

| GPU | model | tp | batch | in / out | figure | measured | predicted | error |
|---|---|---:|---:|---:|---|---:|---:|---:|
"""
LATENCIES = """
## vLLM 0.10 on MI300X

Static batches of `benchmark_latency.py` on eight MI300X, 8-bit weights and products, cache of 16 bits (github.com/ROCm/vllm, docs/dev-docker/README.md;
`measurements/serving/vllm-0.10-mi300x.csv`): from the prompts to the last of 2,048 tokens, in seconds.

| GPU | model | tp | batch | in / out | figure | measured | predicted | error |
|---|---|---:|---:|---:|---|---:|---:|---:|
"""
EXPERTS = """
## DeepSeek-V3 over many nodes

Tokens a second of eight GPUs, products of 8 bits where nothing else is said. On H100 and H800 two half batches in turn; on GB200, whose NVLink joins all ranks, none. Of the overlap of the
combination with the last product there (single-batch overlap) nothing is predicted.

| system | phase | measured | predicted | error |
|---|---|---:|---:|---:|
"""
EXCHANGES = """
## DeepEP

Dispatch (8 bits) and combine (16 bits) of 128 tokens of 7,168 on each H800, 8 of 256 experts, low-latency kernels (README of DeepEP, June 2025), in microseconds.

| GPUs | kernel | measured | predicted | error |
|---:|---|---:|---:|---:|
"""
MIXTRAL_RATE = 300e12
"""Products that prompts of 2,048 tokens of Mixtral reached on H100 and H200 in TensorRT-LLM 0.9, in
FLOP/s of a GPU."""
DEEPEP = {
    8: (77, 114),
    16: (118, 195),
    32: (155, 273),
    64: (173, 314),
    128: (192, 369),
    256: (194, 360),
}


@dataclass(frozen=True, slots=True)
class ServedRow:
    """A published step, and what is predicted for it."""

    cells: Sequence[str]
    kind: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error."""
        return self.predicted / self.measured - 1


def serving_page() -> str:
    """The page."""
    rows, latencies = list(_batches()), list(_latencies())
    experts, exchanges = list(_experts()), list(_exchanges())
    every = (*rows, *latencies, *experts, *exchanges)
    engines = engine_rows()
    lines = [HEAD.rstrip("\n"), *engines_summary(engines), *_summary(every), ABOUT.rstrip("\n")]
    lines += [engines_section(engines).rstrip("\n"), OLDER.rstrip("\n")]
    for kind in dict.fromkeys(row.kind for row in every):
        errors = [abs(row.error) for row in every if row.kind == kind]
        figures = (mean(errors), median(errors), max(errors))
        cells = " | ".join(f"{figure:.0%}".replace("%", " %") for figure in figures)
        lines.append(f"| {kind} | {len(errors)} | {cells} |")
    lines.append(REASONS.format(**_without_causes()).rstrip("\n"))
    lines += [_line(row) for row in rows]
    lines.append(LATENCIES.rstrip("\n"))
    lines += [_line(row) for row in latencies]
    lines.append(EXPERTS.rstrip("\n"))
    lines += [_line(row) for row in experts]
    lines.append(EXCHANGES.rstrip("\n"))
    lines += [_line(row) for row in exchanges]
    return "\n".join(lines) + "\n"


def _summary(rows: Sequence[ServedRow]) -> Iterator[str]:
    for label, (kinds, chosen) in SUMMARY.items():
        errors = [abs(row.error) for row in rows if re.fullmatch(kinds, row.kind)]
        figures = " | ".join(f"{x:.0%}".replace("%", " %") for x in (mean(errors), median(errors)))
        yield f"| {label} | {len(errors)} | {figures} | {chosen} |"


def _line(row: ServedRow) -> str:
    error = f"{row.error:+.0%}".replace("%", " %")
    figures = [f"{x:,.1f}" if x < 1000 else f"{x:,.0f}" for x in (row.measured, row.predicted)]
    cells = [*row.cells, *figures, error]
    return f"| {' | '.join(cells)} |"


def _table(name: str) -> Iterator[dict[str, str]]:
    path = data_folder("measurements") / "serving" / name
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _batches(
    model: str = "", gpus: Sequence[str] = (), cache_reads: str = "", rate: float = 0.0
) -> Iterator[ServedRow]:
    """Rows of TensorRT-LLM; of one model, some GPUs, and with another kernel of attention or rate
    of products.
    """
    for row in _table("trtllm-0.9.csv"):
        if row["model"].startswith(model) and row["gpu"] in (gpus or MACHINES):
            yield _batch(row, cache_reads, rate)


def _without_causes() -> dict[str, str]:
    """Mean errors of batches without what explains them."""
    causes = {
        "mistral": _batches("mistral", cache_reads="group"),
        "mixtral": _batches("mixtral", cache_reads="group"),
        "slow": _batches("mixtral", ("h100", "h200"), rate=MIXTRAL_RATE),
    }
    means = {
        name: mean(abs(row.error) for row in rows if "batches" in row.kind)
        for name, rows in causes.items()
    }
    return {name: f"{figure:.0%}".replace("%", " %") for name, figure in means.items()}


def _batch(row: Mapping[str, str], cache_reads: str, rate: float) -> ServedRow:
    """A static batch: one prefill, then decode steps at the mean length of the cache."""
    output = int(row["output"])
    types = "fp16" if row["gpu"].startswith("a100") else "fp8"
    sizes = {**SIZES[row["model"]], "dtype": types}
    few = row["model"].startswith("mi")  # heads of a group
    reads = cache_reads or ("head" if few else "group")
    serving = {"kv_dtype": types, "cache_reads": reads}
    prefill, seconds = _seconds(row, sizes, serving, rate)
    predicted = prefill * 1e3
    if output > 1:
        predicted = int(row["batch"]) * output / seconds / int(row["tp"])
    family = row["model"].split("-")[0]
    phase = "prefill" if output == 1 else "batches"
    name = {"llama": "LLaMA", "mistral": "Mistral", "mixtral": "Mixtral"}[family]
    kind = f"{name}, {phase}" + (f", {row['gpu']}" if family == "llama" else "")
    cells = (*_shape(row), row["figure"])
    return ServedRow(cells, kind, float(row["value"]), predicted)


def _latencies() -> Iterator[ServedRow]:
    """Rows of vLLM on MI300X: seconds of a batch."""
    for row in _table("vllm-0.10-mi300x.csv"):
        sizes = {"name": row["model"], "dtype": "fp8"}
        _, seconds = _seconds(row, sizes, {"kv_dtype": "fp16", **STEP["vllm"]})
        kind = f"vLLM, batches, {row['gpu']}, {row['model'].rpartition('-')[2].upper()}"
        yield ServedRow((*_shape(row), "seconds"), kind, float(row["seconds"]), seconds)


def _shape(row: Mapping[str, str]) -> tuple[str, ...]:
    lengths = f"{row['prompt']} / {row['output']}"
    return (row["gpu"], row["model"], row["tp"], row["batch"], lengths)


def _seconds(
    row: Mapping[str, str],
    model: Mapping[str, object],
    serving: Mapping[str, object],
    rate: float = 0.0,
) -> tuple[float, float]:
    """Seconds of the prefill of a static batch, and of the whole batch, with a rate of products in
    8 bits if one is given.
    """
    batch, prompt, output = (int(row[key]) for key in ("batch", "prompt", "output"))
    (served,) = serving_cases(
        {
            "model": dict(model),
            "topology": {"name": MACHINES[row["gpu"]]},
            "gpu": {"name": row["gpu"]},
            "serving": {
                "tp": int(row["tp"]),
                "batch": batch,
                "prefill_batch": batch,
                "prompt": prompt,
                "context": prompt + output // 2,
                "all_reduce": "one_shot",
                **serving,
            },
        }
    )
    if rate:
        values = {**served.gpu.values, "gemm.fp8": rate / served.gpu.sustained}
        served = replace(served, gpu=replace(served.gpu, values=values))
    prefill = serving_step(served, "prefill").seconds
    return prefill, prefill + (output - 1) * serving_step(served, "decode").seconds


def _experts() -> Iterator[ServedRow]:
    for system, measured, phase, machine, serving in WIDE_EP:
        for hidden in (True, False):
            mapping = {**serving, "overlap": hidden}
            predicted = _eight_gpus("fp8", machine, mapping, phase)
            how = "" if hidden else ", nothing hidden"
            kind = f"wide expert parallelism{how}"
            yield ServedRow((system, f"{phase}{how}"), kind, measured, predicted)
    for system, measured, phase, dtype, mapping in RACK_EP:
        predicted = _eight_gpus(dtype, RACK, mapping, phase)
        yield ServedRow((system, phase), "expert parallelism in a rack", measured, predicted)


def _eight_gpus(
    dtype: str, machine: Mapping[str, Any], serving: Mapping[str, Any], phase: str
) -> float:
    """Predicted tokens a second of 8 GPUs that serve DeepSeek-V3."""
    model = {"name": "deepseek-v3", "dtype": dtype}
    kinds = {"scales": "block"} if dtype == "fp8" else {"attention_dtype": "fp8"}
    tables = {
        "model": model,
        "topology": machine,
        "serving": {**serving, **kinds, **STEP["sglang"]},
    }
    (served,) = serving_cases(tables)
    step = serving_step(served, "prefill" if phase == "prefill" else "decode")
    return 8 * step.tokens_per_second_per_gpu


def _exchanges() -> Iterator[ServedRow]:
    for ranks, microseconds in DEEPEP.items():
        (served,) = serving_cases(
            {
                "model": {"name": "deepseek-v3", "dtype": "fp8"},
                "topology": {
                    "name": "dgx-h100",
                    "nodes": ranks // 8,
                    "set": {"gpu.bandwidth": "200 GB/s"},
                },
                "serving": {"dp": ranks, "ep": ranks, "batch": 128 * ranks},
            }
        )
        for kernel, element, measured in zip(
            ("dispatch", "combine"), (1, 2), microseconds, strict=True
        ):
            predicted = exchange_seconds(served, 128 * 8 * 7168 * element) * 1e6
            yield ServedRow((str(ranks), kernel), "DeepEP, low latency", measured, predicted)


if __name__ == "__main__":
    print(serving_page(), end="")
