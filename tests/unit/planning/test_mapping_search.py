"""The search of mappings: its bound, its space, and its result against timing everything."""

from __future__ import annotations

import json

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.planning.designs.design_search import open_search, search_grid
from simcoll.planning.designs.mapping_search import MappingSearch, machine_of, typical_of
from simcoll.planning.designs.mapping_space import MappingInputs, mappings
from simcoll.planning.designs.space import load_space
from simcoll.training.design import design_from
from simcoll.training.evidence import rates_of
from simcoll.training.memory import memory_by_stage
from simcoll.training.step_intervals import step_interval
from simcoll.training.steps import TrainingStep
from simcoll.training.transformer import shipped_model

DENSE = {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 32}
MIXTURE = {
    "layers": 8, "hidden": 1024, "heads": 8, "vocabulary": 32000, "experts": 8, "top_k": 2,
    "expert_ffn": 2048, "dense_layers": 1, "sequence": 2048, "global_batch": 32,
}  # fmt: skip


def place(model, nodes=2, topology=None, **parallel):
    """A point without a mapping."""
    document = {
        "model": dict(model),
        "topology": {"name": "dgx-h100", "nodes": nodes, **(topology or {})},
        "parallel": parallel,
    }
    return {"case": {}, "design": document, "terms": {}, "inputs_hash": ""}


def time_fs(point, tier=1):
    return TrainingStep(design_from(point["design"], file="plan")).time_fs(tier=tier)


