"""Serving engines of 2025 and 2026: predicted against published tokens a second, and intervals."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median

from simcoll.files.paths import data_folder
from simcoll.training.serving import serving_cases, serving_step

__all__ = [
    "STEP",
    "EngineRow",
    "engine_rows",
    "engines_section",
    "engines_summary",
    "intervals_csv",
]

MACHINES = {"h100": "dgx-h100", "h200": "dgx-h200", "b200": "dgx-b200", "b300": "dgx-b300"}
DENSE = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b")
STEP: Mapping[str, Mapping[str, float]] = {
    "trtllm": {},
    "vllm": {"step_us": 750.0},
    "sglang": {"step_us": 2000.0},
}
"""Keys of an engine: the host's time between two steps, chosen on half of the systems."""
ENGINES = {"trtllm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang"}
UNSEEN = "kimi-k2.5"
"""A model whose rows were read when everything was chosen, and have changed nothing."""
SHARES = (0.5, 0.9)
HEAD = """
## Engines of 2025 and 2026

{rows:,} configurations of TensorRT-LLM, vLLM and SGLang in steady traffic, a fixed number of requests in flight, from the table of measurements of ai-dynamo/aiconfigurator (095f58a,
`silicon_sample.csv`; `measurements/serving/engines-2026.csv`). Entered is every configuration of these models on one node, prompts and tokens on the same GPUs, with one replica of
attention and experts split in one way. The median counts where one was measured several times ({several} were; in half of them runs differ by less than {noise}, at most by {most_noise}). Left out are those

* whose first token takes longer than all others together, because then unknown numbers of requests wait for a place (22),
* of more than one replica of attention, nearly all of MiniMax and Kimi; many of MiniMax's take as long as a single replica on a half or a quarter of the stated GPUs (85),
* of DeepSeek without a date, from 14 January 2026 on, and on more than a node: InferenceX, whose images and dates the rows name, then also ran multi-token prediction, which the table doesn't tell apart,
* of Llama 3.1 8B in vLLM, up to 1.7 times as fast as its products and bytes at the GPU's highest measured rates, as with prompts in a cache (21),
* of Kimi K2.5 with weights in integers of 4 bits, a type that is not modelled (90).

Five numbers are **chosen** on the rows of half of the systems (pairs of GPU and model, by a hash of their names): how much of a start shows in a graph,
how long ranks wait for each other in an all_reduce, how uneven experts are chosen, and the host's time between steps of vLLM and SGLang. Kernels, their starts and rates are not fitted: they are
measured one by one in the same repository. **Unseen** are the rows of Kimi K2.5 in NVFP4, a model of a trillion parameters: they were predicted last, and nothing was changed for them.

| predictions | rows | | mean error | median |
|---|---|---|---:|---:|
| blind, before these rows were seen | all | time per token | 26 % | 24 % |
| the same without the time of others' prompts | all | time per token | 41 % | - |
| measured kernels, none of the five numbers | the other half | tokens/s | 16 % | 11 % |

Most of the gain is the kernels'. As predicted:

| rows | | tokens/s: mean error | median | bias | time per token: mean error | median |
|---|---:|---:|---:|---:|---:|---:|
"""
REASONS = """
* **Tokens a second** include the wait for the first token; a request's **time per token** doesn't. SGLang computes prompts alone and first, so that requests of equal lengths start and end together: more
  of their time is a wait, and less lies between tokens, than where prompts come evenly (`output`), which the model assumes.
* **Qwen3 235B in vLLM** takes some 52 ms a token on two H200 and 35 on four, and three times as long as predicted to the first token (1,000 to 8,000 tokens). So it is not the host, whose time would be the same on two
  and on four. Nor is it the engine's kernels of experts with block scales: measured alone (vLLM 0.14 to 0.24, 16 tokens, 94 layers) they take 16 to 17 ms on two and 10 on four, of steps predicted at 28 and 20; those of SGLang, whose
  rows are near, take as long. On both it is as if the experts took two and a half times as long (some 40 and 25 ms). vLLM 0.12.0 ran (`backend_version` of the table), so that it is not FlashInfer's CUTLASS, the default on Hopper from 0.15.0 on (vllm issue 34249). Nor
  is it that 0.12.0 has no tuned kernels for these sizes on H200: tuning brought 5 to 24 % (vllm request 35457). With every expert chosen in every step, instead of as unevenly as those of other rows, the kernel alone takes 38 and 22 ms with scales of tensors and 30 and 18 with scales of
  blocks (vLLM 0.14), which would explain tokens, but not prompts, which use all experts anyway. So the cause is open, and nothing is changed for it.
* **GPT-OSS on Hopper** multiplies weights of 4 bits in 16. TensorRT-LLM's kernels for it (Triton) lose 50 to 90 us a layer on eight GPUs; vLLM's are near.

**Intervals** of `simcoll step` are the spread of these errors, each system with the same weight. Left out in turn and judged by the others, {coverage}.

"""


