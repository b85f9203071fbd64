"""Every shipped scenario: the same in two processes with different hash seeds, and as fast as last
time.

The golden times are compared exactly. When a change of the model or of an algorithm is meant to
change them, run

    python -m pytest tests/docs/test_scenarios.py --bless

and review the diff of ``tests/docs/golden``. To be quick, a scenario runs at no more than ``SIZES``
of its sizes, always with the smallest and the largest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from simcoll.planning.sweeps.running import SweepTable, runs
from simcoll.planning.sweeps.scenario import load_scenario, scenario_topology, sweep_of
from simcoll.planning.sweeps.sweep import best_rows, bound_rows, prepare
from simcoll.planning.sweeps.sweep_report import sweep_hash
from tests.support.installed import PACKAGES

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
SCENARIOS = sorted((ROOT / "scenarios").glob("*.toml"))
SIZES = 3
HASH_SEED = "4711"
"""Of the second process; this one has a seed of its own."""


@cache
def played(path: Path) -> dict[str, object]:
    """The record of a scenario."""
    content, path = load_scenario(str(path))
    sweep, topology = sweep_of(content, path.stem), scenario_topology(content, path)
    last = len(sweep.sizes) - 1
    kept = sorted({last * place // (SIZES - 1) for place in range(SIZES)})
    sweep = replace(sweep, sizes=tuple(sweep.sizes[place] for place in kept))
    sizes = runs(sweep, prepare(sweep, topology), topology)
    rows = SweepTable(sweep, topology.name, tuple(row for of_size in sizes for row in of_size))
    best = [
        {
            "size_bytes": row.size_bytes,
            "best": f"{row.choice} {row.protocol}",
            "time_fs": row.time_fs,
            "bound_fs": bound.bound_fs,
        }
        for row, bound in zip(best_rows(rows), bound_rows(rows), strict=True)
    ]
    assert all(row.wrong == 0 or row.choice.algorithm == "dissemination" for row in rows)
    return {"scenario": path.stem, "runs": len(rows), "trace_hash": sweep_hash(rows), "sizes": best}


def test_there_are_scenarios():
    assert "first-look" in {path.stem for path in SCENARIOS}


@pytest.mark.slow
def test_two_processes_agree():
    elsewhere = subprocess.run(
        [sys.executable, __file__],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(PACKAGES), str(ROOT))),
            "PYTHONHASHSEED": HASH_SEED,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert json.loads(elsewhere.stdout) == {path.stem: played(path) for path in SCENARIOS}


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in SCENARIOS])
def test_golden_times(name, request):
    path = GOLDEN / f"{name}.json"
    if request.config.getoption("--bless"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(played(ROOT / "scenarios" / f"{name}.toml"), indent=1) + "\n")
    assert path.exists(), (
        f"no golden times of {name}; python -m pytest tests/docs/test_scenarios.py --bless makes "
        "them"
    )
    assert played(ROOT / "scenarios" / f"{name}.toml") == json.loads(path.read_text())


def test_no_golden_times_without_a_scenario():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {path.stem for path in SCENARIOS}


if __name__ == "__main__":
    print(json.dumps({path.stem: played(path) for path in SCENARIOS}))
