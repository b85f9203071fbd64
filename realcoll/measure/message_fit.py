"""Fit latency and bandwidth to measured messages, as a topology file or a calibration of a known
machine.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from realcoll.executor import prepare
from realcoll.measure.timed_sizes import time_call
from realcoll.transports.interface import Transport
from simcoll.binding import bind
from simcoll.core.collective import Collective
from simcoll.core.schedule import Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError
from simcoll.formats.logs.measured import MeasuredRow
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.fitting import Series, formula
from simcoll.libraries.library import library_for
from simcoll.planning.measured.calibrating import Gathered, fit_calibration
from simcoll.topology import topology_of_job
from simcoll.units import format_size

__all__ = ["MessageFit", "calibration", "fit", "shift", "sizes_and_times", "topology_toml"]


@dataclass(frozen=True, slots=True)
class MessageFit:
    """The line ``time = latency + size / bandwidth`` through measurements, and each one's distance
    from it.

    Attributes
    ----------
    latency_s, bandwidth
        Seconds, and bytes per second.
    sizes, times_s, residuals
        The measurements; residuals are measured over fitted time, minus 1.
    """

    latency_s: float
    bandwidth: float
    sizes: tuple[int, ...]
    times_s: tuple[float, ...]
    residuals: tuple[float, ...]


def fit(sizes: Sequence[int], times_s: Sequence[float]) -> MessageFit:
    """Fit by least squares of the relative error, which weighs small and large messages equally.

    Raises
    ------
    ConfigError
        For fewer than two sizes, or times that do not grow with size.

    Examples
    --------
    >>> found = fit([0, 1000, 2000], [1e-6, 2e-6, 3e-6])
    >>> round(found.latency_s * 1e6, 6), round(found.bandwidth / 1e9, 6)
    (1.0, 1.0)
    """
    size, seconds = np.asarray(sizes, np.float64), np.asarray(times_s, np.float64)
    if len(np.unique(size)) < 2 or (seconds <= 0).any():
        raise ConfigError("a fit needs at least two sizes, and times above 0")
    rows = np.stack([1 / seconds, size / seconds], axis=1)
    latency, slope = np.linalg.lstsq(rows, np.ones(len(size)), rcond=None)[0].tolist()
    if latency < 0:  # no message arrives before it is sent: the best line through the origin
        latency, slope = 0.0, float((rows[:, 1].sum()) / (rows[:, 1] ** 2).sum())
    if slope <= 0:
        raise ConfigError(
            "the measured times do not grow with the size; measure larger messages (-e)"
        )
    fitted = latency + slope * size
    residuals = tuple((seconds / fitted - 1).tolist())
    return MessageFit(
        latency,
        1 / slope,
        tuple(int(s) for s in sizes),
        tuple(float(t) for t in times_s),
        residuals,
    )


def shift(nranks: int) -> Schedule:
    """The schedule of nccl-tests' sendrecv: every rank sends its block to the next, all at once."""
    pairs = tuple((rank, (rank + 1) % nranks) for rank in range(nranks))
    layout = Layout(Collective("send_recv", nranks, pairs=pairs))
    rank = np.arange(nranks, dtype=np.int64)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), (rank + 1) % nranks, layout.output())

    return Schedule("shift", layout, steps)


def sizes_and_times(
    transport: Transport, nranks: int, sizes: Sequence[int], iterations: int
) -> list[float]:
    """Seconds of a shift for each size in bytes."""
    schedule, times = shift(nranks), []
    for size in sizes:
        prepared = prepare(bind(schedule, size, "uint8"), transport)
        prepared.load([np.zeros(size, np.uint8)] * nranks)
        times.append(time_call(prepared.run, transport, iterations, 2))
    return times


def topology_toml(line: MessageFit, name: str, nranks: int, transport: str) -> str:
    """Write a topology file: a crossbar with the fitted values, with measurements and residuals as
    traits.
    """
    source = (
        f"fitted to {len(line.sizes)} sizes measured with {transport} on {platform.node()}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}"
    )
    worst = max(abs(residual) for residual in line.residuals)
    lines = [
        f'name = "{name}"',
        (
            f'description = "Fitted to messages between {nranks} ranks with {transport}; largest '
            f'residual {worst:.0%}"'
        ),
        'family = "crossbar"',
        f'nranks = {{ value = {nranks}, source = "ranks of the measurement" }}',
        f'bandwidth = {{ value = "{line.bandwidth / 1e9:.6g} GB/s", source = "{source}" }}',
        f'latency = {{ value = "{line.latency_s * 1e6:.6g} us", source = "{source}" }}',
        "",
        "[traits]",
    ]
    for size, seconds, residual in zip(line.sizes, line.times_s, line.residuals, strict=True):
        lines.append(
            f'"measured {format_size(size)}" = "{seconds * 1e6:.6g} us, {residual:+.1%} of the fit"'
        )
    return "\n".join(lines) + "\n"


def calibration(
    sizes: Sequence[int], times_s: Sequence[float], topology: str, nranks: int, transport: str
) -> Calibration:
    """Calibrate a known machine from measurements of nccl-tests' sendrecv, as ``simcoll calibrate``
    does.

    Raises
    ------
    ConfigError
        When the topology has fewer ranks, or the library no numbers for it.
    """
    machine = topology_of_job(topology, nranks)
    rows = [
        MeasuredRow(size, size, "uint8", "", -1, round(s * 1e15))
        for size, s in zip(sizes, times_s, strict=True)
    ]
    series = Series.of("send_recv", nranks, rows, formula("send_recv", machine))
    source = (
        f"realcoll calibrate: send_recv on {nranks} ranks with {transport}, {len(series.rows)} rows"
    )
    measurements = Gathered(
        (series,),
        (),
        ("; set aside: ".join([source, *series.aside]),),
        (str(library_for(None, machine)),),
        (),
    )
    return fit_calibration(measurements, None, topology)
