"""What ``import simcoll`` shows, and that no function hides a module."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import simcoll
import simcoll.types

NAMES = {
    "COPY",
    "REDUCE",
    "Collective",
    "ConfigError",
    "Layout",
    "Schedule",
    "ScheduleError",
    "SimcollError",
    "bind",
    "emulate",
    "load_schedule",
    "load_topology",
    "predict",
    "schedule",
    "transfers",
    "verify",
}


def shown(module):
    return {name for name in dir(module) if not (name.startswith("__") and name.endswith("__"))}


def test_the_public_face_has_sixteen_names():
    assert set(simcoll.__all__) == NAMES
    assert all(getattr(simcoll, name) is not None for name in NAMES)


def test_dir_shows_the_public_names_only_whatever_was_imported():
    importlib.import_module("simcoll.planning.sweeps.sweep")
    assert shown(simcoll) == NAMES
    assert {"__doc__", "__version__", "__file__"} <= set(dir(simcoll))


@pytest.mark.slow
def test_types_are_there_without_being_imported_and_the_emulator_is_not():
    code = (
        "import sys, simcoll; assert 'simcoll.emulator' not in sys.modules and 'simcoll.topology' "
        "not in sys.modules; "
        "print(simcoll.types.Plan.__name__, simcoll.emulate.__name__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("Plan emulate\n", "")


def test_types_share_no_name_with_the_functions():
    types = {
        name for name in simcoll.types.__all__ if isinstance(getattr(simcoll.types, name), type)
    }
    assert types >= {
        "Plan",
        "Proof",
        "Protocol",
        "Reduction",
        "Repeat",
        "Result",
        "Step",
        "Topology",
    }
    assert not types & NAMES


def packages(name):
    root = importlib.import_module(name)
    yield root
    for found in pkgutil.walk_packages(root.__path__, f"{name}."):
        if found.ispkg and found.name != "simcoll.torch":
            yield importlib.import_module(found.name)


@pytest.mark.slow
@pytest.mark.parametrize("root", ["simcoll", "realcoll"])
def test_nothing_hides_a_module(root):
    hidden = [
        f"{package.__name__}.{found.name}"
        for package in packages(root)
        for found in pkgutil.iter_modules(package.__path__)
        if not isinstance(getattr(package, found.name, sys), ModuleType)
    ]
    assert hidden == []


def test_a_module_is_imported_by_its_path():
    import simcoll.core.schedule as schedules
    import simcoll.proving as v

    assert schedules.Schedule is simcoll.Schedule
    assert callable(v.verify_program)
