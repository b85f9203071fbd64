"""The table of the steps of a served model."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from simcoll.files.output import csv_bytes
from simcoll.files.paths import data_folder
from simcoll.training.serving import serving_front

if TYPE_CHECKING:
    from simcoll.training.serving import ServedModel, ServingStep

__all__ = ["serving_csv", "serving_lines"]

HEADS = ("phase", "ms", "tokens/s/GPU", "tokens/s", "exposed", "floors", "GiB", "fits")
STEADY_HEADS = ("ms/token", "steady")
MOST_LINES = 20


def serving_lines(models: Sequence[ServedModel], steps: Sequence[ServingStep]) -> Iterator[str]:
    """The lines of the table: for each phase, the front first, then the fastest others."""
    model = models[0]
    yield (
        f"# {model.title}: {model.model.parameters / 1e9:.1f} B parameters in {model.dtype} on "
        f"{model.topology.name}, {model.gpu.name}"
    )
    axes = list(dict.fromkeys(name for step in steps for name in step.case))
    steady = any(step.token_seconds for step in steps)
    lines = [["", *axes, *HEADS, *(STEADY_HEADS if steady else ())]]
    for phase in ("prefill", "decode"):
        of_phase = [step for step in steps if step.phase == phase]
        front = serving_front(of_phase)
        beaten = sorted(
            (step for step in of_phase if step not in front),
            key=lambda step: (not step.fits, -step.throughput),
        )
        lines += [
            ["*" if step in front else "", *_cells(step, axes), *(_steady(step) if steady else ())]
            for step in [*front, *beaten][:MOST_LINES]
        ]
        if len(of_phase) > MOST_LINES:
            lines.append([f"# {phase}: and {len(of_phase) - MOST_LINES:,} more in serving.csv"])
    widths = [
        max(len(line[column]) for line in lines if len(line) > 1) for column in range(len(lines[0]))
    ]
    for number, line in enumerate(lines):
        if len(line) == 1:
            yield line[0]
            continue
        text = "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        yield f"# {text}".rstrip() if number == 0 else f"  {text}".rstrip()
    compared = "has less ms/token and more steady" if steady else "is faster and has more"
    yield f"# *: no other mapping {compared} tokens/s/GPU"
    yield ("# ms: one step; exposed, floors: shares of it in collectives, and in starts of kernels")
    if steady:
        yield (
            "# while prompts of new requests come evenly: ms/token, between tokens of a request; "
            "steady, tokens/s/GPU"
        )
    yield _interval_line(model)
    if model.serving.dp == 1 and not model.serving.step_us:
        yield (
            "# the host's time between steps is 0 here (step_us); theirs counts as 750 us for "
            "vLLM, 2,000 us for SGLang, 0 for TensorRT-LLM"
        )
    yield "# not modelled: queues, sampling, uneven lengths"


def _interval_line(served: ServedModel) -> str:
    """How far published engines were from predictions of such models."""
    if served.serving.dp > 1:
        return "# no interval: few published systems have replicas of attention (serving accuracy)"
    kind = "experts" if served.model.experts else "dense"
    rows = [row for row in _intervals() if row["kind"] == kind]
    half, ninety = (f"{float(row['low']):.2f} to {float(row['high']):.2f}" for row in rows)
    return (
        f"# {int(rows[0]['rows']):,} published configurations of "
        f"{'mixtures of experts' if kind == 'experts' else 'dense models'} on H100 to B300: half "
        f"reached {half} times the predicted tokens/s, 90 % {ninety} times"
    )


@cache
def _intervals() -> tuple[dict[str, str], ...]:
    path = data_folder("measurements") / "serving" / "intervals.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def _cells(step: ServingStep, axes: Sequence[str]) -> list[str]:
    used = (step.weights + step.cache) / 2**30
    return [
        *(str(step.case.get(name, "")) for name in axes),
        step.phase,
        f"{step.seconds * 1e3:,.2f}",
        f"{step.tokens_per_second_per_gpu:,.0f}",
        f"{step.tokens / step.seconds:,.0f}",
        f"{step.exposed / step.seconds:.0%}".replace("%", " %"),
        f"{step.floors / step.seconds:.0%}".replace("%", " %"),
        f"{used:,.1f} of {step.memory_limit / 2**30:,.1f}",
        "yes" if step.fits else "no",
    ]


def _steady(step: ServingStep) -> list[str]:
    if not step.token_seconds:
        return ["", ""]
    return [f"{step.token_seconds * 1e3:,.2f}", f"{step.steady_rate:,.0f}"]


def serving_csv(steps: Sequence[ServingStep]) -> bytes:
    """The steps as CSV, in seconds and bytes."""
    axes = list(dict.fromkeys(name for step in steps for name in step.case))
    fields = (
        *("seconds", "token_seconds", "steady_rate", "compute", "communication", "exposed"),
        *("floors", "weights", "cache"),
    )
    names = [*axes, "phase", "fits", "gpus", "tokens", "tokens_per_second_per_gpu", *fields]
    rows = (
        {**step.case, **{name: getattr(step, name) for name in names if name not in axes}}
        for step in steps
    )
    return csv_bytes(names, rows)
