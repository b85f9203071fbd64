"""``simcoll calibrate``: fit a few parameters to measurements of a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from simcoll.cli.calibrate_step_command import calibrate_steps
from simcoll.cli.log_options import LogOptions
from simcoll.errors import ConfigError
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.libraries.calibration import Calibration
    from simcoll.libraries.fitting import Series
    from simcoll.planning.measured.comparison import BandError

__all__ = ["app", "calibrate_logs"]


def calibrate_logs(
    *logs: Path,
    topology: Annotated[str, Parameter(name=["--topology", "-t"])],
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    options: LogOptions = LogOptions(),  # noqa: B008
    parameters: str | None = None,
) -> None:
    """Fit launch offset, rate, fabric latency and growth to measured rows, for --calibration.

    Parameters
    ----------
    logs
        Output of nccl-tests, rccl-tests or realcoll perf; NCCL's tuning table in it
        (NCCL_DEBUG_SUBSYS=TUNING) is kept too.
    topology
        The machine, as for simcoll compare.
    output
        The file, such as machine.toml.
    parameters
        Parameters to fit, among launch,rate,growth,fabric_latency. Default: as many as the rows
        allow.
    """
    from simcoll.files.output import refuse_places
    from simcoll.libraries.calibration import write_calibration
    from simcoll.planning.measured.calibrating import (
        fit_calibration,
        gather,
        refuse_sick_machine,
    )

    if not logs:
        raise ConfigError(
            "calibrate needs a log; expected output of nccl-tests, rccl-tests or realcoll perf"
        )
    refuse_places([output], [topology, options.library, *logs])
    names = tuple(parameters.split(",")) if parameters is not None else None
    measurements = gather(logs, topology, options)
    for note in measurements.notes:
        say(f"# note: {note}")
    result = fit_calibration(measurements, names, topology)
    for line in _lines(result, measurements.series, names):
        say(f"# {line}")
    refuse_sick_machine(result, measurements.series, logs, topology)
    write_calibration(output, result)
    say(f"# wrote {output}: calibration {result.hash}")


def _verdict(plain: Sequence[BandError], calibrated: Sequence[BandError]) -> Iterator[str]:
    """In which bands of sizes the calibration brings predictions nearer to rows left out."""
    better, worse = [], []
    for plain_error, error in zip(plain, calibrated, strict=True):
        change = f"{error.band} (median {plain_error.median:.0%} to {error.median:.0%})"
        if error.median < plain_error.median:
            better.append(change)
        elif error.median > plain_error.median:
            worse.append(change)
    verdict = "verdict: with the calibration, predictions are"
    if better:
        yield f"{verdict} more exact for sizes {', '.join(better)}"
    if worse:
        yield f"{verdict} less exact for sizes {', '.join(worse)}; measure more sizes there"


def _lines(
    result: Calibration, series: Sequence[Series], names: tuple[str, ...] | None
) -> Iterator[str]:
    """Describe the parameters, and the error before and after on rows left out of the fit."""
    from simcoll.libraries.fitting import left_out
    from simcoll.planning.measured.comparison import band_errors, band_lines
    from simcoll.units import format_signed, format_size, format_time

    yield from result.sources
    for table in result.tuning:
        scope = (
            f"{table.nranks or 'any number of'} ranks on {table.nnodes or 'any number of'} nodes"
        )
        yield f"NCCL's tuning table for {scope}: determines the choice there"
    if not series:
        return
    hidden = f"; those longer than {format_time(result.hidden_from_fs)} hide a part of it"
    launch = f"launch {format_signed(result.launch_fs)}: added to every operation"
    yield launch + hidden * bool(result.launch_fs and result.hidden_from_fs)
    fades = f"; it fades with the distance from {format_size(result.rate_bytes)}"
    rate = f"rate x {float(result.rate):.3f}: of links, NICs and switches"
    yield rate + fades * bool(result.rate_scatter)
    yield f"fabric latency {format_signed(result.fabric_latency_fs)}: on every hop over the network"
    yield f"growth x {float(result.growth):.2f}: of how much LL slows down with size"
    for correction in result.corrections:
        factors = sorted(float(factor) for _, factor in correction.points)
        yield (
            f"correction by size, {correction.collective} on {correction.nranks} ranks: "
            f"{factors[0]:.2f} to {factors[-1]:.2f}"
        )
    rows = left_out(series, names)
    if not rows:
        yield "too few rows for a cross-validation"
        if names is None:
            yield "a launch below the scatter of such rows on published machines counts as none"
        return
    ratios = [(row.size_bytes, 1 + row.uncalibrated_error) for row in rows]
    left_out_ratios = [(row.size_bytes, 1 + row.calibrated_error) for row in rows]
    for line in band_lines(ratios):
        yield f"error without the calibration, {line}"
    for line in band_lines(left_out_ratios):
        yield f"error of rows left out of the fit, {line}"
    yield from _verdict(band_errors(ratios), band_errors(left_out_ratios))
    plain = sum(abs(row.uncalibrated_error) for row in rows)
    calibrated = sum(abs(row.calibrated_error) for row in rows)
    if calibrated > plain:
        yield (
            "predictions of rows left out of the fit are worse with the calibration than without "
            "it: these rows are too few or too unlike; measure more sizes before you use it"
        )


app = App(name="calibrate", help=calibrate_logs.__doc__)
app.default(calibrate_logs)
app.command(calibrate_steps, name="step")
