"""Time one training step: tier 2 emulates everything together, tier 1 times collectives once each
and plays the pipeline.

The exposed time of an axis is found by playing again without its bytes: an operation without bytes
takes no time and only orders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.memory_limits import check_room
from simcoll.training.evidence import rates_of
from simcoll.training.memory import memory_by_stage
from simcoll.training.mixed_gpus import mixed_notes, rank_factors
from simcoll.training.published_mfu import far_below
from simcoll.training.script_clock import play_script, slowed_rows
from simcoll.training.shortfalls import shortfalls
from simcoll.training.step_calibration import UNCALIBRATED
from simcoll.training.step_intervals import step_interval
from simcoll.training.step_result import StepResult
from simcoll.training.step_workload import FLOPS_FORMULA, StepParts
from simcoll.workload.accounting import (
    CallTime,
    OperationCounts,
    axes_of,
    breakdown,
    call_times,
    compute_time_fs,
    without_axes,
)
from simcoll.workload.class_clock import Clock, operation_fs
from simcoll.workload.playing import WorkloadRun, alone_on, play_workload, slow_down
from simcoll.workload.timing import IsolatedTimes, WorkloadTimes
from simcoll.workload.workload import Operation, Workload, map_operations

if TYPE_CHECKING:
    from simcoll.topology import Topology
    from simcoll.training.design import Design

__all__ = ["TrainingStep", "step"]

NEARLY_FULL = 0.85
"""Share of memory above which allocators start to defragment, so that steps take longer than
predicted.
"""
FEW_TOGETHER = 1 << 16
"""Up to this number of GPUs the classes of a step take less than 2 GB."""
BYTES_TOGETHER = 96 << 10
"""Estimate of the memory of a GPU among more: a step of 131,072 in tier 2 was stopped at 10.7 GB,
with the classes between its waits loaded.
"""


def step(design: Design, *, tier: int = 2, exposed: bool = True) -> StepResult:
    """Time one training step.

    Parameters
    ----------
    tier
        1: collectives are timed once each, with all groups of the axis, and the pipeline is played
        with these times. 2: everything is emulated together, so that operations that share links
        slow each other down.
    exposed
        Whether to find the exposed time of each axis, by playing again without it, and link
        utilisation. Without them, the bound covers computation only.

    Raises
    ------
    ConfigError
        For an unknown tier.
    """
    return TrainingStep(design).result(tier=tier, exposed=exposed)


class TrainingStep:
    """A design with its workload and cached times.

    Attributes
    ----------
    design, parts, alone
        The design, its slots with their operations, and the times of isolated collectives.
    """

    def __init__(self, design: Design) -> None:
        self.design = design
        self.parts = StepParts(design)
        self.alone: IsolatedTimes = alone_on(
            design.topology, uniform=not design.cluster.degraded, calibration=design.network
        )
        # Slots that differ in nothing have equal operations, and some others too: a step of three
        # hundred slots has thirty.
        operations: dict[Operation, int] = {}
        equal = self.parts.equal_slots
        numbers = [
            operations.setdefault(self.parts.operation(slot), len(operations))
            for slot in equal.slots
        ]
        self._operations = tuple(operations)
        self._operation_of_kind = numbers
        self._operation_of_slot = [numbers[kind] for kind in equal.number_of_slot]

    @cached_property
    def workload(self) -> Workload:
        """The workload of the step."""
        return self._workload()

    def _workload(self, without: Collection[str] = ()) -> Workload:
        """The workload; ``without``: axes whose bytes are removed."""
        workload, overlap = self._calm_workload, self._overlap
        if overlap:
            slowed_fs = slowed_rows(self.parts.script, self._takes(without), overlap)
            workload = self.parts.workload(slowed_fs)
        if not without:
            return workload
        return workload.with_operations(
            map_operations(workload.operations, lambda operation: without_axes(operation, without))
        )

    @cached_property
    def _calm_workload(self) -> Workload:
        """The workload with passes that no collective slows down."""
        return self.parts.workload()

    @cached_property
    def _ground(self) -> Workload:
        """Classes and groups of the workload, without its operations."""
        return self.parts.ground()

    @cached_property
    def _operation_counts(self) -> OperationCounts:
        rows = [0] * len(self._operations)
        for number, count in zip(self._operation_of_kind, self.parts.equal_slots.rows, strict=True):
            rows[number] += count
        return tuple(zip(self._operations, rows, strict=True))

    @cached_property
    def _times(self) -> WorkloadTimes:
        return WorkloadTimes(self._ground, self.alone)

    @property
    def calls(self) -> tuple[CallTime, ...]:
        """Its collectives alone, the longest in all first."""
        return tuple(call_times(self._operation_counts, self._times))

    def clock(self, *, tier: int, spans: bool = True) -> WorkloadRun:
        """Play the step, with its spans."""
        # Nobody needs the trace hash of a run for its spans.
        return play_workload(
            self.workload, self.alone, tier=tier, slow=self._slow, spans=spans, hashed=not spans
        )

    def time_fs(self, *, tier: int, without: Collection[str] = ()) -> int:
        """The time of the step; ``without``: axes whose bytes are removed."""
        if tier != 1:
            workload = self._workload(without) if without else self.workload
            return play_workload(
                workload, self.alone, slow=self._slow, spans=False, hashed=False
            ).clock.time_fs
        takes = self._takes(without)
        return play_script(self.parts.script, takes, self._overlap)

    def _takes(self, without: Collection[str] = ()) -> list[int]:
        """The time of each slot."""
        operations = (
            slow_down(self._ground, without_axes(operation, without), self._slow)
            for operation in self._operations
        )
        times_fs = [operation_fs(operation, self._times) for operation in operations]
        return [times_fs[number] for number in self._operation_of_slot]

    @cached_property
    def _slow(self) -> dict[int, float]:
        """How many times longer ranks compute that are slow or have another GPU."""
        return rank_factors(self.design)

    @cached_property
    def _overlap(self) -> Fraction:
        """The slow-down of passes by overlapping collectives."""
        return Fraction(str(self.design.calibration.overlap))

    def _play(self, tier: int) -> WorkloadRun:
        if tier != 1:
            self._check_room_together()
            return self.clock(tier=tier, spans=False)
        takes = self._takes()
        takes_hash = hashlib.sha256(repr(takes).encode()).hexdigest()[:16]
        return WorkloadRun(
            Clock(play_script(self.parts.script, takes, self._overlap), ()), trace_hash=takes_hash
        )

    def _check_room_together(self) -> None:
        """Refuse to emulate more GPUs together than memory holds, before any work on it."""
        gpus = self.design.mesh.nranks
        if gpus > FEW_TOGETHER:
            check_room(
                gpus * BYTES_TOGETHER,
                f"emulating the collectives of {gpus:,} GPUs together (tier 2)",
                "tier 1 times each of them once",
            )

    def result(self, *, tier: int = 2, exposed: bool = True) -> StepResult:
        """The result of the step."""
        design = self.design
        played = self._play(tier)
        time_fs = played.clock.time_fs
        axes = axes_of(self._operation_counts)
        free = self.time_fs(tier=1, without=axes)
        parts = breakdown(
            self._operation_counts,
            self._times,
            exposed_fs={
                axis: time_fs - self.time_fs(tier=tier, without=(axis,)) if exposed else 0
                for axis in axes
            },
            free_fs=free,
            time_fs=time_fs if exposed else None,
            order="the pipeline",
        )
        slowed = tuple(
            (slow_down(self._ground, operation, self._slow), count)
            for operation, count in self._operation_counts
        )
        slowed_fs = compute_time_fs(slowed, self._ground) if self._slow else parts["compute_fs"]
        bubble_fs = max(0, free - slowed_fs)
        exposed_fs = {name: axis.exposed_fs for name, axis in parts["axes"].items()}
        model_flops, hardware_flops = self.parts.costs.flops()
        mfu = model_flops / (time_fs / 10**15) / design.peak_flops
        rates = rates_of(design)
        return StepResult(
            title=design.title,
            nranks=design.mesh.nranks,
            topology=design.topology.name,
            tier=tier,
            time_fs=time_fs,
            clock=played.clock,
            path=played.path,
            trace_hash=played.trace_hash,
            classes=played.classes,
            design_hash=design.hash,
            calibration=design.calibrations,
            tokens=design.tokens,
            bubble_fs=bubble_fs,
            slower_fs=slowed_fs - parts["compute_fs"],
            memory=memory_by_stage(design),
            memory_limit=design.memory_limit,
            model_flops=model_flops,
            hardware_flops=hardware_flops,
            peak_flops=design.peak_flops,
            flops_formula=FLOPS_FORMULA,
            notes=_notes(design, tier),
            gpu=design.gpu.name,
            rates=rates,
            interval=step_interval(design, rates),
            lacks=(*shortfalls(design, exposed_fs, bubble_fs), *far_below(design, mfu)),
            **parts,
        )


def _uneven_nodes(topology: Topology) -> Iterator[str]:
    """A caveat on nodes with unequal numbers of ranks, which no schedule of the library covers."""
    node = topology.groups.get("box")
    sizes = [] if node is None else sorted(set(np.bincount(node).tolist()))
    if len(sizes) > 1:
        yield (
            f"nodes hold {sizes[0]} to {sizes[-1]} ranks: collectives between nodes take the "
            "library's time, but load the links of a single ring"
        )


def _notes(design: Design, tier: int) -> tuple[str, ...]:
    """Caveats on the result."""
    notes = []
    memory = memory_by_stage(design)
    worst = max(range(len(memory)), key=lambda stage: memory[stage].total)
    share = memory[worst].total / design.memory_limit
    if share > 1:
        notes.append(
            f"does not fit: stage {worst} needs {memory[worst].total / 2**30:.1f} GiB of "
            f"{design.memory_limit / 2**30:.1f}"
        )
    elif share > NEARLY_FULL:
        notes.append(
            f"stage {worst} fills {100 * share:.0f} % of its memory: allocators slow such steps "
            "down, which is not modelled"
        )
    if design.calibration.hash == UNCALIBRATED.hash:
        notes.append(
            "uncalibrated: assumes fused kernels; for eager PyTorch and Megatron, see simcoll list "
            "calibrations"
        )
    theirs = design.topology.traits.get("gpu", "").lower().replace(" ", "-")
    if theirs and not design.gpu.name.startswith(theirs):
        notes.append(
            f"computation is that of {design.gpu.name}, and topology {design.topology.name} is one "
            f"of {theirs}"
        )
    if not design.gpu.name.startswith(design.calibration.gpu):
        notes.append(f"the calibration is of {design.calibration.gpu}, not of {design.gpu.name}")
    if design.measured is not None:
        notes.append(design.measured.note())
    notes += _uneven_nodes(design.topology)
    notes += mixed_notes(design)
    if (design.slow or design.other_gpus) and tier == 1:
        notes.append("tier 1 slows all ranks of a stage down as much as the slowest of them")
    if design.calibration.overlap == 0 and design.parallel.overlap_dp:
        notes.append(
            "computation is as fast beside collectives as without; measured is 19 to 40 % slower "
            "on H100 and A100 (arXiv 2507.03114)"
        )
    return tuple(notes)
