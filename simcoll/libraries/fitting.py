"""Fit a calibration to measured rows: few parameters, robust against outliers, deterministic.

The launch offset for any rate is a weighted median, found without a search. Rate, growth and fabric
latency are searched on a lattice, so that equal rows yield equal bytes. A parameter is fitted only
if the rows determine it; others keep their neutral value.
"""

# Why so, and not by least squares:
#
# - The error of a row is |log(predicted / measured)|, whose sum is minimised. Squares would let a
#   single row disturbed by another job move all numbers; here it counts like any other row.
#   Logarithms count 8 B and 8 GiB alike, and too slow by half like too fast by half.
# - Launch is the only additive parameter. With the others fixed, the offset of the least sum of
#   relative errors is the median of those that the rows show, each weighted by how far the row's
#   relative error moves with it: no search, which would be slower and depend on its start.
#   It is hidden beside operations longer than the one where it was measured, as squares add:
#   an offset of 8 B that stays whole makes 64 KiB to 16 MiB worse on one table in six.
# - The others act inside the library's choice of algorithm and protocol: the error has jumps where
#   the choice changes, and no gradient there. The search needs none, only comparisons: a descent
#   with steps of 128 units, then 64, down to 1.
#   Invariant: all(abs(units[name]) <= _BOUNDS[name]), and units are integers. A point of the
#   lattice is reached by one path of exact steps, so the same rows in another order, on another
#   machine, give the same calibration file; the last bits of a continuous optimum would not.
# - Parameters are added one by one and stay only for a real gain (GAIN, LEAST_GAIN). All at once
#   they would trade with each other: with few rows, a slow fabric looks much like a lower rate.
# - What remains is kept as a correction by size, and only for the collective and ranks that showed
#   it (``residuals.py``). Within one choice it never falls by more than the time grows.
# - Few rows cannot judge their own fit by leaving some out. So the launch is then drawn towards
#   none, by the positive part of James and Stein: a deviation x counts 1 - (scatter / x)^2, and
#   nothing below the scatter of rows about the two-point calibrations of that library, in a node or
#   over several, which its file states. And launch and rate fade with the distance to the rows that
#   showed them, as rows of the library do: at one doubling of the size of the rate's row others
#   deviate from it by 1.3 %, at four by 8 %, as much as they deviate without a calibration.
# - A machine that is slower than predicted at its end is so at other sizes, too, and with other
#   algorithms; one that is faster is so near there: of a rate that is too high by 2 to 6 % in a
#   node, two thirds are left at half of the size, and none at an eighth. So rates above 1 fade
#   sooner and are those of their algorithm, and a launch below 0 also fades with the size.
# - Many rows judge five forms of a fit by leaving some out. Of six rows, four are left out, which
#   mostly tell noise: forms that they prefer by a third made the mean error of large sizes 3.2 %,
#   launch and rate of the ends with a correction always 2.8 %.

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from statistics import median, median_low
from typing import NamedTuple, Protocol

import numpy as np

from simcoll.arrays import Floats
from simcoll.core.collective import collective_kind
from simcoll.errors import ConfigError, nearest
from simcoll.formats.logs.nccl_tuning import TuningTable
from simcoll.libraries.calibration import (
    LEAST,
    LEAST_SHARE,
    MOST,
    Calibration,
    Correction,
    in_millionths,
)
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.library import Library, library_for
from simcoll.libraries.prediction import choose, in_time, launched_us
from simcoll.libraries.question import Question, question_on
from simcoll.libraries.residuals import SizePoint, deviations, without_falls
from simcoll.topology import Topology
from simcoll.units import counted, format_size, format_time

__all__ = [
    "PARAMETERS",
    "WARM_UP",
    "LeftOut",
    "LibraryFormula",
    "Predictor",
    "Series",
    "TimedRow",
    "fit",
    "fit_series",
    "formula",
    "left_out",
]

PARAMETERS = ("launch", "rate", "growth", "fabric_latency")
"""In the order in which they are added to a fit."""

Predictor = Callable[[Sequence[int], Calibration], Sequence[int]]
"""Femtoseconds for sizes in bytes under a calibration; adds ``launch_fs`` once, and applies the
correction.
"""

