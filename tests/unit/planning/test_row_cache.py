"""Results of designs in tier 2 are found again by what was asked for and what its files state."""

from __future__ import annotations

import json
import shutil

import pytest

from simcoll.files.paths import data_folder
from simcoll.planning.designs import design_search, row_cache
from simcoll.planning.designs.design_search import time_design
from simcoll.planning.designs.space import load_space

PLAN = """
[model]
name = "llama-3.1-8b"
sequence = 2048
global_batch = 4

[topology]
name = "dgx-h100"
gpus = 4

[gpu]
name = "mine.toml"

[parallel]
tp = 4

[cost]
gpu_hour = {price}

[objective]
maximise = "tokens_per_second"
"""


@pytest.fixture
def played(monkeypatch, tmp_path):
    """The tiers of the steps that were played, with a cache of their results."""
    monkeypatch.setenv("SIMCOLL_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copy(data_folder("gpus") / "h100.toml", tmp_path / "mine.toml")
    tiers = []
    play = design_search.step
    monkeypatch.setattr(
        design_search,
        "step",
        lambda design, *, tier, exposed: (
            tiers.append(tier) or play(design, tier=tier, exposed=exposed)
        ),
    )
    return tiers


def row(tmp_path, *, tier=2, price="3.0", exposed=True, plan=PLAN):
    file = tmp_path / "plan.toml"
    file.write_text(plan.format(price=price))
    (point,) = load_space(file).points(tier)
    return time_design({**point, "exposed": exposed})


def test_a_design_is_played_once(tmp_path, played):
    first, again = row(tmp_path), row(tmp_path)
    assert played == [2]
    assert json.dumps(first) == json.dumps(again)


def test_a_price_changes_the_figures_and_plays_nothing(tmp_path, played):
    cheap, dear = row(tmp_path), row(tmp_path, price="6.0")
    assert played == [2]
    assert dear["usd_per_mtoken"] == pytest.approx(2 * cheap["usd_per_mtoken"])
    assert dear["time_fs"] == cheap["time_fs"]


def test_what_changes_a_result_is_played(tmp_path, played, monkeypatch):
    row(tmp_path)
    assert row(tmp_path, exposed=False)["axes"] != {}
    gpu = tmp_path / "mine.toml"
    text = gpu.read_text()
    gpu.write_text(text.replace('evidence = "measured"', 'evidence = "assumed"'))
    assert "assumed" in row(tmp_path)["rates"].values()
    monkeypatch.setattr(row_cache, "_shipped_numbers", lambda: "of another release")
    row(tmp_path)
    assert played == [2] * 4


def test_tier_1_is_played_anew(tmp_path, played):
    assert row(tmp_path, tier=1) == row(tmp_path, tier=1)
    assert played == [1, 1]


def test_a_design_with_measured_operators_is_played_anew(tmp_path, played):
    """Its note says how often the table was asked."""
    (tmp_path / "operators.csv").write_text(
        "operator,shape,dtype,milliseconds\ngemm,8x8x8,bf16,1.5\n"
    )
    measured = 'name = "mine.toml"\nmeasured = "operators.csv"'
    first, again = (
        row(tmp_path, plan=PLAN.replace('name = "mine.toml"', measured)) for _ in range(2)
    )
    assert played == [2, 2]
    assert any("operators.csv stand in for the roofline" in note for note in again["notes"])
    assert first["time_fs"] == again["time_fs"]
