"""The accuracy page of served models: predicted against published steps."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

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
MACHINES = {"h200": "dgx-h200", "h100": "dgx-h100", "a100-80": "dgx-a100"}
WIDE_EP = (
    # measured tokens/s of a node of 8 GPUs, source, phase, machine, serving
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
HEAD = """# Accuracy of served models

Predicted against published steps of inference (`simcoll step` with a [`[serving]` table](reference/design-file.md#serving)). One constant is chosen on the A100
batches of LLaMA: attention to the cache reaches 70 % of the memory bandwidth. The least time of a kernel that the host launches, 12 us, is chosen on all LLaMA rows, of
which it decides the short prompts. Nothing else is chosen on these rows.

| rows | | mean error | median | largest |
|---|---:|---:|---:|---:|
"""
REASONS = """
* **LLaMA** is what the model is for: dense, a kernel for each product, and a cache that the heads of a group share.
* **Mistral** decodes here as slowly as LLaMA 7B, whose cache is four times as large: as if its windowed attention had read the cache once for each head. The page that these
  rows are from says that kernels for grouped heads were used only where they helped. The model shares the cache.
* **Mixtral**: on A100, a step of 32 sequences took 20 ms, less than the 23 ms that reading all experts once takes, so the sequences cannot have chosen all experts, which the model
  assumes. In 8 bits its prefill took three times as long as products of the measured rate would; the reason is not published.
* **Wide expert parallelism** is predicted without the host and without imbalance of experts, and with attention as fast as its bytes or products. Take it as an upper bound, of
  which published systems reach about half.
* **DeepEP**: two shares of rates, chosen on these rows, and a least time of 10 us.

## TensorRT-LLM 0.9.0

Static batches of `gptSessionBenchmark`, 8-bit weights, products and cache on H100 and H200, 16 bits on A100 (docs/source/performance.md of the release;
`measurements/serving/trtllm-0.9.csv`). Tokens a second of a batch are predicted from one prefill and one decode step at the mean length of the cache.

| GPU | model | tp | batch | in / out | figure | measured | predicted | error |
|---|---|---:|---:|---:|---|---:|---:|---:|
"""
EXPERTS = """
## DeepSeek-V3 over many nodes

Tokens a second of a node of eight GPUs, 8-bit products, two half batches in turn.

| system | phase | measured | predicted | error |
|---|---|---:|---:|---:|
"""
EXCHANGES = """
## DeepEP

Dispatch (8 bits) and combine (16 bits) of 128 tokens of 7,168 on each H800, 8 of 256 experts, low-latency kernels (README of DeepEP, June 2025), in microseconds.

| GPUs | kernel | measured | predicted | error |
|---:|---|---:|---:|---:|
"""
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
    rows = list(_batches())
    experts, exchanges = list(_experts()), list(_exchanges())
    lines = [HEAD.rstrip("\n")]
    for kind in dict.fromkeys(row.kind for row in (*rows, *experts, *exchanges)):
        errors = [abs(row.error) for row in (*rows, *experts, *exchanges) if row.kind == kind]
        figures = (mean(errors), median(errors), max(errors))
        cells = " | ".join(f"{figure:.0%}".replace("%", " %") for figure in figures)
        lines.append(f"| {kind} | {len(errors)} | {cells} |")
    lines.append(REASONS.rstrip("\n"))
    lines += [_line(row) for row in rows]
    lines.append(EXPERTS.rstrip("\n"))
    lines += [_line(row) for row in experts]
    lines.append(EXCHANGES.rstrip("\n"))
    lines += [_line(row) for row in exchanges]
    return "\n".join(lines) + "\n"


def _line(row: ServedRow) -> str:
    error = f"{row.error:+.0%}".replace("%", " %")
    figures = [f"{x:,.1f}" if x < 1000 else f"{x:,.0f}" for x in (row.measured, row.predicted)]
    cells = [*row.cells, *figures, error]
    return f"| {' | '.join(cells)} |"


def _batches() -> Iterator[ServedRow]:
    path = data_folder("measurements") / "serving" / "trtllm-0.9.csv"
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield _batch(row)


def _batch(row: Mapping[str, str]) -> ServedRow:
    """A static batch: one prefill, then decode steps at the mean length of the cache."""
    tp, batch, prompt, output = (int(row[key]) for key in ("tp", "batch", "prompt", "output"))
    dtype = "fp16" if row["gpu"].startswith("a100") else "fp8"
    (served,) = serving_cases(
        {
            "model": {**SIZES[row["model"]], "dtype": dtype},
            "topology": {"name": MACHINES[row["gpu"]]},
            "gpu": {"name": row["gpu"]},
            "serving": {
                "tp": tp,
                "batch": batch,
                "prefill_batch": batch,
                "prompt": prompt,
                "context": prompt + output // 2,
                "kv_dtype": dtype,
                "all_reduce": "one_shot",
            },
        }
    )
    seconds = serving_step(served, "prefill").seconds
    predicted = seconds * 1e3
    if output > 1:
        seconds += (output - 1) * serving_step(served, "decode").seconds
        predicted = batch * output / seconds / tp
    family = row["model"].split("-")[0]
    phase = "prefill" if output == 1 else "batches"
    name = {"llama": "LLaMA", "mistral": "Mistral", "mixtral": "Mixtral"}[family]
    kind = f"{name}, {phase}" + (f", {row['gpu']}" if family == "llama" else "")
    lengths = f"{prompt} / {output}"
    cells = (row["gpu"], row["model"], str(tp), str(batch), lengths, row["figure"])
    return ServedRow(cells, kind, float(row["value"]), predicted)


def _experts() -> Iterator[ServedRow]:
    for system, measured, phase, machine, serving in WIDE_EP:
        (served,) = serving_cases(
            {
                "model": {"name": "deepseek-v3", "dtype": "fp8"},
                "topology": machine,
                "serving": serving,
            }
        )
        step = serving_step(served, "prefill" if phase == "prefill" else "decode")
        predicted = 8 * step.tokens_per_second_per_gpu
        yield ServedRow((system, phase), "wide expert parallelism", measured, predicted)


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