WARM_UP = 1.5
"""A first row that takes this many times its successor's time is considered warm-up."""
DISTURBED = 1.5
"""A row that takes this many times the time of a larger size says nothing about other sizes."""
SMALL_BYTES = 2**20
"""Largest size at which a launch offset is visible; in larger rows it would absorb other errors."""
ROWS_FOR_MORE = 4
"""Number of rows from which growth and fabric latency are also tried."""
ROWS_FOR_CORRECTION = 6
ROWS_FOR_FORMS = 12
"""Number of rows from which the form of a fit is chosen by leaving some out."""
CERTAIN = 0.9
"""Share of the growth between finer sizes by which a correction may fall: times may be flatter
between those.
"""
GAIN, LEAST_GAIN = 0.2, 0.005
"""Least reduction, as a share of the mean error and of the times, for which another parameter is
added.
"""
MOST_LAUNCH_FS = 100 * 10**9
MOST_NEGATIVE = Fraction(1, 5)
"""Largest negative launch, as a share of the shortest time, that a fast host has."""
FOLDS = 8

# Step sizes of the search: the coarsest is 128 units, the finest 1. Bounds keep factors within a
# calibration's limits.
_UNITS = {"rate": 0.05 / 32, "growth": 0.35 / 32, "fabric_latency": 156_250_000}
_BOUNDS = {"rate": 900, "growth": 180, "fabric_latency": 12_800}


