"""Calibrate a machine from logs of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simcoll.formats.logs.nccl_tests import load_log
from simcoll.formats.logs.nccl_tuning import TuningTable
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.fitting import Predictor, Series, fit_series
from simcoll.planning.measured.comparison import Setting, check_request, settings_for, told_of

__all__ = ["Gathered", "fitted", "gathered"]


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


def gathered(
    logs: Sequence[str | Path], topology: str, *, nodes: int | None = None, library: str | None = None, environment: str = "",
    collective: str | None = None,
) -> Gathered:  # fmt: skip
    """Read all logs.

    Raises
    ------
    ConfigError
        With the log, if it has nothing to fit.
    """
    settings: list[tuple[str, Setting]] = []
    tuning: dict[TuningTable, None] = {}
    notes: list[str] = []
    check_request(topology, environment)
    for log in logs:
        found, name = load_log(log), Path(log).name
        tuning |= dict.fromkeys(found.tuning)
        notes += [f"{name}: {note}" for note in found.notes]
        if found.tuning and not found.tables:
            continue
        with told_of(found, log):
            told, more = settings_for(
                found, topology, nodes=nodes, library=library, environment=environment, collective=collective
            )
        notes += [f"{name}: {note}" for note in more]
        settings += [(name, each) for each in told]
    tables = tuple(tuning)
    series: list[Series] = []
    sources: list[str] = []
    for runs in _alike(settings):
        first, rows = runs[0][1], [row for _, each in runs for row in each.table.rows]
        made = Series.of(first.table.collective, first.table.nranks, rows, _predictor(first, tables))
        again = len(rows) - len({row.size_bytes for row in rows})
        if again:
            notes.append(f"{first.table.collective}: {again} rows of repeated sizes; medians are used")
        series.append(made)
        named = [f"{name}: {each.table}" for name, each in runs]
        sources += [*named[:-1], "; set aside: ".join([named[-1], *made.aside])]
    libraries = dict.fromkeys(str(each.library) for _, each in settings)
    return Gathered(tuple(series), tables, tuple(sources), tuple(libraries), tuple(notes))


def _alike(settings: Sequence[tuple[str, Setting]]) -> list[list[tuple[str, Setting]]]:
    """Group repeated runs, so that a row left out has no duplicate in the fit."""
    found: dict[object, list[tuple[str, Setting]]] = {}
    for name, each in settings:
        key = (each.table.collective, each.table.nranks, each.topology.name, str(each.library), each.environment)
        found.setdefault(key, []).append((name, each))
    return list(found.values())


def _predictor(setting: Setting, tuning: tuple[TuningTable, ...]) -> Predictor:
    """The formula, with the choices of the machine's tuning tables."""
    own = setting.formula()
    return (lambda sizes, calibration: own(sizes, replace(calibration, tuning=tuning))) if tuning else own


def fitted(found: Gathered, parameters: Sequence[str] | None, topology: str) -> Calibration:
    """Fit the calibration of a machine.

    Raises
    ------
    ConfigError
        For more parameters than there are rows.
    """
    made = fit_series(found.series, parameters) if found.series else Calibration()
    return replace(
        made, tuning=found.tuning, topology=topology, library=", ".join(found.libraries), sources=found.sources
    )
