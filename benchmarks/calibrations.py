"""Print how far rows of a table lie from a calibration by two of them, by library.

``python benchmarks/calibrations.py`` takes a minute on one core. Small and large medians are the
numbers ``scatter.launch`` and ``scatter.rate`` of the library files, which are up to 0.005 apart,
as they were taken with a launch that is hidden in proportion; a fit of few rows draws launch and
rate towards the uncalibrated ones by them (``simcoll/libraries/fitting.py``), which is switched off
here. The library is fitted without the table's system.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from simcoll.libraries.fitting import PARAMETERS, LibraryFormula, Series, fit_series, formula
from simcoll.libraries.intervals import band_of
from simcoll.planning.measured.accuracy import FEWEST_ROWS, left_out_library, two_points
from simcoll.planning.measured.measurements import PublishedTable, published_tables

SMALL_BYTES = 2**14
"""Below this size, a time is mostly latency."""


def scatters(table: PublishedTable, predictor: LibraryFormula) -> dict[str, float]:
    """The median deviation of small and of large rows, in logarithms."""
    measured = [(size, time * 10**6) for size, time in table.rows]
    points = two_points(measured)
    series = Series(table.collective, table.ranks, points, predictor)
    calibration = fit_series([series], PARAMETERS[: len(points)])
    times_fs = predictor([size for size, _ in measured], calibration)
    deviations: dict[str, list[float]] = defaultdict(list)
    for row, time_fs in zip(measured, times_fs, strict=True):
        band = band_of(row[0])
        if row not in points and not SMALL_BYTES <= row[0] < 2**16:
            deviations[band].append(abs(float(np.log(time_fs / row[1]))))
    return {
        band: float(np.median(values))
        for band, values in deviations.items()
        if band in {"small", "large"}
    }


def main() -> None:
    """Print the table."""
    by_library: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for table in (*published_tables(added=True), *published_tables(later=True)):
        if len(table.rows) >= FEWEST_ROWS:
            library = left_out_library(table.library_file, table.system)
            predictor = formula(table.collective, table.machine(), library, table.settings())
            nodes = "several nodes" if predictor.question.fabric else "one node"
            for band, deviation in scatters(table, predictor).items():
                by_library[table.library, nodes][band].append(deviation)
    print("| library | | tables | below 16 KiB | from 64 MiB |\n|---|---|---|---|---|")
    for (library, nodes), bands in sorted(by_library.items()):
        tables = max(len(values) for values in bands.values())
        cells = (f"{np.median(bands[band]):.3f}" for band in ("small", "large"))
        print(f"| {library} | {nodes} | {tables} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