class TimedRow(Protocol):
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

    ``rows`` are sizes in bytes and times in femtoseconds, in order of size; ``aside`` describes the
    rows that the fit excludes.
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

    def predict(self, calibration: Calibration) -> dict[int, int]:
        """Predicted femtoseconds of every row, by its size."""
        return dict(zip(self.sizes, self.predictor(self.sizes, calibration), strict=True))

    @classmethod
    def of(
        cls, collective: str, nranks: int, rows: Sequence[TimedRow], predictor: Predictor
    ) -> Series:
        """Raw rows condensed: the median of each size, without a first row that is warm-up.

        Raises
        ------
        ConfigError
            For sizes or times that are not above 0.
        """
        times: dict[int, list[int]] = {}
        for row in rows:
            if row.size_bytes <= 0 or row.time_fs <= 0:
                raise ConfigError(
                    f"a fit needs sizes and times above 0, got {row.size_bytes} bytes, "
                    f"{row.time_fs} fs"
                )
            times.setdefault(row.size_bytes, []).append(row.time_fs)
        medians = [(size, int(median(times[size]))) for size in sorted(times)]
        aside: tuple[str, ...] = ()
        if len(medians) > 1 and medians[0][1] > WARM_UP * medians[1][1]:
            (size, time), (_, later) = medians[:2]
            aside = (
                (
                    f"{format_size(size)} took {format_time(time)}, {time / later:.1f} times the "
                    "next "
                    "size: warm-up"
                ),
            )
            medians = medians[1:]
        return cls(collective, nranks, tuple(medians), predictor, aside)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row predicted by a fit that excluded it: relative errors without and with the
    calibration.
    """

    collective: str
    nranks: int
    size_bytes: int
    uncalibrated_error: float
    calibrated_error: float


class _FitRow(NamedTuple):
    """A row of one of the series that are fitted together."""

    series: int
    size_bytes: int
    time_fs: int


def _fit_rows(series: Sequence[Series]) -> list[_FitRow]:
    return [
        _FitRow(number, size, time)
        for number, table in enumerate(series)
        for size, time in table.rows
    ]


class _BareTimes:
    """Predicted times without launch offset and correction, cached by the parameters that they
    depend on.
    """

    def __init__(self, series: Sequence[Series]) -> None:
        self._series = series
        self._cache: dict[tuple[int, ...], list[dict[int, int]]] = {}

    def of(self, rows: Iterable[_FitRow], calibration: Calibration) -> list[int]:
        """Times of rows."""
        rate, growth = calibration.rate.as_integer_ratio(), calibration.growth.as_integer_ratio()
        key = (*rate, *growth, calibration.fabric_latency_fs)
        if key not in self._cache:
            self._cache[key] = [table.predict(calibration) for table in self._series]
        return [max(1, self._cache[key][row.series][row.size_bytes]) for row in rows]


@dataclass(frozen=True, slots=True)
class LibraryFormula:
    """A :data:`Predictor` by a library's corrected formula, for all sizes at once.

    Attributes
    ----------
    question
        The collective, without a calibration.
    tuning
        NCCL's own tuning tables of the machine, which fix its choice.
    """

    question: Question
    tuning: tuple[TuningTable, ...] = ()

    def __call__(self, sizes: Sequence[int], calibration: Calibration) -> list[int]:
        """Predict in femtoseconds."""
        question = self._question(calibration)
        size_bytes = np.array(sizes, float)
        costs, picks = choose(question, size_bytes)
        times_us = np.array([cost.time_us(size_bytes) for cost in costs])[
            picks, np.arange(len(sizes))
        ]
        launched = launched_us(times_us, question).tolist()
        return [
            calibration.corrected_fs(in_time(time), question.collective, question.nranks, size)
            for size, time in zip(sizes, launched, strict=True)
        ]

    def choices(self, sizes: Sequence[int], calibration: Calibration) -> list[tuple[str, str]]:
        """Algorithm and protocol for sizes."""
        costs, picks = choose(self._question(calibration), np.array(sizes, float))
        return [(costs[pick].algorithm, costs[pick].protocol) for pick in picks.tolist()]

    def _question(self, calibration: Calibration) -> Question:
        if self.tuning:
            calibration = replace(calibration, tuning=self.tuning)
        return replace(self.question, calibration=calibration)

    def scatter(self, parameter: str) -> float:
        """The scatter of rows about two-point calibrations (``scatter`` of a library file), as a
        share of the time; 0 if the library states none.
        """
        values = self.question.library.numbers(f"scatter.{parameter}")
        several_nodes = bool(self.question.fabric)
        return values[several_nodes] if len(values) > several_nodes else 0.0


def formula(
    collective: str,
    topology: Topology,
    library: str | Library | None = None,
    environment: Environment = DEFAULT,
) -> LibraryFormula:
    """A predictor by a library's corrected formula, for all sizes at once.

    Raises
    ------
    ConfigError
        When the library has no numbers for the machine.
    """
    model = library_for(library, topology)
    return LibraryFormula(question_on(collective_kind(collective), topology, model, environment))


def fit(
    rows: Sequence[TimedRow],
    predictor: Predictor,
    *,
    collective: str = "",
    nranks: int = 0,
    parameters: Sequence[str] | None = None,
) -> Calibration:
    """Fit a calibration to the rows of one table.

    Parameters
    ----------
    rows
        Two suffice for launch offset and rate (for example 8 B and 1 GiB), six for a correction by
        size (also 64 KiB, 1, 8 and 64 MiB).
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
    data = _Data(series, _fit_rows(series), _BareTimes(series), parameters, {})
    return _fit_in_form(data, _best_form(data))


class _FitForm(NamedTuple):
    """What a fit of a calibration uses and keeps.

    ``ends_only`` fits launch offset and rate to the least and the greatest size of each series,
    ``all_parameters`` tries growth and fabric latency too, ``corrected`` keeps the residuals by
    size, and ``drawn`` draws the launch towards none and lets launch and rate fade.
    """

    ends_only: bool
    all_parameters: bool
    corrected: bool
    drawn: bool = False


_EVERYTHING = _FitForm(ends_only=False, all_parameters=True, corrected=True)
_OF_ENDS = _FitForm(ends_only=True, all_parameters=False, corrected=True, drawn=True)
_OTHER_FORMS = (
    _EVERYTHING,
    _FitForm(ends_only=False, all_parameters=True, corrected=False),
    _FitForm(ends_only=False, all_parameters=False, corrected=True),
    _FitForm(ends_only=True, all_parameters=False, corrected=False),
)
CLEARLY_BETTER = Fraction(2, 3)
"""Share of the error of the ends' form that another must stay below to be taken."""


class _Data(NamedTuple):
    """The rows of a fit, with their times before launch and correction, the parameters asked for,
    and the fits made so far, by rows and parameters.
    """

    series: Sequence[Series]
    rows: Sequence[_FitRow]
    bare_times: _BareTimes
    parameters: Sequence[str] | None
    fits: dict[tuple[tuple[_FitRow, ...], tuple[str, ...]], Calibration]