@dataclass(frozen=True, slots=True)
class EngineRow:
    """A published configuration, and what is predicted for it.

    Attributes
    ----------
    model, gpu, engine, dtype
        What was measured.
    token, rate
        Predicted over measured time per token, and tokens a second.
    runs, spread
        Times it was measured, and largest difference over the median.
    """

    model: str
    gpu: str
    engine: str
    dtype: str
    token: float
    rate: float
    runs: int
    spread: float

    @property
    def system(self) -> str:
        """GPU and model."""
        return f"{self.gpu} {self.model}"

    @property
    def chosen_on(self) -> bool:
        """Whether the row's system is in the half on which numbers were chosen."""
        number = int(hashlib.sha256(self.system.encode()).hexdigest(), 16)
        return self.model != UNSEEN and number % 2 == 0

    @property
    def kind(self) -> str:
        """``dense`` or ``experts``."""
        return "dense" if self.model in DENSE else "experts"


@cache
def engine_rows() -> tuple[EngineRow, ...]:
    """All rows, predicted."""
    path = data_folder("measurements") / "serving" / "engines-2026.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(_prediction(row) for row in csv.DictReader(file))


def _prediction(row: Mapping[str, str]) -> EngineRow:
    (served,) = serving_cases(_tables(row))
    step = serving_step(served, "decode")
    requests, output, gpus = (int(row[name]) for name in ("requests", "output", "tp"))
    first, token = float(row["first_ms"]) / 1e3, float(row["token_ms"]) / 1e3
    measured_rate = requests * output / (first + (output - 1) * token) / gpus
    spread = (float(row["most_ms"]) - float(row["least_ms"])) / float(row["token_ms"])
    return EngineRow(
        row["model"],
        row["gpu"],
        row["engine"],
        row["dtype"],
        step.token_seconds / token,
        step.steady_rate / measured_rate,
        int(row["runs"]),
        spread,
    )


def _tables(row: Mapping[str, str]) -> dict[str, object]:
    """The design of a row: types as its checkpoint and its launch file state them."""
    dtype, blackwell, experts = row["dtype"], row["gpu"][0] == "b", row["model"] not in DENSE
    types = {}
    if experts and dtype == "fp4":
        types["attention_dtype"] = "bf16"  # only experts are quantised
    if experts and dtype == "fp8":
        types["scales"] = "block"
    if row["model"] == "gpt-oss-120b":  # MXFP4 experts, of which only Blackwell makes products
        dtype = "fp8" if blackwell else "bf16"
        types["expert_dtype"] = "fp4"
    narrow = row["dtype"] in {"fp8", "fp4"}
    if (narrow and blackwell) or row["model"] == "llama-3.1-70b":
        types["kv_dtype"] = "fp8"
    if row["engine"] == "trtllm" and row["dtype"] == "fp8":
        types["kv_dtype"] = "fp8"
    prompt, output = int(row["prompt"]), int(row["output"])
    return {
        "model": {"name": row["model"], "dtype": dtype},
        "topology": {"name": MACHINES[row["gpu"]]},
        "serving": {
            "tp": int(row["tp"]),
            "ep": int(row["ep"]),
            "batch": int(row["requests"]),
            "prompt": prompt,
            "context": prompt + output // 2,
            "output": output,
            "all_reduce": "one_shot",
            **types,
            **STEP[row["engine"]],
        },
    }


