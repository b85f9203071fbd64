"""Plan files: the designs that they mean, the figures of a design, and what is best."""

from __future__ import annotations

import itertools
import math
import random
import tomllib

import numpy as np
import pytest

from simcoll.errors import ConfigError
from simcoll.files.paths import shipped_files
from simcoll.files.toml_text import toml_text
from simcoll.planning.designs.design_search import (
    bars_of,
    best_of,
    exact_grid,
    latest,
    notes_of,
    open_search,
    tight_of,
    time_design,
)
from simcoll.planning.designs.figures import FIGURES, pareto_front
from simcoll.planning.designs.mapping_search import machine_of
from simcoll.planning.designs.space import load_space
from simcoll.planning.grids.grid import GridRun
from simcoll.planning.reliability.goodput import goodput_grid
from simcoll.planning.sweeps.sweep_grid import load_sweep, sweep_grid
from simcoll.topology import load_topology
from simcoll.topology.machine import beyond_pcie
from simcoll.training.design import design_from
from simcoll.training.memory import memory_by_stage
from simcoll.workload.class_clock import Clock, Span
from simcoll.workload.workload import ComputeOperation, Workload

PLAN = """
title = "small"
[model]
layers = 4
hidden = 1024
heads = 8
vocabulary = 1000
sequence = 1024
global_batch = 16
[gpu]
name = "h100"
[topology]
name = "dgx-h100"
nodes = 1
[parallel]
tp = [1, 2]
pp = [1, 2, 3]
[variants]
"gpu.bandwidth" = ["450 GB/s", "225 GB/s"]
[objective]
maximise = "tokens_per_second"
tokens = "1B"
[cost]
gpu_hour = 2.0
[failures]
gpu_hours = 50_000
checkpoint = "30 s"
restart = "5 min"
"""


def space_of(folder, text=PLAN):
    path = folder / "plan.toml"
    path.write_text(text)
    return load_space(path)


def test_a_space_is_every_combination(tmp_path):
    space = space_of(tmp_path)
    cases = [case for _, case in space.documents]
    assert [tuple(case.values()) for case in cases] == list(
        itertools.product(["450 GB/s", "225 GB/s"], [1, 2], [1, 2, 3])
    )
    document, _ = space.documents[-1]
    assert document["parallel"] == {"tp": 2, "pp": 3}
    assert document["topology"]["set"] == {"gpu.bandwidth": "225 GB/s"}
    assert len({point["inputs_hash"] for point in space.points(1)}) == 1


