"""Questions about clusters: sweeps, scenarios, training steps, reports. Uses the emulator; nothing below uses it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcoll.emulator.programs import (
        Call,
        Compute,
        Operation,
        Program,
        ProgramObserver,
        ProgramResult,
        Send,
    )
    from simcoll.workload.calibration import Calibration
    from simcoll.workload.design import Design, design_from, load_design
    from simcoll.workload.gpu import Gpu, load_gpu
    from simcoll.workload.memory import Memory, memory_by_stage
    from simcoll.workload.mesh import Mesh
    from simcoll.workload.model import Model
    from simcoll.workload.parallel import Parallel
    from simcoll.workload.result import StepResult
    from simcoll.workload.workload import Workload, read_workload, write_workload

__all__ = [
    "Calibration",
    "Call",
    "Compute",
    "Design",
    "Gpu",
    "Memory",
    "Mesh",
    "Model",
    "Operation",
    "Parallel",
    "Program",
    "ProgramObserver",
    "ProgramResult",
    "Send",
    "StepResult",
    "Workload",
    "design_from",
    "load_design",
    "load_gpu",
    "memory_by_stage",
    "read_workload",
    "write_workload",
]

_HOMES = {
    "calibration": ("Calibration",),
    "design": ("Design", "design_from", "load_design"),
    "gpu": ("Gpu", "load_gpu"),
    "memory": ("Memory", "memory_by_stage"),
    "mesh": ("Mesh",),
    "model": ("Model",),
    "parallel": ("Parallel",),
    "result": ("StepResult",),
    "workload": ("Workload", "read_workload", "write_workload"),
}
_MODULES = {name: f"simcoll.workload.{module}" for module, names in _HOMES.items() for name in names}
_MODULES |= dict.fromkeys(
    ("Call", "Compute", "Operation", "Program", "ProgramObserver", "ProgramResult", "Send"), "simcoll.emulator.programs"
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'simcoll.planning' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