def _best_form(data: _Data) -> _FitForm:
    """That of the ends, unless the fits of another form predict rows that they do not know clearly
    better; for rows that cannot tell, that of few rows.

    The ends of a series are always known, since no calibration does without them: a row between
    them that is far off, by another job or another choice of the library, must not move what the
    ends say.
    """
    if data.parameters is not None:
        return _EVERYTHING
    ends = set(_ends(data.rows))
    between = [row for row in data.rows if row not in ends]
    if len(data.rows) < ROWS_FOR_FORMS or not between:
        return _OF_ENDS
    folds = [between[start::FOLDS] for start in range(min(FOLDS, len(between)))]
    errors = {
        form: sum(_errors_without(data, form, unknown) for unknown in folds)
        for form in (_OF_ENDS, *_OTHER_FORMS)
    }
    best = min(errors, key=errors.__getitem__)
    return best if errors[best] < CLEARLY_BETTER * errors[_OF_ENDS] else _OF_ENDS


def _errors_without(data: _Data, form: _FitForm, unknown: Sequence[_FitRow]) -> float:
    """Sum of the errors of rows under a calibration that was fitted without them."""
    rows = [row for row in data.rows if row not in unknown]
    calibration = _fit_in_form(data._replace(rows=rows), form, len(data.rows) - len(rows))
    predictions = [table.predict(calibration) for table in data.series]
    return sum(
        abs(math.log(predictions[row.series][row.size_bytes] / row.time_fs)) for row in unknown
    )


def _ends(rows: Sequence[_FitRow]) -> list[_FitRow]:
    """The rows of the least and the greatest size of each series."""
    ends = {
        end(row for row in rows if row.series == number)
        for number in {row.series for row in rows}
        for end in (min, max)
    }
    return sorted(ends)


def _fit_in_form(data: _Data, form: _FitForm, absent: int = 0) -> Calibration:
    """Fit in one form; ``absent`` rows are left out for a trial, and count as if known."""
    basis = _ends(data.rows) if form.ends_only else data.rows
    names = _parameters_of(basis, data.parameters)
    if not form.all_parameters:
        names = tuple(name for name in names if name in PARAMETERS[:2])
    request = tuple(basis), names
    if request not in data.fits:
        data.fits[request] = _fit_parameters(basis, data.bare_times, names)
    calibration = data.fits[request]
    if form.drawn:
        calibration = _of_few_rows(calibration, data.series, basis)
    if not form.corrected:
        return calibration
    least_rows = ROWS_FOR_CORRECTION - absent
    corrections = _corrections(data.series, data.rows, calibration, least_rows)
    return replace(calibration, corrections=corrections)


def _of_few_rows(
    calibration: Calibration, series: Sequence[Series], rows: Sequence[_FitRow]
) -> Calibration:
    """The calibration with its launch drawn towards none, and with launch and rate that fade."""
    beside_fs = calibration.hidden_from_fs
    if beside_fs:
        late = math.log(1 + calibration.launch_fs / beside_fs)
        small = sum(row.size_bytes <= SMALL_BYTES for row in rows)
        share = _share_beyond(float(_scatter(series, "launch")), late, small)
        calibration = replace(calibration, launch_fs=int(share * calibration.launch_fs))
    if calibration.launch_fs:
        launch_scatter = _scatter(series, "launch_doubling")
        calibration = replace(calibration, launch_scatter=launch_scatter)
    size_scatter = _scatter(series, "launch_size_doubling")
    if calibration.launch_fs < 0 and size_scatter:
        smallest = min(row.size_bytes for row in rows)
        calibration = replace(calibration, launch_size_scatter=size_scatter, launch_bytes=smallest)
    if calibration.rate == 1:
        return calibration
    largest = max(row.size_bytes for row in rows)
    rate_scatter = _scatter(series, "rate_doubling")
    if calibration.rate > 1:
        rate_scatter = _scatter(series, "faster_doubling")
        calibration = replace(calibration, rate_algorithm=_algorithm(series, calibration, largest))
    if rate_scatter:
        calibration = replace(calibration, rate_scatter=rate_scatter, rate_bytes=largest)
    return calibration


