"""``simcoll compare``: measurements in a log beside predictions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simcoll.cli.log_options import LogOptions
from simcoll.command_line import VERBOSE
from simcoll.errors import ConfigError
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.formats.logs.nccl_tuning import Chosen
    from simcoll.libraries.calibration import Calibration
    from simcoll.planning.measured.comparison import Compared

__all__ = ["compare_log"]

MAX_PANELS = 12


def _calibration_notes(calibration: Calibration, log: Path, topology: str) -> Iterator[str]:
    if any(source.startswith(f"{log.name}:") for source in calibration.sources):
        yield (
            "the calibration was fitted to a log of this name; simcoll calibrate prints its error "
            "on rows left out"
        )
    if calibration.topology not in {"", topology}:
        yield (
            f"the calibration was fitted on topology {calibration.topology!r}, another than "
            f"{topology!r}"
        )


def compare_log(
    log: Path,
    /,
    *,
    topology: Annotated[str, Parameter(name=["--topology", "-t"])],
    options: LogOptions = LogOptions(),  # noqa: B008
    calibration: Path | None = None,
    svg: Path | None = None,
    verbose: Annotated[bool, VERBOSE] = False,
) -> None:
    """Compare measured times with predictions, row by row, and explain the difference.

    Parameters
    ----------
    log
        Output of nccl-tests, rccl-tests, realcoll perf or OSU benchmarks: text, possibly amid other
        output, or JSON.
    topology
        The machine: a shipped topology (simcoll list topologies), a TOML file, or an NCCL topology
        XML dump.
    calibration
        A file that simcoll calibrate wrote.
    svg
        File for a picture: both curves and the bound.
    verbose
        Print also the classes of errors that intervals come from.
    """
    from simcoll.cli.progress import Progress
    from simcoll.files.output import refuse_places, write_file
    from simcoll.formats.logs.nccl_tests import load_log
    from simcoll.libraries.calibration import load_calibration
    from simcoll.planning.measured.comparison import (
        band_lines,
        blame_log,
        check_request,
        compare,
        comparison_lines,
        deviations,
        settings_for,
        within_line,
    )
    from simcoll.planning.measured.comparison_chart import comparison_svg
    from simcoll.planning.measured.diagnosis import diagnose, with_log
    from simcoll.planning.measured.library_table import doubts
    from simcoll.planning.sweeps.chart import check_drawing
    from simcoll.terminal import printable

    refuse_places([svg], [log, topology, options.library, calibration])
    if svg is not None:
        check_drawing()
    check_request(topology, options.environment)
    overlay = load_calibration(calibration) if calibration else None
    content = load_log(log)
    with blame_log(content, log):
        settings, notes = settings_for(content, topology, options)
    calibration_notes = _calibration_notes(overlay, log, topology) if overlay else ()
    for note in (*content.notes, *notes, *calibration_notes):
        say(f"# note: {note}")
    tables = {}
    for number, requested in enumerate(settings, 1):
        variables = requested.table.environment
        log_setting = with_log(requested, variables=not options.environment)
        setting = log_setting.setting
        with Progress() as progress:
            rows = compare(setting, overlay, progress)
        diagnosis = diagnose(rows, log_setting, overlay, content.choices)
        tables[f"{number}. {printable(str(setting))}"] = rows
        say(
            f"# {setting}; predicted by "
            f"{setting.library}{f', calibration {overlay.hash}' if overlay else ''}"
        )
        if variables:
            replaced = ", which --env replaces" if options.environment else ""
            values = " ".join(f"{name}={value}" for name, value in variables)
            say(f"# environment of the log{replaced}: {values}")
        for line in diagnosis.facts:
            say(f"# the log says: {line}")
        for line in log_setting.lines():
            say(f"# {line}")
        for line in (
            *comparison_lines(rows),
            *doubts((row.prediction for row in rows), verbose=verbose),
        ):
            say(line)
        for line in band_lines((row.row.size_bytes, row.ratio) for row in rows):
            say(f"# error {line}")
        say(f"# {within_line(rows)}")
        limited = any(cause.change is not None for cause in log_setting.causes)
        for line in (*deviations(rows, limited=limited), *_choices(rows, content.choices)):
            say(f"# {line}")
        for line in diagnosis.lines():
            say(f"# {line}")
    if svg is not None:
        if len(tables) > MAX_PANELS:
            raise ConfigError(
                f"{len(tables)} tables are too many for one picture; the most is {MAX_PANELS}",
                file=str(log),
            )
        write_file(
            svg,
            comparison_svg(
                f"{printable(log.name)} beside predictions for {settings[0].topology.name}", tables
            ),
        )
        say(f"# wrote {svg}")


def _choices(rows: list[Compared], choices: tuple[Chosen, ...]) -> list[str]:
    """Compare NCCL's own choices, if the log has them, with the predicted ones."""
    log_choices = {
        (choice.collective, choice.size_bytes): f"{choice.algorithm} {choice.protocol}"
        for choice in choices
    }
    pairs = [
        (row, log_choices[row.prediction.collective, row.row.size_bytes])
        for row in rows
        if (row.prediction.collective, row.row.size_bytes) in log_choices
    ]
    differences = [
        (row, name)
        for row, name in pairs
        if name != f"{row.prediction.algorithm} {row.prediction.protocol}"
    ]
    if not pairs:
        return []
    from simcoll.units import counted, format_size

    samples = [f"{format_size(row.row.size_bytes)} {name}" for row, name in differences[:6]]
    remark = (
        f"; NCCL took {', '.join(samples)}{', ...' if len(differences) > 6 else ''}"
        if differences
        else ""
    )
    return [
        (
            f"NCCL's choice is in the log for {counted(len(pairs), 'size')}; as predicted: "
            f"{len(pairs) - len(differences)}{remark}"
        )
    ]
