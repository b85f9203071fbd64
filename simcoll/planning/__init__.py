"""Questions about clusters: sweeps and scenarios, designs, faults, measurements, tuning. Uses the
emulator; nothing below uses it.

Each folder answers one kind of question and says in its first lines what may not live there;
``names`` lists what can be named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.lazy import lazy_attributes

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
    from simcoll.planning.sweeps.perf_call import perf
    from simcoll.training.design import Design, design_from, load_design
    from simcoll.training.gpu import Gpu, load_gpu
    from simcoll.training.memory import StageMemory, memory_by_stage
    from simcoll.training.parallel import Parallel
    from simcoll.training.step_calibration import StepCalibration
    from simcoll.training.step_result import StepResult
    from simcoll.training.transformer import Model
    from simcoll.workload.mesh import Mesh
    from simcoll.workload.playing import WorkloadResult, run_workload
    from simcoll.workload.workload import Workload, read_workload, write_workload

__all__ = [
    "Call",
    "Compute",
    "Design",
    "Gpu",
    "Mesh",
    "Model",
    "Operation",
    "Parallel",
    "Program",
    "ProgramObserver",
    "ProgramResult",
    "Send",
    "StageMemory",
    "StepCalibration",
    "StepResult",
    "Workload",
    "WorkloadResult",
    "design_from",
    "load_design",
    "load_gpu",
    "memory_by_stage",
    "perf",
    "read_workload",
    "run_workload",
    "write_workload",
]

__getattr__, __dir__ = lazy_attributes(
    "simcoll.planning",
    {
        "simcoll.emulator.programs": [
            "Call",
            "Compute",
            "Operation",
            "Program",
            "ProgramObserver",
            "ProgramResult",
            "Send",
        ],
        "simcoll.planning.sweeps.perf_call": ["perf"],
        "simcoll.training.step_calibration": ["StepCalibration"],
        "simcoll.training.design": ["Design", "design_from", "load_design"],
        "simcoll.training.gpu": ["Gpu", "load_gpu"],
        "simcoll.training.memory": ["StageMemory", "memory_by_stage"],
        "simcoll.workload.mesh": ["Mesh"],
        "simcoll.training.transformer": ["Model"],
        "simcoll.training.parallel": ["Parallel"],
        "simcoll.training.step_result": ["StepResult"],
        "simcoll.workload.playing": ["WorkloadResult", "run_workload"],
        "simcoll.workload.workload": ["Workload", "read_workload", "write_workload"],
    },
)
