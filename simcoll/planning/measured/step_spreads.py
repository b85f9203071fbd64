"""Spreads of the errors of published steps by class, and how often intervals made from them hold.

In each class the quantiles of log(predicted / measured) are empirical, each series with the same
weight: a series is one model, GPU and data type of a table. They lean on those of the class around
it: with n series they count n / (n + 8). With t tables the 90 % interval is then widened by
1 + 1 / 2t and the 50 % interval by 1 + 1 / 4t, since another table may lie outside all t, and by
half as much again if there are fewer than three; none is narrower than the noise of measurements.
The 50 % interval of mixtures of experts is widened by 1 + 1 / 2t.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from simcoll.arrays import Array, Floats, Ints
from simcoll.files.paths import data_folder
from simcoll.planning.measured.spreads import (
    HALF,
    LEANING,
    NINETIETH,
    WIDENING50,
    WIDENING90,
    WIDENING_OF_FEW,
    empirical_quantiles,
)
from simcoll.training.step_intervals import (
    CLASS_LEVELS,
    OUTERMOST,
    QUANTILES,
    STEP_NOISE,
)

__all__ = [
    "StepCoverage",
    "StepError",
    "StepSpread",
    "difference_coverages",
    "read_step_errors",
    "step_coverages",
    "step_spreads",
]

FEW_TABLES = 3


@dataclass(frozen=True, slots=True)
class StepError:
    """The error of a published step whose table was left out of the fit.

    Attributes
    ----------
    cell
        Its innermost class.
    table, series, model
        The table; one model, GPU and data type of it; and one model and GPU.
    log_ratio
        log(predicted / measured).
    """

    cell: tuple[str, ...]
    table: str
    series: str
    model: str
    log_ratio: float


@dataclass(frozen=True, slots=True)
class StepSpread:
    """Quantiles of log(predicted / measured) in a class, the number of its series, and the size
    within which nine of ten differences of two errors are, of one model and GPU.
    """

    low90: float
    low50: float
    high50: float
    high90: float
    series: int
    difference: float


def step_spreads(errors: Sequence[StepError]) -> dict[tuple[str, ...], StepSpread]:
    """The spread of every class, outermost first."""
    raw: dict[tuple[str, ...], Floats] = {}
    spreads: dict[tuple[str, ...], StepSpread] = {}
    for depth in range(OUTERMOST, len(CLASS_LEVELS) + 1):
        members: dict[tuple[str, ...], list[StepError]] = {}
        for error in errors:
            members.setdefault(error.cell[:depth], []).append(error)
        for cell, group in sorted(members.items()):
            ratios = [error.log_ratio for error in group]
            quantiles, series = empirical_quantiles(ratios, [error.series for error in group])
            difference, models = _difference(group)
            if depth > OUTERMOST:
                quantiles = (series * quantiles + LEANING * raw[cell[:-1]]) / (series + LEANING)
                around = spreads[cell[:-1]].difference
                difference = (models * difference + LEANING * around) / (models + LEANING)
            raw[cell] = quantiles
            tables = len({error.table for error in group})
            allowance = (WIDENING_OF_FEW if tables < FEW_TABLES else 1.0) / tables
            widening = {"50": 1 + WIDENING50 * allowance, "90": 1 + WIDENING90 * allowance}
            wide = _with_allowance(quantiles, widening)
            spreads[cell] = StepSpread(**wide, series=series, difference=difference)
    return spreads


def _difference(errors: Sequence[StepError]) -> tuple[float, int]:
    """The size within which nine of ten differences of two errors of a model are, each model with
    the same weight, and the number of models with two errors.
    """
    by_model: dict[str, list[float]] = {}
    for error in errors:
        by_model.setdefault(f"{error.table} {error.model}", []).append(error.log_ratio)
    sizes: list[float] = []
    models: list[str] = []
    for model, ratios in by_model.items():
        pairs = [abs(ratio - rival) for ratio, rival in combinations(ratios, 2)]
        sizes += pairs
        models += [model] * len(pairs)
    if not sizes:
        return 0.0, 0
    quantiles, count = empirical_quantiles(sizes, models, (0.9,))
    return float(quantiles[0]), count


def _with_allowance(quantiles: Floats, widening: Mapping[str, float]) -> dict[str, float]:
    """Quantiles with the allowance for another table, and at least the noise.

    ``widening``: factors of the 50 % and the 90 % interval.
    """
    raw = dict(zip(QUANTILES, quantiles.tolist(), strict=True))
    center = (raw["low50"] + raw["high50"]) / 2
    noise = {"50": STEP_NOISE * HALF, "90": STEP_NOISE * HALF * NINETIETH}
    wide = {}
    for name, quantile in raw.items():
        share = name[-2:]
        distance = max(abs(quantile - center) * widening[share], noise[share])
        wide[name] = center - distance if name.startswith("low") else center + distance
    return wide


def read_step_errors() -> list[StepError]:
    """The errors that the shipped intervals are made from."""
    path = data_folder("measurements") / "step_errors.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            StepError(
                tuple(row[name] for name in CLASS_LEVELS),
                row["table"],
                row["series"],
                row["one_model"],
                float(row["log_ratio"]),
            )
            for row in csv.DictReader(stream)
        ]


@dataclass(frozen=True, slots=True)
class StepCoverage:
    """How often intervals hold in a class whose tables are left out one by one.

    Attributes
    ----------
    cell
        Calibration, kind of model, sharding and family of GPU.
    series, rows
        Number of series and of rows.
    within50, within90
        Share of rows inside, each series with the same weight.
    width90
        Median width of the 90 % interval: its upper over its lower end.
    """

    cell: tuple[str, ...]
    series: int
    rows: int
    within50: float
    within90: float
    width90: float


def step_coverages(errors: Sequence[StepError]) -> Iterator[StepCoverage]:
    """The coverage of each class of calibration, model, sharding and GPU, and of all together."""
    groups: dict[tuple[str, ...], list[tuple[StepError, StepSpread]]] = {}
    for error, spread in _judgements(errors):
        for cell in (error.cell[:4], (error.cell[0], error.cell[1], "all", "all")):
            groups.setdefault(cell, []).append((error, spread))
    for cell in sorted(groups, key=lambda cell: (*cell[:2], cell[2] != "all", *cell[2:])):
        hits: dict[str, list[tuple[bool, bool]]] = {}
        for error, spread in groups[cell]:
            ratio = error.log_ratio
            hit = (
                spread.low50 <= ratio <= spread.high50,
                spread.low90 <= ratio <= spread.high90,
            )
            hits.setdefault(error.series, []).append(hit)
        shares = np.array([np.mean(rows, axis=0) for rows in hits.values()]).mean(axis=0)
        widths = [spread.high90 - spread.low90 for _, spread in groups[cell]]
        width = float(np.exp(np.median(widths)))
        within50, within90 = shares.tolist()
        yield StepCoverage(cell, len(hits), len(widths), within50, within90, width)


def difference_coverages(errors: Sequence[StepError]) -> Iterator[tuple[str, float, float]]:
    """How often the difference of two errors of different classes is within what plans allow for:
    the root of the sum of squares of both 90 % intervals, about the difference of their middles.

    For each kind of calibration: its name, the share of all pairs, and that of pairs of one model
    on two kinds of GPU. Every pair of series has the same weight.
    """
    judged = list(_judgements(errors))
    for calibration in dict.fromkeys(error.cell[0] for error in errors):
        pairs = [pair for pair in judged if pair[0].cell[0] == calibration]
        rows = [error for error, _ in pairs]
        offsets, halves = np.array(
            [
                (
                    error.log_ratio - (spread.low90 + spread.high90) / 2,
                    (spread.high90 - spread.low90) / 2,
                )
                for error, spread in pairs
            ]
        ).T
        within = abs(offsets[:, None] - offsets) <= np.hypot(halves[:, None], halves)
        classes = _numbers([error.cell for error in rows])
        models = _numbers([error.model.rsplit(" ", 1)[0] for error in rows])
        gpus = _numbers([error.cell[3] for error in rows])
        series = _numbers([error.series for error in rows])
        differ = classes[:, None] != classes
        twins = (models[:, None] == models) & (gpus[:, None] != gpus)
        shares = [_pair_share(within, chosen, series) for chosen in (differ, twins)]
        yield calibration, shares[0], shares[1]


def _numbers(labels: Sequence[object]) -> Ints:
    """The number of each label, in the order of their first places."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.array([numbers[label] for label in labels])


def _pair_share(within: Array, chosen: Array, series: Ints) -> float:
    """The share of chosen pairs that are within, each pair of series with the same weight."""
    pairs = (series[:, None] * len(series) + series)[chosen]
    _, place, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    return float(np.average(within[chosen], weights=1 / counts[place]))


def _judgements(errors: Sequence[StepError]) -> Iterator[tuple[StepError, StepSpread]]:
    """Each error with the spread that the other tables' errors give its class."""
    for table in dict.fromkeys(error.table for error in errors):
        of_others = step_spreads([error for error in errors if error.table != table])
        for error in errors:
            if error.table == table:
                depths = range(len(CLASS_LEVELS), OUTERMOST - 1, -1)
                cells = (error.cell[:depth] for depth in depths)
                yield error, next(of_others[cell] for cell in cells if cell in of_others)
