"""Spreads of errors by cell, and how often intervals made from them hold for systems left out.

In each cell the quantiles of log(predicted / measured) are empirical, each system with the same
weight. They lean on those of the cell around it: with n systems they count n / (n + 8). The 90 %
interval is then widened by 1 + 1 / 2n and the 50 % interval by 1 + 1 / 4n, since a new system may
lie outside all n, and by half as much again if there are fewer than three; no interval is narrower
than the noise of measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simcoll.arrays import Floats
from simcoll.core.collective import collective_kind
from simcoll.libraries.intervals import FEW, LEVELS, METHODS, OUTERMOST, Spread, cell_of
from simcoll.libraries.library import load_library
from simcoll.libraries.question import Question
from simcoll.planning.measured.accuracy import Error
from simcoll.topology.machine import machine as machine_of

__all__ = [
    "Coverage",
    "LeftOutError",
    "coverages",
    "empirical_quantiles",
    "left_out_errors",
    "spreads",
]

LEANING = 8.0
"""Number of systems whose weight the cell around a cell has. With 4 instead of 8, 84 % of the
intervals of large sizes held for systems left out, instead of 87 %; all others are as wide."""
WIDENING90, WIDENING50 = 0.5, 0.25
"""Allowance for a new system where there is one. Twice as much makes 50 % intervals hold for 57 to
71 % of the rows of systems left out, none for 35 to 49 %."""
WIDENING_OF_FEW = 1.5
QUANTILES = (0.05, 0.25, 0.75, 0.95)
NOISE = {
    "uncalibrated": {"small": 0.027, "middle": 0.028, "large": 0.014},
    "two points": {"small": 0.016, "middle": 0.008, "large": 0.002},
    "six points": {"small": 0.016, "middle": 0.008, "large": 0.002},
}
"""Median difference of two tables. Uncalibrated: H100 and H200 of one lab, whose links are equal;
calibrated: two runs of one sweep (NVIDIA AIConfigurator's tables, 2026)."""
HALF = 1 / 2**0.5
"""Median error of one table over the median difference of two, if errors are normal."""
NINETIETH = 1.645 / 0.6745
"""Half-width that holds 90 % over the one that holds 50 %, if errors are normal."""


@dataclass(frozen=True, slots=True)
class LeftOutError:
    """An error of a prediction whose system was left out of the fit.

    Attributes
    ----------
    cell
        Its innermost cell.
    system, publisher
        The machine of a publisher, and the publisher.
    log_ratio
        log(predicted / measured).
    """

    cell: tuple[str, ...]
    system: str
    publisher: str
    log_ratio: float


def left_out_errors(errors: Iterable[Error]) -> list[LeftOutError]:
    """Errors with their cells."""
    left_out: list[LeftOutError] = []
    questions: dict[str, Question] = {}
    for error in errors:
        table = error.table
        if table.name not in questions:
            machine, library = machine_of(table.machine()), load_library(table.library)
            kind = collective_kind(table.collective)
            question = Question(kind, machine, library, table.settings())
            questions[table.name] = question
        cell = cell_of(questions[table.name], error.size_bytes, error.method)
        gpu = cell[LEVELS.index("gpu")]
        publisher = table.system.partition(",")[0]
        log_ratio = float(np.log(error.predicted_ns / error.measured_ns))
        left_out.append(LeftOutError(cell, f"{table.system} ({gpu})", publisher, log_ratio))
    return left_out


def spreads(errors: Sequence[LeftOutError]) -> dict[tuple[str, ...], Spread]:
    """The spread of every cell, outermost first."""
    raw: dict[tuple[str, ...], Floats] = {}
    spread_of_cell: dict[tuple[str, ...], Spread] = {}
    for depth in range(OUTERMOST, len(LEVELS) + 1):
        members: dict[tuple[str, ...], list[LeftOutError]] = {}
        for error in errors:
            members.setdefault(error.cell[:depth], []).append(error)
        for cell, group in sorted(members.items()):
            quantiles, systems = _empirical(group)
            if depth > OUTERMOST:
                around = raw[cell[:-1]]
                quantiles = (systems * quantiles + LEANING * around) / (systems + LEANING)
            raw[cell] = quantiles
            spread_of_cell[cell] = _with_allowance(cell, quantiles, systems)
    return spread_of_cell


def _empirical(group: Sequence[LeftOutError]) -> tuple[Floats, int]:
    """Quantiles of a cell, each system with the same weight, and the number of systems."""
    ratios = [error.log_ratio for error in group]
    return empirical_quantiles(ratios, [error.system for error in group])


def empirical_quantiles(
    ratios: Sequence[float], owners: Sequence[str], shares: Sequence[float] = QUANTILES
) -> tuple[Floats, int]:
    """Quantiles of numbers (default: 5, 25, 75 and 95 %), each owner with the same weight, and the
    number of owners.

    >>> empirical_quantiles([1.0, 2.0, 3.0], ["a", "b", "b"])
    (array([1. , 1. , 2.5, 3. ]), 2)
    """
    values = np.array(ratios)
    _, owner, counts = np.unique(owners, return_inverse=True, return_counts=True)
    order = np.argsort(values, kind="stable")
    weights = (1 / counts[owner])[order]
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    return np.interp(shares, middles, values[order]), len(counts)


def _with_allowance(cell: tuple[str, ...], quantiles: Floats, systems: int) -> Spread:
    """Quantiles with the allowance for a new system, and at least the noise."""
    raw = Spread(cell, systems, *quantiles.tolist())
    center = (raw.low50 + raw.high50) / 2
    allowance = (WIDENING_OF_FEW if systems < FEW else 1.0) / systems
    wider50, wider90 = 1 + WIDENING50 * allowance, 1 + WIDENING90 * allowance
    noise50 = NOISE[cell[0]][cell[1]] * HALF
    noise90 = noise50 * NINETIETH
    return Spread(
        cell,
        systems,
        low90=center - max((center - raw.low90) * wider90, noise90),
        low50=center - max((center - raw.low50) * wider50, noise50),
        high50=center + max((raw.high50 - center) * wider50, noise50),
        high90=center + max((raw.high90 - center) * wider90, noise90),
    )


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often intervals hold in a cell whose publishers are left out one by one.

    Attributes
    ----------
    cell
        Calibration, band and fabric.
    systems, rows
        Number of systems and of rows.
    within50, within90
        Share of rows inside, each system with the same weight.
    width90
        Median width of the 90 % interval, its upper over its lower end.
    best_width90
        Width of the interval that holds 90 % of the cell's own errors.
    chance
        Probability of a coverage of systems as far from 90 % as this one, if 90 % were right.
    """

    cell: tuple[str, ...]
    systems: int
    rows: int
    within50: float
    within90: float
    width90: float
    best_width90: float
    chance: float


def coverages(errors: Sequence[LeftOutError]) -> Iterator[Coverage]:
    """The coverage of each calibration and band, all together and by fabric."""
    pairs = list(_judgements(errors))
    place = LEVELS.index("fabric")
    groups: dict[tuple[str, ...], list[tuple[LeftOutError, Spread]]] = {}
    for error, spread in pairs:
        cell = error.cell
        one = (cell[0], cell[1], f"{cell[2]}, {cell[place]}, {cell[3]}")
        for key in ((*cell[:OUTERMOST], "all"), one):
            groups.setdefault(key, []).append((error, spread))
    for key in sorted(groups, key=lambda key: (METHODS.index(key[0]), -ord(key[1][0]), key[2])):
        yield _coverage(key, groups[key])


def _judgements(errors: Sequence[LeftOutError]) -> Iterator[tuple[LeftOutError, Spread]]:
    """Each error with the spread that the other publishers' errors give its cell."""
    for publisher in dict.fromkeys(error.publisher for error in errors):
        of_others = spreads([error for error in errors if error.publisher != publisher])
        for error in errors:
            if error.publisher == publisher:
                depths = range(len(LEVELS), OUTERMOST - 1, -1)
                cells = (error.cell[:depth] for depth in depths)
                yield error, next(of_others[cell] for cell in cells if cell in of_others)


def _coverage(cell: tuple[str, ...], group: Sequence[tuple[LeftOutError, Spread]]) -> Coverage:
    from scipy.stats import binomtest

    by_system: dict[str, list[tuple[bool, bool]]] = {}
    for error, spread in group:
        ratio = error.log_ratio
        hits = (
            spread.low50 <= ratio <= spread.high50,
            spread.low90 <= ratio <= spread.high90,
        )
        by_system.setdefault(error.system, []).append(hits)
    shares = np.array([np.mean(rows, axis=0) for rows in by_system.values()])
    systems = len(shares)
    within50, within90 = shares.mean(axis=0).tolist()
    best, _ = _empirical([error for error, _ in group])
    return Coverage(
        cell,
        systems,
        len(group),
        within50,
        within90,
        float(np.exp(np.median([spread.high90 - spread.low90 for _, spread in group]))),
        float(np.exp(best[3] - best[0])),
        float(binomtest(round(within90 * systems), systems, 0.9).pvalue),
    )
