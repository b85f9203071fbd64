"""Calibrations: measurements of one machine condensed into a few named numbers, in a file that any
prediction accepts.

A prediction under a calibration is ``(launch + library) x correction``. ``library`` is the
library's time with its rates times ``rate``, its fabric latency plus ``fabric_latency``, and its
growth of LL's latency times ``growth``. Where that is longer than ``hidden_from``, it hides a part
of the launch. ``correction`` is that of the size; it applies only to the collective and number of
ranks fitted. Launch and rate fade with the distance from the rows that showed them, and a rate may
be that of one algorithm.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np

from simcoll.arrays import Floats
from simcoll.errors import ConfigError
from simcoll.files.output import write_file
from simcoll.files.reader_arguments import Content, FilePath, content_of, path_of
from simcoll.files.strict import decode_toml, read_file
from simcoll.formats.logs.nccl_tuning import TunedCost, TuningTable
from simcoll.units import MAX_TIME_FS, parse_rate, parse_size, parse_time

__all__ = [
    "Calibration",
    "Correction",
    "calibration_toml",
    "load_calibration",
    "parse_calibration",
    "write_calibration",
]

FORMAT, VERSION = "simcoll-calibration", 1
MAX_BYTES = 2**22
MILLIONTHS = 10**6
LEAST, MOST = Fraction(1, 100), Fraction(100)
"""Factors beyond these are not plausible for a machine that the library's file describes."""
LEAST_SHARE = Fraction(2, 5)
"""Least share of the library's time that a negative launch offset leaves."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Ratio of measured to predicted time by size, for one collective on one number of ranks.

    The factor is interpolated linearly in logarithms between points; beyond them it is that of the
    nearest point.
    """

    collective: str
    nranks: int
    points: tuple[tuple[int, Fraction], ...]

    def factor(self, size_bytes: int) -> Fraction:
        """The factor for a size."""
        sizes = [size for size, _ in self.points]
        upper = bisect_right(sizes, size_bytes)
        if upper in (0, len(sizes)):
            return self.points[min(upper, len(sizes) - 1)][1]
        (small, low), (large, high) = self.points[upper - 1 : upper + 1]
        share = math.log(size_bytes / small) / math.log(large / small)
        return in_millionths(math.exp((1 - share) * math.log(low) + share * math.log(high)))


