"""Write ``measurements/intervals.csv`` and ``measurements/coverage.csv``: how far predictions of
systems left out were off, by cell, and how often intervals made from that hold.

``python benchmarks/intervals.py`` takes about two minutes on two cores. Run it after every fit of a
library (``benchmarks/fit_library.py``), then ``simcoll accuracy -o docs/accuracy.md``.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.files.output import csv_bytes
from simcoll.files.paths import data_folder
from simcoll.libraries.intervals import LEVELS
from simcoll.planning.measured.accuracy import Error, errors_of
from simcoll.planning.measured.measurements import PublishedTable, published_tables
from simcoll.planning.measured.spreads import coverages, left_out_errors, spreads

if TYPE_CHECKING:
    from collections.abc import Sequence

QUANTILES = ("low90", "low50", "high50", "high90")
COVERAGE = ("systems", "rows", "within50", "within90", "width90", "best_width90", "chance")


def errors_by_formula(table: PublishedTable) -> list[Error]:
    """Errors of a table whose system is left out of the fit."""
    return errors_of(table, by_formula=True)


def all_errors() -> list[Error]:
    """Errors of all published tables, on all cores."""
    tables = (*published_tables(added=True), *published_tables(later=True))
    errors = []
    with ProcessPoolExecutor() as pool:
        for table, of_table in zip(tables, pool.map(errors_by_formula, tables), strict=True):
            print(f"\r\x1b[K{table.name}", end="", file=sys.stderr)
            errors += of_table
    print(file=sys.stderr)
    return errors


def write(errors: Sequence[Error], folder: Path) -> None:
    """Write both files."""
    left_out = left_out_errors(errors)
    rows = []
    for cell, spread in spreads(left_out).items():
        quantiles = {name: f"{getattr(spread, name):.4f}" for name in QUANTILES}
        names = dict(zip(LEVELS, cell, strict=False))
        rows.append({**dict.fromkeys(LEVELS, ""), **names, "systems": spread.systems, **quantiles})
    (folder / "intervals.csv").write_bytes(csv_bytes((*LEVELS, "systems", *QUANTILES), rows))
    rows = []
    for coverage in coverages(left_out):
        figures = {name: getattr(coverage, name) for name in COVERAGE}
        texts = {
            name: f"{figure:.4g}" if isinstance(figure, float) else figure
            for name, figure in figures.items()
        }
        calibration, band, fabric = coverage.cell
        rows.append({"calibration": calibration, "band": band, "fabric": fabric, **texts})
    header = ("calibration", "band", "fabric", *COVERAGE)
    (folder / "coverage.csv").write_bytes(csv_bytes(header, rows))


if __name__ == "__main__":
    write(all_errors(), data_folder("measurements"))
