"""The accuracy page: errors on left-out systems, the effect of each term of the formula, and the
largest deviations.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from simcoll.files.paths import data_folder
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.fitting import formula
from simcoll.libraries.library import Library, load_library
from simcoll.planning.measured.accuracy import BANDS, METHODS, Error, left_out_library, medians
from simcoll.planning.measured.measurements import PublishedTable, published_tables

__all__ = ["interval_lines", "page"]

MOST_ROWS = 15
HEAD = """# Accuracy

{lead}
Median errors of {tables} published tables of nccl-tests ({rows} rows) on {systems} systems, each predicted by a library file
that was fitted **without the tables of its system**. A system is one publisher's machine. Use uncalibrated predictions to compare
algorithms on one machine and to find bottlenecks. Before you trust a time, calibrate with rows of your own (`simcoll calibrate`): two correct the launch of small
operations, and six the middle sizes as well.

These are all the development tables; [Validation](validation.md) has 151 later tables, and the errors of 234 that were predicted
blind. The shipped file is fitted to all tables. `simcoll accuracy` prints this page, `simcoll accuracy -o FILE` writes it.

## All figures

Errors are |predicted / measured - 1| in percent, for small (below 64 KiB), middle and large sizes (from 64 MiB).

"""
FLOOR = """
**Noise.** Two publishers on the same kind of system, at the same size, differ by a median of
{medians} % here ({pairs} pairs of tables). Over more tables than may be shipped it is 17 / 8 / 1 %, with a p90 of
58 / 48 / 21 %; in place and out of place in one run differ by 1.6 / 1.4 / 0.3 %. An uncalibrated median below about 15 / 10 / 2 % is
therefore luck.
"""
INTERVALS = """
## Intervals

Share of measured times inside the intervals of their predictions, in percent, over all published tables ({systems} systems). The system is
left out of the fit, and all tables of its publisher out of the intervals; each system has the same weight. *Width* is the upper end of
the 90 % interval over the lower, the median over rows; *best*, that of the interval that holds 90 % of the cell's own errors. *Chance* is
the probability that the number of systems inside is as far from 90 % as it is if 90 % is right. [How they are made](explanation/intervals.md).
`python benchmarks/intervals.py` writes `measurements/intervals.csv` and the figures of this table, `measurements/coverage.csv`.

| calibration | sizes | fabric | systems | rows | in 50 % | in 90 % | width | best | chance |
|---|---|---|---|---|---|---|---|---|---|
"""
WORTH = """
## The value of each correction

Median over tables of the median error, uncalibrated, without one correction of NCCL's formula. Nothing is fitted again. Where the error is
below that of the first row, the correction does not help systems that are left out: the steps on Alps are guessed where CSCS is left out.

| without | small | middle | large |
|---|---|---|---|
"""
FURTHEST = """
## Largest errors

The tables and bands with the largest median error, uncalibrated. *Without the offset*: less the difference at the smallest size, the launch
of the run. *And the rate*: less the error at the largest size as well, the rate of its links. The rest is not explained.

| table | machine | band | error | without the offset | and the rate | main cause |
|---|---|---|---|---|---|---|
"""
EVERY = """
## Every table

Median error of each table by band. `measurements/tables.csv` has the address of each page.

| table | machine | rows | uncalibrated: small | middle | large | two points: small | middle | large | six: small | middle | large |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""
COLUMNS = (
    "median over tables, small / middle / large | over rows: median | p90 | geometric mean "
    "of predicted / measured"
)
POINTS = """
Two points are the rows nearest to 8 B and 1 GiB, six also those nearest to 64 KiB, 1, 8 and 64 MiB, of tables with seven rows or more;
calibrated rows are not compared.
"""
ENDING = """
The emulator timed {events} of {rows} rows, the formula the others (see [Libraries](reference/libraries.md)). Not in the model:
{missing}.

The corrections were chosen with knowledge of these tables, so the figures of left-out systems are better than those of unseen
tables.
"""


