"""Intervals of steps: their classes, what is printed, and how often they hold."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from simcoll.cli import main
from simcoll.planning.designs.decision import (
    alternatives_of,
    interval_lines,
    interval_of,
    is_tie,
    verdict,
)
from simcoll.planning.measured.step_rows import published_steps
from simcoll.planning.measured.step_spreads import (
    StepError,
    difference_coverages,
    read_step_errors,
    step_coverages,
    step_spreads,
)
from simcoll.training.design import design_from
from simcoll.training.evidence import rates_of
from simcoll.training.step_calibration import shipped_calibration
from simcoll.training.step_intervals import CLASS_LEVELS, class_of, step_interval

CELL = ("uncalibrated", "dense", "no FSDP", "Hopper", "16 bits", "short", "no overlap of tp")


def design_with(topology="dgx-h100", dtype="bf16", sequence=8192, **parallel):
    return design_from(
        {
            "model": {
                "name": "llama-3.1-8b",
                "sequence": sequence,
                "global_batch": 64,
                "dtype": dtype,
            },
            "topology": {"name": topology},
            "parallel": {"tp": 2, **parallel},
        }
    )


def error(log_ratio, table="one", series="one", cell=CELL):
    return StepError(cell, table, series, series, log_ratio)


def test_the_class_of_a_design():
    assert class_of(design_with()) == CELL
    changed = design_with(dtype="fp8", sequence=65536, shard="parameters", overlap_tp=True)
    assert class_of(changed)[2:] == ("FSDP", "Hopper", "8 bits", "long", "overlap of tp")
    calibrated = replace(design_with(), calibration=shipped_calibration("fsdp-h100"))
    assert class_of(calibrated)[0] == "calibrated"
    mixture = published_steps("deepseek-v3-paper").rows[0].design
    assert class_of(mixture)[1] == "mixture of experts"


def test_quantiles_by_hand():
    """Three tables of one series each; a class is its outermost one, so nothing leans."""
    errors = [error(0.1 * place, f"t{place}", f"s{place}") for place in (0, 1, 2)]
    spread = step_spreads(errors)[CELL[:2]]
    # Middles of equal weights are at 1/6, 1/2 and 5/6: the 5 % quantile is the lowest error.
    low50, high50 = 0.1 * (0.25 - 1 / 6) * 3, 0.2 - 0.1 * (0.25 - 1 / 6) * 3
    assert spread.low50 == pytest.approx(0.1 - (0.1 - low50) * (1 + 1 / 12))
    assert spread.high50 == pytest.approx(0.1 + (high50 - 0.1) * (1 + 1 / 12))
    assert spread.low90 == pytest.approx(0.1 - 0.1 * (1 + 1 / 6))
    assert spread.high90 == pytest.approx(0.1 + 0.1 * (1 + 1 / 6))
    assert spread.series == 3


def test_a_class_of_few_series_leans_on_the_one_around_it():
    other = (*CELL[:3], "A100", *CELL[4:])
    errors = [error(0.0, "a", "a", other)] * 8 + [error(0.5, "b", "b")]
    spreads = step_spreads(errors)
    assert spreads[CELL[:2]].high50 < 0.6
    inner = spreads[CELL[:4]]
    assert 0 < (inner.low50 + inner.high50) / 2 < 0.5


def test_no_interval_is_narrower_than_the_noise():
    spread = step_spreads([error(0.0, f"t{place}", f"s{place}") for place in range(9)])[CELL]
    assert spread.high90 - spread.low90 == pytest.approx(2 * 0.02 / 2**0.5 * 1.645 / 0.6745)


def test_the_shipped_intervals_are_those_of_the_errors():
    spreads = step_spreads(read_step_errors())
    design = design_with()
    interval = step_interval(design, rates_of(design))
    spread = spreads[interval.cell]
    assert interval.within90 == pytest.approx(
        (np.exp(-spread.high90), np.exp(-spread.low90)), rel=1e-3
    )
    assert interval.series == spread.series
    assert interval.within90[0] < interval.within50[0] < interval.within50[1]


@pytest.mark.slow
def test_nine_of_ten_tables_left_out_are_inside():
    """Measured: pooled over classes, each series with the same weight."""
    for coverage in step_coverages(read_step_errors()):
        if coverage.cell[2] == "all":
            assert coverage.within90 > 0.8, coverage
            assert 0.4 < coverage.within50 < 0.65, coverage


@pytest.mark.slow
def test_nine_of_ten_differences_between_classes_are_within_what_plans_allow():
    """Measured: pairs of rows of tables that the intervals do not know."""
    for calibration, share, twins in difference_coverages(read_step_errors()):
        assert 0.85 < share < 0.95, calibration
        assert twins > 0.9, calibration


def test_differences_are_judged_pair_by_pair():
    """Two tables a class: with the others' errors of 0 the intervals are the noise of steps."""
    cells = [("uncalibrated", "dense", "no FSDP", gpu) for gpu in ("A100", "Hopper")]
    errors = [
        StepError((*cell, "16 bits", "short", "no"), table, f"{table} {cell[3]}", f"m {cell[3]}", 0)
        for cell in cells
        for table in ("one", "two")
    ]
    ((calibration, share, twins),) = difference_coverages(errors)
    assert (calibration, share, twins) == ("uncalibrated", 1, 1)
    errors[0] = replace(errors[0], log_ratio=0.5)  # too far from both of the other class
    ((_, share, twins),) = difference_coverages(errors)
    assert share == twins
    assert share < 1


