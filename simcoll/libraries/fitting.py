"""Fit a calibration to measured rows: few parameters, robust against outliers, deterministic.

The launch offset for any rate is a weighted median, found without a search. Rate, growth and fabric latency are searched on a lattice, so
that equal rows yield equal bytes. A parameter is fitted only if the rows determine it; others keep their neutral value.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

import numpy as np

from simcoll.errors import ConfigError, nearest
from simcoll.libraries.calibration import LEAST, LEAST_SHARE, MOST, Calibration, Correction, in_millionths
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.library import Library, load_library
from simcoll.libraries.prediction import calibrated, chosen, in_time, launch_us
from simcoll.topology import Topology
from simcoll.topology.machine import machine as machine_of
from simcoll.units import counted, format_size, format_time

__all__ = ["PARAMETERS", "WARM_UP", "LeftOut", "Predictor", "Row", "Series", "fit", "fit_series", "formula", "left_out"]

PARAMETERS = ("launch", "rate", "growth", "fabric_latency")
"""In the order in which they are added to a fit."""

Predictor = Callable[[Sequence[int], Calibration], Sequence[int]]
"""Femtoseconds for sizes in bytes under a calibration; adds ``launch_fs`` once, and applies the correction."""

WARM_UP = 1.5
"""A first row that takes this many times its successor's time is considered warm-up."""
SMALL_BYTES = 2**20
"""Largest size at which a launch offset is visible; in larger rows it would absorb other errors."""
ROWS_FOR_MORE = 4
"""Number of rows from which growth and fabric latency are also tried."""
ROWS_FOR_CORRECTION = 6
SHARE_OF_RESIDUAL = 0.8
"""Share of the residual that the correction absorbs; the rest is considered noise."""
LATENCY_BYTES, EVEN = 2**16, 0.03
"""Below this size, time is mostly latency: a correction between rows follows the predicted time, and to this degree the size."""
GAIN, LEAST_GAIN = 0.2, 0.005
"""Least reduction, as a share of the mean error and of the times, for which another parameter is added."""
MOST_LAUNCH_FS = 100 * 10**9
FOLDS = 8

# Step sizes of the search: the coarsest is 128 units, the finest 1. Bounds keep factors within a calibration's limits.
_UNITS = {"rate": 0.05 / 32, "growth": 0.35 / 32, "fabric_latency": 156_250_000}
_BOUNDS = {"rate": 900, "growth": 180, "fabric_latency": 12_800}


class Row(Protocol):
    """A measured row."""

    @property
    def size_bytes(self) -> int:
        """Size as in nccl-tests."""

    @property
    def time_fs(self) -> int:
        """Measured time in femtoseconds."""


@dataclass(frozen=True, slots=True)
class Series:
    """Measured rows of one collective on one number of ranks, with their predictor.

    ``rows`` are sizes in bytes and times in femtoseconds, in order of size; ``aside`` describes the rows that the fit excludes.
    """

    collective: str
    nranks: int
    rows: tuple[tuple[int, int], ...]
    predictor: Predictor
    aside: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the rows."""
        return tuple(size for size, _ in self.rows)

    def predicted(self, calibration: Calibration) -> Sequence[int]:
        """Predicted femtoseconds of every row."""
        return self.predictor(self.sizes, calibration)

    @classmethod
    def of(cls, collective: str, nranks: int, rows: Sequence[Row], predictor: Predictor) -> Series:
        """Raw rows condensed: the median of each size, without a first row that is warm-up.

        Raises
        ------
        ConfigError
            For sizes or times that are not above 0.
        """
        times: dict[int, list[int]] = {}
        for row in rows:
            if row.size_bytes <= 0 or row.time_fs <= 0:
                raise ConfigError(f"a fit needs sizes and times above 0, got {row.size_bytes} bytes, {row.time_fs} fs")
            times.setdefault(row.size_bytes, []).append(row.time_fs)
        found = [(size, int(median(times[size]))) for size in sorted(times)]
        aside: tuple[str, ...] = ()
        if len(found) > 1 and found[0][1] > WARM_UP * found[1][1]:
            (size, time), (_, later) = found[:2]
            aside = (f"{format_size(size)} took {format_time(time)}, {time / later:.1f} times the next size: warm-up",)
            found = found[1:]
        return cls(collective, nranks, tuple(found), predictor, aside)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row predicted by a fit that excluded it: relative errors without and with the calibration."""

    collective: str
    nranks: int
    size_bytes: int
    before: float
    after: float


class _Rest:
    """Predicted times without launch offset and correction, cached."""

    def __init__(self, series: Sequence[Series]) -> None:
        self._series = series
        self._known: dict[tuple[int, ...], list[dict[int, int]]] = {}

    def times(self, rows: Sequence[tuple[int, int, int]], calibration: Calibration) -> list[int]:
        """Times of rows ``(series, size, time)``."""
        rate, growth = calibration.rate.as_integer_ratio(), calibration.growth.as_integer_ratio()
        key = (*rate, *growth, calibration.fabric_latency_fs)
        if key not in self._known:
            self._known[key] = [
                dict(zip(each.sizes, each.predicted(calibration), strict=True)) for each in self._series
            ]
        return [max(1, self._known[key][place][size]) for place, size, _ in rows]


