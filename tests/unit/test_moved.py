"""Imports at the places that the pages showed before modules moved."""

import importlib
import subprocess
import sys

import pytest

import simcoll.planning
import simcoll.workload.workload
from simcoll.moved import MODULES, RENAMES


@pytest.mark.parametrize("name", MODULES)
def test_a_moved_module_has_the_names_of_the_module_of_today(name):
    sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match=f"{name} has moved to {MODULES[name]}") as warned:
        moved = importlib.import_module(name)
    home = importlib.import_module(MODULES[name])
    assert len(warned) == 1
    assert moved.__all__ == home.__all__
    assert all(getattr(moved, key) is getattr(home, key) for key in home.__all__)
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = moved.nothing_of_this_name


def test_renamed_classes_are_those_of_today():
    assert simcoll.planning.Calibration is simcoll.planning.StepCalibration
    assert simcoll.planning.Memory is simcoll.planning.StageMemory
    for name, current in RENAMES["simcoll.workload.workload"].items():
        assert getattr(simcoll.workload.workload, name) is getattr(
            simcoll.workload.workload, current
        )
    with pytest.raises(
        AttributeError, match=r"'simcoll\.workload\.workload' has no attribute 'Receive'"
    ):
        _ = simcoll.workload.workload.Receive
    with pytest.raises(ModuleNotFoundError, match=r"simcoll\.formats\.schedule_yaml"):
        importlib.import_module("simcoll.formats.schedule_yaml")


@pytest.mark.slow
def test_the_warning_names_the_line_of_the_import(tmp_path):
    script = tmp_path / "old.py"
    script.write_text(
        "import simcoll\n\nfrom simcoll.formats.schedule_json import dump_schedule\n"
        "from simcoll.workload.traces import Step, Together\n"
        "print(Step.__name__, dump_schedule.__module__)\n"
    )
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.split() == ["TraceStep", "simcoll.formats.schedules.schedule_json"]
    assert "old.py:3: DeprecationWarning: simcoll.formats.schedule_json has moved" in run.stderr
    assert "old.py:4: DeprecationWarning: simcoll.workload.traces has moved" in run.stderr