def row_of(point):
    design = design_from(point["design"], file="plan")
    interval = step_interval(design, rates_of(design)).to_row()
    return {"point": point, "result": {"time_fs": time_fs(point), "interval": interval}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "held"),
    [(DENSE, {}), (MIXTURE, {}), (DENSE, {"schedule": "zero-bubble"}), (DENSE, {"cp": 4})],
)
@pytest.mark.parametrize("oversubscription", [1, 4])
def test_no_step_is_faster_than_its_bound(model, held, oversubscription):
    topology = {"set": {"network.oversubscription": oversubscription}}
    machine = machine_of(place(model, topology=topology, **held))
    chosen = machine.candidates[:: max(1, len(machine.candidates) // 12)]
    shares = [candidate.bound_fs / time_fs(candidate.point) for candidate in chosen]
    assert max(shares) <= 1
    assert sum(shares) / len(shares) > 0.55
    for candidate in chosen[::4]:
        assert candidate.bound_fs <= time_fs(candidate.point, tier=2)


@pytest.mark.slow
@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_the_search_finds_the_best_of_all(model):
    """The best as predicted, and the best if steps take what those of their classes took."""
    held = {"micro_batch": 1} if model is DENSE else {"micro_batch": 2, "cp": 1}
    machine = machine_of(place(model, **held))
    everything = [row_of(candidate.point) for candidate in machine.candidates]
    times = [row["result"]["time_fs"] for row in everything]
    typical = [
        time * typical_of(row["result"]) for row, time in zip(everything, times, strict=True)
    ]
    search = MappingSearch((machine,), budget=10**6)
    rows = []
    while points := search.next_points(rows):
        rows += [row_of(point) for point in points]
    best = machine.best_times(rows)
    assert (best.predicted_fs, best.typical_fs) == (min(times), min(typical))
    assert len(rows) < len(machine.candidates)
    assert machine.rivals(best) == machine.typical_rivals(best) == []


def test_what_is_stated_is_held_and_everything_is_legal():
    model = shipped_model("llama-3.1-8b")
    inputs = MappingInputs(model, 8192, 32, 16, 8)
    made = list(mappings(inputs, {}))
    assert {one["tp"] for one in made} == {1, 2, 4, 8}
    assert {one["pp"] for one in made} == {1, 2, 4, 8, 16}
    for one in made[::7]:
        design = design_from(place(DENSE, **one)["design"], file="plan")
        assert design.mesh.nranks == 16
        assert memory_by_stage(design)
    held = {"tp": 2, "shard": "gradients", "gradients": "bf16"}
    assert all(held.items() <= one.items() for one in mappings(inputs, held))
    assert list(mappings(inputs, {"tp": 3})) == []


def test_layers_that_do_not_divide_are_split_unevenly():
    inputs = MappingInputs(shipped_model("deepseek-v3"), 4096, 128, 128, 8)
    splits = {
        tuple(one["split"]) for one in mappings(inputs, {"pp": 8, "tp": 1, "cp": 1, "virtual": 1})
    }
    assert splits == {(7, 8, 8, 8, 8, 8, 7, 7)}


def test_only_what_does_not_fit_recomputes():
    model = {"name": "llama-3.1-70b", "sequence": 8192, "global_batch": 128}
    machine = machine_of(place(model, nodes=8, tp=8, cp=1, micro_batch=1))
    again = [c.point for c in machine.candidates if c.point["case"]["recompute"] == "full"]
    assert again
    for point in again[:5]:
        less = {**point["design"]["parallel"], "recompute": "selective"}
        design = design_from({**point["design"], "parallel": less}, file="plan")
        assert max(stage.total for stage in memory_by_stage(design)) > 0.9 * design.memory_limit


@pytest.mark.slow
def test_a_model_that_fits_nowhere_has_its_nearest_mapping():
    model = {"name": "llama-3.1-405b", "sequence": 8192, "global_batch": 16}
    machine = machine_of(place(model, nodes=1))
    assert machine.candidates == []
    nearest = design_from(machine.nearest["design"], file="plan")
    assert nearest.parallel.recompute == "full"
    assert max(stage.total for stage in memory_by_stage(nearest)) > nearest.memory_limit


@pytest.mark.parametrize(
    ("model", "parallel", "message"),
    [
        (DENSE, {"tpp": 2}, "tpp"),
        (DENSE, {"tp": "two"}, "whole number"),
        (DENSE, {"shard": "all"}, "shard: unknown 'all'"),
        ({**DENSE, "global_batch": 7}, {"cp": 1, "tp": 1, "pp": 1}, "no mapping of 7 sequences"),
        (DENSE, {"tp": 3}, "no mapping of 32 sequences"),
    ],
)
def test_wrong_plans_are_one_clear_error(model, parallel, message):
    with pytest.raises(ConfigError, match=message):
        machine_of(place(model, **parallel))


PLAN = """
[model]
layers = 8
hidden = 1024
heads = 8
vocabulary = 32000
sequence = 2048
global_batch = 32

[topology]
name = "dgx-h100"
nodes = 2

[variants]
"nic.bandwidth" = ["400 Gbps", "200 Gbps"]
"""


@pytest.mark.slow
def test_a_plan_without_a_mapping_is_searched(tmp_path, capsys):
    (tmp_path / "plan.toml").write_text(PLAN)
    texts = []
    for folder, jobs in (("run1", "1"), ("run2", "2")):
        command = ["plan", str(tmp_path / "plan.toml"), "-o", str(tmp_path / folder), "-j", jobs]
        assert main([*command, "--tier", "1", "--budget", "10"]) == 0
        texts.append(capsys.readouterr().out.replace(folder, ""))
    assert texts[0] == texts[1]
    assert "# 400 Gbps: " in texts[0]
    assert "# not searched: " in texts[0]
    assert "legal mappings, 0 need too much memory, " in texts[0]
    assert "for the budget of 5 on a machine: at most " in texts[0]
    rows = [json.loads(line) for line in (tmp_path / "run1/rows.jsonl").read_text().splitlines()]
    assert {row["result"]["tier"] for row in rows} == {1}
    search = ["plan", str(tmp_path / "plan.toml"), "-o", str(tmp_path / "three")]
    assert main([*search, "--shard", "1/2"]) == 2
    assert "--shard" in capsys.readouterr().err
    assert main([*search, "--tier", "3"]) == 2
    assert main([*search, "--clock", "soon"]) == 2


@pytest.mark.slow
def test_a_search_without_a_fitting_mapping_says_what_it_saw(tmp_path, capsys):
    file = tmp_path / "plan.toml"
    file.write_text(PLAN.partition("[variants]")[0] + '[limits]\nmemory = "1 MiB"\n')
    assert main(["plan", str(file), "-o", str(tmp_path / "out"), "-j", "1"]) == 2
    text = capsys.readouterr()
    assert " legal mappings, " in text.out
    assert " need too much memory, 0 timed, " in text.out
    assert "no change of its parallelism needs less" in text.err


def test_a_table_searches_around_what_is_stated(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(PLAN + "[parallel]\ntp = [1, 2]\n[search]\nbudget = 4\n")
    space = load_space(file)
    assert len(space.machines) == 4
    search = open_search(space)
    assert len(search_grid([], search)) == 4
    assert all(len(machine.timed) == 1 for machine in search.machines)
    file.write_text(PLAN + "[parallel]\ntp = [1, 2]\n")
    assert load_space(file).machines == ()
    file.write_text(PLAN + "[search]\nbudget = -1\n")
    with pytest.raises(ConfigError, match="budget"):
        load_space(file)