def test_alternatives_replace_tables_and_sweep_their_own(tmp_path):
    more = (
        '\n[[alternative]]\nname = "A"\n[[alternative]]\nname = "B"\n'
        "cost = { gpu_hour = 3.0 }\n"
        "topology = { nodes = [2, 3] }\n"
    )
    space = space_of(tmp_path, PLAN + more)
    assert [case["alternative"] for _, case in space.documents].count("A") == 12
    assert {case.get("topology.nodes") for _, case in space.documents} == {None, 2, 3}
    assert {terms["cost"]["gpu_hour"] for terms in space.terms} == {2.0, 3.0}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'maximise = "tokens_per_second"',
            'maximise = "token_per_second"',
            r"\$\.objective\.maximise: .*did you mean 'tokens_per_second'",
        ),
        (
            'maximise = "tokens_per_second"',
            'minimise = "mfu"',
            r"\$\.objective: minimise mfu: expected maximise",
        ),
        (
            'maximise = "tokens_per_second"',
            'pareto = ["mfu"]',
            r"\$\.objective\.pareto: expected at least two",
        ),
        (
            'maximise = "tokens_per_second"',
            'pareto = ["mfu", "dayz"]',
            r"\$\.objective\.pareto\[1\]: .*did you mean 'days'",
        ),
        ('"1B"', '"many"', r"\$\.objective\.tokens: 'many': expected a number such as '15T'"),
        ("tp = [1, 2]", "tp = []", r"\$\.parallel\.tp: an empty list"),
        (
            '["450 GB/s", "225 GB/s"]',
            '"450 GB/s"',
            r"\$\.variants\.gpu\.bandwidth: expected a list",
        ),
        (
            'maximise = "tokens_per_second"\ntokens = "1B"',
            'minimise = "usd"',
            r"\$\.objective: usd needs tokens",
        ),
        (
            'tokens = "1B"\n[cost]\ngpu_hour = 2.0',
            'pareto = ["mfu", "usd_per_mtoken"]',
            r"usd_per_mtoken needs prices under \[cost\], such as gpu_hour",
        ),
        ("gpu_hour = 2.0", "gpu_hours = 2.0", "did you mean 'gpu_hour'"),
        ('restart = "5 min"', 'restart = "5"', r"\$\.failures\.restart: .*no unit"),
        (
            "gpu_hours = 50_000",
            "gpu_hours = 0",
            r"\$\.failures\.gpu_hours: expected GPU-hours above 0",
        ),
        ('restart = "5 min"', 'restart = "5 min"\nspares = -1', r"\$\.failures\.spares: .*got -1"),
        (
            "gpu_hour = 2.0",
            "gpu_hour = 2.0\ndepreciation_years = 0",
            r"\$\.cost\.depreciation_years: expected at least 0\.01, got 0",
        ),
        (
            "gpu_hour = 2.0",
            'sources = { gpu_hours = "a quote" }',
            r"\$\.cost\.sources\.gpu_hours: .*did you mean 'gpu_hour'",
        ),
        (
            "[failures]",
            '[power]\nnode = "10.2"\n[failures]',
            r"\$\.power\.node: '10\.2': expected a power such as '10\.2 kW'",
        ),
        ("[failures]", "[power]\npue = 0.9\n[failures]", r"\$\.power\.pue: .*at least 1, got 0\.9"),
        ('name = "dgx-h100"', 'name = "dgx-h1000"', "did you mean 'dgx-h100'"),
        (
            "gpu_hour = 2.0",
            "gpu_hour = inf",
            r"\$\.cost\.gpu_hour: expected a number of at least 0, got inf",
        ),
        (
            "gpu_hour = 2.0",
            "gpu_hour = -2.0",
            r"\$\.cost\.gpu_hour: expected a number of at least 0, got -2",
        ),
        (
            "gpu_hour = 2.0",
            "gpu_hour = [2.0, 3.0]",
            r"\$\.cost\.gpu_hour: expected a number, got a list",
        ),
        ('restart = "5 min"', "", r"\$\.failures: missing key 'restart'"),
        (
            "[cost]",
            "[limits]\nkilowatts = nan\n[cost]",
            r"\$\.limits\.kilowatts: expected a number of at least 0",
        ),
        (
            'tokens = "1B"',
            "[limits]\ndays = 30",
            r"\$\.limits\.days: needs tokens under \[objective\], such as tokens = '15T'",
        ),
        (
            "gpu_hour = 2.0",
            "[limits]\nusd = 5e6",
            r"\$\.limits\.usd: needs prices under \[cost\], such as gpu_hour",
        ),
        (
            "gpu_hour = 2.0",
            "[limits]\nusd_per_hour = 100",
            r"\$\.limits\.usd_per_hour: needs prices under \[cost\]",
        ),
        ("[cost]", "[limits]\ndays = -3\n[cost]", r"\$\.limits\.days: expected a number of at"),
        (
            "[cost]",
            "[limits]\nday = 3\n[cost]",
            r"\$\.limits\.day: unknown key; did you mean 'days'",
        ),
        (
            "[cost]",
            "[limits]\ngpus = -1\n[cost]",
            r"\$\.limits\.gpus: expected a number of at least 0, got -1",
        ),
        (
            "[cost]",
            (
                '[[alternative]]\nname = "A"\n[[alternative]]\nname = "A"\ngpu = { name = "h200" }\n'
                "[cost]"
            ),
            r"\$\.alternative\[1\]\.name: 'A' is the name of another",
        ),
    ],
)
def test_bad_files_are_named(tmp_path, old, new, said):
    assert old in PLAN
    with pytest.raises(ConfigError, match=said):
        space_of(tmp_path, PLAN.replace(old, new, 1))


