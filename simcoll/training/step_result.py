"""Results of training steps: time, breakdown, memory, utilisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simcoll.training.memory import Memory
    from simcoll.workload.accounting import AxisTime

__all__ = ["StepResult"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The time of a step and its parts.

    Attributes
    ----------
    title, design_hash, calibration
        Title and hash of the design, and the state of the calibration.
    tier
        1: collectives timed once and the pipeline played; 2: everything emulated together.
    time_fs
        Time of the step.
    tokens, nranks
        Tokens of the step, and number of GPUs.
    compute_fs, bubble_fs
        Computation of the busiest class, and its pipeline bubble: its idle time when no axis moves bytes.
    axes
        Communication by axis.
    memory, memory_limit
        Memory of one GPU of each stage, and the limit, in bytes.
    model_flops, hardware_flops, peak_flops
        FLOPs of matrix products in the step on all GPUs: needed by the model, and performed with recomputation; and the GPUs' peak per
        second.
    flops_formula
        The formula of ``model_flops``, in words.
    bound_fs, limit
        Lower bound of the step time, and what sets it.
    link_use
        Busiest links, with the share of their capacity that the step uses.
    classes
        Classes of messages played; 0 in tier 1.
    path
        Engine.
    trace_hash
        Hash of all times.
    notes
        Caveats on the result.
    """

    title: str
    design_hash: str
    calibration: str
    tier: int
    time_fs: int
    tokens: int
    nranks: int
    compute_fs: int
    bubble_fs: int
    axes: Mapping[str, AxisTime]
    memory: tuple[Memory, ...]
    memory_limit: int
    model_flops: float
    hardware_flops: float
    peak_flops: float
    flops_formula: str
    bound_fs: int
    limit: str
    link_use: tuple[tuple[str, float], ...] = ()
    classes: int = 0
    path: str = ""
    trace_hash: str = ""
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The step in seconds."""
        return self.time_fs / 1e15

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second over all GPUs."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: FLOPs needed by the model over the GPUs' peak."""
        return self.model_flops / self.seconds / self.peak_flops

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: FLOPs performed, with recomputation, over the GPUs' peak."""
        return self.hardware_flops / self.seconds / self.peak_flops

    @property
    def fits(self) -> bool:
        """Whether every stage has enough memory."""
        return max(each.total for each in self.memory) <= self.memory_limit
