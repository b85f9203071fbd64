"""Calibrate a machine from logs of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from shlex import quote

from simcoll.errors import ConfigError
from simcoll.formats.logs.in_situ import BESIDE
from simcoll.formats.logs.nccl_tests import load_log
from simcoll.formats.logs.nccl_tuning import TuningTable
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.fitting import (
    MOST_LAUNCH_FS,
    MOST_NEGATIVE,
    LibraryFormula,
    Series,
    fit_series,
)
from simcoll.planning.measured.comparison import Setting, blame_log, check_request, settings_for
from simcoll.planning.measured.log_causes import log_causes
from simcoll.planning.measured.log_parameters import LogParameters
from simcoll.units import counted, format_signed, format_size

__all__ = ["Gathered", "fit_calibration", "gather", "refuse_sick_machine"]

MOST_FACTOR = 2
"""Largest factor, or its inverse, by which a sound machine differs from the one that the topology
describes.
"""


_OF_SOUND_RUNS = ("one_process", "host_settings")
"""Causes in a log that many sound runs have."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The content of logs that a calibration uses.

    Attributes
    ----------
    series
        Measured rows with their predictors, which follow NCCL's tuning table if there is one.
    tuning
        NCCL's tuning tables, without duplicates.
    sources, libraries
        A line for each series, and the library that predicts it.
    notes
        Content that was skipped.
    """

    series: tuple[Series, ...]
    tuning: tuple[TuningTable, ...]
    sources: tuple[str, ...]
    libraries: tuple[str, ...]
    notes: tuple[str, ...]


def gather(
    logs: Sequence[str | Path],
    topology: str,
    parameters: LogParameters = LogParameters(),  # noqa: B008 - it cannot change
) -> Gathered:
    """Read all logs.

    Raises
    ------
    ConfigError
        With the log, if it has nothing to fit.
    """
    settings: list[tuple[str, Setting]] = []
    tuning: dict[TuningTable, None] = {}
    notes: list[str] = []
    check_request(topology, parameters.environment)
    for path in logs:
        log, name = load_log(path), Path(path).name
        tuning |= dict.fromkeys(log.tuning)
        notes += [f"{name}: {note}" for note in log.notes]
        if log.tuning and not log.tables:
            continue
        with blame_log(log, path):
            log_settings, remarks = settings_for(log, topology, parameters)
        notes += [f"{name}: {note}" for note in remarks]
        if not parameters.environment:  # which replaces the log's
            limits = [limit for setting in log_settings for limit in _limits(setting)]
            notes += [f"{name}: {limit}" for limit in limits]
        if any(setting.table.facts.values("times") for setting in log_settings):
            raise ConfigError(
                "times of the CPU (-C 1), which does not wait for the operation; run nccl-tests "
                "without -C 1",
                file=str(path),
            )
        settings += [(name, setting) for setting in log_settings]
    settings = _of_one_situation(settings, notes)
    tables = tuple(tuning)
    series: list[Series] = []
    sources: list[str] = []
    for runs in _alike(settings):
        first_setting, rows = runs[0][1], [row for _, setting in runs for row in setting.table.rows]
        run_series = Series.of(
            first_setting.table.collective,
            first_setting.table.nranks,
            rows,
            _predictor(first_setting, tables),
        )
        again = len(rows) - len({row.size_bytes for row in rows})
        if again:
            notes.append(
                f"{first_setting.table.collective}: {again} rows of repeated sizes; medians are "
                "used"
            )
        series.append(run_series)
        titles = [f"{name}: {setting.table}" for name, setting in runs]
        sources += [*titles[:-1], "; set aside: ".join([titles[-1], *run_series.aside])]
    libraries = dict.fromkeys(str(setting.library) for _, setting in settings)
    return Gathered(tuple(series), tables, tuple(sources), tuple(libraries), tuple(notes))


def _limits(setting: Setting) -> list[str]:
    """What a log names that slows its machine down, and so the calibration to it."""
    return [
        f"{setting.table} ran under a limit, {cause.claim} ({cause.source}): the calibration is "
        "of the machine under it"
        for cause in log_causes(setting)
        if cause.cause not in _OF_SOUND_RUNS
    ]


def _of_one_situation(
    settings: Sequence[tuple[str, Setting]], notes: list[str]
) -> list[tuple[str, Setting]]:
    """The settings to fit together: rows in situ have no launch, so none of them beside those of
    benchmarks, and those beside computation only if there are no others.
    """
    situations = {setting.table.situation: name for name, setting in reversed(settings)}
    if "" in situations and len(situations) > 1:
        in_situ = next(name for situation, name in situations.items() if situation)
        raise ConfigError(
            f"rows in situ ({in_situ}) are not fitted together with those of a benchmark "
            f"({situations['']}), which have a launch; calibrate them apart"
        )
    if len(situations) < 2:
        return list(settings)
    number = sum(
        len(setting.table.rows) for _, setting in settings if setting.table.situation == BESIDE
    )
    notes.append(
        f"{counted(number, 'row')} beside computation left out: a calibration is of collectives "
        "alone, and --beside of simcoll job states how much longer they take"
    )
    return [(name, setting) for name, setting in settings if setting.table.situation != BESIDE]


def _alike(settings: Sequence[tuple[str, Setting]]) -> list[list[tuple[str, Setting]]]:
    """Group repeated runs, so that a row left out has no duplicate in the fit."""
    groups: dict[object, list[tuple[str, Setting]]] = {}
    for name, setting in settings:
        key = (
            setting.table.collective,
            setting.table.nranks,
            setting.topology.name,
            str(setting.library),
            setting.environment,
        )
        groups.setdefault(key, []).append((name, setting))
    return list(groups.values())


def _predictor(setting: Setting, tuning: tuple[TuningTable, ...]) -> LibraryFormula:
    """The formula, with the choices of the machine's tuning tables."""
    return replace(setting.formula(), tuning=tuning)