def formula(
    collective: str, topology: Topology, library: str | Library = "nccl", environment: Environment = DEFAULT
) -> Predictor:
    """A predictor by a library's corrected formula, for all sizes at once.

    Raises
    ------
    ConfigError
        When the library has no numbers for the machine.
    """
    machine, read = machine_of(topology), load_library(library)
    nranks = sum(machine.domain_ranks)

    def times_fs(sizes: Sequence[int], calibration: Calibration) -> list[int]:
        overlaid = calibrated(read, machine, calibration)
        array = np.array(sizes, float)
        costs, pick = chosen(machine, collective, array, overlaid, environment, calibration)
        times_us = np.array([cost.time_us(array) for cost in costs])[pick, np.arange(len(sizes))]
        launch = launch_us(machine, overlaid, environment)
        return [
            calibration.corrected_fs(in_time(time + launch), collective, nranks, size)
            for size, time in zip(sizes, times_us.tolist(), strict=True)
        ]

    return times_fs


def fit(
    rows: Sequence[Row], predictor: Predictor, *, collective: str = "", nranks: int = 0,
    parameters: Sequence[str] | None = None,
) -> Calibration:  # fmt: skip
    """Fit a calibration to the rows of one table.

    Parameters
    ----------
    rows
        Two suffice for launch offset and rate (for example 8 B and 1 GiB), six for a correction by size (also 64 KiB, 1, 8 and 64 MiB).
    predictor
        Predicts the time of a size under a calibration.
    collective, nranks
        Those of the rows; a correction by size applies only to these.
    parameters
        Names from :data:`PARAMETERS` to fit; default: those that the rows allow.

    Raises
    ------
    ConfigError
        Without rows, or for more parameters than there are rows.
    """
    return fit_series([Series.of(collective, nranks, rows, predictor)], parameters)


def fit_series(series: Sequence[Series], parameters: Sequence[str] | None = None) -> Calibration:
    """Fit one calibration to several tables of a machine.

    Raises
    ------
    ConfigError
        Without rows, or for more parameters than there are rows.
    """
    rows = [(place, size, time) for place, each in enumerate(series) for size, time in each.rows]
    rest = _Rest(series)
    found = _fitted(rows, rest, _wanted(rows, parameters))
    return replace(found, corrections=_corrections(series, rows, rest, found))


def left_out(series: Sequence[Series], parameters: Sequence[str] | None = None) -> tuple[LeftOut, ...]:
    """Predict each row by a fit without it; with many rows, an eighth is excluded at a time.

    Empty if a fit without some rows would have too few.
    """
    rows = [(place, size, time) for place, each in enumerate(series) for size, time in each.rows]
    folds = min(len(rows), FOLDS)
    rest, found = _Rest(series), []
    before = [dict(zip(each.sizes, each.predicted(Calibration()), strict=True)) for each in series]
    for fold in range(folds if len(rows) > 2 else 0):
        kept = [row for number, row in enumerate(rows) if number % folds != fold]
        try:
            fitted = _fitted(kept, rest, _wanted(kept, parameters))
        except ConfigError:
            return ()
        fitted = replace(fitted, corrections=_corrections(series, kept, rest, fitted))
        after = [dict(zip(each.sizes, each.predicted(fitted), strict=True)) for each in series]
        for place, size, time in rows[fold::folds]:
            own = series[place]
            errors = before[place][size] / time - 1, after[place][size] / time - 1
            found.append((place, size, LeftOut(own.collective, own.nranks, size, *errors)))
    return tuple(each for _, _, each in sorted(found, key=lambda entry: entry[:2]))


def _wanted(rows: Sequence[tuple[int, int, int]], parameters: Sequence[str] | None) -> tuple[str, ...]:
    """The parameters to fit: those given, or those that the rows allow."""
    if not rows:
        raise ConfigError("a fit needs at least one row with a size and a time; two for launch offset and rate")
    if parameters is None:
        sizes = sorted(size for _, size, _ in rows)
        ends = [
            name
            for name, told in (
                ("launch", sizes[0] <= SMALL_BYTES or len({*sizes}) > 1),
                ("rate", sizes[-1] > SMALL_BYTES),
            )
            if told
        ]
        if len({*sizes}) < 2:
            return (ends[0],)
        return tuple(ends + list(PARAMETERS[2:] if len(rows) >= ROWS_FOR_MORE else ()))
    for name in parameters:
        if name not in PARAMETERS:
            raise ConfigError(f"unknown parameter {name!r}; {nearest(name, PARAMETERS)}")
    if len(parameters) > len(rows):
        raise ConfigError(
            f"{counted(len(rows), 'row')} cannot fit {len(parameters)} parameters ({', '.join(parameters)}); measure more sizes"
        )
    return tuple(parameters)


