"""The table of the steps of a served model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from simcoll.files.output import csv_bytes
from simcoll.training.serving import serving_front

if TYPE_CHECKING:
    from simcoll.training.serving import ServedModel, ServingStep

__all__ = ["serving_csv", "serving_lines"]

HEADS = ("phase", "ms", "tokens/s/GPU", "tokens/s", "exposed", "floors", "GiB", "fits")
MOST_LINES = 20


def serving_lines(models: Sequence[ServedModel], steps: Sequence[ServingStep]) -> Iterator[str]:
    """The lines of the table: for each phase, the front first, then the fastest others."""
    model = models[0]
    yield (
        f"# {model.title}: {model.model.parameters / 1e9:.1f} B parameters in {model.dtype} on "
        f"{model.topology.name}, {model.gpu.name}"
    )
    axes = list(dict.fromkeys(name for step in steps for name in step.case))
    lines = [["", *axes, *HEADS]]
    for phase in ("prefill", "decode"):
        of_phase = [step for step in steps if step.phase == phase]
        front = serving_front(of_phase)
        beaten = sorted(
            (step for step in of_phase if step not in front),
            key=lambda step: (not step.fits, -step.tokens_per_second_per_gpu),
        )
        lines += [
            ["*" if step in front else "", *_cells(step, axes)]
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
    yield "# *: no other mapping is faster and has more tokens/s/GPU"
    yield (
        "# ms: one step; exposed, floors: shares of it in collectives, and in kernels that take "
        "their least time"
    )
    yield "# not modelled: requests, queues, sampling, and the host beside kernels"


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


def serving_csv(steps: Sequence[ServingStep]) -> bytes:
    """The steps as CSV, in seconds and bytes."""
    axes = list(dict.fromkeys(name for step in steps for name in step.case))
    fields = ("seconds", "compute", "communication", "exposed", "floors", "weights", "cache")
    names = [*axes, "phase", "fits", "gpus", "tokens", "tokens_per_second_per_gpu", *fields]
    rows = (
        {**step.case, **{name: getattr(step, name) for name in names if name not in axes}}
        for step in steps
    )
    return csv_bytes(names, rows)