def test_the_figures_of_a_design_follow_from_its_step(tmp_path):
    point = space_of(tmp_path).points(1)[0]
    found = time_design(point)
    rate = 16 * 1024 / (found["time_fs"] / 1e15)
    assert found["fits"] == "yes"
    assert found["tokens_per_second"] == pytest.approx(rate)
    assert found["usd_per_mtoken"] == pytest.approx(8 * 2.0 / 3600 / rate * 1e6)
    assert found["days"] == pytest.approx(1e9 / (rate * found["goodput"]) / 86400)
    assert found["usd"] == pytest.approx(found["days"] * 24 * 16)
    mean_s = 50_000 / 8 * 3600  # first order: a failure loses half an interval and a restart
    assert found["goodput"] == pytest.approx(
        1 - math.sqrt(2 * 30 / mean_s) - 300 / mean_s, abs=2e-5
    )
    assert set(FIGURES) <= set(found)


def test_a_limit_above_the_memory_of_the_gpu_is_that_memory(tmp_path):
    space = space_of(
        tmp_path, PLAN.replace("hidden = 1024", "hidden = 32768") + '[limits]\nmemory = "900 GB"\n'
    )
    assert time_design(space.points(1)[0])["fits"].endswith("of 79.2 GiB")


def test_jobs_that_only_fail_are_impossible(tmp_path):
    space = space_of(tmp_path, PLAN.replace("gpu_hours = 50_000", "gpu_hours = 0.0001"))
    with pytest.raises(
        ConfigError, match=r"a failure every 0\.045 s on 8 GPUs: no training survives"
    ):
        time_design(space.points(1)[0])


def row_of(name, tier, speed, memory, notes=()):
    """A design that ran."""
    told = {
        "fits": "yes",
        "tier": tier,
        "tokens_per_second": speed,
        "usd_per_mtoken": memory,
        "notes": list(notes),
    }
    return {
        "key": f"{name} {tier}",
        "point": {"case": {"name": name}, "tier": tier},
        "result": told,
    }


def test_no_design_leads_because_tier_1_overrates_it(tmp_path):
    space = space_of(tmp_path)
    exact = {
        "a": row_of("a", 2, 60, 3),
        "b": row_of("b", 2, 89, 2),
        "c": row_of("c", 2, 80, 1),
        "d": row_of("d", 2, 1, 9),
    }
    runs = [
        GridRun(
            (
                row_of("a", 1, 100, 3),
                row_of("b", 1, 90, 2),
                row_of("c", 1, 80, 1),
                row_of("d", 1, 2, 9),
            ),
            4,
        )
    ]
    while (grid := exact_grid(latest(runs), space, 1)) is not None:
        runs.append(
            GridRun(tuple(exact[point["case"]["name"]] for point in grid.points), len(grid))
        )
    best, front = best_of(latest(runs), space)
    assert [row["key"] for row in best] == ["b 2", "c 2", "a 2", "d 1"]
    assert [row["key"] for row in front] == ["b 2", "c 2"]


def test_the_first_of_equals_is_on_the_front(tmp_path):
    equals = [row_of(name, 2, 5, 5) for name in "zab"]
    best, front = best_of(equals, space_of(tmp_path))
    assert len(front) == 1
    assert best[0] is front[0]


def test_of_equals_the_one_with_less_memory_then_the_one_that_splits_less_is_first(tmp_path):
    rows = []
    for name, memory_gib, tp in (("z", 30.0, 2), ("a", 40.0, 1), ("b", 30.0, 4)):
        row = row_of(name, 2, 5, 5)
        row["result"]["memory_gib"] = memory_gib
        row["point"]["design"] = {"parallel": {"tp": tp}}
        rows.append(row)
    best, _ = best_of([row_of("front", 2, 6, 5), *rows], space_of(tmp_path))
    assert [row["key"] for row in best] == ["front 2", "z 2", "b 2", "a 2"]


