"""Write ``measurements/step_errors.csv``, ``step_intervals.csv`` and ``step_coverage.csv``: how far
predictions of published steps were off whose table was left out, the same by class, and how often
intervals made from that hold.

``python benchmarks/step_intervals.py`` takes some ten minutes on one core. Run it after every
change of the model of a step, of a GPU file or of a calibration, then ``simcoll accuracy --steps -o
docs/accuracy-steps.md``. After a change of the classes alone, ``--classes`` takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import cyclopts
import msgspec
import numpy as np

from simcoll.arrays import Floats
from simcoll.files.output import csv_bytes
from simcoll.files.paths import data_folder
from simcoll.planning.measured.step_fitting import fit_steps, predict_seconds
from simcoll.planning.measured.step_rows import StepRow, published_steps
from simcoll.planning.measured.step_spreads import (
    StepError,
    read_step_errors,
    step_coverages,
    step_spreads,
)
from simcoll.training.step_calibration import UNCALIBRATED, StepCalibration, shipped_calibration
from simcoll.training.step_intervals import CLASS_LEVELS, FAMILIES, QUANTILES, class_of

TUNED = (
    "nemo-2024",
    "megatron-bridge-2025",
    "megatron-bridge-2026",
    "megatron-bridge-cards",
    "megatron-lm-2026",
    "automodel-2025",
    "dgxc-2502",
    "dgxc-2025",
    "llama3-paper",
    "deepseek-v3-paper",
    "mlperf-405b-h100",
    "mlperf-gpt3-h100",
)
"""Tables of jobs that their authors tuned. The share of its rate that a GPU sustains is from some
of them; each is judged with the share that the others imply."""
BLIND = ("vtrain-multi", "korthikanti", "megatron-table1", "mpt-h100", "mpt-h100-fp8")
BLIND += ("mpt-a100-80", "mpt-a100-40", "torchtitan", "bloom")
"""Tables that no file of a GPU is from: runs of older or eager software, which an uncalibrated
design does not tell from tuned ones. Of one node of vTrain, whose small models wait for the host,
there are only calibrated errors."""
PARTLY_FITTED = {"primus": "Llama 3.1 70B"}
"""Tables of which other rows gave the file of a GPU, and the fold that is left out."""
CALIBRATED = {
    "korthikanti": "megatron-a100",
    "megatron-table1": "megatron-a100",
    "bloom": "megatron-a100",
    "mpt-h100": "fsdp-h100",
    "mpt-h100-fp8": "fsdp-h100",
    "mpt-a100-80": "fsdp-a100",
    "mpt-a100-40": "fsdp-a100",
}
"""Tables and calibrations of other rows; of MPT's, the models that gave the constants do not
count."""
MPT_FITTED = ("1b", "7b", "30b")
VTRAIN_PARAMETERS = ("rate", "hbm", "host_layer_us", "host_tp_us", "step_ms")
VTRAIN_SINGLE_EVERY = 6
HOST_ROW = 27.0503
"""Seconds of the row that determines the host's time per expert."""
SLOWER = 0.95
"""Share of the rate at which steps are predicted a second time, for the part of a step that depends
on it."""


def step_error(row: StepRow, table: str, ratio: float, calibration: StepCalibration) -> StepError:
    """The error of a row."""
    design = replace(row.design, calibration=calibration)
    model = f"{row.fold} {design.gpu.name}"
    series = f"{table} {model} {design.dtype} {design.sequence}"
    return StepError(class_of(design), table, series, model, float(np.log(ratio)))


def uncalibrated_errors() -> Iterator[StepError]:
    """Errors without constants; of tuned jobs with the share of the rate that others imply."""
    tables = {name: published_steps(name).rows for name in TUNED}
    times = {
        name: (predict_seconds(rows, UNCALIBRATED), predict_seconds(rows, _slower()))
        for name, rows in tables.items()
    }
    for name, rows in tables.items():
        for place, row in enumerate(rows):
            factor = _rate_of_others(row, name, tables, times)
            seconds = _at_rate(times[name][0][place], times[name][1][place], factor)
            yield step_error(row, name, seconds / row.seconds, UNCALIBRATED)
    for name in BLIND:
        yield from _with_constants(published_steps(name).rows, name, UNCALIBRATED)
    for name, fold in PARTLY_FITTED.items():
        rows = [row for row in published_steps(name).rows if row.fold == fold]
        yield from _with_constants(rows, name, UNCALIBRATED)


def _slower() -> StepCalibration:
    return msgspec.structs.replace(UNCALIBRATED, rate=SLOWER)


def _at_rate(full: float, slower: float, factor: float) -> float:
    """The time at a factor of the rate, from the times at 1 and at :data:`SLOWER`."""
    products = (slower - full) / (1 / SLOWER - 1)
    return float(full + products * (1 / factor - 1))


