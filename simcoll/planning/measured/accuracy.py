"""Errors of predictions against published measurements, with each system left out of the fit."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from simcoll.files.paths import data_folder
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.fitting import Series, fit_series, formula
from simcoll.libraries.intervals import BANDS, METHODS, band_of
from simcoll.libraries.library import Library, Value, load_library
from simcoll.libraries.prediction import predict
from simcoll.planning.measured.measurements import PublishedTable, published_tables

__all__ = [
    "BANDS",
    "METHODS",
    "Error",
    "errors_of",
    "left_out_library",
    "measure",
    "medians",
    "two_points",
]

SIX = (8, 2**16, 2**20, 2**23, 2**26, 2**30)
"""Target sizes of six calibration points; two points are the first and the last."""
FEWEST_ROWS = 7
"""Minimum number of rows for a calibration, so that enough are left to compare."""


@dataclass(frozen=True, slots=True)
class Error:
    """One row: measured time, and the time predicted with its system left out."""

    table: PublishedTable
    method: str
    size_bytes: int
    measured_ns: int
    predicted_ns: int
    timed_by: str = ""

    @property
    def relative(self) -> float:
        """Predicted over measured time, less one."""
        return self.predicted_ns / self.measured_ns - 1

    @property
    def band(self) -> str:
        """The band of :data:`BANDS`."""
        return band_of(self.size_bytes)


@cache
def _left_out() -> dict[str, dict[str, float]]:
    with (data_folder("measurements") / "left_out.csv").open(
        encoding="utf-8", newline=""
    ) as stream:
        values_by_system: dict[str, dict[str, float]] = {}
        for row in csv.DictReader(stream):
            values_by_system.setdefault(row["system"], {})[row["place"]] = float(row["value"])
        return values_by_system


def left_out_library(name: str, system: str) -> Library:
    """The library fitted without the tables of a system."""
    library = load_library(name)
    changes: dict[str, Value] = {}
    lists: dict[str, list[float]] = {}
    for place, value in _left_out().get(system, {}).items():
        key, _, index = place.partition(":")
        if index:
            lists.setdefault(key, list(library.numbers(key)))[int(index)] = value
        elif key in library.values:
            changes[key] = value
    return library.with_values(changes | {key: tuple(values) for key, values in lists.items()})


def errors_of(table: PublishedTable, *, by_formula: bool = False) -> list[Error]:
    """Errors of a table: all rows uncalibrated, and with two and six points the rows that were not
    fitted.

    ``by_formula`` avoids emulation, which takes long for thousands of ranks.
    """
    library, machine = left_out_library(table.library_file, table.system), table.machine()
    settings, fitter = (
        table.settings(),
        formula(table.collective, machine, library, table.settings()),
    )
    measured = [(size, time * 10**6) for size, time in table.rows]

    def errors_with(
        method: str, rows: Sequence[tuple[int, int]], calibration: Calibration | None = None
    ) -> list[Error]:
        if by_formula:
            times = fitter([size for size, _ in rows], calibration or Calibration())
            return [
                Error(table, method, size, time // 10**6, round(predicted_fs / 10**6), "formula")
                for (size, time), predicted_fs in zip(rows, times, strict=True)
            ]
        predictions = [
            predict(
                table.collective,
                size,
                machine,
                library=library,
                environment=settings,
                calibration=calibration,
            )
            for size, _ in rows
        ]
        return [
            Error(
                table,
                method,
                size,
                time // 10**6,
                round(prediction.time_fs / 10**6),
                prediction.timed_by,
            )
            for (size, time), prediction in zip(rows, predictions, strict=True)
        ]

    errors = errors_with(METHODS[0], measured)
    if len(measured) < FEWEST_ROWS:
        return errors
    for method, points in (
        (METHODS[1], two_points(measured)),
        (METHODS[2], _nearest(measured, SIX)),
    ):
        calibration = fit_series([Series(table.collective, table.ranks, points, fitter)])
        errors += errors_with(method, [row for row in measured if row not in points], calibration)
    return errors


def two_points(rows: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The rows nearest to 8 B and 1 GiB, which stand for the least measurement of a machine."""
    return _nearest(rows, (SIX[0], SIX[-1]))


def _nearest(rows: Sequence[tuple[int, int]], sizes: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The rows nearest to some sizes; a first row that shows warm-up is skipped."""
    start = next(
        place
        for place, row in enumerate(rows)
        if place + 1 == len(rows) or row[1] <= 1.5 * rows[place + 1][1]
    )
    usable = rows[start:]
    chosen = {min(usable, key=lambda row: abs(np.log(row[0] / size))) for size in sizes}
    return tuple(sorted(chosen))


def measure(progress: Callable[[str], None] | None = None) -> list[Error]:
    """Compute the errors of all published tables."""
    errors = []
    for table in published_tables():
        if progress is not None:
            progress(table.name)
        errors += errors_of(table)
    return errors


def medians(errors: Iterable[Error]) -> dict[str, float]:
    """By band, the median over tables of each table's median error; a band without rows is left
    out.
    """
    by_table: dict[tuple[str, str], list[float]] = {}
    for error in errors:
        by_table.setdefault((error.band, error.table.name), []).append(abs(error.relative))
    return {
        band: float(
            np.median([np.median(values) for (of, _), values in by_table.items() if of == band])
        )
        for band in BANDS
        if any(of == band for of, _ in by_table)
    }
