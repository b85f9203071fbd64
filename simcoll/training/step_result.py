"""Results of training steps: time, breakdown, memory, utilisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcoll.units import format_memory, format_time
from simcoll.workload.playing import WorkloadResult

if TYPE_CHECKING:
    from simcoll.training.gpu import KernelRate
    from simcoll.training.memory import StageMemory
    from simcoll.training.step_intervals import StepInterval

__all__ = ["StepResult"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepResult(WorkloadResult):
    """The time of a step and its parts: those of its workload, and what the design adds.

    Attributes
    ----------
    design_hash, calibration
        Hash of the design, and the state of the calibration.
    tokens
        Tokens of the step.
    bubble_fs
        Pipeline bubble of the busiest class: its idle time when no axis moves bytes.
    slower_fs
        Further computation of ranks that are slow or have a slower GPU.
    memory, memory_limit
        Memory of one GPU of each stage, and the limit, in bytes.
    model_flops, hardware_flops, peak_flops
        FLOPs of matrix products in the step on all GPUs: needed by the model, and performed with
        recomputation; and the GPUs' peak per second.
    flops_formula
        The formula of ``model_flops``, in words.
    notes
        Caveats on the result.
    lacks
        What the design lacks of a well-run job, with its cost.
    gpu, rates
        Name of the GPU, and the rates of its kernels with their evidence.
    interval
        How far measured steps of this class were from their predictions.
    """

    design_hash: str
    calibration: str
    tokens: int
    bubble_fs: int
    slower_fs: int
    memory: tuple[StageMemory, ...]
    memory_limit: int
    model_flops: float
    hardware_flops: float
    peak_flops: float
    flops_formula: str
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    gpu: str = ""
    rates: tuple[KernelRate, ...] = ()
    interval: StepInterval | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second over all GPUs."""
        return self.tokens / self.seconds

    def facts(self) -> list[tuple[str, object]]:
        """Name and value of what a reader sees."""
        largest = max(stage_memory.total for stage_memory in self.memory)
        room = f"{format_memory(largest)} of {format_memory(self.memory_limit)} on the fullest GPU"
        return [
            *WorkloadResult.facts(self),
            ("bubble", format_time(self.bubble_fs)),
            ("memory", room),
            ("use", f"MFU {self.mfu:.1%}, {self.tokens_per_second:,.0f} tokens/s"),
            ("calibration", self.calibration),
            *([("measured, 90 %", self._span(self.interval.within90))] if self.interval else []),
        ]

    def _span(self, factors: tuple[float, float]) -> str:
        """The times between two factors of the predicted one."""
        low, high = (format_time(round(self.time_fs * factor)) for factor in factors)
        return f"{low} to {high}"

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
        return max(stage_memory.total for stage_memory in self.memory) <= self.memory_limit