def test_a_gpu_that_nobody_measured_may_be_faster():
    known, unknown = design_with(dtype="fp8"), design_with("mi355x", "fp8")
    intervals = [step_interval(design, rates_of(design)) for design in (known, unknown)]
    assert intervals[0].reach == 1
    assert intervals[1].reach < 0.4  # products at 0.44 of 0.87, sustained at 0.73 of 1
    assert intervals[1].within90[0] < 0.7 * intervals[0].within90[0]
    assert "nobody measured" in str(intervals[1])
    assert len(intervals[1].cell) < len(CLASS_LEVELS)


@pytest.mark.slow
def test_a_step_prints_its_interval(tmp_path, capsys):
    file = tmp_path / "design.toml"
    file.write_text(
        "[model]\nname = 'llama-3.1-8b'\nsequence = 8192\nglobal_batch = 16\n"
        "[topology]\nname = 'dgx-h100'\n[parallel]\ntp = 2\n"
    )
    assert main(["step", str(file), "--tier", "1", "-o", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "interval    measured: 90 % within " in text
    assert "left-out errors on " in text
    result = json.loads((tmp_path / "out" / "step.json").read_text())
    low, high = result["interval"]["within90"]
    assert low < 1 < high


def row(name, step_s, cell=CELL, difference=0.05, span=(0.9, 1.1)):
    interval = {"50": span, "90": span, "difference": difference, "class": list(cell), "of": "it"}
    return {
        "key": name,
        "point": {"case": {"alternative": name}},
        "result": {"step_s": step_s, "days": step_s, "tier": 1, "interval": interval},
    }


def test_designs_of_one_class_are_a_tie_within_the_error_of_differences():
    best, close, far = (row("a", 10.0), row("b", 10.4), row("c", 10.6))
    assert is_tie(best["result"], close["result"], "days")
    assert not is_tie(best["result"], far["result"], "days")
    other = row("d", 10.6, (*CELL[:3], "A100"))
    assert is_tie(best["result"], other["result"], "days")  # of another class
    sentences = verdict("days", alternatives_of([best, close, far, other]), ())
    assert sentences[1].startswith("b: a tie (4.0 % more; such differences are off by up")
    assert sentences[2] == "c: 6.0 % more."
    assert sentences[3] == (
        "d: a tie (6.0 % more; such differences are off by up to 15.2 % in nine cases of ten)."
    )


def test_the_lines_of_a_plan_count_ties():
    lines = list(interval_lines("days", [row("a", 10.0), row("b", 10.4), row("c", 10.6)]))
    assert lines[0] == "best: 90 % within 9 to 11 days, 50 % within 9 to 11 days, by it"
    assert lines[1] == "b: 90 % within 9.36 to 11.4 days, 50 % within 9.36 to 11.4 days"
    assert lines[2].startswith("c: 90 % within ")
    assert lines[3].startswith("1 of the 2 other designs is a tie with the best by time to train")
    assert interval_of(row("a", 10.0)["result"], "memory_gib") is None