def _algorithm(series: Sequence[Series], calibration: Calibration, size_bytes: int) -> str:
    """The algorithm of a size in all series; empty if it differs, or if no library tells."""
    algorithms = {
        predictor.choices([size_bytes], calibration)[0][0]
        if isinstance(predictor := table.predictor, LibraryFormula)
        else ""
        for table in series
    }
    return algorithms.pop() if len(algorithms) == 1 else ""


def _scatter(series: Sequence[Series], parameter: str) -> Fraction:
    """The greatest scatter of the series, 0 for those without a library."""
    predictors = [table.predictor for table in series]
    scatters = [
        predictor.scatter(parameter)
        for predictor in predictors
        if isinstance(predictor, LibraryFormula)
    ]
    return in_millionths(max(scatters, default=0.0))


def _share_beyond(scatter: float, deviation: float, rows: int) -> float:
    """The share of a deviation that rows support, by the positive part of James and Stein.

    >>> _share_beyond(0.1, 0.2, 1), _share_beyond(0.1, 0.05, 1)
    (0.75, 0.0)
    """
    if not deviation:
        return 0.0
    return max(0.0, 1 - scatter**2 / (max(1, rows) * deviation**2))


def left_out(
    series: Sequence[Series], parameters: Sequence[str] | None = None
) -> tuple[LeftOut, ...]:
    """Predict each row by a fit without it; with many rows, an eighth is excluded at a time.

    The form of the fit is chosen once, with all rows. Empty if a fit without some rows would have
    too few.
    """
    rows, bare_times = _fit_rows(series), _BareTimes(series)
    data = _Data(series, rows, bare_times, parameters, {})
    folds, form = min(len(rows), FOLDS), _best_form(data)
    uncalibrated = [table.predict(Calibration()) for table in series]
    predictions = []
    for fold in range(folds if len(rows) > 2 else 0):
        fit_rows = [row for number, row in enumerate(rows) if number % folds != fold]
        try:
            calibration = _fit_in_form(data._replace(rows=fit_rows), form)
        except ConfigError:
            return ()
        calibrated = [table.predict(calibration) for table in series]
        for row in rows[fold::folds]:
            table, size = series[row.series], row.size_bytes
            uncalibrated_error = uncalibrated[row.series][size] / row.time_fs - 1
            calibrated_error = calibrated[row.series][size] / row.time_fs - 1
            errors = LeftOut(
                table.collective, table.nranks, size, uncalibrated_error, calibrated_error
            )
            predictions.append((row.series, size, errors))
    return tuple(errors for _, _, errors in sorted(predictions, key=lambda entry: entry[:2]))


def _parameters_of(rows: Sequence[_FitRow], parameters: Sequence[str] | None) -> tuple[str, ...]:
    """The parameters to fit: those given, or those that the rows allow."""
    if not rows:
        raise ConfigError(
            "a fit needs at least one row with a size and a time; two for launch offset and rate"
        )
    if parameters is None:
        sizes = sorted({row.size_bytes for row in rows})
        ends = []
        if sizes[0] <= SMALL_BYTES or len(sizes) > 1:
            ends.append("launch")
        if sizes[-1] > SMALL_BYTES:
            ends.append("rate")
        if len(sizes) < 2:
            return (ends[0],)
        return tuple(ends + list(PARAMETERS[2:] if len(rows) >= ROWS_FOR_MORE else ()))
    for name in parameters:
        if name not in PARAMETERS:
            raise ConfigError(f"unknown parameter {name!r}; {nearest(name, PARAMETERS)}")
    if len(parameters) > len(rows):
        raise ConfigError(
            f"{counted(len(rows), 'row')} cannot fit {len(parameters)} parameters "
            f"({', '.join(parameters)}); measure more sizes"
        )
    return tuple(parameters)


def _beside(bare_times_fs: Sequence[int], rows: Sequence[_FitRow]) -> int:
    """The library's time beside which a launch is measured whole: that of the least size, of the
    median series.
    """
    least_of_series: dict[int, tuple[int, int]] = {}
    for time_fs, row in zip(bare_times_fs, rows, strict=True):
        point = row.size_bytes, time_fs
        least_of_series[row.series] = min(point, least_of_series.get(row.series, point))
    return median_low(time_fs for _, time_fs in least_of_series.values())