def page(errors: Sequence[Error]) -> str:
    """The page, in Markdown."""
    tables = {error.table.name: error.table for error in errors}
    counts = {
        "tables": len(tables),
        "rows": sum(len(table.rows) for table in tables.values()),
        "systems": len({table.system for table in tables.values()}),
    }
    return "".join(
        [
            HEAD.format(lead="".join(_lead(errors)), **counts),
            *_figures(errors),
            FLOOR.format(**_noise(list(tables.values()))),
            *interval_lines(),
            "\n## By collective and machine\n\n",
            *_groups(errors, "collective", lambda table: table.collective),
            "\n",
            *_groups(errors, "GPU", lambda table: table.machine().traits.get("gpu", "")),
            WORTH,
            *worth(published_tables()),
            FURTHEST,
            *_furthest(errors),
            *_tables(errors),
            _ending(errors),
        ]
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if value < 0.1 else f"{100 * value:.0f}"


def _bands(values: dict[str, float]) -> str:
    return " | ".join(_percent(values[band]) if band in values else "-" for band in BANDS)


def _rows(errors: Iterable[Error], band: str) -> list[float]:
    return [error.predicted_ns / error.measured_ns for error in errors if error.band == band]


def _lead(errors: Sequence[Error]) -> Iterator[str]:
    """The table at the top: the median errors, and the noise of measurements."""
    yield "| predictions | small (below 64 KiB) | middle | large (from 64 MiB) |\n|---|---|---|---|\n"
    for method in METHODS:
        values = medians([error for error in errors if error.method == method])
        cells = (f"{_percent(values[band])} %" if band in values else "-" for band in BANDS)
        yield f"| {method if method == METHODS[0] else f'calibrated with {method}'} | {' | '.join(cells)} |\n"
    yield "| *two publishers of one kind of system differ by* | 17 % | 8 % | 1 % |\n"


def _figures(errors: Sequence[Error]) -> Iterator[str]:
    """Medians over tables and over rows, p90, and geometric mean, for every way."""
    yield f"| | {COLUMNS} |\n|---|---|---|---|---|\n"
    for method in METHODS:
        over_tables, *over_rows = _cells([error for error in errors if error.method == method])
        bold = " / ".join(f"**{value}**" for value in over_tables.split(" / "))
        yield f"| {method} | {' | '.join([bold, *over_rows])} |\n"
    yield POINTS


def _cells(errors: Sequence[Error]) -> list[str]:
    """The values of :data:`COLUMNS` by band."""
    over_tables = medians(errors)
    cells = [
        " / ".join(_percent(over_tables[band]) if band in over_tables else "-" for band in BANDS)
    ]
    ratios = [np.array(_rows(errors, band)) for band in BANDS]
    cells += [
        " / ".join(
            _percent(float(np.quantile(abs(values - 1), q))) if len(values) else "-"
            for values in ratios
        )
        for q in (0.5, 0.9)
    ]
    return [
        *cells,
        " / ".join(
            f"{np.exp(np.log(values).mean()):.2f}" if len(values) else "-" for values in ratios
        ),
    ]


def interval_lines() -> Iterator[str]:
    """The section on intervals: how often they hold."""
    with (data_folder("measurements") / "coverage.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    yield INTERVALS.format(systems=max(int(row["systems"]) for row in rows))
    for row in rows:
        names = [row[name] for name in ("calibration", "band", "fabric", "systems", "rows")]
        if row["fabric"] == "all":
            names = [f"**{name}**" for name in names]
        shares = [f"{100 * float(row[name]):.0f}" for name in ("within50", "within90")]
        widths = [f"{float(row[name]):.2f}" for name in ("width90", "best_width90")]
        cells = [*names, *shares, *widths, f"{float(row['chance']):.2f}"]
        yield f"| {' | '.join(cells)} |\n"


def _noise(tables: Sequence[PublishedTable]) -> dict[str, object]:
    """Differences between two systems of one kind."""
    differences: dict[str, list[float]] = {band: [] for band in BANDS}
    pairs = 0
    for place, table in enumerate(tables):
        for peer in tables[:place]:
            kind = [(t.collective, _kind(t), t.ranks, t.environment) for t in (table, peer)]
            if table.system == peer.system or kind[0] != kind[1]:
                continue
            pairs += 1
            times = dict(peer.rows)
            for size, time in table.rows:
                if size in times:
                    difference = Error(table, "", size, times[size], time)
                    differences[difference.band].append(abs(difference.relative))
    cells = (
        _percent(float(np.median(differences[band]))) if differences[band] else "-"
        for band in BANDS
    )
    return {"medians": " / ".join(cells), "pairs": pairs}


def _kind(table: PublishedTable) -> tuple[str, str, int]:
    traits = table.machine().traits
    fabric = traits.get("fabric", "") if table.nodes > 1 else ""
    return traits.get("gpu", "").replace("H200", "H100"), fabric, table.nodes


def _groups(
    errors: Sequence[Error], title: str, of: Callable[[PublishedTable], str]
) -> Iterator[str]:
    """The figures of each group of tables for every way."""
    names = {error.table.name: of(error.table) for error in errors}
    yield f"| {title} | tables | | {COLUMNS} |\n|---|---|---|---|---|---|---|\n"
    for group in sorted(set(names.values())):
        for method in METHODS:
            group_errors = [
                error
                for error in errors
                if names[error.table.name] == group and error.method == method
            ]
            if group_errors:
                tables = len({error.table.name for error in group_errors})
                yield f"| {group} | {tables} | {method} | {' | '.join(_cells(group_errors))} |\n"


def _neutral(library: Library, changes: dict[str, float]) -> Library:
    """The library with all numbers of certain names set to their neutral values."""
    neutral_values = {}
    for place in library.values:
        for ending, value in changes.items():
            if place.endswith(ending):
                numbers = library.numbers(place)
                neutral_values[place] = (
                    value
                    if len(numbers) == 1 and isinstance(library.values[place], float)
                    else (value,) * len(numbers)
                )
    return library.with_values(neutral_values)


_TAKEN: dict[str, Callable[[Library], Library]] = {
    "nothing": lambda library: library,
    "the start of one process for all GPUs, and of PyTorch": lambda library: _neutral(
        library, {"launcher.one_process": 0.0, "launcher.torch": 0.0}
    ),
    "latencies of fabrics": lambda library: _neutral(library, {".latency": 0.0}),
    "growth of LL's latency with size": lambda library: _neutral(library, {"ll_growth": 0.0}),
    "further steps of LL's latency on Alps": lambda library: _neutral(library, {".steps": 0.0}),
    "rings under LL below their rate over the network": lambda library: _neutral(
        library, {"net_ll_share": 1.0}
    ),
    "filling the pipeline of Simple": lambda library: _neutral(
        library, {".simple_start": 0.0, "simple_hop_factor": 1.0, "net_start": 0.0}
    ),
    "filling the pipeline of reductions in switches": lambda library: _neutral(
        library, {"nvls_fill": 0.0, "nvls_tree_fill": 0.0}
    ),
    "rates of trees other than NCCL's": lambda library: _neutral(
        library, {"tree_power_factor": 1.0}
    ),
    "latencies of LL and LL128 by generation": lambda library: _neutral(
        library,
        {
            "ll_hop_factor": 1.0,
            "ll128_hop_factor": 1.0,
            "ll_base_factor": 1.0,
            "ll128_base_factor": 1.0,
        },
    ),
    "rates of LL and LL128 by generation": lambda library: _neutral(
        library, {".ll_factor": 1.0, "ll128_factor": 1.0}
    ),
    "measured rates (0.8 of every NVLink, 0.96 of every NIC)": lambda library: _neutral(
        library,
        {
            "ring_share": 0.8,
            ".share": 0.96,
            "nvls_share": 1.04,
            "nvls_large_share": 1.04,
            "p2p_share": 0.8,
        },
    ),
    "few channels of grouped sends, and their LL": lambda library: replace(
        library,
        values={
            place: value
            for place, value in library.values.items()
            if not place.endswith("p2p_channel_rate")
        },
    ),
    "a rank's own step": lambda library: _neutral(library, {"own_step": 0.0}),
    "the longer reduction of int8": lambda library: _neutral(library, {"own_step_bytes": 0.0}),
    "starts of sends by class of GPU": lambda library: replace(
        library,
        values={
            place: value
            for place, value in library.values.items()
            if not (place.startswith("class.") and place.endswith(("p2p_start", "p2p_peer")))
        },
    ),
    "the last slot of sends": lambda library: _neutral(library, {"p2p_fill": 0.0}),
    "the CPU between PCIe ports": lambda library: _neutral(library, {"p2p_rate": 1000.0}),
    "NCCL's own choice in a node": lambda library: library.with_values({"rules.choice": "times"}),
    "NCCL's own choice on Slingshot, and its lack of LL128": lambda library: replace(
        library,
        values={
            place: value
            for place, value in library.values.items()
            if place.split(".")[-1] not in {"choice", "protocols"}
        },
    ),
}


def worth(tables: Sequence[PublishedTable]) -> Iterator[str]:
    """Medians of the formula without each addition."""
    for name, without in _TAKEN.items():
        errors = []
        for table in tables:
            library = without(left_out_library(table.library_file, table.system))
            sizes = [size for size, _ in table.rows]
            times = formula(table.collective, table.machine(), library, table.settings())(
                sizes, Calibration()
            )
            errors += [
                Error(table, "", *row, round(fs / 10**6))
                for row, fs in zip(table.rows, times, strict=True)
            ]
        yield f"| {name} | {_bands(medians(errors))} |\n"


def _furthest(errors: Sequence[Error]) -> Iterator[str]:
    """The bands of tables with the largest median error, and the error left after correcting offset
    and rate.
    """
    groups: dict[tuple[str, str], list[Error]] = {}
    for error in errors:
        if error.method == METHODS[0]:
            groups.setdefault((error.table.name, error.band), []).append(error)
    worst = sorted(
        groups.values(),
        key=lambda group: -float(np.median([abs(error.relative) for error in group])),
    )
    for group in worst[:MOST_ROWS]:
        table = group[0].table
        rows = [error for error in errors if error.method == METHODS[0] and error.table is table]
        reference = (
            rows[0]
            if len(rows) == 1 or rows[0].measured_ns < 1.5 * rows[1].measured_ns
            else rows[1]
        )
        offset = reference.measured_ns - reference.predicted_ns
        rate = (rows[-1].measured_ns - offset) / rows[-1].predicted_ns
        in_rate = rate if group[0].band == BANDS[2] else 1.0
        steps = [
            _median_error(group, factor, added)
            for factor, added in ((1.0, 0), (1.0, offset), (in_rate, offset))
        ]
        launch, links = steps[1] < steps[0] / 2, steps[2] < steps[0] / 2
        cause = (
            "the launch of the run"
            if launch
            else "the rate of its links"
            if links
            else "not explained"
        )
        machine = f"{table.ranks} ranks of {table.topology}"
        yield f"| {table.name} | {machine} | {group[0].band} | {' | '.join(map(_percent, steps))} | {cause} |\n"


def _median_error(errors: Sequence[Error], factor: float, added_ns: int) -> float:
    """The median error of predictions times a factor, plus an offset."""
    return float(
        np.median([abs((e.predicted_ns * factor + added_ns) / e.measured_ns - 1) for e in errors])
    )


def _tables(errors: Sequence[Error]) -> Iterator[str]:
    """Every table."""
    yield EVERY
    for table in {error.table.name: error.table for error in errors}.values():
        table_errors = [error for error in errors if error.table is table]
        cells = [
            _bands(medians(error for error in table_errors if error.method == method))
            for method in METHODS
        ]
        yield f"| {table.name} | {table.ranks} ranks of {table.topology} | {len(table.rows)} | {' | '.join(cells)} |\n"


def _ending(errors: Sequence[Error]) -> str:
    """Notes on how rows were timed, and on the limits of these figures."""
    blind = [error for error in errors if error.method == METHODS[0]]
    events = sum(error.timed_by == "events" for error in blind)
    return ENDING.format(
        events=events, rows=len(blind), missing="; ".join(load_library("nccl").missing)
    )