def test_a_timeline_has_its_stages_in_order():
    stages = [f"stage{stage}" for stage in range(12)]
    work = tuple(
        ComputeOperation(id=f"{stage} {turn}", on=stage, time_fs=5, name="forward")
        for turn in range(2)
        for stage in stages
    )
    workload = Workload(
        12, {stage: np.array([rank]) for rank, stage in enumerate(stages)}, {}, work
    )
    spans = [Span(at, each.on, each.stream, at, at + 5) for at, each in enumerate(work)]
    bars = bars_of(workload, Clock(99, tuple(spans)))
    assert list(dict.fromkeys(bar.lane for bar in bars)) == [f"{stage} compute" for stage in stages]


def test_a_note_on_some_designs_names_the_first():
    rows = [
        row_of("a", 2, 5, 5, ["all", "some"]),
        row_of("b", 2, 4, 4, ["all"]),
        row_of("c", 2, 3, 3, ["all", "some"]),
    ]
    assert notes_of(rows) == ["all", "name a and 1 more: some"]


def test_what_does_not_fit_is_counted_by_limit(tmp_path):
    rows = [row_of("a", 1, 1, 1)] + [{"result": {"fits": f"{gib}.0 of 8.0 GiB"}} for gib in (9, 12)]
    assert tight_of(rows[:1]) == ""
    both = "2 do not fit (the first: 9.0 of 8.0 GiB), 1 does not fit: 16.0 of 10.0 $ an hour"
    assert (
        tight_of([*rows, {"result": {"fits": "16.0 of 10.0 $ an hour"}}, {"error": "no"}]) == both
    )
    impossible = [{"point": {"case": {"alternative": name}}, "error": "no"} for name in "AAB"]
    with pytest.raises(
        ConfigError,
        match="none of 3 designs ran: 3 are impossible; A: no design is possible: "
        "no; B: no design is possible: no",
    ):
        best_of(impossible, space_of(tmp_path))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ('memory = "200 MiB"', "of 0.2 GiB"),
        ("gpus = 4", "8.0 of 4.0 GPUs"),
        ("usd_per_hour = 10", "16.0 of 10.0 $ an hour"),
        ("kilowatts = 6", "10.2 of 6.0 kW"),
    ],
)
def test_what_does_not_fit_is_not_timed(tmp_path, limits, said):
    found = time_design(space_of(tmp_path, PLAN + f"[limits]\n{limits}\n").points(1)[0])
    assert found["fits"].endswith(said)
    assert "time_fs" not in found


def test_a_design_beyond_days_or_dollars_says_by_how_much(tmp_path):
    plan = PLAN.replace("1B", "1T")
    free = time_design(space_of(tmp_path, plan).points(1)[0])
    days, dollars = free["days"], free["usd"]
    limits = f"[limits]\ndays = {days / 4}\nusd = {dollars * 2}\n"
    point = space_of(tmp_path, plan + limits).points(1)[0]
    late = time_design(point)
    assert late["fits"] == f"needs {days:.3g} days, limit {days / 4:.3g} days"
    assert late["excess"] == pytest.approx(4)
    assert {name: late[name] for name in free if name != "fits"} == {
        name: value for name, value in free.items() if name != "fits"
    }

    limits = f"[limits]\nusd = {dollars / 2}\n"
    dear = time_design(space_of(tmp_path, plan + limits).points(1)[0])
    assert dear["fits"] == f"needs ${dollars:,.0f}, limit ${dollars / 2:,.0f}"

    rows = [{"point": point, "result": result} for result in (late, late, dear)]
    assert tight_of(rows) == (
        f"2 do not fit (the first: {late['fits']}), 1 does not fit: {dear['fits']}"
    )
    with pytest.raises(
        ConfigError, match=r"none of 3 designs ran: .* no design fits on [0-9,]+ GPUs; nearest need"
    ):
        best_of(rows, space_of(tmp_path))


def test_a_design_whose_interval_ends_beyond_a_limit_has_a_note(tmp_path):
    free = time_design(space_of(tmp_path).points(1)[0])
    slow = free["days"] * free["interval"]["90"][1]
    for limit, said in (((free["days"] + slow) / 2, True), (slow * 1.01, False)):
        (found,) = (
            time_design(point)
            for point in space_of(tmp_path, PLAN + f"[limits]\ndays = {limit}\n").points(1)[:1]
        )
        assert found["fits"] == "yes"
        assert ("but its 90 % interval ends at" in " ".join(found["notes"])) == said