@dataclass(frozen=True, slots=True)
class Calibration:
    """A few numbers that fit a library's predictions to the measurements of one machine.

    Attributes
    ----------
    launch_fs
        Added to every time: the machine's cost of starting an operation beyond the library's own;
        may be negative.
    rate
        Factor on every rate: links, NICs, switches that reduce.
    fabric_latency_fs
        Added to the latency of each hop over the network; may be negative.
    growth
        Factor on the growth of LL's latency with the message size.
    corrections
        Corrections by size, where there are enough rows.
    tuning
        NCCL's own tuning tables of that machine, which fix its choice of algorithm and protocol.
    library, topology
        The library and topology of the fit, for information.
    sources
        The measurements, and the rows that were excluded.
    hidden_from_fs
        The library's time beside which the launch was measured. Beyond it times add as squares do:
        the host launches while the operation before is running. 0 if nothing is hidden.
    launch_scatter
        How far, as a share of the time, measured launches lie from this one for each doubling of
        the library's time beyond ``hidden_from_fs``. 0 if the launch does not fade.
    rate_scatter, rate_bytes
        How far measured rates lie from this one for each doubling of the size beyond or below
        ``rate_bytes``, at which it was measured. 0 if the rate does not fade.
    rate_algorithm
        The algorithm whose rates it is a factor of; empty for all.
    launch_size_scatter, launch_bytes
        The same as ``launch_scatter`` of a negative launch, for each doubling of the size beyond
        ``launch_bytes``. A launch above 0 stays, as times would fall where it fades.
    """

    launch_fs: int = 0
    rate: Fraction = Fraction(1)
    fabric_latency_fs: int = 0
    growth: Fraction = Fraction(1)
    corrections: tuple[Correction, ...] = ()
    tuning: tuple[TuningTable, ...] = ()
    library: str = ""
    topology: str = ""
    sources: tuple[str, ...] = ()
    hidden_from_fs: int = 0
    launch_scatter: Fraction = Fraction(0)
    rate_scatter: Fraction = Fraction(0)
    rate_bytes: int = 0
    rate_algorithm: str = ""
    launch_size_scatter: Fraction = Fraction(0)
    launch_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("launch_fs", "fabric_latency_fs", "hidden_from_fs"):
            if not abs(getattr(self, name)) <= MAX_TIME_FS:
                raise ConfigError(f"{name} {getattr(self, name)} is out of range")
        if self.hidden_from_fs < 0:
            raise ConfigError(f"hidden_from_fs must be at least 0, got {self.hidden_from_fs}")
        for name in ("launch_scatter", "launch_size_scatter", "rate_scatter"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must lie in 0..1, got {float(getattr(self, name)):g}")
        if self.rate_scatter and self.rate_bytes < 1:
            raise ConfigError(f"rate_bytes must be at least 1, got {self.rate_bytes}")
        if self.launch_size_scatter and self.launch_bytes < 1:
            raise ConfigError(f"launch_bytes must be at least 1, got {self.launch_bytes}")
        factors = [("rate", self.rate), ("growth", self.growth)]
        factors += [
            ("a correction", factor)
            for correction in self.corrections
            for _, factor in correction.points
        ]
        for name, factor in factors:
            if not LEAST <= factor <= MOST:
                raise ConfigError(f"{name} must lie in {LEAST}..{MOST}, got {float(factor):g}")

    @property
    def hash(self) -> str:
        """Hash of the contents; every result that uses the calibration carries it."""
        return hashlib.sha256(calibration_toml(self).encode()).hexdigest()[:16]

    def factor(self, collective: str, nranks: int, size_bytes: int) -> Fraction:
        """The correction for a size; 1 if none was fitted for this collective and number of
        ranks.
        """
        for correction in self.corrections:
            if correction.collective == collective and correction.nranks == nranks:
                return correction.factor(size_bytes)
        return Fraction(1)

    def launched_fs(self, time_fs: int, size_bytes: int = 0) -> Fraction:
        """The library's time with the launch offset, a negative one leaving at least
        :data:`LEAST_SHARE`.

        >>> calibration = Calibration(launch_fs=10, hidden_from_fs=20)
        >>> [int(calibration.launched_fs(time_fs)) for time_fs in (10, 20, 200)]
        [20, 30, 201]
        """
        beside_fs, launch_fs = self.hidden_from_fs, self._launch_beside(time_fs, size_bytes)
        launched_fs = time_fs + launch_fs
        if 0 < beside_fs < time_fs:
            launch_square = (beside_fs + launch_fs) ** 2 - beside_fs**2
            launched_fs = math.isqrt(max(0, time_fs**2 + launch_square))
        return max(Fraction(launched_fs), time_fs * LEAST_SHARE)

    def _launch_beside(self, time_fs: int, size_bytes: int) -> int:
        """The launch that a longer or larger operation than that of its row would show."""
        beside_fs, scatter = self.hidden_from_fs, 0.0
        if not (self.launch_fs and beside_fs):
            return self.launch_fs
        if time_fs > beside_fs:
            scatter = float(self.launch_scatter) * math.log2(time_fs / beside_fs)
        if self.launch_fs < 0 and self.launch_size_scatter and size_bytes > self.launch_bytes:
            doublings = math.log2(size_bytes / self.launch_bytes)
            scatter = math.hypot(scatter, float(self.launch_size_scatter) * doublings)
        if not scatter:
            return self.launch_fs
        longer = Fraction(beside_fs + self.launch_fs, beside_fs)
        late = math.log(max(longer, LEAST_SHARE))
        return int(share_beyond(scatter, late) * self.launch_fs)

    def rate_shares(self, size_bytes: Floats) -> Floats:
        """The share of the deviation of the rate that holds for sizes.

        >>> calibration = Calibration(
        ...     rate=Fraction(9, 10), rate_scatter=Fraction(1, 50), rate_bytes=1024
        ... )
        >>> calibration.rate_shares(np.array([32, 512, 1024, 2048])).round(2).tolist()
        [0.53, 0.97, 1.0, 0.97]
        """
        if not self.rate_scatter:
            return np.ones_like(size_bytes)
        doublings = np.log2(size_bytes / self.rate_bytes)
        return np.array(share_beyond(float(self.rate_scatter) * doublings, math.log(self.rate)))

    def corrected_fs(self, time_fs: int, collective: str, nranks: int, size_bytes: int) -> int:
        """The time with the launch offset and the correction for its size."""
        factor = self.factor(collective, nranks, size_bytes)
        return max(1, int(self.launched_fs(time_fs, size_bytes) * factor))

    def tuning_rows(self, collective: str, nranks: int, nnodes: int) -> tuple[TunedCost, ...]:
        """NCCL's own table for a collective with these numbers of ranks and nodes; empty if none
        was read.
        """
        for table in self.tuning:
            if table.nranks in {nranks, 0} and table.nnodes in {nnodes, 0}:
                rows = tuple(row for row in table.rows if row.collective == collective)
                if rows:
                    return rows
        return ()


def share_beyond(scatter: Floats | float, deviation: float) -> Floats | float:
    """The share of a deviation that is expected of rows which scatter about it.

    As of a signal in noise: half of a deviation as large as the scatter, 1 without scatter.

    >>> share_beyond(0.1, 0.2), share_beyond(0.1, 0.1), share_beyond(0.0, 0.1)
    (0.8, 0.5, 1.0)
    """
    return 1 / (1 + (scatter / (deviation or 1.0)) ** 2)


def in_millionths(value: float | Fraction) -> Fraction:
    """A factor rounded to the precision of a calibration file.

    >>> in_millionths(0.1234567)
    Fraction(123457, 1000000)
    """
    return Fraction(round(value * MILLIONTHS), MILLIONTHS)


class _Correction(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    collective: str
    ranks: int
    points: dict[str, float]


class _TuningRow(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    collective: str
    algorithm: str
    protocol: str
    latency: str
    bandwidth: str


class _Tuning(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    ranks: int
    nodes: int
    rows: list[_TuningRow]


class _CalibrationFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A calibration file."""

    format: str
    version: int
    library: str = ""
    topology: str = ""
    sources: list[str] = []
    launch: str = "0"
    hidden_from: str = "0"
    launch_scatter: float = 0.0
    launch_size_scatter: float = 0.0
    launch_size: str = "0"
    rate: float = 1.0
    rate_scatter: float = 0.0
    rate_size: str = "0"
    rate_algorithm: str = ""
    fabric_latency: str = "0"
    growth: float = 1.0
    correction: list[_Correction] = []
    tuning: list[_Tuning] = []


def _signed_fs(text: str, key: str, file: str | None) -> int:
    """A time that may be negative."""
    bare = text.strip()
    time = parse_time(bare.removeprefix("-"), what=key, file=file, path=f"$.{key}")
    return -time if bare.startswith("-") else time


def _factor(value: float, key: str, file: str | None) -> Fraction:
    """A factor within its limits; infinities and NaN are refused."""
    if not LEAST <= value <= MOST:
        raise ConfigError(
            f"expected a factor from {LEAST} to {MOST}, got {value!r}", file=file, path=f"$.{key}"
        )
    return Fraction(str(value))


def _scatter(value: float, key: str, file: str | None) -> Fraction:
    """A scatter within its limits."""
    if not 0 <= value <= 1:
        raise ConfigError(
            f"expected a share from 0 to 1, got {value!r}", file=file, path=f"$.{key}"
        )
    return Fraction(str(value))


def _row_bytes(text: str, scatter: float, key: str, file: str | None) -> int:
    """The size at which a number that fades was measured."""
    size_bytes = parse_size(text, what=key, file=file, path=f"$.{key}")
    if scatter and size_bytes < 1:
        raise ConfigError(
            f"a {key.partition('_')[0]} that fades needs the size at which it was measured, got "
            f"{text!r}",
            file=file,
            path=f"$.{key}",
        )
    return size_bytes


def parse_calibration(data: Content, file: str | None = None) -> Calibration:
    """A calibration from the text of its file.

    Raises
    ------
    ConfigError
        States the file and the place in it.
    """
    data = content_of(data, "parse_calibration")
    record = decode_toml(data, _CalibrationFile, file)
    if (record.format, record.version) != (FORMAT, VERSION):
        header = f"format {record.format!r}, version {record.version}"
        raise ConfigError(
            f"{header}: expected {FORMAT!r}, version {VERSION}", file=file, path="$.format"
        )
    corrections = []
    for number, entry in enumerate(record.correction):
        place = f"correction[{number}].points"
        points = [
            (
                parse_size(size, what="size", file=file, path=f"$.{place}"),
                _factor(value, place, file),
            )
            for size, value in entry.points.items()
        ]
        if not points or len({size for size, _ in points}) < len(points) or min(points)[0] < 1:
            raise ConfigError(
                "expected factors by size, each size once", file=file, path=f"$.{place}"
            )
        corrections.append(Correction(entry.collective, entry.ranks, tuple(sorted(points))))
    tables = []
    for number, table in enumerate(record.tuning):
        place = f"$.tuning[{number}]"
        rows = []
        for row in table.rows:
            latency_fs = parse_time(row.latency, file=file, path=place)
            bandwidth_uBps = parse_rate(row.bandwidth, file=file, path=place)
            rows.append(
                TunedCost(row.collective, row.algorithm, row.protocol, latency_fs, bandwidth_uBps)
            )
        tables.append(TuningTable(table.ranks, table.nodes, tuple(rows)))
    return Calibration(
        _signed_fs(record.launch, "launch", file),
        _factor(record.rate, "rate", file),
        _signed_fs(record.fabric_latency, "fabric_latency", file),
        _factor(record.growth, "growth", file),
        tuple(corrections),
        tuple(tables),
        record.library,
        record.topology,
        tuple(record.sources),
        parse_time(record.hidden_from, what="hidden_from", file=file, path="$.hidden_from"),
        _scatter(record.launch_scatter, "launch_scatter", file),
        _scatter(record.rate_scatter, "rate_scatter", file),
        _row_bytes(record.rate_size, record.rate_scatter, "rate_size", file),
        record.rate_algorithm,
        _scatter(record.launch_size_scatter, "launch_size_scatter", file),
        _row_bytes(record.launch_size, record.launch_size_scatter, "launch_size", file),
    )


def load_calibration(path: FilePath) -> Calibration:
    """Read a calibration file.

    Raises
    ------
    ConfigError
        When it cannot be read or is not a calibration.
    """
    path = path_of(path, "load_calibration", "parse_calibration")
    return parse_calibration(read_file(path, MAX_BYTES), path)


def _text(value: str) -> str:
    """A TOML string; JSON's escapes are also TOML's."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def _us(time_fs: int) -> str:
    """An exact time in microseconds."""
    return (
        f'"{"-" * (time_fs < 0)}{abs(time_fs) // 10**9}.{abs(time_fs) % 10**9:09}'.rstrip(
            "0"
        ).rstrip(".")
        + ' us"'
    )


def _scatter_line(name: str, scatter: Fraction) -> list[str]:
    """The line of a scatter; none without one."""
    return [f"{name}_scatter = {float(scatter):.6f}"] * (scatter > 0)


def _size_line(name: str, size_bytes: int) -> list[str]:
    """The line of the size at which a number was measured; none without one."""
    return [f'{name}_size = "{size_bytes}"'] * (size_bytes > 0)


def calibration_toml(calibration: Calibration) -> str:
    """The text of a calibration file; equal calibrations yield equal text.

    >>> print(calibration_toml(Calibration(launch_fs=-1_500_000_000, rate=Fraction(9, 10))))
    format = "simcoll-calibration"
    version = 1
    library = ""
    topology = ""
    sources = []
    launch = "-1.5 us"
    rate = 0.900000
    fabric_latency = "0 us"
    growth = 1.000000
    <BLANKLINE>
    """
    lines = [
        f"format = {_text(FORMAT)}",
        f"version = {VERSION}",
        f"library = {_text(calibration.library)}",
        f"topology = {_text(calibration.topology)}",
        "sources = [" + ",".join(f"\n  {_text(source)}" for source in calibration.sources) + "]",
        f"launch = {_us(calibration.launch_fs)}",
        *([f"hidden_from = {_us(calibration.hidden_from_fs)}"] * (calibration.hidden_from_fs > 0)),
        *_scatter_line("launch", calibration.launch_scatter),
        *_scatter_line("launch_size", calibration.launch_size_scatter),
        *_size_line("launch", calibration.launch_bytes),
        f"rate = {float(calibration.rate):.6f}",
        *_scatter_line("rate", calibration.rate_scatter),
        *_size_line("rate", calibration.rate_bytes),
        *(
            [f"rate_algorithm = {_text(calibration.rate_algorithm)}"]
            * bool(calibration.rate_algorithm)
        ),
        f"fabric_latency = {_us(calibration.fabric_latency_fs)}",
        f"growth = {float(calibration.growth):.6f}",
    ]
    for correction in calibration.corrections:
        points = ", ".join(f"{size} = {float(factor):.6f}" for size, factor in correction.points)
        lines += [
            "",
            "[[correction]]",
            f"collective = {_text(correction.collective)}",
            f"ranks = {correction.nranks}",
        ]
        lines.append(f"points = {{ {points} }}")
    for table in calibration.tuning:
        lines += [
            "",
            "[[tuning]]",
            f"ranks = {table.nranks}",
            f"nodes = {table.nnodes}",
            "rows = [",
        ]
        for row in table.rows:
            names = (
                f"collective = {_text(row.collective)}, algorithm = {_text(row.algorithm)}, "
                f"protocol = {_text(row.protocol)}"
            )
            rate = f"{row.bandwidth_uBps / 10**15:.1f} GB/s"
            lines.append(f'  {{ {names}, latency = {_us(row.latency_fs)}, bandwidth = "{rate}" }},')
        lines.append("]")
    return "\n".join(lines) + "\n"


def write_calibration(path: str | Path, calibration: Calibration) -> None:
    """Write a calibration file, verified by reading it back.

    Raises
    ------
    ConfigError
        When it cannot be written; no partial file is left.
    """
    data = calibration_toml(calibration).encode()
    again = parse_calibration(data, str(path))
    if again != calibration:
        raise ConfigError(
            "holds numbers that a calibration file cannot keep: factors in millionths, rates in "
            "0.1 GB/s",
            file=str(path),
        )
    write_file(path, data)
