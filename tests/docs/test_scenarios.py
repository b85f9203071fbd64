"""Every shipped scenario: the same in two processes with different hash seeds, and as fast as last time.

The golden times are compared exactly. When a change of the model or of an algorithm is meant to change them, run

    python -m pytest tests/docs/test_scenarios.py --bless

and review the diff of ``tests/docs/golden``. To be quick, a scenario runs at no more than ``SIZES`` of its sizes, always with
the smallest and the largest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
SCENARIOS = sorted((ROOT / "scenarios").glob("*.toml"))
SIZES = 3
HASH_SEEDS = ("0", "4711")

RUN = """
import json, sys
from dataclasses import replace
from simcoll.planning.report import sweep_hash
from simcoll.planning.scenario import load_scenario, scenario_topology, sweep_of
from simcoll.planning.sweep import best_rows, bound_rows, prepare
from simcoll.planning.running import Table, runs

most = int(sys.argv[1])
for name in sys.argv[2:]:
    content, path = load_scenario(name)
    sweep, topology = sweep_of(content, name), scenario_topology(content, path)
    last = len(sweep.sizes) - 1
    kept = sorted({last * place // (most - 1) for place in range(most)})
    sweep = replace(sweep, sizes=tuple(sweep.sizes[place] for place in kept))
    sizes = runs(sweep, prepare(sweep, topology), topology)
    rows = Table(sweep, topology.name, tuple(row for of_size in sizes for row in of_size))
    best = [
        {"size_bytes": row.size_bytes, "best": f"{row.choice} {row.protocol}", "time_fs": row.time_fs, "bound_fs": bound.bound_fs}
        for row, bound in zip(best_rows(rows), bound_rows(rows), strict=True)
    ]
    assert all(row.wrong == 0 or row.choice.algorithm == "dissemination" for row in rows)
    print(json.dumps({"scenario": path.stem, "runs": len(rows), "trace_hash": sweep_hash(rows), "sizes": best}))
"""


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, dict[str, object]]]:
    """Every scenario by name, as run by two processes side by side."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, str(SIZES), *map(str, SCENARIOS)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in HASH_SEEDS
    ]
    results = []
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, err
        results.append({record["scenario"]: record for record in map(json.loads, out.splitlines())})
    return results


def test_there_are_scenarios():
    assert "first-look" in {path.stem for path in SCENARIOS}


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in SCENARIOS])
def test_two_processes_agree(name, outcomes):
    assert outcomes[0][name] == outcomes[1][name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in SCENARIOS])
def test_golden_times(name, outcomes, request):
    path = GOLDEN / f"{name}.json"
    if request.config.getoption("--bless"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(outcomes[0][name], indent=1) + "\n")
    assert path.exists(), f"no golden times of {name}; python -m pytest tests/docs/test_scenarios.py --bless makes them"
    assert outcomes[0][name] == json.loads(path.read_text())


def test_no_golden_times_without_a_scenario():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {path.stem for path in SCENARIOS}