def fit_calibration(
    measurements: Gathered, parameters: Sequence[str] | None, topology: str
) -> Calibration:
    """Fit the calibration of a machine.

    Raises
    ------
    ConfigError
        For more parameters than there are rows.
    """
    calibration = (
        fit_series(measurements.series, parameters) if measurements.series else Calibration()
    )
    return replace(
        calibration,
        tuning=measurements.tuning,
        topology=topology,
        library=", ".join(measurements.libraries),
        sources=measurements.sources,
    )


def refuse_sick_machine(
    result: Calibration, series: Sequence[Series], logs: Sequence[str | Path], topology: str
) -> None:
    """Refuse a calibration of a machine that is another than the topology says, or not sound.

    Predictions with it would repeat a fault at all sizes and for all collectives.

    Raises
    ------
    ConfigError
        With the figure that shows it.
    """
    figure = _sick_figure(result, series)
    if figure:
        raise ConfigError(
            f"the measured machine is not the sound one that topology {topology!r} describes: "
            f"{figure}; nothing is written. Find the cause with: simcoll compare "
            f"{quote(str(logs[0]))} -t {quote(topology)}"
        )


def _sick_figure(result: Calibration, series: Sequence[Series]) -> str:
    """The figure of a calibration that no sound machine has; empty if there is none."""
    shortest = min((time for table in series for _, time in table.rows), default=0)
    if result.launch_fs < -MOST_NEGATIVE * shortest:
        return (
            f"the launch is {format_signed(result.launch_fs)}, less than none; the shortest "
            f"measured time is {format_signed(shortest).lstrip('+')}"
        )
    rate = f"links, NICs and switches have {float(result.rate):.2f} times the expected rate"
    if not Fraction(1, MOST_FACTOR) <= result.rate <= MOST_FACTOR:
        return f"{rate}, where 1/{MOST_FACTOR} to {MOST_FACTOR} times is plausible"
    if result.launch_fs >= MOST_LAUNCH_FS:
        return f"the launch is {format_signed(result.launch_fs)} or more, and {rate}"
    for correction in result.corrections:
        size_bytes, factor = max(correction.points, key=lambda point: max(point[1], 1 / point[1]))
        if max(factor, 1 / factor) > MOST_FACTOR:
            return (
                f"{correction.collective} of {format_size(size_bytes)} takes "
                f"{float(factor):.2f} times the fitted time, where at most {MOST_FACTOR} is "
                "plausible"
            )
    return ""