def engines_section(rows: Sequence[EngineRow]) -> str:
    """The section of the page."""
    several = [row.spread for row in rows if row.runs > 1]
    head = HEAD.format(
        rows=len(rows),
        several=len(several),
        noise=_percent(median(several)),
        most_noise=_percent(max(several)),
    )
    lines = [head.rstrip("\n")]
    groups: dict[str, Callable[[EngineRow], bool]] = {
        "**all**": lambda row: row.rate > 0,
        "the half on which numbers were chosen": lambda row: row.chosen_on,
        "**the other half**": lambda row: not row.chosen_on and row.model != UNSEEN,
        "**unseen**: Kimi K2.5": lambda row: row.model == UNSEEN,
        "dense": lambda row: row.kind == "dense",
        "experts": lambda row: row.kind == "experts",
    }
    lines += [
        _line(name, [row for row in rows if belongs(row)]) for name, belongs in groups.items()
    ]
    keys = sorted({(row.model, row.gpu, row.engine, row.dtype) for row in rows})
    for key in keys:
        members = [row for row in rows if (row.model, row.gpu, row.engine, row.dtype) == key]
        model, gpu, engine, dtype = key
        mark = "" if members[0].chosen_on else " *"
        lines.append(_line(f"{model}, {gpu}, {ENGINES[engine]}, {dtype}{mark}", members))
    lines.append("\n*: of the other half, or unseen.")
    lines.append(REASONS.format(coverage=_coverage(rows)).rstrip("\n"))
    return "\n".join(lines) + "\n"


def engines_summary(rows: Sequence[EngineRow]) -> Iterator[str]:
    """Lines of the table that begins the page: errors of tokens a second."""
    groups = (
        ("engines of 2025 and 2026", [row for row in rows if not row.chosen_on], "nothing"),
        ("other systems of these engines", [row for row in rows if row.chosen_on], "five numbers"),
    )
    for label, members, chosen in groups:
        errors = [abs(row.rate - 1) for row in members]
        figures = f"{_percent(mean(errors))} | {_percent(median(errors))}"
        yield f"| {label} | {len(errors):,} | {figures} | {chosen} |"


def _line(name: str, rows: Sequence[EngineRow]) -> str:
    rates, tokens = [row.rate - 1 for row in rows], [row.token - 1 for row in rows]
    figures = [
        *(_percent(figure(map(abs, rates))) for figure in (mean, median)),
        f"{median(rates):+.0%}".replace("%", " %"),
        *(_percent(figure(map(abs, tokens))) for figure in (mean, median)),
    ]
    return f"| {name} | {len(rows):,} | {' | '.join(figures)} |"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _intervals(rows: Sequence[EngineRow], share: float) -> tuple[float, float]:
    """Measured over predicted tokens a second: the range of a share of rows, systems alike."""
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row.system] = sizes.get(row.system, 0) + 1
    ratios = sorted((1 / row.rate, 1 / sizes[row.system]) for row in rows)
    total = sum(weight for _, weight in ratios)

    def quantile(level: float) -> float:
        below = 0.0
        for ratio, weight in ratios:
            below += weight
            if below >= level * total:
                return ratio
        return ratios[-1][0]

    return quantile((1 - share) / 2), quantile((1 + share) / 2)


def _coverage(rows: Sequence[EngineRow]) -> str:
    """How often intervals of the other systems of a kind hold for each system."""
    parts = []
    for kind in ("dense", "experts"):
        members = [row for row in rows if row.kind == kind]
        systems = sorted({row.system for row in members})
        for share in SHARES:
            shares = []
            for system in systems:
                low, high = _intervals([row for row in members if row.system != system], share)
                inside = [low <= 1 / row.rate <= high for row in members if row.system == system]
                shares.append(mean(inside))
            rows_of = {"dense": "dense models", "experts": "experts"}[kind]
            parts.append(f"{_percent(mean(shares))} of rows of {rows_of}")
    return (
        f"{parts[0]} and {parts[2]} are within the 50 % intervals, {parts[1]} and {parts[3]} within "
        "those of 90 %"
    )


def intervals_csv(rows: Sequence[EngineRow]) -> str:
    """The intervals that ``simcoll step`` prints."""
    return "".join(f"{line}\n" for line in _interval_lines(rows))


def _interval_lines(rows: Sequence[EngineRow]) -> Iterator[str]:
    yield "kind,share,low,high,rows"
    for kind in ("dense", "experts"):
        members = [row for row in rows if row.kind == kind]
        for share in SHARES:
            low, high = _intervals(members, share)
            yield f"{kind},{share},{low:.2f},{high:.2f},{len(members)}"


if __name__ == "__main__":
    target = Path(__file__).parents[2] / "measurements" / "serving" / "intervals.csv"
    target.write_text(intervals_csv(engine_rows()), encoding="utf-8")