def _launch(rest: Sequence[int], rows: Sequence[tuple[int, int, int]]) -> int:
    """The offset with the least sum of relative errors: a weighted median of measured minus predicted time."""
    ranked = sorted((time - short, 10**30 // time) for short, (_, _, time) in zip(rest, rows, strict=True))
    all_weights, passed = sum(weight for _, weight in ranked), 0
    offset = ranked[-1][0]
    for place, (value, weight) in enumerate(ranked):
        passed += weight
        if 2 * passed >= all_weights:
            offset = (value + ranked[place + 1][0]) // 2 if 2 * passed == all_weights else value
            break
    return min(max(offset, -int(min(rest) * (1 - LEAST_SHARE)), -MOST_LAUNCH_FS), MOST_LAUNCH_FS)


def _calibration(units: dict[str, int]) -> Calibration:
    """Rate, growth and fabric latency at a point of the lattice."""
    rate, growth = (in_millionths(math.exp(units[name] * _UNITS[name])) for name in ("rate", "growth"))
    return Calibration(0, rate, units["fabric_latency"] * int(_UNITS["fabric_latency"]), growth)


def _fitted(rows: Sequence[tuple[int, int, int]], rest: _Rest, wanted: Sequence[str]) -> Calibration:
    """Search the parameters, one after another and then once more together."""

    def tried(units: dict[str, int]) -> tuple[float, Calibration]:
        found = _calibration(units)
        times = rest.times(rows, found)
        if "launch" in wanted:
            found = replace(found, launch_fs=_launch(times, rows))
        errors = [
            abs(math.log(max(t + found.launch_fs, row[2] / 20) / row[2])) for t, row in zip(times, rows, strict=True)
        ]
        # A parameter that rows do not determine stays near its neutral value.
        strain = sum(abs(value) / _BOUNDS[name] for name, value in units.items())
        return (sum(errors) + strain / 20) / len(rows), found

    units = dict.fromkeys(_UNITS, 0)
    best = tried(units)
    taken: list[str] = []
    for name in (name for name in PARAMETERS[1:] if name in wanted):
        trial, better = _search([*taken, name], dict(units), best, tried)
        if name == "rate" or better[0] < min((1 - GAIN) * best[0], best[0] - LEAST_GAIN):
            units, best = trial, better
            taken.append(name)
    return best[1]


def _search(
    names: Sequence[str],
    units: dict[str, int],
    best: tuple[float, Calibration],
    tried: Callable[[dict[str, int]], tuple[float, Calibration]],
) -> tuple[dict[str, int], tuple[float, Calibration]]:
    """Descend on the lattice with decreasing steps."""
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        for name in (*names, *names):
            for change in (step, -step):
                moved = {**units, name: units[name] + change}
                while abs(moved[name]) <= _BOUNDS[name] and (found := tried(moved))[0] < best[0] - 1e-9:
                    units, best = moved, found
                    moved = {**units, name: units[name] + change}
    return units, best


def _corrections(
    series: Sequence[Series], rows: Sequence[tuple[int, int, int]], rest: _Rest, fitted: Calibration
) -> tuple[Correction, ...]:
    """The residual by size, for every series with enough rows.

    The least size keeps its full deviation, since sizes that take as long deviate equally.
    """
    found = []
    bare = replace(fitted, launch_fs=0)
    for place, each in enumerate(series):
        own = [row for row in rows if row[0] == place]
        if len(own) < ROWS_FOR_CORRECTION:
            continue
        left = [
            math.log(time / max(short + fitted.launch_fs, time / 20))
            for short, (_, _, time) in zip(rest.times(own, bare), own, strict=True)
        ]
        taken = [left[0], *(SHARE_OF_RESIDUAL * value for value in left[1:])]
        points = _finer([size for _, size, _ in own], taken, each, fitted)
        bounded = ((size, min(max(math.exp(value), float(LEAST)), float(MOST))) for size, value in points)
        kept = tuple((size, in_millionths(factor)) for size, factor in bounded)
        found.append(Correction(each.collective, each.nranks, kept))
    return tuple(found)


def _finer(
    sizes: Sequence[int], values: Sequence[float], series: Series, fitted: Calibration
) -> list[tuple[int, float]]:
    """The points with doublings of small sizes between them, whose values follow the predicted time.

    From 8 B to some KiB times are nearly constant and only then grow, so the deviation at 64 KiB says little about 1 KiB.
    """
    powers = {1 << power for power in range(LATENCY_BYTES.bit_length()) if sizes[0] < 1 << power < LATENCY_BYTES}
    grid = sorted({*sizes, *(size for size in powers if size < sizes[-1])})
    time = {size: math.log(max(fs, 1)) for size, fs in zip(grid, series.predictor(grid, fitted), strict=True)}
    found = []
    for size in grid:
        after = bisect_right(sizes, size)
        value = values[after - 1]
        if size not in sizes:
            low, high = sizes[after - 1], sizes[after]
            grown = max(time[size] - time[low], 0.0) + EVEN * math.log(size / low) / math.log(high / low)
            share = min(1.0, grown / (max(time[high] - time[low], 0.0) + EVEN))
            value += share * (values[after] - value)
        found.append((size, value))
    return found
