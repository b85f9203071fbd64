"""Alternatives of which no design fits keep a line, with what would fit."""

from __future__ import annotations

import re
import tomllib

import pytest

from simcoll.cli import main
from simcoll.planning.designs.design_search import time_design
from simcoll.planning.designs.nearest_fit import missing_alternatives
from simcoll.planning.designs.space import load_space
from simcoll.training.design import design_from
from simcoll.training.memory import memory_by_stage

PLAN = """
[model]
name = "llama-3.1-70b"
sequence = 8192
global_batch = 128
[parallel]
tp = [4, 8]
pp = 2
shard = "optimizer"
sequence_parallel = false
recompute = "none"
virtual = 1
[[alternative]]
name = "H100"
topology = { name = "dgx-h100", nodes = 8 }
[[alternative]]
name = "B200"
topology = { name = "dgx-b200", nodes = 8 }
"""


def rows_of(folder, text):
    """The designs of a plan, those that fit without their step."""
    (folder / "plan.toml").write_text(text)
    rows = []
    for point in load_space(folder / "plan.toml").points(1):
        if point["case"]["alternative"] == "B200":
            rows.append({"point": point, "result": {"fits": "yes"}})
        else:
            rows.append({"point": point, "result": time_design(point)})
    return rows


def test_an_alternative_that_does_not_fit_says_what_would(tmp_path):
    (missing,) = missing_alternatives(rows_of(tmp_path, PLAN))
    assert missing.name == "H100"
    said = "no design fits on 64 GPUs; nearest 93.4 of 79.2 GiB with tp = 8; fits with sequence_parallel = true"
    assert missing.reason.startswith(said)

    # What it says is so.
    tables = tomllib.loads(PLAN)
    parallel = {**tables["parallel"], "tp": 8, "sequence_parallel": True}
    topology = tables["alternative"][0]["topology"]
    design = design_from({"model": tables["model"], "topology": topology, "parallel": parallel})
    need = max(stage.total for stage in memory_by_stage(design))
    assert need <= design.memory_limit
    assert missing.reason.endswith(f": {need / 2**30:.1f} GiB")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "70b",
            "405b",
            r"still \d+\.\d GiB with sequence_parallel = true, recompute = 'full', cp = 4",
        ),
        ("[parallel]", "[limits]\nkilowatts = 40\n[parallel]", "nearest 86.8 of 40.0 kW"),
    ],
)
def test_where_nothing_fits_the_closest_is_named(tmp_path, old, new, said):
    smaller = PLAN if "405b" in new else PLAN.replace("70b", "8b")
    (missing,) = missing_alternatives(rows_of(tmp_path, smaller.replace(old, new)))
    assert re.search(said, missing.reason), missing.reason


def test_a_design_that_runs_too_long_is_nearer_than_one_that_does_not_run():
    results = (
        {"fits": "80.0 of 74.5 GiB", "excess": 1.07},
        {"fits": "needs 61 days, limit 30 days", "excess": 2.03, "time_fs": 2},
        {"fits": "needs 41 days, limit 30 days", "excess": 1.37, "time_fs": 1},
    )
    rows = [
        {"point": {"case": {"alternative": "A", "tp": tp}, "design": {}}, "result": result}
        for tp, result in zip((1, 2, 4), results, strict=True)
    ]
    (missing,) = missing_alternatives(rows)
    assert missing.reason == ("no design fits; nearest needs 41 days, limit 30 days with tp = 4")


def test_an_alternative_without_a_possible_design_gives_the_reason():
    point = {"case": {"alternative": "A"}, "design": {}}
    rows = [{"point": point, "error": "sequence 5: not divisible by cp = 2"}]
    (missing,) = missing_alternatives(rows)
    assert missing.reason == "no design is possible: sequence 5: not divisible by cp = 2"


def test_a_machine_of_a_list_is_an_alternative():
    rows = [
        {"point": {"case": {"topology.name": name, "nodes": 8, "tp": 8}, "design": {}}, **outcome}
        for name, outcome in (
            ("dgx-h100", {"result": {"fits": "needs 41 days, limit 30 days", "excess": 1.37}}),
            ("dgx-h200", {"result": {"fits": "yes"}}),
        )
    ]
    (missing,) = missing_alternatives(rows)
    assert missing.name == "topology.name dgx-h100, nodes 8"
    assert missing.reason == "no design fits; nearest needs 41 days, limit 30 days with tp = 8"


@pytest.mark.slow
def test_a_searched_machine_on_which_nothing_fits_has_a_row(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(
        '[model]\nname = "llama-3.1-70b"\nsequence = 4096\nglobal_batch = 8\n'
        '[topology]\nname = ["dgx-h100", "dgx-b300"]\nnodes = 1\n'
        '[objective]\nmaximise = "tokens_per_second"\n'
    )
    assert main(["plan", "plan.toml", "--tier", "1", "--budget", "2", "-o", "out", "-j", "1"]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"- +topology.name dgx-h100: no design fits on 8 GPUs; nearest 1\d\d\.\d of 79\.2 GiB", out
    )
    assert "# Best by tokens per second: topology.name dgx-b300, " in out
    assert "topology.name dgx-h100" in (tmp_path / "out" / "report.html").read_text()
