"""Intervals of predicted steps: how far predictions of published steps of the same class were off.

The file ``measurements/step_intervals.csv`` has, for each class, quantiles of log(predicted /
measured) over published steps whose table was left out of every fit. Classes are nested:
calibration and kind of model, then sharding, family of GPU, type of products, length of the
sequence, and overlap of tensor parallelism. A design takes the innermost class that has any errors;
:mod:`simcoll.planning.measured.step_spreads` says how the quantiles are made.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from simcoll.files.paths import data_folder
from simcoll.training.defaults import LONG_SEQUENCE
from simcoll.training.gpu import DTYPE_BYTES
from simcoll.training.step_calibration import UNCALIBRATED

if TYPE_CHECKING:
    from simcoll.training.design import Design
    from simcoll.training.gpu import KernelRate

__all__ = [
    "CLASS_LEVELS",
    "OUTERMOST",
    "STEP_NOISE",
    "StepInterval",
    "bias_sentence",
    "class_interval",
    "class_of",
    "step_interval",
]

CLASS_LEVELS = ("calibration", "model", "sharding", "gpu", "products", "sequence", "overlap")
"""What a class is described by, from the outermost to the innermost."""
OUTERMOST = 2
"""Number of levels of the largest classes."""
MIXTURE = "mixture of experts"
"""The kind of models with experts, in a class."""
QUANTILES = ("low90", "low50", "high50", "high90")
FAMILIES = {"a100": "A100", "h100": "Hopper", "h200": "Hopper", "b200": "Blackwell"}
FAMILIES |= {"b300": "Blackwell", "gb200": "Blackwell", "gb300": "Blackwell"}
"""GPUs whose published steps count as those of one class."""
STEP_NOISE = 0.02
"""Median difference of two measurements of one step: the same model on as many H100 in NeMo 24.07,
NeMo 24.12 and DGX Cloud's recipes, 0.2 to 3.2 %."""


@dataclass(frozen=True, slots=True)
class StepInterval:
    """How far measured steps of a class were from their predictions.

    Attributes
    ----------
    cell
        The class: the values of the first :data:`CLASS_LEVELS`.
    series
        Number of series of published steps in it: one model, GPU and data type of a table.
    within50, within90
        Factors of the predicted time between which half, and nine of ten, measured times are.
    difference
        The relative difference of two predictions of one class within which nine of ten errors of
        differences are.
    reach
        Factor by which the step could be shorter if its GPU reached the highest share that kernels
        reached on any, where its rates are not measured; 1 otherwise. It is part of
        ``within50`` and ``within90``.
    """

    cell: tuple[str, ...]
    series: int
    within50: tuple[float, float]
    within90: tuple[float, float]
    difference: float
    reach: float = 1.0

    @property
    def typical(self) -> float:
        """Factor of the predicted time in the middle of what half of measured steps took; rates
        that nobody measured count as predicted.
        """
        low, high = self.within50
        return math.sqrt(low / self.reach * high)

    def __str__(self) -> str:
        return self._errors(f" ({', '.join(self.cell)})")

    def without_class(self) -> str:
        """The errors, without the class of designs that they are of."""
        return self._errors("")

    def _errors(self, of_class: str) -> str:
        series = "1 series" if self.series == 1 else f"{self.series} series"
        reach = "; from rates that nobody measured" if self.reach < 1 else ""
        return f"left-out errors on {series} of published steps{of_class}{reach}"

    def to_row(self) -> dict[str, Any]:
        """The interval as part of a plan's results."""
        return {
            "50": list(self.within50),
            "90": list(self.within90),
            "typical": self.typical,
            "difference": self.difference,
            "class": list(self.cell),
            "of": str(self),
        }


def bias_sentence(within50: Sequence[float]) -> str:
    """A sentence on a class whose predictions are mostly off to one side; empty otherwise.

    Parameters
    ----------
    within50
        Factors of the predicted time between which half of the measured times are.

    Examples
    --------
    >>> bias_sentence((1.08, 1.3))
    'half of such steps took 8 to 30 % longer than predicted'
    >>> bias_sentence((0.9, 1.3))
    ''
    """
    low, high = within50
    if low > 1 + STEP_NOISE:
        amounts, side = (low - 1, high - 1), "longer"
    elif high < 1 - STEP_NOISE:
        amounts, side = (1 - high, 1 - low), "less"
    else:
        return ""
    low_text, high_text = (f"{100 * amount:.0f}" for amount in amounts)
    return f"half of such steps took {low_text} to {high_text} % {side} than predicted"


def class_of(design: Design) -> tuple[str, ...]:
    """The innermost class of a design.

    Examples
    --------
    >>> from simcoll.training.design import design_from
    >>> made = design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 16},
    ...     "topology": {"name": "dgx-h100"}, "parallel": {"tp": 2},
    ... })
    >>> class_of(made)
    ('uncalibrated', 'dense', 'no FSDP', 'Hopper', '16 bits', 'short', 'no overlap of tp')
    """
    parallel = design.parallel
    plain = design.calibration.hash == UNCALIBRATED.hash
    bits = round(8 * DTYPE_BYTES[design.dtype])
    overlaps = parallel.overlap_tp and parallel.tp > 1
    return (
        "uncalibrated" if plain else "calibrated",
        MIXTURE if design.model.experts else "dense",
        "FSDP" if parallel.shard == "parameters" else "no FSDP",
        FAMILIES.get(design.gpu.name.partition("-")[0], design.gpu.name),
        f"{max(4, min(16, bits))} bits",
        "long" if design.sequence >= LONG_SEQUENCE else "short",
        "overlap of tp" if overlaps else "no overlap of tp",
    )


def step_interval(design: Design, rates: Sequence[KernelRate]) -> StepInterval:
    """The interval of a design: of the innermost class that has any published steps."""
    interval = class_interval(class_of(design))
    reach = _reach(design, rates)
    low50, high50 = interval.within50
    low90, high90 = interval.within90
    return replace(
        interval,
        within50=(low50 * reach, high50),
        within90=(low90 * reach, high90),
        reach=reach,
    )


def class_interval(cell: tuple[str, ...]) -> StepInterval:
    """The interval of a class, or of the innermost one around it with published steps, as if all
    rates were measured.

    Examples
    --------
    >>> class_interval(("uncalibrated", "dense", "FSDP", "a GPU of tomorrow")).cell
    ('uncalibrated', 'dense', 'FSDP')
    """
    intervals = _intervals()
    depths = range(len(cell), OUTERMOST - 1, -1)
    return next(intervals[cell[:depth]] for depth in depths if cell[:depth] in intervals)


def _reach(design: Design, rates: Sequence[KernelRate]) -> float:
    """How much shorter the products could be at the highest plausible rates."""
    products = {f"gemm.{design.dtype}", "sustained.share"}
    return math.prod(rate.value / rate.high for rate in rates if rate.place in products)


@cache
def _intervals() -> dict[tuple[str, ...], StepInterval]:
    path = data_folder("measurements") / "step_intervals.csv"
    intervals = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            cell = tuple(row[name] for name in CLASS_LEVELS if row[name])
            factors = {name: math.exp(-float(row[name])) for name in QUANTILES}
            intervals[cell] = StepInterval(
                cell,
                int(row["series"]),
                (factors["high50"], factors["low50"]),
                (factors["high90"], factors["low90"]),
                math.expm1(float(row["difference"])),
            )
    return intervals