def _rate_of_others(
    row: StepRow,
    name: str,
    tables: dict[str, tuple[StepRow, ...]],
    times: dict[str, tuple[Floats, Floats]],
) -> float:
    """The factor of the rate with which steps of dense models in other tables, on the same GPU or
    else of its family, are off least.
    """
    gpu = row.design.gpu.name
    for members in ({gpu}, {other for other in FAMILIES if FAMILIES[other] == FAMILIES[gpu]}):
        steps = [
            (times[other][0][place], times[other][1][place], step.seconds)
            for other, rows in tables.items()
            for place, step in enumerate(rows)
            if other != name and step.design.gpu.name in members and not step.design.model.experts
        ]
        if steps:
            break
    factors = np.arange(0.7, 1.301, 0.005)
    errors = [
        np.mean([abs(_at_rate(*step[:2], factor) / step[2] - 1) for step in steps])
        for factor in factors.tolist()
    ]
    return float(factors[int(np.argmin(errors))])


def calibrated_errors() -> Iterator[StepError]:
    """Errors with constants of other rows."""
    several, single = published_steps("vtrain-multi").rows, published_steps("vtrain-single").rows
    some = single[::VTRAIN_SINGLE_EVERY]
    rows = [*several, *some]
    weights = [1 / len(several)] * len(several) + [1 / len(some)] * len(some)
    shipped = shipped_calibration("megatron-a100")
    fit = fit_steps(rows, VTRAIN_PARAMETERS, start=shipped, weights=weights)
    for place, (row, off) in enumerate(zip(rows, fit.unseen_errors.tolist(), strict=True)):
        table = "vtrain-multi" if place < len(several) else "vtrain-single"
        yield step_error(row, table, 1 + off, shipped)
    for name, constants in CALIBRATED.items():
        calibration = shipped_calibration(constants)
        its_own = calibration.source.startswith(f"{name}:")
        chosen = [
            row for row in published_steps(name).rows if not (its_own and row.fold in MPT_FITTED)
        ]
        yield from _with_constants(chosen, name, calibration)
    titan = published_steps("torchtitan").rows
    for gpu in ("h100", "a100"):
        family = {"h100": "Hopper", "a100": "A100"}[gpu]
        chosen = [row for row in titan if FAMILIES[row.design.gpu.name.partition("-")[0]] == family]
        yield from _with_constants(chosen, "torchtitan", shipped_calibration(f"fsdp-{gpu}"))
    host = shipped_calibration("megatron-experts")
    for name in TUNED:
        mixtures = [
            row
            for row in published_steps(name).rows
            if row.design.model.experts and row.seconds != HOST_ROW
        ]
        if mixtures:
            yield from _with_constants(mixtures, name, host)


def _with_constants(
    rows: Sequence[StepRow], table: str, calibration: StepCalibration
) -> Iterator[StepError]:
    for row, seconds in zip(rows, predict_seconds(rows, calibration), strict=True):
        yield step_error(row, table, seconds / row.seconds, calibration)


def write_errors(errors: Sequence[StepError], folder: Path) -> None:
    """Write the error of every row."""
    rows = [
        {
            **dict(zip(CLASS_LEVELS, error.cell, strict=True)),
            "table": error.table,
            "series": error.series,
            "one_model": error.model,
            "log_ratio": f"{error.log_ratio:.4f}",
        }
        for error in errors
    ]
    header = (*CLASS_LEVELS, "table", "series", "one_model", "log_ratio")
    (folder / "step_errors.csv").write_bytes(csv_bytes(header, rows))


def write_classes(errors: Sequence[StepError], folder: Path) -> None:
    """Write the intervals of all classes, and how often they hold."""
    rows = []
    for cell, spread in step_spreads(errors).items():
        numbers = {name: f"{getattr(spread, name):.4f}" for name in (*QUANTILES, "difference")}
        names = dict(zip(CLASS_LEVELS, cell, strict=False))
        rows.append(
            {**dict.fromkeys(CLASS_LEVELS, ""), **names, "series": spread.series, **numbers}
        )
    header = (*CLASS_LEVELS, "series", *QUANTILES, "difference")
    (folder / "step_intervals.csv").write_bytes(csv_bytes(header, rows))
    rows = []
    for coverage in step_coverages(errors):
        names = dict(zip(CLASS_LEVELS, coverage.cell, strict=False))
        counts = {"series": coverage.series, "rows": coverage.rows}
        shares = {
            name: f"{getattr(coverage, name):.4g}" for name in ("within50", "within90", "width90")
        }
        rows.append({**names, **counts, **shares})
    header = (*CLASS_LEVELS[:4], "series", "rows", "within50", "within90", "width90")
    (folder / "step_coverage.csv").write_bytes(csv_bytes(header, rows))


def main(*, classes: bool = False) -> None:
    """Write the three files.

    Parameters
    ----------
    classes
        Only the classes, from the errors in the shipped file.
    """
    folder = data_folder("measurements")
    if not classes:
        write_errors([*uncalibrated_errors(), *calibrated_errors()], folder)
    # As the file has them, rounded, so that both ways give the same classes.
    write_classes(read_step_errors(), folder)


if __name__ == "__main__":
    cyclopts.run(main)