def test_a_design_that_cannot_be_says_why(tmp_path):
    point = next(p for p in space_of(tmp_path).points(1) if p["case"]["pp"] == 3)
    with pytest.raises(
        ConfigError,
        match=r"4 layers do not divide into 3 parts|since 3, the product of the other axes, does "
        r"not divide 8",
    ):
        time_design(point)


def test_nics_that_pcie_cannot_fill_are_said():
    assert not beyond_pcie(load_topology("dgx-h100", nodes=2))
    faster = load_topology("dgx-h100", nodes=2, nic__bandwidth="800 Gbps")
    assert "NICs of 100 GB/s behind PCIe links of 63 GB/s" in beyond_pcie(faster)
    assert faster.path(0, 8) == load_topology("dgx-h100", nodes=2).path(0, 8)
    assert faster.sources["$.pcie.bandwidth"] == "16 lanes of the PCIe of hopper"
    wide = load_topology("dgx-h100", nodes=2, nic__bandwidth="800 Gbps", pcie__bandwidth="126 GB/s")
    assert not beyond_pcie(wide)
    assert not beyond_pcie(load_topology("gb300-nvl72", nodes=36))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in ("plans", "sweeps", "goodput")
        for name in shipped_files(f"scenarios/{kind}")
    ],
)
def test_what_is_shipped_is_read(kind, name):
    path = shipped_files(f"scenarios/{kind}")[name]
    if kind == "plans":
        space = load_space(path)
        assert space.title
        if space.machines:  # whose mappings are searched
            assert machine_of(space.machines[0]).candidates
        else:
            assert memory_by_stage(design_from(space.documents[0][0]))
    else:
        grid = sweep_grid(load_sweep(path), path) if kind == "sweeps" else goodput_grid(path)[1]
        assert len(grid) > 1


def test_a_pareto_front_is_what_nothing_beats():
    draw = random.Random(5)
    results = [
        {"mfu": draw.randrange(9), "gpus": draw.randrange(9), "days": draw.randrange(9)}
        for _ in range(300)
    ]
    front = pareto_front(results, ["mfu", "gpus", "days"])

    def beats(a, b):
        as_good = a["mfu"] >= b["mfu"] and a["gpus"] <= b["gpus"] and a["days"] <= b["days"]
        return as_good and a != b

    best = [r for r in results if not any(beats(other, r) for other in results)]
    assert {tuple(results[at].values()) for at in front} == {tuple(r.values()) for r in best}
    assert len(front) == len({tuple(r.values()) for r in best})  # of equals the first


def test_toml_is_read_as_written(tmp_path):
    document = {
        "title": 'quotes " and \\ and é and \x7f',
        "n": 3,
        "x": {
            "a b": [1, 2.5, True, "s"],
            "t": {"box0.nic0 <-> leaf": "1/2", "empty": {}},
            "big": 1e300,
        },
    }
    assert tomllib.loads(toml_text(document)) == document
    document, _ = space_of(tmp_path).documents[0]
    assert design_from(tomllib.loads(toml_text(document))).hash == design_from(document).hash


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"name": "dgx-h1000"}, r"unknown topology 'dgx-h1000'; did you mean 'dgx-h100'"),
        ({"name": "dgx-h100", "gpus": 24}, "24"),
    ],
)
def test_an_error_in_an_alternative_names_it(tmp_path, keys, reason):
    cluster = ", ".join(f"{key} = {value!r}" for key, value in keys.items())
    (tmp_path / "plan.toml").write_text(
        '[model]\nname = "llama-3.1-8b"\nsequence = 8192\nglobal_batch = 64\n'
        '[[alternative]]\nname = "A"\ntopology = { name = "dgx-h100" }\n'
        f'[[alternative]]\nname = "B"\ntopology = {{ {cluster} }}\n'
    )
    with pytest.raises(ConfigError, match=f"alternative 'B': .*{reason}"):
        open_search(load_space(tmp_path / "plan.toml"))
