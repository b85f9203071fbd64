"""Print how far rows of a table lie from a calibration by two of them, by library.

``python benchmarks/calibrations.py`` takes two minutes on one core. Its columns are the numbers of
``scatter`` in the library files: ``launch`` is up to 0.005 apart, as it was taken with a launch
that is hidden in proportion, and ``launch_doubling`` and ``launch_size_doubling`` are half of what
is printed. By them a fit of few rows draws its launch towards none and lets launch and rate fade
(``simcoll/libraries/fitting.py``), which is switched off here. The library is fitted without the
table's system.

Below, ``faster_doubling`` of NCCL in a node: the mean over tables whose large row is faster than
predicted of their median error from 64 MiB, by how much such rates fade.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np

from simcoll.libraries.calibration import Calibration
from simcoll.libraries.fitting import PARAMETERS, LibraryFormula, Series, fit_series, formula
from simcoll.libraries.library import Library
from simcoll.planning.measured.accuracy import FEWEST_ROWS, left_out_library, two_points
from simcoll.planning.measured.measurements import PublishedTable, published_tables

SMALL_BYTES, LARGE_BYTES = 2**14, 2**26
"""Below the first, a time is mostly latency; from the second on it is mostly the rate."""
NEAR, FAR = 1.2, 2.5
"""Times beyond that of the small row, as shares of it, that show a launch well."""
LATENCY_BYTES = 2**16
FASTER = (0.018, 0.025, 0.03, 0.035, 0.04, 0.05, 0.06)
OF_NORMAL = 1.48
"""Standard deviation over median deviation, if deviations are normal."""


def scatters(table: PublishedTable, predictor: LibraryFormula) -> dict[str, float]:
    """The median deviation of the rows of a table that are not in its calibration, by parameter."""
    measured = [(size, time * 10**6) for size, time in table.rows]
    points = two_points(measured)
    series = Series(table.collective, table.ranks, points, predictor)
    calibration = fit_series([series], PARAMETERS[: len(points)])
    sizes = [size for size, _ in measured]
    bare_times = predictor(sizes, replace(calibration, launch_fs=0, hidden_from_fs=0))
    deviations: dict[str, list[float]] = defaultdict(list)
    for row, bare_fs in zip(measured, bare_times, strict=True):
        size, time_fs = row
        if row in points:
            continue
        deviation = abs(math.log(calibration.launched_fs(bare_fs) / time_fs))
        if size < SMALL_BYTES:
            deviations["launch"].append(deviation)
        if size < LATENCY_BYTES and calibration.launch_fs < 0:
            further = deviation / abs(math.log2(size / points[0][0]))
            deviations["launch_size_doubling"].append(further)
        if size >= LARGE_BYTES:
            doublings = abs(math.log2(size / points[-1][0]))
            deviations["rate_doubling"].append(OF_NORMAL * deviation / doublings)
        beside_fs = calibration.hidden_from_fs
        if beside_fs and NEAR * beside_fs < bare_fs <= FAR * beside_fs:
            further = _launch_apart(calibration, bare_fs, time_fs)
            deviations["launch_doubling"].append(further / math.log2(bare_fs / beside_fs))
    return {name: float(np.median(values)) for name, values in deviations.items()}


def _launch_apart(calibration: Calibration, bare_fs: int, time_fs: int) -> float:
    """How far the launch that a longer operation shows is from the calibration's."""
    beside_fs = calibration.hidden_from_fs
    square = max(time_fs**2 - bare_fs**2 + beside_fs**2, (beside_fs // 10) ** 2)
    return abs(math.log(math.isqrt(square) / (beside_fs + calibration.launch_fs)))


def faster_error(table: PublishedTable, library: Library, fading: float) -> float | None:
    """The median error of large sizes if the rate of a faster row fades as much as that; None
    without such sizes, or if the row is not faster.
    """
    scatter = library.numbers("scatter.faster_doubling")
    library = library.with_values({"scatter.faster_doubling": (fading, *scatter[1:])})
    predictor = formula(table.collective, table.machine(), library, table.settings())
    measured = [(size, time * 10**6) for size, time in table.rows]
    points = two_points(measured)
    calibration = fit_series([Series(table.collective, table.ranks, points, predictor)])
    rows = [row for row in measured if row not in points and row[0] >= LARGE_BYTES]
    if predictor.question.fabric or calibration.rate <= 1 or not rows:
        return None
    times_fs = predictor([size for size, _ in rows], calibration)
    errors = [abs(time_fs / row[1] - 1) for time_fs, row in zip(times_fs, rows, strict=True)]
    return float(np.median(errors))


def main() -> None:
    """Print the tables."""
    by_library: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    faster: dict[float, list[float]] = defaultdict(list)
    for table in (*published_tables(added=True), *published_tables(later=True)):
        if len(table.rows) >= FEWEST_ROWS:
            library = left_out_library(table.library_file, table.system)
            predictor = formula(table.collective, table.machine(), library, table.settings())
            nodes = "several nodes" if predictor.question.fabric else "one node"
            for name, deviation in scatters(table, predictor).items():
                by_library[table.library, nodes][name].append(deviation)
            if table.library == "nccl" and table.part != "later" and not predictor.question.fabric:
                for fading in FASTER:
                    error = faster_error(table, library, fading)
                    if error is not None:
                        faster[fading].append(error)
    names = ("launch", "launch_doubling", "launch_size_doubling", "rate_doubling")
    print(f"| library | | tables | {' | '.join(names)} |\n|---|---|---|---|---|---|---|")
    for (library_name, nodes), values in sorted(by_library.items()):
        tables = max(len(deviations) for deviations in values.values())
        cells = (f"{np.median(values[name]):.4f}" if values[name] else "-" for name in names)
        print(f"| {library_name} | {nodes} | {tables} | {' | '.join(cells)} |")
    print("\n| faster_doubling | tables | mean error |\n|---|---|---|")
    for fading, errors in faster.items():
        print(f"| {fading} | {len(errors)} | {100 * np.mean(errors):.2f} % |")


if __name__ == "__main__":
    main()
