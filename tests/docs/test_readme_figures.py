"""The figures of the README are those of the pages that it links to."""

import re
from statistics import mean

import pytest

from tests.docs.test_docs import ROOT

README = " ".join((ROOT / "README.md").read_text().split())
STEPS = (ROOT / "docs" / "accuracy-steps.md").read_text()
ROW = re.compile(
    r"^\| (?P<software>[^|]+) \| (?P<model>[^|]+) \| (?P<gpus>\d+) \w+ \| \w+ \| [\d.]+ \| [\d.]+ "
    r"\| (?P<error>[+-][\d.]+) % \| .* \| yes \|$",
    re.MULTILINE,
)
"""A published step that fits the model's memory."""


def rows_of(model):
    """The rows of a model, by the beginning of its name."""
    return [row for row in ROW.finditer(STEPS) if row["model"].startswith(model)]


def mean_error(rows):
    return mean(abs(float(row["error"])) for row in rows)


def rounded(cells):
    return " / ".join(f"{float(cell):.0f}" for cell in cells)


@pytest.mark.parametrize("model", ["DeepSeek V3", "Grok-1", "Qwen3", "GPT-OSS"])
def test_the_error_of_a_mixture(model):
    assert f"{model} {mean_error(rows_of(model)):.0f} %" in README


def test_the_error_of_dense_models_on_h100():
    rows = [row for row in rows_of("") if row["software"] == "NeMo 24.12"]
    dense = [row for row in rows if not row["model"].startswith("Grok")]
    counts = sorted(int(row["gpus"]) for row in dense)
    line = (
        f"**{mean_error(dense):.1f} %**: mean error of {len(dense)} published training steps of "
        f"dense models on {counts[0]} to {counts[-1]:,} H100"
    )
    assert line in README


def test_the_errors_of_collectives():
    page = (ROOT / "docs" / "accuracy.md").read_text()
    none, two = (
        re.search(rf"^\| {name} \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) % \|$", page, re.MULTILINE)
        for name in ("uncalibrated", "calibrated with two points")
    )
    assert f"**{rounded(none.groups())} %**: median error of predicted NCCL times" in README
    assert f"{rounded(two.groups())} % with two measured points" in README
    later = re.search(
        r"\(blind\) \| (\d+) \| ([\d.]+) / ([\d.]+) / ([\d.]+) \|",
        (ROOT / "docs" / "validation.md").read_text(),
    )
    number, *errors = later.groups()
    assert f"{rounded(errors)} % for {number} later tables" in README
