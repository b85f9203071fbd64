"""Intervals of predictions: how far predictions of systems left out of the fit were off.

The file ``measurements/intervals.csv`` has, for each *cell*, quantiles of log(predicted / measured)
over published tables whose systems were left out of the fit. Cells are nested: calibration and
band of sizes, then library, one node or several, fabric, launcher, class of GPU, ranks and
collective. A prediction takes the innermost cell that has any errors;
:mod:`simcoll.planning.measured.spreads` says how the quantiles of a cell with few systems lean on
those of the cell around it.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from simcoll.files.paths import data_folder
from simcoll.libraries.symmetric import is_symmetric

if TYPE_CHECKING:
    from simcoll.libraries.question import Question

__all__ = ["BANDS", "LEVELS", "METHODS", "Spread", "band_of", "cell_of", "spread_of"]

BANDS = ("small", "middle", "large")
"""Below 64 KiB, up to 64 MiB, and above."""
METHODS = ("uncalibrated", "two points", "six points")
"""Without a calibration; with one of few rows; with one that also corrects by size."""
LEVELS = (
    "calibration",
    "band",
    "library",
    "nodes",
    "fabric",
    "launcher",
    "gpu",
    "ranks",
    "collective",
)
"""What a cell is described by, from the outermost to the innermost."""
OUTERMOST = 2
"""Number of levels of the largest cells."""
FEW = 3
"""Systems from which on a cell counts as known."""


def band_of(size_bytes: int) -> str:
    """Name the band of a size.

    >>> band_of(65535), band_of(65536), band_of(2**26)
    ('small', 'middle', 'large')
    """
    return BANDS[(size_bytes >= 2**16) + (size_bytes >= 2**26)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles of log(predicted / measured) in a cell.

    Attributes
    ----------
    cell
        The values of the first :data:`LEVELS`.
    systems
        Number of systems with errors in the cell; with fewer than :data:`FEW` it is widened.
    low90, low50, high50, high90
        The quantiles that enclose 90 % and 50 %.
    """

    cell: tuple[str, ...]
    systems: int
    low90: float
    low50: float
    high50: float
    high90: float

    def ends_fs(self, time_fs: int, share: float) -> tuple[int, int]:
        """The interval of the measured time, 50 % or 90 %, for a predicted time."""
        low, high = (self.low50, self.high50) if share < 0.7 else (self.low90, self.high90)
        return round(time_fs * math.exp(-high)), round(time_fs * math.exp(-low))

    def __str__(self) -> str:
        few = ", widened because they are few" if self.systems < FEW else ""
        systems = "1 system" if self.systems == 1 else f"{self.systems} systems"
        return f"left-out errors on {systems}{few}: {', '.join(self.cell)}"


def without_class(errors: str) -> str:
    """The text of a spread without the class of its errors.

    >>> without_class("left-out errors on 6 systems: uncalibrated, large, nccl")
    'left-out errors on 6 systems'
    """
    return errors.partition(": ")[0]


def cell_of(question: Question, size_bytes: int, method: str) -> tuple[str, ...]:
    """The innermost cell of a prediction."""
    machine, fabric, ranks = question.machine, question.fabric, question.nranks
    return (
        method,
        band_of(size_bytes),
        question.library.name,
        "several nodes" if fabric else "one node",
        fabric.partition(".")[2].partition("-")[0] or machine.inside,
        question.environment.launcher,
        question.gpu_class.partition(".")[2],
        "2 ranks" if ranks == 2 else "3 or 4 ranks" if ranks <= 4 else "more ranks",
        question.collective,
    )


def method_of(question: Question) -> str:
    """Which of :data:`METHODS` describes the calibration of a question."""
    if question.calibration is None:
        return METHODS[0]
    return METHODS[2] if question.calibration.corrections else METHODS[1]


@cache
def _spreads() -> dict[tuple[str, ...], Spread]:
    path = data_folder("measurements") / "intervals.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        spreads = {}
        for row in csv.DictReader(stream):
            cell = tuple(row[name] for name in LEVELS if row[name])
            quantiles = (float(row[name]) for name in ("low90", "low50", "high50", "high90"))
            spreads[cell] = Spread(cell, int(row["systems"]), *quantiles)
        return spreads


def spread_of(question: Question, size_bytes: int) -> Spread:
    """The spread of the innermost cell that has any errors.

    No published table shows links that variables choose, kernels for registered buffers, or
    reduction in the network, so that their cell is that of the library.
    """
    cell = cell_of(question, size_bytes, method_of(question))
    collnet = question.environment.collnet
    is_measured = not (question.is_diverted or collnet or is_symmetric(question))
    return _innermost(cell if is_measured else cell[: OUTERMOST + 1])


@lru_cache(maxsize=4096)
def _innermost(cell: tuple[str, ...]) -> Spread:
    spreads = _spreads()
    depths = range(len(cell), OUTERMOST - 1, -1)
    return next(spreads[cell[:depth]] for depth in depths if cell[:depth] in spreads)
