"""Imports at the places that the documentation showed before modules moved.

A moved module is a stand-in of the old name, which warns once and takes every name from the module
of today. It is made only when the import of the old name would otherwise fail.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # so that type checkers see what follows, and typing need not be imported
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

__all__ = ["MODULES", "RENAMES", "MovedModules", "renamed_attributes"]

MODULES = {
    "simcoll.emulator.program_trace": "simcoll.emulator.programs.program_trace",
    "simcoll.formats.flight_record": "simcoll.formats.reports.flight_record",
    "simcoll.formats.nccl_tests": "simcoll.formats.logs.nccl_tests",
    "simcoll.formats.schedule_json": "simcoll.formats.schedules.schedule_json",
    "simcoll.formats.tuner_files": "simcoll.formats.tuners.tuner_files",
    "simcoll.planning.drawing": "simcoll.cli.drawing",
    "simcoll.planning.faults": "simcoll.planning.reliability.faults",
    "simcoll.workload.chakra": "simcoll.traces.chakra",
    "simcoll.workload.chakra_writer": "simcoll.traces.chakra_writer",
    "simcoll.workload.run": "simcoll.workload.playing",
    "simcoll.workload.traces": "simcoll.traces.rank_traces",
}
"""The module of today for each one that has moved."""
RENAMES = {
    "simcoll.planning": {"Calibration": "StepCalibration", "Memory": "StageMemory"},
    "simcoll.workload.traces": {"Step": "TraceStep"},
    "simcoll.workload.workload": {
        "Call": "CallOperation",
        "Compute": "ComputeOperation",
        "Send": "SendOperation",
    },
}
"""The name of today for each one that has another, by the module where it was."""


def renamed_attributes(module: str, home: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``module`` that takes names, old ones included, from ``home``.

    >>> renamed_attributes("simcoll.workload.traces", "simcoll.traces.rank_traces")("Step").__name__
    'TraceStep'
    """
    renames: Mapping[str, str] = RENAMES.get(module, {})

    def attribute(name: str) -> Any:
        current = renames.get(name, name)
        if module == home and current == name:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home), current)

    return attribute


class MovedModules:
    """Finds a module at the place where it was; behind all other finders in ``sys.meta_path``."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """The specification of a stand-in, for the name of a module that has moved."""
        if name not in MODULES:
            return None
        # It has the methods of a loader; importlib.abc, which has the type, is slow to import.
        loader: Any = MovedModules
        return ModuleSpec(name, loader, origin=MODULES[name])

    @staticmethod
    def create_module(_spec: ModuleSpec) -> ModuleType | None:
        """Leave making the module to the import system."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Give the stand-in the names of the module of today."""
        home = MODULES[module.__name__]
        names = vars(importlib.import_module(home))
        # Frames of the import system do not count, so 2 is the line with the import statement.
        warnings.warn(f"{module.__name__} has moved to {home}", DeprecationWarning, stacklevel=2)
        vars(module).update(
            __doc__=names["__doc__"],
            __all__=names.get("__all__", []),
            __getattr__=renamed_attributes(module.__name__, home),
        )
