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
# - What remains is kept as a correction by size, damped by SHARE_OF_RESIDUAL, and only for the
#   collective and ranks that showed it.
# - Few rows cannot judge their own fit by leaving some out. So the launch is then drawn towards
#   none, by the positive part of James and Stein: a deviation x counts 1 - (scatter / x)^2, and
#   nothing below the scatter of rows about the two-point calibrations of that library, in a node or
#   over several, which its file states. And launch and rate fade with the distance to the rows that
#   showed them, as rows of the library do: at one doubling of the size of the rate's row others
#   deviate from it by 1.3 %, at four by 8 %, as much as they deviate without a calibration.
# - Many rows judge five forms of a fit by leaving some out. Of six rows, four are left out, which
#   mostly tell noise: the form with the least error of those made the median error of large sizes
#   2.0 %, launch and rate of the ends with corrections always 1.6 %.

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median, median_low
from typing import NamedTuple, Protocol

import numpy as np

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
SMALL_BYTES = 2**20
"""Largest size at which a launch offset is visible; in larger rows it would absorb other errors."""
ROWS_FOR_MORE = 4
"""Number of rows from which growth and fabric latency are also tried."""
ROWS_FOR_CORRECTION = 6
SHARE_OF_RESIDUAL = 0.8
"""Share of the residual that the correction absorbs; the rest is considered noise."""
LATENCY_BYTES, EVEN = 2**16, 0.03
"""Below this size, time is mostly latency: a correction between rows follows the predicted time,
and to this degree the size.
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
        if self.tuning:
            calibration = replace(calibration, tuning=self.tuning)
        question = replace(self.question, calibration=calibration)
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
_OF_FEW_ROWS = _EVERYTHING._replace(drawn=True)
_OF_ENDS = _FitForm(ends_only=True, all_parameters=False, corrected=True)
_OTHER_FORMS = (
    _EVERYTHING,
    _FitForm(ends_only=False, all_parameters=True, corrected=False),
    _FitForm(ends_only=False, all_parameters=False, corrected=True),
    _FitForm(ends_only=True, all_parameters=False, corrected=False),
)
CLEARLY_BETTER = Fraction(2, 3)
"""Share of the error of the ends' form that another must stay below to be taken. With 1, 0.9, 0.8,
2/3 and 0.5, six points of the published tables were off by 4.5 / 5.2 / 2.0, 4.2 / 5.2 / 1.9,
4.2 / 4.9 / 1.7, 4.0 / 4.6 / 1.6 and 4.1 / 4.7 / 1.6 %.
"""


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
    if len(data.rows) < ROWS_FOR_CORRECTION or not between:
        return _OF_FEW_ROWS
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
    return [
        end(row for row in rows if row.series == number)
        for number in sorted({row.series for row in rows})
        for end in (min, max)
    ]


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
    corrections = _corrections(
        data.series, data.rows, data.bare_times, calibration, ROWS_FOR_CORRECTION - absent
    )
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
    rate_scatter = _scatter(series, "rate_doubling")
    if calibration.rate != 1 and rate_scatter:
        largest = max(row.size_bytes for row in rows)
        calibration = replace(calibration, rate_scatter=rate_scatter, rate_bytes=largest)
    return calibration


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
    bare_times: _BareTimes,
    calibration: Calibration,
    least_rows: int,
) -> tuple[Correction, ...]:
    """The residual by size, for every series with enough rows.

    The least size keeps its full deviation, since sizes that take as long deviate equally.
    """
    corrections = []
    without_launch = replace(calibration, launch_fs=0, hidden_from_fs=0)
    for number, table in enumerate(series):
        table_rows = [row for row in rows if row.series == number]
        if len(table_rows) < least_rows:
            continue
        residuals = [
            math.log(row.time_fs / max(float(calibration.launched_fs(bare_fs)), row.time_fs / 20))
            for bare_fs, row in zip(
                bare_times.of(table_rows, without_launch), table_rows, strict=True
            )
        ]
        damped = [residuals[0], *(SHARE_OF_RESIDUAL * residual for residual in residuals[1:])]
        points = _finer([row.size_bytes for row in table_rows], damped, table, calibration)
        bounded = (
            (size, min(max(math.exp(value), float(LEAST)), float(MOST))) for size, value in points
        )
        factors = tuple((size, in_millionths(factor)) for size, factor in bounded)
        corrections.append(Correction(table.collective, table.nranks, factors))
    return tuple(corrections)


def _finer(
    sizes: Sequence[int], values: Sequence[float], series: Series, calibration: Calibration
) -> list[tuple[int, float]]:
    """The points with doublings of small sizes between them, whose values follow the predicted
    time.

    From 8 B to some KiB times are nearly constant and only then grow, so the deviation at 64 KiB
    says little about 1 KiB.
    """
    powers = {
        1 << power
        for power in range(LATENCY_BYTES.bit_length())
        if sizes[0] < 1 << power < LATENCY_BYTES
    }
    grid = sorted({*sizes, *(size for size in powers if size < sizes[-1])})
    times_fs = series.predictor(grid, calibration)
    log_time = {
        size: math.log(max(time_fs, 1)) for size, time_fs in zip(grid, times_fs, strict=True)
    }
    points = []
    for size in grid:
        upper = bisect_right(sizes, size)
        value = values[upper - 1]
        if size not in sizes:
            low, high = sizes[upper - 1], sizes[upper]
            growth = max(log_time[size] - log_time[low], 0.0) + EVEN * math.log(
                size / low
            ) / math.log(high / low)
            share = min(1.0, growth / (max(log_time[high] - log_time[low], 0.0) + EVEN))
            value += share * (values[upper] - value)
        points.append((size, value))
    return points