def _launch(bare_times_fs: Sequence[int], rows: Sequence[_FitRow], beside_fs: int) -> int:
    """The offset with the least sum of relative errors: a weighted median of those that rows
    show.
    """
    offsets = []
    for bare_fs, row in zip(bare_times_fs, rows, strict=True):
        if bare_fs <= beside_fs:
            offsets.append((row.time_fs - bare_fs, 10**30 // row.time_fs))
        else:  # a part is hidden, so that this row tells less
            square = row.time_fs**2 - bare_fs**2 + beside_fs**2
            launched_fs = math.isqrt(max(0, square))
            offsets.append((launched_fs - beside_fs, 10**30 * launched_fs // row.time_fs**2))
    offsets.sort()
    all_weights, passed = sum(weight for _, weight in offsets), 0
    launch_fs = offsets[-1][0]
    for position, (offset, weight) in enumerate(offsets):
        passed += weight
        if 2 * passed >= all_weights:
            launch_fs = (
                (offset + offsets[position + 1][0]) // 2 if 2 * passed == all_weights else offset
            )
            break
    return min(
        max(launch_fs, -int(min(bare_times_fs) * (1 - LEAST_SHARE)), -MOST_LAUNCH_FS),
        MOST_LAUNCH_FS,
    )


def _calibration(units: dict[str, int]) -> Calibration:
    """Rate, growth and fabric latency at a point of the lattice."""
    rate, growth = (
        in_millionths(math.exp(units[name] * _UNITS[name])) for name in ("rate", "growth")
    )
    return Calibration(0, rate, units["fabric_latency"] * int(_UNITS["fabric_latency"]), growth)


_Score = tuple[float, Calibration]
"""Mean error of a calibration, and the calibration."""


def _fit_parameters(
    rows: Sequence[_FitRow], bare_times: _BareTimes, parameters: Sequence[str]
) -> Calibration:
    """Search the parameters, one after another and then once more together."""

    def score(units: dict[str, int]) -> _Score:
        calibration = _calibration(units)
        times = bare_times.of(rows, calibration)
        if "launch" in parameters:
            beside_fs = _beside(times, rows)
            launch_fs = _launch(times, rows, beside_fs)
            calibration = replace(calibration, launch_fs=launch_fs, hidden_from_fs=beside_fs)
        errors = [
            abs(math.log(max(float(calibration.launched_fs(time)), row.time_fs / 20) / row.time_fs))
            for time, row in zip(times, rows, strict=True)
        ]
        # A parameter that rows do not determine stays near its neutral value.
        strain = sum(abs(value) / _BOUNDS[name] for name, value in units.items())
        return (sum(errors) + strain / 20) / len(rows), calibration

    units = dict.fromkeys(_UNITS, 0)
    best = score(units)
    fitted_names: list[str] = []
    for name in (name for name in PARAMETERS[1:] if name in parameters):
        trial, better = _descend([*fitted_names, name], dict(units), best, score)
        # A launch that is far less than none would make room for any other parameter.
        least_launch_fs = -int(MOST_NEGATIVE * better[1].hidden_from_fs)
        is_sound = better[1].launch_fs >= min(least_launch_fs, best[1].launch_fs)
        gains = better[0] < min((1 - GAIN) * best[0], best[0] - LEAST_GAIN)
        if name == "rate" or (gains and is_sound):
            units, best = trial, better
            fitted_names.append(name)
    return best[1]


def _descend(
    names: Sequence[str],
    units: dict[str, int],
    best: _Score,
    score: Callable[[dict[str, int]], _Score],
) -> tuple[dict[str, int], _Score]:
    """Descend on the lattice with decreasing steps."""
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        for name in (*names, *names):
            for change in (step, -step):
                moved = {**units, name: units[name] + change}
                while (
                    abs(moved[name]) <= _BOUNDS[name]
                    and (trial := score(moved))[0] < best[0] - 1e-9
                ):
                    units, best = moved, trial
                    moved = {**units, name: units[name] + change}
    return units, best


def _corrections(
    series: Sequence[Series],
    rows: Sequence[_FitRow],
    calibration: Calibration,
    least_rows: int,
) -> tuple[Correction, ...]:
    """The residual by size, for every series with enough rows."""
    corrections = []
    for number, table in enumerate(series):
        times_fs = {row.size_bytes: row.time_fs for row in rows if row.series == number}
        if len(times_fs) >= least_rows:
            points = _residual_curve(table, _times_without_disturbance(times_fs), calibration)
            corrections.append(Correction(table.collective, table.nranks, points))
    return tuple(corrections)


def _times_without_disturbance(measured_fs: Mapping[int, int]) -> dict[int, int]:
    """The times that are not far above that of a larger size, as those are that another job
    disturbed.
    """
    times_fs: dict[int, int] = {}
    least_fs = math.inf
    for size, time_fs in sorted(measured_fs.items(), reverse=True):
        least_fs = min(least_fs, time_fs)
        if time_fs <= DISTURBED * least_fs:
            times_fs[size] = time_fs
    return times_fs


def _residual_curve(
    series: Series, measured_fs: Mapping[int, int], calibration: Calibration
) -> tuple[tuple[int, Fraction], ...]:
    """Measured over predicted time at the measured sizes and at two for each doubling between."""
    sizes = sorted(measured_fs)
    fine, grid = (sorted({*sizes, *_size_steps(sizes, steps)}) for steps in (16, 2))
    point_of_size = dict(zip(fine, _size_points(series, fine, calibration), strict=True))
    residuals = [
        math.log(measured_fs[size] / max(point_of_size[size].time_fs, measured_fs[size] / 20))
        for size in sizes
    ]
    rows, points = ([point_of_size[size] for size in some] for some in (sizes, grid))
    growths = _least_growths(points, list(point_of_size.values()))
    limits = math.log(LEAST), math.log(MOST)
    values = np.clip(without_falls(deviations(rows, residuals, points), growths), *limits)
    return tuple(
        (size, in_millionths(math.exp(value)))
        for size, value in zip(grid, values.tolist(), strict=True)
    )


def _size_steps(sizes: Sequence[int], steps: int) -> list[int]:
    """Sizes between the first and the last, so many for each doubling, and those right below
    powers of two, at which many times jump.
    """
    smallest, greatest = sizes[0], sizes[-1]
    powers = range(steps * (smallest.bit_length() - 1), steps * greatest.bit_length() + 1)
    sizes_of_powers = {int(2 ** (power / steps)) for power in powers}
    below_jumps = {(1 << power) - 1 for power in range(greatest.bit_length())}
    return [size for size in sizes_of_powers | below_jumps if smallest < size < greatest]


def _size_points(series: Series, sizes: Sequence[int], calibration: Calibration) -> list[SizePoint]:
    times_fs = series.predictor(sizes, calibration)
    choices = [("", "")] * len(sizes)
    if isinstance(series.predictor, LibraryFormula):
        choices = series.predictor.choices(sizes, calibration)
    return [SizePoint(*values) for values in zip(sizes, times_fs, choices, strict=True)]


def _least_growths(grid: Sequence[SizePoint], fine: Sequence[SizePoint]) -> Floats:
    """By how much, in logarithms, times grow at least between neighbours on a grid: as slowly as
    within one choice at any finer size there, or next to there unless they are next to each other.
    """
    slopes = [
        math.log(max(1, larger.time_fs) / max(1, smaller.time_fs))
        / math.log(larger.size_bytes / smaller.size_bytes)
        if smaller.choice == larger.choice
        else math.inf
        for smaller, larger in pairwise(fine)
    ]
    sizes = [point.size_bytes for point in fine]
    growths = []
    for low, high in pairwise(grid):
        start, end = bisect_left(sizes, low.size_bytes), bisect_left(sizes, high.size_bytes)
        around = (start, end) if high.size_bytes == low.size_bytes + 1 else (start - 1, end + 1)
        slope = max(0.0, min(slopes[max(0, around[0]) : around[1]]))
        growths.append(CERTAIN * slope * math.log(high.size_bytes / low.size_bytes))
    return np.array([growth if math.isfinite(growth) else 0.0 for growth in growths])
